package tailnettest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A policy file is read again when it is written or replaced, and an invalid one changes nothing.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.hujson")
	put := func(text string, rename bool) {
		t.Helper()
		to := path
		if rename {
			to += ".new"
		}
		err := os.WriteFile(to, []byte(text), 0o600)
		if err == nil && rename {
			err = os.Rename(to, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	said := make(chan string, 100)
	put(`{"groups": {"group:a": []}}`, false)
	n := StartWith(t, Options{PolicyFile: path, Logf: func(f string, args ...any) {
		if s := fmt.Sprintf(f, args...); strings.HasPrefix(s, "policy file") {
			said <- s
		}
	}})
	hear := func(part string) {
		t.Helper()
		select {
		case s := <-said:
			if !strings.Contains(s, part) {
				t.Fatalf("logged %q, want %q", s, part)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not logged: %q", part)
		}
	}
	const second = `{"groups": {"group:b": ["b@example.com"]}}`
	put(second, true)
	hear("is in effect")
	put(`{"groups": {"group:b": ["nobody"]}}`, true)
	hear("is invalid, the previous policy stays")
	if n.Policy() != second {
		t.Errorf("the policy in force: %s", n.Policy())
	}
	put(`{"groups": {}}`, true)
	hear("is in effect")
	if n.Policy() != `{"groups": {}}` {
		t.Errorf("the policy in force: %s", n.Policy())
	}
	if _, err := Run(t.TempDir(), Options{PolicyFile: path + ".none"}); err == nil {
		t.Error("a tailnet started without its policy file")
	}
}
