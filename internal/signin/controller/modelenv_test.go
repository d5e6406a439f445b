//go:build unix

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A modelEnv is a test environment with people, an access server and an operator on a real API server.
// Tests inject storms, crashes, wrong clocks and clock jumps.
type modelEnv struct {
	*env
	rand     *rand.Rand
	ahead    atomic.Int64 // how far the clock of the environment is ahead of the machine's, in nanoseconds
	access   *program
	operator *program
	people   []*person
	history  *history
	holders  *tokenHolders
	requests *counter // of both programs

	mu      sync.Mutex // guards the grants of the people
	changed chan struct{}
}

// A program is one of the two servers. A test can kill and restart it.
type program struct {
	name  string
	storm *kubetest.Storm
	skew  atomic.Int64 // clock error in nanoseconds
	start func() error

	killer  *killer
	end     func()
	handler http.Handler // HTTP handler of the access server
	ready   func() bool
}

func newModelEnv(t testing.TB, seed uint64) *modelEnv {
	p := newEnv(t)
	p.rules.MaxLife, p.rules.KeepExpired = 0, 10*time.Minute
	w := &modelEnv{env: p, rand: rand.New(rand.NewPCG(seed, 1)), changed: make(chan struct{}), requests: new(counter)}
	w.access = &program{name: "access", storm: kubetest.NewStorm(seed), start: w.startAccess}
	w.operator = &program{name: "operator", storm: kubetest.NewStorm(seed + 1), start: w.startOperator}
	w.ahead.Store(int64(time.Hour)) // request deadlines use the machine's clock, and must not have passed if a program's clock is behind
	w.history = followHistory(p)
	w.holders = holdTokens(w)
	for _, x := range [][2]string{{"alice@a.example", "laptop"}, {"alice@a.example", "phone"}, {"bob@a.example", "desk"}} {
		w.people = append(w.people, &person{owner: p.owner(x[0], x[1]), possible: map[rights]bool{{}: true}, previous: map[rights]bool{}, role: "view", grants: grant("view", 2*time.Hour)})
	}
	w.must(w.access.start())
	w.must(w.operator.start())
	t.Cleanup(func() { w.access.end(); w.operator.end() })
	w.until("both at work", func() bool { return w.access.ready() && w.operator.ready() })
	return w
}

func (w *modelEnv) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// clock returns the time as a program sees it.
func (w *modelEnv) clock(p *program) time.Time {
	return time.Now().Add(time.Duration(w.ahead.Load() + p.skew.Load()))
}

// latest returns the time of the clock that is further ahead, and earliest the time of the other.
func (w *modelEnv) latest() time.Time {
	return time.Now().Add(time.Duration(w.ahead.Load() + max(w.access.skew.Load(), w.operator.skew.Load())))
}

// config returns the client configuration of a program. Requests pass through its storm until the
// program is killed.
func (w *modelEnv) config(p *program) *rest.Config {
	p.killer = newKiller(0)
	p.killer.arm()
	c := w.history.late.wrap(w.requests.wrap(w.operatorConfig))
	c.Wrap(p.storm.Wrap)
	return p.killer.wrap(c)
}

// live runs the parts of a program until it is killed or stopped.
func (p *program) live(parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range parts {
		wg.Go(func() { _ = run(ctx) }) // the error of a killed process has no meaning
	}
	killed := p.killer.killed
	wg.Go(func() {
		select {
		case <-killed:
			cancel()
		case <-ctx.Done():
		}
	})
	p.end = sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// crashAfter kills the program after n further writes.
func (p *program) crashAfter(n int) {
	p.killer.mu.Lock()
	defer p.killer.mu.Unlock()
	p.killer.left = n
}

// isSpared cancels the pending kill. It returns false if the program is already dead. It waits for
// the write in progress, which may be the last one.
func (p *program) isSpared() bool {
	p.killer.mu.Lock()
	defer p.killer.mu.Unlock()
	p.killer.left = 0
	return !p.killer.dead()
}

// restart restarts the program.
func (w *modelEnv) restart(p *program) {
	w.t.Helper()
	p.end()
	w.must(p.start())
}

func (w *modelEnv) startOperator() error {
	p := w.operator
	o := w.env.operator(w.config(p))
	o.Now = func() time.Time { return w.clock(p) }
	o.Log = slog.New(slog.DiscardHandler)
	p.ready = o.Synced
	p.live(o.Run)
	return nil
}

// startAccess does the setup of `tailplaned access`, without the tailnet.
func (w *modelEnv) startAccess() error {
	p := w.access
	s, err := NewStore(w.config(p), w.ns, w.env.tokenRules(), func() time.Time { return w.clock(p) })
	if err != nil {
		return err
	}
	now := func() time.Time { return w.clock(p) }
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Roles: w.rules.Roles, Min: w.rules.Min, Max: w.rules.Max, Reserved: w.rules.Reserved}
	service := &signin.Service{Store: s, Prefix: "tka-", MaxPerLogin: 10, RetryAfter: time.Second, MaxWait: 10 * time.Second, Now: now,
		Cluster: signin.ClusterInfo{Name: "east", ServerURL: w.cluster.Server, CAData: w.cluster.CA}}
	front := &httpapi.Server{
		Names: func() []string { return []string{"tka"} },
		Identify: func(r *http.Request) (access.Caller, error) {
			for _, x := range w.people {
				if x.owner.DeviceID == r.Header.Get("Device") {
					return w.caller(x), nil
				}
			}
			return access.Caller{}, problem.New(problem.NoIdentity, "Nobody.")
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(audit.Entry) error { return nil },
		Log:    testLog(w.t), Now: now,
	}
	guard := &signin.Guard{
		Store: s, Policy: policy, Interval: time.Second, Log: slog.New(slog.DiscardHandler), Now: now,
		Report: func(signin.Signin, signin.CheckResult) {}, Tailnet: func() string { return "example.com" },
		Changed: func() <-chan struct{} { w.mu.Lock(); defer w.mu.Unlock(); return w.changed },
		Devices: func(_ context.Context, ids ...string) (map[string]access.Caller, error) {
			found := map[string]access.Caller{}
			for _, x := range w.people {
				if slices.Contains(ids, x.owner.DeviceID) {
					found[x.owner.DeviceID] = w.caller(x)
				}
			}
			return found, nil
		},
	}
	p.handler, p.ready = front.Handler(service.Routes()...), s.Synced
	p.live(s.Run, guard.Run)
	return nil
}

func (w *modelEnv) caller(x *person) access.Caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	return access.Caller{Login: access.Login(x.owner.Login), UserID: x.owner.UserID, DisplayName: x.owner.DisplayName, Tailnet: x.owner.Tailnet, Via: access.ViaTailnet,
		Device: access.Device{ID: x.owner.DeviceID, Name: x.owner.DeviceName}, Rules: x.grants}
}

// A reply is the response that a caller receives. heard is false if the server was killed before
// the response.
type reply struct {
	receivedAt bool
	status     int
	header     http.Header
	body       []byte
	code       problem.Code
}

func (r reply) String() string {
	switch {
	case !r.receivedAt:
		return "nothing"
	case r.code != "":
		return fmt.Sprintf("%d %s", r.status, bytes.TrimSpace(r.body))
	}
	return fmt.Sprint(r.status)
}

// request sends a request as x. Several goroutines may call it.
func (w *modelEnv) request(x *person, op httpapi.Declaration, query string, body any) (out reply) {
	method, path, _ := strings.Cut(op.Pattern, " ")
	text := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return reply{receivedAt: true, code: problem.Internal, body: []byte(err.Error())}
		}
		text = string(b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, method, path+query, strings.NewReader(text))
	req.Host = "tka"
	req.Header.Set("Device", x.owner.DeviceID)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	killer, rec := w.access.killer, httptest.NewRecorder()
	if killer.dead() {
		return reply{}
	}
	w.access.handler.ServeHTTP(rec, req)
	if killer.dead() {
		return reply{}
	}
	out = reply{receivedAt: true, status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
	if rec.Code >= 300 || rec.Code == http.StatusAccepted {
		var p problem.Error
		if err := json.Unmarshal(out.body, &p); err == nil {
			out.code = p.Code
		}
	}
	return out
}

// grant returns one rule for a role.
func grant(role string, period time.Duration, namespaces ...string) []json.RawMessage {
	rule := map[string]any{"role": role, "period": period.String()}
	if len(namespaces) > 0 {
		rule["namespaces"] = namespaces
	}
	b, err := json.Marshal(rule)
	if err != nil {
		panic(err)
	}
	return []json.RawMessage{b}
}
