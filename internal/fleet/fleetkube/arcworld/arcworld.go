// Package arcworld follows the objects of ARC, GitHub's runner controller, from when
// there are any. It keeps law 7: what ARC has is not known before it was listed whole.
package arcworld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// Keys of the indexes of ARC's objects.
const (
	byOrg = "org" // scale sets, by their label
	bySet = "set" // what is of a scale set, by namespace/name
)

// arcEvery is how often it is looked whether ARC was installed.
const arcEvery = 15 * time.Second

// Kinds are those of ARC that are followed.
func Kinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{arc.Kind(arc.SetKind), arc.Kind(arc.ListenerKind), arc.Kind(arc.RunnerSetKind), arc.Kind(arc.RunnerKind)}
}

// Of is an empty object of a kind of ARC's.
func Of(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(arc.Kind(kind))
	return u
}

// ListOf is an empty list of a kind of ARC's.
func ListOf(kind string) *unstructured.UnstructuredList {
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(arc.Kind(kind + "List"))
	return u
}

// A World follows ARC's objects from when there are any: ARC may be installed later
// than the fleet, and GitLab does not need it. All fields are required.
type World struct {
	Config    *rest.Config
	Direct    client.Client // reads what is so now, and writes
	Namespace string        // where ARC's controller and its listeners are
	Pace      time.Duration // between two looks at what moves
	Log       *slog.Logger

	// Changed hears that something of an organisation's changed, and whether it was a
	// scale set: then others may conflict with it.
	Changed func(org string, set bool)
	// Adoptable hears of each scale set, and of what is of those that are not the fleet's.
	Adoptable func(namespace, name string)
	// Everyone hears that something changed that concerns all organisations.
	Everyone func(context.Context)

	cache atomic.Pointer[cache.Cache]
}

// Run follows ARC's objects until ctx ends.
func (w *World) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if w.served(ctx) {
			if err := w.follow(ctx); err != nil {
				w.Log.Error("follow ARC's objects", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(arcEvery, 5*w.Pace)):
		}
	}
	return nil
}

// served says whether the API server serves ARC's kinds, and the account may read
// where the controller is.
func (w *World) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, kind := range Kinds() {
		if w.Direct.List(ctx, ListOf(kind.Kind), client.Limit(1)) != nil {
			return false
		}
	}
	in := client.InNamespace(w.Namespace)
	return w.Direct.List(ctx, &appsv1.DeploymentList{}, in, client.Limit(1)) == nil && w.Direct.List(ctx, &corev1.PodList{}, in, client.Limit(1)) == nil
}

func (w *World) follow(ctx context.Context) error {
	here := cache.ByObject{Namespaces: map[string]cache.Config{w.Namespace: {}}}
	known, err := cache.New(w.Config, cache.Options{Scheme: w.Direct.Scheme(), Mapper: w.Direct.RESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&appsv1.Deployment{}: here, &corev1.Pod{}: here}})
	if err != nil {
		return err
	}
	index := func(o client.Object, field string, f func(client.Object) []string) {
		if err == nil {
			err = known.IndexField(ctx, o, field, f)
		}
	}
	index(Of(arc.SetKind), byOrg, func(o client.Object) []string { return []string{o.GetLabels()[v1alpha1.OrgLabel]} })
	for _, kind := range []string{arc.ListenerKind, arc.RunnerSetKind, arc.RunnerKind} {
		index(Of(kind), bySet, SetsOf)
	}
	index(&corev1.Pod{}, bySet, SetsOf)
	if err != nil {
		return err
	}
	tell := func(o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if o, ok := o.(client.Object); ok {
			w.changed(ctx, known, o)
		}
	}
	for _, o := range []client.Object{Of(arc.SetKind), Of(arc.ListenerKind), Of(arc.RunnerSetKind), Of(arc.RunnerKind), &corev1.Pod{}, &appsv1.Deployment{}} {
		informer, err := known.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(_, o any) { tell(o) }}); err != nil {
			return err
		}
	}
	go func() {
		if known.WaitForCacheSync(ctx) {
			w.cache.Store(&known)
			w.Everyone(ctx)
		}
	}()
	return known.Start(ctx)
}

// SetsOf are the scale sets that an object of ARC's says that it is of.
func SetsOf(o client.Object) (sets []string) {
	var k fleet.Key
	switch o := o.(type) {
	case *corev1.Pod:
		if pod, ok := arc.ReadPod(o); ok {
			k = pod.Set
		}
	case *unstructured.Unstructured:
		switch o.GetKind() {
		case arc.ListenerKind:
			k = arc.ReadListener(o).Set
		case arc.RunnerSetKind:
			k = arc.ReadRunnerSet(o).Set
		case arc.RunnerKind:
			k = arc.ReadRunner(o).Set
		}
	}
	if k == (fleet.Key{}) {
		return nil
	}
	return []string{k.Namespace + "/" + k.Name}
}

// changed tells of whoever an object of ARC's concerns.
func (w *World) changed(ctx context.Context, known client.Reader, o client.Object) {
	if _, ok := o.(*appsv1.Deployment); ok {
		w.Everyone(ctx)
		return
	}
	if u, ok := o.(*unstructured.Unstructured); ok && u.GetKind() == arc.SetKind {
		w.tell(u, true)
		return
	}
	for _, name := range SetsOf(o) {
		set := Of(arc.SetKind)
		if namespace, name, ok := strings.Cut(name, "/"); ok && known.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, set) == nil {
			w.tell(set, false)
		}
	}
}

// tell tells whose scale set changed, or something of it.
func (w *World) tell(set *unstructured.Unstructured, itself bool) {
	labels := set.GetLabels()
	if org := labels[v1alpha1.OrgLabel]; org != "" {
		w.Changed(org, itself)
	}
	if itself || labels[v1alpha1.ManagedByLabel] != v1alpha1.ManagedBy {
		w.Adoptable(set.GetNamespace(), set.GetName())
	}
}

// A View is what there is of ARC for one organisation.
type View struct {
	Known       bool // false: ARC's kinds are not there, or not read yet
	Controllers []arc.Controller
	Sets        map[fleet.Key]*unstructured.Unstructured
	Parts       map[fleet.Key]*arc.Parts
}

// Look reads what there is for an organisation: as it was a moment ago, or live, as it
// is now.
func (w *World) Look(ctx context.Context, org string, live bool) (v View, err error) {
	known := w.cache.Load()
	if known == nil {
		return v, nil
	}
	reader := client.Reader(*known)
	if live {
		reader = w.Direct
	}
	sets := ListOf(arc.SetKind)
	if live {
		err = reader.List(ctx, sets, client.MatchingLabels{v1alpha1.OrgLabel: org})
	} else {
		err = reader.List(ctx, sets, client.MatchingFields{byOrg: org})
	}
	var deployments appsv1.DeploymentList
	var controllers corev1.PodList
	if err == nil {
		err = errors.Join((*known).List(ctx, &deployments, client.InNamespace(w.Namespace)), (*known).List(ctx, &controllers, client.InNamespace(w.Namespace), client.UnsafeDisableDeepCopy))
	}
	if err != nil {
		return v, fmt.Errorf("look at ARC's scale sets: %w", err)
	}
	v = View{Known: true, Controllers: arc.Discover(deployments.Items, controllers.Items), Sets: map[fleet.Key]*unstructured.Unstructured{}, Parts: map[fleet.Key]*arc.Parts{}}
	for i := range sets.Items {
		set := arc.ReadSet(&sets.Items[i])
		parts, err := w.parts(ctx, reader, set, live)
		if err != nil {
			return v, err
		}
		v.Sets[set.Key], v.Parts[set.Key] = &sets.Items[i], parts
	}
	return v, nil
}

// parts reads what is of one set, or, live, finds it among everything that there is.
func (w *World) parts(ctx context.Context, reader client.Reader, set arc.Set, live bool) (*arc.Parts, error) {
	name := set.Namespace + "/" + set.Name
	listeners, runnerSets, runners := ListOf(arc.ListenerKind), ListOf(arc.RunnerSetKind), ListOf(arc.RunnerKind)
	var pods corev1.PodList
	for list, where := range map[client.ObjectList][]client.ListOption{listeners: nil, &pods: {client.InNamespace(w.Namespace)},
		runnerSets: {client.InNamespace(set.Namespace)}, runners: {client.InNamespace(set.Namespace)}} {
		if !live {
			where = append(where, client.MatchingFields{bySet: name}, client.UnsafeDisableDeepCopy)
		}
		if err := reader.List(ctx, list, where...); err != nil {
			return nil, fmt.Errorf("look at the scale set %s: %w", name, err)
		}
	}
	return together(set, listeners.Items, pods.Items, runnerSets.Items, runners.Items), nil
}

// Parts are a scale set that was read, and what there is of it, as it was a moment ago.
// Before anything of ARC's was listed they are not known.
func (w *World) Parts(ctx context.Context, u *unstructured.Unstructured) (*arc.Parts, error) {
	set := arc.ReadSet(u)
	known := w.cache.Load()
	if known == nil {
		return &arc.Parts{Key: set.Key, Set: &set}, nil
	}
	return w.parts(ctx, *known, set, false)
}

// Noted says whether a scale set carried an annotation a moment ago.
func (w *World) Noted(ctx context.Context, namespace, name, annotation string) bool {
	u := Of(arc.SetKind)
	known := w.cache.Load()
	if known == nil || (*known).Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, u) != nil {
		return false
	}
	_, noted := u.GetAnnotations()[annotation]
	return noted
}

// together puts what was listed for one set together.
func together(set arc.Set, listeners []unstructured.Unstructured, pods []corev1.Pod, runnerSets, runners []unstructured.Unstructured) *arc.Parts {
	var ls []arc.Listener
	var ps []arc.Pod
	var rss []arc.RunnerSet
	var rs []arc.Runner
	for i := range listeners {
		ls = append(ls, arc.ReadListener(&listeners[i]))
	}
	for i := range pods {
		if p, ok := arc.ReadPod(&pods[i]); ok {
			ps = append(ps, p)
		}
	}
	for i := range runnerSets {
		rss = append(rss, arc.ReadRunnerSet(&runnerSets[i]))
	}
	for i := range runners {
		rs = append(rs, arc.ReadRunner(&runners[i]))
	}
	p := arc.Group([]arc.Set{set}, ls, ps, rss, rs)[set.Key]
	p.KnowsListeners, p.KnowsRunners = true, true
	return p
}

// Conflicts are the scale sets that somebody else works with too.
func (w *World) Conflicts(ctx context.Context) map[fleet.Key]fleet.Key {
	return arc.Conflicts(w.sets(ctx))
}

// Rival is the object that works already with the scale set of GitHub's that u would be
// given, if it were made.
func (w *World) Rival(ctx context.Context, u *unstructured.Unstructured) (other fleet.Key, taken bool) {
	mine := arc.ReadSet(u)
	others := slices.DeleteFunc(w.sets(ctx), func(s arc.Set) bool { return s.Key == mine.Key })
	other, taken = arc.Conflicts(append(others, mine))[mine.Key]
	return other, taken
}

// sets are all scale sets, as they were a moment ago; none if that is not known.
func (w *World) sets(ctx context.Context) []arc.Set {
	known := w.cache.Load()
	list := ListOf(arc.SetKind)
	if known == nil || (*known).List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	sets := make([]arc.Set, 0, len(list.Items))
	for i := range list.Items {
		sets = append(sets, arc.ReadSet(&list.Items[i]))
	}
	return sets
}

// Absent says whether the API server has no kinds of ARC's at all, and so no object.
func (w *World) Absent(ctx context.Context) bool {
	return apierrors.IsNotFound(w.Direct.List(ctx, ListOf(arc.SetKind), client.Limit(1)))
}

// Free takes ARC's finalizers off a scale set and what is of it, and deletes it: the
// scale set stays at GitHub.
func (w *World) Free(ctx context.Context, set *unstructured.Unstructured) error {
	var errs []error
	free := func(o *unstructured.Unstructured) {
		if len(o.GetFinalizers()) > 0 {
			errs = append(errs, client.IgnoreNotFound(w.Direct.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		}
	}
	for _, kind := range []string{arc.ListenerKind, arc.RunnerSetKind, arc.RunnerKind} {
		list := ListOf(kind)
		if err := w.Direct.List(ctx, list); err != nil {
			return err
		}
		for i := range list.Items {
			if slices.Contains(SetsOf(&list.Items[i]), set.GetNamespace()+"/"+set.GetName()) {
				free(&list.Items[i])
			}
		}
	}
	errs = append(errs, client.IgnoreNotFound(w.Direct.Delete(ctx, set.DeepCopy(), client.Preconditions{UID: new(set.GetUID())})))
	free(set.DeepCopy())
	return errors.Join(errs...)
}
