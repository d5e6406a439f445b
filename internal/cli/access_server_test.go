package cli_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/oidctest"
)

// The server side for CLI tests: the real HTTP server and service, with a store in memory that provisions sign-ins, and a tailnet with one
// caller.

// signinStore is a signin.Store.
type signinStore struct {
	ready time.Duration // from the request until provisioned; negative: never
	fails string        // reason for refusing to provision

	mu      sync.Mutex
	signins map[string]signin.Signin
	changed chan struct{} // closed and replaced at each change
	next    int
	tokens  int
}

func newSigninStore(ready time.Duration) *signinStore {
	return &signinStore{ready: ready, signins: map[string]signin.Signin{}, changed: make(chan struct{})}
}

// update runs f under the lock and wakes waiting callers.
func (m *signinStore) update(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := f()
	if err == nil {
		close(m.changed)
		m.changed = make(chan struct{})
	}
	return err
}

func (m *signinStore) store(s *signin.Signin) {
	m.next++
	s.Version = strconv.Itoa(m.next)
	s.Generation++
	m.signins[s.Name] = *s
	if m.ready < 0 {
		return
	}
	name, uid, generation := s.Name, s.UID, s.Generation
	provision := func() error {
		s, there := m.signins[name]
		if !there || s.UID != uid || s.Generation != generation {
			return signin.ErrConflict
		}
		s.ObservedGeneration, s.Phase = generation, signin.PhaseReady
		s.ValidUntil, s.Bound = s.AskedAt.Add(s.Period), s.Binds
		if m.fails != "" {
			s.Phase, s.Reason, s.Message = signin.PhaseRefused, m.fails, "there is no such role"
		}
		m.signins[name] = s
		return nil
	}
	if m.ready == 0 {
		provision()
		return
	}
	time.AfterFunc(m.ready, func() { m.update(provision) })
}

func (m *signinStore) Get(_ context.Context, name string) (signin.Signin, error) {
	if s, ok := m.GetCached(name); ok {
		return s, nil
	}
	return signin.Signin{}, signin.ErrNotFound
}

func (m *signinStore) GetCached(name string) (signin.Signin, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.signins[name]
	return s, ok
}

func (m *signinStore) ListCached(login string) (all []signin.Signin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.signins {
		if s.Owner.Login == login {
			all = append(all, s)
		}
	}
	return all
}

func (m *signinStore) Create(_ context.Context, s signin.Signin) (signin.Signin, error) {
	err := m.update(func() error {
		if _, there := m.signins[s.Name]; there {
			return signin.ErrExists
		}
		s.UID, s.Created, s.Phase = "uid-"+strconv.Itoa(m.next), time.Now(), signin.PhasePending
		m.store(&s)
		s = m.signins[s.Name]
		return nil
	})
	return s, err
}

func (m *signinStore) Extend(_ context.Context, s signin.Signin) (signin.Signin, error) {
	err := m.update(func() error {
		have, there := m.signins[s.Name]
		switch {
		case !there:
			return signin.ErrNotFound
		case have.Version != s.Version:
			return signin.ErrConflict
		}
		m.store(&s)
		s = m.signins[s.Name]
		return nil
	})
	return s, err
}

func (m *signinStore) Delete(_ context.Context, s signin.Signin) error {
	return m.update(func() error {
		if have, there := m.signins[s.Name]; !there || have.UID != s.UID {
			return signin.ErrNotFound
		}
		delete(m.signins, s.Name)
		return nil
	})
}

func (m *signinStore) Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error {
	for {
		m.mu.Lock()
		s, there := m.signins[name]
		changed := m.changed
		m.mu.Unlock()
		if done(s, there) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *signinStore) IssueToken(_ context.Context, s signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens++
	return secret.New(fmt.Sprintf("%s-%d", canary, m.tokens)), time.Now().Add(life), nil
}

// canary is the prefix of every token, so that a test can find a leaked token.
const canary = "eyJCANARY.secret"

// An accessServer is an access server for tests.
type accessServer struct {
	store   *signinStore
	cluster string
	rules   []string      // of the caller's grants
	period  time.Duration // longest; 0: a day
	server  string        // API server; "": a nonexistent one
	ca      []byte
	key     httpapi.Key                         // zero: a generated one
	keyless bool                                // it sends no proof
	roles   map[access.Role][]signin.PolicyRule // of the cluster
	allowed []access.Role                       // signin.roles; nil: view and edit
	lacks   []access.Verb                       // operations of an older version
	members *gossip.Members                     // clusters that it knows; nil: a version without discovery
	stop    func()                              // in scripts
	names   []string                            // of the server, besides those of this machine
	servers []string                            // URLs of the cluster's servers that it lists; nil: an old version
	issuer  *oidctest.Issuer                    // whose tokens it accepts; nil: none
	tagged  bool                                // the machine is a tagged node
	modes   []signin.Mode                       // that the cluster offers; nil: an old version
	proxies []signin.ProxyServer                // of the cluster

	other    atomic.Bool // the machine is bob's node, and not alice's
	mu       sync.Mutex
	requests []string // "POST /api/v1alpha1/login 202"
	handler  http.Handler
}

func (d *accessServer) start() {
	caller := access.Caller{Login: "alice@example.com", UserID: "u1", Device: access.Device{ID: "n1", Name: "alice-laptop.example.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range d.rules {
		caller.Rules = append(caller.Rules, json.RawMessage(r))
	}
	longest := d.period
	if longest == 0 {
		longest = 24 * time.Hour
	}
	if d.allowed == nil {
		d.allowed = []access.Role{"view", "edit"}
	}
	if d.tagged {
		caller.Login, caller.Tags = "", []access.Tag{"tag:ci"}
	}
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Roles: d.allowed, Min: access.MinPeriod, Max: longest}
	httpServer := &httpapi.Server{
		Names: func() []string { return append([]string{"127.0.0.1", "127.0.0.2", "localhost"}, d.names...) },
		Identify: func(*http.Request) (access.Caller, error) {
			c := caller
			if d.other.Load() {
				c.Login, c.UserID, c.Device = "bob@example.com", "u2", access.Device{ID: "n2", Name: "bob-laptop.example.ts.net"}
			}
			return c, nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(audit.Entry) error { return nil },
		Log:    slog.New(slog.DiscardHandler),
		Now:    time.Now,
	}
	if d.server == "" {
		d.server, d.ca = "https://k8s."+d.cluster+".example:6443", testCA()
	}
	if d.key.Public().IsZero() {
		d.key = keyFor(d.cluster)
	}
	key := func() (httpapi.Key, bool) { return d.key, true }
	if d.keyless {
		key = nil
	}
	httpServer.Key = key
	service := &signin.Service{
		Key:       key,
		RoleRules: func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) { return d.roles[r], nil },
		Store:     d.store, Prefix: "tka-", MaxPerLogin: 10, RetryAfter: time.Second, MaxWait: 30 * time.Second, Now: time.Now,
		Cluster: signin.ClusterInfo{Name: d.cluster, ID: "id-" + d.cluster, ServerURL: d.server, CAData: d.ca,
			Labels: map[string]string{"env": "test"}, Version: "v0.1.0", Modes: d.modes, Proxies: d.proxies},
	}
	d.acceptTokens(&policy, service)
	if d.servers != nil {
		service.Servers = func() []string { return d.servers }
	}
	routes := service.Routes()
	routes = slices.DeleteFunc(routes, func(r httpapi.Route) bool { return slices.Contains(d.lacks, r.Verb) })
	if d.members != nil {
		routes = append(routes, gossip.ServeClusters(func() *gossip.Members {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.members
		}, time.Now, nil))
	}
	d.handler = httpServer.Handler(routes...)
}

// anyToken is a record of used tokens that takes every token.
type anyToken struct{}

func (anyToken) Use(context.Context, access.Token, string) error { return nil }

// acceptTokens lets the service accept the tokens of the issuer, with the name of the cluster as their audience.
func (d *accessServer) acceptTokens(policy *access.Policy, service *signin.Service) {
	if d.issuer == nil {
		return
	}
	verifier, err := identity.NewTokenVerifier([]identity.TokenIssuer{{URL: d.issuer.URL, KeysURL: d.issuer.KeysURL()}}, d.issuer.Client, time.Now)
	if err != nil {
		panic(err)
	}
	policy.Issuers = map[string]string{d.issuer.URL: d.cluster}
	service.Tokens, service.UsedTokens = verifier, anyToken{}
	service.Cluster.OIDC = []signin.AcceptedIssuer{{Issuer: d.issuer.URL, Audience: d.cluster}}
}

// addCluster makes the server at url know members in addition to itself.
func (d *accessServer) addCluster(url string, members ...gossip.Member) {
	self := member(d, url)
	self.Self = true
	known := &gossip.Members{At: time.Now(), List: append([]gossip.Member{self}, members...)}
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.members == nil
	d.members = known
	if first {
		d.start()
	}
}

// member returns the record of a server at url for servers that have met it.
func member(d *accessServer, url string) gossip.Member {
	return gossip.Member{State: gossip.Alive, Verified: true, LastSeen: time.Now().Add(-3 * time.Second), Record: &gossip.Record{Status: gossip.Up, Facts: gossip.Facts{
		ClusterID: "id-" + d.cluster, ClusterName: d.cluster, Node: "n-" + d.cluster, Host: d.cluster + ".example.ts.net", URL: url,
		APIEndpoint: d.server, APIPort: 6443, Labels: map[string]string{"env": "test"}, Key: d.key.Public(), Software: "v0.1.0"}}}
}

const (
	requestMembers  = "GET /api/v1alpha1/memberlist 200"
	requestInfo     = "GET /api/v1alpha1/cluster-info 200"
	requestStatus   = "GET /api/v1alpha1/login 404"
	requestSessions = "GET /api/v1alpha1/sessions 200"
	requestLogin    = "POST /api/v1alpha1/login 202"
	requestConfig   = "GET /api/v1alpha1/kubeconfig 200"
	requestLogout   = "POST /api/v1alpha1/logout 200"
)

// checkRequests checks the requests to the server since the last call.
func (d *accessServer) checkRequests(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if fmt.Sprint(d.requests) != fmt.Sprint(want) {
		t.Errorf("requests:\n%s\nwant:\n%s", strings.Join(d.requests, "\n"), strings.Join(want, "\n"))
	}
	d.requests = nil
}

// keyFor derives a cluster's key from a word.
func keyFor(word string) httpapi.Key {
	seed := sha256.Sum256([]byte(word))
	key, err := httpapi.NewKey(seed[:])
	if err != nil {
		panic(err)
	}
	return key
}

func (d *accessServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &statusRecorder{ResponseWriter: w}
	d.mu.Lock()
	handler := d.handler
	d.mu.Unlock()
	handler.ServeHTTP(rec, r)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, rec.status))
}

func (d *accessServer) received() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.requests...)
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// newAccessServer starts an access server that grants view, for Go tests.
func newAccessServer(t *testing.T, cluster string) (*accessServer, *httptest.Server) {
	t.Helper()
	d := &accessServer{store: newSigninStore(0), cluster: cluster, rules: []string{`{"role":"view","period":"8h"}`}}
	d.start()
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	return d, srv
}

// testCA is a certificate authority that signs nothing.
var testCA = sync.OnceValue(func() []byte {
	ca, _, err := certificate("test CA")
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca})
})

// certificate creates a self-signed certificate for 127.0.0.1 and names.
func certificate(cn string, names ...string) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: names,
	}
	if len(names) > 0 {
		tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	return der, key, err
}
