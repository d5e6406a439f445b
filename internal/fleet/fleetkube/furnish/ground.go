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

// ErrForeign is the error for a namespace that somebody else made.
var ErrForeign = errors.New("somebody else made it, or made it for somebody else")

// A Ground is how a namespace of runners stands.
type Ground struct {
	Namespace fleet.Answer // it and what is in it, but for the next two
	Policies  fleet.Answer // its NetworkPolicies
	Access    fleet.Answer // who starts the pods may do so there
	base      []*unstructured.Unstructured
	access    []*unstructured.Unstructured
}

// settledFor is how long it is believed that a namespace is as it is to be, while what is
// to be there stays the same. What somebody took away is found after that.
const settledFor = 20 * time.Second

// A Memory remembers which namespaces were as they are to be a moment ago, so that looks
// that follow one another do not ask for everything there each time. Its zero value
// remembers nothing.
type Memory struct {
	mu sync.Mutex
	of map[string]settled // by who looked
}

type settled struct {
	wanted string
	at     time.Time
}

// Drop forgets what was found for somebody.
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

// LookAt compares a namespace with what is wanted there, as [isolation.Ground] renders
// it; the namespace itself is the first of it. An organisation's own namespace must
// be the fleet's, and that organisation's. Who is for whom it looks; fresh says that it is
// to believe nothing that was found before.
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

// read reads what there is in the place of objects that are wanted, all at the same time:
// of most kinds everything at once, and policies and canaries one by one, of which there
// are as many in the shared namespace as organisations.
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
		case namespace == nil || forbidden != nil: // before the fleet has bound itself there, it may not look
			return nil
		case is != nil && is.GetLabels()[v1alpha1.ManagedByLabel] != v1alpha1.ManagedBy:
			return nil
		}
		return is
	}, nil
}

// grants says whether an object gives somebody else than the fleet a right.
func grants(o isolation.Object) bool {
	b, ok := o.(*rbacv1.RoleBinding)
	return ok && b.Name != isolation.FleetRole
}

// Make makes what bounds the namespace, the fleet's own rights first.
func (g Ground) Make(ctx context.Context, c client.Client) error { return inOrder(ctx, c, g.base) }

// Admit gives those rights that others need there.
func (g Ground) Admit(ctx context.Context, c client.Client) error { return inOrder(ctx, c, g.access) }

func inOrder(ctx context.Context, c client.Client, all []*unstructured.Unstructured) error {
	// The namespace first, then the right to do the rest.
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

// place makes one object. Before the fleet has bound itself in a namespace it may
// create a RoleBinding there, and not yet apply one.
func place(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if u.GetKind() == "RoleBinding" && u.GetName() == isolation.FleetRole {
		err := c.Create(ctx, u.DeepCopy())
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	// Those who share a namespace are looked at beside one another, and find the same to do.
	if is, err := Get(ctx, c, u.GroupVersionKind(), client.ObjectKeyFromObject(u)); err == nil && Settled(u, is) {
		return nil
	}
	return Apply(ctx, c, u)
}

// Kinds are those of what [isolation.Ground] and [isolation.Objects] render, but for
// ARC's.
func Kinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{core.WithKind("Secret"), core.WithKind("ServiceAccount"), core.WithKind("ConfigMap"), core.WithKind("ResourceQuota"), core.WithKind("LimitRange"),
		core.WithKind("Pod"), rbac.WithKind("RoleBinding"), networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
		{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}}, []schema.GroupVersionKind{core.WithKind("Namespace")}
}
