// Package workload renders one group of relays as the Kubernetes objects that run
// it: a StatefulSet and everything beside it. It keeps law 6: a relay may read and
// write the objects of its own group, each by its name, and nothing else.
//
// Rendering is pure: the same group gives the same bytes. What changes often, which
// service is carried where, is not in a pod's template, for a relay reads it through
// the API: mappings and the number of replicas restart nothing.
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

// MaxReplicas is how many relays a group can have.
const MaxReplicas = 50

// maxName leaves room for what Kubernetes appends: a label of each pod carries the
// StatefulSet's name with a hash of 11 characters, and has 63 at most.
const maxName = 52

// Settings are the operator's, the same for every group.
type Settings struct {
	Image             string                      // of tailplaned; required
	AllowCustomImages bool                        // a group may name its own image
	PullPolicy        corev1.PullPolicy           // optional
	PullSecrets       []string                    // optional, in the group's namespace
	Resources         corev1.ResourceRequirements // of groups that name none; optional
	// EnvoyNamespaces are where Envoy runs: it may reach the mapped ports, and asks
	// each relay how it is. MonitoringNamespaces may read metrics.
	EnvoyNamespaces, MonitoringNamespaces []string
	Version                               string // of the operator, for a label; optional
}

// A Plan is what was decided upon one group now.
type Plan struct {
	// Tailnet is the name of the TailscaleTailnet that the relays join. Required.
	Tailnet string

	// Standing is how many ordinals still have anything: more than the replicas
	// while pods of what was a larger group end, which write their state to the
	// last. A smaller number counts as the number of replicas.
	Standing int32

	// Ports are the ports of the relays that something leads to now.
	Ports []v1alpha1.MappedPort

	// CertDomains are the names whose certificates the relays share.
	CertDomains []string
}

// An Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Objects are those of one group, ready to be applied: their kinds are set.
type Objects struct {
	ServiceAccount   *corev1.ServiceAccount
	Role             *rbacv1.Role
	RoleBinding      *rbacv1.RoleBinding
	NetworkPolicy    *networkingv1.NetworkPolicy
	Service          *corev1.Service
	DisruptionBudget *policyv1.PodDisruptionBudget // nil for fewer than two replicas: it is to be deleted
	StatefulSet      *appsv1.StatefulSet

	// State are the Secrets that relays write, by ordinal. They are rendered
	// without data, and applied so: what a relay wrote is another's field.
	State []*corev1.Secret

	// ConfigMap and Config are what the operator tells relays, rendered without
	// data. Whoever applies them fills in all of it, for what an apply leaves out
	// is taken away.
	ConfigMap *corev1.ConfigMap
	Config    []*corev1.Secret

	// Certs are the Secrets of shared certificates, empty. They are to be created
	// where there is none and never applied: that would take a certificate away.
	Certs []*corev1.Secret
}

// Whole are the objects that are to be applied as they are, in that order: what a
// pod needs comes before the pods.
func (o *Objects) Whole() []Object {
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

// group is one group while it is rendered.
type group struct {
	*v1alpha1.TailscaleProxyGroup
	Settings
	Plan
	replicas int32
}

// Render renders a group. It changes nothing that it is given. An error says what
// of the operator's settings or of the group makes it impossible.
func Render(g *v1alpha1.TailscaleProxyGroup, s Settings, p Plan) (*Objects, error) {
	r := group{g, s, p, Replicas(g)}
	if err := r.check(); err != nil {
		return nil, err
	}
	o := &Objects{
		ServiceAccount: &corev1.ServiceAccount{TypeMeta: kind(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: r.meta(g.Name),
			AutomountServiceAccountToken: new(false)}, // the pods ask for it
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
	for i := range r.standing() {
		o.State = append(o.State, r.secret(StateSecretName(g.Name, i), v1alpha1.SecretTypeState, ordinal(i)))
		o.Config = append(o.Config, r.secret(ConfigSecretName(g.Name, i), v1alpha1.SecretTypeConfig, ordinal(i)))
	}
	for _, domain := range r.CertDomains {
		c := r.secret(domain, v1alpha1.SecretTypeCert, nil)
		c.Type, c.Data = corev1.SecretTypeTLS, map[string][]byte{corev1.TLSCertKey: {}, corev1.TLSPrivateKeyKey: {}}
		o.Certs = append(o.Certs, c)
	}
	return o, nil
}

func (g *group) check() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(g.Name == "" || len(g.Name) > maxName, "its name has %d characters; 1 to %d can be", len(g.Name), maxName)
	bad(g.Namespace == "" || g.UID == "", "it is not stored: it has no namespace or no UID")
	bad(g.replicas < 0 || g.replicas > MaxReplicas || g.Standing > MaxReplicas, "%d replicas, and %d that still have anything; 0 to %d can be", g.replicas, g.Standing, MaxReplicas)
	bad(g.Spec.Type != v1alpha1.Egress && g.Spec.Type != v1alpha1.Ingress, "its type %q is neither egress nor ingress", g.Spec.Type)
	bad(!g.Spec.Runtime.Supported(), "its runtime %q is not supported", g.Spec.Runtime)
	bad(g.Tailnet == "", "its tailnet is not known")
	bad(g.image() == "", "the operator has no image for it")
	if len(errs) > 0 {
		return fmt.Errorf("proxy group %s/%s: %w", g.Namespace, g.Name, errors.Join(errs...))
	}
	return nil
}

// Replicas is how many relays a group is to have.
func Replicas(g *v1alpha1.TailscaleProxyGroup) int32 {
	if g.Spec.Replicas == nil {
		return 2
	}
	return *g.Spec.Replicas
}

func (g *group) standing() int32 { return max(g.Standing, g.replicas) }

func (g *group) image() string {
	if g.AllowCustomImages && g.Spec.Image != "" {
		return g.Spec.Image
	}
	return g.Image
}

// StateSecretName is the name of the Secret that the relay of an ordinal writes. It
// is also the name of its pod.
func StateSecretName(group string, ordinal int32) string {
	return group + "-" + strconv.Itoa(int(ordinal))
}

// ConfigSecretName is the name of the Secret that brings the relay of an ordinal its
// auth key.
func ConfigSecretName(group string, ordinal int32) string {
	return StateSecretName(group, ordinal) + "-config"
}

// ConfigMapName is the name of the ConfigMap that tells a group what it carries.
func ConfigMapName(g *v1alpha1.TailscaleProxyGroup) string {
	return g.Name + "-" + string(g.Spec.Type) + "-config"
}

// PodLabels find the pods of a group. They never change.
func PodLabels(uid types.UID) map[string]string { return map[string]string{"app": string(uid)} }

func ordinal(i int32) map[string]string {
	return map[string]string{v1alpha1.OrdinalLabel: strconv.Itoa(int(i))}
}

func (g *group) labels() map[string]string {
	return map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: g.Name, v1alpha1.TailnetLabel: g.Tailnet}
}

// meta is the metadata of an object that goes when the group goes.
func (g *group) meta(name string) metav1.ObjectMeta {
	labels := g.labels()
	if v := labelValue(g.Version); v != "" {
		labels["app.kubernetes.io/version"] = v
	}
	return metav1.ObjectMeta{
		Name: name, Namespace: g.Namespace, Labels: labels,
		// The kind from the scheme: an object that was read has none.
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g.TailscaleProxyGroup, v1alpha1.GroupVersion.WithKind("TailscaleProxyGroup"))},
	}
}

func (g *group) secret(name, kindOf string, more map[string]string) *corev1.Secret {
	s := &corev1.Secret{TypeMeta: kind(corev1.SchemeGroupVersion, "Secret"), ObjectMeta: g.meta(name), Type: corev1.SecretTypeOpaque}
	maps.Copy(s.Labels, more)
	s.Labels[v1alpha1.SecretTypeLabel] = kindOf
	return s
}

// labelValue makes a version one that can stand in a label: "+dirty" cannot.
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

// sorted is s without repetitions, in an order that does not depend on the caller.
func sorted(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
