// Package isolation renders what keeps the runners of an organisation apart, and the
// runners themselves, as Kubernetes objects: a namespace with its bounds, and an
// AutoscalingRunnerSet or a GitLab manager in it. It keeps law 6: no pod of a job has
// a right in the cluster, and every name is made of the enrollment's own.
//
// Rendering is pure: the same input gives the same bytes. An error means that
// something cannot be rendered safely, and then nothing is.
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

// Names in each namespace of runners, and of the cluster's objects that the chart
// brings: the fleet may bind these ClusterRoles and no others.
const (
	FleetRole          = "tailplane-fleet-namespace"   // what the fleet may do in a namespace of runners
	ARCRole            = "tailplane-arc-manager"       // what ARC needs there
	ManagerRole        = "tailplane-gitlab-manager"    // what a GitLab manager needs there
	PodRunnerRole      = "tailplane-runner-kubernetes" // what jobs in a kubernetes mode need there
	RunnerAccount      = "tailplane-runner"            // without any right
	PodRunnerAccount   = "tailplane-runner-kubernetes"
	ManagerAccount     = "tailplane-runner-manager"
	JobPriority        = "tailplane-runner-job"
	ManagerPriority    = "tailplane-runner-manager"
	apiLabel           = "tailplane.dev/api-server" // on pods that may speak to the API server
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

// Settings are the fleet's, the same for every organisation.
type Settings struct {
	Namespace, Account string           // the fleet's own; required
	Shared             string           // the namespace for isolation None; required
	ClusterCIDRs       []netip.Prefix   // pods, services and nodes; required for isolation Namespace and Node
	APIServers         []netip.AddrPort // of the cluster, its service and its endpoints; required for whoever starts pods from inside
	CacheNamespaces    []string         // with pods that enrollments may let their jobs connect to; others are left out
	ARC                ARC              // required for GitHub
	Images             Images
	Canary             Canary
}

// ARC is the actions-runner-controller that was found.
type ARC struct {
	Version                   string // as its pods are labelled: scale sets of another one are deleted by it
	Namespace, ServiceAccount string
}

// Images are what pods run where the pool does not say.
type Images struct {
	Runner  string // of GitHub; required for it
	Docker  string // beside it in container mode dind; required for that
	Manager string // GitLab's runner manager; required for it
	Helper  string // of GitLab's jobs; optional
	Job     string // of GitLab's jobs that name none; required for it
}

// An Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// ErrUnbounded is the error for an organisation that is to be kept apart while nobody
// has said what the cluster's addresses are.
var ErrUnbounded = errors.New("fleet.clusterCIDRs is not set: what jobs may connect to cannot be bounded")

// Level is what separates an enrollment's runners: an unknown word is refused.
func level(e *v1alpha1.RunnerEnrollment) (apart bool, err error) {
	switch e.Spec.Isolation {
	case v1alpha1.IsolationNone:
		return false, nil
	case v1alpha1.IsolationNamespace, v1alpha1.IsolationNode:
		return true, nil
	}
	return false, fmt.Errorf("isolation %q is not known", e.Spec.Isolation)
}

// meta is the metadata of an object of an organisation, or of all for "".
func meta(namespace, name, org string, more map[string]string) metav1.ObjectMeta {
	labels := map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, "app.kubernetes.io/part-of": "tailplane", "app.kubernetes.io/name": "tailplane-runner"}
	if org != "" {
		labels[v1alpha1.OrgLabel] = org
	}
	maps.Copy(labels, more)
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

func kind(gv interface{ String() string }, k string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gv.String(), Kind: k}
}

// account is a ServiceAccount whose token no pod gets unless it asks.
func account(namespace, name, org string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{TypeMeta: kind(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: meta(namespace, name, org, nil), AutomountServiceAccountToken: new(false)}
}

// bind gives an account one of the chart's ClusterRoles, in one namespace.
func bind(namespace, role, org, accountNamespace, account string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{TypeMeta: kind(rbacv1.SchemeGroupVersion, "RoleBinding"), ObjectMeta: meta(namespace, role, org, nil),
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: accountNamespace}}}
}

// Credential is the copy of an organisation's credential beside its runners. An error
// says what of the credential cannot be; it never says what is in it.
func Credential(org, namespace string, data map[string][]byte) (*corev1.Secret, error) {
	kept := map[string][]byte{}
	for _, key := range []string{"github_app_id", "github_app_installation_id", "github_app_private_key", "github_token"} {
		if len(data[key]) > 0 {
			kept[key] = data[key]
		}
	}
	_, token := kept["github_token"]
	app := len(kept)
	if token {
		app--
	}
	switch {
	case token && app > 0:
		return nil, errors.New("the credential has both a token and an App: ARC takes one")
	case !token && app < 3:
		return nil, errors.New("the credential has neither github_token nor all of github_app_id, github_app_installation_id and github_app_private_key")
	}
	return &corev1.Secret{TypeMeta: kind(corev1.SchemeGroupVersion, "Secret"), ObjectMeta: meta(namespace, fleet.CredentialName(org, fleet.Fingerprint(kept)), org, nil),
		Type: corev1.SecretTypeOpaque, Data: kept}, nil
}
