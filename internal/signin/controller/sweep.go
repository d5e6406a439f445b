package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
)

// runSweeps removes orphaned objects and old access requests at the start and every ten minutes. It is the last resort
// if the finalizer and the owner reference fail.
func (r *reconciler) runSweeps(ctx context.Context) error {
	r.synced.Store(true)
	r.Log.Info("the sign-in operator is running", "namespace", r.Namespace)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := r.sweep(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error("sweep", "err", err)
		}
		if err := r.sweepRequests(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error("sweep access requests", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sweep deletes bindings and ServiceAccounts that carry the UID of a sign-in that does not exist.
func (r *reconciler) sweep(ctx context.Context) error {
	var made []client.Object // with Tailplane's labels, from the cache
	for _, x := range []struct {
		list    client.ObjectList
		options []client.ListOption
	}{{new(corev1.ServiceAccountList), []client.ListOption{client.InNamespace(r.Namespace)}}, {new(rbacv1.ClusterRoleBindingList), nil}, {new(rbacv1.RoleBindingList), nil}} {
		items, err := r.objects(ctx, x.list, x.options...)
		if err != nil {
			return err
		}
		made = append(made, items...)
	}
	return r.removeOrphans(ctx, made, r.signinUIDs)
}

// sweepOne sweeps the objects with the name of a deleted sign-in at once. This is needed if a user
// removed its finalizer by hand.
func (r *reconciler) sweepOne(ctx context.Context, name string) error {
	var made []client.Object
	sa := new(corev1.ServiceAccount)
	switch err := r.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, sa); {
	case err == nil:
		made = append(made, sa)
	case !apierrors.IsNotFound(err):
		return err
	}
	for _, list := range []client.ObjectList{new(rbacv1.ClusterRoleBindingList), new(rbacv1.RoleBindingList)} {
		bindings, err := r.objects(ctx, list, client.MatchingFields{byName: name})
		if err != nil {
			return err
		}
		made = append(made, bindings...)
	}
	return r.removeOrphans(ctx, made, r.signinUID(name))
}

// removeOrphans deletes the objects in made whose sign-in does not exist. The cache only selects
// candidates. exist then returns the UIDs of existing sign-ins from the API server. It runs after
// made was read, and each object was created after its sign-in.
func (r *reconciler) removeOrphans(ctx context.Context, made []client.Object, exist func(context.Context) (map[string]bool, error)) error {
	var suspects []client.Object
	for _, o := range made {
		uid := ownerUID(o, r.Namespace)
		if uid == "" {
			continue
		}
		var list v1alpha1.TkaSigninList
		if err := r.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingFields{byUID: uid}, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		if len(list.Items) == 0 {
			suspects = append(suspects, o)
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	live, err := exist(ctx)
	if err != nil {
		return fmt.Errorf("sweep: list the existing sign-ins: %w", err)
	}
	var errs []error
	for _, o := range suspects {
		if live[ownerUID(o, r.Namespace)] {
			continue
		}
		if err := kube.Delete(ctx, r.Client, o); err != nil && !kube.IsStale(err) {
			errs = append(errs, fmt.Errorf("sweep %s %s: %w", o.GetNamespace(), o.GetName(), err))
			continue
		}
		gvk, err := r.GroupVersionKindFor(o)
		if err != nil {
			return err // a type that is not in the scheme
		}
		kind := gvk.Kind
		r.Log.Info("deleted an orphaned object", "uid", ownerUID(o, r.Namespace), "kind", kind, "namespace", o.GetNamespace(), "name", o.GetName())
		if r.OnSweep != nil {
			r.OnSweep(kind, o.GetNamespace(), o.GetName())
		}
	}
	return errors.Join(errs...)
}

// signinUIDs returns the UIDs of all sign-ins.
func (r *reconciler) signinUIDs(ctx context.Context) (map[string]bool, error) {
	list := new(metav1.PartialObjectMetadataList)
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TkaSigninList"))
	if err := r.live.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		return nil, err
	}
	uids := map[string]bool{}
	for i := range list.Items {
		uids[string(list.Items[i].UID)] = true
	}
	return uids, nil
}

// signinUID returns a function that returns the UID of the sign-in of that name, if it exists.
func (r *reconciler) signinUID(name string) func(context.Context) (map[string]bool, error) {
	return func(ctx context.Context) (map[string]bool, error) {
		o := new(v1alpha1.TkaSignin)
		if err := r.live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, o); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return map[string]bool{string(o.UID): true}, nil
	}
}
