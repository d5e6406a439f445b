package audittest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/testkit/audittest"
)

// failureLog is a testing.TB that counts failures.
type failureLog struct {
	testing.TB
	failed int
}

func (w *failureLog) Helper()               {}
func (w *failureLog) Errorf(string, ...any) { w.failed++ }

func record(t *testing.T) (path string, key audit.Key) {
	t.Helper()
	c := audit.Config{Path: filepath.Join(t.TempDir(), "audit.jsonl"), Cluster: "prod-eu", Role: "access", Key: audit.GenerateKey(),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Delay: time.Minute, CloseTime: time.Minute}
	l, err := audit.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := l.Write(audit.Entry{RequestID: fmt.Sprint("R", i), Args: map[string]string{"role": "view"}, Result: audit.Done}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return c.Path, c.Key
}

func TestEntries(t *testing.T) {
	path, key := record(t)
	if e := audittest.Entries(t, path, "secret-canary"); len(e) != 3 || e[2].RequestID != "R2" {
		t.Errorf("%+v", e)
	}
	if r := audittest.Verify(t, []audit.PublicKey{key.Public()}, path); r.Entries != 3 {
		t.Errorf("%+v", r)
	}
}

// A field outside the schema fails the test that reads the log, in every spelling and even with a valid hash.
func TestAFieldOutsideTheSchema(t *testing.T) {
	for _, change := range [][2]string{
		{`"surface":""`, `"surface":"","token":"x"`},
		{`"surface":""`, `"surface":"","Surface":""`},
		{`"surface":""`, `"surface":"","surface":"x","surface":""`},
		{`"actor":{}`, `"actor":{"groups":["x"]}`},
		{`"actor":{}`, `"actor":{"LOGIN":"x"}`},
		{`"args":{"role":"view"}`, `"args":{"role":["view"]}`},
		{`"kind":"entry"`, `"kind":"gap"`},
		{`"seq":2`, `"seq":02`},
	} {
		path, _ := record(t)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for line := range bytes.Lines(text) {
			body, _, _ := bytes.Cut(line, []byte(`,"hash":"`))
			body = bytes.Replace(body, []byte(change[0]), []byte(change[1]), 1)
			fmt.Fprintf(&out, "%s,\"hash\":\"%x\"}\n", body, sha256.Sum256(body))
		}
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		w := &failureLog{TB: t}
		if audittest.Entries(w, path); w.failed == 0 {
			t.Errorf("%s: not found", change[1])
		}
	}
}

func TestNoSecret(t *testing.T) {
	const secret = "tskey-canary/ä+\"1234\""
	spelled := []string{secret, url.PathEscape(secret), url.QueryEscape(secret), hex.EncodeToString([]byte(secret)), fmt.Sprintf("%X", secret), fmt.Sprintf("%q", secret)}
	for _, around := range []string{"", "a", "ab", "abc"} {
		spelled = append(spelled, base64.StdEncoding.EncodeToString([]byte(around+secret+around)), base64.RawURLEncoding.EncodeToString([]byte(around+secret+"x"+around)))
	}
	for _, s := range spelled {
		w := &failureLog{TB: t}
		if audittest.NoSecret(w, []byte("before "+s+" after"), "another one", secret); w.failed != 1 {
			t.Errorf("%s: %d found", s, w.failed)
		}
	}
	w := &failureLog{TB: t}
	if audittest.NoSecret(w, []byte("nothing here"), secret); w.failed != 0 {
		t.Error("found where it is not")
	}
	if audittest.NoSecret(w, nil, "short"); w.failed != 1 {
		t.Error("a short secret is looked for")
	}
}
