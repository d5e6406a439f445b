package output

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// hostileText is text that tries to control a terminal.
var hostileText = []string{"\x1b[31mred", "\x1b]0;title\x07", "a\rb", "a\nb", "a\tb", "\u009b2J", "abc\u202edef", "a\u2066b", "a\u200bb", "\ufeffx", "\u2028", "\xff\xfe", "\x7f", "e\u0301", "日本", "\U000e0041", "𝓐"}

func TestEscape(t *testing.T) {
	for _, s := range hostileText {
		got := Escape(s)
		if strings.ContainsFunc(got, Unsafe) || !utf8.ValidString(got) {
			t.Errorf("Safe(%q) = %q", s, got)
		}
	}
	for in, want := range map[string]string{
		"plain text, 日本, é": "plain text, 日本, é",
		"\x1b[2J":           `\x1b[2J`,
		"a\nb":              `a\nb`,
		"abc\u202e":         `abc\u202e`,
		"\U000e0041":        `\U000e0041`,
		"\xff":              `\xff`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Safe(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Escape(strings.Repeat("x", 1<<20)); len(got) > maxText+10 {
		t.Errorf("a long text still has %d bytes", len(got))
	}
}

// JSON and YAML output does not control a terminal, and parses back to the original.
func TestEncodeEscapes(t *testing.T) {
	type object struct {
		Text []string `json:"text"`
	}
	valid := []string{"true", "1e3", "- a", "null", "", " lead", "a: b", "#x", "2026-01-01"}
	for _, s := range hostileText {
		if utf8.ValidString(s) {
			valid = append(valid, s)
		}
	}
	in := object{valid}
	for _, format := range []string{JSON, YAML} {
		text, err := Encode(in, format)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(text) {
			if r != '\n' && Unsafe(r) {
				t.Errorf("%s holds %U", format, r)
			}
		}
		var out struct {
			Text []string `json:"text" yaml:"text"`
		}
		if format == JSON {
			err = json.Unmarshal(text, &out)
		} else {
			err = yaml.Unmarshal(text, &out)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", format, err, text)
		}
		for i := range in.Text {
			if i >= len(out.Text) || out.Text[i] != in.Text[i] {
				t.Errorf("%s: %q came back as %q\n%s", format, in.Text, out.Text, text)
				break
			}
		}
	}
}

func TestHumanDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 90 * time.Second: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h", 10 * time.Hour: "10h", 8*time.Hour - time.Second: "7h59m", 90 * time.Minute: "1h30m", 10*time.Hour + 10*time.Minute: "10h10m",
		47 * time.Hour: "47h", 50 * time.Hour: "2d2h",
	} {
		if got := HumanDuration(in); got != want {
			t.Errorf("Short(%v) = %q, want %q", in, got, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"a.yaml": "a.yaml", "a b": "'a b'", "$(x)": "'$(x)'", "it's": `'it'\''s'`, "": "''"} {
		if got := ShellQuote(in); got != want {
			t.Errorf("Word(%q) = %s, want %s", in, got, want)
		}
	}
}
