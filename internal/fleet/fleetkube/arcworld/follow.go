package arcworld

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

// A memo is the cached part of one object: only the fields that are read. With many scale sets,
// whole objects would dominate the fleet's memory, because most of their content is pod templates.
type memo struct {
	metav1.ObjectMeta // namespace, name, UID and version; of the annotations only that of a hold

	read  any       // an arc.Set, arc.Listener, arc.RunnerSet, arc.Runner or arc.Pod, or a pointer to another pod or a Deployment
	of    fleet.Key // its scale set, or itself for a scale set
	org   string    // of a scale set: organisation in its label
	ours  bool      // of a scale set: created by the fleet
	whole []byte    // of a scale set that the fleet created: the object without status, as JSON
}

// remember converts an object to a memo. It returns a memo unchanged.
func remember(o any) (any, error) {
	if _, is := o.(*memo); is {
		return o, nil
	}
	from, ok := o.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", o)
	}
	m := &memo{ObjectMeta: metav1.ObjectMeta{Namespace: from.GetNamespace(), Name: from.GetName(), UID: from.GetUID(), ResourceVersion: from.GetResourceVersion()}}
	if note, has := from.GetAnnotations()[arc.HeldAnnotation]; has {
		m.Annotations = map[string]string{arc.HeldAnnotation: note}
	}
	switch o := from.(type) {
	case *appsv1.Deployment:
		o.ManagedFields = nil
		m.read = o
	case *corev1.Pod:
		m.pod(o)
	case *unstructured.Unstructured:
		return m, m.object(o)
	default:
		return nil, fmt.Errorf("%T is not followed", o)
	}
	return m, nil
}

// pod stores a listener's pod. Of another pod, it stores only what shows the version of ARC.
func (m *memo) pod(p *corev1.Pod) {
	if listener, ok := arc.ReadPod(p); ok {
		m.read, m.of = listener, listener.Set
		return
	}
	m.read = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}, Status: corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions}}
}

func (m *memo) object(u *unstructured.Unstructured) (err error) {
	switch u.GetKind() {
	case arc.ListenerKind:
		r := arc.ReadListener(u)
		m.read, m.of = r, r.Set
	case arc.RunnerSetKind:
		r := arc.ReadRunnerSet(u)
		m.read, m.of = r, r.Set
	case arc.RunnerKind:
		r := arc.ReadRunner(u)
		m.read, m.of = r, r.Set
	case arc.SetKind:
		r := arc.ReadSet(u)
		m.read, m.of, m.org, m.ours = r, r.Key, u.GetLabels()[v1alpha1.OrgLabel], r.Ours
		if r.Ours {
			u.SetManagedFields(nil)
			delete(u.Object, "status")
			m.whole, err = u.MarshalJSON()
		}
	default:
		return fmt.Errorf("objects of kind %s are not followed", u.GetKind())
	}
	return err
}

// set returns the cached object of a scale set that the fleet created.
func (m *memo) set() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(m.whole)
}

// memories are the informers for ARC's objects and for the namespace of its controller.
type memories struct {
	sets, listeners, runnerSets, runners, pods, deployments toolscache.SharedIndexInformer
}

func (m *memories) all() []toolscache.SharedIndexInformer {
	return []toolscache.SharedIndexInformer{m.sets, m.listeners, m.runnerSets, m.runners, m.pods, m.deployments}
}

// follow runs the informers until ctx ends.
func (w *World) follow(ctx context.Context) error {
	index := toolscache.Indexers{
		bySet: func(o any) ([]string, error) {
			m, _ := o.(*memo)
			if m == nil || m.of == (fleet.Key{}) {
				return nil, nil
			}
			return []string{nameOf(m.of)}, nil
		},
		byOrg: func(o any) ([]string, error) {
			if m, _ := o.(*memo); m != nil && m.org != "" {
				return []string{m.org}, nil
			}
			return nil, nil
		},
		byKind: func(o any) ([]string, error) {
			if m, _ := o.(*memo); m != nil {
				if _, other := m.read.(*corev1.Pod); other {
					return []string{otherPods}, nil
				}
			}
			return nil, nil
		},
	}
	informer := func(o client.Object, list func() client.ObjectList, where ...client.ListOption) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(w.source(list, where...), o.(runtime.Object), 0, index)
	}
	kind := func(kind string) toolscache.SharedIndexInformer {
		return informer(Of(kind), func() client.ObjectList { return ListOf(kind) })
	}
	in := client.InNamespace(w.Namespace)
	m := &memories{sets: kind(arc.SetKind), listeners: kind(arc.ListenerKind), runnerSets: kind(arc.RunnerSetKind), runners: kind(arc.RunnerKind),
		pods:        informer(&corev1.Pod{}, func() client.ObjectList { return &corev1.PodList{} }, in),
		deployments: informer(&appsv1.Deployment{}, func() client.ObjectList { return &appsv1.DeploymentList{} }, in)}
	tell := func(o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if o, ok := o.(*memo); ok {
			w.changed(ctx, m, o)
		}
	}
	var synced []toolscache.InformerSynced
	for _, informer := range m.all() {
		if err := informer.SetTransform(remember); err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(_, o any) { tell(o) }}); err != nil {
			return err
		}
		synced = append(synced, informer.HasSynced)
	}
	var wg sync.WaitGroup
	for _, informer := range m.all() {
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	if toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		w.known.Store(m)
		w.Everyone(ctx)
		for _, o := range m.sets.GetStore().List() { // earlier events of sets were handled before w.known was set
			if set, ok := o.(*memo); ok && !set.ours {
				w.Adoptable(set.Namespace, set.Name)
			}
		}
	}
	wg.Wait()
	return nil
}

// source returns the list and watch functions of an informer.
func (w *World) source(list func() client.ObjectList, where ...client.ListOption) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			l := list()
			err := w.Direct.List(ctx, l, append(where[:len(where):len(where)], &client.ListOptions{Raw: &options, Limit: options.Limit, Continue: options.Continue})...)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return w.Direct.Watch(ctx, list(), append(where[:len(where):len(where)], &client.ListOptions{Raw: &options})...)
		},
	}
}

// changed notifies the organisations that a change of an ARC object concerns.
func (w *World) changed(ctx context.Context, known *memories, m *memo) {
	switch m.read.(type) {
	case *appsv1.Deployment:
		w.Everyone(ctx)
	case arc.Set:
		w.tell(m, true)
	default:
		if set := known.set(m.of); set != nil {
			w.tell(set, false)
		}
	}
}

// tell notifies about a change of a scale set or of one of its parts.
func (w *World) tell(set *memo, itself bool) {
	if set.org != "" {
		w.Changed(set.org, itself)
	}
	if itself || !set.ours {
		w.Adoptable(set.Namespace, set.Name)
	}
}

// set returns the memo of a scale set; nil if there is none.
func (m *memories) set(k fleet.Key) *memo {
	o, there, err := m.sets.GetIndexer().GetByKey(nameOf(k))
	if err != nil || !there {
		return nil
	}
	set, _ := o.(*memo)
	return set
}

// reads returns the cached values of type T under a key of an index.
func reads[T any](informer toolscache.SharedIndexInformer, index, key string) (out []T, err error) {
	found, err := informer.GetIndexer().ByIndex(index, key)
	for _, o := range found {
		if m, ok := o.(*memo); ok {
			if r, ok := m.read.(T); ok {
				out = append(out, r)
			}
		}
	}
	return out, err
}

// every returns all cached values of type T.
func every[T any](informer toolscache.SharedIndexInformer) (out []T) {
	for _, o := range informer.GetStore().List() {
		if m, ok := o.(*memo); ok {
			if r, ok := m.read.(T); ok {
				out = append(out, r)
			}
		}
	}
	return out
}

func nameOf(k fleet.Key) string { return k.Namespace + "/" + k.Name }
