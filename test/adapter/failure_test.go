package adapter

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// follower is an unmodified informer of the namespace shop. It counts its lists and the deletions that it received.
type follower struct {
	listers.ConfigMapNamespaceLister
	deleted atomic.Int64
	expired atomic.Int64 // watches that ended because a position was too old
}

func (s *clustersEnv) follow(t *testing.T) *follower {
	t.Helper()
	f := &follower{}
	factory := informers.NewSharedInformerFactoryWithOptions(s.client(t), 0, informers.WithNamespace("shop"))
	informer := factory.Core().V1().ConfigMaps()
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { f.deleted.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	if err := informer.Informer().SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			f.expired.Add(1)
		}
		t.Logf("the informer: %v", err)
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	synced, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if !cache.WaitForCacheSync(synced.Done(), informer.Informer().HasSynced) {
		t.Fatal("it does not sync")
	}
	f.ConfigMapNamespaceLister = informer.Lister().ConfigMaps("shop")
	return f
}

// make creates a ConfigMap of the namespace shop in a cluster, without the adapter.
func (s *clustersEnv) make(t *testing.T, cluster, name string) {
	t.Helper()
	s.makeLabelled(t, cluster, name, nil)
}

func (s *clustersEnv) makeLabelled(t *testing.T, cluster, name string, labels map[string]string) {
	t.Helper()
	maps := s.admin[cluster].CoreV1().ConfigMaps("shop")
	if _, err := maps.Create(t.Context(), configMap("shop", name, labels), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// AD-05, AD-06, ADP-07, ADP-18: while a member is down, a list fails as a whole and names it. A request for one of
// its objects gets 503 and never "not found". Clients keep the objects in their caches. When the member is back, they
// catch up without a new list.
func TestSeveral_MemberDown(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.make(t, "east", "of-east")
	s.make(t, "west", "of-west")
	f := s.follow(t)
	s.await(t, f.List)
	k := s.client(t)
	shop := k.CoreV1().ConfigMaps("shop")
	for _, name := range []string{"of-east", "of-west"} {
		if _, err := shop.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	if err := s.clusters["west"].Kill(); err != nil {
		t.Fatal(err)
	}
	restarted := false
	restart := func() {
		if restarted {
			return
		}
		restarted = true
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		if err := s.clusters["west"].Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	defer restart()
	down := func(what string, err error) {
		t.Helper()
		if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "west") {
			t.Errorf("%s: %v, want a 503 that names west", what, err)
		}
	}
	// A client repeats every answer with a Retry-After, so each request gets a time limit.
	ask := func(f func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return f(ctx)
	}
	down("list", ask(func(ctx context.Context) error { _, err := shop.List(ctx, metav1.ListOptions{}); return err }))
	down("get", ask(func(ctx context.Context) error { _, err := shop.Get(ctx, "of-west", metav1.GetOptions{}); return err }))
	down("get of what may be there", ask(func(ctx context.Context) error { _, err := shop.Get(ctx, "perhaps", metav1.GetOptions{}); return err }))
	down("delete", ask(func(ctx context.Context) error { return shop.Delete(ctx, "of-west", metav1.DeleteOptions{}) }))
	down("create that belongs there", ask(func(ctx context.Context) error {
		_, err := shop.Create(ctx, configMap("shop", "new", map[string]string{"tier": "gold"}), metav1.CreateOptions{})
		return err
	}))
	if got, err := shop.Get(t.Context(), "of-east", metav1.GetOptions{}); err != nil || got.Name != "of-east" {
		t.Errorf("the other member's: %v", err)
	}
	if _, err := k.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("at home: %v", err)
	}
	if _, err := k.CoreV1().ConfigMaps("production").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a namespace of east alone: %v", err)
	}
	switch cms, err := f.List(labels.Everything()); {
	case err != nil:
		t.Errorf("the cache: %v", err)
	case len(cms) < 2:
		t.Errorf("the cache: len(cms) = %v, want at least 2", len(cms))
	case f.deleted.Load() != 0:
		t.Errorf("the cache: f.deleted.Load() = %v, want 0", f.deleted.Load())
	}
	s.make(t, "east", "meanwhile")

	restart()
	s.make(t, "west", "after")
	if err := s.admin["west"].CoreV1().ConfigMaps("shop").Delete(t.Context(), "of-west", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await(t, f.List)
	if n := f.deleted.Load(); n != 1 {
		t.Errorf("%d were reported as deleted, want only the deleted one", n)
	}
}

// ADP-05, ADP-07: the adapter's container restarts under running informers.
func TestSeveral_AdapterRestart(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.make(t, "east", "before")
	f := s.follow(t)
	s.await(t, f.List)
	s.adapter.Kill()
	s.make(t, "west", "meanwhile")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := s.adapter.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.await(t, f.List)
	if f.deleted.Load() != 0 || f.expired.Load() != 0 {
		t.Errorf("%d were reported as deleted, %d positions had expired", f.deleted.Load(), f.expired.Load())
	}
}

// ADP-19: the configuration changes under load. No request is lost. A configuration that is invalid or does not raise
// the epoch is refused. A raised epoch makes each watch read again.
func TestSeveral_Reload(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.make(t, "east", "a")
	s.make(t, "west", "b")
	f := s.follow(t)
	s.await(t, f.List)
	ctx, stop := context.WithCancel(t.Context())
	var requests, failures atomic.Int64
	done := make(chan error, 4)
	for range 4 {
		shop := s.client(t).CoreV1().ConfigMaps("shop")
		go func() {
			for ctx.Err() == nil {
				requests.Add(1)
				if l, err := shop.List(ctx, metav1.ListOptions{}); ctx.Err() == nil && (err != nil || len(l.Items) < 2) {
					failures.Add(1)
					done <- fmt.Errorf("a list: %w", err)
					return
				}
			}
			done <- nil
		}()
	}
	taken := func(config, word string) {
		t.Helper()
		before := strings.Count(s.adapter.Output(), word)
		if err := s.adapter.Configure(config); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); strings.Count(s.adapter.Output(), word) == before; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > limit {
				t.Fatalf("not %q within %v", word, limit)
			}
		}
	}
	const yes, no = "the configuration is active", "the configuration is rejected"
	taken("nonsense", no)
	taken(strings.Replace(severalConfig, "members: [east, west]", "members: [west, east]", 1), "raise epoch to 2")
	taken(strings.Replace(severalConfig, "strategy: hash", "strategy: weighted", 1), yes)
	if f.expired.Load() != 0 {
		t.Errorf("%d positions expired because of a change that needs no epoch", f.expired.Load())
	}
	taken(strings.Replace(severalConfig, "epoch: 1", "epoch: 2", 1), yes) // and it stays: an epoch never decreases
	s.make(t, "west", "c")
	s.await(t, f.List)
	stop()
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if requests.Load() < 20 {
		t.Errorf("only %d requests were made", requests.Load())
	}
	t.Logf("%d lists through four changes, %d lost", requests.Load(), failures.Load())
	if f.deleted.Load() != 0 {
		t.Errorf("%d were reported as deleted", f.deleted.Load())
	}
}

// Section 7: a client cannot use a position in a collection to which it does not belong. A server never receives a
// merged position.
func TestSeveral_Positions(t *testing.T) {
	s := three(t)
	s.clean(t)
	s.make(t, "east", "a")
	k := s.client(t)
	l, err := k.CoreV1().ConfigMaps("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v := l.ResourceVersion
	if len(v) != 11+20*3 || v[0] != '1' {
		t.Fatalf("a vector of three slots: %q", v)
	}
	for _, tt := range []struct {
		why, namespace string
		options        metav1.ListOptions
		status         int
	}{
		{"a vector at home, most recent", "default", metav1.ListOptions{ResourceVersion: v}, http.StatusOK},
		{"a vector at home, exactly", "default", metav1.ListOptions{ResourceVersion: v, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, http.StatusGone},
		{"the vector itself", "shop", metav1.ListOptions{ResourceVersion: v}, http.StatusOK},
		// The cluster here is no member, so its field is zero.
		{"the vector itself, exactly", "shop", metav1.ListOptions{ResourceVersion: v, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, http.StatusGone},
		{"one more slot than there are", "shop", metav1.ListOptions{ResourceVersion: v + strings.Repeat("0", 20)}, http.StatusOK},
		{"a broken one", "shop", metav1.ListOptions{ResourceVersion: v + "0"}, http.StatusBadRequest},
		{"no number", "shop", metav1.ListOptions{ResourceVersion: "x"}, http.StatusBadRequest},
		{"an epoch that is ahead", "shop", metav1.ListOptions{ResourceVersion: "19999999999" + v[11:]}, http.StatusGatewayTimeout},
		{"a token that is broken", "shop", metav1.ListOptions{Continue: "eyJ2IjoibWNhLzEifQ"}, http.StatusBadRequest},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		req := s.client(t).CoreV1().RESTClient().Get().Namespace(tt.namespace).Resource("configmaps").VersionedParams(&tt.options, scheme.ParameterCodec).MaxRetries(0)
		status := 0
		res := req.Do(ctx)
		res.StatusCode(&status)
		cancel()
		if tt.why == "the vector itself, exactly" {
			if status != http.StatusOK && status != http.StatusGone {
				t.Errorf("%s: %d %v", tt.why, status, res.Error())
			}
			continue
		}
		if status != tt.status {
			t.Errorf("%s: %d %v, want %d", tt.why, status, res.Error(), tt.status)
		}
	}
	w, err := k.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: v})
	if err != nil {
		t.Fatalf("a vector in a watch at home: %v", err)
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		if err := apierrors.FromObject(e.Object); e.Type != "ERROR" || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("%s %v", e.Type, e.Object)
		}
	case <-time.After(limit):
		t.Error("silence")
	}
}

// ADP-17: a namespace moves to another cluster under running informers. They list again, none stays without events,
// and none receives a false event.
func TestSeveral_Retarget(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	s := three(t)
	o := s.options
	moving := func(epoch int, cluster string) string {
		return strings.NewReplacer("epoch: 1", fmt.Sprint("epoch: ", epoch), "match: {namespaces: [production]}, target: {cluster: east}", "match: {namespaces: [production]}, target: {cluster: "+cluster+"}").Replace(severalConfig)
	}
	o.Config = moving(1, "east")
	own := &clustersEnv{clusters: s.clusters, admin: s.admin}
	var err error
	if own.adapter, err = testenv.StartAdapter(ctx, filepath.Join(t.TempDir(), "pod"), o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := own.adapter.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, cluster := range []string{"east", "west"} {
		if _, err := s.admin[cluster].CoreV1().ConfigMaps("production").Create(ctx, configMap("production", "of-"+cluster, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer s.admin[cluster].CoreV1().ConfigMaps("production").Delete(context.Background(), "of-"+cluster, metav1.DeleteOptions{})
	}
	factory := informers.NewSharedInformerFactoryWithOptions(own.client(t), 0, informers.WithNamespace("production"))
	informer := factory.Core().V1().ConfigMaps()
	informer.Informer()
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	factory.WaitForCacheSync(ctx.Done())
	sees := func(want string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			cms, err := informer.Lister().List(labels.Everything())
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, cm := range cms {
				if strings.HasPrefix(cm.Name, "of-") || strings.HasPrefix(cm.Name, "new-") {
					names = append(names, cm.Name)
				}
			}
			slices.Sort(names)
			if have := strings.Join(names, " "); have == want {
				return
			} else if time.Since(began) > limit {
				t.Fatalf("the informer has %q, want %q", have, want)
			}
		}
	}
	sees("of-east")
	if err := own.adapter.Configure(moving(2, "west")); err != nil {
		t.Fatal(err)
	}
	sees("of-west")
	// And back again, while the adapter is down.
	own.adapter.Kill()
	if err := own.adapter.Configure(moving(3, "east")); err != nil {
		t.Fatal(err)
	}
	if err := own.adapter.Start(ctx); err != nil {
		t.Fatal(err)
	}
	sees("of-east")
	if _, err := own.client(t).CoreV1().ConfigMaps("production").Create(ctx, configMap("production", "new-one", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer s.admin["east"].CoreV1().ConfigMaps("production").Delete(context.Background(), "new-one", metav1.DeleteOptions{})
	sees("new-one of-east")
}
