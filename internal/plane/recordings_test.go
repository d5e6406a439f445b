package plane_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// The recordings of a recorder: one of each login.
const (
	bobsRecording  = "20261122T110000Z-0123456789abcdef"
	patsRecording  = "20261122T100000Z-0123456789abcdef"
	hostileRecords = `{"version":2,"width":100,"height":30,"command":"ls","env":{"X":"y"}}
[0.5,"o","hello\u001b]52;c;eA==\u0007\u001b]8;;javascript:alert(1)\u0007"]
[0.6,"i","password"]
`
)

// recorder returns a recorder with two recordings, or one that fails with o.recorderFails.
func (o *env) recorder() *plane.Recorder {
	all := []recording.Summary{
		{ID: bobsRecording, State: recording.Complete, Login: "bob@example.com", Started: time.Date(2026, 11, 22, 11, 0, 0, 0, time.UTC), Kind: "exec", TTY: true},
		{ID: patsRecording, State: recording.Live, Login: "pat@platform.dev", UserID: 12345, Started: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC), Kind: "attach", TTY: true}}
	fails := func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.recorderFails
	}
	return &plane.Recorder{Name: "recorder.example.ts.net",
		List: func(_ context.Context, req recording.ListRequest) (recording.Page, error) {
			page := recording.Page{}
			for _, s := range all {
				if (req.Login == "" || string(req.Login) == s.Login) && (req.ID == "" || string(req.ID) == s.ID) && (req.Before == "" || s.ID < string(req.Before)) {
					page.Recordings = append(page.Recordings, s)
				}
			}
			return page, fails()
		},
		Open: func(_ context.Context, req recording.GetRequest) (io.ReadCloser, error) {
			o.mu.Lock()
			o.replays = append(o.replays, string(req.ID)+" for "+string(req.For))
			o.mu.Unlock()
			return io.NopCloser(strings.NewReader(hostileRecords)), fails()
		}}
}

// PRX-18: the plane lists and sends the recordings that the caller may see: a platform-admin's role shows all, every other role those of
// the caller's own sessions, whatever its organisations. The recorder learns who asked, and a browser gets text only.
func TestPRX18_Recordings(t *testing.T) {
	o := newEnv(time.Now)
	bob := person("bob@example.com", `{"role":"viewer","orgs":["acme"]}`)
	impostor := person("pat@platform.dev", `{"role":"org-admin","orgs":["*"]}`)
	impostor.UserID = "99"
	for _, x := range []struct {
		why  string
		who  access.Caller
		want []string
		bobs int // status of the replay of bob's
	}{
		{"a platform-admin", person("olga@example.com", `{"role":"platform-admin","orgs":["*"]}`), []string{bobsRecording, patsRecording}, http.StatusOK},
		{"the person", bob, []string{bobsRecording}, http.StatusOK},
		{"an operator of all organisations", alice(), []string{}, http.StatusNotFound},
		{"an org-admin with all organisations", person("olga@example.com", `{"role":"org-admin","orgs":["*"]}`), []string{}, http.StatusNotFound},
		{"a viewer", vic(), []string{}, http.StatusNotFound},
	} {
		res, e := o.as(x.who).do(http.MethodGet, "/api/v1/recordings", "")
		var all []plane.Recording
		if err := json.Unmarshal(e.Data, &all); err != nil || res.Code != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", x.why, res.Code, res.Body, err)
		}
		got := []string{}
		for _, r := range all {
			got = append(got, r.ID)
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s sees (-want +got):\n%s", x.why, diff)
		}
		if res, _ := o.as(x.who).do(http.MethodGet, "/api/v1/recordings/"+bobsRecording, ""); res.Code != x.bobs {
			t.Errorf("%s: the replay: %d %s, want %d", x.why, res.Code, res.Body, x.bobs)
		}
	}
	if res, _ := o.as(bob).do(http.MethodGet, "/api/v1/recordings?login=pat@platform.dev", ""); res.Code != http.StatusForbidden {
		t.Errorf("the recordings of another login: %d, want 403", res.Code)
	}
	res, _ := o.as(bob).do(http.MethodGet, "/api/v1/recordings/"+bobsRecording, "")
	if diff := cmp.Diff("{\"version\":2,\"width\":100,\"height\":30}\n[0.500000,\"o\",\"hello\"]\n", res.Body.String()); diff != "" {
		t.Errorf("the replay (-want +got):\n%s", diff)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if diff := cmp.Diff([]string{bobsRecording + " for olga@example.com", bobsRecording + " for bob@example.com", bobsRecording + " for bob@example.com"}, o.replays); diff != "" {
		t.Errorf("the recorder was asked for (-want +got):\n%s", diff)
	}
}

// PRX-18: a recorder that is down, or does not know the plane, is shown as down with what to do, and never as one without recordings.
func TestPRX18_RecorderDown(t *testing.T) {
	o := newEnv(time.Now)
	for _, x := range []struct {
		err  error
		want string
	}{
		{errors.New("connection refused"), "It does not answer."},
		{problem.New(problem.TaggedNode, "dashboard is a tagged node."), "recorder.planes"},
	} {
		o.recorderFails = x.err
		res, e := o.as(pat()).do(http.MethodGet, "/api/v1/recordings", "")
		if res.Code != http.StatusOK || string(e.Data) != "null" {
			t.Errorf("%v: %d %s; want an unknown list", x.err, res.Code, res.Body)
		}
		if s := e.Meta.Sources; len(s) != 1 {
			t.Errorf("%v: the sources are %+v, want one", x.err, s)
		} else if s[0].Status != plane.StatusDown || !strings.Contains(s[0].Message, x.want) {
			t.Errorf("%v: the source is %+v, want it down with %q", x.err, s[0], x.want)
		}
		if res, _ := o.as(pat()).do(http.MethodGet, "/api/v1/recordings/"+bobsRecording, ""); res.Code != http.StatusServiceUnavailable || !strings.Contains(res.Body.String(), x.want) {
			t.Errorf("%v: the replay: %d %s; want 503 with %q", x.err, res.Code, res.Body, x.want)
		}
	}
}
