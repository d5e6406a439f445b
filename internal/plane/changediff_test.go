package plane

import (
	"bytes"
	"runtime"
	"testing"
)

// PLANE-11: the diff shows a created or deleted file, and is empty without a change.
func TestUnified(t *testing.T) {
	text := []byte("a: 1\nb: 2\n")
	for name, x := range map[string]struct {
		old, updated []byte
		want         string
	}{
		"it comes":        {nil, text, "diff /dev/null b/f\n--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a: 1\n+b: 2\n"},
		"it goes":         {text, nil, "diff a/f /dev/null\n--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a: 1\n-b: 2\n"},
		"a value changes": {text, []byte("a: 1\nb: 3\n"), "diff a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n+b: 3\n"},
		"its end goes":    {text, []byte("a: 1\nb: 2"), "diff a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n+b: 2\n\\ No newline at end of file\n"},
		"nothing":         {text, text, ""},
	} {
		if got := unifiedDiff("f", x.old, x.updated); got != x.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, x.want)
		}
	}
}

// The largest files cost a bounded amount of work, whatever their lines are.
func TestUnifiedIsBounded(t *testing.T) {
	shuffled := func(step int) []byte {
		const lines = maxFile / 8
		var b bytes.Buffer
		for i := range lines {
			n := i * step % lines
			b.WriteString("l00" + string([]byte{'0' + byte(n>>12&63), '0' + byte(n>>6&63), '0' + byte(n&63)}) + "\n")
		}
		return b.Bytes()
	}
	for name, x := range map[string][2][]byte{
		"empty lines":              {bytes.Repeat([]byte("\n"), maxFile), bytes.Repeat([]byte("\n"), maxFile/2)},
		"two texts of short lines": {bytes.Repeat([]byte("a\nb\n"), maxFile/4), bytes.Repeat([]byte("b\na\n"), maxFile/4)},
		"the same lines, shuffled": {shuffled(1), shuffled(40503)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			unifiedDiff("f", x[0], x[1])
			runtime.ReadMemStats(&after)
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 256 {
				t.Errorf("%d MB are allocated", mb)
			}
		})
	}
}
