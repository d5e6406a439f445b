// Package attack has one test for each attack of specs/attacks.md, named after
// it. It keeps the rule that a status code proves nothing: each test asserts on
// what the API server was asked and stores, what the record holds and what is
// bound, and carries out the same request without the attack beside it.
//
// Every row runs against every listener that the product has: today the access
// server on the tailnet (listeners_test.go reads the list from the program).
package attack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// basePolicy lets everybody knock. Beside the people that a test grants something
// to, alice may view and bob may nothing.
const basePolicy = `{
  "groups": {"group:viewers": ["alice@example.com"]},
  "tagOwners": {"tag:tailplane": [], "tag:other": [], "tag:ci": [], "tag:robot": [], "tag:ingress": []},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane", "tag:other"], "ip": ["*"]},
    {"src": ["group:viewers"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}},
    %s
  ],
  "nodeAttrs": [{"target": ["tag:other"], "attr": ["funnel"]}],
}`

// Accounts of the product's programs, as the API server knows them.
const (
	accessAccount   = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-access"
	operatorAccount = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-operator"
)

// auditPolicy makes the API server write down every request of the product's
// accounts before it acts on it: that is the far side of the product.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Request
  users: [` + accessAccount + `, ` + operatorAccount + `, ` + planeAccount + `, ` + fleetAccount + `]
- level: None
`

const (
	// long is how long a test waits for what takes milliseconds on an idle machine.
	// Waiting costs nothing while all is well, and some machines have much to do.
	long = 5 * time.Minute
	// soon is the limit for a change of authority to be felt. The contract says 2 s;
	// what it took is printed, and a shared machine is given more before it fails.
	soon = time.Minute
	// tokenCache is how long an API server may take a token that it has seen: it
	// knows it for 10 s, and may be as late with all else as a shared machine is. A
	// token that nobody takes back is good for 10 minutes.
	tokenCache = time.Minute

	noLimits = "{login: {perMinute: 0}, kubeconfig: {perMinute: 0}, others: {perMinute: 0}, all: {perMinute: 0}}"
)

// A system is the whole product on a real tailnet and a real API server, and
// what is needed to look at its far side.
type system struct {
	*testenv.Env
	admin client.WithWatch
	kube  *kubernetes.Clientset
	asked string // the API server's own log of what the product's accounts asked

	mu       sync.Mutex
	people   map[string]*testenv.Person // by host
	uses     map[string]int             // of their devices, by tests that have not ended
	speak    map[*testenv.Person]*http.Client
	policies int // how many setPolicy has put in force
}

// http is p's client: one, as the server bounds a device's connections.
func (s *system) http(p *testenv.Person) *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.speak[p] == nil {
		s.speak[p] = p.HTTP()
	}
	return s.speak[p]
}

// client is p's end of the operations.
func (s *system) client(p *testenv.Person) door.Client {
	return door.Client{HTTP: s.http(p), Base: s.Server()}
}

// shared is the system of all tests that leave it as they found it, and the
// second cluster of those that need one.
var shared struct {
	once      sync.Once
	system    *system
	err       error
	neighbour neighbour
}

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	ctrllog.SetLogger(logr.Discard()) // of clients, which say nothing that a test does not
	code := m.Run()
	if w := sharedCrossing.crossing; w != nil {
		if err := w.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if y := sharedYard.yard; y != nil {
		if err := y.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if s := shared.system; s != nil {
		if code != 0 { // what the programs said, for whoever looks for the reason
			for _, p := range []*testenv.Process{s.Access, s.Operator} {
				lines := strings.Split(p.Output(), "\n")
				fmt.Fprintf(os.Stderr, "end of the log of %v:\n%s\n", p.Args[1], strings.Join(lines[max(0, len(lines)-40):], "\n"))
			}
		}
		if err := errors.Join(shared.neighbour.close(), s.close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// start returns the shared system, which is alone on its tailnet.
func start(t *testing.T) *system {
	t.Helper()
	s := begin(t)
	shared.neighbour.away(t, s)
	return s
}

func begin(t *testing.T) *system {
	t.Helper()
	shared.once.Do(func() { shared.system, shared.err = newSystem() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.system
}

// own returns a system that the test may wreck.
func own(t *testing.T) *system {
	t.Helper()
	s, err := newSystem()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newSystem() (_ *system, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*long)
	defer cancel()
	s, err := run(ctx, testenv.Options{Policy: policy(), ClusterName: "east", Settings: map[string]string{
		"api.limits": noLimits, "signin.roles": "[view, edit, ghost]", "signin.keepExpired": "3s",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	// "ghost" is on the server's list, and no such ClusterRole exists: whoever
	// lists a role also lets the operator read and bind it.
	var rights rbacv1.ClusterRole
	if err := s.admin.Get(ctx, client.ObjectKey{Name: "tailplane-operator"}, &rights); err != nil {
		return nil, err
	}
	for i, rule := range rights.Rules {
		if slices.Contains(rule.Verbs, "bind") {
			rights.Rules[i].ResourceNames = append(rule.ResourceNames, "ghost")
		}
	}
	if err := s.admin.Update(ctx, &rights); err != nil {
		return nil, err
	}
	if err := s.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		return nil, err
	}
	return s, s.StartOperator(ctx)
}

// run starts a cluster that notes what the product asks of it, and an access
// server.
func run(ctx context.Context, o testenv.Options) (_ *system, err error) {
	dir, err := os.MkdirTemp("", "at")
	if err != nil {
		return nil, err
	}
	s := &system{asked: filepath.Join(dir, "kube-audit.jsonl"), people: map[string]*testenv.Person{}, uses: map[string]int{}, speak: map[*testenv.Person]*http.Client{}}
	auditFile := filepath.Join(dir, "kube-audit.yaml")
	if err := os.WriteFile(auditFile, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	cluster, err := kubetest.Run(ctx, kubetest.Options{Name: o.ClusterName, Args: []string{
		"--audit-policy-file=" + auditFile, "--audit-log-path=" + s.asked, "--audit-log-mode=blocking-strict",
		// No token lives longer than an hour here, whatever is asked for (SI-07).
		"--service-account-max-token-expiration=1h",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cluster.Close(), os.RemoveAll(dir))
		}
	}()
	o.Cluster, o.NoOperator = cluster, true
	if s.Env, err = testenv.Start(ctx, dir, o); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, admissionv1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.admin, err = client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	s.kube, err = kubernetes.NewForConfig(cluster.AdminConfig())
	return s, err
}

func (s *system) close() error {
	return errors.Join(s.Env.Close(), s.Cluster.Close(), os.RemoveAll(s.Dir))
}

// policy is basePolicy with further grants.
func policy(grants ...string) string { return fmt.Sprintf(basePolicy, strings.Join(grants, ",\n    ")) }

// grant is a grant of our capability to one source.
func grant(src, rules string) string {
	return fmt.Sprintf(`{"src": [%q], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [%s]}}`, src, rules)
}

// setPolicy puts further grants in force until the test's end. Nodes hear of it
// within milliseconds, not at once: waitPolicy waits for that.
func (s *system) setPolicy(t *testing.T, grants ...string) {
	t.Helper()
	before := s.Net.Policy()
	s.mu.Lock()
	s.policies++
	mark := fmt.Sprintf(`{"role": "view", "period": "%ds"}`, 3600+s.policies)
	s.mu.Unlock()
	if err := s.Net.SetPolicy(policy(append(grants, grant(watchman, mark))...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Net.SetPolicy(before); err != nil {
			t.Error(err)
		}
	})
}

// watchman is who is granted another period by each policy.
const watchman = "watchman@example.com"

// waitPolicy waits until the server decides by the policy in force, which is the
// last that setPolicy has put there.
func (s *system) waitPolicy(t *testing.T) {
	t.Helper()
	p := s.person(t, "watchman-laptop", watchman)
	eventually(t, long, "the policy is in force", func() bool {
		w, err := signin.GetWhoami.Call(t.Context(), s.client(p), signin.WhoamiRequest{})
		switch {
		case err != nil:
			return false
		case len(w.Rules) == 0: // of the first one
			return !strings.Contains(s.Net.Policy(), watchman)
		}
		return slices.ContainsFunc(w.Rules, func(r signin.Rule) bool { // beside those for everybody
			return strings.Contains(s.Net.Policy(), fmt.Sprintf(`"period": "%ds"`, int(time.Duration(r.Period).Seconds())))
		})
	})
}

// stayers are devices that many tests use.
var stayers = []string{"alice-laptop", "bob-laptop", "watchman-laptop"}

// person is somebody on a device; the same one for the same host name. When no test
// uses it any more the device leaves: each takes a hundred megabytes here.
func (s *system) person(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(stayers, host) {
		s.uses[host]++
		t.Cleanup(func() { s.leave(host) })
	}
	if p := s.people[host]; p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	p, err := s.Person(ctx, host, login, tags...)
	if err != nil {
		t.Fatal(err)
	}
	s.people[host] = p
	return p
}

func (s *system) leave(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses[host]--; s.uses[host] > 0 {
		return
	}
	if p := s.people[host]; p != nil {
		if hc := s.speak[p]; hc != nil {
			hc.CloseIdleConnections()
		}
		delete(s.speak, p)
		delete(s.people, host)
		s.Leave(p)
	}
}

func (s *system) alice(t *testing.T) *testenv.Person {
	return s.person(t, "alice-laptop", "alice@example.com")
}
func (s *system) bob(t *testing.T) *testenv.Person {
	return s.person(t, "bob-laptop", "bob@example.com")
}

// login signs p in and waits until that is ready. The test's end signs p out.
func (s *system) login(t *testing.T, p *testenv.Person, req signin.LoginRequest) signin.Status {
	t.Helper()
	if _, err := signin.Login.Call(t.Context(), s.client(p), req); err != nil {
		t.Fatalf("login: %v", err)
	}
	t.Cleanup(func() { s.logout(t, p) })
	s.kubeconfig(t, p)
	st, err := signin.Read.Call(t.Context(), s.client(p), signin.ReadRequest{})
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return st
}

// kubeconfig waits for p's sign-in and returns a token of it.
func (s *system) kubeconfig(t *testing.T, p *testenv.Person) signin.Kubeconfig {
	t.Helper()
	var k signin.Kubeconfig
	eventually(t, long, "the kubeconfig", func() bool {
		var err error
		k, err = signin.GetKubeconfig.Call(t.Context(), s.client(p), signin.KubeconfigRequest{Wait: door.Duration(20 * time.Second)})
		if err != nil && problem.CodeOf(err) != problem.NotReady {
			t.Fatalf("kubeconfig: %v", err)
		}
		return err == nil
	})
	return k
}

// logout signs p out, if p is signed in, and waits until nothing is left of it.
// It works at a test's end.
func (s *system) logout(t *testing.T, p *testenv.Person) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	defer cancel()
	for {
		st, err := signin.Logout.Call(ctx, s.client(p), signin.LogoutRequest{Wait: door.Duration(20 * time.Second)})
		switch code := problem.CodeOf(err); {
		case err == nil && st.State == signin.Ended, err != nil && code != problem.Internal && code != problem.Unavailable:
			return
		case ctx.Err() != nil:
			t.Errorf("logout: %v %v", st.State, err)
			return
		}
	}
}

// eventually waits for what must become true, and returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !within(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
	return time.Since(began)
}

// within waits for what should become true, and says whether it did. It asks ever
// more seldom, as asking costs what others wait for.
func within(limit time.Duration, ok func() bool) bool {
	const most = 50 * time.Millisecond
	wait := 5 * time.Millisecond
	for end := time.Now().Add(limit); ; wait = min(wait*9/8, most) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		<-time.After(wait)
	}
}

// always watches for a while that something stays true.
func always(t *testing.T, during time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(during); time.Now().Before(end); <-tick.C {
		if !ok() {
			t.Fatalf("not any more: %s", what)
		}
	}
}

// An answer is what came back from the server.
type answer struct {
	Status  int
	Header  http.Header
	Body    string
	Problem problem.Error // zero when it is none
}

func (a answer) code() problem.Code { return a.Problem.Code }

func (a answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// newRequest is a request to the access server, with pairs of header names and values.
func (s *system) newRequest(t *testing.T, method, path, body string, headers ...string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.Server()+path, r)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1]) // as spelt
	}
	return req
}

// do sends a request and reads the answer.
func do(t *testing.T, hc *http.Client, req *http.Request) answer {
	t.Helper()
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, res)
}

func readAnswer(t *testing.T, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	_ = json.Unmarshal(b, &a.Problem) // not a problem: its code stays empty
	if a.Problem.Code == "" {
		a.Problem = problem.Error{}
	}
	return a
}

// ask is do for p.
func (s *system) ask(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) answer {
	t.Helper()
	return do(t, s.http(p), s.newRequest(t, method, path, body, headers...))
}

// A mark is a moment: what was recorded and asked since can be told.
type mark struct {
	s              *system
	product, kube_ int64
}

func (s *system) mark(t *testing.T) mark {
	t.Helper()
	return mark{s, size(t, s.AuditFile()), size(t, s.asked)}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// since calls f for each whole line of a file after an offset.
func since(t *testing.T, path string, from int64, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	whole := from == 0 // a moment may lie within a line: that one began before
	if !whole {
		before := make([]byte, 1)
		if _, err := file.ReadAt(before, from-1); err != nil {
			t.Fatal(err)
		}
		whole = before[0] == '\n'
	}
	for r := bufio.NewReader(file); ; whole = true {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return // half a line is being written
		}
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			f(bytes.TrimSpace(line))
		}
	}
}

// recorded is what the access server recorded since, of visits and of itself.
func (m mark) recorded(t *testing.T) (out []audit.Entry) {
	t.Helper()
	since(t, m.s.AuditFile(), m.product, func(text []byte) {
		line, err := audit.ParseLine(text)
		if err != nil {
			t.Fatalf("record: %q: %v", text, err)
		}
		content, err := line.Content()
		if err != nil || !line.Sound() {
			t.Fatalf("record: %q: %v", text, err)
		}
		switch c := content.(type) {
		case audit.Entry:
			out = append(out, c)
		}
		if line.Kind == audit.KindGap {
			t.Errorf("the record lost entries: %s", text)
		}
	})
	return out
}

// entries is what the access server recorded of visits since.
func (m mark) entries(t *testing.T) []audit.Entry {
	t.Helper()
	return slices.DeleteFunc(m.recorded(t), func(e audit.Entry) bool { return e.Surface == "process" })
}

// A kubeRequest is what the API server noted of a request before it acted on it.
type kubeRequest struct {
	Stage, Verb, RequestURI string
	User                    struct{ Username string }
	ImpersonatedUser        *struct{ Username string }
	SourceIPs               []string
	UserAgent               string
	ObjectRef               struct{ Resource, Subresource, Namespace, Name string }
	RequestObject           json.RawMessage
}

func (k kubeRequest) String() string { return k.Verb + " " + k.RequestURI }

// writes tells whether the request changes something, or makes a token.
func (k kubeRequest) writes() bool {
	return !slices.Contains([]string{"get", "list", "watch"}, k.Verb)
}

// requests is what an account asked of the API server since, but for watches and
// for the operator's Lease.
func (m mark) requests(t *testing.T, account string) []kubeRequest {
	t.Helper()
	return m.noted(t, account, "RequestReceived")
}

// housekeeping is what servers write of themselves, whoever asks for what.
func (k kubeRequest) housekeeping() bool {
	return k.ObjectRef.Resource == "leases" ||
		k.ObjectRef.Resource == "configmaps" && (k.ObjectRef.Name == "tailplane-members" || k.ObjectRef.Name == "tailplane-gossip-pins")
}

// bodies are the same requests when they were answered, with what they carried.
func (m mark) bodies(t *testing.T, account string) (out []kubeRequest) {
	t.Helper()
	eventually(t, long, "all requests are answered", func() bool {
		out = m.noted(t, account, "ResponseComplete")
		return len(out) >= len(m.requests(t, account))
	})
	return out
}

func (m mark) noted(t *testing.T, account, stage string) (out []kubeRequest) {
	t.Helper()
	since(t, m.s.asked, m.kube_, func(line []byte) {
		var k kubeRequest
		if err := json.Unmarshal(line, &k); err != nil {
			t.Fatalf("the API server's log: %q: %v", line, err)
		}
		if k.Stage == stage && k.User.Username == account && k.Verb != "watch" && !k.housekeeping() {
			out = append(out, k)
		}
	})
	return out
}

// writes are those of requests that change something, or make a token.
func (m mark) writes(t *testing.T, account string) []kubeRequest {
	t.Helper()
	return slices.DeleteFunc(m.requests(t, account), func(k kubeRequest) bool { return !k.writes() })
}

// refused carries out do, which must be refused in the listener's form with the
// code: at no cost to the API server, with one entry in the record that gives the
// reason, and nothing secret in either.
func (s *system) refused(t *testing.T, what string, code problem.Code, do func() answer) (answer, audit.Entry) {
	t.Helper()
	m := s.mark(t)
	a := do()
	e := m.refusal(t, what, code, a)
	if asked := m.requests(t, accessAccount); len(asked) > 0 {
		t.Errorf("%s: the API server was asked: %v", what, asked)
	}
	return a, e
}

// refusal checks the answer and the one entry about it.
func (m mark) refusal(t *testing.T, what string, code problem.Code, a answer) audit.Entry {
	t.Helper()
	if a.code() != code || a.Status != code.Status() {
		t.Errorf("%s: %v, want %d %s", what, a, code.Status(), code)
	}
	if a.Problem.Message == "" || len(a.Problem.Advice) == 0 || a.Problem.AuditID == "" || a.Header.Get("X-Request-Id") != a.Problem.AuditID {
		t.Errorf("%s: no sentence, advice or audit id: %v %v", what, a, a.Header)
	}
	// What was refused to others before is summed in an entry that may come now.
	entries := slices.DeleteFunc(m.entries(t), func(e audit.Entry) bool { return e.Args["count"] != "" && e.RequestID != a.Problem.AuditID })
	if len(entries) != 1 {
		t.Errorf("%s: %d entries in the record, want 1: %+v", what, len(entries), entries)
		return audit.Entry{}
	}
	e := entries[0]
	if e.RequestID != a.Problem.AuditID || e.Code != code || e.Result == audit.Done || e.Result == audit.NotYet || e.Error == "" {
		t.Errorf("%s: recorded as %+v", what, e)
	}
	line, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{a.Body, string(line)} {
		for _, secret := range []string{"eyJ", "tskey-", "nodekey:", "/tmp/", "goroutine "} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q stands in %s", what, secret, text)
			}
		}
	}
	return e
}

// signins are the stored sign-ins of a login, all devices; of everybody for "".
func (s *system) signins(t *testing.T, login string) []v1alpha1.TkaSignin {
	t.Helper()
	var list v1alpha1.TkaSigninList
	if err := s.admin.List(context.WithoutCancel(t.Context()), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(o v1alpha1.TkaSignin) bool { return login != "" && o.Spec.User.Login != login })
}

// A bound is what gives access in the cluster.
type bound struct{ kind, namespace, name, role, uid string }

// given is everything that gives a sign-in's account access, or is that account:
// found by its name, not by our labels, which somebody could have taken off.
func (s *system) given(t *testing.T, name string) (out []bound) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var accounts corev1.ServiceAccountList
	var wide rbacv1.ClusterRoleBindingList
	var narrow rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&accounts, &wide, &narrow} {
		if err := s.admin.List(ctx, list); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range accounts.Items {
		if a.Namespace == testenv.SigninNamespace && a.Name == name {
			out = append(out, bound{"ServiceAccount", a.Namespace, a.Name, "", string(a.UID)})
		}
	}
	ours := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(x rbacv1.Subject) bool { return x.Namespace == testenv.SigninNamespace && x.Name == name })
	}
	for _, b := range wide.Items {
		if ours(b.Subjects) {
			out = append(out, bound{"ClusterRoleBinding", "", b.Name, b.RoleRef.Name, string(b.UID)})
		}
	}
	for _, b := range narrow.Items {
		if ours(b.Subjects) {
			out = append(out, bound{"RoleBinding", b.Namespace, b.Name, b.RoleRef.Name, string(b.UID)})
		}
	}
	return out
}

// inconsistent names what breaks the laws that hold whenever nothing is under way:
// every account and binding of a sign-in belongs to one that is live, each live
// one has its account and one role, and none is over.
func (s *system) inconsistent(t *testing.T) (wrong []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	live := map[string]v1alpha1.TkaSignin{}
	for _, o := range s.signins(t, "") {
		over := o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseExpired) || o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseRefused)
		given := s.given(t, o.Name)
		switch {
		case over && len(given) > 0:
			bad("%s is %s and has %v", o.Name, o.Status.Phase, given)
		case over:
		case o.DeletionTimestamp != nil, o.Status.Phase != v1alpha1.SigninPhase(signin.PhaseReady), o.Status.ObservedGeneration != o.Generation:
			bad("%s is under way: %s, generation %d of %d", o.Name, o.Status.Phase, o.Status.ObservedGeneration, o.Generation)
		default:
			live[o.Name] = o
			bindings := slices.DeleteFunc(slices.Clone(given), func(b bound) bool { return b.kind == "ServiceAccount" })
			if len(given)-len(bindings) != 1 || len(bindings) != max(1, len(o.Spec.Namespaces)) {
				bad("%s has %v", o.Name, given)
			}
			for _, b := range bindings {
				if b.role != o.Spec.Role || o.Status.Role != o.Spec.Role {
					bad("%s has %s of %s, and shows %s", o.Name, b.role, o.Spec.Role, o.Status.Role)
				}
			}
			if o.Status.ValidUntil == nil || time.Now().After(o.Status.ValidUntil.Time.Add(time.Minute)) {
				bad("%s should have ended at %v", o.Name, o.Status.ValidUntil)
			}
		}
	}
	var accounts corev1.ServiceAccountList
	var wide rbacv1.ClusterRoleBindingList
	var narrow rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&accounts, &wide, &narrow} {
		if err := s.admin.List(ctx, list); err != nil {
			t.Fatal(err)
		}
	}
	check := func(kind string, o client.Object, uid, name string) {
		if x, ok := live[name]; !ok || string(x.UID) != uid {
			bad("%s %s/%s has no live sign-in", kind, o.GetNamespace(), o.GetName())
		}
	}
	for i := range accounts.Items {
		if a := &accounts.Items[i]; a.Namespace == testenv.SigninNamespace && a.Name != "default" {
			check("ServiceAccount", a, a.Labels[v1alpha1.SigninUIDLabel], a.Name)
		}
	}
	for i := range wide.Items {
		if b := &wide.Items[i]; b.Labels[v1alpha1.SigninUIDLabel] != "" || strings.HasPrefix(b.Name, "tailplane-") && !slices.Contains([]string{"tailplane-operator", "tailplane-access", "tailplane-plane"}, b.Name) {
			check("ClusterRoleBinding", b, b.Labels[v1alpha1.SigninUIDLabel], strings.TrimPrefix(b.Name, "tailplane-"))
		}
	}
	for i := range narrow.Items {
		if b := &narrow.Items[i]; b.Labels[v1alpha1.SigninUIDLabel] != "" {
			check("RoleBinding", b, b.Labels[v1alpha1.SigninUIDLabel], strings.TrimPrefix(b.Name, "tailplane-"))
		}
	}
	return wrong
}

// settles waits until the laws of consistent hold.
func (s *system) settles(t *testing.T, what string) time.Duration {
	t.Helper()
	var wrong []string
	began := time.Now()
	if !within(long, func() bool { wrong = s.inconsistent(t); return len(wrong) == 0 }) {
		t.Fatalf("%s: not within %v: %s", what, long, strings.Join(wrong, "; "))
	}
	return time.Since(began)
}

// holder is somebody with a token and nothing else.
func (s *system) holder(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(s.Cluster.TokenConfig(token))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// pods asks the API server for the pods of a namespace, and returns how that ended.
func pods(t *testing.T, k *kubernetes.Clientset, namespace string) error {
	t.Helper()
	_, err := k.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	return err
}

// account is the configuration of one of the product's ServiceAccounts, for what
// a program of ours does not do and its stolen credential could.
func (s *system) account(t *testing.T, name string) *rest.Config {
	t.Helper()
	path, err := s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return clientConfig(t, path)
}

func clientConfig(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// decode reads one line of JSON.
func decode(t *testing.T, line string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), into); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// kubectlAs runs kubectl as somebody, by the administrator's right to be anybody.
func (s *system) kubectlAs(t *testing.T, user string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	return kubetest.Kubectl(t.Context(), s.Cluster.Kubeconfig, append(args, "--as="+user, "--as-group=system:authenticated")...)
}
