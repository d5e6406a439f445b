// Package arcworld is an informer for the objects of ARC, GitHub's runner controller. It starts as
// soon as ARC is installed. It implements law 7: the state of ARC is unknown until all lists are
// complete.
package arcworld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// arcEvery is the interval of checks whether ARC is installed.
const arcEvery = 15 * time.Second

// Kinds returns the kinds of ARC that the informer watches.
func Kinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{arc.Kind(arc.SetKind), arc.Kind(arc.ListenerKind), arc.Kind(arc.RunnerSetKind), arc.Kind(arc.RunnerKind)}
}

// Of returns an empty object of one of ARC's kinds.
func Of(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(arc.Kind(kind))
	return u
}

// ListOf returns an empty list of one of ARC's kinds.
func ListOf(kind string) *unstructured.UnstructuredList {
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(arc.Kind(kind + "List"))
	return u
}

// A World watches ARC's objects as soon as they exist. ARC may be installed later than the fleet,
// and GitLab does not need it. All fields are required.
type World struct {
	Direct    client.WithWatch // reads live objects, and writes
	Namespace string           // namespace of ARC's controller and listeners
	Pace      time.Duration    // poll interval
	Log       *slog.Logger

	// Changed is called when an object of an organisation changed. set reports whether it was a
	// scale set: that may create or resolve conflicts with others.
	Changed func(org string, set bool)
	// Adoptable is called when a scale set changed, or an object of a scale set that the fleet did
	// not create.
	Adoptable func(namespace, name string)
	// Everyone is called when a change concerns all organisations.
	Everyone func(context.Context)

	known atomic.Pointer[memories] // nil: the lists are not complete yet

	mu     sync.Mutex
	churns map[fleet.Key]*arc.Churn
}

// Run watches ARC's objects until ctx ends.
func (w *World) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if w.served(ctx) {
			if err := w.follow(ctx); err != nil {
				w.Log.Error("follow ARC's objects", "err", err)
			}
		}
		_ = retry.Sleep(ctx, min(arcEvery, 5*w.Pace)) // the loop checks ctx itself
	}
	return nil
}

// served reports whether the API server serves ARC's kinds, and the service account may read the
// namespace of ARC's controller.
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

// SetsOf returns the scale set to which an object of ARC belongs, as namespace/name.
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

// A View is the state of ARC for one organisation.
type View struct {
	Known       bool // false: ARC's kinds do not exist, or are not read yet
	Controllers []arc.Controller
	Sets        map[fleet.Key]*unstructured.Unstructured
	Parts       map[fleet.Key]*arc.Parts
}

// Look returns the state of ARC for the workloads that the fleet created for an organisation. The
// state comes from the cache or, if live is true, from the API server.
func (w *World) Look(ctx context.Context, org string, live bool) (v View, err error) {
	known := w.known.Load()
	if known == nil {
		return v, nil
	}
	v = View{Known: true, Sets: map[fleet.Key]*unstructured.Unstructured{}, Parts: map[fleet.Key]*arc.Parts{}}
	v.Controllers, err = known.controllers()
	switch {
	case err != nil:
	case live:
		err = w.live(ctx, org, &v)
	default:
		err = known.look(org, &v)
	}
	if err != nil {
		return View{}, fmt.Errorf("look at ARC's scale sets: %w", err)
	}
	return v, nil
}

func (m *memories) controllers() ([]arc.Controller, error) {
	var deployments []appsv1.Deployment
	var pods []corev1.Pod
	for _, d := range every[*appsv1.Deployment](m.deployments) {
		deployments = append(deployments, *d)
	}
	others, err := reads[*corev1.Pod](m.pods, byKind, otherPods)
	for _, p := range others {
		pods = append(pods, *p)
	}
	return arc.Discover(deployments, pods), err
}

func (m *memories) look(org string, v *View) error {
	sets, err := m.sets.GetIndexer().ByIndex(byOrg, org)
	if err != nil {
		return err
	}
	for _, o := range sets {
		set, ok := o.(*memo)
		if !ok || !set.ours {
			continue
		}
		if v.Sets[set.of], err = set.set(); err != nil {
			return err
		}
		if v.Parts[set.of], err = m.parts(set.read.(arc.Set)); err != nil {
			return err
		}
	}
	return nil
}

// live reads the objects of an organisation from the API server.
func (w *World) live(ctx context.Context, org string, v *View) error {
	sets, listeners, runnerSets, runners := ListOf(arc.SetKind), ListOf(arc.ListenerKind), ListOf(arc.RunnerSetKind), ListOf(arc.RunnerKind)
	if err := w.Direct.List(ctx, sets, client.MatchingLabels{v1alpha1.OrgLabel: org, v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}); err != nil || len(sets.Items) == 0 {
		return err
	}
	var pods corev1.PodList
	if err := errors.Join(w.Direct.List(ctx, listeners), w.Direct.List(ctx, runnerSets), w.Direct.List(ctx, runners), w.Direct.List(ctx, &pods, client.InNamespace(w.Namespace))); err != nil {
		return err
	}
	var rs []arc.Set
	var ps []arc.Pod
	for i := range sets.Items {
		rs = append(rs, arc.ReadSet(&sets.Items[i]))
		v.Sets[rs[i].Key] = &sets.Items[i]
	}
	for i := range pods.Items {
		if p, ok := arc.ReadPod(&pods.Items[i]); ok {
			ps = append(ps, p)
		}
	}
	all := arc.Group(rs, each(listeners, arc.ReadListener), ps, each(runnerSets, arc.ReadRunnerSet), each(runners, arc.ReadRunner))
	for k := range v.Sets {
		v.Parts[k] = whole(all[k])
	}
	return nil
}

func each[T any](list *unstructured.UnstructuredList, read func(*unstructured.Unstructured) T) (out []T) {
	for i := range list.Items {
		out = append(out, read(&list.Items[i]))
	}
	return out
}

func whole(p *arc.Parts) *arc.Parts {
	p.KnowsListeners, p.KnowsRunners = true, true
	return p
}

// parts returns the cached parts of one scale set.
func (m *memories) parts(set arc.Set) (*arc.Parts, error) {
	name := nameOf(set.Key)
	listeners, err1 := reads[arc.Listener](m.listeners, bySet, name)
	pods, err2 := reads[arc.Pod](m.pods, bySet, name)
	runnerSets, err3 := reads[arc.RunnerSet](m.runnerSets, bySet, name)
	runners, err4 := reads[arc.Runner](m.runners, bySet, name)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("look at the scale set %s: %w", name, err)
	}
	return whole(arc.Group([]arc.Set{set}, listeners, pods, runnerSets, runners)[set.Key]), nil
}

// Parts returns the parts of a scale set that the caller has read. The parts come from the cache.
// Before ARC's lists are complete, they are not known.
func (w *World) Parts(u *unstructured.Unstructured) (*arc.Parts, error) {
	set := arc.ReadSet(u)
	known := w.known.Load()
	if known == nil {
		return &arc.Parts{Key: set.Key, Set: &set}, nil
	}
	return known.parts(set)
}

// Noted reports whether a cached scale set has an annotation. The cache keeps only the annotation
// of a hold.
func (w *World) Noted(namespace, name, annotation string) bool {
	known := w.known.Load()
	if known == nil {
		return false
	}
	set := known.set(fleet.Key{Namespace: namespace, Name: name})
	if set == nil {
		return false
	}
	_, noted := set.Annotations[annotation]
	return noted
}

// OrgOf returns the organisation in the label of a scale set. It is empty if there is no such label
// or no such scale set.
func (w *World) OrgOf(k fleet.Key) string {
	if known := w.known.Load(); known != nil {
		if set := known.set(k); set != nil {
			return set.org
		}
	}
	return ""
}

// Crashes reports whether the runners of a set end repeatedly before they take a job. It compares
// the current runners with those of earlier calls.
func (w *World) Crashes(p *arc.Parts, desired int, now time.Time) fleet.Trouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	churn := w.churns[p.Key]
	if churn == nil {
		if known := w.known.Load(); known != nil && len(w.churns) > 2*len(known.sets.GetStore().ListKeys())+16 {
			maps.DeleteFunc(w.churns, func(k fleet.Key, _ *arc.Churn) bool { return known.set(k) == nil })
		}
		if w.churns == nil {
			w.churns = map[fleet.Key]*arc.Churn{}
		}
		churn = &arc.Churn{}
		w.churns[p.Key] = churn
	}
	churn.Look(p.Runners, desired, now)
	return churn.Trouble()
}

// Conflicts returns the scale sets that another object uses too.
func (w *World) Conflicts() map[fleet.Key]fleet.Key {
	return arc.Conflicts(w.sets())
}

// Rival returns the object that already uses the GitHub scale set that u would get.
func (w *World) Rival(u *unstructured.Unstructured) (other fleet.Key, taken bool) {
	mine := arc.ReadSet(u)
	others := slices.DeleteFunc(w.sets(), func(s arc.Set) bool { return s.Key == mine.Key })
	other, taken = arc.Conflicts(append(others, mine))[mine.Key]
	return other, taken
}

// sets returns all scale sets from the cache; none if they are not known.
func (w *World) sets() []arc.Set {
	known := w.known.Load()
	if known == nil {
		return nil
	}
	return every[arc.Set](known.sets)
}

// Absent reports whether the API server serves none of ARC's kinds. Then there are no objects
// either.
func (w *World) Absent(ctx context.Context) bool {
	return apierrors.IsNotFound(w.Direct.List(ctx, ListOf(arc.SetKind), client.Limit(1)))
}

// Free removes ARC's finalizers from a scale set and its parts, and deletes the scale set. The
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
