package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
)

// addTypes registers the kinds that the controllers use.
func addTypes(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), gatewayapi.Install(s), corev1.AddToScheme(s), appsv1.AddToScheme(s), rbacv1.AddToScheme(s), policyv1.AddToScheme(s),
		networkingv1.AddToScheme(s), discoveryv1.AddToScheme(s), authenticationv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// gatewayAPI is the group and version of the Gateway API that is used.
var gatewayAPI = schema.GroupVersion(gatewayapi.GroupVersion)

// newMapper returns a RESTMapper for the kinds that the controllers use.
func newMapper() meta.RESTMapper {
	var namespaced []schema.GroupVersionKind
	add := func(version schema.GroupVersion, kinds ...string) {
		for _, k := range kinds {
			namespaced = append(namespaced, version.WithKind(k))
		}
	}
	add(v1alpha1.GroupVersion, "TailscaleProxyGroup", "TailscaleService", "TailscaleGateway", "TailscaleRoutePolicy")
	add(gatewayAPI, "Gateway", "HTTPRoute", "GRPCRoute", "ReferenceGrant")
	add(corev1.SchemeGroupVersion, "ConfigMap", "Pod", "Secret", "Service", "ServiceAccount")
	add(appsv1.SchemeGroupVersion, "StatefulSet")
	add(rbacv1.SchemeGroupVersion, "Role", "RoleBinding")
	add(policyv1.SchemeGroupVersion, "PodDisruptionBudget")
	add(networkingv1.SchemeGroupVersion, "NetworkPolicy")
	add(discoveryv1.SchemeGroupVersion, "EndpointSlice")
	return kube.Mapper(namespaced, []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TailscaleTailnet"), gatewayAPI.WithKind("GatewayClass"),
		corev1.SchemeGroupVersion.WithKind("Namespace"), authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview")})
}

// groupObjectKinds returns the kinds of the objects of a group.
func groupObjectKinds() []client.Object {
	return []client.Object{&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}}
}

// cacheOptions limits the caches to the namespaces of groups and to the operator's objects, because the ServiceAccount
// may list and watch nothing else. Policies are also cached in Envoy's namespace, and Services in all namespaces.
func cacheOptions(groups []string, envoy string) map[client.Object]cache.ByObject {
	in := func(namespaces ...string) map[string]cache.Config {
		out := map[string]cache.Config{}
		for _, ns := range namespaces {
			out[ns] = cache.Config{}
		}
		return out
	}
	out := map[client.Object]cache.ByObject{
		&networkingv1.NetworkPolicy{}: {Namespaces: in(append(slices.Clone(groups), envoy)...)},
		&discoveryv1.EndpointSlice{}:  {Namespaces: in(groups...)},
	}
	managed := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedLabel: "true"})
	for _, kind := range groupObjectKinds() {
		switch kind.(type) {
		case *corev1.Service, *networkingv1.NetworkPolicy:
		default:
			out[kind] = cache.ByObject{Namespaces: in(groups...), Label: managed}
		}
	}
	return out
}

func partialMetadata(kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

func partialList(kind string) *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

func objectName(o client.Object) gateway.Name {
	return gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// pointers returns pointers to the elements of a list.
func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// An objectPointer is a pointer to the type of an object.
type objectPointer[T any] interface {
	*T
	client.Object
}

// find reads an object. It returns nil if the object does not exist.
func find[T any, P objectPointer[T]](ctx context.Context, from client.Reader, key client.ObjectKey) (P, error) {
	o := P(new(T))
	if err := from.Get(ctx, key, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// deref returns the value of a pointer, or otherwise if the pointer is nil.
func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// wrapError adds to an error what failed. It returns nil if err is nil.
func wrapError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// lockedPatch is a patch that fails if the object has changed since was.
func lockedPatch(was client.Object) client.Patch {
	return client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
}

// patchMetadata changes the metadata of an object with optimistic locking.
func patchMetadata(ctx context.Context, to client.Writer, o client.Object, doing string, change func()) error {
	was := o.DeepCopyObject().(client.Object)
	change()
	return wrapError(to.Patch(ctx, o, lockedPatch(was)), "%s", doing)
}

// patchStatus writes the status of an object that differs from was in its status only. It writes nothing if they are
// equal.
func patchStatus(ctx context.Context, to client.StatusClient, o, was client.Object, patch client.Patch, doing string) error {
	if deepEqual(was, o) {
		return nil
	}
	return wrapError(to.Status().Patch(ctx, o, patch), "%s", doing)
}

// applyStatus applies one manager's part of a status and keeps the fields of other managers.
func applyStatus(ctx context.Context, to client.StatusClient, manager, kind string, of client.Object, status any, more ...client.SubResourceApplyOption) error {
	part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	u := newObject(kind, client.ObjectKeyFromObject(of))
	u.SetUID(of.GetUID())
	u.Object["status"] = part
	return to.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), append(more, client.FieldOwner(manager), client.ForceOwnership)...)
}

func deepEqual(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }
