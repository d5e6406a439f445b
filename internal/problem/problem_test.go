package problem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
)

func TestEveryCodeHasItsOwnStatus(t *testing.T) {
	seen := map[problem.Code]bool{}
	for _, c := range problem.Codes() {
		if seen[c] {
			t.Errorf("%s is listed twice", c)
		}
		seen[c] = true
		if c.Status() == http.StatusInternalServerError && c != problem.Internal {
			t.Errorf("%s has no status", c)
		}
	}
}

// Each code has a section in the troubleshooting page.
func TestEveryCodeIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	for _, c := range problem.Codes() {
		codes["### "+string(c)] = true
		if !strings.Contains(string(page), "\n### "+string(c)+"\n") {
			t.Errorf("%s has no section", c)
		}
	}
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "### ") && !codes[line] {
			t.Errorf("%q is of no code", line)
		}
	}
}

func TestACauseIsNeverShown(t *testing.T) {
	secret := errors.New("dial /var/run/secret.sock: token abc")
	for _, err := range []error{
		problem.New(problem.Unavailable, "The API server does not answer.", "Try again.").WithCause(secret),
		fmt.Errorf("writing the sign-in: %w", secret), // not a problem
	} {
		p := problem.From(err)
		b, jerr := json.Marshal(p)
		if jerr != nil {
			t.Fatal(jerr)
		}
		if s := string(b) + p.Error(); strings.Contains(s, "secret") || strings.Contains(s, "abc") {
			t.Errorf("%v: shown as %s", err, s)
		}
		if !errors.Is(p, secret) {
			t.Errorf("%v: the log has lost the cause", err)
		}
	}
}

func TestFromFindsAWrappedProblem(t *testing.T) {
	err := fmt.Errorf("login: %w", problem.New(problem.NoCapability, "No."))
	if got := problem.CodeOf(err); got != problem.NoCapability {
		t.Errorf("CodeOf = %q", got)
	}
	if problem.From(nil) != nil || problem.CodeOf(nil) != "" {
		t.Error("no error is a problem")
	}
}
