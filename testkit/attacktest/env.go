package attacktest

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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Where the fleet is, as deploy/fleet has it.
const (
	FleetNamespace = "tailplane-fleet"
	FleetAccount   = "system:serviceaccount:" + FleetNamespace + ":tailplane-fleet"
	SharedRunners  = "tailplane-runners"
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
	AccessAccount   = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-access"
	OperatorAccount = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-operator"
)

// auditPolicy makes the API server write down every request of the product's
// accounts before it acts on it: that is the far side of the product.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Request
  users: [` + AccessAccount + `, ` + OperatorAccount + `, ` + PlaneAccount + `, ` + FleetAccount + `]
- level: None
`

const (
	// long is how long a test waits for what takes milliseconds on an idle machine.
	// Waiting costs nothing while all is well, and some machines have much to do.
	Long = 5 * time.Minute
	// soon is the limit for a change of authority to be felt. The contract says 2 s;
	// what it took is printed, and a shared machine is given more before it fails.
	Soon = time.Minute
	// tokenCache is how long an API server may take a token that it has seen: it
	// knows it for 10 s, and may be as late with all else as a shared machine is. A
	// token that nobody takes back is good for 10 minutes.
	TokenCache = time.Minute

	NoLimits = "{login: {perMinute: 0}, kubeconfig: {perMinute: 0}, others: {perMinute: 0}, all: {perMinute: 0}}"
)

// An Env is the whole product on a real tailnet and a real API server, and
// what is needed to look at its far side.
type Env struct {
	*testenv.Env
	KubeClient    client.WithWatch
	Clientset     *kubernetes.Clientset
	KubeAuditFile string // the API server's own log of what the product's accounts asked

	Mu       sync.Mutex
	People   map[string]*testenv.Person // by host
	uses     map[string]int             // of their devices, by tests that have not ended
	Clients  map[*testenv.Person]*http.Client
	policies int // how many setPolicy has put in force
}

// HTTPClient is p's client: one, as the server bounds a device's connections.
func (s *Env) HTTPClient(p *testenv.Person) *http.Client {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Clients[p] == nil {
		s.Clients[p] = p.HTTP()
	}
	return s.Clients[p]
}

// APIClient is p's end of the operations.
func (s *Env) APIClient(p *testenv.Person) door.Client {
	return door.Client{HTTP: s.HTTPClient(p), Base: s.Server()}
}

// shared is the system of all tests of a package that leave it as they found it.
var shared struct {
	once   sync.Once
	system *Env
	err    error
}

// ends are the functions of atEnd.
var ends []func() error

// AtEnd has Main call end after the last test, in the reverse order of the calls. A
// test that starts what all tests of its package share calls it once.
func AtEnd(end func() error) { ends = append(ends, end) }

// Main runs the tests of a package and then stops the shared system and all that
// atEnd names. It exits the process.
func Main(m *testing.M) {
	tailnettest.Quiet()
	ctrllog.SetLogger(logr.Discard()) // of clients, which say nothing that a test does not
	code := m.Run()
	for _, end := range slices.Backward(ends) {
		if err := end(); err != nil {
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
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Start returns the system that all tests of a package share. The first call starts it.
func Start(t *testing.T) *Env {
	t.Helper()
	shared.once.Do(func() { shared.system, shared.err = newEnv() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.system
}

// New returns a system that the test may wreck.
func New(t *testing.T) *Env {
	t.Helper()
	s, err := newEnv()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newEnv() (_ *Env, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*Long)
	defer cancel()
	s, err := Run(ctx, testenv.Options{Policy: Policy(), ClusterName: "east", Settings: map[string]string{
		"api.limits": NoLimits, "signin.roles": "[view, edit, ghost]", "signin.keepExpired": "3s",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// "ghost" is on the server's list, and no such ClusterRole exists: whoever
	// lists a role also lets the operator read and bind it.
	var rights rbacv1.ClusterRole
	if err := s.KubeClient.Get(ctx, client.ObjectKey{Name: "tailplane-operator"}, &rights); err != nil {
		return nil, err
	}
	for i, rule := range rights.Rules {
		if slices.Contains(rule.Verbs, "bind") {
			rights.Rules[i].ResourceNames = append(rule.ResourceNames, "ghost")
		}
	}
	if err := s.KubeClient.Update(ctx, &rights); err != nil {
		return nil, err
	}
	if err := s.KubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		return nil, err
	}
	return s, s.StartOperator(ctx)
}

// Run starts a cluster that notes what the product asks of it, and an access
// server.
func Run(ctx context.Context, o testenv.Options) (_ *Env, err error) {
	dir, err := os.MkdirTemp("", "at")
	if err != nil {
		return nil, err
	}
	s := &Env{KubeAuditFile: filepath.Join(dir, "kube-audit.jsonl"), People: map[string]*testenv.Person{}, uses: map[string]int{}, Clients: map[*testenv.Person]*http.Client{}}
	auditFile := filepath.Join(dir, "kube-audit.yaml")
	if err := os.WriteFile(auditFile, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	cluster, err := kubetest.Run(ctx, kubetest.Options{Name: o.ClusterName, Args: []string{
		"--audit-policy-file=" + auditFile, "--audit-log-path=" + s.KubeAuditFile, "--audit-log-mode=blocking-strict",
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
	if s.KubeClient, err = client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	s.Clientset, err = kubernetes.NewForConfig(cluster.AdminConfig())
	return s, err
}

func (s *Env) Close() error {
	return errors.Join(s.Env.Close(), s.Cluster.Close(), os.RemoveAll(s.Dir))
}

// Policy is basePolicy with further grants.
func Policy(grants ...string) string { return fmt.Sprintf(basePolicy, strings.Join(grants, ",\n    ")) }

// Grant is a grant of our capability to one source.
func Grant(src, rules string) string {
	return fmt.Sprintf(`{"src": [%q], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [%s]}}`, src, rules)
}

// SetPolicy puts further grants in force until the test's end. Nodes hear of it
// within milliseconds, not at once: waitPolicy waits for that.
func (s *Env) SetPolicy(t *testing.T, grants ...string) {
	t.Helper()
	before := s.Net.Policy()
	s.Mu.Lock()
	s.policies++
	mark := fmt.Sprintf(`{"role": "view", "period": "%ds"}`, 3600+s.policies)
	s.Mu.Unlock()
	if err := s.Net.SetPolicy(Policy(append(grants, Grant(watchman, mark))...)); err != nil {
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
func (s *Env) waitPolicy(t *testing.T) {
	t.Helper()
	p := s.Person(t, "watchman-laptop", watchman)
	Eventually(t, Long, "the policy is in force", func() bool {
		w, err := signin.GetWhoami.Call(t.Context(), s.APIClient(p), signin.WhoamiRequest{})
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

// Person is somebody on a device; the same one for the same host name. When no test
// uses it any more the device leaves: each takes a hundred megabytes here.
func (s *Env) Person(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !slices.Contains(stayers, host) {
		s.uses[host]++
		t.Cleanup(func() { s.leave(host) })
	}
	if p := s.People[host]; p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	p, err := s.Env.Person(ctx, host, login, tags...)
	if err != nil {
		t.Fatal(err)
	}
	s.People[host] = p
	return p
}

func (s *Env) leave(host string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.uses[host]--; s.uses[host] > 0 {
		return
	}
	if p := s.People[host]; p != nil {
		if hc := s.Clients[p]; hc != nil {
			hc.CloseIdleConnections()
		}
		delete(s.Clients, p)
		delete(s.People, host)
		s.Leave(p)
	}
}

func (s *Env) Alice(t *testing.T) *testenv.Person {
	return s.Person(t, "alice-laptop", "alice@example.com")
}

func (s *Env) Bob(t *testing.T) *testenv.Person {
	return s.Person(t, "bob-laptop", "bob@example.com")
}

// Login signs p in and waits until that is ready. The test's end signs p out.
func (s *Env) Login(t *testing.T, p *testenv.Person, req signin.LoginRequest) signin.Status {
	t.Helper()
	if _, err := signin.Login.Call(t.Context(), s.APIClient(p), req); err != nil {
		t.Fatalf("login: %v", err)
	}
	t.Cleanup(func() { s.Logout(t, p) })
	s.Kubeconfig(t, p)
	st, err := signin.Read.Call(t.Context(), s.APIClient(p), signin.ReadRequest{})
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return st
}

// Kubeconfig waits for p's sign-in and returns a token of it.
func (s *Env) Kubeconfig(t *testing.T, p *testenv.Person) signin.Kubeconfig {
	t.Helper()
	var k signin.Kubeconfig
	Eventually(t, Long, "the kubeconfig", func() bool {
		var err error
		k, err = signin.GetKubeconfig.Call(t.Context(), s.APIClient(p), signin.KubeconfigRequest{Wait: door.Duration(20 * time.Second)})
		if err != nil && problem.CodeOf(err) != problem.NotReady {
			t.Fatalf("kubeconfig: %v", err)
		}
		return err == nil
	})
	return k
}

// Logout signs p out, if p is signed in, and waits until nothing is left of it.
// It works at a test's end.
func (s *Env) Logout(t *testing.T, p *testenv.Person) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Long)
	defer cancel()
	for {
		st, err := signin.Logout.Call(ctx, s.APIClient(p), signin.LogoutRequest{Wait: door.Duration(20 * time.Second)})
		switch code := problem.CodeOf(err); {
		case err == nil && st.State == signin.Ended, err != nil && code != problem.Internal && code != problem.Unavailable:
			return
		case ctx.Err() != nil:
			t.Errorf("logout: %v %v", st.State, err)
			return
		}
	}
}

// Eventually waits for what must become true, and returns how long that took.
func Eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !Within(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
	return time.Since(began)
}

// Within waits for what should become true, and says whether it did. It asks ever
// more seldom, as asking costs what others wait for.
func Within(limit time.Duration, ok func() bool) bool {
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

// Always watches for a while that something stays true.
func Always(t *testing.T, during time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(during); time.Now().Before(end); <-tick.C {
		if !ok() {
			t.Fatalf("not any more: %s", what)
		}
	}
}

// An Answer is what came back from the server.
type Answer struct {
	Status  int
	Header  http.Header
	Body    string
	Problem problem.Error // zero when it is none
}

func (a Answer) Code() problem.Code { return a.Problem.Code }

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// NewRequest is a request to the access server, with pairs of header names and values.
func (s *Env) NewRequest(t *testing.T, method, path, body string, headers ...string) *http.Request {
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

// Do sends a request and reads the answer.
func Do(t *testing.T, hc *http.Client, req *http.Request) Answer {
	t.Helper()
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return ReadAnswer(t, res)
}

func ReadAnswer(t *testing.T, res *http.Response) Answer {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := Answer{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	_ = json.Unmarshal(b, &a.Problem) // not a problem: its code stays empty
	if a.Problem.Code == "" {
		a.Problem = problem.Error{}
	}
	return a
}

// Ask is do for p.
func (s *Env) Ask(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) Answer {
	t.Helper()
	return Do(t, s.HTTPClient(p), s.NewRequest(t, method, path, body, headers...))
}

// A Mark is a moment: what was recorded and asked since can be told.
type Mark struct {
	Env            *Env
	Product, kube_ int64
}

func (s *Env) Mark(t *testing.T) Mark {
	t.Helper()
	return Mark{s, FileSize(t, s.AuditFile()), FileSize(t, s.KubeAuditFile)}
}

func FileSize(t *testing.T, path string) int64 {
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

// ReadSince calls f for each whole line of a file after an offset.
func ReadSince(t *testing.T, path string, from int64, f func(line []byte)) {
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

// Recorded is what the access server recorded since, of visits and of itself.
func (m Mark) Recorded(t *testing.T) (out []audit.Entry) {
	t.Helper()
	ReadSince(t, m.Env.AuditFile(), m.Product, func(text []byte) {
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

// Entries is what the access server recorded of visits since.
func (m Mark) Entries(t *testing.T) []audit.Entry {
	t.Helper()
	return slices.DeleteFunc(m.Recorded(t), func(e audit.Entry) bool { return e.Surface == "process" })
}

// A KubeRequest is what the API server noted of a request before it acted on it.
type KubeRequest struct {
	Stage, Verb, RequestURI string
	User                    struct{ Username string }
	ImpersonatedUser        *struct{ Username string }
	SourceIPs               []string
	UserAgent               string
	ObjectRef               struct{ Resource, Subresource, Namespace, Name string }
	RequestObject           json.RawMessage
}

func (k KubeRequest) String() string { return k.Verb + " " + k.RequestURI }

// Writes tells whether the request changes something, or makes a token.
func (k KubeRequest) Writes() bool {
	return !slices.Contains([]string{"get", "list", "watch"}, k.Verb)
}

// Requests is what an account asked of the API server since, but for watches and
// for the operator's Lease.
func (m Mark) Requests(t *testing.T, account string) []KubeRequest {
	t.Helper()
	return m.noted(t, account, "RequestReceived")
}

// housekeeping is what servers write of themselves, whoever asks for what.
func (k KubeRequest) housekeeping() bool {
	return k.ObjectRef.Resource == "leases" ||
		k.ObjectRef.Resource == "configmaps" && (k.ObjectRef.Name == "tailplane-members" || k.ObjectRef.Name == "tailplane-gossip-pins")
}

// Bodies are the same requests when they were answered, with what they carried.
func (m Mark) Bodies(t *testing.T, account string) (out []KubeRequest) {
	t.Helper()
	Eventually(t, Long, "all requests are answered", func() bool {
		out = m.noted(t, account, "ResponseComplete")
		return len(out) >= len(m.Requests(t, account))
	})
	return out
}

func (m Mark) noted(t *testing.T, account, stage string) (out []KubeRequest) {
	t.Helper()
	ReadSince(t, m.Env.KubeAuditFile, m.kube_, func(line []byte) {
		var k KubeRequest
		if err := json.Unmarshal(line, &k); err != nil {
			t.Fatalf("the API server's log: %q: %v", line, err)
		}
		if k.Stage == stage && k.User.Username == account && k.Verb != "watch" && !k.housekeeping() {
			out = append(out, k)
		}
	})
	return out
}

// Writes are those of requests that change something, or make a token.
func (m Mark) Writes(t *testing.T, account string) []KubeRequest {
	t.Helper()
	return slices.DeleteFunc(m.Requests(t, account), func(k KubeRequest) bool { return !k.Writes() })
}

// Refused carries out do, which must be refused in the listener's form with the
// code: at no cost to the API server, with one entry in the record that gives the
// reason, and nothing secret in either.
func (s *Env) Refused(t *testing.T, what string, code problem.Code, do func() Answer) (Answer, audit.Entry) {
	t.Helper()
	m := s.Mark(t)
	a := do()
	e := m.Refusal(t, what, code, a)
	if asked := m.Requests(t, AccessAccount); len(asked) > 0 {
		t.Errorf("%s: the API server was asked: %v", what, asked)
	}
	return a, e
}

// Refusal checks the answer and the one entry about it.
func (m Mark) Refusal(t *testing.T, what string, code problem.Code, a Answer) audit.Entry {
	t.Helper()
	if a.Code() != code || a.Status != code.Status() {
		t.Errorf("%s: %v, want %d %s", what, a, code.Status(), code)
	}
	if a.Problem.Message == "" || len(a.Problem.Advice) == 0 || a.Problem.AuditID == "" || a.Header.Get("X-Request-Id") != a.Problem.AuditID {
		t.Errorf("%s: no sentence, advice or audit id: %v %v", what, a, a.Header)
	}
	// What was refused to others before is summed in an entry that may come now.
	entries := slices.DeleteFunc(m.Entries(t), func(e audit.Entry) bool { return e.Args["count"] != "" && e.RequestID != a.Problem.AuditID })
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

// SignIns are the stored sign-ins of a login, all devices; of everybody for "".
func (s *Env) SignIns(t *testing.T, login string) []v1alpha1.TkaSignin {
	t.Helper()
	var list v1alpha1.TkaSigninList
	if err := s.KubeClient.List(context.WithoutCancel(t.Context()), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(o v1alpha1.TkaSignin) bool { return login != "" && o.Spec.User.Login != login })
}

// A bound is what gives access in the cluster.
type bound struct{ Kind, Namespace, name, Role, UID string }

// AccessOf is everything that gives a sign-in's account access, or is that account:
// found by its name, not by our labels, which somebody could have taken off.
func (s *Env) AccessOf(t *testing.T, name string) (out []bound) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var accounts corev1.ServiceAccountList
	var wide rbacv1.ClusterRoleBindingList
	var narrow rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&accounts, &wide, &narrow} {
		if err := s.KubeClient.List(ctx, list); err != nil {
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
func (s *Env) inconsistent(t *testing.T) (wrong []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	live := map[string]v1alpha1.TkaSignin{}
	for _, o := range s.SignIns(t, "") {
		over := o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseExpired) || o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseRefused)
		given := s.AccessOf(t, o.Name)
		switch {
		case over && len(given) > 0:
			bad("%s is %s and has %v", o.Name, o.Status.Phase, given)
		case over:
		case o.DeletionTimestamp != nil, o.Status.Phase != v1alpha1.SigninPhase(signin.PhaseReady), o.Status.ObservedGeneration != o.Generation:
			bad("%s is under way: %s, generation %d of %d", o.Name, o.Status.Phase, o.Status.ObservedGeneration, o.Generation)
		default:
			live[o.Name] = o
			bindings := slices.DeleteFunc(slices.Clone(given), func(b bound) bool { return b.Kind == "ServiceAccount" })
			if len(given)-len(bindings) != 1 || len(bindings) != max(1, len(o.Spec.Namespaces)) {
				bad("%s has %v", o.Name, given)
			}
			for _, b := range bindings {
				if b.Role != o.Spec.Role || o.Status.Role != o.Spec.Role {
					bad("%s has %s of %s, and shows %s", o.Name, b.Role, o.Spec.Role, o.Status.Role)
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
		if err := s.KubeClient.List(ctx, list); err != nil {
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

// Settles waits until the laws of consistent hold.
func (s *Env) Settles(t *testing.T, what string) time.Duration {
	t.Helper()
	var wrong []string
	began := time.Now()
	if !Within(Long, func() bool { wrong = s.inconsistent(t); return len(wrong) == 0 }) {
		t.Fatalf("%s: not within %v: %s", what, Long, strings.Join(wrong, "; "))
	}
	return time.Since(began)
}

// TokenClient is somebody with a token and nothing else.
func (s *Env) TokenClient(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(s.Cluster.TokenConfig(token))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ListPods asks the API server for the pods of a namespace, and returns how that ended.
func ListPods(t *testing.T, k *kubernetes.Clientset, namespace string) error {
	t.Helper()
	_, err := k.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	return err
}

// AccountConfig is the configuration of one of the product's ServiceAccounts, for what
// a program of ours does not do and its stolen credential could.
func (s *Env) AccountConfig(t *testing.T, name string) *rest.Config {
	t.Helper()
	path, err := s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return ClientConfig(t, path)
}

func ClientConfig(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// Decode reads one line of JSON.
func Decode(t *testing.T, line string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), into); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// KubectlAs runs kubectl as somebody, by the administrator's right to be anybody.
func (s *Env) KubectlAs(t *testing.T, user string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	return kubetest.Kubectl(t.Context(), s.Cluster.Kubeconfig, append(args, "--as="+user, "--as-group=system:authenticated")...)
}

// WaitPeer waits until p reaches a host of the tailnet.
func (s *Env) WaitPeer(t *testing.T, p *testenv.Person, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	if err := s.Net.WaitPeer(ctx, p.Node, host); err != nil {
		t.Fatal(err)
	}
}
