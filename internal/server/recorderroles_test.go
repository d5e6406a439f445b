package server

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
)

var update = flag.Bool("update", false, "write the golden files")

// Two recordings: one of ada, one of bob.
const (
	adasRecording = "20261128T100000Z-0123456789abcdef"
	bobsRecording = "20261128T110000Z-0123456789abcdef"
)

// recordings returns a directory with the two recordings.
func recordings(t *testing.T) *recording.Dir {
	t.Helper()
	path := t.TempDir()
	for id, login := range map[string]string{adasRecording: "ada@example.com", bobsRecording: "bob@example.com"} {
		head, err := json.Marshal(recording.Header{Version: 2, Width: 80, Height: 24, SrcNodeUser: login, SrcNodeUserID: int64(len(login)), Command: "secret of " + login})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, id+".cast"), append(head, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := recording.OpenDir(recording.DirConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// ID-12, PRX-12: each operation of the recorder for each kind of caller, with the recordings that the response shows. Each request has one
// audit entry, a stream that begins has two, and a refused caller learns nothing about the recordings. An operator plane, which its tag
// shows, sees all and must name the person who asked; no other caller may name one.
func TestID12_RecorderRoles(t *testing.T) {
	file := settings.Default()
	file.Recorder.Planes = []string{"tag:plane"}
	file.Plane.Roles = []settings.PlaneHolder{{Login: "pat@example.com", Role: "platform-admin"}}
	person := func(login string, rules ...string) access.Caller {
		c := access.Caller{Login: access.Login(login), UserID: fmt.Sprint(len(login)), Tailnet: "example.com", Via: access.ViaTailnet, Device: access.Device{ID: "n1", Name: "laptop"}}
		for _, r := range rules {
			c.Rules = append(c.Rules, []byte(r))
		}
		return c
	}
	with := func(c access.Caller, f func(*access.Caller)) access.Caller { f(&c); return c }
	tagged := func(tag access.Tag, rules ...string) access.Caller {
		return with(person("", rules...), func(c *access.Caller) { c.UserID, c.Tags = "", []access.Tag{tag} })
	}
	viewer, admin := `{"role":"viewer","orgs":["*"]}`, `{"role":"platform-admin","orgs":["*"]}`
	personas := []struct {
		name   string
		caller access.Caller
		err    error
	}{
		{"viewer acme", person("ada@example.com", `{"role":"viewer","orgs":["acme"]}`), nil},
		{"viewer *", person("ada@example.com", viewer), nil},
		{"operator *", person("ada@example.com", `{"role":"operator","orgs":["*"]}`), nil},
		{"org-admin *", person("ada@example.com", `{"role":"org-admin","orgs":["*"]}`), nil},
		{"another user with the login", with(person("ada@example.com", viewer), func(c *access.Caller) { c.UserID = "99" }), nil},
		{"platform-admin", person("eve@example.com", admin), nil},
		{"platform-admin by settings", person("pat@example.com"), nil},
		{"no role", person("ada@example.com"), nil},
		{"a bad rule only", person("ada@example.com", `{"role":"root","orgs":["*"]}`), nil},
		{"a plane", tagged("tag:plane"), nil},
		{"a plane, shared in", with(tagged("tag:plane"), func(c *access.Caller) { c.Shared = true }), nil},
		{"a plane, key expired", with(tagged("tag:plane"), func(c *access.Caller) { c.Expired = true }), nil},
		{"a plane, by Funnel", with(tagged("tag:plane"), func(c *access.Caller) { c.Via = access.ViaFunnel }), nil},
		{"an access proxy", tagged("tag:tailplane"), nil},
		{"tagged, with a person's rule", tagged("tag:ci", admin), nil},
		{"tagged, let in", tagged("tag:ci", `{"role":"platform-admin","orgs":["*"],"tags":["tag:ci"]}`), nil},
		{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "Nobody.", "Connect directly.")},
	}
	dir := recordings(t)
	requests := []string{"GET /api/v1/recordings", "GET /api/v1/recordings?id=" + bobsRecording, "GET /api/v1/recordings?login=bob@example.com",
		"GET /api/v1/recordings/" + adasRecording, "GET /api/v1/recordings/" + bobsRecording, "GET /api/v1/recordings/" + bobsRecording + "?for=ada@example.com",
		"GET /api/v1/recordings/20261128T120000Z-0123456789abcdef?for=ada@example.com", "GET /api/v1/recordings/..%2f..%2fetc", "DELETE /api/v1/recordings/" + adasRecording, "GET /"}
	if n := len(dir.Routes()); n != 2 {
		t.Errorf("the recorder has %d routes; the matrix covers 2", n)
	}
	var got strings.Builder
	for _, p := range personas {
		for _, request := range requests {
			var entries []audit.Entry
			s := recorderServer(file.RecorderPolicy(), &httpapi.Server{Names: func() []string { return []string{"recorder"} }, Limits: planeLimits(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
				Record:   func(e audit.Entry) error { entries = append(entries, e); return nil },
				Identify: func(*http.Request) (access.Caller, error) { return p.caller, p.err }})
			method, path, _ := strings.Cut(request, " ")
			r, w := httptest.NewRequestWithContext(t.Context(), method, path, nil), httptest.NewRecorder()
			r.Host = "recorder"
			s.Handler(dir.Routes()...).ServeHTTP(w, r)
			var refused problem.Error
			_ = json.Unmarshal(w.Body.Bytes(), &refused) // a recording is none
			fmt.Fprintf(&got, "%-30s %-95s %d %s%s\n", p.name, request, w.Code, refused.Code, shownRecordings(w.Body.Bytes()))
			if want := map[bool]int{true: 2, false: 1}[w.Header().Get("Content-Type") == recording.CastType]; len(entries) != want {
				t.Errorf("%s, %s: %d audit entries, want %d", p.name, request, len(entries), want)
			}
			if w.Code != http.StatusOK && bytes.Contains(w.Body.Bytes(), []byte("secret")) {
				t.Errorf("%s, %s: refused with %s", p.name, request, w.Body)
			}
		}
	}
	const golden = "testdata/recorderroles.golden"
	text := strings.ReplaceAll(got.String(), " \n", "\n")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the matrix (-want +got):\n%s", diff)
	}
}

// shownRecordings names the persons whose recordings a response shows.
func shownRecordings(body []byte) (out string) {
	for _, name := range []string{"ada", "bob"} {
		if bytes.Contains(body, []byte("secret of "+name)) {
			out += " " + name
		}
	}
	return out
}
