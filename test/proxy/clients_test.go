package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// A transcript is what the clients of one side sent, and what they saw.
type transcript struct {
	mu    sync.Mutex
	lines []string
	ns    string
	next  http.RoundTripper
}

// What differs between two runs of the same program.
var changing = []struct {
	pattern *regexp.Regexp
	to      string
}{
	{regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|time|acquireTime|renewTime|deletionTimestamp|ip|podIP)": ?"[^"]*"`), `"$1":"…"`},
	{regexp.MustCompile(`resourceVersion=[0-9]+`), "resourceVersion=…"},
	{regexp.MustCompile(`timeoutSeconds=[0-9]+`), "timeoutSeconds=…"},
	{regexp.MustCompile(`continue=[0-9A-Za-z%_-]+`), "continue=…"},
	{regexp.MustCompile(`timeout=[0-9a-z]+`), "timeout=…"},
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`), "…"},
	{regexp.MustCompile(`\b[0-9]+(ms|s)\b`), "…"},
	{regexp.MustCompile(`resourceVersion: "[0-9]+"`), "resourceVersion: …"},
	{regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +[0-9]+ [0-9:]{8} [0-9]{4}`), "…"},
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+ \+0000( UTC)?`), "…"},
	{regexp.MustCompile(`/(LIVE|MERGED)-[0-9]+/`), "/$1/"},
	{regexp.MustCompile(`  +`), "  "}, // columns are as wide as their widest value
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "…"},
}

func (s *transcript) normal(text string) string {
	text = strings.ReplaceAll(text, s.ns, "NS")
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.to)
	}
	return text
}

func (s *transcript) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, s.normal(fmt.Sprintf(format, args...)))
}

// RoundTrip implements [http.RoundTripper]. It records the request, and the answer with its body unless it is a watch.
func (s *transcript) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := s.next.RoundTrip(r)
	path := strings.TrimPrefix(r.URL.RequestURI(), "/s/edit")
	if err != nil {
		return nil, err
	}
	body := []byte("(a stream)")
	if r.URL.Query().Get("watch") == "" {
		if body, err = io.ReadAll(res.Body); err != nil {
			return nil, err
		}
		res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(body))
		if !strings.Contains(res.Header.Get("Content-Type"), "json") {
			body = []byte("(not JSON)")
		}
	}
	s.add("%s %s as %s: %d %s, Retry-After %q, Warning %q: %s", r.Method, path, r.Header.Get("Accept"), res.StatusCode, res.Header.Get("Content-Type"), res.Header.Get("Retry-After"), res.Header["Warning"], body)
	return res, nil
}

// A side is one way to the API server, and what was seen on it.
type side struct {
	*transcript
	config *rest.Config
}

// newSide returns a side with a namespace of its own.
func newSide(t *testing.T, r *testenv.Env, config *rest.Config) *side {
	s := &side{transcript: &transcript{ns: r.Cluster.Namespace(t)}, config: rest.CopyConfig(config)}
	s.config.QPS = -1
	s.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.next = next
		return s
	})
	return s
}

// PRX-01: client-go's clients, informers with and without WatchList, leader election and controller-runtime send the same
// requests, receive the same answers and see the same events through the proxy as at the API server itself.
func TestPRX01_Clients(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-clients", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	token := tokenOf(t, alice)
	through, err := url.Parse(alice.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]*rest.Config{
		"direct": r.Cluster.TokenConfig(token),
		"proxy": {Host: r.ProxyServer() + "/s/edit", BearerToken: "session.edit", Proxy: http.ProxyURL(through),
			TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(r.Dir, "roots.pem")}},
	}
	for _, script := range []struct {
		name   string
		run    func(context.Context, *side) error
		sorted bool // the order of the requests is not determined
	}{
		{"typed", typedScript, false}, {"dynamic", dynamicScript, false}, {"metadata", metadataScript, false},
		{"informer, list and watch", informerScript, true}, {"informer, WatchList", informerScript, true},
		{"leader election", electionScript, false}, {"controller-runtime", controllerScript, true},
	} {
		t.Run(script.name, func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, features.WatchListClient, strings.Contains(script.name, "WatchList"))
			got := map[string][]string{}
			for name, config := range configs {
				s := newSide(t, r, config)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if err := script.run(ctx, s); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				cancel()
				s.mu.Lock()
				got[name] = slices.Clone(s.lines)
				s.mu.Unlock()
				if script.sorted {
					slices.Sort(got[name])
					got[name] = slices.Compact(got[name])
				}
			}
			if len(got["direct"]) < 3 {
				t.Errorf("the transcript has %d lines only", len(got["direct"]))
			}
			if diff := cmp.Diff(got["direct"], got["proxy"]); diff != "" {
				t.Errorf("(-direct +proxy):\n%s", diff)
			}
		})
	}
}

func configMap(ns, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": "x"}}, Data: map[string]string{"a": "b"}}
}

// typedScript uses each verb of the typed client in JSON and protobuf, with its usual errors.
func typedScript(ctx context.Context, s *side) error {
	for _, kind := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		c := rest.CopyConfig(s.config)
		c.ContentType, c.AcceptContentTypes = kind, kind+",application/json"
		k, err := kubernetes.NewForConfig(c)
		if err != nil {
			return err
		}
		maps := k.CoreV1().ConfigMaps(s.ns)
		events, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "app=x"})
		if err != nil {
			return err
		}
		made, err := maps.Create(ctx, configMap(s.ns, "one"), metav1.CreateOptions{})
		s.add("created: %v", err)
		_, err = maps.Create(ctx, configMap(s.ns, "one"), metav1.CreateOptions{})
		s.add("created twice: %v", err)
		made.Data["a"] = "c"
		_, err = maps.Update(ctx, made, metav1.UpdateOptions{})
		s.add("updated: %v", err)
		made.Data["a"] = "d"
		_, err = maps.Update(ctx, made, metav1.UpdateOptions{})
		s.add("a stale update: %v", err)
		_, err = maps.Patch(ctx, "one", types.MergePatchType, []byte(`{"data":{"b":"c"}}`), metav1.PatchOptions{FieldManager: "test"})
		s.add("patched: %v", err)
		_, err = maps.Patch(ctx, "one", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"s":"t"}}`), metav1.PatchOptions{FieldManager: "apply"})
		s.add("applied: %v", err)
		_, err = maps.Create(ctx, configMap(s.ns, "Not Valid"), metav1.CreateOptions{})
		s.add("not valid: %v", err)
		list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "app=x", Limit: 1})
		s.add("%d listed: %v", len(list.Items), err)
		_, err = maps.Get(ctx, "none", metav1.GetOptions{})
		s.add("none: %v", err)
		_, err = k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		s.add("forbidden: %v", err)
		s.add("deleted: %v", maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=x"}))
		if err := s.addEvents(ctx, events, watch.Deleted); err != nil {
			return err
		}
		version, err := k.Discovery().ServerVersion()
		s.add("%v: %v", version, err)
		_, err = k.Discovery().ServerPreferredResources()
		s.add("resources: %v", err)
	}
	return nil
}

// addEvents adds the events of a watch until one of a type.
func (s *side) addEvents(ctx context.Context, w watch.Interface, last watch.EventType) error {
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("the watch ended before %s", last)
			}
			o, err := meta.Accessor(e.Object)
			if err != nil {
				s.add("event %s %T", e.Type, e.Object)
			} else {
				s.add("event %s %s", e.Type, o.GetName())
			}
			if e.Type == last {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func dynamicScript(ctx context.Context, s *side) error {
	d, err := dynamic.NewForConfig(s.config)
	if err != nil {
		return err
	}
	deployments := d.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace(s.ns)
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"}, "spec": map[string]any{
		"replicas": int64(0), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": "example.com/web:1"}}}}}}}
	_, err = deployments.Apply(ctx, "web", u, metav1.ApplyOptions{FieldManager: "test", DryRun: []string{"All"}})
	s.add("applied for a try: %v", err)
	_, err = deployments.Create(ctx, u, metav1.CreateOptions{DryRun: []string{"All"}}, "scale")
	s.add("a subresource that cannot be created: %v", err)
	u.Object["spec"].(map[string]any)["unknown"] = true
	_, err = deployments.Create(ctx, u, metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{"All"}})
	s.add("strict: %v", err)
	_, err = deployments.Create(ctx, u, metav1.CreateOptions{FieldValidation: "Warn", DryRun: []string{"All"}})
	s.add("warned: %v", err)
	_, err = d.Resource(schema.GroupVersionResource{Group: "none.example.com", Version: "v1", Resource: "nothings"}).List(ctx, metav1.ListOptions{})
	s.add("an unknown group: %v", err)
	return nil
}

func metadataScript(ctx context.Context, s *side) error {
	k, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if _, err := k.CoreV1().ConfigMaps(s.ns).Create(ctx, configMap(s.ns, name), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	m, err := metadata.NewForConfig(s.config)
	if err != nil {
		return err
	}
	objects := m.Resource(configMaps).Namespace(s.ns)
	for next := ""; ; {
		list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: "app=x", Limit: 2, Continue: next})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			s.add("metadata of %s: %v", o.Name, o.Labels)
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	return objects.Delete(ctx, "a", metav1.DeleteOptions{})
}

// informerScript sees an object that was there, one that comes, and its end.
func informerScript(ctx context.Context, s *side) error {
	k, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return err
	}
	maps := k.CoreV1().ConfigMaps(s.ns)
	if _, err := maps.Create(ctx, configMap(s.ns, "before"), metav1.CreateOptions{}); err != nil {
		return err
	}
	all := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace(s.ns))
	informer, gone := all.Core().V1().ConfigMaps().Informer(), make(chan struct{})
	name := func(o any) string { return o.(metav1.Object).GetName() }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.add("informer: %s was added", name(o)) },
		DeleteFunc: func(o any) {
			s.add("informer: %s was deleted", name(o))
			close(gone)
		}}); err != nil {
		return err
	}
	defer all.Shutdown()
	running, stop := context.WithCancel(ctx)
	defer stop()
	all.StartWithContext(running)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("the informer has no objects: %w", ctx.Err())
	}
	if _, err := maps.Create(ctx, configMap(s.ns, "during"), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, "during", metav1.DeleteOptions{}); err != nil {
		return err
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the informer did not see the end: %w", ctx.Err())
	}
}

func electionScript(ctx context.Context, s *side) error {
	k, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "leader"}, Client: k.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "me"}}
	leaderelection.RunOrDie(running, leaderelection.LeaderElectionConfig{Lock: lock, ReleaseOnCancel: true, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 30 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				s.add("leading")
				stop()
			},
			OnStoppedLeading: func() { s.add("not leading") },
		}})
	return ctx.Err()
}

// controllerScript runs a controller that labels each ConfigMap.
func controllerScript(ctx context.Context, s *side) error {
	ctrl.SetLogger(logr.FromSlogHandler(slog.DiscardHandler))
	running, stop := context.WithCancel(ctx)
	defer stop()
	m, err := ctrl.NewManager(s.config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}, Cache: ctrlcache.Options{DefaultNamespaces: map[string]ctrlcache.Config{s.ns: {}}}})
	if err != nil {
		return err
	}
	skip := true // the name of a controller is unique in its process
	err = ctrl.NewControllerManagedBy(m).For(&corev1.ConfigMap{}).WithOptions(controller.Options{SkipNameValidation: &skip}).Complete(reconcile.Func(func(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
		if q.Name != "mine" {
			return ctrl.Result{}, nil
		}
		var cm corev1.ConfigMap
		if err := m.GetClient().Get(ctx, q.NamespacedName, &cm); err != nil {
			return ctrl.Result{}, err
		}
		if cm.Labels["seen"] == "yes" {
			s.add("reconciled")
			stop()
			return ctrl.Result{}, nil
		}
		before := cm.DeepCopy()
		cm.Labels["seen"] = "yes"
		return ctrl.Result{}, m.GetClient().Patch(ctx, &cm, ctrlclient.MergeFrom(before))
	}))
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Start(running) }()
	if err := m.GetClient().Create(ctx, configMap(s.ns, "mine")); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	return ctx.Err()
}
