package adapter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// soakTime is the default duration. SOAK=1h in the environment changes it.
const soakTime = 10 * time.Second

// A resourceUsage is the resource usage of an adapter.
type resourceUsage struct{ goroutines, files, memory int }

func (f resourceUsage) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d MB", f.goroutines, f.files, f.memory>>20)
}

// footing reads it from the admin port, with --pprof, and from the kernel.
func (s *clustersEnv) footing(t *testing.T) (f resourceUsage) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(s.adapter.Share, "token"))
	if err != nil {
		t.Fatal(err)
	}
	profile := s.adminPortAs(t, string(token), "/debug/pprof/goroutine?debug=1")
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %d", &f.goroutines); err != nil {
		t.Fatalf("%.200s: %v", profile, err)
	}
	proc := fmt.Sprintf("/proc/%d/", s.adapter.PID())
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Skip("SKIP memory and descriptors: ", err)
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	_, kb, _ := strings.Cut(string(status), "RssAnon:")
	kb, _, _ = strings.Cut(strings.TrimSpace(kb), " ")
	n, err := strconv.Atoi(kb)
	if err != nil {
		t.Fatal(err)
	}
	f.files, f.memory = len(fds), n<<10
	return f
}

// ADP-25: 500 watches open and close over one, two and three clusters, in both encodings, together with lists, reads
// and writes. Nothing fails, and each watch that is open at the end receives the last change. When all clients have
// left, the adapter's resource usage is back at its start.
func TestSeveral_Soak(t *testing.T) {
	lasts := soakTime
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	three := three(t)
	three.clean(t)
	three.options.Args = []string{"--pprof"}
	s := three.beside(t, severalConfig)
	three.options.Args = nil

	var clients []*kubernetes.Clientset
	var leave []func()
	for _, encoding := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		conf := config(t, s.adapter)
		conf.ContentType, conf.AcceptContentTypes = encoding, encoding
		conf.WarningHandler = rest.NoWarnings{} // warnings about duplicate names, such as kube-root-ca.crt
		hc := httpClient(t, conf)
		leave = append(leave, hc.CloseIdleConnections)
		k, err := kubernetes.NewForConfigAndClient(conf, hc)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, k)
	}
	places := []string{"shop", "shop", "shop", "production", "default", metav1.NamespaceAll}
	soak := &soak{clients: clients, places: places}

	// One-time allocations must exist before the measurement.
	warm, cool := context.WithCancel(t.Context())
	soak.watchers(warm, 50)
	eventually(t, "the first watches are open", func() bool { return soak.open.Load() == 50 })
	cool()
	if err := soak.wait(); err != nil {
		t.Fatal(err)
	}
	before := s.settled(t, nil)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	soak.watchers(ctx, 500)
	eventually(t, "500 watches are open", func() bool { return soak.open.Load() == 500 })
	loaded, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	for _, k := range clients {
		soak.group.Go(func() { soak.keep(soak.mixed(loaded, k)) })
	}
	<-loaded.Done()
	during := s.footing(t)
	soak.last.Store(true)
	k := s.client(t)
	for _, ns := range []string{"shop", "production", "default"} {
		if _, err := k.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(ns, "soak-last", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all watches hear of the last change", func() bool { return soak.heard.Load() == 500 || soak.failed() != nil })
	cancel()
	if err := soak.wait(); err != nil {
		t.Error(err)
	}
	for cluster, ns := range map[string]string{"here": "default", "east": "production"} {
		if err := s.admin[cluster].CoreV1().ConfigMaps(ns).Delete(context.Background(), "soak-last", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, f := range leave {
		f()
	}
	if behind, opened := soak.behind.Load(), soak.opened.Load(); behind > opened/100 {
		t.Errorf("of %d watches, %d received a message that a cluster was behind", opened, behind)
	}
	after := s.settled(t, &before)
	t.Logf("%v: %d watches were opened, %d events and %d answers arrived, and a cluster was behind %d times; before %v, during %v, after %v", lasts, soak.opened.Load(), soak.events.Load(), soak.answers.Load(), soak.behind.Load(), before, during, after)
	switch {
	case soak.opened.Load() < 600:
		t.Errorf("there was no load: soak.opened.Load() = %v, want at least 600", soak.opened.Load())
	case soak.events.Load() < 1000:
		t.Errorf("there was no load: soak.events.Load() = %v, want at least 1000", soak.events.Load())
	case soak.answers.Load() < 24:
		t.Errorf("there was no load: soak.answers.Load() = %v, want at least 24", soak.answers.Load())
	}
}

// settled waits until the adapter uses no more than limit. Without a limit it waits until the usage is stable.
func (s *clustersEnv) settled(t *testing.T, limit *resourceUsage) (f resourceUsage) {
	t.Helper()
	f = s.footing(t)
	eventually(t, "the adapter is at rest", func() bool {
		last := f
		f = s.footing(t)
		if limit == nil {
			return f.goroutines == last.goroutines && f.files == last.files
		}
		// Idle connections to the clusters stay for 90 seconds, with a few goroutines each.
		return f.goroutines <= limit.goroutines+60 && f.files <= limit.files+20 && f.memory <= limit.memory+64<<20
	})
	return f
}

// A soak is a load and its results.
type soak struct {
	clients []*kubernetes.Clientset
	places  []string
	group   sync.WaitGroup

	open, opened, events, answers, heard, behind atomic.Int64
	last                                         atomic.Bool // from now on watches stay open

	mu  sync.Mutex
	err error
}

func (s *soak) keep(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *soak) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *soak) wait() error {
	s.group.Wait()
	return s.failed()
}

// watchers keeps n watches open until ctx ends.
func (s *soak) watchers(ctx context.Context, n int) {
	for i := range n {
		s.group.Go(func() {
			for ctx.Err() == nil && s.failed() == nil {
				if err := s.watch(ctx, i); err != nil && ctx.Err() == nil {
					s.keep(fmt.Errorf("watch %d: %w", i, err))
				}
			}
		})
	}
}

// watch keeps one watch open for a while, or until the end if the last change is near.
func (s *soak) watch(ctx context.Context, i int) error {
	maps := s.clients[i%len(s.clients)].CoreV1().ConfigMaps(s.places[i/len(s.clients)%len(s.places)])
	w, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "!not", AllowWatchBookmarks: i%3 == 0})
	if err != nil {
		return err
	}
	defer w.Stop()
	s.opened.Add(1)
	s.open.Add(1)
	defer s.open.Add(-1)
	end := time.NewTimer(time.Second + rand.N(9*time.Second))
	defer end.Stop()
	heard := false
	defer func() {
		if heard {
			s.heard.Add(-1)
		}
	}()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.New("it ended")
			}
			if e.Type == watch.Error {
				if err := apierrors.FromObject(e.Object); !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
					return fmt.Errorf("it says %v", e.Object)
				}
				s.behind.Add(1) // an API server that is too slow for its own cache reports it after three seconds
				return nil
			}
			s.events.Add(1)
			if cm, ok := e.Object.(*corev1.ConfigMap); ok && cm.Name == "soak-last" && !heard {
				heard = true
				s.heard.Add(1)
			}
		case <-end.C:
			if !s.last.Load() {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// mixed sends lists, reads and writes until ctx ends, a few times a second.
func (s *soak) mixed(ctx context.Context, k *kubernetes.Clientset) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		ns := []string{"shop", "production", "default"}[i%3]
		name := fmt.Sprintf("soak-%d-%p", i%7, k)
		maps := k.CoreV1().ConfigMaps(ns)
		cm := configMap(ns, strings.ToLower(name), nil)
		made, err := maps.Create(ctx, cm, metav1.CreateOptions{})
		if err == nil {
			made.Data["x"] = "again"
			_, err = maps.Update(ctx, made, metav1.UpdateOptions{})
		}
		if err == nil {
			_, err = maps.List(ctx, metav1.ListOptions{Limit: int64(i % 4)})
		}
		if err == nil {
			_, err = k.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{LabelSelector: "!not"})
		}
		if err == nil {
			_, err = maps.Get(ctx, cm.Name, metav1.GetOptions{})
		}
		if derr := maps.Delete(context.WithoutCancel(ctx), cm.Name, metav1.DeleteOptions{}); err == nil {
			err = derr
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s in %s: %w", cm.Name, ns, err)
		}
		s.answers.Add(6)
	}
}
