package forge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/util/secret"
)

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"Not Found": "Not Found",
		"a global-visibility group, high_fidelity":       "a global-visibility group, high_fidelity",
		"glider-runner-token-name":                       "glider-runner-token-name",
		"token ghs_0123456789abcdef is bad":              "token [secret] is bad",
		"github_pat_11AAA_bbb.":                          "[secret].",
		"glrt-abc-DEF_1.0":                               "[secret]",
		"glpat-x and glrtr-y":                            "[secret] and [secret]",
		"GR1348941xyz-1":                                 "[secret]",
		"jwt eyJhbGciOiJSUzI1NiJ9.eyJpYXQiOjF9.c2ln end": "jwt [secret] end",
		"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nx": "[secret] x",
		"half: -----BEGIN PRIVATE KEY-----\nMIIE":                                 "half: [secret]",
		"via http://user:pass@proxy.example:3128/":                                "via http:[secret]proxy.example:3128/",
		"two\n lines\tand \x1b[31mred\x1b[0m \u202eback":                          "two lines and [31mred [0m back",
		"my own word":     "my [secret] word",
		"broken \xff\xfe": "broken ?",
	} {
		if got := redact(text, secret.New("own"), secret.Text{}); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := redact(strings.Repeat("é", 1000)); utf8.RuneCountInString(got) != 201 {
		t.Errorf("%d runes", utf8.RuneCountInString(got))
	}
	// The length limit must not cut a secret before it is recognised.
	if got := redact(strings.Repeat("x", 195) + " ghs_0123456789abcdef"); strings.Contains(got, "ghs") {
		t.Errorf("%q", got)
	}
}

// FL-03: a secret does not print, in any surrounding type.
func TestText(t *testing.T) {
	s := secret.New("canary")
	type holder struct {
		Public  secret.Text
		private secret.Text
		deep    map[string]*secret.Text
	}
	h := holder{s, s, map[string]*secret.Text{"x": &s}}
	b, err := json.Marshal(h)
	text := fmt.Sprintf("%v %+v %#v %s %q %x %d|%v %+v %#v %v|%s %v", s, s, s, s, s, s, s, h, &h, h, &h, b, err)
	if strings.Contains(text, "canary") || strings.Contains(text, "63616e617279") {
		t.Error(text)
	}
	switch {
	case s.Reveal() != "canary":
		t.Errorf("it does not open what it should: s.Reveal() = %q, want %q", s.Reveal(), "canary")
	case s.IsZero():
		t.Error("it does not open what it should: s.IsZero() is true")
	case !secret.New("").IsZero():
		t.Error(`it does not open what it should: secret.New("").IsZero() is false`)
	case secret.New("").Reveal() != "":
		t.Error(`it does not open what it should: secret.New("").Reveal() != ""`)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("ghs_x\x00", "x")
	f.Add("-----BEGIN", "BEGIN")
	f.Fuzz(func(t *testing.T, text, own string) {
		got := redact(text, secret.New(own))
		switch {
		case utf8.RuneCountInString(got) > 201:
			t.Errorf("utf8.RuneCountInString(got) > 201; text = %q, got = %q", text, got)
		case !utf8.ValidString(got):
			t.Errorf("utf8.ValidString(got) is false; text = %q, got = %q", text, got)
		case strings.ContainsAny(got, "\n\r\x1b\u202e"):
			t.Errorf(`strings.ContainsAny(got, "\n\r\x1b\u202e") is true; text = %q, got = %q`, text, got)
		}
		if strings.Contains(got, "ghs_0") || strings.Contains(got, "glrt-0") {
			t.Errorf("%q shows a token: %q", text, got)
		}
	})
}
