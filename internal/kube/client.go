// Package kube provides what every package needs to use a Kubernetes API server: a client
// configuration, a REST mapper for known kinds, and the deletion of exactly one object. It enforces
// law 7. It distinguishes outdated views from failures, so that no code acts on stale data. It also
// elects leaders, rotates certificates, and keeps keys and the state of tailnet nodes in Secrets.
package kube

import (
	"context"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config returns the client configuration from the kubeconfig file at that path, or from the pod's
// ServiceAccount if the path is empty.
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

// Unthrottled returns a copy of c without client-go's default limit of 5 requests per second. The
// API server's priority and fairness limits the requests instead.
func Unthrottled(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS, c.RateLimiter = -1, nil
	return c
}

// Mapper maps the given kinds and their lists to resources. It makes no discovery request. A kind
// that is not installed yet is therefore an error of a request, which can be retried, and not of
// the start.
func Mapper(namespaced, clusterWide []schema.GroupVersionKind) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(kinds []schema.GroupVersionKind, scope meta.RESTScope) {
		for _, k := range kinds {
			plural, singular := meta.UnsafeGuessKindToResource(k)
			if strings.HasSuffix(singular.Resource, "way") { // otherwise the guess is "gatewaies"
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

// NewConfigMapClient returns a client that knows only ConfigMaps. It makes no request yet.
func NewConfigMapClient(config *rest.Config) (client.Client, error) {
	return client.New(Unthrottled(config), client.Options{Mapper: Mapper([]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("ConfigMap")}, nil)})
}

// Delete deletes exactly o, by its UID. It returns nil if o is already gone. It returns an error
// for which Stale is true if another object has its name.
func Delete(ctx context.Context, c client.Writer, o client.Object) error {
	err := c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})
	return client.IgnoreNotFound(err)
}

// IsStale reports whether err means that another writer changed, created or deleted the object since
// it was read. The caller must read it again.
func IsStale(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// ExplainManifestObject adds advice to an error about an object that the manifests provide. The account has
// get and update on that object, by name.
func ExplainManifestObject(doing, kind string, key client.ObjectKey, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the %s %s does not exist; the manifests must create it empty, because RBAC cannot limit the verb create to a name", kind, key)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this account may not %s the %s %s; it needs get and update on it", doing, kind, key)
	}
	return fmt.Errorf("%s the %s %s: %w", doing, kind, key, err)
}

// Namespace returns the namespace of a configuration from Config: the kubeconfig's, or the pod's.
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
