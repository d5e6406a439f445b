package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/gossiptest"
)

// An end-to-end test of `make sim`.
func TestTable(t *testing.T) {
	var b strings.Builder
	s := gossiptest.Scenario{N: 4, Loss: .1, Jitter: 20 * time.Millisecond, Watch: 2 * time.Second, Seed: 9}
	if err := run(t.Context(), &b, "../..", s); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	switch {
	case len(lines) != 5:
		t.Errorf("it prints: len(lines) = %v, want 5; %s", len(lines), &b)
	case lines[0] != s.String():
		t.Errorf("it prints: lines[0] = %q, want %q; %s", lines[0], s.String(), &b)
	case !strings.HasPrefix(lines[3], "tailplane "):
		t.Errorf("it prints: lines[3] = %q does not start with %q; %s", lines[3], "tailplane ", &b)
	case !strings.HasPrefix(lines[4], "memberlist "):
		t.Errorf("it prints: lines[4] = %q does not start with %q; %s", lines[4], "memberlist ", &b)
	}
	t.Log("\n" + b.String())
}

func TestMissing(t *testing.T) {
	if missing(nil) || missing(errors.New("--- FAIL: TestMemberlist")) {
		t.Error("a test that fails is taken for a module that is missing")
	}
	if !missing(errors.New("go: github.com/hashicorp/memberlist@v0.7.0: module lookup disabled by GOPROXY=off")) {
		t.Error("a module that is missing is taken for a test that fails")
	}
}
