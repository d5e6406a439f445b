//go:build unix

package controller

import (
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// RQ-11: with every right on requests, a tenant and an administrator write none. Only the access server does. The product's accounts have the rights
// that the whole flow needs.
func TestRQ11_OnlyTheAccessServerWritesRequests(t *testing.T) {
	p := newProductEnv(t).withRequests()
	p.operate()
	s, _ := p.open()
	ctx := t.Context()
	all := rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"tkarequests", "tkarequests/status"}, Verbs: []string{"*"}}
	writers := map[string]client.Client{"a tenant": p.user("mallory", all), "system:masters": p.admin}
	server, operator := p.client(p.accessConfig), p.client(p.operatorConfig)
	alice := p.owner("alice@a.example", "laptop")
	x, o := p.elevate(s, alice)
	pending := p.ask(alice)

	for who, c := range writers {
		if err := c.Create(ctx, p.newRequest(p.owner("mallory@a.example", "laptop"))); !denied(err) {
			t.Errorf("%s creates a request: %v, want denied", who, err)
		}
		reason := p.requestObject(pending.Name)
		reason.Spec.Reason = "because"
		if err := c.Update(ctx, reason); !apierrors.IsInvalid(err) { // the schema comes first
			t.Errorf("%s changes a spec: %v, want Invalid", who, err)
		}
		for what, forge := range map[string]func(*v1alpha1.TkaRequest){
			"forges an approval": func(o *v1alpha1.TkaRequest) {
				o.Status.Approvals = []v1alpha1.RequestApproval{{RequestPerson: v1alpha1.RequestPerson{Login: "ceo@a.example", UserID: "u9", Device: "n9"},
					Digest: v1alpha1.RequestDigest(p.clusterID(), string(o.UID), o.Spec), At: metav1.Now()}}
			},
			"forges a decision": func(o *v1alpha1.TkaRequest) {
				o.Status.Decision = &v1alpha1.RequestDecision{Is: "Denied", RequestAct: v1alpha1.RequestAct{RequestPerson: v1alpha1.RequestPerson{Login: "ceo@a.example", UserID: "u9", Device: "n9"}, At: metav1.Now()}}
			},
			"writes a notice": func(o *v1alpha1.TkaRequest) {
				o.Status.Notified = []v1alpha1.RequestNotice{{Step: "asked", Target: "slack", At: metav1.Now()}}
			},
		} {
			forged := p.requestObject(pending.Name)
			forge(forged)
			if err := c.Status().Update(ctx, forged); !denied(err) {
				t.Errorf("%s %s: %v, want denied", who, what, err)
			}
		}
	}
	// The product's own accounts have no right beyond theirs.
	for what, err := range map[string]error{
		"the operator creates a request":                 operator.Create(ctx, p.newRequest(alice)),
		"the operator writes a status":                   operator.Status().Update(ctx, p.requestObject(pending.Name)),
		"the access server deletes a request":            server.Delete(ctx, p.requestObject(pending.Name)),
		"the access server changes a request":            server.Update(ctx, p.requestObject(pending.Name)),
		"the access server replaces a request's status":  server.Status().Update(ctx, p.requestObject(pending.Name)),
		"the access server deletes all requests at once": server.DeleteAllOf(ctx, &v1alpha1.TkaRequest{}, client.InNamespace(p.ns)),
	} {
		if !byRBAC(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}
	// Deletion gives nothing: it ends the sign-in.
	if err := writers["a tenant"].Delete(ctx, p.requestObject(o.Name)); err != nil {
		t.Errorf("a tenant deletes a request: %v", err)
	}
	p.await(s, x.Name, gone)
	if err := operator.Delete(ctx, p.requestObject(pending.Name)); err != nil {
		t.Errorf("the operator deletes a request: %v", err)
	}
	p.nothingLeft()
}

// RQ-11: while the policy for requests is missing, no sign-in that uses one is provisioned. Others are.
func TestRQ11_RequestPolicyMissing(t *testing.T) {
	p := newProductEnv(t).withRequests()
	ctx := t.Context()
	binding := new(admissionv1.ValidatingAdmissionPolicyBinding)
	if err := p.admin.Get(ctx, client.ObjectKey{Name: RequestPolicy}, binding); err != nil {
		t.Fatal(err)
	}
	if err := p.admin.Delete(ctx, binding); err != nil {
		t.Fatal(err)
	}
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	o := p.ask(alice)
	p.approve(o.Name, "bob@a.example")
	x, err := s.Create(ctx, p.signinOfRequest(alice, o))
	if err != nil {
		t.Fatal(err)
	}
	p.use(o.Name, x)
	if no := p.await(s, x.Name, in(signin.Refused)); no.Reason != signin.ReasonAdmissionPolicyMissing {
		t.Errorf("reason %s (%s)", no.Reason, no.Message)
	}
	standing := p.login(s, newSignin(alice, "view", time.Hour))
	again := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
	if err := p.admin.Create(ctx, again); err != nil {
		t.Fatal(err)
	}
	p.await(s, x.Name, in(signin.Ready))
	p.finish(s, x.Name)
	p.finish(s, standing.Name)
	p.nothingLeft()
}
