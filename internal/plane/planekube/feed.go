package planekube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// A feed is one kind of Kubernetes objects, as it gets onto the Board: the store
// of its reflector. No other copy of the objects is kept.
type feed struct {
	resource string // such as "tkasignins"
	kind     plane.Kind
	absent   string // what it means when the cluster does not have the kind or the object

	client    client.WithWatch
	list      func() client.ObjectList
	of        client.Object
	namespace string // "": all
	labels    string
	name      string // "": all
	// convert returns what an object is on the Board; none: it is not shown.
	convert func(o client.Object, now time.Time) ([]plane.Object, error)
	// stale, optional, says what is wrong with what the feed last had, by its age.
	stale func(now time.Time) string

	board *plane.Board
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	listed bool                // the store has been filled
	shown  map[string][]string // keys on the Board, by object
	failed error               // of the last list or watch; nil: it went well
	wrong  error               // what could not be read of an object
	away   error               // of the last probe
	said   plane.Source        // what was reported last
}

func (f *feed) source() string { return "kubernetes:" + f.resource }

// run reads until ctx ends.
func (f *feed) run(ctx context.Context) {
	f.mu.Lock()
	f.listed = false
	f.mu.Unlock()
	toolscache.NewReflectorWithOptions(f.listWatch(), f.of, f, toolscache.ReflectorOptions{Name: f.source(), TypeDescription: f.resource}).RunWithContext(ctx)
}

func (f *feed) listWatch() *toolscache.ListWatch {
	options := func(o metav1.ListOptions) *client.ListOptions {
		o.LabelSelector = f.labels
		if f.name != "" { // a right to watch one object covers a watch of that name
			o.FieldSelector = "metadata.name=" + f.name
		}
		return &client.ListOptions{Namespace: f.namespace, Raw: &o}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := f.list()
			err := f.client.List(ctx, list, options(o))
			f.asked(ctx, err, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.client.Watch(ctx, f.list(), options(o))
			f.asked(ctx, err, true)
			return w, err
		},
	}
}

// asked hears how a list or a watch went. That a list went well does not say that
// one may watch.
func (f *feed) asked(ctx context.Context, err error, watching bool) {
	if ctx.Err() != nil || err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) || err == nil && !watching {
		return // asked to stop, or too far behind: the reflector lists anew
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
	f.report()
}

// probed hears whether the API server is there.
func (f *feed) probed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
	f.report()
}

// report tells the Board how the feed is. The lock is held.
func (f *feed) report() {
	r := plane.Source{Name: f.source(), Status: plane.Down}
	switch {
	case f.away != nil:
		r.Message = fmt.Sprintf("The API server does not answer: %v.", f.away)
	case f.missing():
		r.Status, r.Message = plane.Degraded, f.absent
	case apierrors.IsForbidden(f.failed):
		r.Message = fmt.Sprintf("This server's account may not read %s.", f.resource)
	case f.failed != nil:
		r.Message = fmt.Sprintf("%s cannot be read: %v.", f.resource, f.failed)
	case !f.listed:
		r.Message = fmt.Sprintf("%s have not been read yet.", f.resource)
	case f.wrong != nil:
		r.Status, r.Message = plane.Degraded, fmt.Sprintf("%v.", f.wrong)
	default:
		r.Status = plane.OK
		if f.stale != nil {
			if why := f.stale(f.now()); why != "" {
				r.Status, r.Message = plane.Degraded, why
			}
		}
	}
	if f.away == nil && f.failed == nil && f.listed {
		r.ObservedAt = f.now()
	}
	if r.Status != f.said.Status && (r.Status == plane.OK) != (f.said.Status == plane.OK) {
		f.log.Info("a source of the plane", "source", r.Name, "status", r.Status, "message", r.Message)
	}
	f.said = r
	f.board.Report(r)
}

// missing says whether the API server knows no such kind.
func (f *feed) missing() bool { return apierrors.IsNotFound(f.failed) || meta.IsNoMatchError(f.failed) }

// Add implements [toolscache.ReflectorStore].
func (f *feed) Add(o any) error { return f.put(o) }

// Update implements [toolscache.ReflectorStore].
func (f *feed) Update(o any) error { return f.put(o) }

func (f *feed) put(o any) error {
	object, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	key := client.ObjectKeyFromObject(object).String()
	now := f.now()
	all, err := f.convert(object, now)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong = err; err != nil { // what was read before stays
		f.report()
		return nil
	}
	was := f.shown[key]
	f.shown[key] = keys(all)
	for _, o := range all {
		f.board.Put(f.kind, f.source(), o)
	}
	has := map[string]bool{}
	for _, k := range f.shown[key] {
		has[k] = true
	}
	for _, k := range was {
		if !has[k] {
			f.board.Remove(f.kind, k)
		}
	}
	f.report()
	return nil
}

// Delete implements [toolscache.ReflectorStore].
func (f *feed) Delete(o any) error {
	object, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	key := client.ObjectKeyFromObject(object).String()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.shown[key] {
		f.board.Remove(f.kind, k)
	}
	delete(f.shown, key)
	f.report()
	return nil
}

// Replace implements [toolscache.ReflectorStore]: it is everything that there is.
func (f *feed) Replace(list []any, _ string) error {
	now := f.now()
	shown := map[string][]string{}
	everything := []plane.Object{}
	var errs []error
	for _, o := range list {
		object, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", o)
		}
		all, err := f.convert(object, now)
		errs = append(errs, err)
		shown[client.ObjectKeyFromObject(object).String()] = keys(all)
		everything = append(everything, all...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = errors.Join(errs...)
	if f.name != "" && len(list) == 0 {
		f.wrong = errors.New(f.absent)
	}
	if f.wrong == nil || f.name == "" { // else what was read before is the last that is known
		f.shown = shown
		f.board.Replace(f.kind, f.source(), everything)
	}
	f.listed = true
	f.report()
	return nil
}

// Resync implements [toolscache.ReflectorStore].
func (f *feed) Resync() error { return nil }

func keys(all []plane.Object) (keys []string) {
	for _, o := range all {
		keys = append(keys, o.Key())
	}
	return keys
}
