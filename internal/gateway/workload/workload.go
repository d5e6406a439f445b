// Package workload renders one group of relays as Kubernetes objects: a StatefulSet and the
// objects that it needs. It follows law 6: a relay may read and write only the objects of its own
// group, each by name.
//
// Rendering is pure: the same group gives the same bytes. The mapping of services is not part of
// the pod template, because it changes often; relays read it through the API. Changes of mappings
// or of the number of replicas therefore restart no pod.
package workload

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// MaxReplicas is the maximum number of relays in a group.
const MaxReplicas = 50

// maxName leaves space for the suffix that Kubernetes appends. A pod label contains the name of
// the StatefulSet and a hash of 11 characters, and has at most 63 characters.
const maxName = 52

// Settings are the operator's settings for all groups.
type Settings struct {
	Image             string                      // image of tailplaned; required
	AllowCustomImages bool                        // allows a group to set its own image
	PullPolicy        corev1.PullPolicy           // optional
	PullSecrets       []string                    // optional, in the group's namespace
	Resources         corev1.ResourceRequirements // for groups without resources; optional
	// EnvoyNamespaces are the namespaces of Envoy. Envoy may connect to the mapped ports and
	// checks the health of each relay. MonitoringNamespaces may read metrics.
	EnvoyNamespaces, MonitoringNamespaces []string
	Version                               string // operator version for a label; optional
}

// A Plan is what the controller decided for one group.
type Plan struct {
	// Tailnet is the name of the TailscaleTailnet that the relays join. Required.
	Tailnet string

	// Ordinals is the number of ordinals that still need their objects. It exceeds the replicas
	// while pods of a formerly larger group end, because they write their state until then. A
	// smaller value means the number of replicas.
	Ordinals int32

	// Ports are the mapped ports that are in use.
	Ports []v1alpha1.MappedPort

	// CertDomains are the names of the certificates that the relays share.
	CertDomains []string
}

// An Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Objects are the objects of one group with their kinds set, ready to apply.
type Objects struct {
	ServiceAccount   *corev1.ServiceAccount
	Role             *rbacv1.Role
	RoleBinding      *rbacv1.RoleBinding
	NetworkPolicy    *networkingv1.NetworkPolicy
	Service          *corev1.Service
	DisruptionBudget *policyv1.PodDisruptionBudget // nil for fewer than two replicas: must then be deleted
	StatefulSet      *appsv1.StatefulSet

	// State are the Secrets that relays write, by ordinal. They are rendered and applied without
	// data, because the relays own the data fields.
	State []*corev1.Secret

	// ConfigMap and Config contain the configuration for relays, rendered without data. The caller
	// must add all data before applying, because server-side apply removes fields that are left
	// out.
	ConfigMap *corev1.ConfigMap
	Config    []*corev1.Secret

	// Certs are the Secrets of shared certificates, empty. The caller must create missing ones and
	// must never apply them, because that would delete a certificate.
	Certs []*corev1.Secret
}

// Unchanged returns the objects to apply without changes, in order: everything that a pod needs comes
// before the StatefulSet.
func (o *Objects) Unchanged() []Object {
	all := []Object{o.ServiceAccount}
	for _, s := range o.State {
		all = append(all, s)
	}
	all = append(all, o.Role, o.RoleBinding, o.NetworkPolicy, o.Service)
	if o.DisruptionBudget != nil {
		all = append(all, o.DisruptionBudget)
	}
	return append(all, o.StatefulSet)
}

// group is a group during rendering.
type group struct {
	*v1alpha1.TailscaleProxyGroup
	Settings
	Plan
	replicas int32
}

// Render renders a group. It does not modify its arguments. The error lists the invalid settings
// of the operator or of the group.
func Render(g *v1alpha1.TailscaleProxyGroup, s Settings, p Plan) (*Objects, error) {
	r := group{g, s, p, Replicas(g)}
	if err := r.validate(); err != nil {
		return nil, err
	}
	o := &Objects{
		ServiceAccount: &corev1.ServiceAccount{TypeMeta: kind(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: r.meta(g.Name),
			AutomountServiceAccountToken: new(false)}, // the pod template turns it on
		Role:          r.role(),
		RoleBinding:   r.roleBinding(),
		NetworkPolicy: r.networkPolicy(),
		Service:       r.service(),
		StatefulSet:   r.statefulSet(),
		ConfigMap:     &corev1.ConfigMap{TypeMeta: kind(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: r.meta(ConfigMapName(g))},
	}
	if r.replicas > 1 {
		o.DisruptionBudget = r.disruptionBudget()
	}
	for i := range r.ordinals() {
		o.State = append(o.State, r.secret(stateSecretName(g.Name, i), v1alpha1.SecretTypeState, ordinal(i)))
		o.Config = append(o.Config, r.secret(configSecretName(g.Name, i), v1alpha1.SecretTypeConfig, ordinal(i)))
	}
	for _, domain := range r.CertDomains {
		c := r.secret(domain, v1alpha1.SecretTypeCert, nil)
		c.Type, c.Data = corev1.SecretTypeTLS, map[string][]byte{corev1.TLSCertKey: {}, corev1.TLSPrivateKeyKey: {}}
		o.Certs = append(o.Certs, c)
	}
	return o, nil
}

func (g *group) validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(g.Name == "" || len(g.Name) > maxName, "its name has %d characters; it must have 1 to %d", len(g.Name), maxName)
	bad(g.Namespace == "" || g.UID == "", "it is not stored: it has no namespace or no UID")
	bad(
		g.replicas < 0 || g.replicas > MaxReplicas || g.Ordinals > MaxReplicas,
		"%d replicas, and %d relays with remaining objects; each must be 0 to %d",
		g.replicas,
		g.Ordinals,
		MaxReplicas,
	)
	bad(g.Spec.Type != v1alpha1.Egress && g.Spec.Type != v1alpha1.Ingress, "its type %q is neither egress nor ingress", g.Spec.Type)
	bad(!g.Spec.Runtime.Supported(), "its runtime %q is not supported", g.Spec.Runtime)
	bad(g.Tailnet == "", "its tailnet is not known")
	bad(g.image() == "", "the operator has no image for it")
	if len(errs) > 0 {
		return fmt.Errorf("proxy group %s/%s: %w", g.Namespace, g.Name, errors.Join(errs...))
	}
	return nil
}

// Replicas returns the desired number of relays of a group.
func Replicas(g *v1alpha1.TailscaleProxyGroup) int32 {
	if g.Spec.Replicas == nil {
		return 2 // default of the API server
	}
	return *g.Spec.Replicas
}

func (g *group) ordinals() int32 { return max(g.Ordinals, g.replicas) }

func (g *group) image() string {
	if g.AllowCustomImages && g.Spec.Image != "" {
		return g.Spec.Image
	}
	return g.Image
}

// stateSecretName is the name of the Secret that the relay with this ordinal writes. It equals the
// name of the pod.
func stateSecretName(group string, ordinal int32) string {
	return group + "-" + strconv.Itoa(int(ordinal))
}

// configSecretName is the name of the Secret with the auth key for the relay with this ordinal.
func configSecretName(group string, ordinal int32) string {
	return stateSecretName(group, ordinal) + "-config"
}

// ConfigMapName is the name of the ConfigMap with the relay configuration of a group.
func ConfigMapName(g *v1alpha1.TailscaleProxyGroup) string {
	return g.Name + "-" + string(g.Spec.Type) + "-config"
}

// PodLabels returns the selector labels of a group's pods. They never change.
func PodLabels(uid types.UID) map[string]string { return map[string]string{"app": string(uid)} }

func ordinal(i int32) map[string]string {
	return map[string]string{v1alpha1.OrdinalLabel: strconv.Itoa(int(i))}
}

func (g *group) labels() map[string]string {
	return map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: g.Name, v1alpha1.TailnetLabel: g.Tailnet}
}

// meta returns the metadata of an object that the group owns.
func (g *group) meta(name string) metav1.ObjectMeta {
	labels := g.labels()
	if v := labelValue(g.Version); v != "" {
		labels["app.kubernetes.io/version"] = v
	}
	return metav1.ObjectMeta{
		Name: name, Namespace: g.Namespace, Labels: labels,
		// The kind is set explicitly, because an object that was read from the API has none.
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(g.TailscaleProxyGroup, v1alpha1.GroupVersion.WithKind("TailscaleProxyGroup")),
		},
	}
}

func (g *group) secret(name, kindOf string, more map[string]string) *corev1.Secret {
	s := &corev1.Secret{TypeMeta: kind(corev1.SchemeGroupVersion, "Secret"), ObjectMeta: g.meta(name), Type: corev1.SecretTypeOpaque}
	maps.Copy(s.Labels, more)
	s.Labels[v1alpha1.SecretTypeLabel] = kindOf
	return s
}

// labelValue converts a version to a valid label value. For example, "+dirty" is not valid.
func labelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), 63)], "-._")
}

func kind(gv interface{ String() string }, k string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gv.String(), Kind: k}
}

// sorted returns a sorted copy of s without duplicates.
func sorted(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
