// Command podclient is an ordinary application for pods of the testbed: client-go with its in-cluster configuration.
// It lists, watches, creates and takes a lease, prints a line for each, and serves a health endpoint.
//
// It prints each line only after the API server has carried out the request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "podclient:", err)
		os.Exit(1)
	}
	fmt.Println("stopped normally")
}

// app is the application: it works on ConfigMaps and one Lease of a namespace.
type app struct {
	client    kubernetes.Interface
	namespace string
	name      string      // of the Lease, and prefix of the ConfigMap's name
	ready     atomic.Bool // the application has the Lease
}

func run(ctx context.Context) error {
	a := &app{}
	flag.StringVar(&a.name, "name", "podclient", "name of the Lease, and prefix of the ConfigMap's name")
	flag.StringVar(&a.namespace, "namespace", "default", "namespace of both")
	listen := flag.String("listen", ":8080", "address of the health endpoints; a request to /crash ends the program")
	flag.Parse()
	server := &http.Server{Addr: *listen, Handler: a.health(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	defer server.Close()

	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	fmt.Println("server", config.Host)
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	seen, err := a.listAndWatch(ctx)
	if err != nil {
		return err
	}
	defer seen.Stop() // an application keeps its watch open
	if err := a.createAndSee(ctx, seen); err != nil || ctx.Err() != nil {
		return err
	}
	return a.lead(ctx, served)
}

// health returns the handler of the health endpoints. The application is ready while it has the Lease.
func (a *app) health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.ready.Load() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { os.Exit(42) })
	return mux
}

// listAndWatch lists the ConfigMaps and starts a watch from that list. The caller must stop the watch.
func (a *app) listAndWatch(ctx context.Context) (watch.Interface, error) {
	maps := a.client.CoreV1().ConfigMaps(a.namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	fmt.Println("listed", len(list.Items))
	seen, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return seen, nil
}

// createAndSee creates a ConfigMap and waits until the watch reports it. It returns nil when ctx ends.
func (a *app) createAndSee(ctx context.Context, seen watch.Interface) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: a.name + "-"}}
	made, err := a.client.CoreV1().ConfigMaps(a.namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	fmt.Println("created", made.Name)
	for found := false; !found; {
		select {
		case e, ok := <-seen.ResultChan():
			if !ok {
				return errors.New("watch: the stream ended")
			}
			c, is := e.Object.(*corev1.ConfigMap)
			found = is && e.Type == watch.Added && c.Name == made.Name
		case <-ctx.Done():
			return nil
		}
	}
	fmt.Println("watched", made.Name)
	return nil
}

// lead takes the Lease and holds it until ctx ends. Losing the Lease is an error, and so is the end of the server.
func (a *app) lead(ctx context.Context, served <-chan error) error {
	elector, err := a.elector()
	if err != nil {
		return err
	}
	leading, end := context.WithCancel(ctx)
	defer end()
	led := make(chan struct{})
	go func() {
		elector.Run(leading)
		close(led)
	}()
	select {
	case err := <-served:
		return err
	case <-led:
	}
	if ctx.Err() == nil {
		return errors.New("the lease was lost")
	}
	return nil
}

// elector returns the elector for the Lease. Its identity is the pod's name: it stays the same over restarts, so the
// application need not wait until its own Lease expires.
func (a *app) elector() (*leaderelection.LeaderElector, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: a.namespace, Name: a.name},
			Client:     a.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: host},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				fmt.Println("leads", a.name)
				a.ready.Store(true)
			},
			OnStoppedLeading: func() { a.ready.Store(false) },
		},
	})
}
