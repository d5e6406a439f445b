package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	planemcp "github.com/tailplane/tailplane/internal/plane/mcp"
	"github.com/tailplane/tailplane/internal/problem"
)

// waitLimit bounds every wait of a test.
const waitLimit = 60 * time.Second

// env is the plane's real API and its tools behind a real server on loopback. A header selects the persona that calls.
type env struct {
	*httptest.Server
	store  *plane.Store
	enroll *plane.EnrollmentService

	mu       sync.Mutex
	callers  map[string]access.Caller
	entries  []audit.Entry
	calls    []string        // paused and lifted
	requests []*http.Request // requests before the server handles them
	before   func(http.ResponseWriter, *http.Request) bool
	log      string // of every runner
}

// personaHeader selects the persona at the other end of the connection.
const personaHeader = "Test-Persona"

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Role: access.PlaneRole{Name: access.PlatformAdmin}}}}

func newEnv(t *testing.T, o planemcp.Options) *env {
	t.Helper()
	of := &env{store: plane.NewStore(time.Now), callers: personas()}
	service := &plane.Service{Store: of.store, Now: time.Now, Version: "v1", Commit: "c0ffee", Ready: func() bool { return true },
		RevokeSignin: func(context.Context, access.Permit, string, string, string, bool) (plane.Revocation, error) {
			return plane.Revocation{}, fmt.Errorf("no tool revokes")
		},
		Exposures: func() []plane.Exposure {
			return []plane.Exposure{{Name: "grafana", Access: "observe.read", Source: "exposure:grafana"}}
		},
		AuditEntries: func(_ context.Context, yield func(plane.AuditEntry) bool) (int, error) {
			for i, e := range slices.Backward(of.auditEntries()) {
				if !yield(plane.AuditEntry{Entry: e, Seq: uint64(i + 1)}) {
					break
				}
			}
			return 0, nil
		}}
	s := &httpapi.Server{Identify: of.identify, Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Names: func() []string { return []string{"127.0.0.1"} },
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, policy, at)
		},
		Record: func(e audit.Entry) error {
			of.mu.Lock()
			defer of.mu.Unlock()
			of.entries = append(of.entries, e)
			return nil
		}}
	fleet := &plane.FleetService{Plane: service, CreateHold: of.create, LiftHold: of.lift}
	changes := newChangeService(service)
	of.enroll = &plane.EnrollmentService{Plane: service, Changes: changes}
	jobs := &plane.RunnerService{Plane: service, ReadEvents: func(context.Context, string) ([]plane.Event, error) { return []plane.Event{}, nil },
		OpenLog: func(context.Context, access.Permit, plane.LogOptions) (io.ReadCloser, error) {
			of.mu.Lock()
			defer of.mu.Unlock()
			return io.NopCloser(strings.NewReader(of.log)), nil
		}}
	api := slices.Concat(service.Routes(), fleet.Routes(), jobs.Routes(), (&plane.MetricsService{Plane: service}).Routes(), changes.Routes(), of.enroll.Routes())
	handler := s.Handler(append(slices.Clone(api), planemcp.Route(s, api, o))...)
	of.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of.mu.Lock()
		of.requests = append(of.requests, r.Clone(context.Background()))
		before := of.before
		of.mu.Unlock()
		if before == nil || before(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(of.Close)
	of.addObjects()
	return of
}

// create and lift store no hold; they record the call.
func (of *env) create(_ context.Context, p access.Permit, d plane.HoldDraft, dryRun bool) (plane.Hold, bool, error) {
	if err := p.Require(access.HoldsCreate, time.Now()); err != nil {
		return plane.Hold{}, false, err
	}
	of.recordCall("pause "+d.Scope.String()+" by "+p.Caller().Identity(), dryRun)
	return plane.Hold{ID: d.Name, Name: d.Name, Scope: d.Scope, Mode: d.Mode, Reason: d.Reason, RequestedBy: p.Caller().Identity(), State: plane.HoldApplying}, true, nil
}

func (of *env) lift(_ context.Context, p access.Permit, h plane.Hold, dryRun bool) error {
	if err := p.Require(access.HoldsLift, time.Now()); err != nil {
		return err
	}
	of.recordCall("lift "+h.Name+" by "+p.Caller().Identity(), dryRun)
	return nil
}

func (of *env) recordCall(what string, dryRun bool) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if !dryRun {
		of.calls = append(of.calls, what)
	}
}

func (of *env) all() []string {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.calls)
}

// argumentsOf returns arguments with which each tool succeeds.
func argumentsOf(tool string) map[string]any {
	switch tool {
	case "get_runner", "get_runner_jobs", "diagnose_runner", "get_config":
		return map[string]any{"pool": "github/acme/nix"}
	case "get_runner_logs":
		return map[string]any{"runner": "runners/acme-nix-a"}
	case "get_change":
		return map[string]any{"id": "c1"}
	case "preview_change", "propose_change":
		args := map[string]any{"kind": "RunnerEnrollment", "name": "acme", "patch": map[string]any{"owners": []string{"amy@acme.dev"}}}
		if tool == "propose_change" {
			args["reason"] = "test"
		}
		return args
	case "request_enrollment":
		// A dry run, because a real result has a new time each time.
		return map[string]any{"org": "newco", "forge": "github", "pools": "nix", "reason": "test", "dryRun": true}
	case "get_enrollment":
		return map[string]any{"org": "acme"}
	case "pause_runner":
		return map[string]any{"reason": "test", "pool": "github/acme/nix"}
	case "resume_runner":
		return map[string]any{"reason": "test", "hold": "h-acme"}
	}
	return nil
}

func (of *env) identify(r *http.Request) (access.Caller, error) {
	of.mu.Lock()
	defer of.mu.Unlock()
	name := r.Header.Get(personaHeader)
	r.Header.Del(personaHeader)
	c, ok := of.callers[name]
	if !ok {
		return access.Caller{}, problem.New(problem.NoIdentity, "The connection is unknown.")
	}
	return c, nil
}

// setCaller changes the caller of a persona, as a new tailnet policy would.
func (of *env) setCaller(name string, c access.Caller) {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.callers[name] = c
}

func (of *env) auditEntries() []audit.Entry {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.entries)
}

func (of *env) intercept(before func(http.ResponseWriter, *http.Request) bool) {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.before = before
}

func personas() map[string]access.Caller {
	all := map[string]access.Caller{}
	for name, rule := range map[string]string{
		"alice": `{"role":"operator","orgs":["*"]}`, "vic": `{"role":"viewer","orgs":["acme"]}`, "val": `{"role":"viewer","orgs":["*"]}`,
		"oda": `{"role":"org-admin","orgs":["acme"]}`, "pat": "", "mallory": "", "bad": `{"role":"king","orgs":["*"]}`,
	} {
		domain := map[string]string{"pat": "platform.dev"}[name]
		if domain == "" {
			domain = "example.com"
		}
		c := access.Caller{Login: access.Login(name + "@" + domain), UserID: name, Device: access.Device{ID: "n-" + name, Name: name + "-laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
		if rule != "" {
			c.Rules = []json.RawMessage{json.RawMessage(rule)}
		}
		all[name] = c
	}
	return all
}

func (of *env) addObjects() {
	signin := func(login string) plane.Signin {
		return plane.Signin{ID: "tailplane/" + login, Namespace: "tailplane", Name: login, Login: login, Tailnet: "example.com", Device: "d", Role: "view", Namespaces: []string{}, Phase: "Ready",
			Created: time.Now(), Conditions: []plane.Condition{}}
	}
	for k, objects := range map[plane.Kind][]plane.Object{
		plane.KindCluster: {plane.Cluster{ID: "c1", Name: "prod-eu", Endpoint: "https://k8s.example:6443", Health: "Alive", Labels: map[string]string{}, Members: []plane.ClusterMember{}},
			plane.Cluster{ID: "c2", Name: "prod-us", Health: "Dead", Labels: map[string]string{}, Members: []plane.ClusterMember{}}},
		plane.KindSignin:     {signin("alice@example.com"), signin("bob@example.com"), signin("vic@example.com")},
		plane.KindTailnet:    {plane.Tailnet{ID: "t", Name: "t", Conditions: []plane.Condition{}}},
		plane.KindGateway:    {plane.Gateway{ID: "ns/g", Namespace: "ns", Name: "g"}},
		plane.KindRoute:      {plane.Route{ID: "HTTPRoute/ns/r", Resource: "HTTPRoute", Namespace: "ns", Name: "r"}},
		plane.KindProxyGroup: {plane.ProxyGroup{ID: "ns/p", Namespace: "ns", Name: "p", Type: "egress", Wanted: 2, Ready: new(0)}},
		plane.KindAdapter:    {plane.Adapter{ID: "ns/a", Namespace: "ns", Pod: "a"}},
		plane.KindPool: {plane.Pool{ID: "github/acme/nix", Forge: "github", OrgName: "acme", Name: "nix", State: plane.PoolActive},
			plane.Pool{ID: "github/globex/nix", Forge: "github", OrgName: "globex", Name: "nix", State: plane.PoolActive}},
		plane.KindEnrollment: {plane.Enrollment{ID: "acme", Name: "acme", Forge: "github", Phase: "Active", ExternalScaleSets: []plane.Adoption{{Pool: "dind", Namespace: "arc", Workload: "old-set", Hold: "h-acme"}}}, plane.Enrollment{ID: "globex", Name: "globex", Forge: "github", Phase: "Active"}},
		plane.KindChange: {plane.NewChange(plane.StoredChange{Change: gitops.Change{ID: "c1", Ref: gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}, Org: "acme", Version: "v1", Head: "0", DiffOf: "0", Number: 7, State: gitops.StateOpen, Proposer: "amy@acme.dev"}}, time.Now()),
			plane.NewChange(plane.StoredChange{Change: gitops.Change{ID: "c2", Ref: gitops.Ref{Kind: "RunnerPool", Name: "nix"}, State: gitops.StateOpen, Platform: true, Proposer: "olga@example.com"}}, time.Now())},
		plane.KindRunner: {plane.Runner{ID: "runners/acme-nix-a", Namespace: "runners", Name: "acme-nix-a", Pool: "github/acme/nix", OrgName: "acme", State: plane.RunnerBusy, Job: &plane.Job{Name: "build", Repository: "acme/shop"}},
			plane.Runner{ID: "runners/globex-nix-a", Namespace: "runners", Name: "globex-nix-a", Pool: "github/globex/nix", OrgName: "globex", State: plane.RunnerBusy, Job: &plane.Job{Name: "globex secret"}}},
		plane.KindForge: {plane.Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com", EnrolledOrgs: []string{"acme", "globex"}}},
		plane.KindHold:  {plane.Hold{ID: "h-acme", Name: "h-acme", UID: "u", Scope: plane.Scope{Org: "acme", Pool: "nix"}, RequestedBy: "amy@acme.dev", HeldOrgs: []string{"acme"}}},
	} {
		of.store.Replace(k, "kubernetes", objects)
	}
	of.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
}

// as returns an HTTP client of a persona.
func (of *env) as(name string) *http.Client {
	return &http.Client{Transport: persona{name, of.Client().Transport}}
}

type persona struct {
	name string
	next http.RoundTripper
}

func (p persona) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(personaHeader, p.name)
	return p.next.RoundTrip(r)
}

// overHTTP returns an SDK client of a persona, over Streamable HTTP.
func (of *env) overHTTP(t *testing.T, name string) *mcp.ClientSession {
	t.Helper()
	return dial(t, &mcp.StreamableClientTransport{Endpoint: of.URL + "/mcp", HTTPClient: of.as(name), MaxRetries: -1})
}

// overLines returns an SDK client of a persona, over a pipe to a server that calls the API over HTTP, like tka mcp.
func (of *env) overLines(t *testing.T, name string, o planemcp.Options) *mcp.ClientSession {
	t.Helper()
	p := of.pipe(t, name, o)
	return dial(t, &mcp.IOTransport{Reader: p.out, Writer: p.in})
}

func dial(t *testing.T, way mcp.Transport) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, way, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// pipe is a raw client of a server over lines.
type pipe struct {
	in    io.WriteCloser
	out   io.ReadCloser
	lines *bufio.Reader
	log   *lockedBuffer
	ended chan error
}

func (of *env) pipe(t *testing.T, name string, o planemcp.Options) *pipe {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &pipe{in: inW, out: outR, lines: bufio.NewReader(outR), log: &lockedBuffer{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	client := httpapi.Client{HTTP: of.as(name), Base: of.URL, Open: plane.ParseEnvelope}
	go func() {
		err := planemcp.Serve(ctx, inR, outW, client, o, slog.New(slog.NewTextHandler(p.log, nil)))
		_ = outW.Close()
		p.ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		_ = inW.Close()
		_ = outR.Close()
		select {
		case <-p.ended:
		case <-time.After(waitLimit):
			t.Error("the server does not end")
		}
	})
	return p
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// reply is a message of a server as a client decodes it.
type reply struct {
	JSONRPC string
	ID      json.RawMessage
	Method  string
	Result  json.RawMessage
	Error   *struct {
		Code    int
		Message string
	}
}

// do sends one line and returns the response line.
func (p *pipe) do(t *testing.T, line string) reply {
	t.Helper()
	type got struct {
		line []byte
		err  error
	}
	answered := make(chan got, 1)
	go func() {
		if _, err := io.WriteString(p.in, line+"\n"); err != nil {
			answered <- got{nil, err}
			return
		}
		b, err := p.lines.ReadBytes('\n')
		answered <- got{b, err}
	}()
	select {
	case g := <-answered:
		var r reply
		switch {
		case g.err != nil:
			t.Fatalf("g.err: %v", g.err)
		case json.Unmarshal(g.line, &r) != nil:
			t.Fatalf("json.Unmarshal(g.line, &r) is not nil; line = %.200s, %v, %q", line, g.err, g.line)
		case r.JSONRPC != "2.0":
			t.Fatalf("r.JSONRPC = %q, want %q", r.JSONRPC, "2.0")
		}
		return r
	case <-time.After(waitLimit):
		t.Fatalf("%.200s: no answer", line)
		return reply{}
	}
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// post sends one message over HTTP.
func (of *env) post(t *testing.T, name, body string, header ...string) (*http.Response, reply) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, of.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	res, err := of.as(name).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out reply
	_ = json.Unmarshal(b, &out) // an error of the server is an envelope
	return res, out
}

// call calls a tool and returns its result and text.
func call(t *testing.T, s *mcp.ClientSession, name string, args map[string]any) (*mcp.CallToolResult, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(res.Content) != 1 {
		t.Fatalf("%s: %d parts", name, len(res.Content))
	}
	return res, res.Content[0].(*mcp.TextContent).Text
}

func listed(t *testing.T, s *mcp.ClientSession) map[string]*mcp.Tool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	res, err := s.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*mcp.Tool{}
	for _, tool := range res.Tools {
		all[tool.Name] = tool
	}
	return all
}

func names(all map[string]*mcp.Tool) []string { return slices.Sorted(maps.Keys(all)) }

type sessions = *mcp.ClientSession

func params(name string) *mcp.CallToolParams { return &mcp.CallToolParams{Name: name} }

// structure decodes the structured content of a result, and returns its size.
func structure(t *testing.T, from, to any) int {
	t.Helper()
	b, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatal(err)
	}
	return len(b)
}

// speaksOnlyMessages sends in to a server over lines whose plane is down.
func speaksOnlyMessages(t *testing.T, in []byte) {
	t.Helper()
	var out lockedBuffer
	client := httpapi.Client{HTTP: &http.Client{Transport: unreachable{}}, Base: "http://127.0.0.1:1", Open: plane.ParseEnvelope}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	// The SDK decides how it ends.
	_ = planemcp.Serve(ctx, bytes.NewReader(in), &out, client, planemcp.Options{Timeout: time.Millisecond}, slog.New(slog.DiscardHandler))
	for line := range strings.Lines(out.String()) {
		var r reply
		switch err := json.Unmarshal([]byte(line), &r); {
		case err != nil:
			t.Fatal(err)
		case r.JSONRPC != "2.0":
			t.Fatalf("r.JSONRPC = %q, want %q", r.JSONRPC, "2.0")
		case !strings.HasSuffix(line, "\n"):
			t.Fatalf("line = %q does not end with %q", line, "\n")
		}
	}
}

type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("there is no caller")
}
