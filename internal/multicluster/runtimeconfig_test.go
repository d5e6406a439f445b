package multicluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// testCA returns a CA certificate for a cluster.
func testCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().AddDate(200, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// testToken returns an unsigned JWT for an audience.
func testToken(audience string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"none"}`) + "." + part(`{"aud":["`+audience+`"]}`) + "." + part("x")
}

// configEnv holds the files of a pod.
type configEnv struct {
	*testing.T
	dir    string
	loader *ConfigLoader
	log    *bytes.Buffer
}

func (p *configEnv) path(name string) string { return filepath.Join(p.dir, name) }

func (p *configEnv) write(name, content string) {
	p.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.Fatal(err)
	}
	// The kubelet also replaces a file atomically. Two versions with one length and one modification time
	// still differ.
	tmp := p.path(name) + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		p.Fatal(err)
	}
	if err := os.Rename(tmp, p.path(name)); err != nil {
		p.Fatal(err)
	}
}

func newConfigEnv(t *testing.T) *configEnv {
	t.Helper()
	p := &configEnv{T: t, dir: t.TempDir(), log: new(bytes.Buffer)}
	ca := string(testCA(t))
	p.write("account/ca.crt", ca)
	p.write("account/token", testToken("https://kubernetes.default.svc"))
	p.write("credentials/east/server", "https://east.example:6443")
	p.write("credentials/east/ca.crt", ca)
	p.write("credentials/east/token", "east-token-CANARY")
	p.write("credentials/west/ca.crt", ca)
	p.write("audiences/west/token", testToken("west"))
	p.loader = &ConfigLoader{
		File: p.path("config/config.yaml"), Credentials: p.path("credentials"), Audiences: p.path("audiences"),
		Home:        apiproxy.UpstreamConfig{Servers: []string{"10.0.0.1:443"}, CAFile: p.path("account/ca.crt"), TokenFile: p.path("account/token")},
		CheckUpdate: func(_, _ *config.Config) error { return nil },
		Interval:    2 * time.Second, Log: slog.New(slog.NewTextHandler(p.log, nil)), Now: time.Now,
	}
	return p
}

const threeClusterConfig = `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 7
home: here
clusters:
- {name: here, slot: 0, inCluster: true}
- {name: east, slot: 1, credentials: {secret: east}}
- {name: west, slot: 2, servers: ["https://west.example"], caFile: west/ca.crt, credentials: {audienceToken: true}}
`

func (p *configEnv) names() string {
	var names []string
	for _, c := range p.loader.Current().Upstreams() {
		names = append(names, c.Name+"="+strings.Join(c.Servers, ","))
	}
	return strings.Join(names, " ")
}

func TestNoConfigFile(t *testing.T) {
	p := newConfigEnv(t)
	if err := p.loader.Load(); err != nil {
		t.Fatal(err)
	}
	if got := p.names(); got != "home=10.0.0.1:443" {
		t.Error(got)
	}
}

func TestClusters(t *testing.T) {
	p := newConfigEnv(t)
	p.write("config/config.yaml", threeClusterConfig)
	if err := p.loader.Load(); err != nil {
		t.Fatal(err)
	}
	if got, want := p.names(), "here=10.0.0.1:443 east=east.example:6443 west=west.example:443"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, c := range p.loader.Current().Upstreams() {
		if err := c.CheckCredential(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if p.loader.Current().Upstream("north") != nil {
		t.Error("a cluster that does not exist")
	}
}

// AD-08: a token that is valid for home is not sent to another cluster. A Secret that names another server
// after it was loaded gets no token sent there.
func TestCredentialsAreBoundToServers(t *testing.T) {
	p := newConfigEnv(t)
	p.write("config/config.yaml", threeClusterConfig)
	if err := p.loader.Load(); err != nil {
		t.Fatal(err)
	}
	r := p.loader.Current()
	p.write("audiences/west/token", testToken("https://kubernetes.default.svc"))
	if err := r.Upstream("west").CheckCredential(); err == nil || !strings.Contains(err.Error(), "home token") {
		t.Errorf("the home audience: %v", err)
	}
	p.write("credentials/east/token", "another-token")
	if err := r.Upstream("east").CheckCredential(); err != nil {
		t.Errorf("another token: %v", err)
	}
	p.write("credentials/east/server", "https://evil.example:6443")
	if err := r.Upstream("east").CheckCredential(); err == nil || !strings.Contains(err.Error(), "the server in the Secret changed") {
		t.Errorf("another server: %v", err)
	}
	p.write("credentials/east/server", "https://east.example:6443")
	p.write("credentials/east/exec", "sh")
	if err := r.Upstream("east").CheckCredential(); err == nil {
		t.Error("a key that is not part of a credential")
	}
	if strings.Contains(p.log.String(), "CANARY") {
		t.Error("a token is in the log")
	}
}

func TestRefused(t *testing.T) {
	for why, change := range map[string]func(p *configEnv){
		"not a document": func(p *configEnv) { p.write("config/config.yaml", "x: 1") },
		"no such Secret": func(p *configEnv) {
			p.write("config/config.yaml", strings.Replace(threeClusterConfig, "secret: east", "secret: north", 1))
		},
		"a Secret without CA":   func(p *configEnv) { os.Remove(p.path("credentials/east/ca.crt")) },
		"a loopback server":     func(p *configEnv) { p.write("credentials/east/server", "https://127.0.0.1:6443") },
		"a folder for a file":   func(p *configEnv) { os.Mkdir(p.path("credentials/east/namespace"), 0o755) },
		"a file beyond a bound": func(p *configEnv) { p.write("credentials/east/namespace", strings.Repeat("x", 2<<20)) },
	} {
		t.Run(why, func(t *testing.T) {
			p := newConfigEnv(t)
			p.write("config/config.yaml", threeClusterConfig)
			if err := p.loader.Load(); err != nil {
				t.Fatal(err)
			}
			good := p.loader.Current()
			change(p)
			if err := p.loader.Load(); err == nil || p.loader.Err() == nil {
				t.Error("the configuration is accepted")
			}
			if p.loader.Current() != good {
				t.Error("the last good configuration is lost")
			}
			first := newConfigEnv(t)
			first.write("config/config.yaml", threeClusterConfig)
			change(first)
			if err := first.loader.Load(); err == nil || first.loader.Current() != nil {
				t.Error("accepted at the first load")
			}
		})
	}
}

// ADP-19: Run reloads changed files and keeps unchanged clusters. If a reload fails, the last good
// configuration remains and Run retries.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newConfigEnv(t)
		p.write("config/config.yaml", threeClusterConfig)
		loads, refuse := 0, new(atomic.Bool)
		p.loader.OnLoad = func(error) { loads++ }
		p.loader.CheckUpdate = func(_, _ *config.Config) error {
			if refuse.Load() {
				return errors.New("the epoch must be raised")
			}
			return nil
		}
		var changes []string
		p.loader.OnChange = func(old, next *RuntimeConfig) error {
			changes = append(changes, fmt.Sprint(old != nil, next.Config().Epoch))
			return nil
		}
		if err := p.loader.Load(); err != nil {
			t.Fatal(err)
		}
		go p.loader.Run(t.Context())
		wait := func() { time.Sleep(2 * time.Second); synctest.Wait() }
		wait()
		if loads != 1 {
			t.Errorf("%d loads without a change", loads)
		}
		east := p.loader.Current().Upstream("east")

		p.write("config/config.yaml", strings.Replace(threeClusterConfig, "epoch: 7", "epoch: 8", 1))
		wait()
		switch r := p.loader.Current(); {
		case r.Config().Epoch != 8:
			t.Errorf("epoch: r.Config().Epoch = %v, want 8; %v", r.Config().Epoch, r.Upstream("east") == east)
		case r.Upstream("east") != east:
			t.Errorf(`epoch: r.Upstream("east") != east; %d, %v, loads = %d`, r.Config().Epoch, r.Upstream("east") == east, loads)
		case loads != 2:
			t.Errorf("epoch: loads = %v, want 2; %v", loads, r.Upstream("east") == east)
		}
		wait()
		if loads != 2 {
			t.Errorf("%d loads of the same configuration", loads)
		}

		p.write("credentials/east/server", "https://other.example:6443")
		wait()
		if r := p.loader.Current(); r.Upstream("east") == east || r.Upstream("east").Servers[0] != "other.example:6443" {
			t.Error("the server from the Secret is not used")
		}

		p.write("config/config.yaml", "nonsense")
		wait()
		wait()
		if err := p.loader.Err(); err == nil || p.loader.Current().Config().Epoch != 8 {
			t.Errorf("nonsense: %v", err)
		}
		if n := strings.Count(p.log.String(), "the configuration is rejected"); n != 1 {
			t.Errorf("said %d times", n)
		}
		refuse.Store(true)
		p.write("config/config.yaml", strings.Replace(threeClusterConfig, "epoch: 7", "epoch: 9", 1))
		wait()
		if err := p.loader.Err(); err == nil || !strings.Contains(err.Error(), "epoch must be raised") {
			t.Errorf("refused: %v", err)
		}
		refuse.Store(false)
		wait()
		if err := p.loader.Err(); err != nil || p.loader.Current().Config().Epoch != 9 {
			t.Errorf("in the end: %v", err)
		}
		if got := fmt.Sprint(changes); got != "[false 7 true 8 true 8 true 9]" {
			t.Errorf("changes %s", got)
		}
	})
}

// TestConfigHistory checks section 7: earlier configurations are known after a restart of the container, and a moved
// collection is distinguished from others.
func TestConfigHistory(t *testing.T) {
	p := newConfigEnv(t)
	open := func() *ConfigHistory {
		t.Helper()
		history, err := OpenConfigHistory(p.path("state/past"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return history
	}
	history := open()
	take := func(config string) *RuntimeConfig {
		t.Helper()
		if config != "" {
			p.write("config/config.yaml", config)
		}
		if err := p.loader.Load(); err != nil {
			t.Fatal(err)
		}
		next, err := history.Add(p.loader.Current())
		if err != nil {
			t.Fatal(err)
		}
		history = next
		return p.loader.Current()
	}
	moved := func(r *RuntimeConfig, namespace string) bool {
		req := &apiproxy.Request{Verb: "list", Version: "v1", Resource: "configmaps", Namespace: namespace}
		return open().Moved(r.Table, req, RouteInput{})
	}
	if r := take(""); moved(r, "a") {
		t.Error("at first")
	}
	rules := threeClusterConfig + "rules:\n- {name: a, match: {namespaces: [a]}, target: {cluster: east}}\n"
	r := take(rules)
	if !moved(r, "a") {
		t.Error("a was served by home")
	}
	if moved(r, "b") {
		t.Error("b stayed at home")
	}
	if r := take(strings.Replace(threeClusterConfig, "epoch: 7", "epoch: 8", 1)); !moved(r, "a") || moved(r, "b") {
		t.Error("a is back at home, and its clients may have positions of east")
	}
	for i := range maxHistory {
		r = take(strings.Replace(threeClusterConfig, "epoch: 7", fmt.Sprint("epoch: ", 10+i), 1))
	}
	if !moved(r, "b") {
		t.Error("a move before the kept history is not reported")
	}
	if err := os.WriteFile(p.path("state/past/0.yaml"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !open().Incomplete {
		t.Error("an unreadable history entry is not reported")
	}
}

// TestProbe checks that a used cluster is probed, and that its health is known without another request.
func TestProbe(t *testing.T) {
	p := newConfigEnv(t)
	asked := make(chan string, 100)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path:
		default:
		}
	}))
	defer srv.Close()
	p.write("account/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	p.write("config/config.yaml", strings.Replace(threeClusterConfig, "inCluster: true", "inCluster: true, health: {path: /livez, interval: 1s}", 1))
	p.loader.Home.Servers = []string{srv.Listener.Addr().String()}
	var probed, dialled atomic.Int64
	p.loader.OnProbe = func(cluster string, took time.Duration) {
		if cluster == "here" && took > 0 {
			probed.Add(1)
		}
	}
	p.loader.Dial = func(cluster string, dial apiproxy.Dialer) apiproxy.Dialer {
		if cluster == "here" {
			dialled.Add(1)
		}
		return dial
	}
	if err := p.loader.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.loader.RunProbes(ctx) }()
	use := func() {
		t.Helper()
		res, err := p.loader.Current().Upstream("here").Get(ctx, "/version", http.Header{})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	use()
	limit, again := time.After(time.Minute), time.NewTicker(8*time.Second)
	defer again.Stop()
	for path := ""; path != "/livez"; {
		select {
		case path = <-asked:
		case <-again.C:
			use() // on a machine that was suspended it would count as unused
		case <-limit:
			t.Fatal("the cluster received no request")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if dialled.Load() == 0 || probed.Load() == 0 && p.loader.Current().Upstream("here").Health().State != apiproxy.StateHealthy {
		t.Errorf("%d questions, %d dialers", probed.Load(), dialled.Load())
	}
}
