// Package audittest reads audit logs in the tests of other packages. Each read also checks that the log has no field
// outside the schema and contains no secret.
package audittest

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/audit"
)

// Entries returns the entries of the audit log at path, in order. It fails the test if a line is not an entry, has a
// field outside the schema, or contains one of the secrets in any usual encoding. The last line may be incomplete.
func Entries(t testing.TB, path string, secrets ...string) (entries []audit.Entry) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("audit record: %v", err)
	}
	NoSecret(t, text, secrets...)
	for line := range bytes.Lines(text) {
		line, ended := bytes.CutSuffix(line, []byte("\n"))
		if !ended {
			break
		}
		l, err := audit.ParseLine(line)
		if err != nil || !l.Sound() {
			t.Errorf("audit record: %q: %v", line, err)
			continue
		}
		content, err := l.Content()
		if err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if e, ok := content.(audit.Entry); ok {
			entries = append(entries, e)
		}
	}
	return entries
}

// Verify fails the test unless the audit logs at paths verify with keys. If keys is empty, any key is accepted.
func Verify(t testing.TB, keys []audit.PublicKey, paths ...string) audit.Report {
	t.Helper()
	var sources []audit.Source
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			t.Fatalf("audit record: %v", err)
		}
		defer f.Close()
		sources = append(sources, audit.Source{Name: p, Reader: f})
	}
	r, err := audit.Verify(audit.Check{Keys: keys}, sources...)
	if err != nil {
		t.Fatalf("audit record: %v", err)
	}
	for _, f := range r.Findings {
		t.Errorf("audit record: %v", f)
	}
	return r
}

// NoSecret fails the test when text contains one of the secrets as it is, or encoded as JSON, URL, base64 or
// hexadecimal. Each secret must have at least 8 bytes, because shorter ones match by chance.
func NoSecret(t testing.TB, text []byte, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		if len(s) < 8 {
			t.Errorf("%q is too short to search for", s)
			continue
		}
		for how, spelled := range spellings(s) {
			if i := bytes.Index(text, []byte(spelled)); i >= 0 {
				t.Errorf("a secret appears, as %s: …%q…", how, text[max(0, i-60):i])
				break
			}
		}
	}
}

func spellings(s string) map[string]string {
	quoted, err := json.Marshal(s)
	if err != nil {
		quoted = []byte(`"` + s + `"`) // not reached: json.Marshal does not fail for a string
	}
	all := map[string]string{
		"it is": s, "JSON": strings.Trim(string(quoted), `"`), "a URL's path": url.PathEscape(s), "a URL's query": url.QueryEscape(s),
		"hexadecimal": hex.EncodeToString([]byte(s)), "upper-case hexadecimal": strings.ToUpper(hex.EncodeToString([]byte(s))),
	}
	// Inside a longer text, base64 has three forms. The ends of each depend on the surrounding bytes.
	for shift, name := range []string{"base64", "base64, shifted by 1", "base64, shifted by 2"} {
		b := append(bytes.Repeat([]byte{0}, shift), s...)
		from := []int{0, 2, 3}[shift]
		to := len(b) * 8 / 6
		all[name] = base64.RawStdEncoding.EncodeToString(b)[from:to]
		all[name+", of URLs"] = base64.RawURLEncoding.EncodeToString(b)[from:to]
	}
	return all
}
