package planekube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/problem"
)

// changeLabel marks the ConfigMaps in which changes are kept, and changeKey is the
// key of the change in one.
const (
	changeLabel = "tailplane.dev/change"
	changeKey   = "change.json"
)

// Changes keeps changes of the configuration, each in a ConfigMap of the plane's
// namespace. It needs get, create and update on configmaps there, and, for dry runs
// only, patch and delete on the fleet's kinds.
type Changes struct {
	client    client.Client
	namespace string
}

// NewChanges returns what keeps changes. It asks nothing yet.
func NewChanges(config *rest.Config, namespace string) (*Changes, error) {
	if config == nil || namespace == "" {
		return nil, errors.New("keeping changes takes a client configuration and a namespace")
	}
	c, err := NewClient(kube.Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &Changes{client.WithFieldValidation(c, metav1.FieldValidationStrict), namespace}, nil
}

// Get implements [planechange.Store].
func (s *Changes) Get(ctx context.Context, id string) (planechange.Kept, error) {
	m := new(corev1.ConfigMap)
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: changeName(id)}, m)
	if apierrors.IsNotFound(err) || err == nil && m.Labels[changeLabel] == "" {
		return planechange.Kept{}, problem.New(problem.NotFound, "There is no such change, or you may not see it.", "List those that you may see.")
	}
	if err != nil {
		return planechange.Kept{}, changeUnsaid(fmt.Errorf("read the change %s: %w", id, err))
	}
	return kept(m)
}

// Create implements [planechange.Store].
func (s *Changes) Create(ctx context.Context, c change.Change) (planechange.Kept, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return planechange.Kept{}, err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: changeName(c.ID), Labels: map[string]string{changeLabel: "true"}}, Data: map[string]string{changeKey: string(text)}}
	switch err := s.client.Create(ctx, m); {
	case apierrors.IsAlreadyExists(err):
		return s.Get(ctx, c.ID)
	case err != nil:
		return planechange.Kept{}, changeUnsaid(fmt.Errorf("keep the change %s: %w", c.ID, err))
	}
	return kept(m)
}

// Save implements [planechange.Store].
func (s *Changes) Save(ctx context.Context, k planechange.Kept) (planechange.Kept, error) {
	text, err := json.Marshal(k.Change)
	if err != nil {
		return k, err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: changeName(k.ID), ResourceVersion: k.At, Labels: map[string]string{changeLabel: "true"}},
		Data: map[string]string{changeKey: string(text)}}
	switch err := s.client.Update(ctx, m); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return k, problem.New(problem.Conflict, "Somebody has decided about this change meanwhile.", "Look at it as it is now.")
	case err != nil:
		return k, changeUnsaid(fmt.Errorf("keep the change %s: %w", k.ID, err))
	}
	return kept(m)
}

// Try asks the API server whether it would take an object of the fleet's, or its end.
func (s *Changes) Try(ctx context.Context, r change.Ref, spec map[string]any) error {
	_, err := s.Would(ctx, r, spec)
	return err
}

// Would asks the API server in a dry run what a spec would make of an object of the
// fleet's; nil: its end, of which nothing is left. A problem.Validation says that it would
// not take it.
func (s *Changes) Would(ctx context.Context, r change.Ref, spec map[string]any) (map[string]any, error) {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": r.Kind, "metadata": map[string]any{"name": r.Name}}}
	var err error
	if spec == nil {
		err = client.IgnoreNotFound(s.client.Delete(ctx, o, client.DryRunAll))
	} else {
		text, merr := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": r.Kind, "metadata": map[string]any{"name": r.Name}, "spec": spec})
		if merr != nil {
			return nil, merr
		}
		err = s.client.Patch(ctx, o, client.RawPatch("application/apply-patch+yaml", text), client.DryRunAll, client.ForceOwnership, client.FieldOwner("tailplane-plane-try"))
	}
	switch {
	case err == nil && spec == nil:
		return nil, nil
	case err == nil:
		would, _, err := unstructured.NestedMap(o.Object, "spec")
		return would, err
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), undeclared(err):
		return nil, problem.New(problem.Validation, err.Error())
	}
	return nil, problem.New(problem.Unavailable, "The API server has not said whether it would take the object.", "Try again in a moment.").After(time.Second).Because(fmt.Errorf("dry run of %s: %w", r, err))
}

// undeclared reports whether an apply was refused for a field that the kind does not
// have, which API servers up to 1.37 call an internal error.
func undeclared(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "field not declared in schema")
}

// All lists the fleet's objects in the cluster, with their specs. What ends is not among
// them.
func (s *Changes) All(ctx context.Context) (map[change.Ref]map[string]any, error) {
	all := map[change.Ref]map[string]any{}
	for _, kind := range change.Kinds() {
		l := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind + "List"}}
		if err := s.client.List(ctx, l); err != nil {
			return nil, fmt.Errorf("list the fleet's objects: %w", err)
		}
		for _, o := range l.Items {
			if spec, there, err := unstructured.NestedMap(o.Object, "spec"); there && err == nil && o.GetDeletionTimestamp() == nil {
				all[change.Ref{Kind: kind, Name: o.GetName()}] = spec
			}
		}
	}
	return all, nil
}

// Live is the spec of an object in the cluster; nil: there is none. Known is false
// where the API server does not say.
func (s *Changes) Live(ctx context.Context, r change.Ref) (spec map[string]any, known bool) {
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

func kept(m *corev1.ConfigMap) (planechange.Kept, error) {
	k := planechange.Kept{At: m.ResourceVersion}
	if err := json.Unmarshal([]byte(m.Data[changeKey]), &k.Change); err != nil || changeName(k.ID) != m.Name {
		return k, problem.New(problem.Internal, "internal error").Because(fmt.Errorf("the ConfigMap %s is no change: %w", m.Name, err))
	}
	return k, nil
}

// changeOf is a kept change on the Board.
func changeOf(m *corev1.ConfigMap, now time.Time) ([]plane.Object, string) {
	k, err := kept(m)
	if err != nil {
		return nil, fmt.Sprintf("The ConfigMap %s cannot be read as a change.", m.Name)
	}
	return []plane.Object{planechange.Of(k, now)}, ""
}

func changeUnsaid(err error) error {
	return problem.New(problem.Unavailable, "The API server has not said what has become of the change.", "Look at it, and try again in a moment: what was done is found again.").After(time.Second).Because(err)
}
