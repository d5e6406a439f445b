//go:build unix

package signinkube

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/signin"
)

// A sign-in from the first moment to the last: provisioned, used, logged out.
func TestLife(t *testing.T) {
	p := newPlace(t)
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")

	start := time.Now()
	ready := p.login(s, wanted(alice, "view", time.Hour))
	t.Logf("ready %v after it was asked for", time.Since(start).Round(time.Millisecond))
	if want := ready.AskedAt.Add(time.Hour); !ready.ValidUntil.Equal(want) || ready.BoundRole != "view" {
		t.Errorf("bound %s until %v, want view until %v", ready.BoundRole, ready.ValidUntil, want)
	}

	token, expires, err := s.Token(t.Context(), ready, time.Until(ready.ValidUntil))
	if err != nil {
		t.Fatal(err)
	}
	if d := expires.Sub(ready.ValidUntil).Abs(); d > 2*time.Second {
		t.Errorf("the token expires %v off the end of the sign-in", d)
	}
	as := p.as(token)
	if err := as.List(t.Context(), &corev1.PodList{}, client.InNamespace("default")); err != nil {
		t.Errorf("list pods as view: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c"}}}}
	if err := as.Create(t.Context(), pod); !apierrors.IsForbidden(err) {
		t.Errorf("create a pod as view: %v, want Forbidden", err)
	}

	start = time.Now()
	if err := s.Delete(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	p.await(s, ready.Name, gone)
	t.Logf("gone %v after logout", time.Since(start).Round(time.Millisecond))
	if err := as.List(t.Context(), &corev1.PodList{}, client.InNamespace("default")); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("list pods after logout: %v, want Forbidden or Unauthorized", err)
	}
	p.nothingLeft()
	if _, err := s.Get(t.Context(), ready.Name); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Get after logout: %v", err)
	}

}
