package controller

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// installCheckInterval is the interval of checks whether ARC is installed.
const installCheckInterval = 15 * time.Second

// arcKinds returns the kinds of ARC that the informer watches.
func arcKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		arc.Kind(arc.SetKind),
		arc.Kind(arc.ListenerKind),
		arc.Kind(arc.RunnerSetKind),
		arc.Kind(arc.RunnerKind),
	}
}

// newARCObject returns an empty object of one of ARC's kinds.
func newARCObject(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(arc.Kind(kind))
	return u
}

// newARCList returns an empty list of one of ARC's kinds.
func newARCList(kind string) *unstructured.UnstructuredList { return newList(arc.Kind(kind)) }

// An arcCache watches ARC's objects as soon as they exist. ARC may be installed later than the fleet,
// and GitLab does not need it. All fields are required.
type arcCache struct {
	Direct       client.WithWatch // reads live objects, and writes
	Namespace    string           // namespace of ARC's controller and listeners
	PollInterval time.Duration    // poll interval
	Log          *slog.Logger

	// OnOrgChange is called when an object of an organisation changed. set reports whether it was a
	// scale set: that may create or resolve conflicts with others.
	OnOrgChange func(org string, set bool)
	// OnExternalChange is called when a scale set changed, or an object of a scale set that the fleet did
	// not create.
	OnExternalChange func(namespace, name string)
	// OnGlobalChange is called when a change concerns all organisations.
	OnGlobalChange func(context.Context)

	synced atomic.Pointer[arcInformers] // nil: the lists are not complete yet

	mu      sync.Mutex
	crashes map[fleet.Key]*arc.CrashTracker
}

// run watches ARC's objects until ctx ends.
func (w *arcCache) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if w.served(ctx) {
			if err := w.runInformers(ctx); err != nil {
				w.Log.Error("watch ARC's objects", "err", err)
			}
		}
		_ = retry.Sleep(ctx, min(installCheckInterval, 5*w.PollInterval)) // the loop checks ctx itself
	}
	return nil
}

// served reports whether the API server serves ARC's kinds, and the service account may read the
// namespace of ARC's controller.
func (w *arcCache) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, kind := range arcKinds() {
		if w.Direct.List(ctx, newARCList(kind.Kind), client.Limit(1)) != nil {
			return false
		}
	}
	in := client.InNamespace(w.Namespace)
	return w.Direct.List(ctx, &appsv1.DeploymentList{}, in, client.Limit(1)) == nil &&
		w.Direct.List(ctx, &corev1.PodList{}, in, client.Limit(1)) == nil
}

// An arcOrgState is the state of ARC for one organisation.
type arcOrgState struct {
	Synced      bool // false: ARC's kinds do not exist, or are not read yet
	Controllers []arc.Controller
	Sets        map[fleet.Key]*unstructured.Unstructured
	Objects     map[fleet.Key]*arc.Objects
}

// get returns the state of ARC for the workloads that the fleet created for an organisation. The
// state comes from the cache or, if live is true, from the API server.
func (w *arcCache) get(ctx context.Context, org string, live bool) (v arcOrgState, err error) {
	known := w.synced.Load()
	if known == nil {
		return v, nil
	}
	v = arcOrgState{Synced: true, Sets: map[fleet.Key]*unstructured.Unstructured{}, Objects: map[fleet.Key]*arc.Objects{}}
	v.Controllers, err = known.controllers()
	switch {
	case err != nil:
	case live:
		err = w.readLive(ctx, org, &v)
	default:
		err = known.orgState(org, &v)
	}
	if err != nil {
		return arcOrgState{}, fmt.Errorf("read ARC's scale sets: %w", err)
	}
	return v, nil
}

func (m *arcInformers) controllers() ([]arc.Controller, error) {
	pods, err := listByIndex[*corev1.Pod](m.pods, byKind, otherPods)
	return arc.Discover(valuesOf[*appsv1.Deployment](m.deployments.GetStore().List()), pods), err
}

func (m *arcInformers) orgState(org string, v *arcOrgState) error {
	sets, err := m.sets.GetIndexer().ByIndex(byOrg, org)
	if err != nil {
		return err
	}
	for _, o := range sets {
		set, ok := o.(*cachedObject)
		if !ok || !set.managed {
			continue
		}
		if v.Sets[set.set], err = set.unmarshal(); err != nil {
			return err
		}
		if v.Objects[set.set], err = m.objects(set.value.(arc.Set)); err != nil {
			return err
		}
	}
	return nil
}

// readLive reads the objects of an organisation from the API server.
func (w *arcCache) readLive(ctx context.Context, org string, v *arcOrgState) error {
	sets, listeners, runnerSets, runners := newARCList(
		arc.SetKind,
	), newARCList(
		arc.ListenerKind,
	), newARCList(
		arc.RunnerSetKind,
	), newARCList(
		arc.RunnerKind,
	)
	if err := w.Direct.List(ctx, sets, client.MatchingLabels{v1alpha1.OrgLabel: org, v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}); err != nil ||
		len(sets.Items) == 0 {
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
	all := arc.GroupBySet(
		rs,
		readAll(listeners, arc.ReadListener),
		ps,
		readAll(runnerSets, arc.ReadRunnerSet),
		readAll(runners, arc.ReadRunner),
	)
	for k := range v.Sets {
		v.Objects[k] = markComplete(all[k])
	}
	return nil
}

func readAll[T any](list *unstructured.UnstructuredList, read func(*unstructured.Unstructured) T) (out []T) {
	for i := range list.Items {
		out = append(out, read(&list.Items[i]))
	}
	return out
}

func markComplete(p *arc.Objects) *arc.Objects {
	p.KnowsListeners, p.KnowsRunners = true, true
	return p
}

// objects returns the cached parts of one scale set.
func (m *arcInformers) objects(set arc.Set) (*arc.Objects, error) {
	name := indexKey(set.Key)
	listeners, err1 := listByIndex[arc.Listener](m.listeners, bySet, name)
	pods, err2 := listByIndex[arc.Pod](m.pods, bySet, name)
	runnerSets, err3 := listByIndex[arc.RunnerSet](m.runnerSets, bySet, name)
	runners, err4 := listByIndex[arc.Runner](m.runners, bySet, name)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("read the scale set %s: %w", name, err)
	}
	return markComplete(arc.GroupBySet([]arc.Set{set}, listeners, pods, runnerSets, runners)[set.Key]), nil
}

// objects returns the parts of a scale set that the caller has read. The parts come from the cache.
// Before ARC's lists are complete, they are not known.
func (w *arcCache) objects(u *unstructured.Unstructured) (*arc.Objects, error) {
	set := arc.ReadSet(u)
	known := w.synced.Load()
	if known == nil {
		return &arc.Objects{Key: set.Key, Set: &set}, nil
	}
	return known.objects(set)
}

// hasAnnotation reports whether a cached scale set has an annotation. The cache keeps only the annotation
// of a hold.
func (w *arcCache) hasAnnotation(namespace, name, annotation string) bool {
	set := w.set(fleet.Key{Namespace: namespace, Name: name})
	return set != nil && metav1.HasAnnotation(set.ObjectMeta, annotation)
}

// orgOf returns the organisation in the label of a scale set. It is empty if there is no such label
// or no such scale set.
func (w *arcCache) orgOf(k fleet.Key) string {
	if set := w.set(k); set != nil {
		return set.org
	}
	return ""
}

// set returns the cached scale set; nil if there is none.
func (w *arcCache) set(k fleet.Key) *cachedObject {
	if known := w.synced.Load(); known != nil {
		return known.set(k)
	}
	return nil
}

// crashLoop reports whether the runners of a set end repeatedly before they take a job. It compares
// the current runners with those of earlier calls.
func (w *arcCache) crashLoop(p *arc.Objects, desired int, now time.Time) fleet.Failure {
	w.mu.Lock()
	defer w.mu.Unlock()
	churn := w.crashes[p.Key]
	if churn == nil {
		if known := w.synced.Load(); known != nil && len(w.crashes) > 2*len(known.sets.GetStore().ListKeys())+16 {
			maps.DeleteFunc(w.crashes, func(k fleet.Key, _ *arc.CrashTracker) bool { return known.set(k) == nil })
		}
		if w.crashes == nil {
			w.crashes = map[fleet.Key]*arc.CrashTracker{}
		}
		churn = &arc.CrashTracker{}
		w.crashes[p.Key] = churn
	}
	churn.Observe(p.Runners, desired, now)
	return churn.Failure()
}

// conflicts returns the scale sets that another object uses too.
func (w *arcCache) conflicts() map[fleet.Key]fleet.Key {
	return arc.Conflicts(w.sets())
}

// conflictWith returns the object that already uses the GitHub scale set that u would get.
func (w *arcCache) conflictWith(u *unstructured.Unstructured) (other fleet.Key, taken bool) {
	own := arc.ReadSet(u)
	others := slices.DeleteFunc(w.sets(), func(s arc.Set) bool { return s.Key == own.Key })
	other, taken = arc.Conflicts(append(others, own))[own.Key]
	return other, taken
}

// sets returns all scale sets from the cache; none if they are not known.
func (w *arcCache) sets() []arc.Set {
	known := w.synced.Load()
	if known == nil {
		return nil
	}
	return valuesOf[arc.Set](known.sets.GetStore().List())
}

// notInstalled reports whether the API server serves none of ARC's kinds. Then there are no objects
// either.
func (w *arcCache) notInstalled(ctx context.Context) bool {
	return apierrors.IsNotFound(w.Direct.List(ctx, newARCList(arc.SetKind), client.Limit(1)))
}

// forceDelete removes ARC's finalizers from a scale set and its parts, and deletes the scale set. The
// scale set stays at GitHub.
func (w *arcCache) forceDelete(ctx context.Context, set *unstructured.Unstructured) error {
	var errs []error
	free := func(o *unstructured.Unstructured) {
		if len(o.GetFinalizers()) > 0 {
			errs = append(
				errs,
				client.IgnoreNotFound(
					w.Direct.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))),
				),
			)
		}
	}
	for _, kind := range []string{arc.ListenerKind, arc.RunnerSetKind, arc.RunnerKind} {
		list := newARCList(kind)
		if err := w.Direct.List(ctx, list); err != nil {
			return err
		}
		for i := range list.Items {
			var m cachedObject
			if err := m.setObject(&list.Items[i]); err == nil && m.set == (fleet.Key{Namespace: set.GetNamespace(), Name: set.GetName()}) {
				free(&list.Items[i])
			}
		}
	}
	errs = append(errs, client.IgnoreNotFound(w.Direct.Delete(ctx, set.DeepCopy(), client.Preconditions{UID: new(set.GetUID())})))
	free(set.DeepCopy())
	return errors.Join(errs...)
}
