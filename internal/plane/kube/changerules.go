package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

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
