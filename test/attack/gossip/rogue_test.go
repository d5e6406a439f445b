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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// A rogueMember is a node with a server's tag and its own key. The test builds its messages by hand. It answers requests as
// a member does, unless the test replaces its answers.
type rogueMember struct {
	s     *attacktest.Env
	node  *tsnet.Server
	id    tailcfg.StableNodeID
	key   ed25519.PrivateKey
	facts gossip.Facts
	http  *http.Client
	cut   bool // the test has cut its connection to the servers, so it cannot announce that it leaves

	mu      sync.Mutex
	beat    uint64
	order   gossip.Order
	record  gossip.Signed
	answers http.HandlerFunc // replaces a member's answer
	asked   int              // requests of servers
	knocks  int              // connections to the ports of the sign-in API
}

// newRogue adds a rogue to the tailnet until the test ends.
func newRogue(t *testing.T, s *attacktest.Env, host string, edit ...func(*rogueMember)) *rogueMember {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(nil) // never fails
	r := &rogueMember{s: s, node: s.Net.Node(host, "", "tag:tailplane"), key: key, order: gossip.Order{Generation: uint64(time.Now().Unix()), Version: 1}}
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
		APIEndpoint: "https://k8s." + host + ".example:6443", APIPort: 6443, Labels: map[string]string{"env": "demo"}, Key: httpapi.PublicKey(key.Public().(ed25519.PublicKey)), Software: "9.9.9"}
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
			a := r.tell(t, to, message(fmt.Sprintf("[%q,1,1,1]", r.id))) // the server asks for the record, or has a later one
			return strings.Contains(a.Body, fmt.Sprintf("[%q,", r.id))
		})
	}
	t.Cleanup(func() {
		last, err := r.sealed(r.facts, r.next(), gossip.Left)
		if err != nil {
			t.Error(err)
		}
		r.announces(last)
		for _, to := range r.servers() { // announces that it leaves, so that no server has to detect it
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

// mute makes a rogue that never answers.
func mute(r *rogueMember) {
	r.answers = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
}

// servers returns the genuine servers.
func (r *rogueMember) servers() []*attacktest.Env {
	if second.there {
		return []*attacktest.Env{r.s, second.env}
	}
	return []*attacktest.Env{r.s}
}

// listen answers on the gossip port and counts connections to the ports of the sign-in API.
func (r *rogueMember) listen(t *testing.T) {
	t.Helper()
	ln, err := r.node.Listen("tcp", ":7946")
	if err != nil {
		t.Fatal(err)
	}
	both := new(http.Protocols) // servers use HTTP/2
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

// says replaces the rogue's answers from now on. nil restores the answers of a member.
func (r *rogueMember) says(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = h
}

func (r *rogueMember) count(of *int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *of
}

// own returns the record with which it answers.
func (r *rogueMember) own() gossip.Signed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

// claim returns the digest of the rogue's own record.
func (r *rogueMember) claim() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.numbers()
}

func (r *rogueMember) numbers() string {
	return fmt.Sprintf("[%q,%d,%d,%d]", r.id, r.order.Generation, r.beat, r.order.Version)
}

// next returns an order that no server has seen yet.
func (r *rogueMember) next() gossip.Order {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order.Version++
	return r.order
}

// announces sets the record with which it answers.
func (r *rogueMember) announces(s gossip.Signed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = s
}

// renew signs the current facts.
func (r *rogueMember) renew(t *testing.T) {
	t.Helper()
	record, err := r.sealed(r.facts, r.next(), gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	r.announces(record)
}

// sealed signs the given facts with the rogue's key.
func (r *rogueMember) sealed(f gossip.Facts, o gossip.Order, s gossip.Status) (gossip.Signed, error) {
	f.Key = httpapi.PublicKey(r.key.Public().(ed25519.PublicKey))
	record, err := gossip.Seal(f, o, s, func(b []byte) []byte { return ed25519.Sign(r.key, b) })
	if err != nil {
		return gossip.Signed{}, err
	}
	return record.Signed, nil
}

// signed signs any bytes as the payload of a record.
func (r *rogueMember) signed(payload string) gossip.Signed {
	return gossip.Signed{Payload: []byte(payload), Signature: ed25519.Sign(r.key, []byte("tailplane-record-v1\x00"+payload))}
}

// payload returns the rogue's own record with old replaced by new, and with an order that no server has seen yet.
func (r *rogueMember) payload(t *testing.T, old, new string) string {
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

// message builds a message from a digest and records.
func message(digest string, records ...gossip.Signed) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf(`{"p":%q,"s":%q}`, base64.StdEncoding.EncodeToString(r.Payload), base64.StdEncoding.EncodeToString(r.Signature)))
	}
	return fmt.Sprintf(`{"v":1,"net":"default","d":[%s],"r":[%s]}`, digest, strings.Join(all, ","))
}

// send sends a message to a server; headers are pairs of names and values.
func (r *rogueMember) send(ctx context.Context, to *attacktest.Env, body string, headers ...string) (*http.Response, error) {
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

// tell sends a message to a server and returns its answer. If the tailnet could not identify the sender in time, the
// server has read nothing, and tell sends the message again.
func (r *rogueMember) tell(t *testing.T, to *attacktest.Env, body string, headers ...string) attacktest.Answer {
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

// taken sends a message and requires a normal answer. The caller checks elsewhere whether the content is accepted. A
// peer may send 20 requests a second; above that limit taken tries again.
func (r *rogueMember) taken(t *testing.T, to *attacktest.Env, body string) attacktest.Answer {
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

// forgiven waits until a server's backoff from a rogue ends.
func (r *rogueMember) forgiven(t *testing.T, by *attacktest.Env) time.Duration {
	t.Helper()
	began := time.Now()
	attacktest.Eventually(t, attacktest.Long, "it is listened to again", func() bool {
		a := r.tell(t, by, message(r.claim()))
		if a.Code() == problem.RateLimited {
			time.Sleep(50 * time.Millisecond) // a peer may send 20 requests a second
		}
		return a.Status == http.StatusOK
	})
	return time.Since(began)
}

// introduce makes the rogue a normal member everywhere. This is the control: the tailnet's tag is sufficient.
func (r *rogueMember) introduce(t *testing.T) {
	t.Helper()
	for _, s := range r.servers() {
		r.taken(t, s, message(r.claim(), r.own()))
		attacktest.Eventually(t, attacktest.Long, s.Server()+" lists the rogue as what it is", func() bool { return aliveTo(t, s, r.facts.ClusterName) })
		switch c, _ := clusterOf(t, s, r.facts.ClusterName); {
		case c.APIEndpoint != r.facts.APIEndpoint:
			t.Errorf("listed: c.APIEndpoint = %q, want %q", c.APIEndpoint, r.facts.APIEndpoint)
		case !maps.Equal(c.Labels, r.facts.Labels):
			t.Errorf("listed: c.Labels (-want +got):\n%s", cmp.Diff(r.facts.Labels, c.Labels))
		case c.Key != r.facts.Key:
			t.Errorf("listed: c.Key = %v, want %v", c.Key, r.facts.Key)
		}
		attacktest.Eventually(t, attacktest.Long, "that is kept", func() bool { return pinsOf(t, s).Clusters[r.facts.ClusterID] == r.facts.Key.String() })
	}
}

// learn fetches every record of a server, unchanged.
func (r *rogueMember) learn(t *testing.T, from *attacktest.Env) map[string]*gossip.Record {
	t.Helper()
	all := map[string]*gossip.Record{}
	for digest := r.claim(); ; { // the records do not fit in one answer
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
