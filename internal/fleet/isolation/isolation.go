// Package isolation renders the Kubernetes objects that isolate the runners of an organisation, and
// the runners themselves. These are a namespace with its limits, and an AutoscalingRunnerSet or a
// GitLab manager in it. It implements law 6: no pod of a job has a permission in the cluster, and
// every name is derived from the enrollment.
//
// Rendering is pure: the same input gives the same bytes. If an object cannot be rendered safely,
// the functions return an error and no objects.
package isolation

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// Names in each namespace of runners, and of the cluster-scoped objects of the chart. The fleet may
// bind these ClusterRoles and no others.
const (
	FleetRole          = "tailplane-fleet-namespace"   // permissions of the fleet in a namespace of runners
	ARCRole            = "tailplane-arc-manager"       // permissions of ARC there
	ManagerRole        = "tailplane-gitlab-manager"    // permissions of a GitLab manager there
	PodRunnerRole      = "tailplane-runner-kubernetes" // permissions of jobs in a kubernetes mode there
	RunnerAccount      = "tailplane-runner"            // without any permission
	PodRunnerAccount   = "tailplane-runner-kubernetes"
	ManagerAccount     = "tailplane-runner-manager"
	JobPriority        = "tailplane-runner-job"
	ManagerPriority    = "tailplane-runner-manager"
	apiLabel           = "tailplane.dev/api-server" // on pods that may connect to the API server
	componentLabel     = "app.kubernetes.io/component"
	componentJob       = "runner"
	componentManager   = "runner-manager"
	boundsName         = "tailplane-runners"
	egressName         = "tailplane-runner-egress"
	apiServerName      = "tailplane-api-server"
	metricsPort        = 9252
	caKey              = "ca.crt"
	maxReplicasPerPool = 10
)

// Settings are the fleet's settings for all organisations.
type Settings struct {
	Namespace, Account string           // the fleet's namespace and service account; required
	Shared             string           // namespace for isolation None; required
	ClusterCIDRs       []netip.Prefix   // pods, services and nodes; required for isolation Namespace and Node
	APIServers         []netip.AddrPort // service and endpoints of the API server; required if pods in the namespace create pods
	CacheNamespaces    []string         // namespaces whose pods enrollments may name as caches; other names are ignored
	ARC                ARC              // required for GitHub
	Images             Images
	Canary             CanarySettings
}

// ARC is the discovered actions-runner-controller.
type ARC struct {
	Version                   string // version in its pods' label: it deletes scale sets with another one
	Namespace, ServiceAccount string
}

// Images are the default images of pods.
type Images struct {
	Runner  string // GitHub runner; required for GitHub
	Docker  string // Docker sidecar of container mode dind; required for that mode
	Manager string // GitLab's runner manager; required for GitLab
	Helper  string // helper of GitLab's jobs; optional
	Job     string // default image of GitLab's jobs; required if a pool has no image
}

// An Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// ErrUnbounded is the error for an isolated organisation if the cluster's address ranges are not
// configured.
var ErrUnbounded = errors.New("fleet.clusterCIDRs is not set: the connections of jobs cannot be limited")

// isIsolated reports whether an enrollment is isolated. It returns an error for an unknown value.
func isIsolated(e *v1alpha1.RunnerEnrollment) (isolated bool, err error) {
	switch e.Spec.Isolation {
	case v1alpha1.IsolationNone:
		return false, nil
	case v1alpha1.IsolationNamespace, v1alpha1.IsolationNode:
		return true, nil
	}
	return false, fmt.Errorf("unknown isolation %q", e.Spec.Isolation)
}

// objectMeta returns the metadata of an object of an organisation. An empty org means an object for all
// organisations.
func objectMeta(namespace, name, org string, more map[string]string) metav1.ObjectMeta {
	labels := map[string]string{
		v1alpha1.ManagedByLabel:     v1alpha1.ManagedBy,
		"app.kubernetes.io/part-of": "tailplane",
		"app.kubernetes.io/name":    "tailplane-runner",
	}
	if org != "" {
		labels[v1alpha1.OrgLabel] = org
	}
	maps.Copy(labels, more)
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

func typeMeta(gv interface{ String() string }, k string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gv.String(), Kind: k}
}

// serviceAccount renders a ServiceAccount whose token is not mounted by default.
func serviceAccount(namespace, name, org string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     typeMeta(corev1.SchemeGroupVersion, "ServiceAccount"),
		ObjectMeta:                   objectMeta(namespace, name, org, nil),
		AutomountServiceAccountToken: new(false),
	}
}

// roleBinding grants a service account one of the chart's ClusterRoles in one namespace.
func roleBinding(namespace, role, org, accountNamespace, account string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   typeMeta(rbacv1.SchemeGroupVersion, "RoleBinding"),
		ObjectMeta: objectMeta(namespace, role, org, nil),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: accountNamespace}},
	}
}

// Credential renders the copy of an organisation's credential for the namespace of its runners. An
// error says what is wrong with the credential, and never contains its data.
func Credential(org, namespace string, data map[string][]byte) (*corev1.Secret, error) {
	retained := map[string][]byte{}
	for _, key := range []string{"github_app_id", "github_app_installation_id", "github_app_private_key", "github_token"} {
		if len(data[key]) > 0 {
			retained[key] = data[key]
		}
	}
	_, token := retained["github_token"]
	app := len(retained)
	if token {
		app--
	}
	switch {
	case token && app > 0:
		return nil, errors.New("the credential has both a token and an App: ARC accepts only one of them")
	case !token && app < 3:
		return nil, errors.New(
			"the credential has neither github_token nor all of github_app_id, github_app_installation_id and github_app_private_key",
		)
	}
	return &corev1.Secret{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion, "Secret"),
		ObjectMeta: objectMeta(namespace, fleet.CredentialName(org, fleet.Fingerprint(retained)), org, nil),
		Type:       corev1.SecretTypeOpaque,
		Data:       retained,
	}, nil
}
