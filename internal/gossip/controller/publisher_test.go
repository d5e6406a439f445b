//go:build unix

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gossip"
)

// Two servers of one cluster, with the rights in the package comment. One leads and writes. When it ends, it releases the Lease, and the
// other server takes over at once.
func TestPublishers(t *testing.T) {
	p := newEnv(t)
	lease := func() *coordinationv1.Lease {
		l := new(coordinationv1.Lease)
		if err := p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: LeaseName}, l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	var log recordingLog
	server := func(name string) *Publisher {
		return &Publisher{Config: p.config, Namespace: p.ns, Log: log.logger(), Now: time.Now, Clusters: func() []Cluster { return []Cluster{clusterNamed(name)} }}
	}
	shown := func() string {
		var m Members
		if err := json.Unmarshal([]byte(p.configMap().Data[MembersData]), &m); err != nil || len(m.Clusters) != 1 {
			return ""
		}
		return m.Clusters[0].Name
	}
	one, two := server("one"), server("two")
	stop := background(t, one.Run)
	p.until("the first one writes", func() bool { return shown() == "one" })
	if !one.leading.Load() {
		t.Error("who writes does not lead")
	}
	background(t, two.Run)
	held := lease().Spec.RenewTime.Time
	p.until("the Lease is renewed", func() bool { return lease().Spec.RenewTime.After(held) })
	if two.leading.Load() || shown() != "one" {
		t.Error("both lead")
	}
	transitions := lease().Spec.LeaseTransitions
	stop()
	if one.leading.Load() {
		t.Error("who has ended leads")
	}
	p.until("the second one writes", func() bool { return shown() == "two" })
	if l := lease(); !two.leading.Load() || *l.Spec.LeaseTransitions != *transitions+1 {
		t.Errorf("after the takeover: %v, %+v", two.leading.Load(), l.Spec)
	}
	if n := log.count("level=WARN"); n != 0 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// A server that has heard no other server publishes its own cluster if the list is empty, and removes no cluster from the list. It may be
// waiting only for nodes that never respond, such as the operator plane's.
func TestNoPeerSeen(t *testing.T) {
	p := newEnv(t)
	shown := func() (names string) {
		var m Members
		if json.Unmarshal([]byte(p.configMap().Data[MembersData]), &m) != nil {
			return "nothing"
		}
		for _, c := range m.Clusters {
			names += c.Name + " "
		}
		return names
	}
	var log recordingLog
	var heard atomic.Bool
	var looks atomic.Int64
	server := func(names ...string) *Publisher {
		return &Publisher{Config: p.config, Namespace: p.ns, Log: log.logger(), Now: time.Now, Ready: heard.Load, Clusters: func() (all []Cluster) {
			looks.Add(1)
			for _, name := range names {
				all = append(all, clusterNamed(name))
			}
			return all
		}}
	}
	stop := background(t, server("east").Run)
	p.until("it shows itself", func() bool { return shown() == "east " })
	stop()
	stop = background(t, server("east", "west").Run)
	p.until("another server is added", func() bool { return shown() == "east west " })
	stop()
	looks.Store(0)
	background(t, server("east").Run)
	p.until("it has looked more than once", func() bool { return looks.Load() > 2 })
	if shown() != "east west " {
		t.Errorf("a server without contacts shows %s", shown())
	}
	heard.Store(true)
	p.until("a server that is gone is removed", func() bool { return shown() == "east " })
	if n := log.count("level=WARN"); n != 0 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// A missing Lease is reported once, and used when it appears.
func TestNoLease(t *testing.T) {
	p := newEnv(t)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: LeaseName}}
	if err := p.admin.Delete(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	var log recordingLog
	s := &Publisher{Config: p.config, Namespace: p.ns, Log: log.logger(), Now: time.Now, Clusters: func() []Cluster { return []Cluster{clusterNamed("east")} }}
	background(t, s.Run)
	p.until("the error is logged", func() bool {
		return log.count("the Lease "+p.ns+"/"+LeaseName+" does not exist; the manifests must create it") == 1
	})
	l.ResourceVersion, l.UID = "", ""
	if err := p.admin.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	p.until("it leads", s.leading.Load)
	if log.count("the manifests must create it") != 1 || log.count("works again") != 1 {
		t.Error(log.String())
	}
}

func TestPublisherSettings(t *testing.T) {
	var log recordingLog
	good := func() *Publisher {
		return &Publisher{Config: new(rest.Config), Namespace: "n", Log: log.logger(), Now: time.Now, Clusters: func() []Cluster { return nil }}
	}
	for _, spoil := range []func(*Publisher){
		func(p *Publisher) { p.Config = nil }, func(p *Publisher) { p.Namespace = "" }, func(p *Publisher) { p.Log = nil }, func(p *Publisher) { p.Now = nil },
		func(p *Publisher) { p.Clusters = nil }, func(p *Publisher) { p.Profiles = new(Profiles) },
		func(p *Publisher) { p.Profiles = &Profiles{Namespace: "n", ForgetAfter: time.Hour} },
	} {
		p := good()
		spoil(p)
		if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "need") {
			t.Errorf("%v", err)
		}
	}
}

// A fakeAPI stores a few objects, as JSON by path, so that time can be virtual. The tests above check the behaviour of a real API server.
type fakeAPI struct {
	mu      sync.Mutex
	objects map[string][]byte
	writes  map[string][]time.Time
	hangs   bool
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{writes: map[string][]time.Time{}, objects: map[string][]byte{
		"/apis/coordination.k8s.io/v1/namespaces/n/leases/tailplane-access": []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"namespace":"n","name":"tailplane-access"}}`),
		"/api/v1/namespaces/n/configmaps/tailplane-members":                 []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"n","name":"tailplane-members"}}`),
	}}
}

func (m *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hangs {
		m.mu.Unlock()
		<-r.Context().Done()
		m.mu.Lock()
		return nil, r.Context().Err()
	}
	answer := func(status int, b []byte) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
	}
	was, ok := m.objects[r.URL.Path]
	if !ok {
		return answer(http.StatusNotFound, []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	}
	if r.Method == http.MethodPut {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		was = b
		m.objects[r.URL.Path] = b
		m.writes[r.URL.Path] = append(m.writes[r.URL.Path], time.Now())
	}
	return answer(http.StatusOK, was)
}

func (m *fakeAPI) config() *rest.Config {
	return &rest.Config{Host: "http://memory", Transport: m, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
}

func (m *fakeAPI) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = true
}

func (m *fakeAPI) written(name string) (times []time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for path, w := range m.writes {
		if strings.HasSuffix(path, "/"+name) {
			times = slices.Clone(w)
		}
	}
	return times
}

// However often the list changes, it is written at most every two seconds. If only lastSeen changes, it is written once a minute.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log recordingLog
		api, busy := newFakeAPI(), time.Now().Add(time.Minute)
		p := &Publisher{Config: api.config(), Namespace: "n", Log: log.logger(), Now: time.Now, Clusters: func() []Cluster {
			c := clusterNamed("east")
			c.LastSeen = time.Now()
			if time.Now().Before(busy) {
				c.Labels = map[string]string{"at": time.Now().Format("150405.000")}
			}
			return []Cluster{c}
		}}
		stop := background(t, p.Run)
		time.Sleep(time.Until(busy))
		synctest.Wait()
		w := api.written(MembersConfigMap)
		for i := range w[1:] {
			if d := w[i+1].Sub(w[i]); d < publishEvery {
				t.Errorf("two writes within %v", d)
			}
		}
		if len(w) < 29 || len(w) > 31 {
			t.Errorf("%d writes in a minute", len(w))
		}
		time.Sleep(10 * time.Minute)
		if n := len(api.written(MembersConfigMap)) - len(w); n < 9 || n > 11 {
			t.Errorf("%d writes in ten quiet minutes", n)
		}
		stop()
		if log.count("level=WARN") > 0 {
			t.Error(log.String())
		}
	})
}

// An empty list is not written and never a reason to remove existing data.
func TestNothingToPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log recordingLog
		api, mute := newFakeAPI(), time.Now().Add(10*time.Second)
		p := &Publisher{Config: api.config(), Namespace: "n", Log: log.logger(), Now: time.Now, Clusters: func() []Cluster {
			if time.Now().After(mute) {
				return nil
			}
			return []Cluster{clusterNamed("east")}
		}}
		stop := background(t, p.Run)
		time.Sleep(10 * time.Minute)
		if !p.leading.Load() || len(api.written(MembersConfigMap)) != 1 {
			t.Errorf("leads %v, wrote %v", p.leading.Load(), api.written(MembersConfigMap))
		}
		stop()
	})
}

// Run ends within two seconds whatever the API server does, and releases the Lease if it can.
func TestEnd(t *testing.T) {
	for _, hangs := range []string{"", "before the end", "before the election"} {
		synctest.Test(t, func(t *testing.T) {
			var log recordingLog
			api := newFakeAPI()
			if hangs == "before the election" {
				api.hang()
			}
			fetched := make(chan struct{})
			once := sync.OnceFunc(func() { close(fetched) })
			p := &Publisher{Config: api.config(), Namespace: "n", Log: log.logger(), Now: time.Now, Clusters: func() []Cluster { once(); return []Cluster{clusterNamed("east")} },
				Profiles: &Profiles{Namespace: "n", ForgetAfter: time.Hour, CA: func(ctx context.Context, _ Cluster) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }}}
			stop := background(t, p.Run)
			if hangs != "before the election" {
				<-fetched
			}
			time.Sleep(time.Second)
			if hangs != "" {
				api.hang()
				time.Sleep(4 * time.Second) // requests are under way
			}
			began := time.Now()
			stop()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("hanging %q: it took %v", hangs, took)
			}
			if hangs == "" {
				api.mu.Lock()
				defer api.mu.Unlock()
				for path, b := range api.objects {
					if strings.HasSuffix(path, LeaseName) && bytes.Contains(b, []byte("_")) {
						t.Errorf("the Lease is held: %s", b)
					}
				}
			}
			if log.count("cancel") > 0 {
				t.Errorf("the end is reported as a failure: %s", log.String())
			}
		})
	}
}

// A server that cannot renew in time stops, and leads again when it can.
func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log recordingLog
		api := newFakeAPI()
		p := &Publisher{Config: api.config(), Namespace: "n", Log: log.logger(), Now: time.Now, Clusters: func() []Cluster {
			c := clusterNamed("east")
			c.State = gossip.States()[time.Now().Second()%3] // changes all the time
			return []Cluster{c}
		}}
		stop := background(t, p.Run)
		time.Sleep(10 * time.Second)
		if !p.leading.Load() {
			t.Fatal("it does not lead")
		}
		api.hang()
		time.Sleep(leaseDuration)
		if p.leading.Load() {
			t.Error("it leads although its Lease has run out")
		}
		api.mu.Lock()
		api.hangs = false
		before := time.Now()
		api.mu.Unlock()
		time.Sleep(time.Minute)
		if w := api.written(MembersConfigMap); !p.leading.Load() || w[len(w)-1].Before(before) {
			t.Error("it does not begin again")
		}
		stop()
	})
}
