package attack

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/gossip/gossiphttp"
	"github.com/tailplane/tailplane/internal/gossip/gossipkube"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A neighbour is another cluster with an access server of its own, on the tailnet
// of the shared system. It is there while the rows of gossip are tested: each
// change of the list of members is a write, which other rows would take for theirs.
type neighbour struct {
	system *system
	there  bool
	known  bool // the shared system may have to write about it yet
}

// neighbours returns two systems that know each other: the shared one, east, and
// west. West takes no private endpoint but that of east.
func neighbours(t *testing.T) (east, west *system) {
	t.Helper()
	east = begin(t)
	n := &shared.neighbour
	ctx, cancel := context.WithTimeout(t.Context(), 2*long)
	defer cancel()
	began := time.Now()
	n.known = true
	if n.system == nil {
		var err error
		n.system, err = run(ctx, testenv.Options{Beside: east.Env, ClusterName: "west", Hostname: "tka-west",
			Settings: map[string]string{"api.limits": noLimits, "gossip.allowEndpoints": "[127.0.0.1/32]"}})
		if err != nil {
			n.system = nil
			t.Fatal(err)
		}
		n.there = true
		if err := east.Net.WaitPeer(ctx, east.alice(t).Node, "tka-west"); err != nil {
			t.Fatal(err)
		}
	} else if !n.there {
		n.system.serveAgain(t)
		n.there = true
	} else {
		began = time.Time{}
	}
	west = n.system
	for s, other := range map[*system]string{east: "west", west: "east"} {
		eventually(t, long, s.Server()+" lists "+other, func() bool {
			c, _ := s.cluster(t, other)
			return s.alive(t, other) && c.LastSeen.After(began) // and not as what it was before it went
		})
	}
	return east, west
}

// serveAgain starts the access server once more.
func (s *system) serveAgain(t *testing.T) {
	t.Helper()
	const serving = `"access is serving"`
	if err := s.Access.Stop(long); err != nil { // of a test that failed on the way
		t.Fatal(err)
	}
	before := strings.Count(s.Access.Output(), serving) // one log holds all its runs
	if err := s.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, long, "it serves again", func() bool { return strings.Count(s.Access.Output(), serving) > before })
}

// away makes west leave, and waits until the shared system has nothing to write
// about anybody any more.
func (n *neighbour) away(t *testing.T, s *system) {
	t.Helper()
	if !n.known {
		return
	}
	if n.system != nil && n.there {
		n.there = false
		if err := n.system.Access.Stop(long); err != nil {
			t.Error(err)
		}
	}
	eventually(t, long, "nobody is there, and the cluster is told so", func() bool {
		published := s.published(t)
		list := s.clusters(t)
		for i := range list {
			if !list[i].Self && list[i].Available() || i >= len(published) || published[i].State != list[i].State {
				return false
			}
		}
		return len(list) == len(published)
	})
	n.known = false
}

func (n *neighbour) close() error {
	if n.system == nil {
		return nil
	}
	return n.system.close()
}

// clusters is all that a server lists, as alice is told.
func (s *system) clusters(t *testing.T) (list []gossip.Cluster) {
	t.Helper()
	a := s.ask(t, shared.system.alice(t), "GET", api+"/memberlist?state=all", "")
	for began := time.Now(); a.code() == problem.IdentityUnavailable && time.Since(began) < long; {
		a = s.ask(t, shared.system.alice(t), "GET", api+"/memberlist?state=all", "")
	}
	if a.Status != http.StatusOK {
		t.Fatalf("memberlist: %v", a)
	}
	decode(t, a.Body, &list)
	return list
}

// cluster is the entry of that name, and of that key unless it is zero.
func (s *system) cluster(t *testing.T, name string) (c gossip.Cluster, ok bool) {
	t.Helper()
	for _, c := range s.clusters(t) {
		if c.Name == name {
			return c, true
		}
	}
	return c, false
}

// alive reports whether the server lists the cluster, met and well.
func (s *system) alive(t *testing.T, name string) bool {
	t.Helper()
	c, ok := s.cluster(t, name)
	return ok && c.Verified && !c.Conflict && c.State == gossip.Alive
}

// unmoved fails unless the cluster is listed as it was, and available. When it was
// seen moves, and how it is: a machine with much to do lets neighbours wait for each
// other, whatever is said of them.
func (s *system) unmoved(t *testing.T, what string, was gossip.Cluster) {
	t.Helper()
	facts := func(c gossip.Cluster) gossip.Cluster {
		c.State, c.LastSeen, c.Members = "", time.Time{}, slices.Clone(c.Members)
		for i := range c.Members {
			c.Members[i].State, c.Members[i].LastSeen = "", time.Time{}
		}
		return c
	}
	if now, ok := s.cluster(t, was.Name); !ok || !reflect.DeepEqual(facts(now), facts(was)) || now.State == gossip.Gone {
		t.Errorf("%s: %s is listed as %+v, and was as %+v", what, was.Name, now, was)
		return
	}
	eventually(t, long, what+": "+was.Name+" is available", func() bool { return s.available(t, was.Name) })
}

// inOneOf tries something up to three times. A server on a machine with much to do
// may take its neighbour for dead once, as it must; what an attack brings about it
// brings about each time.
func inOneOf(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for range 3 {
		if err = try(); err == nil {
			return
		}
		t.Logf("%s: %v", what, err)
	}
	t.Errorf("%s, time and again: %v", what, err)
}

// published is what the members' ConfigMap holds.
func (s *system) published(t *testing.T) []gossipkube.Cluster {
	t.Helper()
	var m gossipkube.Members
	if text := s.configMap(t, gossipkube.MembersConfigMap)[gossipkube.MembersData]; text != "" {
		decode(t, text, &m)
	}
	return m.Clusters
}

func (s *system) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	var cm corev1.ConfigMap
	if err := s.admin.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Namespace: testenv.SystemNamespace, Name: name}, &cm); err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

// pinned is whose word counts from now on: keys by cluster, clusters by node.
type pinned struct{ Clusters, Nodes map[string]string }

func (s *system) pins(t *testing.T) (p pinned) {
	t.Helper()
	decode(t, s.configMap(t, gossipkube.PinsConfigMap)["pins.json"], &p)
	return p
}

// rejected is how much the server did not take for that reason.
func (s *system) rejected(t *testing.T, why gossip.Reason) int {
	t.Helper()
	return int(s.scrape(t, s.Access)[fmt.Sprintf("tailplane_gossip_rejected_total{reason=%q}", why)])
}

// told is what the server recorded of gossip since, of a node if that is not "".
func (m mark) told(t *testing.T, kind gossip.EventKind, node string) (out []audit.Entry) {
	t.Helper()
	return slices.DeleteFunc(m.recorded(t), func(e audit.Entry) bool {
		return string(e.Verb) != "gossip."+string(kind) || node != "" && e.Object != node
	})
}

// idle fails if the server wrote anything since but the two ConfigMaps of gossip:
// nothing that a member says makes a cluster create, bind or trust anything.
func (m mark) idle(t *testing.T) {
	t.Helper()
	for _, account := range []string{accessAccount, operatorAccount} {
		for _, k := range m.writes(t, account) {
			if ours := k.ObjectRef.Name == gossipkube.PinsConfigMap || k.ObjectRef.Name == gossipkube.MembersConfigMap; k.Verb != "update" || k.ObjectRef.Resource != "configmaps" || !ours {
				t.Errorf("because of what a member said %s asked to %v", account, k)
			}
		}
	}
}

// A rogue is a node with a server's tag and a key of its own, whose messages are
// made by hand. Asked, it answers as a member does, unless the test says how.
type rogue struct {
	s     *system
	node  *tsnet.Server
	id    tailcfg.StableNodeID
	key   ed25519.PrivateKey
	facts gossip.Facts
	http  *http.Client
	cut   bool // off from the servers, by the test: it cannot take its leave

	mu      sync.Mutex
	beat    uint64
	order   gossip.Order
	record  gossip.Signed
	answers http.HandlerFunc // instead of a member's answer
	asked   int              // by servers
	knocks  int              // at the ports of the sign-in API
}

// rogue brings one into the tailnet. The test's end takes it out again.
func (s *system) rogue(t *testing.T, host string, edit ...func(*rogue)) *rogue {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(nil) // never fails
	r := &rogue{s: s, node: s.Net.Node(host, "", "tag:tailplane"), key: key, order: gossip.Order{Generation: uint64(time.Now().Unix()), Version: 1}}
	r.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: r.node.Dial, DisableCompression: true}}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := s.Net.Ready(ctx, r.node); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.id, err = s.Net.ID(r.node); err != nil {
		t.Fatal(err)
	}
	lc, err := r.node.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	st, err := lc.StatusWithoutPeers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(st.Self.DNSName, ".")
	r.facts = gossip.Facts{ClusterID: host + "-id", ClusterName: host, Node: string(r.id), Host: name, IPs: st.Self.TailscaleIPs, Port: 7946, URL: "https://" + name,
		APIEndpoint: "https://k8s." + host + ".example:6443", APIPort: 6443, Labels: map[string]string{"env": "demo"}, Key: door.PublicKey(key.Public().(ed25519.PublicKey)), Software: "9.9.9"}
	for _, e := range edit {
		e(r)
	}
	r.renew(t)
	r.listen(t)
	for _, to := range r.servers() {
		if err := s.Net.WaitPeer(ctx, r.node, strings.TrimPrefix(to.Server(), "https://")); err != nil {
			t.Fatal(err)
		}
		eventually(t, long, to.Server()+" knows that there is such a node", func() bool {
			time.Sleep(100 * time.Millisecond)
			a := r.tell(t, to, message(fmt.Sprintf("[%q,1,1,1]", r.id))) // it asks for the record, or has a later one
			return strings.Contains(a.Body, fmt.Sprintf("[%q,", r.id))
		})
	}
	t.Cleanup(func() {
		last, err := r.sealed(r.facts, r.next(), gossip.Left)
		if err != nil {
			t.Error(err)
		}
		r.announces(last)
		for _, to := range r.servers() { // so that nobody need find out that it is gone
			if r.cut {
				break
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			if res, err := r.send(ctx, to, message("", last)); err == nil {
				res.Body.Close()
			}
			cancel()
		}
		r.node.Close()
		s.Net.Delete(r.id)
	})
	return r
}

// mute makes a rogue that nobody gets an answer of.
func mute(r *rogue) {
	r.answers = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
}

// servers are the honest ones.
func (r *rogue) servers() []*system {
	if shared.neighbour.there {
		return []*system{r.s, shared.neighbour.system}
	}
	return []*system{r.s}
}

// listen answers on the port of gossip, and counts who comes to those of the
// sign-in API.
func (r *rogue) listen(t *testing.T) {
	t.Helper()
	ln, err := r.node.Listen("tcp", ":7946")
	if err != nil {
		t.Fatal(err)
	}
	both := new(http.Protocols) // servers ask in HTTP/2
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	srv := &http.Server{Protocols: both, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.asked++
		r.beat++
		answers, text := r.answers, message(r.numbers(), r.record)
		r.mu.Unlock()
		if answers != nil {
			req.Body = io.NopCloser(bytes.NewReader(body))
			answers(w, req)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, text)
	})}
	go srv.Serve(ln)
	for _, port := range []string{":80", ":443"} {
		ln, err := r.node.Listen("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Close()
				r.mu.Lock()
				r.knocks++
				r.mu.Unlock()
			}
		}()
	}
}

// says makes the rogue answer so from now on; nil: as a member does.
func (r *rogue) says(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = h
}

func (r *rogue) count(of *int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *of
}

// own is the record that it answers with.
func (r *rogue) own() gossip.Signed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

// claim is what it says of itself in numbers.
func (r *rogue) claim() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.numbers()
}

func (r *rogue) numbers() string {
	return fmt.Sprintf("[%q,%d,%d,%d]", r.id, r.order.Generation, r.beat, r.order.Version)
}

// next is an order that nobody has seen yet.
func (r *rogue) next() gossip.Order {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order.Version++
	return r.order
}

// announces makes a record that which it answers with.
func (r *rogue) announces(s gossip.Signed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = s
}

// renew signs the facts as they are now.
func (r *rogue) renew(t *testing.T) {
	t.Helper()
	record, err := r.sealed(r.facts, r.next(), gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	r.announces(record)
}

// sealed signs any facts by the rogue's key.
func (r *rogue) sealed(f gossip.Facts, o gossip.Order, s gossip.Status) (gossip.Signed, error) {
	f.Key = door.PublicKey(r.key.Public().(ed25519.PublicKey))
	record, err := gossip.Seal(f, o, s, func(b []byte) []byte { return ed25519.Sign(r.key, b) })
	if err != nil {
		return gossip.Signed{}, err
	}
	return record.Signed, nil
}

// signed signs any bytes as those of a record.
func (r *rogue) signed(payload string) gossip.Signed {
	return gossip.Signed{Payload: []byte(payload), Signature: ed25519.Sign(r.key, []byte("tailplane-record-v1\x00"+payload))}
}

// payload is the rogue's own record with other text in the place of some, and of
// an order that nobody has seen yet.
func (r *rogue) payload(t *testing.T, old, new string) string {
	t.Helper()
	record, err := r.sealed(r.facts, r.next(), gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(record.Payload), old, new, 1)
	if text == string(record.Payload) {
		t.Fatalf("%s has no %s", text, old)
	}
	return text
}

// message is a message, by hand.
func message(digest string, records ...gossip.Signed) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf(`{"p":%q,"s":%q}`, base64.StdEncoding.EncodeToString(r.Payload), base64.StdEncoding.EncodeToString(r.Signature)))
	}
	return fmt.Sprintf(`{"v":1,"net":"default","d":[%s],"r":[%s]}`, digest, strings.Join(all, ","))
}

// send sends a message to a server; headers are pairs of names and values.
func (r *rogue) send(ctx context.Context, to *system, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+strings.TrimPrefix(to.Server(), "https://")+":7946"+gossiphttp.ExchangePath, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return r.http.Do(req)
}

// tell sends a message to a server and returns its answer. Where the tailnet had no
// time to say who it is from, nothing of it was read, and it is sent again.
func (r *rogue) tell(t *testing.T, to *system, body string, headers ...string) answer {
	t.Helper()
	for began := time.Now(); ; {
		res, err := r.send(t.Context(), to, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if a := readAnswer(t, res); a.code() != problem.IdentityUnavailable || time.Since(began) > long {
			return a
		}
	}
}

// taken tells what must be answered like anything else: whether it counts is seen
// elsewhere. Nobody may ask more than 20 times a second: then it asks again.
func (r *rogue) taken(t *testing.T, to *system, body string) answer {
	t.Helper()
	a := r.tell(t, to, body)
	for began := time.Now(); a.code() == problem.RateLimited && time.Since(began) < long; a = r.tell(t, to, body) {
		time.Sleep(100 * time.Millisecond)
	}
	if a.Status != http.StatusOK {
		t.Errorf("%.120s: %d %s", body, a.Status, a.code())
	}
	return a
}

// forgiven waits until a server listens again to a rogue that it backed off from.
func (r *rogue) forgiven(t *testing.T, by *system) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, long, "it is listened to again", func() bool {
		a := r.tell(t, by, message(r.claim()))
		if a.code() == problem.RateLimited {
			time.Sleep(50 * time.Millisecond) // it may ask 20 times a second
		}
		return a.Status == http.StatusOK
	})
	return time.Since(began)
}

// introduce makes the rogue a member like any other, everywhere: that is the
// control, as the tailnet's tag is all it takes.
func (r *rogue) introduce(t *testing.T) {
	t.Helper()
	for _, s := range r.servers() {
		r.taken(t, s, message(r.claim(), r.own()))
		eventually(t, long, s.Server()+" lists the rogue as what it is", func() bool { return s.alive(t, r.facts.ClusterName) })
		if c, _ := s.cluster(t, r.facts.ClusterName); c.APIEndpoint != r.facts.APIEndpoint || !maps.Equal(c.Labels, r.facts.Labels) || c.Key != r.facts.Key {
			t.Errorf("listed as %+v", c)
		}
		eventually(t, long, "that is kept", func() bool { return s.pins(t).Clusters[r.facts.ClusterID] == r.facts.Key.String() })
	}
}

// learn asks a server for every record that it has, as it has them.
func (r *rogue) learn(t *testing.T, from *system) map[string]*gossip.Record {
	t.Helper()
	all := map[string]*gossip.Record{}
	for digest := r.claim(); ; { // one answer has no room for all
		var said struct {
			R []struct{ P, S []byte }
		}
		decode(t, r.taken(t, from, message(digest)).Body, &said)
		fresh := false
		for _, x := range said.R {
			record, err := gossip.Open(gossip.Signed{Payload: x.P, Signature: x.S})
			if err != nil {
				t.Fatalf("a record that %s relays: %v", from.Server(), err)
			}
			if all[record.Node] == nil {
				fresh = true
				digest += fmt.Sprintf(",[%q,%d,1,%d]", record.Node, record.Generation, record.Version)
			}
			all[record.Node] = record
		}
		if !fresh {
			return all
		}
	}
}

// node is the one server of a cluster that somebody lists.
func (s *system) nodeOf(t *testing.T, cluster string) (node string) {
	t.Helper()
	eventually(t, long, cluster+" has a server", func() bool {
		c, _ := s.cluster(t, cluster)
		for _, m := range c.Members { // there may have been replicas
			if m.State == gossip.Alive {
				node = m.Node
			}
		}
		return node != ""
	})
	return node
}

// tka runs the client as alice.
func (s *system) tka(t *testing.T, args ...string) testenv.Result {
	t.Helper()
	res, err := shared.system.alice(t).Run(t.Context(), "tka", args...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// shows waits until the client tells alice what it should: who was not heard for
// a moment is left out.
func (s *system) shows(t *testing.T, text string, args ...string) (res testenv.Result) {
	t.Helper()
	eventually(t, long, fmt.Sprintf("tka %v shows %s", args, text), func() bool {
		res = s.tka(t, args...)
		return res.Exit == 0 && strings.Contains(res.Stdout, text)
	})
	return res
}

// top are the greatest numbers that a record may have.
var top = gossip.Order{Generation: 1<<53 - 1, Version: 1<<31 - 1}

// GO-01. Only a cluster speaks for itself, whoever carries the message: what
// somebody else says of it is counted, and shown nowhere.
//
// Guard: gossip.(*View).judge, which asks the pins; and gossip.Open, which asks
// the signature.
func TestGO01_OnlyTheOwnerSpeaks(t *testing.T) {
	east, west := neighbours(t)
	r := east.rogue(t, "go01")
	r.introduce(t)
	evil := func(f gossip.Facts) gossip.Facts {
		f.APIEndpoint, f.Labels, f.CAHash = "https://evil.example:6443", map[string]string{"evil": "yes"}, "sha256:"+strings.Repeat("0", 64)
		return f
	}
	for _, at := range []struct {
		server *system
		victim string
	}{{east, "west"}, {west, "east"}} {
		node := at.server.nodeOf(t, at.victim)
		genuine := r.learn(t, at.server)[node]
		if genuine == nil {
			t.Fatal("the record was not relayed")
		}
		must := func(s gossip.Signed, err error) gossip.Signed {
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		spoilt := genuine.Signed
		spoilt.Payload = bytes.Replace(spoilt.Payload, []byte(`"env":"demo"`), []byte(`"env":"evil"`), 1)
		ours := evil(genuine.Facts) // at the rogue's own address
		ours.Host, ours.IPs, ours.URL = r.facts.Host, r.facts.IPs, r.facts.URL
		moved := evil(r.facts) // of the rogue's own cluster, in the name of the victim's node
		moved.Node = genuine.Node
		handover := evil(genuine.Facts)
		handover.PrevKey, handover.PrevSig = genuine.Key, ed25519.Sign(r.key, gossip.Rekeying(genuine.ClusterID, r.facts.Key))
		before, _ := at.server.cluster(t, at.victim)
		pins := at.server.pins(t)
		m := at.server.mark(t)
		for _, tt := range []struct {
			name string
			why  gossip.Reason
			body string
		}{
			{"the greatest order", gossip.Binding, message(r.claim(), must(r.sealed(evil(genuine.Facts), top, gossip.Up)))},
			{"it has left", gossip.Binding, message(r.claim(), must(r.sealed(genuine.Facts, top, gossip.Left)))},
			{"at the rogue's address", gossip.Binding, message(r.claim(), must(r.sealed(ours, top, gossip.Up)))},
			{"of the rogue's cluster", gossip.Binding, message(r.claim(), must(r.sealed(moved, top, gossip.Up)))},
			{"a handover that the old key did not sign", gossip.Binding, message(r.claim(), must(r.sealed(handover, top, gossip.Up)))},
			{"version MaxUint64", gossip.Malformed, message(r.claim(), r.signed(strings.Replace(string(genuine.Signed.Payload), `"version":`, `"version":18446744073709551615,"was":`, 1)))},
			{"the greatest numbers in a digest", gossip.Heartbeat, message(fmt.Sprintf("[%q,%d,%d,%d]", node, genuine.Generation, uint64(1<<53-1), 1<<31-1))},
			{"other bytes under its signature", gossip.Signature, message(r.claim(), spoilt)}, // last: it is backed off from
		} {
			counted := at.server.rejected(t, tt.why)
			r.taken(t, at.server, tt.body)
			if n := at.server.rejected(t, tt.why); n <= counted {
				t.Errorf("%s of %s: not counted as %s", tt.name, at.victim, tt.why)
			}
			at.server.unmoved(t, tt.name, before)
		}
		r.forgiven(t, at.server)
		// The same as an answer, when the server asks.
		counted, asked := at.server.rejected(t, gossip.Binding), r.count(&r.asked)
		r.says(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, message(r.claim(), must(r.sealed(evil(genuine.Facts), top, gossip.Up)), r.own()))
		})
		eventually(t, long, "the server has asked, and not taken the answer", func() bool { return at.server.rejected(t, gossip.Binding) > counted && r.count(&r.asked) > asked })
		r.says(nil)
		at.server.unmoved(t, "as an answer", before)
		for _, c := range at.server.clusters(t) {
			if strings.Contains(c.APIEndpoint, "evil") || c.Labels["evil"] != "" || c.Labels["env"] == "evil" || c.ID == before.ID && c.Key != before.Key {
				t.Errorf("listed: %+v", c)
			}
		}
		if now := at.server.pins(t); !reflect.DeepEqual(now, pins) {
			t.Errorf("the pins are %v, and were %v", now, pins)
		}
		m.idle(t)
	}
	if res := east.shows(t, west.Server(), "clusters", "--all", "-o", "wide"); strings.Contains(res.Stdout, "evil") {
		t.Errorf("tka clusters: %s %s", res.Stdout, res.Stderr)
	}
}

// GO-02. What a cluster said before does not come back, whoever says it again and
// to whom.
//
// Guard: gossip.(*View).compare, by gossip.(Order).Compare.
func TestGO02_NothingOldComesBack(t *testing.T) {
	east, west := neighbours(t)
	r := east.rogue(t, "go02")
	r.introduce(t)
	node := east.nodeOf(t, "west")
	old := []*gossip.Record{r.learn(t, east)[node]}
	if err := west.Access.Stop(long); err != nil {
		t.Fatal(err)
	}
	shared.neighbour.there = false
	left := func() bool { c, _ := east.cluster(t, "west"); return c.State == gossip.Gone }
	eventually(t, long, "west has left", left)
	old = append(old, r.learn(t, east)[node]) // its last word
	if old[1].Status != gossip.Left {
		t.Fatalf("its last word is %+v", old[1])
	}
	west.Set("cluster.labels", "{tier: gold}")
	t.Cleanup(func() { west.Set("cluster.labels", "{env: demo}") })
	began := time.Now()
	east, west = neighbours(t)
	fewer := func(s *system) bool {
		c, _ := s.cluster(t, "west")
		return c.State != gossip.Gone && c.Verified && maps.Equal(c.Labels, map[string]string{"tier": "gold"})
	}
	eventually(t, long, "west's new labels are there", func() bool {
		return fewer(east) && fewer(west) && east.alive(t, "west") && west.alive(t, "west")
	})
	t.Logf("new labels %v after the restart began", time.Since(began).Round(time.Millisecond))
	now := r.learn(t, east)[node]
	for _, record := range old {
		for _, s := range []*system{east, west} {
			counted := east.rejected(t, gossip.Old)
			r.taken(t, s, message(fmt.Sprintf("[%q,%d,%d,%d]", node, record.Generation, uint64(1<<40), record.Version), record.Signed))
			if s == east && east.rejected(t, gossip.Old) != counted+1 {
				t.Error("it is not counted as old")
			}
		}
	}
	r.says(func(w http.ResponseWriter, _ *http.Request) { // and whenever anybody asks
		io.WriteString(w, message(r.claim(), old[0].Signed, old[1].Signed, r.own()))
	})
	asked := r.count(&r.asked)
	eventually(t, long, "both have asked", func() bool { return r.count(&r.asked) >= asked+8 })
	for _, s := range []*system{east, west} {
		if !fewer(s) {
			c, _ := s.cluster(t, "west")
			t.Errorf("%s lists %+v", s.Server(), c)
		}
		if got := r.learn(t, s)[node]; !reflect.DeepEqual(got.Signed, now.Signed) {
			t.Errorf("%s relays %s, and the latest is %s", s.Server(), got.Signed.Payload, now.Signed.Payload)
		}
	}
}

// GO-03. Whoever claims a cluster that is known by another key is shown as that,
// beside the one that is vouched for; and what nothing ties to the node is marked.
// Nobody is sent to either.
//
// Guard: gossip.(*View).judge and (*View).Verified, directory.doubt.
func TestGO03_TwoClaimOneCluster(t *testing.T) {
	east, west := neighbours(t)
	of := func(s *system, name string) (c gossip.Cluster) {
		t.Helper()
		c, ok := s.cluster(t, name)
		if !ok {
			t.Fatalf("%s does not list %s", s.Server(), name)
		}
		return c
	}
	before := map[string]gossip.Cluster{"east": of(east, "east"), "west": of(east, "west")}
	m := east.mark(t)
	refuses := func(r *rogue, cluster, why string) {
		t.Helper()
		for name, why := range map[string]string{cluster: why, r.facts.ClusterID + "x": "no cluster of that name"} {
			eventually(t, long, "tka login --cluster "+name+" is refused: "+why, func() bool { // or that somebody is away
				res := east.tka(t, "login", "--cluster", name)
				if res.Exit == 0 {
					t.Fatalf("tka login --cluster %s: %s %s", name, res.Stdout, res.Stderr)
				}
				return strings.Contains(res.Stderr, why)
			})
		}
		if n := r.count(&r.knocks); n > 0 {
			t.Errorf("tka knocked at %s %d times", r.facts.Host, n)
		}
	}

	for claimed, host := range map[string]string{"west": "go03", "east": "go03b"} {
		counted := east.rejected(t, gossip.Binding)
		r := east.rogue(t, host, func(r *rogue) { r.facts.ClusterID, r.facts.ClusterName = before[claimed].ID, "rival-of-"+claimed })
		r.taken(t, east, message(r.claim(), r.own()))
		c := of(east, "rival-of-"+claimed)
		if !c.Conflict || c.Verified || c.Self || c.ID != before[claimed].ID || c.Key != r.facts.Key {
			t.Errorf("the rival is listed as %+v", c)
		}
		east.unmoved(t, "with a rival", before[claimed])
		conflicts := func() []audit.Entry { return m.told(t, gossip.EventConflict, string(r.id)) }
		eventually(t, long, "it is recorded", func() bool { return len(conflicts()) > 0 })
		if told := conflicts(); len(told) != 1 || told[0].Args["cluster"] != before[claimed].ID {
			t.Errorf("recorded: %+v", told)
		}
		if east.rejected(t, gossip.Binding) <= counted {
			t.Error("it is not counted")
		}
		refuses(r, c.Name, "somebody else is known as this cluster")
		if pins := east.pins(t); pins.Clusters[c.ID] != before[claimed].Key.String() || pins.Nodes[string(r.id)] != "" {
			t.Errorf("the pins are %v", pins)
		}
	}
	eventually(t, long, "people are shown both", func() bool {
		res := east.tka(t, "clusters", "-o", "wide")
		return res.Exit == 0 && strings.Count(res.Stdout, "conflict") == 2 && strings.Contains(res.Stderr, "tka does not sign in to rival-of-west")
	})

	// Hearsay: of a node that has said nothing itself.
	silent, liar := east.rogue(t, "go03c", mute), east.rogue(t, "go03d")
	liar.introduce(t)
	said := silent.facts
	said.ClusterName = "hearsay"
	about, err := liar.sealed(said, gossip.Order{Generation: silent.order.Generation, Version: 1 << 20}, gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	liar.taken(t, east, message(liar.claim()+fmt.Sprintf(",[%q,%d,1,1]", silent.id, silent.order.Generation), about))
	if c := of(east, "hearsay"); c.Verified || c.Conflict || c.State == gossip.Alive {
		t.Errorf("hearsay is listed as %+v", c)
	}
	refuses(silent, "hearsay", "has not met it itself")
	asked := silent.count(&silent.asked)
	eventually(t, long, "the node itself is asked", func() bool { return silent.count(&silent.asked) > asked })
	if c := of(east, "hearsay"); c.Verified {
		t.Errorf("with the node asked in vain hearsay is listed as %+v", c)
	}
	silent.says(nil)
	eventually(t, long, "its own word counts, of a lower order though it is", func() bool { return east.alive(t, "go03c") })
	if _, ok := east.cluster(t, "hearsay"); ok {
		t.Error("hearsay is still listed")
	}

	// Two that are both what they say, by one name.
	control := west.mark(t) // before the twin is there: the servers ask it by themselves
	eventually(t, long, "tka login --cluster west, the control", func() bool {
		return east.tka(t, "login", "--cluster", "west", "--dry-run").Exit == 0 && len(control.entries(t)) > 0
	})
	twin := east.rogue(t, "go03e", func(r *rogue) { r.facts.ClusterName = "west" })
	twin.taken(t, east, message(twin.claim(), twin.record))
	refuses(twin, "west", "several clusters by the name west")
	m.idle(t)
}
