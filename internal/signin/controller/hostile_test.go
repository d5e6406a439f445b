//go:build unix

package controller

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// SI-11, SI-04: For any content of a sign-in, either the API server rejects it or the operator
// reports one reason. Nothing panics, and other sign-ins are not affected.
func TestHostileContent(t *testing.T) {
	p := newEnv(t)
	p.rules.Min = access.MinPeriod
	p.operate()
	s, _ := p.open()
	megabyte := strings.Repeat("x", 1<<20)
	for _, tt := range []struct {
		why    string
		path   string // of the field, separated by dots
		value  any
		reason string // reason of the operator's refusal; "": the API server rejects it
	}{
		{"a megabyte of login", "spec.user.login", megabyte, ""},
		{"a megabyte of name", "spec.user.displayName", megabyte, ""},
		{"a megabyte of role", "spec.role", megabyte, ""},
		{"no login", "spec.user.login", "", ""},
		{"null for a login", "spec.user.login", nil, ""},
		{"null for a user", "spec.user", nil, ""},
		{"null for a period", "spec.period", nil, ""},
		{"null for a time", "spec.askedAt", nil, ""},
		{"a number for a role", "spec.role", int64(7), ""},
		{"no role", "spec.role", "", ""},
		{"a login with an escape", "spec.user.login", "alice\x1b[2J@a.example", ""},
		{"a login with a line feed", "spec.user.login", "alice@a.example\nrole: admin", ""},
		{"a period of nothing", "spec.period", "0s", ""},
		{"a negative period", "spec.period", "-1h", ""},
		{"days", "spec.period", "24d", ""},
		{"a number without a unit", "spec.period", "1h1", ""},
		{"more than a year", "spec.period", "10000h", ""},
		{"more than 64 bits", "spec.period", "99999999999999h", ""},
		{"below the least", "spec.period", "9m59s", signin.ReasonBadPeriod},
		{"above the most", "spec.period", "8760h", signin.ReasonBadPeriod},
		{"the year 9999", "spec.askedAt", "9999-12-31T23:59:59Z", signin.ReasonClockSkew},
		{"the year -1", "spec.askedAt", "-0001-01-01T00:00:00Z", ""},
		{"not a time", "spec.askedAt", "yesterday", ""},
		{"51 namespaces", "spec.namespaces", many(51), ""},
		{"a namespace twice", "spec.namespaces", []any{"default", "default"}, ""},
		{"an empty namespace", "spec.namespaces", []any{""}, ""},
		{"a namespace that is a path", "spec.namespaces", []any{"../kube-system"}, ""},
		{"namespaces that do not exist", "spec.namespaces", []any{"no-such-namespace"}, signin.ReasonNoNamespace},
		{"the default session by a name", "spec.session", "default", ""},
		{"the session of an access request", "spec.session", "req-1", ""},
		{"a session that is no label", "spec.session", "Deploy", ""},
		{"the session of another name", "spec.session", "deploy", signin.ReasonNameTaken},
		{"a role of the masters", "spec.role", "system:masters", signin.ReasonRoleNotAllowed},
		{"a role with a slash", "spec.role", "a/b", signin.ReasonRoleNotAllowed},
		{"a name that is too long", "metadata.name", strings.Repeat("n", 64), ""},
	} {
		t.Run(tt.why, func(t *testing.T) {
			o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(objectOf(newSignin(p.owner("mallory@a.example", "laptop"), "view", time.Hour), p.ns))
			if err != nil {
				t.Fatal(err)
			}
			u := &unstructured.Unstructured{Object: o}
			u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TkaSignin"))
			if err := unstructured.SetNestedField(u.Object, tt.value, strings.Split(tt.path, ".")...); err != nil {
				t.Fatal(err)
			}
			err = p.admin.Create(t.Context(), u)
			if tt.reason == "" {
				if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsRequestEntityTooLargeError(err) {
					t.Fatalf("stored, or refused in another way: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			no := p.await(s, u.GetName(), in(signin.Refused))
			if no.Reason != tt.reason {
				t.Errorf("reason %s (%s), want %s", no.Reason, no.Message, tt.reason)
			}
			if accounts, everywhere, somewhere := p.made(); len(accounts)+len(everywhere)+len(somewhere) > 0 {
				t.Error("an object was created for it")
			}
			end(p, s, u.GetName())
		})
	}
	// Other sign-ins are not affected.
	x := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	end(p, s, x.Name)
}

func many(n int) (names []any) {
	for i := range n {
		names = append(names, "ns-"+strings.Repeat("x", i))
	}
	return names
}

// The schema makes the user, device, session, role and namespaces immutable for every writer.
func TestImmutable(t *testing.T) {
	p := newEnv(t)
	s, _ := p.open()
	owner := p.owner("alice@a.example", "laptop")
	owner.UserID = "" // an absent field must stay absent
	x, err := s.Create(t.Context(), newSignin(owner, "view", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*v1alpha1.TkaSignin){
		"login":        func(o *v1alpha1.TkaSignin) { o.Spec.User.Login = "ceo@a.example" },
		"user id":      func(o *v1alpha1.TkaSignin) { o.Spec.User.ID = "u2" },
		"display name": func(o *v1alpha1.TkaSignin) { o.Spec.User.DisplayName = "" },
		"device":       func(o *v1alpha1.TkaSignin) { o.Spec.Device.ID = "n2" },
		"tailnet":      func(o *v1alpha1.TkaSignin) { o.Spec.Device.Tailnet = "" },
		"session":      func(o *v1alpha1.TkaSignin) { o.Spec.Session = "deploy" },
		"role":         func(o *v1alpha1.TkaSignin) { o.Spec.Role = "edit" },
		"namespaces":   func(o *v1alpha1.TkaSignin) { o.Spec.Namespaces = []string{"default"} },
	} {
		o := p.object(x.Name)
		change(o)
		if err := p.admin.Update(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("change of the %s: %v, want Invalid", what, err)
		}
	}
	narrow := newSignin(p.owner("bob@a.example", "laptop"), "view", time.Hour, "default", "kube-public")
	if _, err := s.Create(t.Context(), narrow); err != nil {
		t.Fatal(err)
	}
	for what, namespaces := range map[string][]string{"none, which is the cluster": nil, "fewer": {"default"}, "more": {"default", "kube-public", "kube-system"}} {
		o := p.object(narrow.Name)
		o.Spec.Namespaces = namespaces
		if err := p.admin.Update(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("change of the namespaces to %s: %v, want Invalid", what, err)
		}
	}
	o := p.object(x.Name)
	o.Spec.Period.Duration, o.Spec.AskedAt = 2*time.Hour, metav1.Now()
	if err := p.admin.Update(t.Context(), o); err != nil {
		t.Errorf("change of the period: %v", err)
	}
	for _, name := range []string{x.Name, narrow.Name} { // no operator runs here
		o := p.object(name)
		o.Finalizers = nil
		if err := p.admin.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := p.admin.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}
