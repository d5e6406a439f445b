package controller

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/requests"
	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// requestOf converts o, and computes its digest.
func (s *Store) requestOf(o *v1alpha1.TkaRequest) requests.Request {
	spec, q := o.Spec, o.Spec.Requester
	r := requests.Request{
		Name: o.Name, UID: string(o.UID), Version: o.ResourceVersion, Created: o.CreationTimestamp.Time,
		Digest:      v1alpha1.RequestDigest(s.clusterID, string(o.UID), spec),
		ClusterName: spec.Cluster.Name, ClusterID: spec.Cluster.ID,
		Requester: requests.Requester{Person: access.Person{Login: q.Login, UserID: q.ID, Device: q.Device.ID}, DisplayName: q.DisplayName,
			DeviceName: q.Device.Name, Tailnet: q.Device.Tailnet, Tags: slices.Clone(q.Tags)},
		Rule: spec.Rule, Period: spec.Period.Duration, Approvals: int(spec.Approvals), Reason: spec.Reason, BreakGlass: spec.BreakGlass,
		Record: access.MergeRecord(spec.Record, nil), AskedAt: spec.AskedAt.Time, PendingUntil: spec.PendingUntil.Time,
	}
	for _, b := range spec.Bind {
		r.Binds = append(r.Binds, access.Bind{Role: access.Role(b.Role), Namespaces: slices.Sorted(slices.Values(b.Namespaces)), Selector: access.Selector(b.NamespaceSelector)})
	}
	for _, a := range o.Status.Approvals {
		approval := requests.Approval{Person: personOf(a.RequestPerson), Digest: a.Digest, At: a.At.Time, Comment: a.Comment}
		if a.Period != nil {
			approval.Period = a.Period.Duration
		}
		r.Approved = append(r.Approved, approval)
	}
	if d := o.Status.Decision; d != nil {
		r.Decision = &requests.Decision{Is: requests.Denied, Act: *actOf(&d.RequestAct)}
		if d.Is == "Cancelled" {
			r.Decision.Is = requests.Cancelled
		}
	}
	r.Revoked, r.Reviewed = actOf(o.Status.Revoked), actOf(o.Status.Reviewed)
	if u := o.Status.Use; u != nil {
		r.Use = &requests.Use{At: u.At.Time, Signin: u.Signin, SigninUID: u.SigninUID, Device: u.Device, Period: u.Period.Duration}
	}
	if o.Status.UsableUntil != nil {
		r.UsableUntil = o.Status.UsableUntil.Time
	}
	return r
}

func personOf(p v1alpha1.RequestPerson) access.Person {
	return access.Person{Login: p.Login, UserID: p.UserID, Device: p.Device}
}

func actOf(a *v1alpha1.RequestAct) *requests.Act {
	if a == nil {
		return nil
	}
	return &requests.Act{By: personOf(a.RequestPerson), At: a.At.Time, Reason: a.Reason}
}

// objectOf returns the new object for a request.
func objectOf(r requests.Request, namespace string) *v1alpha1.TkaRequest {
	q := r.Requester
	o := &v1alpha1.TkaRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name, Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}},
		Spec: v1alpha1.TkaRequestSpec{
			Cluster: v1alpha1.RequestCluster{Name: r.ClusterName, ID: r.ClusterID},
			Requester: v1alpha1.Requester{SigninUser: v1alpha1.SigninUser{Login: q.Login, ID: q.UserID, DisplayName: sanitize.DisplayName(q.DisplayName)}, Tags: q.Tags,
				Device: v1alpha1.SigninDevice{ID: q.Device, Name: sanitize.DisplayName(q.DeviceName), Tailnet: q.Tailnet}},
			Rule: r.Rule, Period: metav1.Duration{Duration: r.Period}, Approvals: int32(r.Approvals), Reason: r.Reason, BreakGlass: r.BreakGlass, Record: r.Record,
			AskedAt: metav1.NewTime(r.AskedAt), PendingUntil: metav1.NewTime(r.PendingUntil),
		},
	}
	for _, b := range r.Binds {
		o.Spec.Bind = append(o.Spec.Bind, v1alpha1.SigninBind{Role: string(b.Role), Namespaces: b.Namespaces, NamespaceSelector: string(b.Selector)})
	}
	return o
}

// statusOf converts a status for a patch. It omits notified, which others write.
func statusOf(s requests.Status) v1alpha1.TkaRequestStatus {
	out := v1alpha1.TkaRequestStatus{Revoked: actTo(s.Revoked), Reviewed: actTo(s.Reviewed)}
	for _, a := range s.Approved {
		approval := v1alpha1.RequestApproval{RequestPerson: personTo(a.Person), Digest: a.Digest, At: metav1.NewTime(a.At), Comment: a.Comment}
		if a.Period > 0 {
			approval.Period = &metav1.Duration{Duration: a.Period}
		}
		out.Approvals = append(out.Approvals, approval)
	}
	if d := s.Decision; d != nil {
		out.Decision = &v1alpha1.RequestDecision{RequestAct: *actTo(&d.Act), Is: "Denied"}
		if d.Is == requests.Cancelled {
			out.Decision.Is = "Cancelled"
		}
	}
	if u := s.Use; u != nil {
		out.Use = &v1alpha1.RequestUse{At: metav1.NewTime(u.At), Signin: u.Signin, SigninUID: u.SigninUID, Device: u.Device, Period: metav1.Duration{Duration: u.Period}}
	}
	out.UsableUntil = timeTo(s.UsableUntil)
	return out
}

func timeTo(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewTime(t))
}

func personTo(p access.Person) v1alpha1.RequestPerson {
	return v1alpha1.RequestPerson{Login: p.Login, UserID: p.UserID, Device: p.Device}
}

func actTo(a *requests.Act) *v1alpha1.RequestAct {
	if a == nil {
		return nil
	}
	return &v1alpha1.RequestAct{RequestPerson: personTo(a.By), At: metav1.NewTime(a.At), Reason: a.Reason}
}
