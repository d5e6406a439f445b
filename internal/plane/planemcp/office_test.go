package planemcp_test

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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planeenroll"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/plane/planejobs"
	"github.com/tailplane/tailplane/internal/plane/planemcp"
	"github.com/tailplane/tailplane/internal/plane/planemetrics"
	"github.com/tailplane/tailplane/internal/problem"
)

// patience bounds every wait of a test.
const patience = 60 * time.Second

// office is the plane's real API and its tools behind a real server on loopback. A header selects the persona that calls.
type office struct {
	*httptest.Server
	board  *plane.Board
	enroll *planeenroll.Desk

	mu      sync.Mutex
	callers map[string]access.Caller
	entries []audit.Entry
	done    []string        // paused and lifted
	seen    []*http.Request // requests before the server handles them
	before  func(http.ResponseWriter, *http.Request) bool
	log     string // of every runner
}

// personaHeader selects the persona at the other end of the connection.
const personaHeader = "Test-Persona"

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Duty: access.Duty{Name: access.PlatformAdmin}}}}

func newOffice(t *testing.T, o planemcp.Options) *office {
	t.Helper()
	of := &office{board: plane.NewBoard(time.Now), callers: personas()}
	desk := &plane.Desk{Board: of.board, Now: time.Now, Version: "v1", Commit: "c0ffee", Ready: func() bool { return true },
		Revoke: func(context.Context, access.Permit, string, string, string, bool) (plane.Revocation, error) {
			return plane.Revocation{}, fmt.Errorf("no tool revokes")
		},
		Exposed: func() []plane.Exposure {
			return []plane.Exposure{{Name: "grafana", Access: "observe.read", Source: "exposure:grafana"}}
		},
		Entries: func(_ context.Context, yield func(plane.Recorded) bool) (int, error) {
			for i, e := range slices.Backward(of.record()) {
				if !yield(plane.Recorded{Entry: e, Seq: uint64(i + 1)}) {
					break
				}
			}
			return 0, nil
		}}
	way := &door.Door{Identify: of.identify, Form: plane.Form(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
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
	fleet := &planefleet.Desk{Plane: desk, Create: of.create, Lift: of.lift}
	changes := changesDesk(desk)
	of.enroll = &planeenroll.Desk{Plane: desk, Changes: changes}
	jobs := &planejobs.Desk{Plane: desk, Events: func(context.Context, string) ([]planejobs.Event, error) { return []planejobs.Event{}, nil },
		Log: func(context.Context, access.Permit, planejobs.Opening) (io.ReadCloser, error) {
			of.mu.Lock()
			defer of.mu.Unlock()
			return io.NopCloser(strings.NewReader(of.log)), nil
		}}
	api := slices.Concat(desk.Routes(), fleet.Routes(), jobs.Routes(), (&planemetrics.Desk{Plane: desk}).Routes(), changes.Routes(), of.enroll.Routes())
	handler := way.Handler(append(slices.Clone(api), planemcp.Route(way, api, o))...)
	of.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of.mu.Lock()
		of.seen = append(of.seen, r.Clone(context.Background()))
		before := of.before
		of.mu.Unlock()
		if before == nil || before(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(of.Close)
	of.fill()
	return of
}

// create and lift store no hold; they record the call.
func (of *office) create(_ context.Context, p access.Permit, d planefleet.Draft, dryRun bool) (planefleet.Hold, bool, error) {
	if err := p.Require(access.HoldsCreate, time.Now()); err != nil {
		return planefleet.Hold{}, false, err
	}
	of.did("pause "+d.Scope.String()+" by "+p.Caller().Identity(), dryRun)
	return planefleet.Hold{ID: d.Name, Name: d.Name, Scope: d.Scope, Mode: d.Mode, Reason: d.Reason, RequestedBy: p.Caller().Identity(), State: planefleet.Applying}, true, nil
}

func (of *office) lift(_ context.Context, p access.Permit, h planefleet.Hold, dryRun bool) error {
	if err := p.Require(access.HoldsLift, time.Now()); err != nil {
		return err
	}
	of.did("lift "+h.Name+" by "+p.Caller().Identity(), dryRun)
	return nil
}

func (of *office) did(what string, dryRun bool) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if !dryRun {
		of.done = append(of.done, what)
	}
}

func (of *office) all() []string {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.done)
}

// given returns arguments with which each tool succeeds.
func given(tool string) map[string]any {
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

func (of *office) identify(r *http.Request) (access.Caller, error) {
	of.mu.Lock()
	defer of.mu.Unlock()
	name := r.Header.Get(personaHeader)
	r.Header.Del(personaHeader)
	c, ok := of.callers[name]
	if !ok {
		return access.Caller{}, problem.New(problem.NoIdentity, "Nobody knows this connection.")
	}
	return c, nil
}

// becomes changes the caller of a persona, as a new tailnet policy would.
func (of *office) becomes(name string, c access.Caller) {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.callers[name] = c
}

func (of *office) record() []audit.Entry {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.entries)
}

func (of *office) stop(before func(http.ResponseWriter, *http.Request) bool) {
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

func (of *office) fill() {
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
		plane.KindPool: {planefleet.Pool{ID: "github/acme/nix", Forge: "github", OrgName: "acme", Name: "nix", State: planefleet.Active},
			planefleet.Pool{ID: "github/globex/nix", Forge: "github", OrgName: "globex", Name: "nix", State: planefleet.Active}},
		plane.KindEnrollment: {planefleet.Enrollment{ID: "acme", Name: "acme", Forge: "github", Phase: "Active", Adopted: []planefleet.Adoption{{Pool: "dind", Namespace: "arc", Workload: "old-set", Hold: "h-acme"}}}, planefleet.Enrollment{ID: "globex", Name: "globex", Forge: "github", Phase: "Active"}},
		plane.KindChange: {planechange.Of(planechange.Kept{Change: gitops.Change{ID: "c1", Ref: gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}, Org: "acme", Version: "v1", Head: "0", DiffOf: "0", Number: 7, State: gitops.StateOpen, Proposer: "amy@acme.dev"}}, time.Now()),
			planechange.Of(planechange.Kept{Change: gitops.Change{ID: "c2", Ref: gitops.Ref{Kind: "RunnerPool", Name: "nix"}, State: gitops.StateOpen, Platform: true, Proposer: "olga@example.com"}}, time.Now())},
		plane.KindRunner: {planejobs.Runner{ID: "runners/acme-nix-a", Namespace: "runners", Name: "acme-nix-a", Pool: "github/acme/nix", OrgName: "acme", State: planejobs.Busy, Job: &planejobs.Job{Name: "build", Repository: "acme/shop"}},
			planejobs.Runner{ID: "runners/globex-nix-a", Namespace: "runners", Name: "globex-nix-a", Pool: "github/globex/nix", OrgName: "globex", State: planejobs.Busy, Job: &planejobs.Job{Name: "globex secret"}}},
		plane.KindForge: {planefleet.Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com", EnrolledThere: []string{"acme", "globex"}}},
		plane.KindHold:  {planefleet.Hold{ID: "h-acme", Name: "h-acme", UID: "u", Scope: planefleet.Scope{Org: "acme", Pool: "nix"}, RequestedBy: "amy@acme.dev", Held: []string{"acme"}}},
	} {
		of.board.Replace(k, "kubernetes", objects)
	}
	of.board.Report(plane.Source{Name: "kubernetes", Status: plane.OK})
}

// as returns an HTTP client of a persona.
func (of *office) as(name string) *http.Client {
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
func (of *office) overHTTP(t *testing.T, name string) *mcp.ClientSession {
	t.Helper()
	return dial(t, &mcp.StreamableClientTransport{Endpoint: of.URL + "/mcp", HTTPClient: of.as(name), MaxRetries: -1})
}

// overLines returns an SDK client of a persona, over a pipe to a server that calls the API over HTTP, like tka mcp.
func (of *office) overLines(t *testing.T, name string, o planemcp.Options) *mcp.ClientSession {
	t.Helper()
	p := of.pipe(t, name, o)
	return dial(t, &mcp.IOTransport{Reader: p.out, Writer: p.in})
}

func dial(t *testing.T, way mcp.Transport) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

func (of *office) pipe(t *testing.T, name string, o planemcp.Options) *pipe {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &pipe{in: inW, out: outR, lines: bufio.NewReader(outR), log: &lockedBuffer{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	client := door.Client{HTTP: of.as(name), Base: of.URL, Open: plane.Open}
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
		case <-time.After(patience):
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

// ask sends one line and returns the response line.
func (p *pipe) ask(t *testing.T, line string) reply {
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
		if g.err != nil || json.Unmarshal(g.line, &r) != nil || r.JSONRPC != "2.0" {
			t.Fatalf("%.200s: %v: %q", line, g.err, g.line)
		}
		return r
	case <-time.After(patience):
		t.Fatalf("%.200s: no answer", line)
		return reply{}
	}
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// post sends one message over HTTP.
func (of *office) post(t *testing.T, name, body string, header ...string) (*http.Response, reply) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	client := door.Client{HTTP: &http.Client{Transport: away{}}, Base: "http://127.0.0.1:1", Open: plane.Open}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The SDK decides how it ends.
	_ = planemcp.Serve(ctx, bytes.NewReader(in), &out, client, planemcp.Options{Timeout: time.Millisecond}, slog.New(slog.DiscardHandler))
	for line := range strings.Lines(out.String()) {
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.JSONRPC != "2.0" || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q is no message", line)
		}
	}
}

type away struct{}

func (away) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("there is nobody")
}
