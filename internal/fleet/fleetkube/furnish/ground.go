package furnish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// ErrForeign is the error for a namespace that belongs to others.
var ErrForeign = errors.New("somebody else made it, or made it for somebody else")

// A Ground is the state of a namespace of runners, compared with its desired state.
type Ground struct {
	Namespace fleet.Answer // the namespace and its objects, except for the next two
	Policies  fleet.Answer // its NetworkPolicies
	Access    fleet.Answer // the pod creators may create pods there
	base      []*unstructured.Unstructured
	access    []*unstructured.Unstructured
}

// settledFor is how long a successful comparison of a namespace stays valid if the desired state
// does not change. Deleted objects are found after that time.
const settledFor = 20 * time.Second

// A Memory caches which namespaces matched their desired state, so that frequent reconciles do not
// read all objects each time. Its zero value is an empty cache.
type Memory struct {
	mu sync.Mutex
	of map[string]settled // by caller
}

type settled struct {
	wanted string
	at     time.Time
}

// Drop removes the cached result of a caller.
func (m *Memory) Drop(who string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, who)
}

func (m *Memory) still(who, wanted string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, ok := m.of[who]
	return ok && was.wanted == wanted && now.Sub(was.at) < settledFor && !now.Before(was.at)
}

func (m *Memory) found(who, wanted string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[string]settled{}
	}
	m.of[who] = settled{wanted, now}
}

// LookAt compares a namespace with the desired objects, as [isolation.Ground] renders them; the
// namespace itself is the first. An organisation's own namespace must be one that the fleet created
// for that organisation. who identifies the caller in the cache. fresh bypasses the cache.
func (m *Memory) LookAt(ctx context.Context, c client.Client, wanted []isolation.Object, who, org string, now time.Time, fresh bool) (g Ground, err error) {
	all := make([]*unstructured.Unstructured, len(wanted))
	var sum strings.Builder
	for i, o := range wanted {
		if all[i], err = Wanted(o); err != nil {
			return g, err
		}
		fmt.Fprintf(&sum, "%s %s %s %v\n", all[i].GetKind(), client.ObjectKeyFromObject(all[i]), all[i].GetAnnotations()[appliedAnnotation], all[i].Object["data"])
	}
	if !fresh && m.still(who, sum.String(), now) {
		return Ground{Namespace: fleet.Yes, Policies: fleet.Yes, Access: fleet.Yes}, nil
	}
	m.Drop(who)
	there, err := read(ctx, c, all, org)
	if err != nil {
		return g, err
	}
	for i, u := range all {
		if Settled(u, there(u)) {
			continue
		}
		switch {
		case u.GetKind() == "NetworkPolicy":
			g.Policies = fleet.No
			g.base = append(g.base, u)
		case grants(wanted[i]):
			g.Access = fleet.No
			g.access = append(g.access, u)
		default:
			g.Namespace = fleet.No
			g.base = append(g.base, u)
		}
	}
	for _, answer := range []*fleet.Answer{&g.Namespace, &g.Policies, &g.Access} {
		if *answer == fleet.Unknown {
			*answer = fleet.Yes
		}
	}
	if len(g.base)+len(g.access) == 0 {
		m.found(who, sum.String(), now)
	}
	return g, nil
}

// read reads the existing counterparts of the desired objects concurrently. It lists most kinds. It
// reads policies and canaries one by one, because the shared namespace has as many as
// organisations.
func read(ctx context.Context, c client.Reader, all []*unstructured.Unstructured, org string) (there func(*unstructured.Unstructured) *unstructured.Unstructured, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed, forbidden error
	var namespace *unstructured.Unstructured
	found, asked := map[schema.GroupVersionKind]map[string]*unstructured.Unstructured{}, map[schema.GroupVersionKind]bool{}
	ask := func(kind schema.GroupVersionKind, what func() (map[string]*unstructured.Unstructured, error)) {
		wg.Go(func() {
			present, err := what()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case apierrors.IsForbidden(err) && kind.Kind != "Namespace":
				forbidden = err
			case err != nil:
				failed = errors.Join(failed, err)
			case found[kind] == nil:
				found[kind] = present
			default:
				maps.Copy(found[kind], present)
			}
		})
	}
	for _, u := range all {
		kind := u.GroupVersionKind()
		switch {
		case kind.Kind == "Namespace" || kind.Kind == "NetworkPolicy" || kind.Kind == "Deployment":
			ask(kind, func() (map[string]*unstructured.Unstructured, error) {
				is, err := Get(ctx, c, kind, client.ObjectKeyFromObject(u))
				return map[string]*unstructured.Unstructured{u.GetName(): is}, err
			})
		case !asked[kind]:
			asked[kind] = true
			ask(kind, func() (map[string]*unstructured.Unstructured, error) {
				return Present(ctx, c, kind, u.GetNamespace(), nil)
			})
		}
	}
	wg.Wait()
	for _, u := range all {
		if u.GetKind() == "Namespace" {
			namespace = found[u.GroupVersionKind()][u.GetName()]
			if namespace != nil && org != "" && !Ours(namespace, org) {
				return nil, fmt.Errorf("namespace %s: %w", u.GetName(), ErrForeign)
			}
			if namespace != nil && namespace.GetDeletionTimestamp() != nil {
				return nil, fmt.Errorf("namespace %s is being deleted", u.GetName())
			}
		}
	}
	if failed != nil {
		return nil, failed
	}
	return func(u *unstructured.Unstructured) *unstructured.Unstructured {
		is := found[u.GroupVersionKind()][u.GetName()]
		switch {
		case u.GetKind() == "Namespace":
			return namespace
		case namespace == nil || forbidden != nil: // before its RoleBinding exists, the fleet may not read there
			return nil
		case is != nil && is.GetLabels()[v1alpha1.ManagedByLabel] != v1alpha1.ManagedBy:
			return nil
		}
		return is
	}, nil
}

// grants reports whether an object grants a permission to another account than the fleet's.
func grants(o isolation.Object) bool {
	b, ok := o.(*rbacv1.RoleBinding)
	return ok && b.Name != isolation.FleetRole
}

// Make creates the namespace and everything that restricts it, the fleet's own permissions first.
func (g Ground) Make(ctx context.Context, c client.Client) error { return inOrder(ctx, c, g.base) }

// Admit grants the permissions that other accounts need in the namespace.
func (g Ground) Admit(ctx context.Context, c client.Client) error { return inOrder(ctx, c, g.access) }

func inOrder(ctx context.Context, c client.Client, all []*unstructured.Unstructured) error {
	// The namespace comes first, then the fleet's permission for the rest.
	for _, first := range []bool{true, false} {
		for _, u := range all {
			own := u.GetKind() == "Namespace" || u.GetKind() == "RoleBinding" && u.GetName() == isolation.FleetRole
			if own != first {
				continue
			}
			if err := place(ctx, c, u); err != nil {
				return err
			}
		}
	}
	return nil
}

// place applies one object. Before its RoleBinding exists in a namespace, the fleet may create a
// RoleBinding there, but not apply one.
func place(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if u.GetKind() == "RoleBinding" && u.GetName() == isolation.FleetRole {
		err := c.Create(ctx, u.DeepCopy())
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	// Organisations in a shared namespace are reconciled concurrently and find the same work.
	if is, err := Get(ctx, c, u.GroupVersionKind(), client.ObjectKeyFromObject(u)); err == nil && Settled(u, is) {
		return nil
	}
	return Apply(ctx, c, u)
}

// Kinds returns the kinds that [isolation.Ground] and [isolation.Objects] render, without ARC's.
func Kinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{core.WithKind("Secret"), core.WithKind("ServiceAccount"), core.WithKind("ConfigMap"), core.WithKind("ResourceQuota"), core.WithKind("LimitRange"),
		core.WithKind("Pod"), rbac.WithKind("RoleBinding"), networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
		{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}}, []schema.GroupVersionKind{core.WithKind("Namespace")}
}
