package controller

import (
	"context"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// Names of the cache's indexes.
const (
	byOrg  = "org"  // scale sets, by their label
	bySet  = "set"  // parts of a scale set, by namespace/name
	byKind = "kind" // pods of no listener, by otherPods
)

const otherPods = "other"

// A cachedObject is the cached part of one object: only the fields that are read. With many scale sets,
// whole objects would dominate the fleet's memory, because most of their content is pod templates.
type cachedObject struct {
	metav1.ObjectMeta // namespace, name, UID and version; of the annotations only that of a hold

	value   any       // an arc.Set, arc.Listener, arc.RunnerSet, arc.Runner or arc.Pod, or a pointer to another pod or a Deployment
	set     fleet.Key // its scale set, or itself for a scale set
	org     string    // of a scale set: organisation in its label
	managed bool      // of a scale set: created by the fleet
	object  []byte    // of a scale set that the fleet created: the object without status, as JSON
}

// toCached converts an object to its cached form. It returns a cached object unchanged.
func toCached(o any) (any, error) {
	if _, is := o.(*cachedObject); is {
		return o, nil
	}
	from, ok := o.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", o)
	}
	m := &cachedObject{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       from.GetNamespace(),
			Name:            from.GetName(),
			UID:             from.GetUID(),
			ResourceVersion: from.GetResourceVersion(),
		},
	}
	if note, has := from.GetAnnotations()[arc.HeldAnnotation]; has {
		m.Annotations = map[string]string{arc.HeldAnnotation: note}
	}
	switch o := from.(type) {
	case *appsv1.Deployment:
		o.ManagedFields = nil
		m.value = o
	case *corev1.Pod:
		m.setPod(o)
	case *unstructured.Unstructured:
		return m, m.setObject(o)
	default:
		return nil, fmt.Errorf("%T is not watched", o)
	}
	return m, nil
}

// setPod stores a listener's pod. Of another pod, it stores only what shows the version of ARC.
func (m *cachedObject) setPod(p *corev1.Pod) {
	if listener, ok := arc.ReadPod(p); ok {
		m.value, m.set = listener, listener.Set
		return
	}
	m.value = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions},
	}
}

func (m *cachedObject) setObject(u *unstructured.Unstructured) (err error) {
	switch u.GetKind() {
	case arc.ListenerKind:
		r := arc.ReadListener(u)
		m.value, m.set = r, r.Set
	case arc.RunnerSetKind:
		r := arc.ReadRunnerSet(u)
		m.value, m.set = r, r.Set
	case arc.RunnerKind:
		r := arc.ReadRunner(u)
		m.value, m.set = r, r.Set
	case arc.SetKind:
		r := arc.ReadSet(u)
		m.value, m.set, m.org, m.managed = r, r.Key, u.GetLabels()[v1alpha1.OrgLabel], r.Managed
		if r.Managed {
			u.SetManagedFields(nil)
			delete(u.Object, "status")
			m.object, err = u.MarshalJSON()
		}
	default:
		return fmt.Errorf("objects of kind %s are not watched", u.GetKind())
	}
	return err
}

// unmarshal returns the cached object of a scale set that the fleet created.
func (m *cachedObject) unmarshal() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(m.object)
}

// arcInformers are the informers for ARC's objects and for the namespace of its controller.
type arcInformers struct {
	sets, listeners, runnerSets, runners, pods, deployments toolscache.SharedIndexInformer
}

func (m *arcInformers) all() []toolscache.SharedIndexInformer {
	return []toolscache.SharedIndexInformer{m.sets, m.listeners, m.runnerSets, m.runners, m.pods, m.deployments}
}

// runInformers runs the informers until ctx ends.
func (w *arcCache) runInformers(ctx context.Context) error {
	index := toolscache.Indexers{
		bySet: func(o any) ([]string, error) {
			m, _ := o.(*cachedObject)
			if m == nil || m.set == (fleet.Key{}) {
				return nil, nil
			}
			return []string{indexKey(m.set)}, nil
		},
		byOrg: func(o any) ([]string, error) {
			if m, _ := o.(*cachedObject); m != nil && m.org != "" {
				return []string{m.org}, nil
			}
			return nil, nil
		},
		byKind: func(o any) ([]string, error) {
			if m, _ := o.(*cachedObject); m != nil {
				if _, other := m.value.(*corev1.Pod); other {
					return []string{otherPods}, nil
				}
			}
			return nil, nil
		},
	}
	informer := func(o client.Object, list func() client.ObjectList, where ...client.ListOption) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(w.listWatch(list, where...), o.(runtime.Object), 0, index)
	}
	kind := func(kind string) toolscache.SharedIndexInformer {
		return informer(newARCObject(kind), func() client.ObjectList { return newARCList(kind) })
	}
	in := client.InNamespace(w.Namespace)
	m := &arcInformers{
		sets:        kind(arc.SetKind),
		listeners:   kind(arc.ListenerKind),
		runnerSets:  kind(arc.RunnerSetKind),
		runners:     kind(arc.RunnerKind),
		pods:        informer(&corev1.Pod{}, func() client.ObjectList { return &corev1.PodList{} }, in),
		deployments: informer(&appsv1.Deployment{}, func() client.ObjectList { return &appsv1.DeploymentList{} }, in),
	}
	notify := func(o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if o, ok := o.(*cachedObject); ok {
			w.handleChange(ctx, m, o)
		}
	}
	var synced []toolscache.InformerSynced
	for _, informer := range m.all() {
		if err := informer.SetTransform(toCached); err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, o any) { notify(o) }}); err != nil {
			return err
		}
		synced = append(synced, informer.HasSynced)
	}
	var wg sync.WaitGroup
	for _, informer := range m.all() {
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	if toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		w.synced.Store(m)
		w.OnGlobalChange(ctx)
		for _, o := range m.sets.GetStore().List() { // earlier events of sets were handled before w.synced was set
			if set, ok := o.(*cachedObject); ok && !set.managed {
				w.OnExternalChange(set.Namespace, set.Name)
			}
		}
	}
	wg.Wait()
	return nil
}

// listWatch returns the list and watch functions of an informer.
func (w *arcCache) listWatch(list func() client.ObjectList, where ...client.ListOption) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			l := list()
			err := w.Direct.List(
				ctx,
				l,
				append(
					where[:len(where):len(where)],
					&client.ListOptions{Raw: &options, Limit: options.Limit, Continue: options.Continue},
				)...)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return w.Direct.Watch(ctx, list(), append(where[:len(where):len(where)], &client.ListOptions{Raw: &options})...)
		},
	}
}

// handleChange notifies the organisations that a change of an ARC object concerns.
func (w *arcCache) handleChange(ctx context.Context, known *arcInformers, m *cachedObject) {
	switch m.value.(type) {
	case *appsv1.Deployment:
		w.OnGlobalChange(ctx)
	case arc.Set:
		w.notify(m, true)
	default:
		if set := known.set(m.set); set != nil {
			w.notify(set, false)
		}
	}
}

// notify notifies about a change of a scale set or of one of its parts.
func (w *arcCache) notify(set *cachedObject, itself bool) {
	if set.org != "" {
		w.OnOrgChange(set.org, itself)
	}
	if itself || !set.managed {
		w.OnExternalChange(set.Namespace, set.Name)
	}
}

// set returns the cached scale set; nil if there is none.
func (m *arcInformers) set(k fleet.Key) *cachedObject {
	o, exists, err := m.sets.GetIndexer().GetByKey(indexKey(k))
	if err != nil || !exists {
		return nil
	}
	set, _ := o.(*cachedObject)
	return set
}

// listByIndex returns the cached values of type T under a key of an index.
func listByIndex[T any](informer toolscache.SharedIndexInformer, index, key string) ([]T, error) {
	found, err := informer.GetIndexer().ByIndex(index, key)
	return valuesOf[T](found), err
}

// valuesOf returns the values of type T among cached objects.
func valuesOf[T any](cached []any) (out []T) {
	for _, o := range cached {
		if m, ok := o.(*cachedObject); ok {
			if r, ok := m.value.(T); ok {
				out = append(out, r)
			}
		}
	}
	return out
}

func indexKey(k fleet.Key) string { return k.Namespace + "/" + k.Name }
