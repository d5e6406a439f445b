package sanitize_test

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// FuzzJSON checks that the output is printable and decodes to the same value as the input.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", "plain", "grüße", "\x1b[31m", "\u009b2J", "\u202eevil", "\u200b", "\U000e0041", "\x7f", "\\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var want, got string
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		out := sanitize.JSON(b)
		if err := json.Unmarshal(out, &got); err != nil || got != want {
			t.Errorf("%q is read as %q, want %q: %v", out, got, want, err)
		}
		for _, r := range string(out) {
			if !unicode.IsPrint(r) {
				t.Errorf("%q holds %U", out, r)
			}
		}
	})
}
