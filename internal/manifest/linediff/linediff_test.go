package linediff

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Law: what a diff keeps and removes is the old text, what it keeps and adds the new one.
func TestDiff(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		var b strings.Builder
		for range r.IntN(n + 1) {
			b.WriteString([]string{"a\n", "b\n", "c\n", "d\n", "\n"}[r.IntN(5)])
		}
		if r.IntN(4) == 0 {
			b.WriteString("end")
		}
		return b.String()
	}
	for range 2000 {
		a, b := text(20), text(20)
		var was, is strings.Builder
		changes := 0
		for _, s := range shortest(lines(a), lines(b)) {
			if s.op != '+' {
				was.WriteString(s.text)
			}
			if s.op != '-' {
				is.WriteString(s.text)
			}
			if s.op != ' ' {
				changes++
			}
		}
		if was.String() != a || is.String() != b || (changes == 0) != (a == b) {
			t.Fatalf("%q to %q: %q and %q", a, b, was.String(), is.String())
		}
	}
	const old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n"
	got := Unified("x", []byte(old), []byte(strings.Replace(strings.Replace(old, "3\n", "three\n", 1), "15\n", "", 1)))
	const want = "--- x\n+++ x\n@@ -1,6 +1,6 @@\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n@@ -12,5 +12,4 @@\n 12\n 13\n 14\n-15\n 16\n"
	if got != want {
		t.Errorf("%s", got)
	}
	if Unified("x", []byte(old), []byte(old)) != "" {
		t.Error("a diff of nothing")
	}
}
