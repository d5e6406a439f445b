package accessproxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/audittest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The grant of dave requires the recording of everything that leads into a container.
const recordedPolicy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:recorder": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane", "tag:recorder"], "ip": ["*"]},
    {"src": ["dave@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h", "record": ["exec", "attach", "portForward"]}]}},
  ],
}`

// recordedObjects are a pod, and the right to debug it.
const recordedObjects = `apiVersion: v1
kind: Pod
metadata: {name: app, namespace: default}
spec: {containers: [{name: app, image: example.com/app:1}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: debug-pods, labels: {rbac.authorization.k8s.io/aggregate-to-edit: "true"}}
rules:
- {apiGroups: [""], resources: [pods/ephemeralcontainers], verbs: [patch]}
`

// overSPDY is what makes kubectl use SPDY.
var overSPDY = []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"}

// A recordedEnv is a whole system in which dave's streams must be recorded on a recorder.
type recordedEnv struct {
	*testenv.Env
	dave     *testenv.Person
	recorder *testenv.Process
}

func closed(t *testing.T, end func() error) {
	if err := end(); err != nil {
		t.Error(err)
	}
}

// An output is what a program has printed so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns the output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// startRecorded starts a cluster whose pods speak the kubelet's protocols, a recorder, and the access proxy. Dave is signed in.
func startRecorded(t *testing.T) *recordedEnv {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cluster, err := kubetest.Run(ctx, kubetest.Options{Name: "east", FakeNode: true})
	must(err)
	t.Cleanup(func() { closed(t, cluster.Close) })
	dir, err := os.MkdirTemp("", "px14")
	must(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &recordedEnv{}
	e.Env, err = testenv.Start(ctx, dir, testenv.Options{Policy: recordedPolicy, Cluster: cluster, Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[proxy, token]"}})
	must(err)
	t.Cleanup(func() { closed(t, e.Env.Close) })
	e.startRecorder(t, "")
	t.Cleanup(func() { e.recorder.Kill() })
	e.Set("proxy.recording", "{recorder: 'recorder:80', tag: 'tag:recorder'}")
	must(e.StartProxy(ctx))
	must(cluster.Apply(ctx, []byte(recordedObjects)))
	e.dave, err = e.Person(ctx, "dave-laptop", "dave@example.com")
	must(err)
	must(e.Net.WaitPeer(ctx, e.dave.Node, "east-api"))
	if got, err := e.dave.Run(ctx, "tka", "login", "--role", "edit"); err != nil || got.Exit != 0 {
		t.Fatalf("tka login: %v %+v", err, got)
	}
	e.run(t, 0, nil, "", "kubectl", "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	attacktest.Eventually(t, attacktest.Long, "dave may debug pods", func() bool {
		got, err := e.dave.Run(ctx, "kubectl", "auth", "can-i", "patch", "pods/ephemeralcontainers")
		return err == nil && got.Exit == 0
	})
	return e
}

func (e *recordedEnv) startRecorder(t *testing.T, more string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), attacktest.Long)
	defer cancel()
	var err error
	if e.recorder, err = e.StartRecorder(ctx, "recorder", more); err != nil {
		t.Fatal(err)
	}
}

// start starts a program as dave, with more environment variables and an input.
func (e *recordedEnv) start(t *testing.T, env []string, in io.Reader, program string, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	out := &output{}
	c := exec.CommandContext(ctx, filepath.Join(e.dave.Bin(), program), args...)
	c.Env, c.Dir, c.Stdin, c.Stdout, c.Stderr, c.WaitDelay = append(e.dave.Env(), env...), e.dave.Home, in, out, out, time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, out
}

// run runs a program as dave to its end. want is its exit code; below 0: any but 0.
func (e *recordedEnv) run(t *testing.T, want int, env []string, in, program string, args ...string) string {
	t.Helper()
	c, out := e.start(t, env, strings.NewReader(in), program, args...)
	_ = c.Wait() // the exit code says it
	if got := c.ProcessState.ExitCode(); got != want && (want >= 0 || got == 0) {
		t.Errorf("%s %s: exit %d, want %d: %s", program, strings.Join(args, " "), got, want, out)
	}
	return out.String()
}

// recorded returns the headers of the complete recordings, by id.
func (e *recordedEnv) recorded(t *testing.T) map[string]recording.Header {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(e.RecordingsDir("recorder"), "*.cast"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]recording.Header{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := bytes.Cut(b, []byte("\n"))
		h, err := recording.ParseHeader(head)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".cast")] = h
	}
	return all
}

// digests returns the final digests of recordings in the proxy's audit log, by id.
func (e *recordedEnv) digests(t *testing.T) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, entry := range audittest.Entries(t, e.ProxyAuditFile(), "eyJhbGciOi") {
		if entry.Verb == access.APIRecording && entry.Args["complete"] == "true" {
			sums[entry.Args["recording"]] = entry.Args["sha256"]
		}
	}
	return sums
}

// isRecorded runs a way into a container and checks that there is one more recording, of the kind and container, whose hash is in the
// proxy's audit log.
func (e *recordedEnv) isRecorded(t *testing.T, kind, container string, way func(t *testing.T)) {
	t.Helper()
	before := e.recorded(t)
	way(t)
	id := ""
	attacktest.Eventually(t, attacktest.Soon, "a recording of "+kind, func() bool {
		for at, h := range e.recorded(t) {
			if _, old := before[at]; !old && h.Kubernetes != nil && h.Kubernetes.SessionType == kind && h.Kubernetes.Container == container {
				id = at
			}
		}
		return id != ""
	})
	b, err := os.ReadFile(filepath.Join(e.RecordingsDir("recorder"), id+".cast"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	attacktest.Eventually(t, attacktest.Soon, "the digest of the recording in the audit log", func() bool { return e.digests(t)[id] != "" })
	if got, want := e.digests(t)[id], hex.EncodeToString(sum[:]); got != want {
		t.Errorf("the audit log has the hash %s for %s, want %s", got, id, want)
	}
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// forward forwards a port and uses it.
func (e *recordedEnv) forward(t *testing.T, env []string) {
	t.Helper()
	c, out := e.start(t, env, nil, "kubectl", "port-forward", "pod/app", ":8080")
	attacktest.Eventually(t, attacktest.Soon, "the port is forwarded", func() bool { return forwarding.MatchString(out.String()) })
	conn, err := net.Dial("tcp", forwarding.FindStringSubmatch(out.String())[1])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	b := make([]byte, 100)
	if n, err := conn.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "port 8080") {
		t.Errorf("the forwarded port: %q, %v", b[:n], err)
	}
	conn.Close()
	_ = c.Process.Signal(os.Interrupt)
	_ = c.Wait()
}

// stream runs a command in the pod over WebSocket with one subprotocol only.
func (e *recordedEnv) stream(t *testing.T, protocol, query string) (string, error) {
	t.Helper()
	through, err := url.Parse(e.dave.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{BearerToken: "session.default", Proxy: http.ProxyURL(through), TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(e.Dir, "roots.pem")}}
	x, err := remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, e.ProxyServer()+"/api/v1/namespaces/default/pods/app/"+query, protocol)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := &output{}
	err = x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out})
	return out.String(), err
}

// PX-14. Where a grant requires recordings, every way into a container is recorded, and its digest is in the audit log, or it is refused:
// each protocol, attach, cp, an ephemeral container, a forwarded port. There is no token with which to go past the proxy. A recorder that
// is down, stalls or is full refuses what begins and ends what is open.
//
// Guard: exchange.startRecording in internal/accessproxy, and Service.recordedOnly in internal/signin.
func TestPX14_AvoidTheRecording(t *testing.T) {
	e := startRecorded(t)
	if err := os.WriteFile(filepath.Join(e.dave.Home, "file.txt"), []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"v4.channel.k8s.io", "v5.channel.k8s.io"} {
		t.Run("exec over "+protocol, func(t *testing.T) {
			e.isRecorded(t, "exec", "app", func(t *testing.T) {
				if got, err := e.stream(t, protocol, "exec?container=app&command=echo&command=hello&stdout=true"); err != nil || got != "hello\n" {
					t.Errorf("the command printed %q, %v", got, err)
				}
			})
		})
	}
	for _, protocol := range []string{"v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io", "v4.base64.channel.k8s.io", "v9.channel.k8s.io"} {
		for _, query := range []string{"exec?command=echo&command=secret&stdout=true", "attach?stdout=true"} {
			if got, err := e.stream(t, protocol, query); err == nil || got != "" {
				t.Errorf("%s over %s: %q, %v; want a refusal", query, protocol, got, err)
			}
		}
	}
	for name, env := range map[string][]string{"WebSocket": nil, "SPDY": overSPDY} {
		e.waysOf(t, name, env)
	}
	t.Run("a node's own API", func(t *testing.T) {
		if got := e.run(t, 1, nil, "", "kubectl", "get", "--raw", "/api/v1/nodes/fakenode/proxy/run/default/app/app?cmd=id"); !strings.Contains(got, "cannot be recorded") {
			t.Errorf("the answer is %q", got)
		}
	})
	t.Run("a token", e.noToken)
	t.Run("the recorder stalls", e.stalls)
	if err := e.recorder.Stop(attacktest.Long); err != nil {
		t.Error(err)
	}
	t.Run("the recorder is down", e.refused)
	e.startRecorder(t, "  maxRecordings: 1\n")
	t.Run("the recorder is full", e.refused)
}

// waysOf uses the ways of kubectl into a container.
func (e *recordedEnv) waysOf(t *testing.T, name string, env []string) {
	kubectl := func(want int, in string, args ...string) func(*testing.T) {
		return func(t *testing.T) { t.Helper(); e.run(t, want, env, in, "kubectl", args...) }
	}
	debug := "debug-" + strings.ToLower(name)
	for _, x := range []struct {
		way, kind, container string
		run                  func(*testing.T)
	}{
		{"exec", "exec", "app", kubectl(0, "", "exec", "app", "--", "echo", "hello")},
		{"exec with input", "exec", "app", kubectl(0, "hello", "exec", "-i", "app", "--", "cat")},
		{"exec that fails", "exec", "app", kubectl(42, "", "exec", "app", "--", "exit", "42")},
		{"cp to the pod", "exec", "app", kubectl(0, "", "cp", "file.txt", "default/app:/file.txt", "-c", "app")},
		{"cp from the pod", "exec", "app", kubectl(0, "", "cp", "default/app:/file.txt", "back.txt", "-c", "app")},
		{"attach", "attach", "app", kubectl(0, "hello", "attach", "-i", "app", "-c", "app")},
		{"an ephemeral container, attached", "attach", debug, kubectl(0, "hello", "debug", "-i", "app", "--image=example.com/debug:1", "--container="+debug, "--", "cat")},
		{"an ephemeral container, exec", "exec", debug, kubectl(0, "", "exec", "app", "-c", debug, "--", "echo", "hello")},
		{"port-forward", "portForward", "", func(t *testing.T) { e.forward(t, env) }},
	} {
		t.Run(x.way+" over "+name, func(t *testing.T) { e.isRecorded(t, x.kind, x.container, x.run) })
	}
}

// noToken asks for a token in each way.
func (e *recordedEnv) noToken(t *testing.T) {
	for _, args := range [][]string{
		{"kubeconfig", "--mode", "token", "--token"}, {"kubeconfig", "--mode", "token", "--token", "--session", "default"},
		{"credential", "--cluster", "east"}, {"login", "--role", "edit", "--mode", "token"}, {"shell", "--mode", "token", "--role", "edit", "--", "true"},
	} {
		if got := e.run(t, -1, nil, "", "tka", args...); strings.Contains(got, "eyJ") {
			t.Errorf("tka %s printed a token", strings.Join(args, " "))
		}
	}
	if _, err := signin.GetKubeconfig.Call(t.Context(), e.dave.Client(), signin.KubeconfigRequest{}); problem.CodeOf(err) != problem.ProxyOnly {
		t.Errorf("GET /kubeconfig: %v, want %s", err, problem.ProxyOnly)
	}
	files, err := filepath.Glob(filepath.Join(e.dave.Home, ".kube", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("eyJ")) {
			t.Errorf("%s has a token", f)
		}
	}
}

// refused checks that no way into the pod opens.
func (e *recordedEnv) refused(t *testing.T) {
	before := len(e.recorded(t))
	for name, env := range map[string][]string{"WebSocket": nil, "SPDY": overSPDY} {
		for _, args := range [][]string{{"exec", "app", "--", "echo", "unrecorded"}, {"attach", "app", "-c", "app"}, {"port-forward", "pod/app", ":8080"}, {"cp", "default/app:/file.txt", "none.txt", "-c", "app"}} {
			got := e.run(t, -1, env, "", "kubectl", args...)
			if !strings.Contains(got, "recording cannot begin") {
				t.Errorf("%s over %s: %q, want the proxy's refusal", args[0], name, got)
			}
			if strings.Contains(got, "unrecorded\n") || strings.Contains(got, "attached") {
				t.Errorf("%s over %s: %q, want no output of the pod", args[0], name, got)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(e.dave.Home, "none.txt")); err == nil {
		t.Errorf("cp copied %q", b)
	}
	if n := len(e.recorded(t)); n != before {
		t.Errorf("there are %d recordings, want %d", n, before)
	}
}

// stalls stops the recorder's process, which keeps its connections. An open stream ends, and none begins.
func (e *recordedEnv) stalls(t *testing.T) {
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	c, out := e.start(t, nil, in, "kubectl", "exec", "-i", "app", "--", "cat")
	in.Close()
	go io.WriteString(feed, "before\n")
	attacktest.Eventually(t, attacktest.Soon, "the command prints", func() bool { return strings.Contains(out.String(), "before") })
	if err := e.recorder.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.recorder.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	if got := e.run(t, -1, nil, "", "kubectl", "exec", "app", "--", "echo", "unrecorded"); strings.Contains(got, "unrecorded\n") || !strings.Contains(got, "recording cannot begin") {
		t.Errorf("an exec while the recorder stalls: %q", got)
	}
	block := strings.Repeat("0123456789abcde\n", 4096)
	go func() { // more than the client may see
		for range 32 {
			if _, err := io.WriteString(feed, block); err != nil {
				return
			}
		}
	}()
	_, failed := errors.AsType[*exec.ExitError](c.Wait())
	t.Logf("the stream ended %v after the recorder had stalled", time.Since(began).Round(time.Second))
	if !failed || !strings.Contains(out.String(), "its recording was lost") {
		t.Errorf("the stream ended with failure %v: %.2000s", failed, out)
	}
	if seen := len(out.String()); seen > unseen+4096 {
		t.Errorf("the client has seen %d bytes, want %d at most", seen, unseen)
	}
}
