package attacktest

import (
	"testing"
	"time"
)

// Eventually waits until a condition holds and returns the time that it took. It fails the test after limit.
func Eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !Within(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
	return time.Since(began)
}

// Within waits until a condition holds and reports whether it did within limit. The interval between polls grows,
// because each poll slows down the work that the test waits for.
func Within(limit time.Duration, ok func() bool) bool {
	const most = 50 * time.Millisecond
	wait := 5 * time.Millisecond
	for end := time.Now().Add(limit); ; wait = min(wait*9/8, most) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		<-time.After(wait)
	}
}

// Always checks for a while that a condition stays true.
func Always(t *testing.T, during time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(during); time.Now().Before(end); <-tick.C {
		if !ok() {
			t.Fatalf("no longer true: %s", what)
		}
	}
}
