package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// changeLabel marks the ConfigMaps that store changes. changeKey is the data key of the change.
const (
	changeLabel = "tailplane.dev/change"
	changeKey   = "change.json"
)

// ChangeStore stores changes of the configuration, each in a ConfigMap of the plane's namespace. It needs get, create and update on configmaps
// there. For dry runs only, it needs patch and delete on the fleet's kinds.
type ChangeStore struct {
	client    client.Client
	namespace string
}

// Changes returns the store of changes in a namespace.
func (c *Connection) Changes(namespace string) *ChangeStore {
	return &ChangeStore{client.WithFieldValidation(c.client, metav1.FieldValidationStrict), namespace}
}

// Get implements [plane.ChangeStore].
func (s *ChangeStore) Get(ctx context.Context, id string) (plane.StoredChange, error) {
	m := new(corev1.ConfigMap)
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: changeName(id)}, m)
	if apierrors.IsNotFound(err) || err == nil && m.Labels[changeLabel] == "" {
		return plane.StoredChange{}, problem.New(problem.NotFound, "The change does not exist, or you may not see it.", "List the changes that you may see.")
	}
	if err != nil {
		return plane.StoredChange{}, writeUnavailable("change", fmt.Errorf("read the change %s: %w", id, err))
	}
	return parseChange(m)
}

// Create implements [plane.ChangeStore].
func (s *ChangeStore) Create(ctx context.Context, c gitops.Change) (plane.StoredChange, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return plane.StoredChange{}, err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: changeName(c.ID), Labels: map[string]string{changeLabel: "true"}}, Data: map[string]string{changeKey: string(text)}}
	switch err := s.client.Create(ctx, m); {
	case apierrors.IsAlreadyExists(err):
		return s.Get(ctx, c.ID)
	case err != nil:
		return plane.StoredChange{}, writeUnavailable("change", fmt.Errorf("store the change %s: %w", c.ID, err))
	}
	return parseChange(m)
}

// Save implements [plane.ChangeStore].
func (s *ChangeStore) Save(ctx context.Context, k plane.StoredChange) (plane.StoredChange, error) {
	text, err := json.Marshal(k.Change)
	if err != nil {
		return k, err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: changeName(k.ID), ResourceVersion: k.StoreVersion, Labels: map[string]string{changeLabel: "true"}},
		Data: map[string]string{changeKey: string(text)}}
	switch err := s.client.Update(ctx, m); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return k, problem.New(problem.Conflict, "Another request has changed this change in the meantime.", "Check its current state.")
	case err != nil:
		return k, writeUnavailable("change", fmt.Errorf("store the change %s: %w", k.ID, err))
	}
	return parseChange(m)
}

// DryRun checks with a dry run whether the API server would accept an object of the fleet, or its deletion if spec is nil.
func (s *ChangeStore) DryRun(ctx context.Context, r gitops.Ref, spec map[string]any) error {
	_, err := s.DryRunSpec(ctx, r, spec)
	return err
}

// DryRunSpec returns, from a dry run, the spec that the API server would store for an object of the fleet. A nil spec means deletion, which
// returns nil. A problem.Validation says that the API server would not accept it.
func (s *ChangeStore) DryRunSpec(ctx context.Context, r gitops.Ref, spec map[string]any) (map[string]any, error) {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": r.Kind, "metadata": map[string]any{"name": r.Name}}}
	var err error
	if spec == nil {
		err = client.IgnoreNotFound(s.client.Delete(ctx, o, client.DryRunAll))
	} else {
		text, marshalErr := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": r.Kind, "metadata": map[string]any{"name": r.Name}, "spec": spec})
		if marshalErr != nil {
			return nil, marshalErr
		}
		err = s.client.Patch(ctx, o, client.RawPatch("application/apply-patch+yaml", text), client.DryRunAll, client.ForceOwnership, client.FieldOwner("tailplane-plane-try"))
	}
	switch {
	case err == nil && spec == nil:
		return nil, nil
	case err == nil:
		would, _, err := unstructured.NestedMap(o.Object, "spec")
		return would, err
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), isUndeclaredField(err):
		return nil, problem.New(problem.Validation, err.Error())
	}
	return nil, problem.New(problem.Unavailable, "The API server did not say whether it would accept the object.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(fmt.Errorf("dry run of %s: %w", r, err))
}

// isUndeclaredField reports whether an apply failed because the kind does not have a field. API servers up to 1.37 call this an internal error.
func isUndeclaredField(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "field not declared in schema")
}

// ListSpecs lists the fleet's objects in the cluster with their specs, except those that are being deleted.
func (s *ChangeStore) ListSpecs(ctx context.Context) (map[gitops.Ref]map[string]any, error) {
	all := map[gitops.Ref]map[string]any{}
	for _, kind := range gitops.Kinds() {
		l := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind + "List"}}
		if err := s.client.List(ctx, l); err != nil {
			return nil, fmt.Errorf("list the fleet's objects: %w", err)
		}
		for _, o := range l.Items {
			if spec, found, err := unstructured.NestedMap(o.Object, "spec"); found && err == nil && o.GetDeletionTimestamp() == nil {
				all[gitops.Ref{Kind: kind, Name: o.GetName()}] = spec
			}
		}
	}
	return all, nil
}

// GetSpec returns the spec of an object in the cluster, or nil if there is none. known is false if the API server did not answer.
func (s *ChangeStore) GetSpec(ctx context.Context, r gitops.Ref) (spec map[string]any, known bool) {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": r.Kind}}
	switch err := s.client.Get(ctx, client.ObjectKey{Name: r.Name}, o); {
	case apierrors.IsNotFound(err):
		return nil, true
	case err != nil:
		return nil, false
	}
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	return spec, err == nil
}

func changeName(id string) string { return "change-" + id }

func parseChange(m *corev1.ConfigMap) (plane.StoredChange, error) {
	k := plane.StoredChange{StoreVersion: m.ResourceVersion}
	if err := json.Unmarshal([]byte(m.Data[changeKey]), &k.Change); err != nil || changeName(k.ID) != m.Name {
		return k, problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("the ConfigMap %s does not contain a change: %w", m.Name, err))
	}
	return k, nil
}

// changeOf converts a stored change to an object for the plane's store.
func changeOf(m *corev1.ConfigMap, now time.Time) ([]plane.Object, string) {
	k, err := parseChange(m)
	if err != nil {
		return nil, fmt.Sprintf("The ConfigMap %s cannot be read as a change.", m.Name)
	}
	return []plane.Object{plane.NewChange(k, now)}, ""
}

// writeUnavailable returns the problem for a write of an object whose result is unknown.
func writeUnavailable(object string, err error) error {
	return problem.New(problem.Unavailable, "The API server did not confirm the write of the "+object+".", "Check the object, and try again in a moment. A repeated request finds an earlier result.").WithRetryAfter(time.Second).WithCause(err)
}

// BrokenRules returns the fleet rules between objects that a new spec of an object would break and that are not broken now. A nil spec deletes
// the object. It checks only the objects: it reads no Secret, renders no template, and queries no forge.
func (s *ChangeStore) BrokenRules(ctx context.Context, rules fleet.Rules, r gitops.Ref, spec map[string]any) ([]plane.Rule, error) {
	v := fleet.View{Rules: rules}
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var enrollments v1alpha1.RunnerEnrollmentList
	for _, l := range []client.ObjectList{&forges, &pools, &enrollments} {
		if err := s.client.List(ctx, l); err != nil {
			return nil, problem.New(problem.Unavailable, "The API server did not return the other objects.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(fmt.Errorf("list for a preview: %w", err))
		}
	}
	v.Forges, v.Pools, v.Enrollments = forges.Items, pools.Items, enrollments.Items
	broken := fleet.Check(v)
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	name := metav1.ObjectMeta{Name: r.Name, CreationTimestamp: metav1.Now()} // keeps an existing object's age, or is the youngest
	switch r.Kind {
	case "RunnerForge":
		v.Forges, err = withChange(v.Forges, v1alpha1.RunnerForge{ObjectMeta: name}, spec != nil, func(o *v1alpha1.RunnerForge) (*metav1.ObjectMeta, any) { return &o.ObjectMeta, &o.Spec }, text)
	case "RunnerPool":
		v.Pools, err = withChange(v.Pools, v1alpha1.RunnerPool{ObjectMeta: name}, spec != nil, func(o *v1alpha1.RunnerPool) (*metav1.ObjectMeta, any) { return &o.ObjectMeta, &o.Spec }, text)
	case "RunnerEnrollment":
		v.Enrollments, err = withChange(v.Enrollments, v1alpha1.RunnerEnrollment{ObjectMeta: name}, spec != nil, func(o *v1alpha1.RunnerEnrollment) (*metav1.ObjectMeta, any) { return &o.ObjectMeta, &o.Spec }, text)
	}
	if err != nil {
		return nil, err
	}
	would := fleet.Check(v)
	all := []plane.Rule{}
	for _, org := range slices.Sorted(maps.Keys(would)) {
		for _, x := range would[org] {
			if !slices.Contains(broken[org], x) {
				all = append(all, plane.Rule{Org: org, Pool: x.Pool, Reason: x.Reason, Message: x.Message})
			}
		}
	}
	return all, nil
}

// withChange returns all with one object changed to the spec in text, added, or, if stays is false, removed.
func withChange[T any](all []T, fresh T, stays bool, of func(*T) (*metav1.ObjectMeta, any), text []byte) ([]T, error) {
	is, _ := of(&fresh)
	i := slices.IndexFunc(all, func(o T) bool { m, _ := of(&o); return m.Name == is.Name })
	switch {
	case !stays && i < 0:
		return all, nil
	case !stays:
		return slices.Delete(all, i, i+1), nil
	case i < 0:
		all, i = append(all, fresh), len(all)
	default:
		m, _ := of(&all[i])
		name := *m
		all[i] = fresh
		m, _ = of(&all[i])
		*m = name
	}
	_, spec := of(&all[i])
	return all, json.Unmarshal(text, spec)
}
