package kube

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A WatchedCache is a cache of the objects of one kind in one namespace. Its watch wakes those who wait for an object.
// Until Run has filled it, reads find nothing. The objects that it returns must not be changed.
type WatchedCache struct {
	cache.Cache
	of     client.Object
	what   string
	synced chan struct{} // closed when the cache is filled

	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by name; sends on each channel must not block
}

// NewWatchedCache returns a cache for the kind of the object of; what names the objects in errors, such as "sign-ins".
func NewWatchedCache(config *rest.Config, scheme *runtime.Scheme, mapper meta.RESTMapper, namespace string, of client.Object, what string) (*WatchedCache, error) {
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper,
		DefaultNamespaces:            map[string]cache.Config{namespace: {}},
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: new(true),
	})
	return &WatchedCache{Cache: c, of: of, what: what, synced: make(chan struct{}), waiting: map[string]map[chan struct{}]struct{}{}}, err
}

// Run keeps the cache up to date until ctx ends. It must be called at most once.
func (c *WatchedCache) Run(ctx context.Context) error {
	informer, err := c.GetInformer(ctx, c.of, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch %s: %w", c.what, err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    c.wake,
		UpdateFunc: func(_, now any) { c.wake(now) },
		DeleteFunc: c.wake,
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", c.what, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced, registration.HasSynced) {
			close(c.synced)
		}
	})
	err = c.Start(ctx)
	wg.Wait()
	return err
}

// Synced reports whether the cache is filled, for a readiness check.
func (c *WatchedCache) Synced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

func (c *WatchedCache) wake(o any) {
	name, err := toolscache.DeletionHandlingObjectToName(o)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiting[name.Name] {
		select {
		case w <- struct{}{}:
		default: // a notification is already pending
		}
	}
}

// Await waits until the cache is filled, and then calls done, and again at each change of the named object, until done
// returns true or an error, or until ctx ends.
func (c *WatchedCache) Await(ctx context.Context, name string, done func() (bool, error)) error {
	select {
	case <-c.synced:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	woken := make(chan struct{}, 1)
	c.mu.Lock()
	if c.waiting[name] == nil {
		c.waiting[name] = map[chan struct{}]struct{}{}
	}
	c.waiting[name][woken] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting[name], woken)
		if len(c.waiting[name]) == 0 {
			delete(c.waiting, name)
		}
	}()
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Awaited returns the number of names for which the cache keeps waiters.
func (c *WatchedCache) Awaited() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}
