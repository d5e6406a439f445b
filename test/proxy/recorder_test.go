package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/testkit/audittest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A recorderEnv is a recorder to which the proxy sends its recordings.
type recorderEnv struct {
	*testenv.Env
	name string
	p    *testenv.Process
	more string
}

// withRecorder starts a recorder, and the proxy again with it and with the policy's rules. The end of the test undoes that.
func withRecorder(t *testing.T, r *testenv.Env, name, more, rules string) *recorderEnv {
	t.Helper()
	e := &recorderEnv{Env: r, name: name, more: more}
	e.start(t)
	t.Cleanup(func() { e.stop(t) })
	e.proxyWith(t, "{recorder: "+name+":80, tag: 'tag:recorder'}")
	setPolicy(t, r, rules, policyChanged)
	t.Cleanup(func() {
		setPolicy(t, r, "", policyChanged)
		e.proxyWith(t, "{dir: "+filepath.Join(system.dir, "recordings")+"}")
	})
	return e
}

func (e *recorderEnv) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if e.p, err = e.StartRecorder(ctx, e.name, e.more); err != nil {
		t.Fatal(err)
	}
}

func (e *recorderEnv) stop(t *testing.T) {
	t.Helper()
	if err := e.p.Stop(time.Minute); err != nil {
		t.Error(err)
	}
}

// proxyWith starts the proxy again with other settings of recording.
func (e *recorderEnv) proxyWith(t *testing.T, recording string) {
	t.Helper()
	if err := e.Proxy.Stop(time.Minute); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	e.Set("proxy.recording", recording)
	if err := e.StartProxy(ctx); err != nil {
		t.Fatal(err)
	}
}

// list returns the recordings that a person sees.
func (e *recorderEnv) list(t *testing.T, p *testenv.Person) (items []recording.Summary) {
	t.Helper()
	got := run(t, p, 0, "tka", "recordings", "--recorder", e.ServerAt(e.name), "-o", "json")
	var list struct{ Items []recording.Summary }
	if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// waitFor waits until a person sees a recording of a command in a state.
func (e *recorderEnv) waitFor(t *testing.T, p *testenv.Person, command string, state recording.State) (found recording.Summary) {
	t.Helper()
	until(t, func() string { return command + " is not " + string(state) + ": " + e.p.Output() }, func() bool {
		for _, s := range e.list(t, p) {
			if s.Command == command && s.State == state {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// play returns what a person sees of a recording, without the last line, which brings the terminal back.
func (e *recorderEnv) play(t *testing.T, p *testenv.Person, id string) string {
	t.Helper()
	text, _, _ := strings.Cut(run(t, p, 0, "tka", "play", id, "--recorder", e.ServerAt(e.name), "--speed", "0").Stdout, "\x1b[0m")
	return text
}

// PRX-12: the proxy's recordings are on a recorder of ours. People list and play those of their own sessions, administrators all of them.
// What is played equals what the terminal showed, with each protocol, also after a resize, and for attach. The hash on the recorder, in the
// list and in the proxy's audit log are the same. Only an access proxy may send recordings.
func TestPRX12_Recorder(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice, bob, carol := person(t, r, "alice-recorder", "alice@example.com", "edit"), person(t, r, "bob-recorder", "bob@example.com"), person(t, r, "carol-recorder", "carol@example.com")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	e := withRecorder(t, r, "recorder", "", recordExec)
	for _, p := range []*testenv.Person{alice, bob, carol} {
		if err := r.Net.WaitPeer(t.Context(), p.Node, "recorder"); err != nil {
			t.Fatal(err)
		}
	}
	kubectlAs(t, alice, 0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	for protocol, env := range protocols {
		t.Run(protocol, func(t *testing.T) {
			kubectlAs(t, alice, 42, env, "exec", "app", "--", "exit", "42")
			kubectlAs(t, alice, 0, env, "exec", "app", "--", "echo", "plain over "+protocol)
			s := e.waitFor(t, alice, "echo plain over "+protocol, recording.Complete)
			if s.TTY {
				t.Error("a command without a terminal is shown as one")
			}
			if got, want := e.play(t, alice, s.ID), "[stdout: "; !strings.Contains(got, want) || !strings.Contains(got, "[end: exit code 0]") {
				t.Errorf("the recording shows %q, want %q and the end", got, want)
			}
			x := beginTerminal(t, alice, "edit", env, 100, 30, "exec", "-it", "app", "--", "cat")
			x.waitRaw(t)
			x.enter(t, "héllo "+protocol+"\r")
			until(t, x.String, func() bool { return strings.Count(x.String(), "héllo") > 0 })
			x.resize(t, 120, 40)
			x.enter(t, "after\r")
			until(t, x.String, func() bool { return strings.Contains(x.String(), "after") })
			live := e.waitFor(t, alice, "cat", recording.Live)
			x.enter(t, "\x04")
			x.Process.Signal(os.Interrupt)
			select {
			case <-x.ended:
			case <-time.After(limit):
				x.Process.Kill()
			}
			until(t, func() string { return "the recording does not end" }, func() bool {
				return slices.ContainsFunc(e.list(t, alice), func(s recording.Summary) bool { return s.ID == live.ID && s.State != recording.Live })
			})
			if got := e.play(t, alice, live.ID); !strings.HasPrefix(x.String(), strings.Split(got, "[end:")[0]) {
				t.Errorf("played %q, but the terminal showed %q", got, x.String())
			}
		})
	}
	t.Run("everybody sees their own", func(t *testing.T) {
		for _, s := range e.list(t, alice) {
			if diff := cmp.Diff([]string{"alice@example.com", "app", "east"}, []string{s.Login, s.Pod, s.Cluster}); diff != "" {
				t.Errorf("a recording (-want +got):\n%s", diff)
			}
		}
		if got := e.list(t, bob); len(got) > 0 {
			t.Errorf("bob sees %+v", got)
		}
		all := e.list(t, carol)
		if diff := cmp.Diff(e.list(t, alice), all); diff != "" {
			t.Errorf("what an administrator sees (-alice +carol):\n%s", diff)
		}
		id := all[0].ID
		if got := run(t, bob, 1, "tka", "play", id, "--recorder", e.ServerAt(e.name)); !strings.Contains(got.Stderr, "does not exist, or you may not see it") {
			t.Errorf("bob plays a recording of alice: %s", got.Stderr)
		}
	})
	t.Run("the same hash everywhere", func(t *testing.T) {
		sums := map[string]string{}
		for _, entry := range audittest.Entries(t, r.ProxyAuditFile(), "eyJhbGciOi") {
			if entry.Verb == access.APIRecording && entry.Args["complete"] == "true" {
				sums[entry.Args["recording"]] = entry.Args["sha256"]
			}
		}
		for _, s := range e.list(t, alice) {
			if s.State == recording.Complete && (s.SHA256 == "" || s.SHA256 != sums[s.ID]) {
				t.Errorf("%s has the hash %q, and %q in the proxy's audit log", s.ID, s.SHA256, sums[s.ID])
			}
		}
		read := 0
		for _, entry := range audittest.Entries(t, filepath.Join(r.Dir, e.name, "audit.jsonl"), "eyJhbGciOi") {
			if entry.Verb == access.RecordingsRead && entry.Args["recording"] != "" {
				read++
			}
		}
		if read < 5 {
			t.Errorf("the recorder's audit log has %d entries about reading", read)
		}
	})
	t.Run("only a proxy sends", func(t *testing.T) {
		for why, method := range map[string]string{"the question": http.MethodHead, "an upload": http.MethodPost} {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+e.name+"."+r.Net.Suffix()+":80/v2/record", bytes.NewReader([]byte("{\"version\":2}\n")))
			if err != nil {
				t.Fatal(err)
			}
			res, err := carol.HTTP().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s of an administrator's laptop: %d %s, want 403", why, res.StatusCode, body)
			}
		}
	})
}

// kubectlAs runs kubectl as p through the proxy in the session edit.
func kubectlAs(t *testing.T, p *testenv.Person, want int, env []string, args ...string) string {
	t.Helper()
	c := begin(t, p, "edit", env, args...)
	<-c.ended
	if got := c.ProcessState.ExitCode(); got != want {
		t.Errorf("%s: exit %d, want %d: %s", strings.Join(args, " "), got, want, c)
	}
	return c.String()
}

// PRX-12: 100 MB through a command without a terminal are recorded as sizes and a hash, and attach and debug are recorded too. A recorder
// that dies in the middle ends the stream with a reason and a code that is not 0, and nothing begins until it is back.
func TestPRX12_RecorderDies(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice := person(t, r, "alice-tapes", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	e := withRecorder(t, r, "tapes", "", recordExec)
	if err := r.Net.WaitPeer(t.Context(), alice.Node, "tapes"); err != nil {
		t.Fatal(err)
	}
	kubectlAs(t, alice, 0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")

	const size = 100 << 20
	both := begin(t, alice, "edit", nil, "exec", "-i", "app", "--", "cat")
	if _, err := both.in.Write(bytes.Repeat([]byte("0123456789abcdef"), size/16)); err != nil {
		t.Fatal(err)
	}
	both.in.Close()
	<-both.ended
	if got := len(both.String()); got != size {
		t.Errorf("%d bytes came back, want %d", got, size)
	}
	s := e.waitFor(t, alice, "cat", recording.Complete)
	if got := e.play(t, alice, s.ID); !strings.Contains(got, "[stdout: 104857600 bytes, SHA-256 ") {
		t.Errorf("the recording of 100 MB ends with %q, want its size and hash", got[max(0, len(got)-500):])
	}
	a := begin(t, alice, "edit", nil, "attach", "-i", "app")
	until(t, func() string { return "the attach is not recorded: " + a.String() }, func() bool {
		return slices.ContainsFunc(e.list(t, alice), func(s recording.Summary) bool { return s.Kind == "attach" })
	})

	c := begin(t, alice, "edit", nil, "exec", "-i", "app", "--", "cat")
	if _, err := io.WriteString(c.in, "before\n"); err != nil {
		t.Fatal(err)
	}
	e.waitFor(t, alice, "cat", recording.Live)
	e.p.Kill()
	for what, c := range map[string]*command{"exec": c, "attach": a} {
		select {
		case <-c.ended:
		case <-time.After(time.Minute):
			t.Fatalf("the %s goes on without a recorder: %s", what, c)
		}
		if c.ProcessState.ExitCode() == 0 {
			t.Errorf("the %s ended with 0: %s", what, c)
		}
		if !strings.Contains(c.String(), "its recording was lost") {
			t.Errorf("the %s ended without the reason: %s", what, c)
		}
	}
	if got := kubectlAs(t, alice, 1, nil, "exec", "app", "--", "echo", "unrecorded"); strings.Contains(got, "unrecorded\n") {
		t.Errorf("an exec without a recorder: %s", got)
	}
	e.start(t)
	until(t, func() string { return "an exec with the recorder back" }, func() bool {
		c := begin(t, alice, "edit", nil, "exec", "app", "--", "echo", "recorded again")
		<-c.ended
		return c.ProcessState.ExitCode() == 0
	})
	e.waitFor(t, alice, "cat", recording.Incomplete)
}
