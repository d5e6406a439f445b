package fleetkube

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func arcKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{arc.Kind(arc.SetKind), arc.Kind(arc.ListenerKind), arc.Kind(arc.RunnerSetKind), arc.Kind(arc.RunnerKind)}
}

func ofKind(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(arc.Kind(kind))
	return u
}

func listOf(kind string) *unstructured.UnstructuredList {
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(arc.Kind(kind + "List"))
	return u
}

// An arcWorld follows ARC's objects from when there are any: ARC may be installed
// later than the fleet, and GitLab does not need it.
type arcWorld struct {
	*crew
	config *rest.Config
	cache  atomic.Pointer[cache.Cache]
}

// run follows ARC's objects until ctx ends.
func (w *arcWorld) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if w.served(ctx) {
			if err := w.follow(ctx); err != nil {
				w.Log.Error("follow ARC's objects", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(arcEvery, 5*w.pace)):
		}
	}
	return nil
}

// served says whether the API server serves ARC's kinds, and the account may read
// where the controller is.
func (w *arcWorld) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, kind := range arcKinds() {
		if w.direct.List(ctx, listOf(kind.Kind), client.Limit(1)) != nil {
			return false
		}
	}
	in := client.InNamespace(w.ARCNamespace)
	return w.direct.List(ctx, &appsv1.DeploymentList{}, in, client.Limit(1)) == nil && w.direct.List(ctx, &corev1.PodList{}, in, client.Limit(1)) == nil
}

func (w *arcWorld) follow(ctx context.Context) error {
	here := cache.ByObject{Namespaces: map[string]cache.Config{w.ARCNamespace: {}}}
	known, err := cache.New(w.config, cache.Options{Scheme: w.direct.Scheme(), Mapper: w.direct.RESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&appsv1.Deployment{}: here, &corev1.Pod{}: here}})
	if err != nil {
		return err
	}
	index := func(o client.Object, field string, f func(client.Object) []string) {
		if err == nil {
			err = known.IndexField(ctx, o, field, f)
		}
	}
	index(ofKind(arc.SetKind), byOrg, func(o client.Object) []string { return []string{o.GetLabels()[v1alpha1.OrgLabel]} })
	for _, kind := range []string{arc.ListenerKind, arc.RunnerSetKind, arc.RunnerKind} {
		index(ofKind(kind), bySet, setsOf)
	}
	index(&corev1.Pod{}, bySet, setsOf)
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
	for _, o := range []client.Object{ofKind(arc.SetKind), ofKind(arc.ListenerKind), ofKind(arc.RunnerSetKind), ofKind(arc.RunnerKind), &corev1.Pod{}, &appsv1.Deployment{}} {
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
			w.enrollments.ring(w.all(ctx, func(*v1alpha1.RunnerEnrollment) bool { return true })...)
		}
	}()
	return known.Start(ctx)
}

// setsOf are the scale sets that an object of ARC's says that it is of.
func setsOf(o client.Object) (sets []string) {
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

// changed wakes whoever an object of ARC's concerns.
func (w *arcWorld) changed(ctx context.Context, known client.Reader, o client.Object) {
	if _, ok := o.(*appsv1.Deployment); ok {
		w.enrollments.ring(w.all(ctx, func(*v1alpha1.RunnerEnrollment) bool { return true })...)
		return
	}
	if u, ok := o.(*unstructured.Unstructured); ok && u.GetKind() == arc.SetKind {
		if org := u.GetLabels()[v1alpha1.OrgLabel]; org != "" {
			w.enrollments.ring(org)
			w.decisions.ring("all")
		}
		return
	}
	for _, name := range setsOf(o) {
		set := ofKind(arc.SetKind)
		if namespace, name, ok := cutKey(name); ok && known.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, set) == nil {
			if org := set.GetLabels()[v1alpha1.OrgLabel]; org != "" {
				w.enrollments.ring(org)
			}
		}
	}
}

// An arcView is what there is of ARC for one organisation.
type arcView struct {
	known       bool // false: ARC's kinds are not there, or not read yet
	controllers []arc.Controller
	sets        map[fleet.Key]*unstructured.Unstructured
	parts       map[fleet.Key]*arc.Parts
}

// look reads what there is for an organisation: as it was a moment ago, or live, as it
// is now.
func (w *arcWorld) look(ctx context.Context, org string, live bool) (v arcView, err error) {
	known := w.cache.Load()
	if known == nil {
		return v, nil
	}
	reader := client.Reader(*known)
	if live {
		reader = w.direct
	}
	// of lists what is of one set, or, live, everything that may be.
	of := func(list client.ObjectList, set string, more ...client.ListOption) error {
		if !live {
			more = append(more, client.MatchingFields{bySet: set}, client.UnsafeDisableDeepCopy)
		}
		return reader.List(ctx, list, more...)
	}
	sets := listOf(arc.SetKind)
	if live {
		err = reader.List(ctx, sets, client.MatchingLabels{v1alpha1.OrgLabel: org})
	} else {
		err = reader.List(ctx, sets, client.MatchingFields{byOrg: org})
	}
	var deployments appsv1.DeploymentList
	var controllers corev1.PodList
	if err == nil {
		err = errors.Join((*known).List(ctx, &deployments, client.InNamespace(w.ARCNamespace)), (*known).List(ctx, &controllers, client.InNamespace(w.ARCNamespace), client.UnsafeDisableDeepCopy))
	}
	if err != nil {
		return v, fmt.Errorf("look at ARC's scale sets: %w", err)
	}
	v = arcView{known: true, controllers: arc.Discover(deployments.Items, controllers.Items), sets: map[fleet.Key]*unstructured.Unstructured{}, parts: map[fleet.Key]*arc.Parts{}}
	for i := range sets.Items {
		set := arc.ReadSet(&sets.Items[i])
		name := set.Namespace + "/" + set.Name
		listeners, runnerSets, runners := listOf(arc.ListenerKind), listOf(arc.RunnerSetKind), listOf(arc.RunnerKind)
		var pods corev1.PodList
		for list, where := range map[client.ObjectList][]client.ListOption{listeners: nil, &pods: {client.InNamespace(w.ARCNamespace)},
			runnerSets: {client.InNamespace(set.Namespace)}, runners: {client.InNamespace(set.Namespace)}} {
			if err := of(list, name, where...); err != nil {
				return v, fmt.Errorf("look at the scale set %s: %w", name, err)
			}
		}
		v.sets[set.Key], v.parts[set.Key] = &sets.Items[i], together(set, listeners.Items, pods.Items, runnerSets.Items, runners.Items)
	}
	return v, nil
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

// conflicts are the scale sets that somebody else works with too.
func (w *arcWorld) conflicts(ctx context.Context) map[fleet.Key]fleet.Key {
	known := w.cache.Load()
	list := listOf(arc.SetKind)
	if known == nil || (*known).List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	sets := make([]arc.Set, 0, len(list.Items))
	for i := range list.Items {
		sets = append(sets, arc.ReadSet(&list.Items[i]))
	}
	return arc.Conflicts(sets)
}

// absent says whether the API server has no kinds of ARC's at all, and so no object.
func (w *arcWorld) absent(ctx context.Context) bool {
	return apierrors.IsNotFound(w.direct.List(ctx, listOf(arc.SetKind), client.Limit(1)))
}
