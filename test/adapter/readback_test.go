package adapter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// beside starts another adapter for the same clusters. The test may configure and restart it.
func (s *clustersEnv) beside(t testing.TB, config string) *clustersEnv {
	t.Helper()
	o := s.options
	o.Config = config
	return s.startOwn(t, o)
}

// startOwn starts another adapter for the same clusters, which stops with the test.
func (s *clustersEnv) startOwn(t testing.TB, o testenv.AdapterOptions) *clustersEnv {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	own := &clustersEnv{clusters: s.clusters, admin: s.admin, options: o}
	var err error
	if own.adapter, err = testenv.StartAdapter(ctx, filepath.Join(t.TempDir(), "pod"), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(own.adapter.Output(), "\n")
			t.Logf("its own adapter's last lines:\n%s", strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
		if err := own.adapter.Close(); err != nil {
			t.Error(err)
		}
	})
	return own
}

// A breakableWatcher counts watch requests. It can end the open watch as a broken connection does.
type breakableWatcher struct {
	maps interface {
		Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	}
	mu     sync.Mutex
	from   []string // the requested positions
	stands bool     // the last event is a bookmark
	open   watch.Interface
}

func (c *breakableWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := c.maps.Watch(ctx, o)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from = append(c.from, o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	c.open = watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stands = e.Type == watch.Bookmark
		return e, true
	})
	return c.open, nil
}

func (c *breakableWatcher) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Stop()
}

func (c *breakableWatcher) placed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stands
}

func (c *breakableWatcher) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.from)
}

// ADP-08: client-go's RetryWatcher continues from its last bookmark after a cut, without a gap and without
// duplicates. When its position has expired, it gets one error in the stream and ends. It does not retry endlessly.
func TestSeveral_RetryWatcher(t *testing.T) {
	three := three(t)
	three.clean(t)
	s := three.beside(t, severalConfig)
	shop := s.client(t).CoreV1().ConfigMaps("shop")
	l, err := shop.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &breakableWatcher{maps: shop}
	rw, err := watchtools.NewRetryWatcherWithContext(t.Context(), l.ResourceVersion, c)
	if err != nil {
		t.Fatal(err)
	}
	defer rw.Stop()
	event := func() watch.Event {
		t.Helper()
		select {
		case e, ok := <-rw.ResultChan():
			if !ok {
				t.Fatal("the watcher has ended")
			}
			return e
		case <-time.After(limit):
			t.Fatalf("no event; it watched from %q", c.asked())
		}
		panic("unreachable")
	}
	seen := func(name string) {
		t.Helper()
		if e := event(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != name {
			t.Fatalf("%s %v instead of %s", e.Type, e.Object, name)
		}
	}
	s.make(t, "east", "first")
	seen("first")
	for i, cluster := range []string{"east", "west", "west"} {
		eventually(t, "a bookmark behind the events", c.placed)
		c.cut()
		name := fmt.Sprint("while-away-", i)
		s.make(t, cluster, name)
		seen(name)
	}
	for _, position := range c.asked() {
		if len(position) != 11+3*20 {
			t.Errorf("it continued from %q, which is not a position of the adapter", position)
		}
	}

	expire := func(why string, rw *watchtools.RetryWatcher, c *breakableWatcher) {
		t.Helper()
		select {
		case e := <-rw.ResultChan():
			if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: it received %s %v", why, e.Type, e.Object)
			}
		case <-time.After(limit):
			t.Fatalf("%s: it received nothing; it watched from %q", why, c.asked())
		}
		select {
		case <-rw.Done():
		case <-time.After(limit):
			t.Fatalf("%s: it does not end; it watched from %q", why, c.asked())
		}
	}
	before := len(c.asked())
	if err := s.adapter.Configure(strings.Replace(severalConfig, "epoch: 1", "epoch: 2", 1)); err != nil {
		t.Fatal(err)
	}
	expire("a raised epoch", rw, c)
	// Its stream ends with the epoch, and the next request gets an error.
	if n := len(c.asked()) - before; n > 1 {
		t.Errorf("after a raised epoch, it sent %d requests: %q", n, c.asked())
	}
	for why, position := range map[string]string{"a position of the epoch before": l.ResourceVersion, "a number that nobody gave out": "1"} {
		c := &breakableWatcher{maps: shop}
		rw, err := watchtools.NewRetryWatcherWithContext(t.Context(), position, c)
		if err != nil {
			t.Fatal(err)
		}
		expire(why, rw, c)
		if n := len(c.asked()); n != 1 {
			t.Errorf("%s: it sent %d requests", why, n)
		}
	}
}

// ADP-08: client-go's MutationCache compares the resource versions of objects, which come from their clusters. A
// written object is read back, and the cache never panics.
func TestSeveral_MutationCache(t *testing.T) {
	s := three(t)
	s.clean(t)
	factory := informers.NewSharedInformerFactoryWithOptions(s.client(t), 0, informers.WithNamespace("shop"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	mutations := cache.NewIntegerResourceVersionMutationCache(logr.Discard(), informer.GetStore(), informer.GetIndexer(), time.Hour, true)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { mutations.OnAddOrUpdate(o.(runtime.Object)) },
		UpdateFunc: func(_, o any) { mutations.OnAddOrUpdate(o.(runtime.Object)) },
		DeleteFunc: func(o any) {
			if object, ok := o.(runtime.Object); ok {
				mutations.OnDelete(object)
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	synced, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if !cache.WaitForCacheSync(synced.Done(), informer.HasSynced) {
		t.Fatal("it does not sync")
	}
	shop := s.client(t).CoreV1().ConfigMaps("shop")
	wrote := func(cm *corev1.ConfigMap, err error) *corev1.ConfigMap {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		mutations.Mutation(cm)
		got, ok, err := mutations.GetByKey("shop/" + cm.Name)
		switch {
		case err != nil:
			t.Fatalf("%v; %s", err, cm.Name)
		case !ok:
			t.Fatalf("ok is false; %s, %v, got = %v, %v", cm.Name, cm.Data, got, err)
		case got.(*corev1.ConfigMap).Data["n"] != cm.Data["n"]:
			t.Fatalf(`got.(*corev1.ConfigMap).Data["n"] = %q, want %q; %s`, got.(*corev1.ConfigMap).Data["n"], cm.Data["n"], cm.Name)
		}
		return cm
	}
	for i := range 40 {
		name, tier := fmt.Sprint("mutated-", i), []string{"gold", "iron"}[i%2]
		cm := configMap("shop", name, map[string]string{"tier": tier})
		cm.Data["n"] = "0"
		cm = wrote(shop.Create(ctx, cm, metav1.CreateOptions{}))
		for n := range 3 {
			cm = cm.DeepCopy()
			cm.Data["n"] = fmt.Sprint(n + 1)
			cm = wrote(shop.Update(ctx, cm, metav1.UpdateOptions{}))
		}
		if i%4 == 0 {
			if err := shop.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.await(t, factory.Core().V1().ConfigMaps().Lister().ConfigMaps("shop").List)
	eventually(t, "the deleted object is no longer in the cache", func() bool {
		_, there, err := mutations.GetByKey("shop/mutated-0")
		return err == nil && !there
	})
	all, err := mutations.ByIndex(cache.NamespaceIndex, "shop")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, o := range all {
		if cm := o.(*corev1.ConfigMap); strings.HasPrefix(cm.Name, "mutated-") {
			if found++; cm.Data["n"] != "3" {
				t.Errorf("%s has the value of write %s", cm.Name, cm.Data["n"])
			}
		}
	}
	if found != 30 {
		t.Errorf("%d of 30 are in the index", found)
	}
}

// ADP-08: controller-runtime's client reads its own writes, with a cache over the namespaces of three clusters. No
// write fails, no read hangs, and the final content is the union.
func TestSeveral_ReadYourWrites(t *testing.T) {
	s := three(t)
	s.clean(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conf := config(t, s.adapter)
	k, err := ctrlcache.New(conf, ctrlcache.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- k.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := client.New(conf, client.Options{Scheme: scheme.Scheme, Cache: &client.CacheOptions{Reader: k, EnableReadYourWritesConsistency: new(true)}})
	if err != nil {
		t.Fatal(err)
	}
	within := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, limit)
		t.Cleanup(cancel)
		return ctx
	}
	r := rand.New(rand.NewPCG(3, 4))
	there := map[string]string{} // the last write, by namespace and name
	slow, stale := 0, 0
	for i := range 150 {
		namespace := []string{"shop", "default", "production"}[r.IntN(3)]
		key := client.ObjectKey{Namespace: namespace, Name: fmt.Sprint("ryw-", r.IntN(12))}
		cm := configMap(key.Namespace, key.Name, map[string]string{"ryw": "yes"})
		cm.Data["n"] = fmt.Sprint(i)
		var err error
		switch _, is := there[key.String()]; {
		case !is:
			err = c.Create(within(), cm)
			there[key.String()] = cm.Data["n"]
		case r.IntN(4) == 0:
			// The client looks for the UID in its cache. The cache may not have the object yet, for the reason below.
			wait := within()
			for err = c.Delete(wait, cm); apierrors.IsNotFound(err) && wait.Err() == nil; err = c.Delete(wait, cm) {
				time.Sleep(10 * time.Millisecond)
			}
			delete(there, key.String())
		case r.IntN(2) == 0:
			err = c.Patch(within(), cm, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"data":{"n":"%d"}}`, i)))
			there[key.String()] = cm.Data["n"]
		default:
			err = c.Update(within(), cm)
			there[key.String()] = cm.Data["n"]
		}
		if err != nil {
			t.Fatalf("write %d of %s: %v", i, key, err)
		}
		began := time.Now()
		var got corev1.ConfigMap
		switch err := c.Get(within(), key, &got); {
		case err != nil && !apierrors.IsNotFound(err):
			t.Fatalf("read %d of %s: %v", i, key, err)
		case got.Data["n"] != there[key.String()]:
			stale++ // the largest known version may be another cluster's, as without the feature
		}
		if i%10 == 0 {
			var l corev1.ConfigMapList
			if err := c.List(within(), &l, client.MatchingLabels{"ryw": "yes"}); err != nil {
				t.Fatalf("list %d: %v", i, err)
			}
		}
		if time.Since(began) > time.Second {
			slow++
		}
	}
	t.Logf("of 150 reads, %d were stale, %d took more than a second", stale, slow)
	eventually(t, "the cache is the union", func() bool {
		var l corev1.ConfigMapList
		if err := k.List(ctx, &l, client.MatchingLabels{"ryw": "yes"}); err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		for _, cm := range l.Items {
			have[cm.Namespace+"/"+cm.Name] = cm.Data["n"]
		}
		return fmt.Sprint(have) == fmt.Sprint(there)
	})
	for cluster, namespace := range map[string]string{"here": "default", "east": "production"} {
		if err := s.admin[cluster].CoreV1().ConfigMaps(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "ryw"}); err != nil {
			t.Error(err)
		}
	}
}
