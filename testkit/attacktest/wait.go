package attacktest

import (
	"testing"
	"time"
)

// Eventually waits for what must become true, and returns how long that took.
func Eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !Within(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
	return time.Since(began)
}

// Within waits for what should become true, and says whether it did. It asks ever
// more seldom, as asking costs what others wait for.
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

// Always watches for a while that something stays true.
func Always(t *testing.T, during time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(during); time.Now().Before(end); <-tick.C {
		if !ok() {
			t.Fatalf("not any more: %s", what)
		}
	}
}
