package plane

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

const aLog = "/api/v1/runners/runners/acme-nix-7xk2p-runner-q9w4z/log"

// logs gives the environment logs with the text.
func (o *runnerEnv) logs(text func() io.ReadCloser) *[]LogOptions {
	opened := new([]LogOptions)
	o.service.OpenLog = func(_ context.Context, p access.Permit, of LogOptions) (io.ReadCloser, error) {
		if err := p.Require(access.LogsRead, runnerNoon); err != nil || p.Org() != of.Runner.OrgName && !p.Everywhere() {
			return nil, fmt.Errorf("a permit of %q for %s: %v", p.Org(), of.Runner.ID, err)
		}
		*opened = append(*opened, of)
		return text(), nil
	}
	return opened
}

func lines(text string) func() io.ReadCloser {
	return func() io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }
}

// A log request is limited, names an existing container, and returns the text as it was written. Without the setting there are no logs, and
// callers cannot tell whether one exists.
func TestLog(t *testing.T) {
	o := newRunnerEnv()
	if a := o.get(t, aLog); a.Status != http.StatusServiceUnavailable || !strings.Contains(a.Text, "plane.logs.enabled") {
		t.Errorf("%s", a.Text)
	}
	opened := o.logs(lines("one\n\x1b[31mtwo\n" + strings.Repeat("x", maxLogLine+9) + "\nfour"))
	get := func(path string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = "dashboard"
		o.ServeHTTP(w, r)
		switch {
		case w.Code != http.StatusOK:
			t.Errorf("w.Code = %v, want %v", w.Code, http.StatusOK)
		case w.Header().Get("Content-Type") != "text/plain; charset=utf-8":
			t.Errorf(`w.Header().Get("Content-Type") != "text/plain; charset=utf-8"; %d, %v, %.200s`, w.Code, w.Header(), w.Body)
		case w.Header().Get("X-Content-Type-Options") != "nosniff":
			t.Errorf(`w.Header().Get("X-Content-Type-Options") != "nosniff"; %d, %v, %.200s`, w.Code, w.Header(), w.Body)
		}
		return w.Body.String()
	}
	if got := get(aLog); got != "one\n\x1b[31mtwo\n"+strings.Repeat("x", maxLogLine+9)+"\nfour" {
		t.Errorf("%.200q", got)
	}
	switch of := (*opened)[0]; {
	case of.Tail != defaultLogTail:
		t.Errorf("of.Tail = %v, want %v", of.Tail, defaultLogTail)
	case of.Follow:
		t.Errorf("of.Follow is true; %+v", of)
	case of.Container != "":
		t.Errorf("of.Container = %q, want none", of.Container)
	}
	l := dataOf[Log](t, o.get(t, aLog+"/lines?tail=3"))
	switch of := (*opened)[1]; {
	case of.Tail != 3:
		t.Errorf("of.Tail = %v, want 3", of.Tail)
	case len(l.Lines) != 3:
		t.Errorf("len(l.Lines) = %v, want 3", len(l.Lines))
	case l.Lines[1] != "\x1b[31mtwo":
		t.Errorf("l.Lines[1] = %q, want %q", l.Lines[1], "\x1b[31mtwo")
	case len(l.Lines[2]) != maxLogLine:
		t.Errorf("len(l.Lines[2]) = %v, want %v", len(l.Lines[2]), maxLogLine)
	case !l.Cut:
		t.Errorf("l.Cut is false; %+v, %.300v", of, l)
	}
	o.store.Set(KindRunner, "kubernetes", Runner{ID: "runners/a", Namespace: "runners", Name: "a", Pool: "github/acme/nix", OrgName: "acme", Pod: &Pod{Containers: []Container{{Name: "init", Init: true}, {Name: "runner"}, {Name: "dind"}}}})
	for path, want := range map[string]string{"a/log": "runner", "a/log?container=dind&tail=5000&follow=true": "dind", "a/log?container=init": "init"} {
		get("/api/v1/runners/runners/" + path)
		if of := (*opened)[len(*opened)-1]; of.Container != want || of.Follow != strings.Contains(path, "follow") {
			t.Errorf("%s: %+v", path, of)
		}
	}
	have := len(*opened)
	for path, want := range map[string]problem.Code{"a/log?container=other": problem.Validation, "a/log?tail=5001": problem.BadRequest, "a/log?tail=0": problem.BadRequest, "a/log/lines?tail=501": problem.BadRequest,
		"nothing/log": problem.NotFound, "a/log?previous=true": problem.BadRequest} {
		if a := o.get(t, "/api/v1/runners/runners/"+path); a.Error == nil || a.Error.Code != want {
			t.Errorf("%s: %s", path, a.Text)
		}
	}
	if len(*opened) != have {
		t.Errorf("%+v", *opened)
	}
	for _, e := range o.entries {
		if e.Verb == access.LogsRead && e.Code == "" && (e.Args["runner"] == "" || e.Org == "") {
			t.Errorf("%+v", e)
		}
	}
}

// PLANE-07, PL-03: a follower that loses its role is disconnected within the server's time limit, and its log is closed. So is a log that
// the client does not read.
func TestPL03_LogEnds(t *testing.T) {
	o := newRunnerEnv()
	from, to := io.Pipe()
	closed := make(chan struct{})
	o.logs(func() io.ReadCloser { return closing{from, closed} })
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { r.Host = "dashboard"; o.ServeHTTP(w, r) }))
	defer srv.Close()
	res, err := http.Get(srv.URL + aLog + "?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	go to.Write([]byte("first\n"))
	in := bufio.NewReader(res.Body)
	if s, err := in.ReadString('\n'); s != "first\n" {
		t.Fatalf("%q %v", s, err)
	}
	o.as(callerWith("alice@example.com", `{"role":"viewer","orgs":["*"]}`)) // from the next renewal on
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the log stays open")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch last := o.entries[len(o.entries)-1]; {
	case len(o.entries) != 2:
		t.Errorf("len(o.entries) = %v, want 2", len(o.entries))
	case last.Code != problem.Forbidden:
		t.Errorf("last.Code = %q, want %q", last.Code, problem.Forbidden)
	case last.Args["stream"] != "closed":
		t.Errorf(`last.Args["stream"] = %q, want %q`, last.Args["stream"], "closed")
	case last.Org != "acme":
		t.Errorf("last.Org = %q, want %q", last.Org, "acme")
	case o.entries[0].Org != "acme":
		t.Errorf("o.entries[0].Org = %q, want %q", o.entries[0].Org, "acme")
	}
}

// closing reports when it is closed.
type closing struct {
	*io.PipeReader
	closed chan struct{}
}

func (c closing) Close() error {
	close(c.closed)
	return c.PipeReader.Close()
}

// PL-05: the log of another organisation's runner is absent for every role.
func TestPL05_Logs(t *testing.T) {
	o := newRunnerEnv()
	opened := o.logs(lines("secret"))
	for _, p := range runnerPersonas {
		o.as(p.caller)
		for _, path := range []string{"/api/v1/runners/runners/globex-nix-7xk2p-runner-q9w4z/log", "/api/v1/runners/runners/globex-nix-7xk2p-runner-q9w4z/log/lines"} {
			may := slices.Contains([]string{"operator *", "platform-admin", "org-admin globex (owner)"}, p.name)
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Host = "dashboard"
			o.ServeHTTP(w, r)
			if got := strings.Contains(w.Body.String(), "secret"); got != may || (w.Code == http.StatusOK) != may {
				t.Errorf("%s: %d %s", p.name, w.Code, w.Body)
			}
		}
	}
	if len(*opened) != 6 {
		t.Errorf("%+v", *opened)
	}
}
