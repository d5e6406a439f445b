package secret_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/util/secret"
)

const text = "correct-horse-battery"

// hidden reports whether neither the secret nor an encoding of it is in s.
func hidden(s string) bool {
	for _, form := range []string{text, fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), fmt.Sprintf("% x", text), fmt.Sprint([]byte(text))} {
		if strings.Contains(s, form) {
			return false
		}
	}
	return true
}

func TestText(t *testing.T) {
	s := secret.New(text)
	if s.Reveal() != text {
		t.Errorf("Reveal = %q, want %q", s.Reveal(), text)
	}
	if s.IsZero() {
		t.Error("a Text of a text is zero")
	}
	var zero secret.Text
	if zero.Reveal() != "" {
		t.Errorf("Reveal of the zero Text = %q", zero.Reveal())
	}
	for name, none := range map[string]secret.Text{"zero": zero, "empty": secret.New("")} {
		if !none.IsZero() {
			t.Errorf("the %s Text is not zero", name)
		}
		if got := fmt.Sprintf("%v%#v%s%s", none, none, none.GoString(), none.LogValue()); got != "" {
			t.Errorf("the %s Text prints as %q", name, got)
		}
		if b, err := json.Marshal(none); err != nil || string(b) != `""` {
			t.Errorf("JSON of the %s Text: %s, %v", name, b, err)
		}
	}
}

// TestTextIsNeverPrinted checks all ways in which secrets reach logs and documents: of the Text, of a struct that exports
// it, and of a struct that does not.
func TestTextIsNeverPrinted(t *testing.T) {
	type open struct{ S secret.Text }
	type shut struct{ s secret.Text }
	s := secret.New(text)
	values := []any{s, &s, open{s}, &open{s}, shut{s}, &shut{s}, []secret.Text{s}, map[string]secret.Text{"k": s}, []open{{s}}, fmt.Errorf("refused: %v", s)}
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%p", "%T", "%10.3s"} {
			if got := fmt.Sprintf(verb, v); !hidden(got) {
				t.Errorf("%s of %T: %s", verb, v, got)
			}
		}
		if b, err := json.Marshal(v); err == nil && !hidden(string(b)) {
			t.Errorf("JSON of %T: %s", v, b)
		}
		if b, err := xml.Marshal(v); err == nil && !hidden(string(b)) {
			t.Errorf("XML of %T: %s", v, b)
		}
		if b, err := yaml.Marshal(v); err == nil && !hidden(string(b)) {
			t.Errorf("YAML of %T: %s", v, b)
		}
		var out bytes.Buffer
		slog.New(slog.NewTextHandler(&out, nil)).Info("message", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("message", "value", v)
		if !hidden(out.String()) {
			t.Errorf("log of %T: %s", v, out.String())
		}
	}
	for name, got := range map[string]string{"%v": fmt.Sprintf("%v", s), "%#v": fmt.Sprintf("%#v", s), "%x": fmt.Sprintf("%x", s), "GoString": s.GoString(), "LogValue": s.LogValue().String()} {
		if got != secret.Redacted {
			t.Errorf("%s = %q, want %q", name, got, secret.Redacted)
		}
	}
}

func TestTextInDocuments(t *testing.T) {
	type document struct {
		Set   secret.Text `json:"set" yaml:"set"`
		Unset secret.Text `json:"unset,omitzero" yaml:"unset,omitempty"`
	}
	d := document{Set: secret.New(text)}
	if b, err := json.Marshal(d); err != nil || string(b) != `{"set":"[redacted]"}` {
		t.Errorf("JSON: %s, %v", b, err)
	}
	if b, err := yaml.Marshal(d); err != nil || string(b) != "set: '[redacted]'\n" {
		t.Errorf("YAML: %s, %v", b, err)
	}
	if err := json.Unmarshal([]byte(`{"set":"`+text+`"}`), &d); err == nil {
		t.Error("a document is decoded into a Text")
	}
}

func TestEqual(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{text, text, true}, {text, text + "x", false}, {text, strings.ToUpper(text), false}, {text, "", false}, {"", "", true}} {
		if got := secret.New(c.a).Equal(secret.New(c.b)); got != c.want {
			t.Errorf("Equal of %q and %q = %v, want %v", c.a, c.b, got, c.want)
		}
	}
	if reflect.TypeFor[secret.Text]().Comparable() {
		t.Error("Texts can be compared with ==")
	}
}
