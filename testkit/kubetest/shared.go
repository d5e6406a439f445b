//go:build unix

package kubetest

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// shared is the test binary's cluster. It is package state because all tests of a binary share it. It stops when the
// process ends, because that closes its standard input.
var shared = sync.OnceValues(func() (*Cluster, error) {
	return Run(context.Background(), Options{Name: "shared"})
})

// Start returns the cluster that all tests of this test binary share. The first call starts it, and it ends with the
// binary. Each test must use its own Namespace. A test must use New instead if it changes cluster-wide behaviour
// (webhooks, cluster-wide bindings for all, restarts).
func Start(t testing.TB) *Cluster {
	t.Helper()
	SkipIfShort(t)
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	c.showLog(t)
	return c
}

// New returns a separate cluster for the test, which ends with the test.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	SkipIfShort(t)
	c, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	c.showLog(t)
	return c
}

// SkipIfShort skips a test that needs a cluster under -short, which is for tests that need only milliseconds.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIP cluster: it takes seconds to start, and -short was given")
	}
}

// showLog prints the end of the cluster's log if the test fails.
func (c *Cluster) showLog(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of cluster %s's log:\n%s", c.Name, c.LogTail(20))
		}
	})
}

// Namespace creates a namespace for the test and returns its name when its default ServiceAccount exists. It is
// deleted after the test, but Namespace does not wait for the end of the deletion.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	namespaces := c.client.CoreV1().Namespaces()
	ns, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal("namespace:", err)
	}
	t.Cleanup(func() {
		if c.PID() == 0 {
			return // the test has stopped the cluster
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startLimit)
		defer cancel()
		if err := namespaces.Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
	})
	if c.options.NoControllers {
		return ns.Name
	}
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	for {
		_, err := c.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return ns.Name
		}
		if retry.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("default ServiceAccount of namespace %s: %v", ns.Name, err)
		}
	}
}
