package adapter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// A gate is a proxy before a server that can be closed.
type gate struct {
	net.Listener
	to    string
	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
}

func newGate(t *testing.T, server string) *gate {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{to: u.Host, conns: map[net.Conn]bool{}}
	if g.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.set(true); g.Close() })
	go func() {
		for {
			c, err := g.Accept()
			if err != nil {
				return
			}
			go g.carry(c)
		}
	}()
	return g
}

// carry forwards a connection, or closes it at once while the gate is closed.
func (g *gate) carry(c net.Conn) {
	defer c.Close()
	there, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer there.Close()
	if !g.note(c) {
		return
	}
	defer g.forget(c)
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{c, there}, {there, c}} {
		go func() { io.Copy(way[0], way[1]); ended <- struct{}{} }()
	}
	<-ended
}

func (g *gate) note(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = true
	return !g.shut
}

func (g *gate) forget(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// set opens the gate, or closes it together with its open connections.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for c := range g.conns {
		if shut {
			c.Close()
		}
	}
}

// gated starts another adapter for the same clusters, with a gate before west.
func (s *clustersEnv) gated(t *testing.T, config string) (*clustersEnv, *gate) {
	t.Helper()
	g := newGate(t, s.options.Secrets["west"]["server"])
	o := s.options
	o.Config, o.Secrets = config, maps.Clone(o.Secrets)
	o.Secrets["west"] = maps.Clone(o.Secrets["west"])
	o.Secrets["west"]["server"] = "https://" + g.Addr().String()
	return s.startOwn(t, o), g
}

// raw requests a path from the adapter, and returns the response and its body.
func (s *clustersEnv) raw(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	conf := config(t, s.adapter)
	client, err := rest.HTTPClientFor(conf)
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = limit
	res, err := client.Get(conf.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// adminPort requests a path from the admin port, without credentials.
func (s *clustersEnv) adminPort(t *testing.T, path string) string {
	t.Helper()
	return s.adminPortAs(t, "", path)
}

// adminPortAs requests a path from the admin port with a token, if it is not empty. It uses a new connection.
func (s *clustersEnv) adminPortAs(t *testing.T, token, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.adapter.Admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// value returns the value of one metric series, or "" if it does not exist.
func (s *clustersEnv) value(t *testing.T, series string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(s.adminPort(t, "/metrics"))
	if m == nil {
		return ""
	}
	return m[1]
}

const shopList = "/api/v1/namespaces/shop/configmaps?labelSelector=away%3Dyes"

func (s *clustersEnv) makeAway(t *testing.T, cluster, name string) {
	t.Helper()
	s.makeLabelled(t, cluster, name, map[string]string{"away": "yes"})
}

// ADP-18, AD-06: while a member is unreachable, a list fails as a whole and names the member. The adapter reports the
// member as unhealthy in every health report, and detects without help that it is back.
func TestSeveral_Health(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.makeAway(t, "east", "of-east")
	s.makeAway(t, "west", "of-west")
	own, gate := s.gated(t, strings.NewReplacer("slot: 2,", "slot: 2, health: {path: /livez, interval: 30s, timeout: 20s, failures: 2, successes: 2},").Replace(severalConfig))
	both := func(b string) bool { return strings.Contains(b, `"of-east"`) && strings.Contains(b, `"of-west"`) }
	switch res, b := own.raw(t, shopList); {
	case res.StatusCode != 200:
		t.Fatalf("all clusters are up: res.StatusCode = %v, want 200", res.StatusCode)
	case !both(b):
		t.Fatalf("all clusters are up: both(b) is false; %s, %v, %s", res.Status, res.Header, b)
	case res.Header.Get("Warning") != "":
		t.Fatalf(`all clusters are up: res.Header.Get("Warning") != ""; %s, %v, %s`, res.Status, res.Header, b)
	}
	eventually(t, "west is healthy", func() bool { return strings.Contains(own.adminPort(t, "/readyz?verbose"), "cluster west: healthy") })

	gate.set(true)
	for range 3 {
		for _, path := range []string{shopList, shopList + "&limit=500"} {
			if res, b := own.raw(t, path); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(b, "cluster west") {
				t.Errorf("west is down: %s: %s %v %s", path, res.Status, res.Header, b)
			}
		}
	}
	eventually(t, "west is shown as unhealthy", func() bool {
		return strings.Contains(own.adminPort(t, "/readyz?verbose"), "cluster west: unhealthy") && own.value(t, `mca_cluster_healthy{cluster="west"}`) == "0"
	})

	gate.set(false)
	eventually(t, "west is found to be back, without a request", func() bool {
		return strings.Contains(own.adminPort(t, "/readyz?verbose"), "cluster west: healthy") && own.value(t, `mca_cluster_healthy{cluster="west"}`) == "1"
	})
	if v := own.value(t, `mca_cluster_probe_duration_seconds_count{cluster="west"}`); v == "" || v == "0" {
		t.Errorf("the probe counts are %q", v)
	}
	switch res, b := own.raw(t, shopList); {
	case res.StatusCode != 200:
		t.Errorf("west is back: res.StatusCode = %v, want 200", res.StatusCode)
	case !both(b):
		t.Errorf("west is back: both(b) is false; %s, %v, %s", res.Status, res.Header, b)
	case res.Header.Get("Warning") != "":
		t.Errorf(`west is back: res.Header.Get("Warning") != ""; %s, %v, %s`, res.Status, res.Header, b)
	}
}

// Section 8: a merged watch over WebSocket sends one message for each event.
func TestSeveral_WebSocket(t *testing.T) {
	s := three(t)
	s.clean(t)
	authority, err := os.ReadFile(filepath.Join(s.adapter.Share, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(s.adapter.Share, "token"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, res, err := websocket.Dial(ctx, "wss://"+s.adapter.Address+shopList+"&watch=1&allowWatchBookmarks=true", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
		HTTPHeader: http.Header{"Authorization": {"Bearer " + string(token)}}})
	if err != nil || res.Header.Get("Mca-Cluster") != "merged" {
		t.Fatalf("%v, %v", res, err)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	message := func() (kind, name, rv string) {
		t.Helper()
		form, b, err := c.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var e struct {
			Type   string
			Object metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(b, &e); err != nil || form != websocket.MessageText {
			t.Fatalf("a message of %v: %q, %v", form, b, err)
		}
		return e.Type, e.Object.Name, e.Object.ResourceVersion
	}
	s.makeAway(t, "east", "of-east")
	s.makeAway(t, "west", "of-west")
	added, vector := map[string]bool{}, ""
	for !added["of-east"] || !added["of-west"] || vector == "" {
		kind, name, rv := message()
		switch kind {
		case "ADDED":
			added[name] = true
		case "BOOKMARK":
			vector = rv
		default:
			t.Fatalf("%s %s", kind, name)
		}
	}
	if len(vector) != 11+20*3 {
		t.Errorf("the position is %q", vector)
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil { // the remaining messages, and then the answer
		t.Errorf("the end is not answered: %v", err)
	}
	eventually(t, "the stream is no longer counted", func() bool {
		v := s.value(t, `mca_streams{cluster="merged",kind="watch"}`)
		return v != "" && s.value(t, `mca_watch_events_total{cluster="west"}`) != ""
	})
}

// ADP-21, AU-06: the metrics of a running adapter are valid, and requests of strangers create no series.
func TestSeveral_Metrics(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.makeAway(t, "east", "of-east")
	own := s.beside(t, severalConfig)
	own.raw(t, shopList)
	own.raw(t, "/apis")
	own.raw(t, "/apis")
	own.raw(t, "/openapi/v3")
	own.raw(t, "/api/v1/namespaces/shop/configmaps/of-east")
	own.raw(t, "/api/v1/namespaces/shop/configmaps/of-nobody")
	own.raw(t, "/api/v1/namespaces/shop/configmaps?watch=1&resourceVersion=77&timeoutSeconds=5")
	own.raw(t, "/api/v1/namespaces/shop/configmaps?watch=1&allowWatchBookmarks=true&timeoutSeconds=1")
	text := own.adminPort(t, "/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "mca_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, series := range []string{
		`mca_watch_events_total{cluster="east"}`, `mca_watch_expired_total{cluster="merged",reason="unknown"}`, `mca_bookmarks_total{reason="end"}`,
		`mca_upstream_connects_total{cluster="west",result="ok"}`, `mca_upstream_connections{cluster="here",state="open"}`,
		`mca_cache_requests_total{cache="discovery",result="hit"}`, `mca_cache_requests_total{cache="discovery",result="miss"}`,
		`mca_cache_requests_total{cache="openapi",result="miss"}`, `mca_cache_requests_total{cache="owner",result="hit"}`, `mca_cache_requests_total{cache="owner",result="miss"}`,
		`mca_trace_spans_total{result="sent"}`, `mca_owner_entries`, `mca_certificate_expiry_timestamp_seconds`,
	} {
		if own.value(t, series) == "" {
			t.Errorf("there is no %s", series)
		}
	}
	before := strings.Count(text, "\nmca_")
	for i := range 300 {
		own.raw(t, fmt.Sprintf("/apis/g%d.example.com/v1/namespaces/n%d/r%d/x%d", rand.Int64(), rand.Int64(), rand.Int64(), i))
	}
	// "other" and its label values are new, each once.
	if after := strings.Count(own.adminPort(t, "/metrics"), "\nmca_"); after > before+40 {
		t.Errorf("%d series after 300 requests for missing resources, and %d before", after, before)
	}
}

// ADP-30: a command checks whether the clusters of a configuration can be served, before the configuration is used.
func TestSeveral_CheckClusters(t *testing.T) {
	s := three(t)
	bin, err := buildcache.Lookup("mca")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := strings.Replace(severalConfig, "resources: [configmaps]", "resources: [configmaps, unicorns]", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := url.Parse(s.options.Server)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		c := exec.CommandContext(ctx, bin, append([]string{"validate", "--check-clusters", "--serviceaccount-dir", s.adapter.Account}, append(args, file)...)...)
		c.Env = []string{"KUBERNETES_SERVICE_HOST=" + here.Hostname(), "KUBERNETES_SERVICE_PORT=" + here.Port()}
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	out, exit := run("--credentials-dir", filepath.Dir(s.adapter.Secret("east")))
	for _, want := range []string{`cluster here: ready, "v1.`, `cluster east: ready, "v1.`, `cluster west: ready, "v1.`, "cluster west: has no unicorns (a warning)"} {
		if !strings.Contains(out, want) {
			t.Errorf("not %q", want)
		}
	}
	if exit != 0 || strings.Contains(out, "here: has no") {
		t.Errorf("exit %d: %s", exit, out)
	}
	if out, exit := run("--credentials-dir", t.TempDir()); exit != 5 || !strings.Contains(out, "the check of 2 of 3 clusters failed") {
		t.Errorf("without credentials: exit %d: %s", exit, out)
	}
}
