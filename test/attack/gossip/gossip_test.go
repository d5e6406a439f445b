package gossip

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
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A secondCluster is another cluster with an access server of its own, on the tailnet
// of the shared system. It is there while the rows of gossip are tested: each
// change of the list of members is a write, which other rows would take for theirs.
type secondCluster struct {
	system *attacktest.Env
	there  bool
}

// second is the neighbour that the tests of gossip share.
var second secondCluster

// twoClusters returns two systems that know each other: the shared one, east, and
// west. West takes no private endpoint but that of east.
func twoClusters(t *testing.T) (east, west *attacktest.Env) {
	t.Helper()
	east = attacktest.Start(t)
	n := &second
	ctx, cancel := context.WithTimeout(t.Context(), 2*attacktest.Long)
	defer cancel()
	began := time.Now()
	if n.system == nil {
		var err error
		n.system, err = attacktest.Run(ctx, testenv.Options{Beside: east.Env, ClusterName: "west", Hostname: "tka-west",
			Settings: map[string]string{"api.limits": attacktest.NoLimits, "gossip.allowEndpoints": "[127.0.0.1/32]"}})
		if err != nil {
			n.system = nil
			t.Fatal(err)
		}
		attacktest.AtEnd(n.close)
		n.there = true
		if err := east.Net.WaitPeer(ctx, east.Alice(t).Node, "tka-west"); err != nil {
			t.Fatal(err)
		}
	} else if !n.there {
		serveAgain(t, n.system)
		n.there = true
	} else {
		began = time.Time{}
	}
	west = n.system
	for s, other := range map[*attacktest.Env]string{east: "west", west: "east"} {
		attacktest.Eventually(t, attacktest.Long, s.Server()+" lists "+other, func() bool {
			c, _ := clusterOf(t, s, other)
			return aliveTo(t, s, other) && c.LastSeen.After(began) // and not as what it was before it went
		})
	}
	return east, west
}

// serveAgain starts the access server once more.
func serveAgain(t *testing.T, s *attacktest.Env) {
	t.Helper()
	const serving = `"access is serving"`
	if err := s.Access.Stop(attacktest.Long); err != nil { // of a test that failed on the way
		t.Fatal(err)
	}
	before := strings.Count(s.Access.Output(), serving) // one log holds all its runs
	if err := s.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Long, "it serves again", func() bool { return strings.Count(s.Access.Output(), serving) > before })
}

func (n *secondCluster) close() error {
	if n.system == nil {
		return nil
	}
	return n.system.Close()
}

// clustersOf is all that a server lists, as alice is told.
func clustersOf(t *testing.T, s *attacktest.Env) (list []gossip.Cluster) {
	t.Helper()
	a := s.Ask(t, attacktest.Start(t).Alice(t), "GET", attacktest.API+"/memberlist?state=all", "")
	for began := time.Now(); a.Code() == problem.IdentityUnavailable && time.Since(began) < attacktest.Long; {
		a = s.Ask(t, attacktest.Start(t).Alice(t), "GET", attacktest.API+"/memberlist?state=all", "")
	}
	if a.Status != http.StatusOK {
		t.Fatalf("memberlist: %v", a)
	}
	attacktest.Decode(t, a.Body, &list)
	return list
}

// clusterOf is the entry of that name, and of that key unless it is zero.
func clusterOf(t *testing.T, s *attacktest.Env, name string) (c gossip.Cluster, ok bool) {
	t.Helper()
	for _, c := range clustersOf(t, s) {
		if c.Name == name {
			return c, true
		}
	}
	return c, false
}

// aliveTo reports whether the server lists the cluster, met and well.
func aliveTo(t *testing.T, s *attacktest.Env, name string) bool {
	t.Helper()
	c, ok := clusterOf(t, s, name)
	return ok && c.Verified && !c.Conflict && c.State == gossip.Alive
}

// unmoved fails unless the cluster is listed as it was, and available. When it was
// seen moves, and how it is: a machine with much to do lets neighbours wait for each
// other, whatever is said of them.
func unmoved(t *testing.T, s *attacktest.Env, what string, was gossip.Cluster) {
	t.Helper()
	facts := func(c gossip.Cluster) gossip.Cluster {
		c.State, c.LastSeen, c.Members = "", time.Time{}, slices.Clone(c.Members)
		for i := range c.Members {
			c.Members[i].State, c.Members[i].LastSeen = "", time.Time{}
		}
		return c
	}
	if now, ok := clusterOf(t, s, was.Name); !ok || !reflect.DeepEqual(facts(now), facts(was)) || now.State == gossip.Gone {
		t.Errorf("%s: %s is listed as %+v, and was as %+v", what, was.Name, now, was)
		return
	}
	attacktest.Eventually(t, attacktest.Long, what+": "+was.Name+" is available", func() bool { return availableTo(t, s, was.Name) })
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

// publishedBy is what the members' ConfigMap holds.
func publishedBy(t *testing.T, s *attacktest.Env) []gossipkube.Cluster {
	t.Helper()
	var m gossipkube.Members
	if text := configMapOf(t, s, gossipkube.MembersConfigMap)[gossipkube.MembersData]; text != "" {
		attacktest.Decode(t, text, &m)
	}
	return m.Clusters
}

func configMapOf(t *testing.T, s *attacktest.Env, name string) map[string]string {
	t.Helper()
	var cm corev1.ConfigMap
	if err := s.KubeClient.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Namespace: testenv.SystemNamespace, Name: name}, &cm); err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

// pinned is whose word counts from now on: keys by cluster, clusters by node.
type pinned struct{ Clusters, Nodes map[string]string }

func pinsOf(t *testing.T, s *attacktest.Env) (p pinned) {
	t.Helper()
	attacktest.Decode(t, configMapOf(t, s, gossipkube.PinsConfigMap)["pins.json"], &p)
	return p
}

// rejectedBy is how much the server did not take for that reason.
func rejectedBy(t *testing.T, s *attacktest.Env, why gossip.Reason) int {
	t.Helper()
	return int(s.Metrics(t, s.Access)[fmt.Sprintf("tailplane_gossip_rejected_total{reason=%q}", why)])
}

// toldSince is what the server recorded of gossip since, of a node if that is not "".
func toldSince(t *testing.T, m attacktest.Mark, kind gossip.EventKind, node string) (out []audit.Entry) {
	t.Helper()
	return slices.DeleteFunc(m.Recorded(t), func(e audit.Entry) bool {
		return string(e.Verb) != "gossip."+string(kind) || node != "" && e.Object != node
	})
}

// idleSince fails if the server wrote anything since but the two ConfigMaps of gossip:
// nothing that a member says makes a cluster create, bind or trust anything.
func idleSince(t *testing.T, m attacktest.Mark) {
	t.Helper()
	for _, account := range []string{attacktest.AccessAccount, attacktest.OperatorAccount} {
		for _, k := range m.Writes(t, account) {
			if ours := k.ObjectRef.Name == gossipkube.PinsConfigMap || k.ObjectRef.Name == gossipkube.MembersConfigMap; k.Verb != "update" || k.ObjectRef.Resource != "configmaps" || !ours {
				t.Errorf("because of what a member said %s asked to %v", account, k)
			}
		}
	}
}

// A rogue is a node with a server's tag and a key of its own, whose messages are
// made by hand. Asked, it answers as a member does, unless the test says how.
type rogue struct {
	s     *attacktest.Env
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

// newRogue brings one into the tailnet. The test's end takes it out again.
func newRogue(t *testing.T, s *attacktest.Env, host string, edit ...func(*rogue)) *rogue {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(nil) // never fails
	r := &rogue{s: s, node: s.Net.Node(host, "", "tag:tailplane"), key: key, order: gossip.Order{Generation: uint64(time.Now().Unix()), Version: 1}}
	r.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: r.node.Dial, DisableCompression: true}}
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
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
		attacktest.Eventually(t, attacktest.Long, to.Server()+" knows that there is such a node", func() bool {
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
func (r *rogue) servers() []*attacktest.Env {
	if second.there {
		return []*attacktest.Env{r.s, second.system}
	}
	return []*attacktest.Env{r.s}
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
func (r *rogue) send(ctx context.Context, to *attacktest.Env, body string, headers ...string) (*http.Response, error) {
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
func (r *rogue) tell(t *testing.T, to *attacktest.Env, body string, headers ...string) attacktest.Answer {
	t.Helper()
	for began := time.Now(); ; {
		res, err := r.send(t.Context(), to, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if a := attacktest.ReadAnswer(t, res); a.Code() != problem.IdentityUnavailable || time.Since(began) > attacktest.Long {
			return a
		}
	}
}

// taken tells what must be answered like anything else: whether it counts is seen
// elsewhere. Nobody may ask more than 20 times a second: then it asks again.
func (r *rogue) taken(t *testing.T, to *attacktest.Env, body string) attacktest.Answer {
	t.Helper()
	a := r.tell(t, to, body)
	for began := time.Now(); a.Code() == problem.RateLimited && time.Since(began) < attacktest.Long; a = r.tell(t, to, body) {
		time.Sleep(100 * time.Millisecond)
	}
	if a.Status != http.StatusOK {
		t.Errorf("%.120s: %d %s", body, a.Status, a.Code())
	}
	return a
}

// forgiven waits until a server listens again to a rogue that it backed off from.
func (r *rogue) forgiven(t *testing.T, by *attacktest.Env) time.Duration {
	t.Helper()
	began := time.Now()
	attacktest.Eventually(t, attacktest.Long, "it is listened to again", func() bool {
		a := r.tell(t, by, message(r.claim()))
		if a.Code() == problem.RateLimited {
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
		attacktest.Eventually(t, attacktest.Long, s.Server()+" lists the rogue as what it is", func() bool { return aliveTo(t, s, r.facts.ClusterName) })
		if c, _ := clusterOf(t, s, r.facts.ClusterName); c.APIEndpoint != r.facts.APIEndpoint || !maps.Equal(c.Labels, r.facts.Labels) || c.Key != r.facts.Key {
			t.Errorf("listed as %+v", c)
		}
		attacktest.Eventually(t, attacktest.Long, "that is kept", func() bool { return pinsOf(t, s).Clusters[r.facts.ClusterID] == r.facts.Key.String() })
	}
}

// learn asks a server for every record that it has, as it has them.
func (r *rogue) learn(t *testing.T, from *attacktest.Env) map[string]*gossip.Record {
	t.Helper()
	all := map[string]*gossip.Record{}
	for digest := r.claim(); ; { // one answer has no room for all
		var said struct {
			R []struct{ P, S []byte }
		}
		attacktest.Decode(t, r.taken(t, from, message(digest)).Body, &said)
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
func nodeOf(t *testing.T, s *attacktest.Env, cluster string) (node string) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, cluster+" has a server", func() bool {
		c, _ := clusterOf(t, s, cluster)
		for _, m := range c.Members { // there may have been replicas
			if m.State == gossip.Alive {
				node = m.Node
			}
		}
		return node != ""
	})
	return node
}

// runTKA runs the client as alice.
func runTKA(t *testing.T, s *attacktest.Env, args ...string) testenv.Result {
	t.Helper()
	res, err := attacktest.Start(t).Alice(t).Run(t.Context(), "tka", args...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// shows waits until the client tells alice what it should: who was not heard for
// a moment is left out.
func shows(t *testing.T, s *attacktest.Env, text string, args ...string) (res testenv.Result) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, fmt.Sprintf("tka %v shows %s", args, text), func() bool {
		res = runTKA(t, s, args...)
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
	east, west := twoClusters(t)
	r := newRogue(t, east, "go01")
	r.introduce(t)
	evil := func(f gossip.Facts) gossip.Facts {
		f.APIEndpoint, f.Labels, f.CAHash = "https://evil.example:6443", map[string]string{"evil": "yes"}, "sha256:"+strings.Repeat("0", 64)
		return f
	}
	for _, at := range []struct {
		server *attacktest.Env
		victim string
	}{{east, "west"}, {west, "east"}} {
		node := nodeOf(t, at.server, at.victim)
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
		before, _ := clusterOf(t, at.server, at.victim)
		pins := pinsOf(t, at.server)
		m := at.server.Mark(t)
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
			counted := rejectedBy(t, at.server, tt.why)
			r.taken(t, at.server, tt.body)
			if n := rejectedBy(t, at.server, tt.why); n <= counted {
				t.Errorf("%s of %s: not counted as %s", tt.name, at.victim, tt.why)
			}
			unmoved(t, at.server, tt.name, before)
		}
		r.forgiven(t, at.server)
		// The same as an answer, when the server asks.
		counted, asked := rejectedBy(t, at.server, gossip.Binding), r.count(&r.asked)
		r.says(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, message(r.claim(), must(r.sealed(evil(genuine.Facts), top, gossip.Up)), r.own()))
		})
		attacktest.Eventually(t, attacktest.Long, "the server has asked, and not taken the answer", func() bool { return rejectedBy(t, at.server, gossip.Binding) > counted && r.count(&r.asked) > asked })
		r.says(nil)
		unmoved(t, at.server, "as an answer", before)
		for _, c := range clustersOf(t, at.server) {
			if strings.Contains(c.APIEndpoint, "evil") || c.Labels["evil"] != "" || c.Labels["env"] == "evil" || c.ID == before.ID && c.Key != before.Key {
				t.Errorf("listed: %+v", c)
			}
		}
		if now := pinsOf(t, at.server); !reflect.DeepEqual(now, pins) {
			t.Errorf("the pins are %v, and were %v", now, pins)
		}
		idleSince(t, m)
	}
	if res := shows(t, east, west.Server(), "clusters", "--all", "-o", "wide"); strings.Contains(res.Stdout, "evil") {
		t.Errorf("tka clusters: %s %s", res.Stdout, res.Stderr)
	}
}

// GO-02. What a cluster said before does not come back, whoever says it again and
// to whom.
//
// Guard: gossip.(*View).compare, by gossip.(Order).Compare.
func TestGO02_NothingOldComesBack(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go02")
	r.introduce(t)
	node := nodeOf(t, east, "west")
	old := []*gossip.Record{r.learn(t, east)[node]}
	if err := west.Access.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	second.there = false
	left := func() bool { c, _ := clusterOf(t, east, "west"); return c.State == gossip.Gone }
	attacktest.Eventually(t, attacktest.Long, "west has left", left)
	old = append(old, r.learn(t, east)[node]) // its last word
	if old[1].Status != gossip.Left {
		t.Fatalf("its last word is %+v", old[1])
	}
	west.Set("cluster.labels", "{tier: gold}")
	t.Cleanup(func() { west.Set("cluster.labels", "{env: demo}") })
	began := time.Now()
	east, west = twoClusters(t)
	fewer := func(s *attacktest.Env) bool {
		c, _ := clusterOf(t, s, "west")
		return c.State != gossip.Gone && c.Verified && maps.Equal(c.Labels, map[string]string{"tier": "gold"})
	}
	attacktest.Eventually(t, attacktest.Long, "west's new labels are there", func() bool {
		return fewer(east) && fewer(west) && aliveTo(t, east, "west") && aliveTo(t, west, "west")
	})
	t.Logf("new labels %v after the restart began", time.Since(began).Round(time.Millisecond))
	now := r.learn(t, east)[node]
	for _, record := range old {
		for _, s := range []*attacktest.Env{east, west} {
			counted := rejectedBy(t, east, gossip.Old)
			r.taken(t, s, message(fmt.Sprintf("[%q,%d,%d,%d]", node, record.Generation, uint64(1<<40), record.Version), record.Signed))
			if s == east && rejectedBy(t, east, gossip.Old) != counted+1 {
				t.Error("it is not counted as old")
			}
		}
	}
	r.says(func(w http.ResponseWriter, _ *http.Request) { // and whenever anybody asks
		io.WriteString(w, message(r.claim(), old[0].Signed, old[1].Signed, r.own()))
	})
	asked := r.count(&r.asked)
	attacktest.Eventually(t, attacktest.Long, "both have asked", func() bool { return r.count(&r.asked) >= asked+8 })
	for _, s := range []*attacktest.Env{east, west} {
		if !fewer(s) {
			c, _ := clusterOf(t, s, "west")
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
	east, west := twoClusters(t)
	of := func(s *attacktest.Env, name string) (c gossip.Cluster) {
		t.Helper()
		c, ok := clusterOf(t, s, name)
		if !ok {
			t.Fatalf("%s does not list %s", s.Server(), name)
		}
		return c
	}
	before := map[string]gossip.Cluster{"east": of(east, "east"), "west": of(east, "west")}
	m := east.Mark(t)
	refuses := func(r *rogue, cluster, why string) {
		t.Helper()
		for name, why := range map[string]string{cluster: why, r.facts.ClusterID + "x": "no cluster of that name"} {
			attacktest.Eventually(t, attacktest.Long, "tka login --cluster "+name+" is refused: "+why, func() bool { // or that somebody is away
				res := runTKA(t, east, "login", "--cluster", name)
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
		counted := rejectedBy(t, east, gossip.Binding)
		r := newRogue(t, east, host, func(r *rogue) { r.facts.ClusterID, r.facts.ClusterName = before[claimed].ID, "rival-of-"+claimed })
		r.taken(t, east, message(r.claim(), r.own()))
		c := of(east, "rival-of-"+claimed)
		if !c.Conflict || c.Verified || c.Self || c.ID != before[claimed].ID || c.Key != r.facts.Key {
			t.Errorf("the rival is listed as %+v", c)
		}
		unmoved(t, east, "with a rival", before[claimed])
		conflicts := func() []audit.Entry { return toldSince(t, m, gossip.EventConflict, string(r.id)) }
		attacktest.Eventually(t, attacktest.Long, "it is recorded", func() bool { return len(conflicts()) > 0 })
		if told := conflicts(); len(told) != 1 || told[0].Args["cluster"] != before[claimed].ID {
			t.Errorf("recorded: %+v", told)
		}
		if rejectedBy(t, east, gossip.Binding) <= counted {
			t.Error("it is not counted")
		}
		refuses(r, c.Name, "somebody else is known as this cluster")
		if pins := pinsOf(t, east); pins.Clusters[c.ID] != before[claimed].Key.String() || pins.Nodes[string(r.id)] != "" {
			t.Errorf("the pins are %v", pins)
		}
	}
	attacktest.Eventually(t, attacktest.Long, "people are shown both", func() bool {
		res := runTKA(t, east, "clusters", "-o", "wide")
		return res.Exit == 0 && strings.Count(res.Stdout, "conflict") == 2 && strings.Contains(res.Stderr, "tka does not sign in to rival-of-west")
	})

	// Hearsay: of a node that has said nothing itself.
	silent, liar := newRogue(t, east, "go03c", mute), newRogue(t, east, "go03d")
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
	attacktest.Eventually(t, attacktest.Long, "the node itself is asked", func() bool { return silent.count(&silent.asked) > asked })
	if c := of(east, "hearsay"); c.Verified {
		t.Errorf("with the node asked in vain hearsay is listed as %+v", c)
	}
	silent.says(nil)
	attacktest.Eventually(t, attacktest.Long, "its own word counts, of a lower order though it is", func() bool { return aliveTo(t, east, "go03c") })
	if _, ok := clusterOf(t, east, "hearsay"); ok {
		t.Error("hearsay is still listed")
	}

	// Two that are both what they say, by one name.
	control := west.Mark(t) // before the twin is there: the servers ask it by themselves
	attacktest.Eventually(t, attacktest.Long, "tka login --cluster west, the control", func() bool {
		return runTKA(t, east, "login", "--cluster", "west", "--dry-run").Exit == 0 && len(control.Entries(t)) > 0
	})
	twin := newRogue(t, east, "go03e", func(r *rogue) { r.facts.ClusterName = "west" })
	twin.taken(t, east, message(twin.claim(), twin.record))
	refuses(twin, "west", "several clusters by the name west")
	idleSince(t, m)
}
