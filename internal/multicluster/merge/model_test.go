package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// configMaps is the part of a scheme that the protobuf decoder needs.
type configMaps struct{}

func (configMaps) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	switch kind.Kind {
	case "Status":
		return &metav1.Status{}, nil
	case "ConfigMapList":
		return &corev1.ConfigMapList{}, nil
	}
	return &corev1.ConfigMap{}, nil
}
func (configMaps) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	switch o.(type) {
	case *metav1.Status:
		return []schema.GroupVersionKind{{Version: "v1", Kind: "Status"}}, false, nil
	case *corev1.ConfigMapList:
		return []schema.GroupVersionKind{{Version: "v1", Kind: "ConfigMapList"}}, false, nil
	}
	return []schema.GroupVersionKind{{Version: "v1", Kind: "ConfigMap"}}, false, nil
}
func (configMaps) Recognizes(schema.GroupVersionKind) bool { return true }

func decode(b []byte, into runtime.Object, proto bool) error {
	if !proto {
		return json.Unmarshal(b, into)
	}
	_, _, err := protobuf.NewSerializer(configMaps{}, configMaps{}).Decode(b, nil, into)
	return err
}

func decodeEvent(b []byte, proto bool) (typ string, o *corev1.ConfigMap, s *metav1.Status, err error) {
	var ev metav1.WatchEvent
	if proto {
		err = ev.Unmarshal(b)
	} else {
		err = json.Unmarshal(b, &ev)
	}
	if err != nil {
		return "", nil, nil, err
	}
	if ev.Type == "ERROR" {
		s = &metav1.Status{}
		return ev.Type, nil, s, decode(ev.Object.Raw, s, proto)
	}
	o = &corev1.ConfigMap{}
	return ev.Type, o, nil, decode(ev.Object.Raw, o, proto)
}

// clusters are the members of an adapter. Several instances of the adapter share only the configuration.
type clusters struct {
	mu     sync.Mutex
	stores []*memberStore
	format codec.Format
	spread bool
	keep   func(member string) func(ns []byte) bool
	skip   bool
	epoch  uint64
	// instances of the adapter share only the configuration.
	instances []*instance
}

type instance struct {
	ctx  context.Context
	stop func()
}

func newInstance() *instance {
	ctx, stop := context.WithCancel(context.Background())
	return &instance{ctx, stop}
}

// restart ends the streams of an instance and drops its state.
func (c *clusters) restart(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[i].stop()
	c.instances = slices.Clone(c.instances)
	c.instances[i] = newInstance()
}

func (c *clusters) instance(i int) *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[i]
}

func (c *clusters) all() []*memberStore {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stores
}

func (c *clusters) collection(inst *instance) *Collection {
	stores := c.all()
	m := &Collection{Epoch: max(c.epoch, 1), Width: len(stores), Spread: c.spread, Hash: "0123456789abcdef"}
	for i, s := range stores {
		member := Member{Slot: i, Name: s.name}
		if c.keep != nil {
			member.Keep = c.keep(s.name)
		}
		m.Members = append(m.Members, member)
	}
	m.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
		return stores[m.Slot].fetch(ctx, a, c.format)
	}
	if c.skip {
		m.Skip = func(Member, error) bool { return true }
	}
	return m
}

// union returns the objects that a client should have in the end. Of copies it has the earliest.
func (c *clusters) union() map[string]string {
	m := map[string]string{}
	stores := c.all()
	for i := len(stores) - 1; i >= 0; i-- {
		s := stores[i]
		s.mu.Lock()
		for key, o := range s.now {
			if c.keep == nil || c.keep(s.name)([]byte(o.Namespace)) {
				m[key] = o.Data["member"] + " " + o.Data["value"]
			}
		}
		s.mu.Unlock()
	}
	return m
}

// deleted reports whether a member's history has exactly this event.
func (c *clusters) deleted(o *corev1.ConfigMap) bool {
	for _, s := range c.all() {
		s.mu.Lock()
		found := slices.ContainsFunc(s.history, func(h change) bool {
			return h.typ == "DELETED" && h.what.Name == o.Name && h.what.Namespace == o.Namespace && h.what.ResourceVersion == o.ResourceVersion && h.what.Data["member"] == o.Data["member"]
		})
		s.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// client maintains a cache as a reflector does.
type client struct {
	c         *clusters
	rand      *rand.Rand
	watchList bool
	limit     int64

	mu      sync.Mutex
	cache   map[string]string
	rv      string // where it would resume
	highest string
	relists int
	expired int
	broken  []string
}

func (c *client) fail(format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

// position records the resourceVersion of a list or a bookmark.
func (c *client) position(rv string) {
	if c.highest != "" && !c.c.skip { // a member that is left out returns to 0
		if order, err := resourceversion.CompareResourceVersion(c.highest, rv); err != nil || order > 0 {
			c.fail("after %s comes %s: %v", c.highest, rv, err)
		}
	}
	c.highest, c.rv = rv, rv
}

// Event implements Sink.
func (c *client) Event(b []byte) error {
	typ, o, status, err := decodeEvent(b, c.c.format.Proto)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.fail("an event that cannot be read: %v", err)
		return err
	}
	switch typ {
	case "ERROR":
		if status.Code != 410 || status.Reason != metav1.StatusReasonExpired {
			c.fail("told %+v", status)
		}
		c.expired++
	case "BOOKMARK":
		if o.Kind != "ConfigMap" && !c.c.format.Proto {
			c.fail("a bookmark of kind %q", o.Kind)
		}
		c.position(o.ResourceVersion)
	case "DELETED":
		if !c.c.deleted(o) {
			c.fail("an invented DELETED of %s at %s", o.Name, o.ResourceVersion)
		}
		if _, ok := c.cache[o.Namespace+"/"+o.Name]; !ok && !c.c.spread {
			c.fail("DELETED of %s, which it does not have", o.Name)
		}
		delete(c.cache, o.Namespace+"/"+o.Name)
		c.rv = o.ResourceVersion
	default:
		c.cache[o.Namespace+"/"+o.Name] = o.Data["member"] + " " + o.Data["value"]
		c.rv = o.ResourceVersion
	}
	return nil
}

func (c *client) Flush() error { return nil }

// list reads the whole list, in pages if it has a limit.
func (c *client) list(ctx context.Context, inst *instance) error {
	q := Query{Limit: c.limit}
	cache := map[string]string{}
	for {
		l, err := c.c.collection(inst).List(ctx, q)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		_, err = l.WriteTo(&b)
		l.Close()
		if err != nil {
			return err
		}
		var got corev1.ConfigMapList
		if err := decode(b.Bytes(), &got, c.c.format.Proto); err != nil {
			c.fail("a list that cannot be read: %v: %q", err, b.Bytes())
			return err
		}
		for _, o := range got.Items {
			if was, ok := cache[o.Namespace+"/"+o.Name]; ok {
				c.fail("%s is in the list twice, after %s", o.Name, was)
			}
			cache[o.Namespace+"/"+o.Name] = o.Data["member"] + " " + o.Data["value"]
		}
		if got.Continue == "" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.cache = cache
			c.relists++
			c.position(got.ResourceVersion)
			return nil
		}
		q.Continue = got.Continue
	}
}

// run lists and watches until ctx ends. Each watch ends after a while, by disconnecting or cleanly, and
// resumes at any instance.
func (c *client) run(ctx context.Context) {
	known, at := false, 0
	for ctx.Err() == nil {
		if len(c.rv) > 20 || !known { // with the resourceVersion of an event, it returns to the same instance
			at = c.rand.IntN(2)
		}
		inst := c.c.instance(at)
		if !known && !c.watchList {
			if err := c.list(ctx, inst); err != nil {
				retry.Sleep(ctx, time.Second)
				continue
			}
			known = true
		}
		q := Query{Watch: true, RV: c.rv, Bookmarks: true}
		if !known {
			q = Query{Watch: true, Initial: new(true), Match: "NotOlderThan", Bookmarks: true}
			c.mu.Lock()
			c.cache = map[string]string{}
			c.mu.Unlock()
		}
		before, expired := c.highest, c.expired
		w, err := c.c.collection(inst).Watch(ctx, q, c.c.format)
		if err != nil {
			retry.Sleep(ctx, time.Second)
			continue
		}
		once, cancel := context.WithCancel(ctx)
		context.AfterFunc(inst.ctx, cancel)
		if c.rand.IntN(2) == 0 {
			w.Timeout = time.Duration(1+c.rand.IntN(20)) * time.Second
		} else {
			time.AfterFunc(time.Duration(1+c.rand.IntN(20_000))*time.Millisecond, cancel)
		}
		err = w.Run(once, c)
		cancel()
		if _, status := errors.AsType[*codec.Status](err); status != (c.expired > expired) {
			c.fail("the stream ended with %v and told %d times", err, c.expired-expired)
		}
		if c.watchList && !known {
			known = c.highest != before // the initial events have ended
		}
		if c.expired > expired {
			known = false
		}
	}
}

// TestModel randomly changes members, stops and restarts them, expires their history, and disconnects
// clients. In the end each cache must equal the union. No DELETED event may be invented and no position may
// decrease (AD-06, AD-07).
func TestModel(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { runModel(t, seed) })
		})
	}
}

func runModel(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	c := &clusters{format: codec.Format{Proto: seed%2 == 1}, instances: []*instance{newInstance(), newInstance()}}
	c.spread = seed%4 >= 2
	overlap := c.spread && seed%8 >= 4
	c.skip = seed%5 == 4
	old := seed%7 == 6
	for i := range 1 + r.IntN(4) {
		c.stores = append(c.stores, newMemberStore(fmt.Sprint("m", i), 1000+r.Uint64N(50)))
		c.stores[i].old = old
	}
	if !c.spread && seed%3 == 0 { // each namespace belongs to one member
		c.keep = func(member string) func([]byte) bool {
			return func(ns []byte) bool { return (string(ns) == "ns0") == (member == "m0") }
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var clients []*client
	var wg sync.WaitGroup
	for i := range 3 {
		cl := &client{c: c, rand: rand.New(rand.NewPCG(seed, uint64(i+2))), watchList: i == 0 && !old, cache: map[string]string{}}
		if i == 2 {
			cl.limit = 1 + r.Int64N(5)
		}
		clients = append(clients, cl)
		wg.Go(func() { cl.run(ctx) })
	}
	for step := range 1200 {
		if step == 600 { // an added cluster does not need a new epoch
			c.mu.Lock()
			c.stores = append(slices.Clone(c.stores), newMemberStore(fmt.Sprint("m", len(c.stores)), 1000+r.Uint64N(50)))
			c.stores[len(c.stores)-1].old = old
			c.mu.Unlock()
		}
		i := r.IntN(len(c.stores))
		s := c.stores[i]
		name := fmt.Sprint("o", r.IntN(12))
		if !overlap {
			name = fmt.Sprintf("%s-m%d", name, i)
		}
		ns := fmt.Sprint("ns", r.IntN(2))
		switch n := r.IntN(100); {
		case n < 60:
			s.set(ns, name, fmt.Sprint(step), 1+r.Uint64N(3))
		case n < 88:
			s.remove(ns, name, 1+r.Uint64N(3))
		case n < 91:
			s.compact()
		case n < 95:
			s.cut([]error{nil, io.ErrUnexpectedEOF}[r.IntN(2)])
		case n < 97:
			s.configure(true)
		case step%50 == 0:
			c.restart(r.IntN(2))
		default:
			s.configure(false)
		}
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	}
	for _, s := range c.stores {
		s.configure(false)
	}
	want := c.union()
	deadline := time.Now().Add(5 * time.Minute) // in the bubble's time
	for {
		time.Sleep(3 * time.Second)
		same := true
		for _, cl := range clients {
			cl.mu.Lock()
			same = same && maps.Equal(cl.cache, want)
			cl.mu.Unlock()
		}
		if same {
			break
		}
		if time.Now().After(deadline) {
			for i, cl := range clients {
				cl.mu.Lock()
				for key := range want {
					if cl.cache[key] != want[key] {
						t.Errorf("client %d: %s is %q, not %q", i, key, cl.cache[key], want[key])
					}
				}
				for key := range cl.cache {
					if _, ok := want[key]; !ok {
						t.Errorf("client %d: %s still exists: %q", i, key, cl.cache[key])
					}
				}
				cl.mu.Unlock()
			}
			break
		}
	}
	cancel()
	wg.Wait()
	for i, cl := range clients {
		for _, b := range cl.broken[:min(len(cl.broken), 5)] {
			t.Errorf("client %d: %s", i, b)
		}
		t.Logf("client %d: %d relists, %d responses with expired", i, cl.relists, cl.expired)
	}
}
