package tailnettest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"tailscale.com/control/controlhttp/controlhttpserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/rands"

	"github.com/tailplane/tailplane/testkit/tailnettest/acmetest"
	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

// taggedDevices is the one profile that all tagged nodes share, as on a real tailnet.
const taggedDevices tailcfg.UserID = 1 << 40

// user is a person of the tailnet.
type user struct {
	id    tailcfg.UserID
	name  string // unique
	login string // as the netmap shows it; on Headscale two users may have the same one
}

// node is the state of a node in the control server. The lock of control guards it. Slices and Hostinfo are replaced
// and never modified, so map responses may refer to them.
type node struct {
	id       tailcfg.NodeID
	stable   tailcfg.StableNodeID
	key      key.NodePublic
	machine  key.MachinePublic
	disco    key.DiscoPublic
	user     *user // nil for a tagged node
	tags     []string
	name     string // MagicDNS label
	addrs    []netip.Prefix
	eps      []netip.AddrPort
	homeDERP int
	hi       *tailcfg.Hostinfo
	expiry   time.Time // zero: never
	created  time.Time
	lastSeen time.Time
	capVer   tailcfg.CapabilityVersion

	ephemeral bool
	streams   int
	ingress   bool // a Funnel ingress: unsigned, peer API only
	sharee    bool // node of another tailnet
	gone      bool
}

func (n *node) expired(now time.Time) bool { return !n.expiry.IsZero() && n.expiry.Before(now) }

type controlOptions struct {
	url, domain, suffix string
	derpMap             *tailcfg.DERPMap
	derpOnly            bool
	ephemeralDelay      time.Duration
	emails              map[string]string // of users, by name
	logf                func(string, ...any)
}

// control is the control server. It speaks ts2021: Noise over an HTTP upgrade, HTTP/2 inside, JSON of package
// tailcfg.
type control struct {
	controlOptions
	noise   key.MachinePrivate
	mux     *http.ServeMux
	idTail  string // makes stable IDs of several tailnets different
	idBase  tailcfg.NodeID
	ctx     context.Context
	cancel  context.CancelFunc
	serving sync.WaitGroup // Noise connections, which http.Server no longer tracks

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change
	users      []*user
	keys       map[string]*mintedKey // by key ID
	nodes      map[key.NodePublic]*node
	pending    map[string]*pendingLogin // by login page ID
	seq        int
	policy     *tailpolicy.Policy
	services   map[tailcfg.ServiceName]*vipService
	serviceSeq int
	acme       *acmetest.Authority // nil: no HTTPS on this tailnet
	unknown    map[string]int
	closed     bool
	fateless   map[*node]*time.Timer // ephemeral nodes that are offline
	gone       []tailcfg.NodeID      // removed nodes
}

func newControl(o controlOptions, p *tailpolicy.Policy) *control {
	c := &control{
		controlOptions: o, policy: p, noise: key.NewMachine(), changed: make(chan struct{}),
		idTail: strings.ToUpper(rands.HexString(6)), idBase: tailcfg.NodeID(rand.Int32N(1<<30)) << 16,
		keys: map[string]*mintedKey{}, nodes: map[key.NodePublic]*node{}, pending: map[string]*pendingLogin{},
		unknown: map[string]int{}, services: map[tailcfg.ServiceName]*vipService{}, fateless: map[*node]*time.Timer{}, mux: http.NewServeMux(),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mux.HandleFunc("GET /key", c.serveKey)
	c.mux.HandleFunc("/ts2021", c.serveNoise)
	cross := http.NewCrossOriginProtection()
	c.mux.Handle("/login/{id}", cross.Handler(http.HandlerFunc(c.serveLogin)))
	c.mux.HandleFunc("/", c.serveUnknown)
	return c
}

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

// close ends every map stream and Noise connection, also those of other processes.
func (c *control) close() {
	c.mu.Lock()
	c.closed = true
	for _, t := range c.fateless {
		t.Stop()
	}
	c.mu.Unlock()
	c.cancel()
	c.serving.Wait()
}

func (c *control) serveKey(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, &tailcfg.OverTLSPublicKeyResponse{PublicKey: c.noise.Public()})
}

func (c *control) serveUnknown(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.unknown[r.Method+" "+r.URL.Path]++
	c.mu.Unlock()
	http.NotFound(w, r)
}

func (c *control) unknownRequests() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.unknown)
}

func (c *control) serveNoise(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		http.Error(w, "the tailnet has closed", http.StatusServiceUnavailable)
		return
	}
	c.serving.Add(1)
	c.mu.Unlock()
	defer c.serving.Done()

	conn, err := controlhttpserver.AcceptHTTP(c.ctx, w, r, c.noise, nil)
	if err != nil {
		c.logf("noise: %v", err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	peer := conn.Peer()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /machine/register", func(w http.ResponseWriter, r *http.Request) { c.serveRegister(w, r, peer) })
	mux.HandleFunc("POST /machine/map", func(w http.ResponseWriter, r *http.Request) { c.serveMap(w, r, peer) })
	mux.HandleFunc("POST /machine/set-dns", func(w http.ResponseWriter, r *http.Request) { c.serveSetDNS(w, r, peer) })
	mux.HandleFunc("POST /machine/update-health", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/", c.serveUnknown)
	new(http2.Server).ServeConn(conn, &http2.ServeConnOpts{Context: c.ctx, BaseConfig: &http.Server{Handler: mux}})
}

func (c *control) serveSetDNS(w http.ResponseWriter, r *http.Request, mk key.MachinePublic) {
	var req tailcfg.SetDNSRequest
	err := readJSON(r, &req)
	c.mu.Lock()
	n, acme := c.nodes[req.NodeKey], c.acme
	name, challenge := strings.CutPrefix(req.Name, "_acme-challenge.")
	var names []string
	if n != nil {
		names = c.certNamesLocked(n)
	}
	c.mu.Unlock()
	switch {
	case err != nil || req.Type != "TXT":
		err = errors.New("bad set-dns request")
	case n == nil || n.machine != mk || !challenge || !slices.Contains(names, name):
		err = errors.New("not your name")
	case acme == nil:
		err = errors.New("HTTPS is not enabled on this tailnet")
	default:
		acme.SetTXT(req.Name, req.Value)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	writeJSON(w, http.StatusOK, tailcfg.SetDNSResponse{})
}

// bumpLocked wakes every map stream.
func (c *control) bumpLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Policy and ReplacePolicy implement [tsapi.Tailnet] for the policy.
func (c *control) Policy() *tailpolicy.Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy
}

func (c *control) ReplacePolicy(old, next *tailpolicy.Policy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil && old != c.policy {
		return false
	}
	c.policy = next
	c.bumpLocked()
	return true
}

func (c *control) dropLocked(n *node) {
	n.gone = true
	c.gone = append(c.gone, n.id)
	delete(c.nodes, n.key)
	if t := c.fateless[n]; t != nil {
		t.Stop()
		delete(c.fateless, n)
	}
}

// awayLocked removes an ephemeral node without a stream after the delay, unless it returns before.
func (c *control) awayLocked(n *node) {
	if !n.ephemeral || n.gone || c.closed {
		return
	}
	c.fateless[n] = time.AfterFunc(c.ephemeralDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n.streams == 0 && !n.gone && !c.closed && c.fateless[n] != nil {
			c.dropLocked(n)
			c.bumpLocked()
		}
	})
}

func (c *control) backLocked(n *node) {
	if t := c.fateless[n]; t != nil {
		t.Stop()
		delete(c.fateless, n)
	}
}

// UserID returns the ID that every tailnet of this package gives to the user with the login, or on Headscale with the name. It is for
// settings that name a user by ID.
func UserID(login string) string { return fmt.Sprint(int64(userID(login))) }

func userID(name string) tailcfg.UserID {
	h := fnv.New32a()
	h.Write([]byte(name))
	return 1 + tailcfg.UserID(h.Sum32())
}

func (c *control) userLocked(name string) *user {
	for _, u := range c.users {
		if u.name == name {
			return u
		}
	}
	u := &user{id: userID(name), name: name, login: cmp.Or(c.emails[name], name)}
	c.users = append(c.users, u)
	return u
}

func (c *control) profileLocked(n *node) tailcfg.UserProfile {
	if n.user == nil {
		return tailcfg.UserProfile{ID: taggedDevices, LoginName: "tagged-devices", DisplayName: "Tagged Devices"}
	}
	display, _, _ := strings.Cut(n.user.login, "@")
	return tailcfg.UserProfile{ID: n.user.id, LoginName: n.user.login, DisplayName: display}
}

func (c *control) fqdn(n *node) string { return n.name + "." + c.suffix }

// sortedLocked returns the nodes by ID.
func (c *control) sortedLocked() []*node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *node) int { return cmp.Compare(a.id, b.id) })
}

// findLocked returns the node with a MagicDNS label or full name. It prefers an online node.
func (c *control) findLocked(host string) *node {
	label := strings.TrimSuffix(strings.TrimSuffix(host, "."), "."+c.suffix)
	var found *node
	for _, n := range c.sortedLocked() {
		if n.name != label && n.hi.Hostname != label {
			continue
		}
		if found == nil || (n.streams > 0) != (found.streams > 0) && n.streams > 0 ||
			(n.streams > 0) == (found.streams > 0) && n.name == label {
			found = n
		}
	}
	return found
}

func readJSON(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}
