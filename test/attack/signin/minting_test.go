package signin

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// askToken requests a kubeconfig once and returns the refusal.
func askToken(t *testing.T, s *attacktest.Env, who *testenv.Person) (signin.Kubeconfig, *problem.Error) {
	t.Helper()
	k, err := signin.GetKubeconfig.Call(t.Context(), s.APIClient(who), signin.KubeconfigRequest{})
	return k, problem.From(err)
}

// SI-14. The status of a sign-in is not enough for a token. With the binding of the admission policy gone, a tenant
// who may patch statuses names another person's account, a later end, or another role. The access server checks name,
// UID label, end and role again before it requests a token, and it requests none while the policies are not in force.
//
// Guard: signin.TokenRules.Verify, controller.(*Store).IssueToken, deploy/base/policy-signins.yaml and
// policy-tokens.yaml.
func TestSI14_StatusIsNotEnough(t *testing.T) {
	s := attacktest.Start(t)
	carol, dave := s.Person(t, "carol-laptop", "carol@example.com"), s.Person(t, "dave-laptop", "dave@example.com")
	s.SetPolicy(t, attacktest.Grant("carol@example.com", `{"role": "view", "period": "1h"}`), attacktest.Grant("dave@example.com", `{"role": "edit", "period": "1h"}`))
	s.WaitGranted(t, carol)
	s.WaitGranted(t, dave)
	mallory := newTenant(t, s, "mallory")
	ctx := t.Context()
	low, high := s.Login(t, carol, signin.LoginRequest{}), s.Login(t, dave, signin.LoginRequest{})
	victim := s.SignIns(t, "dave@example.com")[0]
	before := s.SignIns(t, "carol@example.com")[0]

	// The operator is down, so that it cannot correct the status first.
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.RestartOperator(t) })
	patch := func(status map[string]any) {
		t.Helper()
		b, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: low.Name}}
		if err := mallory.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, b)); err != nil {
			t.Fatal(err)
		}
	}
	forgeries := map[string]map[string]any{
		"another person's account": {"serviceAccount": map[string]any{"name": high.Name, "uid": string(victim.Status.ServiceAccount.UID)}},
		"a later end":              {"validUntil": metav1.NewTime(before.Status.ValidUntil.Add(90 * 24 * time.Hour))},
		"another role":             {"role": "edit"},
	}
	check := func(t *testing.T, what string, forged map[string]any) {
		t.Helper()
		patch(forged)
		k, refused := askToken(t, s, carol)
		if problem.CodeOf(refusal(refused)) != problem.CannotProvision {
			t.Errorf("%s: got a token %v, refusal %v; want %s", what, !k.Token.IsZero(), refused, problem.CannotProvision)
		}
		patch(map[string]any{"serviceAccount": before.Status.ServiceAccount, "validUntil": before.Status.ValidUntil, "role": before.Status.Role})
	}
	t.Run("without the binding of the policy", func(t *testing.T) {
		withoutPolicy(t, s, mallory)
		for what, forged := range forgeries {
			check(t, what, forged)
		}
		// An untouched sign-in gets no token either, as soon as the server has read the policies again.
		var refused *problem.Error
		attacktest.Eventually(t, attacktest.Long, "no token without the policy", func() bool {
			_, refused = askToken(t, s, dave)
			return refused != nil
		})
		if refused.Code != problem.CannotProvision || !strings.Contains(refused.Message, signin.ReasonAdmissionPolicyMissing) {
			t.Errorf("without the policy: %v %q, want %s %s", refused.Code, refused.Message, problem.CannotProvision, signin.ReasonAdmissionPolicyMissing)
		}
	})
	t.Run("with a binding that only warns", func(t *testing.T) {
		setActions(t, s, "tailplane-signin-tokens", admissionv1.Warn)
		attacktest.Eventually(t, attacktest.Long, "no token without the policy for tokens", func() bool {
			_, refused := askToken(t, s, dave)
			return refused != nil && strings.Contains(refused.Message, signin.ReasonAdmissionPolicyMissing)
		})
	})
	t.Run("afterwards", func(t *testing.T) {
		for _, who := range []*testenv.Person{carol, dave} {
			attacktest.Eventually(t, attacktest.Long, "a token with the policies in force", func() bool {
				_, refused := askToken(t, s, who)
				return refused == nil
			})
		}
	})
}

// refusal returns p as an error, so that a nil *problem.Error is a nil error.
func refusal(p *problem.Error) error {
	if p == nil {
		return nil
	}
	return p
}

// setActions changes what the API server does with the violations of a policy, until the test ends.
func setActions(t *testing.T, s *attacktest.Env, name string, actions ...admissionv1.ValidationAction) {
	t.Helper()
	set := func(ctx context.Context, actions []admissionv1.ValidationAction) (was []admissionv1.ValidationAction) {
		var b admissionv1.ValidatingAdmissionPolicyBinding
		if err := s.KubeClient.Get(ctx, client.ObjectKey{Name: name}, &b); err != nil {
			t.Fatal(err)
		}
		was, b.Spec.ValidationActions = b.Spec.ValidationActions, actions
		if err := s.KubeClient.Update(ctx, &b); err != nil {
			t.Fatal(err)
		}
		return was
	}
	was := set(t.Context(), actions)
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), was) })
}
