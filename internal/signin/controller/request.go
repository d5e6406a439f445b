package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

// requestName returns the key of a sign-in in the index byRequest.
func requestName(o client.Object) []string {
	if ref := o.(*v1alpha1.TkaSignin).Spec.Request; ref != nil {
		return []string{ref.Name}
	}
	return nil
}

// requestsForAccessRequest returns the sign-ins that use an access request.
func (r *reconciler) requestsForAccessRequest(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsByIndex(ctx, byRequest, o.GetName())
}

// accessRequest sets what is known about the access request of a sign-in that uses one. While it cannot
// be read, nothing changes before the end that is already known.
func (r *reconciler) accessRequest(ctx context.Context, reader client.Reader, f *signin.Facts) error {
	if f.ByRequest.Name == "" || !r.Rules.Requests.Enabled {
		return nil
	}
	err := r.readAccessRequest(ctx, reader, f)
	if err != nil && !f.ValidUntil.IsZero() && !r.Now().Before(f.ValidUntil) {
		f.Request = signin.Request{Unread: true}
		return nil
	}
	return err
}

func (r *reconciler) readAccessRequest(ctx context.Context, reader client.Reader, f *signin.Facts) error {
	clusterID, err := r.clusterID(ctx)
	if err != nil {
		return err
	}
	o := new(v1alpha1.TkaRequest)
	switch err := reader.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: f.ByRequest.Name}, o); {
	case err == nil:
		f.Request = requestOf(o, clusterID)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read the access request %s: %w", f.ByRequest.Name, err)
	}
	f.RequestPolicyActive, err = r.isPolicyActive(ctx, RequestPolicy)
	return err
}

// clusterID returns the UID of the namespace kube-system. It never changes.
func (r *reconciler) clusterID(ctx context.Context) (string, error) {
	if id := r.cluster.Load(); id != nil {
		return *id, nil
	}
	id, err := kube.ClusterUID(ctx, r.Config)
	if err != nil {
		return "", err
	}
	r.cluster.Store(&id)
	return id, nil
}

// requestOf converts o. A request that is being deleted does not exist any more.
func requestOf(o *v1alpha1.TkaRequest, clusterID string) signin.Request {
	spec, status := o.Spec, o.Status
	r := signin.Request{
		Exists: o.DeletionTimestamp == nil, UID: string(o.UID), Digest: v1alpha1.RequestDigest(clusterID, string(o.UID), spec), IsHere: spec.Cluster.ID == clusterID,
		By:    access.Person{Login: spec.Requester.Login, UserID: spec.Requester.ID, Device: spec.Requester.Device.ID},
		Binds: bindsOfList(spec.Bind), Record: access.MergeRecord(spec.Record, nil), Period: spec.Period.Duration,
		Approvals: int(spec.Approvals), BreakGlass: spec.BreakGlass, IsDecided: status.Decision != nil, IsRevoked: status.Revoked != nil,
	}
	for _, a := range status.Approvals {
		approved := signin.Approval{Person: access.Person{Login: a.Login, UserID: a.UserID, Device: a.Device}, Digest: a.Digest}
		if a.Period != nil {
			approved.Period = a.Period.Duration
		}
		r.Approved = append(r.Approved, approved)
	}
	if u := status.Use; u != nil {
		r.Use = signin.Use{At: u.At.Time, Signin: u.Signin, SigninUID: u.SigninUID, Device: u.Device, Period: u.Period.Duration}
	}
	return r
}

// finalSince returns when the request became final, or false if it is not final at now, or is a
// break-glass use that nobody has reviewed.
func finalSince(o *v1alpha1.TkaRequest, now time.Time) (time.Time, bool) {
	status := o.Status
	var at time.Time
	switch {
	case status.Use != nil:
		if o.Spec.BreakGlass && status.Reviewed == nil {
			return time.Time{}, false
		}
		if at = status.Use.At.Add(status.Use.Period.Duration); status.Revoked != nil && status.Revoked.At.Time.Before(at) {
			at = status.Revoked.At.Time
		}
		if status.Reviewed != nil && status.Reviewed.At.Time.After(at) {
			at = status.Reviewed.At.Time
		}
	case status.Decision != nil:
		at = status.Decision.At.Time
	case status.UsableUntil != nil:
		at = status.UsableUntil.Time
	default:
		at = o.Spec.PendingUntil.Time
	}
	return at, !now.Before(at)
}

// sweepRequests deletes the access requests that have been final for longer than they are kept. The
// cache only selects candidates: a request that changed since is not deleted.
func (r *reconciler) sweepRequests(ctx context.Context) error {
	if !r.Rules.Requests.Enabled {
		return nil
	}
	var list v1alpha1.TkaRequestList
	if err := r.List(ctx, &list, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		o, now := &list.Items[i], r.Now()
		since, final := finalSince(o, now)
		if !final || now.Before(since.Add(r.Rules.Requests.Keep)) || o.DeletionTimestamp != nil {
			continue
		}
		gone := &v1alpha1.TkaRequest{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
		err := r.Delete(ctx, gone, client.Preconditions{UID: new(types.UID(o.UID)), ResourceVersion: new(o.ResourceVersion)})
		if err != nil && !apierrors.IsNotFound(err) && !kube.IsStale(err) {
			errs = append(errs, fmt.Errorf("delete the access request %s: %w", o.Name, err))
		}
	}
	return errors.Join(errs...)
}
