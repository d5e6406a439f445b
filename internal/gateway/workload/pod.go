package workload

import (
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

const (
	configMount = "/etc/proxies"       // the group's ConfigMap; a relay reads it here only while the API is unreachable
	stateMount  = "/var/run/tailplane" // data that a relay can lose

	// terminationGrace is the termination grace period of a pod. If the drain timeout of a group is longer,
	// the period is the timeout plus beforeWait, the time before the wait for open connections.
	terminationGrace = 6 * time.Minute
	beforeWait       = 2 * time.Minute
	user             = int64(65532)
)

func (g *group) statefulSet() *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		TypeMeta: kind(appsv1.SchemeGroupVersion, "StatefulSet"), ObjectMeta: g.meta(g.Name),
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(g.replicas), ServiceName: g.Name, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:       &metav1.LabelSelector{MatchLabels: PodLabels(g.UID)},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			Template:       g.pod(),
		},
	}
}

func (g *group) pod() corev1.PodTemplateSpec {
	labels := map[string]string{}
	maps.Copy(labels, g.Spec.PodLabels)
	maps.Copy(labels, g.labels())
	maps.Copy(labels, PodLabels(g.UID))
	p := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: maps.Clone(g.Spec.PodAnnotations)},
		Spec: corev1.PodSpec{
			ServiceAccountName: g.Name, AutomountServiceAccountToken: new(true), EnableServiceLinks: new(false),
			TerminationGracePeriodSeconds: new(int64(max(terminationGrace, g.drain()+beforeWait) / time.Second)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      new(user),
				RunAsGroup:     new(user),
				FSGroup:        new(user),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			NodeSelector: maps.Clone(g.Spec.NodeSelector), Tolerations: g.Spec.Tolerations, Affinity: g.Spec.Affinity.DeepCopy(),
			TopologySpreadConstraints: g.spread(), PriorityClassName: g.Spec.PriorityClassName,
			Containers: []corev1.Container{g.container()},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: ConfigMapName(g.TailscaleProxyGroup)}}}},
				{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	for _, name := range g.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return p
}

func (g *group) drain() time.Duration {
	if g.Spec.DrainTimeout == nil {
		return 0 // the default drain timeout fits in grace
	}
	return g.Spec.DrainTimeout.Duration
}

// spread prefers different nodes for the relays, so that the loss of a node affects one relay.
func (g *group) spread() []corev1.TopologySpreadConstraint {
	if len(g.Spec.TopologySpreadConstraints) > 0 {
		return g.Spec.TopologySpreadConstraints
	}
	return []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: PodLabels(g.UID)}}}
}

func (g *group) container() corev1.Container {
	resources := g.Resources.DeepCopy()
	if g.Spec.Resources != nil {
		resources = g.Spec.Resources.DeepCopy()
	}
	return corev1.Container{
		Name: "relay", Image: g.image(), ImagePullPolicy: g.PullPolicy, Args: []string{"relay"}, Resources: *resources, Env: g.env(),
		Ports: []corev1.ContainerPort{ // the mapped ports are not listed because they change
			{Name: "metrics", ContainerPort: v1alpha1.HealthPort, Protocol: corev1.ProtocolTCP},
			{Name: "debug", ContainerPort: v1alpha1.DebugPort, Protocol: corev1.ProtocolTCP},
		},
		LivenessProbe:  &corev1.Probe{ProbeHandler: httpProbe("/livez"), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6},
		ReadinessProbe: &corev1.Probe{ProbeHandler: httpProbe("/readyz"), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 1},
		Lifecycle:      &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: httpProbe("/pre-shutdown").HTTPGet}},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: configMount, ReadOnly: true},
			{Name: "state", MountPath: stateMount},
		},
	}
}

func httpProbe(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(v1alpha1.HealthPort), Scheme: corev1.URISchemeHTTP},
	}
}

// env returns the environment, with the variables of Tailscale's proxy image. The order matters:
// $(VAR) refers only to preceding variables.
func (g *group) env() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{
			Name:      name,
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}},
		}
	}
	vars := []corev1.EnvVar{
		field(
			"POD_NAME",
			"metadata.name",
		), field("POD_UID", "metadata.uid"), field("POD_IP", "status.podIP"), field("POD_IPS", "status.podIPs"),
		{Name: "TS_KUBE_SECRET", Value: "$(POD_NAME)"},
		{Name: "TS_STATE", Value: "kube:$(POD_NAME)"},
		{Name: "TS_USERSPACE", Value: "true"},
		{Name: "TS_AUTH_ONCE", Value: "true"},
		{Name: "TS_LOCAL_ADDR_PORT", Value: "$(POD_IP):9002"},
		{Name: "TS_DEBUG_ADDR_PORT", Value: "127.0.0.1:9001"},
		{Name: "TS_ENABLE_HEALTH_CHECK", Value: "true"},
		{Name: "TS_ENABLE_METRICS", Value: "true"},
	}
	if g.Spec.Type == v1alpha1.Ingress {
		return append(
			vars,
			corev1.EnvVar{Name: "TS_EXPERIMENTAL_CERT_SHARE", Value: "true"},
			corev1.EnvVar{Name: "TS_SERVE_CONFIG", Value: configMount + "/serve-config"},
		)
	}
	return append(vars, corev1.EnvVar{Name: "TS_EGRESS_PROXIES_CONFIG_PATH", Value: configMount})
}

// role returns a Role that names each object. A rule without names would allow every object, so it
// is left out if there are no names. The Role contains no create or list, which cannot be limited
// to names. The operator creates all objects in advance.
func (g *group) role() *rbacv1.Role {
	var secrets []string
	for i := range g.ordinals() {
		secrets = append(secrets, stateSecretName(g.Name, i), configSecretName(g.Name, i))
	}
	secrets = append(secrets, sorted(g.CertDomains)...)
	r := &rbacv1.Role{TypeMeta: kind(rbacv1.SchemeGroupVersion, "Role"), ObjectMeta: g.meta(g.Name), Rules: []rbacv1.PolicyRule{
		{
			APIGroups:     []string{""},
			Resources:     []string{"configmaps"},
			ResourceNames: []string{ConfigMapName(g.TailscaleProxyGroup)},
			Verbs:         []string{"get", "watch"},
		},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	if len(secrets) > 0 {
		r.Rules = append(
			r.Rules,
			rbacv1.PolicyRule{
				APIGroups:     []string{""},
				Resources:     []string{"secrets"},
				ResourceNames: secrets,
				Verbs:         []string{"get", "update", "patch"},
			},
		)
	}
	return r
}

func (g *group) roleBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{TypeMeta: kind(rbacv1.SchemeGroupVersion, "RoleBinding"), ObjectMeta: g.meta(g.Name),
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: g.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: g.Name, Namespace: g.Namespace}},
	}
}

// service returns the headless Service of the relays. It does not list the mapped ports, because
// an EndpointSlice holds at most a hundred ports and a client of the address does not need them.
func (g *group) service() *corev1.Service {
	return &corev1.Service{TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: g.meta(g.Name), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, Selector: PodLabels(g.UID), IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		Ports: []corev1.ServicePort{
			{Name: "health", Port: v1alpha1.HealthPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(v1alpha1.HealthPort)},
		},
	}}
}

func (g *group) disruptionBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{TypeMeta: kind(policyv1.SchemeGroupVersion, "PodDisruptionBudget"), ObjectMeta: g.meta(g.Name),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(1)),
			Selector:       &metav1.LabelSelector{MatchLabels: PodLabels(g.UID)},
		}}
}

// networkPolicy limits connections to the relays. The mapped ports admit the consumers of the
// group and Envoy. The health port admits Envoy for its health checks, the relays of the group for
// the checks during a drain, and monitoring. Connections from relays are not limited, because
// tailnet nodes can be anywhere.
func (g *group) networkPolicy() *networkingv1.NetworkPolicy {
	envoy := namespaces(g.EnvoyNamespaces)
	np := &networkingv1.NetworkPolicy{
		TypeMeta:   kind(networkingv1.SchemeGroupVersion, "NetworkPolicy"),
		ObjectMeta: g.meta(g.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: PodLabels(g.UID)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
	if ports := portRanges(g.Ports); len(ports) > 0 && g.Spec.Type == v1alpha1.Egress {
		np.Spec.Ingress = append(
			np.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{From: append(g.consumers(), envoy...), Ports: ports},
		)
	}
	health := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: PodLabels(g.UID)}}}
	health = append(append(health, envoy...), namespaces(g.MonitoringNamespaces)...)
	np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: health,
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(v1alpha1.HealthPort))}}})
	return np
}

// consumers returns the namespaces whose services may use the group. An unknown selector means
// only the group's own namespace.
func (g *group) consumers() []networkingv1.NetworkPolicyPeer {
	c := g.Spec.Consumers
	switch {
	case c.From == v1alpha1.NamespacesAll:
		return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
	case c.From == v1alpha1.NamespacesSelector && c.Selector != nil:
		return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: c.Selector.DeepCopy()}}
	}
	return []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}
}

// namespaces returns a peer for all pods of the named namespaces. It returns no peer for no names.
// The caller must not use an empty list alone, because a NetworkPolicy rule without peers admits
// every source.
func namespaces(names []string) []networkingv1.NetworkPolicyPeer {
	if len(names) == 0 {
		return nil
	}
	return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: sorted(names)}}}}}
}

// portRanges returns the mapped ports, with consecutive ports combined into ranges.
func portRanges(mapped []v1alpha1.MappedPort) (ranges []networkingv1.NetworkPolicyPort) {
	for _, protocol := range []v1alpha1.PortProtocol{v1alpha1.TCP, v1alpha1.UDP} {
		var ports []int32
		for _, m := range mapped {
			if m.Protocol == protocol {
				ports = append(ports, m.MatchPort)
			}
		}
		slices.Sort(ports)
		ports = slices.Compact(ports)
		for len(ports) > 0 {
			n := 1
			for n < len(ports) && ports[n] == ports[n-1]+1 {
				n++
			}
			p := networkingv1.NetworkPolicyPort{Protocol: new(corev1.Protocol(protocol)), Port: new(intstr.FromInt32(ports[0]))}
			if n > 1 {
				p.EndPort = new(ports[n-1])
			}
			ranges, ports = append(ranges, p), ports[n:]
		}
	}
	return ranges
}
