//go:build unix

package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A client with Mapper reads and writes objects and lists without discovery, and deletes exactly
// the object that it read.
func TestMapperAndDelete(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	config, err := Config(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if config.QPS != -1 {
		t.Errorf("QPS %v, want none", config.QPS)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := Mapper([]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("ConfigMap")}, []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Namespace")})
	k, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Get(t.Context(), client.ObjectKey{Name: ns}, &corev1.Namespace{}); err != nil {
		t.Errorf("a cluster-wide kind: %v", err)
	}
	if err := k.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "x"}, &corev1.Secret{}); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("a kind that the mapper lacks: %v", err)
	}
	first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "x"}}
	if err := k.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := k.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "x"}}); !IsStale(err) {
		t.Errorf("Create of what is there: %v is not stale", err)
	}
	if err := Delete(t.Context(), k, first); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if err := Delete(t.Context(), k, first); err != nil {
		t.Errorf("Delete of what is gone: %v, want success", err)
	}
	second := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "x"}}
	if err := k.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if err := Delete(t.Context(), k, first); err == nil || !IsStale(err) {
		t.Errorf("Delete of an object whose name another has: %v, want a stale view", err)
	}
	var list corev1.ConfigMapList
	if err := k.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, o := range list.Items {
		found = found || o.UID == second.UID
	}
	if !found {
		t.Error("the other one was deleted")
	}
	switch {
	case IsStale(nil):
		t.Error("a failure is no stale view: IsStale(nil) is true")
	case IsStale(apierrors.NewForbidden(schema.GroupResource{}, "x", nil)):
		t.Error(`a failure is no stale view: IsStale(apierrors.NewForbidden(schema.GroupResource{}, "x", nil)) is true`)
	case IsStale(apierrors.NewInternalError(os.ErrInvalid)):
		t.Error("a failure is no stale view: IsStale(apierrors.NewInternalError(os.ErrInvalid)) is true")
	}
}

func TestConfigErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	if _, err := Config(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("Config of no file: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Config(""); err == nil || !strings.Contains(err.Error(), "the pod's own account") {
		t.Errorf("Config outside a pod: %v", err)
	}
}

// The error of Reach names the server and the time limit.
func TestReach(t *testing.T) {
	c := kubetest.Start(t)
	if err := WaitReady(t.Context(), c.AdminConfig(), time.Minute); err != nil {
		t.Errorf("Reach: %v", err)
	}
	away := c.AdminConfig()
	away.Host = "https://127.0.0.1:1"
	if err := WaitReady(t.Context(), away, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("WaitReady without a server: %v", err)
	}
}
