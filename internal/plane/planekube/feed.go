package planekube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
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
	also     []plane.Kind // that cannot be told without it
	absent   string       // what it means when the cluster does not have the kind or the object

	client    client.WithWatch
	list      func() client.ObjectList
	of        client.Object
	namespace string // "": all
	labels    string
	name      string // "": all
	// convert returns what an object is on the Board; none: it is not shown. Or it
	// says, in a sentence, why the object cannot be read.
	convert func(o any, now time.Time) (all []plane.Object, wrong string)
	// join, optional, is held while this kind gets onto the Board.
	join sync.Locker
	// beside, optional, is told of the objects instead of the Board.
	beside companion
	// stale, optional, says what is wrong with what the feed last had, by its age.
	stale func(now time.Time) string

	board *plane.Board
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	listed bool                // the store has been filled
	shown  map[string][]string // keys on the Board, by object
	failed error               // of the last list or watch; nil: it went well
	wrong  string              // why an object could not be read, a sentence
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
	case f.wrong != "":
		r.Status, r.Message = plane.Degraded, f.wrong
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
	defer f.joined()()
	if f.beside != nil {
		f.beside.put(object)
		return nil
	}
	all, wrong := f.convert(o, f.now())
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	if f.wrong = wrong; wrong != "" { // what was read before stays
		return nil
	}
	was := f.shown[id(object)]
	now := keys(all)
	f.shown[id(object)] = now
	for _, o := range all {
		f.board.Put(f.kind, f.source(), o)
	}
	for _, k := range was {
		if !slices.Contains(now, k) {
			f.board.Remove(f.kind, k)
		}
	}
	return nil
}

// Delete implements [toolscache.ReflectorStore].
func (f *feed) Delete(o any) error {
	object, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	defer f.joined()()
	if f.beside != nil {
		f.beside.remove(object)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	if f.name != "" { // what it said last is still the last that is known
		f.wrong = f.absent
		return nil
	}
	for _, k := range f.shown[id(object)] {
		f.board.Remove(f.kind, k)
	}
	delete(f.shown, id(object))
	return nil
}

// Replace implements [toolscache.ReflectorStore]: list is everything that there is.
func (f *feed) Replace(list []any, _ string) error {
	defer f.joined()()
	shown, everything, wrong := map[string][]string{}, []plane.Object{}, ""
	var objects []client.Object
	for _, o := range list {
		object, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", o)
		}
		if objects = append(objects, object); f.beside != nil {
			continue
		}
		all, why := f.convert(o, f.now())
		wrong = cmp.Or(wrong, why)
		shown[id(object)] = keys(all)
		everything = append(everything, all...)
	}
	if f.beside != nil {
		f.beside.replace(objects)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.report()
	f.listed = true
	if f.wrong = wrong; f.name != "" && len(list) == 0 {
		f.wrong = f.absent
	}
	if f.beside != nil || f.wrong != "" && f.name != "" { // then what was read before is the last that is known
		return nil
	}
	f.shown = shown
	f.board.Replace(f.kind, f.source(), everything)
	return nil
}

// Resync implements [toolscache.ReflectorStore].
func (f *feed) Resync() error { return nil }

// joined locks what this kind is shown together with, and returns what unlocks it.
func (f *feed) joined() func() {
	if f.join == nil {
		return func() {}
	}
	f.join.Lock()
	return f.join.Unlock
}

// A companion is told of objects that are not on the Board as themselves.
type companion interface {
	put(client.Object)
	remove(client.Object)
	replace(all []client.Object)
}

// both are two companions, told one after the other.
type both [2]companion

func (b both) put(o client.Object)         { b[0].put(o); b[1].put(o) }
func (b both) remove(o client.Object)      { b[0].remove(o); b[1].remove(o) }
func (b both) replace(all []client.Object) { b[0].replace(all); b[1].replace(all) }

func keys(all []plane.Object) (keys []string) {
	for _, o := range all {
		keys = append(keys, o.Key())
	}
	return keys
}
