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

func run(ctx context.Context) error {
	name := flag.String("name", "podclient", "namespace of the ConfigMap and the Lease")
	namespace := flag.String("namespace", "default", "of both")
	listen := flag.String("listen", ":8080", "address of the health endpoints; a request to /crash ends the program")
	flag.Parse()
	var ready atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { os.Exit(42) })
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	defer server.Close()

	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	fmt.Println("server", config.Host)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(*namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	fmt.Println("listed", len(list.Items))
	seen, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer seen.Stop()
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: *name + "-"}}, metav1.CreateOptions{})
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

	// The pod's name stays the same over restarts, so podclient need not wait until its own lease expires.
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: *namespace, Name: *name}, Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: host}}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				fmt.Println("leads", *name)
				ready.Store(true)
			},
			OnStoppedLeading: func() { ready.Store(false) },
		},
	})
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
