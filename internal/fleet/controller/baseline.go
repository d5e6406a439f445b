package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// errForeignNamespace is the error for a namespace that belongs to others.
var errForeignNamespace = errors.New("the fleet did not create it for this organisation")

// A baselineState is the state of a namespace of runners, compared with its desired state.
type baselineState struct {
	Namespace fleet.Answer // the namespace and its objects, except for the next two
	Policies  fleet.Answer // its NetworkPolicies
	Access    fleet.Answer // the pod creators may create pods there
	base      []*unstructured.Unstructured
	access    []*unstructured.Unstructured
}

// baselineValidFor is how long a successful comparison of a namespace stays valid if the desired state
// does not change. Deleted objects are found after that time.
const baselineValidFor = 20 * time.Second

// A baselineCache caches which namespaces matched their desired state, so that frequent reconciles do not
// read all objects each time. Its zero value is an empty cache.
type baselineCache struct {
	mu     sync.Mutex
	checks map[string]baselineCheck // by caller
}

type baselineCheck struct {
	desired string
	at      time.Time
}

// delete removes the cached result of a caller.
func (m *baselineCache) delete(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.checks, owner)
}

func (m *baselineCache) isFresh(owner, desired string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.checks[owner]
	return ok && old.desired == desired && now.Sub(old.at) < baselineValidFor && !now.Before(old.at)
}

func (m *baselineCache) set(owner, desired string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.checks == nil {
		m.checks = map[string]baselineCheck{}
	}
	m.checks[owner] = baselineCheck{desired, now}
}

// check compares a namespace with the desired objects, as [isolation.Baseline] renders them; the
// namespace itself is the first. An organisation's own namespace must be one that the fleet created
// for that organisation. owner identifies the caller in the cache. fresh bypasses the cache.
func (m *baselineCache) check(
	ctx context.Context,
	c client.Client,
	desired []isolation.Object,
	owner, org string,
	now time.Time,
	fresh bool,
) (g baselineState, err error) {
	all := make([]*unstructured.Unstructured, len(desired))
	var sum strings.Builder
	for i, o := range desired {
		if all[i], err = prepareApply(o); err != nil {
			return g, err
		}
		fmt.Fprintf(
			&sum,
			"%s %s %s %v\n",
			all[i].GetKind(),
			client.ObjectKeyFromObject(all[i]),
			all[i].GetAnnotations()[appliedAnnotation],
			all[i].Object["data"],
		)
	}
	if !fresh && m.isFresh(owner, sum.String(), now) {
		return baselineState{Namespace: fleet.Yes, Policies: fleet.Yes, Access: fleet.Yes}, nil
	}
	m.delete(owner)
	exists, err := readBaseline(ctx, c, all, org)
	if err != nil {
		return g, err
	}
	for i, u := range all {
		if upToDate(u, exists(u)) {
			continue
		}
		switch {
		case u.GetKind() == "NetworkPolicy":
			g.Policies = fleet.No
			g.base = append(g.base, u)
		case isRoleBinding(desired[i]):
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
		m.set(owner, sum.String(), now)
	}
	return g, nil
}

// readBaseline reads the existing counterparts of the desired objects concurrently. It lists most kinds. It
// reads policies and canaries one by one, because the shared namespace has as many as
// organisations.
func readBaseline(
	ctx context.Context,
	c client.Reader,
	all []*unstructured.Unstructured,
	org string,
) (exists func(*unstructured.Unstructured) *unstructured.Unstructured, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed, forbidden error
	var namespace *unstructured.Unstructured
	found, requested := map[schema.GroupVersionKind]map[string]*unstructured.Unstructured{}, map[schema.GroupVersionKind]bool{}
	request := func(kind schema.GroupVersionKind, what func() (map[string]*unstructured.Unstructured, error)) {
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
			request(kind, func() (map[string]*unstructured.Unstructured, error) {
				is, err := getObject(ctx, c, kind, client.ObjectKeyFromObject(u))
				return map[string]*unstructured.Unstructured{u.GetName(): is}, err
			})
		case !requested[kind]:
			requested[kind] = true
			request(kind, func() (map[string]*unstructured.Unstructured, error) {
				return listManaged(ctx, c, kind, u.GetNamespace(), nil)
			})
		}
	}
	wg.Wait()
	for _, u := range all {
		if u.GetKind() == "Namespace" {
			namespace = found[u.GroupVersionKind()][u.GetName()]
			if namespace != nil && org != "" && !isManagedFor(namespace, org) {
				return nil, fmt.Errorf("namespace %s: %w", u.GetName(), errForeignNamespace)
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

// isRoleBinding reports whether an object grants a permission to another account than the fleet's.
func isRoleBinding(o isolation.Object) bool {
	b, ok := o.(*rbacv1.RoleBinding)
	return ok && b.Name != isolation.FleetRole
}

// applyBase creates the namespace and everything that restricts it, the fleet's own permissions first.
func (g baselineState) applyBase(ctx context.Context, c client.Client) error {
	return applyInOrder(ctx, c, g.base)
}

// applyAccess grants the permissions that other accounts need in the namespace.
func (g baselineState) applyAccess(ctx context.Context, c client.Client) error {
	return applyInOrder(ctx, c, g.access)
}

func applyInOrder(ctx context.Context, c client.Client, all []*unstructured.Unstructured) error {
	// The namespace comes first, then the fleet's permission for the rest.
	for _, first := range []bool{true, false} {
		for _, u := range all {
			own := u.GetKind() == "Namespace" || u.GetKind() == "RoleBinding" && u.GetName() == isolation.FleetRole
			if own != first {
				continue
			}
			if err := applyOrRecreate(ctx, c, u); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyOrRecreate applies one object. Before its RoleBinding exists in a namespace, the fleet may create a
// RoleBinding there, but not apply one.
func applyOrRecreate(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if u.GetKind() == "RoleBinding" && u.GetName() == isolation.FleetRole {
		err := c.Create(ctx, u.DeepCopy())
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	// Organisations in a shared namespace are reconciled concurrently and find the same work.
	if is, err := getObject(ctx, c, u.GroupVersionKind(), client.ObjectKeyFromObject(u)); err == nil && upToDate(u, is) {
		return nil
	}
	return applyObject(ctx, c, u)
}

// baselineKinds returns the kinds that [isolation.Baseline] and [isolation.Objects] render, without ARC's.
func baselineKinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{
			core.WithKind("Secret"),
			core.WithKind("ServiceAccount"),
			core.WithKind("ConfigMap"),
			core.WithKind("ResourceQuota"),
			core.WithKind("LimitRange"),
			core.WithKind("Pod"),
			rbac.WithKind("RoleBinding"),
			networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
			{
				Group:   "apps",
				Version: "v1",
				Kind:    "Deployment",
			},
			{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
		}, []schema.GroupVersionKind{
			core.WithKind("Namespace"),
		}
}

// appliedAnnotation holds a hash of the applied object. A changed hash also reveals fields that
// must no longer be there.
const appliedAnnotation = "tailplane.dev/applied"

// prepareApply converts an object for server-side apply. It adds the hash of the object and removes
// fields that the Go type always writes, even if they are empty. The hash does not cover secret
// data.
func prepareApply(o runtime.Object) (*unstructured.Unstructured, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(out)}
	delete(u.Object, "status")
	for _, path := range [][]string{{"metadata", "creationTimestamp"}, {"metadata", "resourceVersion"}, {"spec", "template", "metadata", "creationTimestamp"}} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	hashed := maps.Clone(u.Object)
	delete(hashed, "data") // the data are compared directly
	text, err := json.Marshal(hashed)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	notes := u.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[appliedAnnotation] = hex.EncodeToString(sum[:8])
	u.SetAnnotations(notes)
	return u, nil
}

// upToDate reports whether the object has everything that is wanted. Additions of others are
// allowed, except in data, which the fleet owns completely.
func upToDate(want, is *unstructured.Unstructured) bool {
	if is == nil {
		return false
	}
	had, _, _ := unstructured.NestedMap(is.Object, "data")
	data, _, _ := unstructured.NestedMap(want.Object, "data")
	return len(had) == len(data) && isSubset(want.Object, is.Object)
}

func isSubset(want, is any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		is, _ := is.(map[string]any)
		for key, value := range want {
			if !isSubset(value, is[key]) {
				return false
			}
		}
		return true
	case []any:
		is, _ := is.([]any)
		if len(want) != len(is) {
			return false
		}
		for i := range want {
			if !isSubset(want[i], is[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, is)
}

// isManagedFor reports whether the fleet created an object for that organisation. The organisation "" means
// an object for all of them.
func isManagedFor(o client.Object, org string) bool {
	return o.GetLabels()[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && o.GetLabels()[v1alpha1.OrgLabel] == org
}

// applyObject applies an object with server-side apply.
func applyObject(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// listManaged returns the existing objects of one kind in one namespace, by name. It reads only objects
// that the fleet created.
func listManaged(
	ctx context.Context,
	c client.Reader,
	kind schema.GroupVersionKind,
	namespace string,
	labels client.MatchingLabels,
) (map[string]*unstructured.Unstructured, error) {
	list := newList(kind)
	where := client.MatchingLabels{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}
	maps.Copy(where, labels)
	if err := c.List(ctx, list, client.InNamespace(namespace), where); err != nil {
		return nil, fmt.Errorf("list %s in %s: %w", kind.Kind, namespace, err)
	}
	out := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		out[list.Items[i].GetName()] = &list.Items[i]
	}
	return out, nil
}

// newList returns an empty list of objects of one kind.
func newList(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return list
}

// getObject reads one object; nil if it does not exist.
func getObject(
	ctx context.Context,
	c client.Reader,
	kind schema.GroupVersionKind,
	key client.ObjectKey,
) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	err := c.Get(ctx, key, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", kind.Kind, key, err)
	}
	return u, nil
}
