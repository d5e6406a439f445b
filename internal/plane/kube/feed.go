package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/plane"
)

// feed brings one kind of Kubernetes objects into the plane's store. It is also the store of its reflector, so there is no other copy of
// the objects.
type feed struct {
	resource  string // such as "tkasignins"
	kind      plane.Kind
	dependent []plane.Kind // kinds that are unknown without this one
	absent    string       // the message when the cluster lacks the kind or the object

	client    client.WithWatch
	list      func() client.ObjectList
	object    client.Object
	namespace string // "": all
	labels    string
	name      string // "": all
	// convert returns the objects to show for one Kubernetes object, which may be none. wrong is a sentence that says why the object cannot
	// be read.
	convert func(o any, now time.Time) (all []plane.Object, wrong string)
	// lock is locked while objects of this kind are written to the plane's store. It is optional.
	lock sync.Locker
	// sink receives the objects instead of the plane's store. It is optional.
	sink objectSink
	// stale returns what is wrong with data that has not been updated for too long. It is optional.
	stale func(now time.Time) string

	store *plane.Store
	log   *slog.Logger
	now   func() time.Time

	mu          sync.Mutex
	listed      bool                // the first list is complete
	shown       map[string][]string // keys in the plane's store, by object
	failed      error               // error of the last list or watch; nil: success
	problem     string              // why an object could not be read, a sentence
	unreachable error               // error of the last probe
	reported    plane.Source        // the last reported source
}

func (f *feed) source() string { return "kubernetes:" + f.resource }

// run reads until ctx ends.
func (f *feed) run(ctx context.Context) {
	f.mu.Lock()
	f.listed = false
	f.mu.Unlock()
	toolscache.NewReflectorWithOptions(f.listWatch(), f.object, f, toolscache.ReflectorOptions{Name: f.source(), TypeDescription: f.resource}).RunWithContext(ctx)
}

func (f *feed) listWatch() *toolscache.ListWatch {
	options := func(o metav1.ListOptions) *client.ListOptions {
		o.LabelSelector = f.labels
		if f.name != "" { // RBAC for one object covers a watch with its name as the field selector
			o.FieldSelector = "metadata.name=" + f.name
		}
		return &client.ListOptions{Namespace: f.namespace, Raw: &o}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := f.list()
			err := f.client.List(ctx, list, options(o))
			f.recordResult(ctx, err, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.client.Watch(ctx, f.list(), options(o))
			f.recordResult(ctx, err, true)
			return w, err
		},
	}
}

// recordResult records the result of a list or a watch. A successful list alone does not show that the account may watch.
func (f *feed) recordResult(ctx context.Context, err error, watching bool) {
	if ctx.Err() != nil || err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) || err == nil && !watching {
		return // stopped, or the resource version expired: the reflector lists again
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
	f.report()
}

// recordProbe records whether the API server responds.
func (f *feed) recordProbe(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unreachable = err
	f.report()
}

// report sends the feed's status to the plane's store. Callers must hold mu.
func (f *feed) report() {
	r := plane.Source{Name: f.source(), Status: plane.StatusDown}
	switch {
	case f.unreachable != nil:
		r.Message = fmt.Sprintf("The API server does not respond: %v.", f.unreachable)
	case f.missing():
		r.Status, r.Message = plane.StatusDegraded, f.absent
	case apierrors.IsForbidden(f.failed):
		r.Message = fmt.Sprintf("This server's account may not read %s.", f.resource)
	case f.failed != nil:
		r.Message = fmt.Sprintf("%s cannot be read: %v.", f.resource, f.failed)
	case !f.listed:
		r.Message = fmt.Sprintf("%s have not been read yet.", f.resource)
	case f.problem != "":
		r.Status, r.Message = plane.StatusDegraded, f.problem
	default:
		r.Status = plane.StatusOK
		if f.stale != nil {
			if why := f.stale(f.now()); why != "" {
				r.Status, r.Message = plane.StatusDegraded, why
			}
		}
	}
	if f.unreachable == nil && f.failed == nil && f.listed {
		r.ObservedAt = f.now()
	}
	if r.Status != f.reported.Status && (r.Status == plane.StatusOK) != (f.reported.Status == plane.StatusOK) {
		f.log.Info("a source of the plane", "source", r.Name, "status", r.Status, "message", r.Message)
	}
	f.reported = r
	f.store.Report(r)
}

// missing reports whether the API server does not have the kind.
func (f *feed) missing() bool { return apierrors.IsNotFound(f.failed) || meta.IsNoMatchError(f.failed) }

// Add implements [toolscache.ReflectorStore].
func (f *feed) Add(o any) error { return f.Update(o) }

// Update implements [toolscache.ReflectorStore].
func (f *feed) Update(o any) error {
	object, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object", o)
	}
	defer f.locked()()
	if f.sink != nil {
		f.sink.set(object)
		return nil
	}
	all, wrong := f.convert(o, f.now())
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	if f.problem = wrong; wrong != "" { // the previous data stays
		return nil
	}
	was := f.shown[objectKey(object)]
	now := keysOf(all)
	f.shown[objectKey(object)] = now
	for _, o := range all {
		f.store.Set(f.kind, f.source(), o)
	}
	for _, k := range was {
		if !slices.Contains(now, k) {
			f.store.Delete(f.kind, k)
		}
	}
	return nil
}

// Delete implements [toolscache.ReflectorStore].
func (f *feed) Delete(o any) error {
	object, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object", o)
	}
	defer f.locked()()
	if f.sink != nil {
		f.sink.remove(object)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	if f.name != "" { // the last content is still the last known
		f.problem = f.absent
		return nil
	}
	for _, k := range f.shown[objectKey(object)] {
		f.store.Delete(f.kind, k)
	}
	delete(f.shown, objectKey(object))
	return nil
}

// Replace implements [toolscache.ReflectorStore]. list is the complete list.
func (f *feed) Replace(list []any, _ string) error {
	defer f.locked()()
	shown, everything, wrong := map[string][]string{}, []plane.Object{}, ""
	var objects []client.Object
	for _, o := range list {
		object, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("%T is not an object", o)
		}
		if objects = append(objects, object); f.sink != nil {
			continue
		}
		all, why := f.convert(o, f.now())
		wrong = cmp.Or(wrong, why)
		shown[objectKey(object)] = keysOf(all)
		everything = append(everything, all...)
	}
	if f.sink != nil {
		f.sink.replace(objects)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	f.listed = true
	if f.problem = wrong; f.name != "" && len(list) == 0 {
		f.problem = f.absent
	}
	if f.sink != nil || f.problem != "" && f.name != "" { // the previous data stays
		return nil
	}
	f.shown = shown
	f.store.Replace(f.kind, f.source(), everything)
	return nil
}

// Resync implements [toolscache.ReflectorStore].
func (f *feed) Resync() error { return nil }

// locked locks join, if set, and returns the function that unlocks it.
func (f *feed) locked() func() {
	if f.lock == nil {
		return func() {}
	}
	f.lock.Lock()
	return f.lock.Unlock
}

// objectSink receives objects that the plane's store does not show themselves.
type objectSink interface {
	set(client.Object)
	remove(client.Object)
	replace(all []client.Object)
}

// kindSink keeps the objects of one kind in a map, by name or namespace/name. Its feed calls it with the lock held.
type kindSink[T, V any] struct {
	objects  map[string]V
	read     func(*T) V
	changed  func(key string) // one object has changed, or was deleted
	replaced func()           // the full list has been read
}

func (k kindSink[T, V]) store(o client.Object) (key string, ok bool) {
	is, ok := any(o).(*T)
	if key = strings.TrimPrefix(objectKey(o), "/"); ok {
		k.objects[key] = k.read(is)
	}
	return key, ok
}

func (k kindSink[T, V]) set(o client.Object) {
	if key, ok := k.store(o); ok {
		k.changed(key)
	}
}

func (k kindSink[T, V]) remove(o client.Object) {
	key := strings.TrimPrefix(objectKey(o), "/")
	delete(k.objects, key)
	k.changed(key)
}

func (k kindSink[T, V]) replace(all []client.Object) {
	clear(k.objects)
	for _, o := range all {
		k.store(o)
	}
	k.replaced()
}

// whole is the read function of a kindSink that keeps whole objects.
func whole[T any](o *T) *T { return o }

func keysOf(all []plane.Object) (keys []string) {
	for _, o := range all {
		keys = append(keys, o.Key())
	}
	return keys
}
