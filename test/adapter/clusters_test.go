package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// ConfigMaps of the namespace shop are spread, those of production are only in east, and everything else is in here.
const severalConfig = `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: here
clusters:
- {name: here, slot: 0, inCluster: true}
- {name: east, slot: 1, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 2, allowLoopback: true, credentials: {secret: west}}
rules:
- {name: elections-at-home, match: {apiGroups: [coordination.k8s.io]}, target: {cluster: here}}
- {name: production, match: {namespaces: [production]}, target: {cluster: east}}
- name: shop
  match: {apiGroups: [""], resources: [configmaps], namespaces: [shop]}
  target:
    spread:
      members: [east, west]
      place: [{labels: "tier in (gold)", cluster: west}]
      strategy: hash
      onConflict: reject
`

// clustersEnv holds three clusters, and a pod's adapter for them.
type clustersEnv struct {
	clusters map[string]*kubetest.Cluster
	admin    map[string]*kubernetes.Clientset // clients without the adapter
	adapter  *testenv.Adapter
	dir      string
	options  testenv.AdapterOptions
}

// usedThree reports that three clusters must be stopped.
var usedThree bool

var threeOnce = sync.OnceValues(func() (*clustersEnv, error) {
	usedThree = true
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	s := &clustersEnv{clusters: map[string]*kubetest.Cluster{}, admin: map[string]*kubernetes.Clientset{}}
	var err error
	if s.dir, err = os.MkdirTemp("", "several"); err != nil {
		return s, err
	}
	s.options = testenv.AdapterOptions{Namespace: "default", Config: severalConfig, Secrets: map[string]map[string]string{}}
	for _, name := range []string{"here", "east", "west"} {
		c, err := kubetest.Run(ctx, kubetest.Options{Name: name})
		if err != nil {
			return s, err
		}
		s.clusters[name] = c
		if s.admin[name], err = kubernetes.NewForConfig(unlimited(c.AdminConfig())); err != nil {
			return s, err
		}
		for _, ns := range []string{"shop", "production"} {
			if _, err := s.admin[name].CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
				return s, err
			}
		}
		token, err := account(ctx, c, "default", "app", "cluster-admin")
		if err != nil {
			return s, err
		}
		if name == "here" {
			s.options.Server, s.options.CA, s.options.Token = c.Server, c.CA, token
			continue
		}
		s.options.Secrets[name] = map[string]string{"server": c.Server, "ca.crt": string(c.CA), "token": token}
	}
	s.adapter, err = testenv.StartAdapter(ctx, filepath.Join(s.dir, "pod"), s.options)
	return s, err
})

func unlimited(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS = -1
	return c
}

// three returns the clusters and the adapter that the tests about several clusters share.
func three(t testing.TB) *clustersEnv {
	t.Helper()
	s, err := threeOnce()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(s.adapter.Output(), "\n")
			t.Logf("the adapter's last lines:\n%s", strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	return s
}

func (s *clustersEnv) close() (err error) {
	if s.adapter != nil {
		err = s.adapter.Close()
	}
	for _, c := range s.clusters {
		if cerr := c.Close(); cerr != nil {
			err = cerr
		}
	}
	os.RemoveAll(s.dir)
	return err
}

// client returns an application's client, through the adapter.
func (s *clustersEnv) client(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(config(t, s.adapter))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// has returns the cluster with the ConfigMap of that name. It queries the clusters directly.
func (s *clustersEnv) has(t testing.TB, namespace, name string) string {
	t.Helper()
	var in []string
	for _, cluster := range slices.Sorted(maps.Keys(s.admin)) {
		switch _, err := s.admin[cluster].CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); {
		case err == nil:
			in = append(in, cluster)
		case !apierrors.IsNotFound(err):
			t.Fatal(err)
		}
	}
	return strings.Join(in, " ")
}

func configMap(namespace, name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Data: map[string]string{"x": name}}
}

// clean removes the objects of a test from the namespace shop.
func (s *clustersEnv) clean(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		for _, k := range s.admin {
			if err := k.CoreV1().ConfigMaps("shop").DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "!keep"}); err != nil {
				t.Error(err)
			}
		}
	})
}

// ADP-11: labels, pin or name of a new object decide its cluster, and every request that names it finds it there. An
// existing object stays in its cluster.
func TestSeveral_Creates(t *testing.T) {
	s := three(t)
	s.clean(t)
	ctx, k := t.Context(), s.client(t)
	shop := k.CoreV1().ConfigMaps("shop")
	for name, tt := range map[string]struct {
		object *corev1.ConfigMap
		in     string
	}{
		"by label":     {configMap("shop", "gold", map[string]string{"tier": "gold"}), "west"},
		"by pin":       {configMap("shop", "pinned", map[string]string{"mca.tailplane.dev/cluster": "east", "tier": "gold"}), "east"},
		"at home":      {configMap("default", "plain", nil), "here"},
		"by namespace": {configMap("production", "mine", nil), "east"},
	} {
		if _, err := k.CoreV1().ConfigMaps(tt.object.Namespace).Create(ctx, tt.object, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if in := s.has(t, tt.object.Namespace, tt.object.Name); in != tt.in {
			t.Errorf("%s: it is in %q, want %s", name, in, tt.in)
		}
		if got, err := k.CoreV1().ConfigMaps(tt.object.Namespace).Get(ctx, tt.object.Name, metav1.GetOptions{}); err != nil || got.Data["x"] != tt.object.Name {
			t.Errorf("%s: get: %v", name, err)
		}
	}
	both := map[string]bool{}
	for i := range 16 {
		name := fmt.Sprint("hash-", i)
		if _, err := shop.Create(ctx, configMap("shop", name, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		both[s.has(t, "shop", name)] = true
	}
	switch {
	case !both["east"]:
		t.Errorf(`by name: both["east"] is false; both = %v`, both)
	case !both["west"]:
		t.Errorf(`by name: both["west"] is false; both = %v`, both)
	case len(both) != 2:
		t.Errorf("by name: len(both) = %v, want 2", len(both))
	}
	made, err := shop.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "any-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if in := s.has(t, "shop", made.Name); in != "east" && in != "west" {
		t.Errorf("generated: in %q", in)
	}
	if err := shop.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete the object with a generated name: %v", err)
	}

	// Its label now selects another cluster, but it stays.
	gold, err := shop.Get(ctx, "gold", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gold.Labels = map[string]string{"tier": "iron"}
	if _, err := shop.Update(ctx, gold, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update: %v", err)
	}
	if in := s.has(t, "shop", "gold"); in != "west" {
		t.Errorf("a changed label moved it to %q", in)
	}
	if _, err := shop.Create(ctx, configMap("shop", "gold", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second object with the name: %v", err)
	}
	if _, err := shop.Get(ctx, "nowhere", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that no cluster has: %v", err)
	}
	if _, err := shop.Create(ctx, configMap("shop", "lost", map[string]string{"mca.tailplane.dev/cluster": "north"}), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a pin to nowhere: %v", err)
	}
	if err := shop.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("AD-10: %v", err)
	}
}

// ADP-11: of concurrent creates of one name one succeeds.
func TestSeveral_ConcurrentCreates(t *testing.T) {
	s := three(t)
	s.clean(t)
	shop := s.client(t).CoreV1().ConfigMaps("shop")
	for round := range 5 {
		name := fmt.Sprint("race-", round)
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			tier := []string{"gold", "iron"}[i%2]
			wg.Go(func() {
				_, errs[i] = shop.Create(t.Context(), configMap("shop", name, map[string]string{"tier": tier}), metav1.CreateOptions{})
			})
		}
		wg.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if !apierrors.IsAlreadyExists(err) {
				t.Error(err)
			}
		}
		if in := s.has(t, "shop", name); made != 1 || in != "east" && in != "west" {
			t.Errorf("%d objects were created, in %q", made, in)
		}
	}
}

// ADP-09, ADP-16, with kubectl: lists, pages and tables are the union.
func TestSeveral_Kubectl(t *testing.T) {
	s := three(t)
	s.clean(t)
	want := map[string]bool{}
	for i := range 12 {
		cluster := []string{"east", "west"}[i%2]
		name := fmt.Sprint("listed-", i)
		if _, err := s.admin[cluster].CoreV1().ConfigMaps("shop").Create(t.Context(), configMap("shop", name, map[string]string{"set": "listed"}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want[name] = true
	}
	for _, args := range [][]string{
		{"get", "cm", "-n", "shop", "-l", "set=listed", "-o", "name"},
		{"get", "cm", "-n", "shop", "-l", "set=listed", "-o", "name", "--chunk-size=5"},
		{"get", "cm", "-n", "shop", "-l", "set=listed", "-o", "name", "--chunk-size=1"},
	} {
		got := map[string]bool{}
		for line := range strings.FieldsSeq(kubectl(t, s.adapter, args...)) {
			got[strings.TrimPrefix(line, "configmap/")] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("kubectl %v: %v", args, slices.Sorted(maps.Keys(got)))
		}
	}
	wide := kubectl(t, s.adapter, "get", "cm", "-n", "shop", "-l", "set=listed", "-o", "wide")
	switch {
	case !strings.Contains(wide, "CLUSTER"):
		t.Errorf("the table: wide = %q does not contain %q", wide, "CLUSTER")
	case strings.Count(wide, "east") != 6:
		t.Errorf(`the table: strings.Count(wide, "east") = %v, want 6`, strings.Count(wide, "east"))
	case strings.Count(wide, "west") != 6:
		t.Errorf(`the table: strings.Count(wide, "west") = %v, want 6`, strings.Count(wide, "west"))
	}
	all := kubectl(t, s.adapter, "get", "cm", "-A", "-o", "name")
	for name := range want {
		if strings.Count(all+"\n", "configmap/"+name+"\n") != 1 {
			t.Errorf("in all namespaces, %s occurs %d times", name, strings.Count(all+"\n", "configmap/"+name+"\n"))
		}
	}
	for _, args := range [][]string{{"describe", "cm", "-n", "shop", "listed-1"}, {"api-resources"}, {"explain", "configmap.data"}, {"auth", "can-i", "get", "cm", "-n", "shop"}, {"get", "ns", "shop"}} {
		kubectl(t, s.adapter, args...)
	}
}

// ADP-07: the cache of an unmodified informer equals the union, through changes in all members.
func TestSeveral_Informer(t *testing.T) {
	s := three(t)
	s.clean(t)
	for _, proto := range []bool{false, true} {
		t.Run(fmt.Sprintf("protobuf %v", proto), func(t *testing.T) {
			c := config(t, s.adapter)
			if proto {
				c.ContentType, c.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
			}
			k, err := kubernetes.NewForConfig(c)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			factory := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace("shop"))
			informer := factory.Core().V1().ConfigMaps()
			var deleted sync.Map // names for which the informer received a deletion
			if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
				if cm, ok := o.(*corev1.ConfigMap); ok {
					deleted.Store(cm.Name, true)
				}
			}}); err != nil {
				t.Fatal(err)
			}
			factory.Start(ctx.Done())
			defer factory.Shutdown()
			defer cancel()
			synced, stop := context.WithTimeout(ctx, limit)
			defer stop()
			if !cache.WaitForCacheSync(synced.Done(), informer.Informer().HasSynced) {
				t.Fatal("it does not sync")
			}
			there := map[string]string{} // the clusters' content: name to cluster
			gone := map[string]bool{}
			r := rand.New(rand.NewPCG(1, 2))
			for i := range 300 {
				cluster := []string{"east", "west"}[r.IntN(2)]
				cms := s.admin[cluster].CoreV1().ConfigMaps("shop")
				name := fmt.Sprintf("%v-%d", proto, r.IntN(40))
				switch at := there[name]; {
				case at == "":
					_, err = cms.Create(ctx, configMap("shop", name, nil), metav1.CreateOptions{})
					there[name] = cluster
				case r.IntN(3) == 0:
					err = s.admin[at].CoreV1().ConfigMaps("shop").Delete(ctx, name, metav1.DeleteOptions{})
					delete(there, name)
					gone[name] = true
				default:
					cm := configMap("shop", name, nil)
					cm.Data["n"] = fmt.Sprint(i)
					_, err = s.admin[at].CoreV1().ConfigMaps("shop").Update(ctx, cm, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			s.await(t, informer.Lister().ConfigMaps("shop").List)
			deleted.Range(func(name, _ any) bool {
				if !gone[name.(string)] && strings.HasPrefix(name.(string), fmt.Sprint(proto)) {
					t.Errorf("%s was reported as deleted but was not", name)
				}
				return true
			})
		})
	}
}

// await waits until a cache equals the union of the members' objects.
func (s *clustersEnv) await(t *testing.T, list func(labels.Selector) ([]*corev1.ConfigMap, error)) {
	t.Helper()
	text := func(cms []*corev1.ConfigMap) string {
		lines := make([]string, 0, len(cms))
		for _, cm := range cms {
			data, err := json.Marshal(cm.Data)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, cm.Name+" "+cm.ResourceVersion+" "+string(data))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	var want []*corev1.ConfigMap
	for _, cluster := range []string{"east", "west"} {
		l, err := s.admin[cluster].CoreV1().ConfigMaps("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Items {
			want = append(want, &l.Items[i])
		}
	}
	names := map[string]int{}
	for _, cm := range want {
		names[cm.Name]++
	}
	want = slices.DeleteFunc(want, func(cm *corev1.ConfigMap) bool { return cm.Name == "kube-root-ca.crt" })
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		have, err := list(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		have = slices.DeleteFunc(slices.Clone(have), func(cm *corev1.ConfigMap) bool { return cm.Name == "kube-root-ca.crt" })
		if text(have) == text(want) {
			return
		}
		if time.Since(began) > limit {
			t.Fatalf("the cache has\n%s\nwant\n%s", text(have), text(want))
		}
	}
}
