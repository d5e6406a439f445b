// Package kube is the little that every alcove needs to speak to a Kubernetes
// API server: a client configuration, a mapper of known kinds and the deletion
// of exactly one object. It keeps law 7: an answer that says "it is no longer
// what you looked at" is told apart from a failure, so that nobody acts upon a
// stale view.
package kube

import (
	"context"
	"fmt"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config returns how to reach the API server: by the kubeconfig file of that
// path, or, if it is empty, by the pod's own account.
func Config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the pod's own account: %w", err)
		}
		return Unthrottled(c), nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return Unthrottled(c), nil
}

// Unthrottled returns a copy of c without client-go's own limit of 5 requests
// per second: the API server's priority and fairness is what limits us.
func Unthrottled(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS, c.RateLimiter = -1, nil
	return c
}

// Mapper maps just the given kinds, and lists of them, to their resources. It asks the server
// nothing, so a kind that is not installed yet is an error of the request, which
// is tried again, and not of the start.
func Mapper(namespaced, clusterWide []schema.GroupVersionKind) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(kinds []schema.GroupVersionKind, scope meta.RESTScope) {
		for _, k := range kinds {
			plural, singular := meta.UnsafeGuessKindToResource(k)
			if strings.HasSuffix(singular.Resource, "way") { // of which the guess makes "gatewaies"
				plural.Resource = singular.Resource + "s"
			}
			m.AddSpecific(k, plural, singular, scope)
			m.AddSpecific(k.GroupVersion().WithKind(k.Kind+"List"), plural, singular, scope)
		}
	}
	add(namespaced, meta.RESTScopeNamespace)
	add(clusterWide, meta.RESTScopeRoot)
	return m
}

// Delete deletes exactly o, by its UID. That it is gone already is success; that
// another object has taken its name is an error for which Stale is true.
func Delete(ctx context.Context, c client.Writer, o client.Object) error {
	err := c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})
	return client.IgnoreNotFound(err)
}

// Stale reports whether err says that the object is not what it was when it was
// looked at: somebody else wrote, made or deleted it. The answer is to look again.
func Stale(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// ExplainGiven says what to do about an object that the manifests give and that
// this account, which may get and update it by name, could not read or write.
func ExplainGiven(doing, kind string, key client.ObjectKey, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the %s %s is not there; it belongs to the manifests, empty, because a right to create cannot be limited to a name", kind, key)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this account may not %s the %s %s; it needs get and update on it", doing, kind, key)
	}
	return fmt.Errorf("%s the %s %s: %w", doing, kind, key, err)
}

// Namespace returns the namespace that a configuration of Config speaks of: the
// kubeconfig's own, or the pod's.
func Namespace(kubeconfig string) (string, error) {
	if kubeconfig == "" {
		b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		if err != nil {
			return "", fmt.Errorf("the pod's own namespace: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	ns, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return ns, nil
}
