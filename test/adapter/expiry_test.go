package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// forgetful returns three clusters. West compacts its history within seconds, as an API server does within minutes.
// It has no watch cache to continue from.
func forgetful(t *testing.T) (*clustersEnv, *relay) {
	t.Helper()
	three := three(t)
	three.clean(t)
	west := kubetest.New(t, kubetest.Options{Name: "forgetful", NoControllers: true, Args: []string{"--watch-cache=false", "--etcd-compaction-interval=1s"}})
	admin, err := kubernetes.NewForConfig(unlimited(west.AdminConfig()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := account(t.Context(), west, "default", "app", "cluster-admin")
	if err != nil {
		t.Fatal(err)
	}
	s := &clustersEnv{clusters: maps.Clone(three.clusters), admin: maps.Clone(three.admin), options: three.options}
	s.clusters["west"], s.admin["west"] = west, admin
	s.options.Secrets = maps.Clone(three.options.Secrets)
	way := newRelay(t, strings.TrimPrefix(west.Server, "https://"))
	s.options.Secrets["west"] = map[string]string{"server": "https://" + way.Addr().String(), "ca.crt": string(west.CA), "token": token}
	return s.beside(t, severalConfig), way
}

// A relay is a proxy before a cluster whose connections can be cut.
type relay struct {
	net.Listener
	mu   sync.Mutex
	shut bool
	open []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: ln}
	t.Cleanup(func() { ln.Close(); r.cut(true) })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go r.carry(c, to)
		}
	}()
	return r
}

func (r *relay) carry(c net.Conn, to string) {
	defer c.Close()
	d, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer d.Close()
	r.mu.Lock()
	shut := r.shut
	r.open = append(r.open, c, d)
	r.mu.Unlock()
	if shut {
		return
	}
	go func() {
		defer c.Close()
		io.Copy(c, d)
	}()
	io.Copy(d, c)
}

// cut closes the open connections. With shut, it also closes later ones.
func (r *relay) cut(shut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = shut
	for _, c := range r.open {
		c.Close()
	}
	r.open = nil
}

// forgets waits until a cluster has compacted its history at rv.
func (s *clustersEnv) forgets(t *testing.T, cluster, rv string) {
	t.Helper()
	eventually(t, cluster+" forgets "+rv, func() bool {
		_, err := s.admin[cluster].CoreV1().ConfigMaps("shop").List(t.Context(), metav1.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Fatal(err)
		}
		return err != nil
	})
}

// A recordingClient counts the requests and the answers of an informer.
type recordingClient struct {
	next   http.RoundTripper
	whole  atomic.Int64 // answers with the complete list
	mu     sync.Mutex
	errors []string // ERROR events, and answers other than 200
}

func (o *recordingClient) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	res, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if q.Get("watch") == "" || q.Get("sendInitialEvents") == "true" {
		o.whole.Add(1)
	}
	if res.StatusCode != http.StatusOK {
		o.told(res.Status)
	}
	in, out := io.Pipe()
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(res.Body, out), closer{res.Body, out}}
	if q.Get("watch") != "" {
		go func() {
			defer io.Copy(io.Discard, in)
			for d := json.NewDecoder(in); ; {
				var e struct {
					Type   string
					Object struct{ Code int }
				}
				if d.Decode(&e) != nil {
					return
				}
				if e.Type == "ERROR" {
					o.told(fmt.Sprint(e.Object.Code))
				}
			}
		}()
	} else {
		go io.Copy(io.Discard, in)
	}
	return res, nil
}

type closer []io.Closer

func (c closer) Close() (err error) {
	for _, each := range c {
		err = each.Close()
	}
	return err
}

func (o *recordingClient) told(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errors = append(o.errors, what)
}

func TestSeveral_Forgotten(t *testing.T) {
	s, way := forgetful(t)
	t.Run("watch", func(t *testing.T) { compaction(t, s, way) })
	t.Run("page", func(t *testing.T) { expiredPage(t, s) })
}

// ADP-07: one member compacts its history while its connection is cut. An informer gets exactly one 410, lists once,
// and then has the current objects. It receives deletions only for objects that are really gone.
func compaction(t *testing.T, s *clustersEnv, way *relay) {
	s.make(t, "east", "of-east")
	s.make(t, "west", "of-west")
	s.make(t, "west", "stays")
	conf := config(t, s.adapter)
	conf.ContentType, conf.AcceptContentTypes = "application/json", "application/json"
	ears := &recordingClient{}
	conf.Wrap(func(next http.RoundTripper) http.RoundTripper { ears.next = next; return ears })
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace("shop"))
	informer := factory.Core().V1().ConfigMaps()
	var mu sync.Mutex
	var deleted []string
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		mu.Lock()
		defer mu.Unlock()
		deleted = append(deleted, o.(*corev1.ConfigMap).Name)
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	s.await(t, informer.Lister().ConfigMaps("shop").List)
	whole := ears.whole.Load()

	way.cut(true)
	if err := s.admin["west"].CoreV1().ConfigMaps("shop").Delete(t.Context(), "of-west", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.make(t, "west", "new-1")
	last, err := s.admin["west"].CoreV1().ConfigMaps("shop").Get(t.Context(), "new-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.make(t, "west", "new-2") // so that new-1 is in the compacted history
	s.forgets(t, "west", last.ResourceVersion)
	mu.Lock()
	if len(deleted) > 0 {
		t.Errorf("reported as deleted while the connection was cut: %q", deleted)
	}
	mu.Unlock()
	way.cut(false)
	s.await(t, informer.Lister().ConfigMaps("shop").List)
	s.make(t, "west", "after")
	s.await(t, informer.Lister().ConfigMaps("shop").List)
	ears.mu.Lock()
	defer ears.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	switch n := ears.whole.Load() - whole; {
	case len(ears.errors) != 1:
		t.Errorf("it received: len(ears.errors) = %v, want 1", len(ears.errors))
	case ears.errors[0] != "410":
		t.Errorf("it received: ears.errors[0] = %q, want %q", ears.errors[0], "410")
	case n != 1:
		t.Errorf("it received: n = %v, want 1", n)
	}
	if len(deleted) != 1 || deleted[0] != "of-west" {
		t.Errorf("reported as deleted: %q", deleted)
	}
}

// ADP-09: between two pages a member compacts the position of the list. As with an API server, the client gets 410
// with a token to continue. With the token it reads the rest, and every object appears once.
func expiredPage(t *testing.T, s *clustersEnv) {
	want := map[string]bool{}
	for i := range 4 {
		for _, cluster := range []string{"east", "west"} {
			name := fmt.Sprintf("paged-%s-%d", cluster, i)
			s.make(t, cluster, name)
			want[name] = true
		}
	}
	shop := s.client(t).CoreV1().ConfigMaps("shop")
	got := map[string]int{}
	take := func(l *corev1.ConfigMapList) {
		for _, cm := range l.Items {
			if strings.HasPrefix(cm.Name, "paged-") {
				got[cm.Name]++
			}
		}
	}
	o := metav1.ListOptions{Limit: 1}
	var at string // the position of west
	for !hasWest(got) {
		l, err := shop.List(t.Context(), o)
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		take(l)
		at, o.Continue = strings.TrimLeft(l.ResourceVersion[len(l.ResourceVersion)-20:], "0"), l.Continue
	}
	s.make(t, "west", "later-1")
	s.make(t, "west", "later-2")
	s.forgets(t, "west", at)
	_, err := shop.List(t.Context(), o)
	status, ok := err.(apierrors.APIStatus)
	switch {
	case !ok:
		t.Fatalf("a page with a forgotten position: ok is false; %#v", err)
	case !apierrors.IsResourceExpired(err):
		t.Fatalf("a page with a forgotten position: apierrors.IsResourceExpired(err) is false; %#v", err)
	case status.Status().ListMeta.Continue == "":
		t.Fatalf("a page with a forgotten position: status.Status().ListMeta.Continue is empty; %#v", err)
	}
	for o.Continue = status.Status().ListMeta.Continue; o.Continue != ""; {
		l, err := shop.List(t.Context(), o)
		if apierrors.IsResourceExpired(err) { // it compacts within seconds
			o.Continue = err.(apierrors.APIStatus).Status().ListMeta.Continue
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		take(l)
		o.Continue = l.Continue
	}
	for name := range want {
		if got[name] != 1 {
			t.Errorf("%s came %d times", name, got[name])
		}
	}
}

func hasWest(got map[string]int) bool {
	for name := range got {
		if strings.HasPrefix(name, "paged-west-") {
			return true
		}
	}
	return false
}
