package isolation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Tenant is one enrollment with its forge and pools.
type Tenant struct {
	Enrollment *v1alpha1.RunnerEnrollment
	Forge      *v1alpha1.RunnerForge
	Pools      []*v1alpha1.RunnerPool // pools of the enrollment that break no rule
}

// Baseline renders the baseline of a namespace of runners: its quota and limits, its service
// accounts, and the policies for the pods of own. others are the enrollments that share the
// namespace. Their pools count for the limits. They get their policies from their own reconciles,
// and Baseline ignores errors in them.
func Baseline(s Settings, own Tenant, others ...Tenant) ([]Object, error) {
	if s.Namespace == "" || s.Account == "" || s.Shared == "" {
		return nil, errors.New("namespace baseline: namespace, account and shared namespace must be set")
	}
	g := &baseline{Settings: s, own: own, tenants: append([]Tenant{own}, others...), namespace: fleet.NamespaceOf(own.Enrollment, s.Shared),
		pools: map[string]bool{}, cpu: resource.MustParse("4"), memory: resource.MustParse("8Gi")}
	isolated, err := isIsolated(own.Enrollment)
	switch {
	case err != nil:
	case isolated && len(others) > 0:
		err = fmt.Errorf("with isolation %s the namespace must not have other tenants", own.Enrollment.Spec.Isolation)
	case isolated && len(s.ClusterCIDRs) == 0:
		err = ErrUnbounded
	default:
		err = g.addTenant(own)
	}
	if err != nil {
		return nil, fmt.Errorf("namespace baseline of %s: %w", own.Enrollment.Name, err)
	}
	if isolated {
		g.org = own.Enrollment.Name
	}
	for _, t := range others {
		if isolated, err := isIsolated(t.Enrollment); err != nil || isolated {
			return nil, fmt.Errorf("namespace baseline of %s: %s is not in the shared namespace", own.Enrollment.Name, t.Enrollment.Name)
		}
		_ = g.addTenant(t) // their own reconciles report the error
	}
	out := []Object{
		g.namespaceObject(),
		g.quota(),
		g.limitRange(),
		serviceAccount(g.namespace, RunnerAccount, g.org),
		roleBinding(g.namespace, FleetRole, g.org, s.Namespace, s.Account),
	}
	if g.github {
		if s.ARC.Namespace == "" || s.ARC.ServiceAccount == "" {
			return nil, fmt.Errorf("namespace baseline of %s: ARC was not found", g.namespace)
		}
		out = append(out, roleBinding(g.namespace, ARCRole, g.org, s.ARC.Namespace, s.ARC.ServiceAccount))
	}
	if g.pods {
		out = append(
			out,
			serviceAccount(g.namespace, PodRunnerAccount, g.org),
			roleBinding(g.namespace, PodRunnerRole, g.org, g.namespace, PodRunnerAccount),
		)
	}
	if g.gitlab {
		out = append(
			out,
			serviceAccount(g.namespace, ManagerAccount, g.org),
			roleBinding(g.namespace, ManagerRole, g.org, g.namespace, ManagerAccount),
		)
	}
	policies, err := g.policies()
	if err != nil {
		return nil, fmt.Errorf("namespace baseline of %s: %w", g.namespace, err)
	}
	for _, p := range policies {
		out = append(out, p)
	}
	if g.Canary.Image != "" {
		out = append(out, g.canary())
	}
	return append(out, g.caBundles()...), nil
}

// baseline is the state of the rendering of a namespace.
type baseline struct {
	Settings
	own            Tenant
	tenants        []Tenant // including own
	namespace, org string   // org is "" for the shared namespace

	github, gitlab bool
	pods           bool // jobs start pods
	privileged     bool // a pod has all rights on its node
	unrestricted   bool // a pod does not meet the level restricted of Pod Security Admission
	budget         int64
	pools          map[string]bool   // pools already counted: a pool is the same for all tenants
	cpu, memory    resource.Quantity // the maximum for one container
}

// addTenant adds the requirements of a tenant's pools.
func (g *baseline) addTenant(t Tenant) error {
	var errs []error
	if g.Canary.Image != "" {
		g.budget++
	}
	for _, p := range t.Pools {
		gitlab := t.Forge.Spec.Type == v1alpha1.GitLab
		if gitlab {
			g.budget += int64(replicas(p)) + 1 // its managers
		}
		if g.pools[p.Name] {
			continue
		}
		g.pools[p.Name] = true
		if err := g.addPool(p, gitlab); err != nil {
			errs = append(errs, fmt.Errorf("pool %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (g *baseline) addPool(p *v1alpha1.RunnerPool, gitlab bool) error {
	var template *corev1.PodTemplateSpec
	if !gitlab {
		var err error
		if template, err = podTemplate(p, g.Images); err != nil {
			return err
		}
	}
	mode := p.Spec.ContainerMode
	perJob := int64(1)
	if mode == v1alpha1.ModeKubernetes || mode == v1alpha1.ModeKubernetesNoVolume {
		g.pods, perJob = true, 2
	}
	g.privileged = g.privileged || mode == v1alpha1.ModeDind
	g.budget += int64(p.Spec.Scaling.Budget) * perJob // shared by all organisations of the pool
	if gitlab {
		g.gitlab, g.unrestricted = true, true // each job chooses its own image
		if p.Spec.Resources != nil {
			g.raiseLimits(p.Spec.Resources.Limits)
		}
		return nil
	}
	g.github = true
	g.unrestricted = g.unrestricted || !isRestricted(&template.Spec)
	for _, c := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		g.raiseLimits(c.Resources.Limits)
	}
	return nil
}

func (g *baseline) raiseLimits(limits corev1.ResourceList) {
	if q, ok := limits[corev1.ResourceCPU]; ok && q.Cmp(g.cpu) > 0 {
		g.cpu = q
	}
	if q, ok := limits[corev1.ResourceMemory]; ok && q.Cmp(g.memory) > 0 {
		g.memory = q
	}
}

func (g *baseline) namespaceObject() *corev1.Namespace {
	enforce := "restricted"
	switch {
	case g.privileged:
		enforce = "privileged"
	case g.unrestricted:
		enforce = "baseline"
	}
	isolation := v1alpha1.IsolationNone
	if g.org != "" {
		isolation = g.own.Enrollment.Spec.Isolation
	}
	return &corev1.Namespace{
		TypeMeta: typeMeta(corev1.SchemeGroupVersion, "Namespace"),
		ObjectMeta: objectMeta("", g.namespace, g.org, map[string]string{
			v1alpha1.IsolationLabel: string(isolation), "pod-security.kubernetes.io/enforce": enforce}),
	}
}

// quota limits an organisation's own namespace by its quota, and the shared one by the budgets of
// the pools. The quota also holds while the fleet is down.
func (g *baseline) quota() *corev1.ResourceQuota {
	hard := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(g.budget, resource.DecimalSI)}
	if g.org != "" {
		q := g.own.Enrollment.Spec.Quota
		hard = corev1.ResourceList{
			corev1.ResourceRequestsCPU:    orDefault(q.CPU, "16"),
			corev1.ResourceRequestsMemory: orDefault(q.Memory, "32Gi"),
			corev1.ResourcePods:           *resource.NewQuantity(int64(q.Pods), resource.DecimalSI),
		}
		if q.Pods == 0 {
			hard[corev1.ResourcePods] = resource.MustParse("50")
		}
	}
	return &corev1.ResourceQuota{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion, "ResourceQuota"),
		ObjectMeta: objectMeta(g.namespace, boundsName, g.org, nil),
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
	}
}

func orDefault(q resource.Quantity, d string) resource.Quantity {
	if q.IsZero() {
		return resource.MustParse(d)
	}
	return q
}

// limitRange sets defaults for containers without their own limits. The maximum is 4 CPUs and 8 GiB, or
// what a pool gives its runners if that is more.
func (g *baseline) limitRange() *corev1.LimitRange {
	return &corev1.LimitRange{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion, "LimitRange"),
		ObjectMeta: objectMeta(g.namespace, boundsName, g.org, nil),
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type:    corev1.LimitTypeContainer,
			Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
			DefaultRequest: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("128Mi"),
			},
			Max: corev1.ResourceList{corev1.ResourceCPU: g.cpu, corev1.ResourceMemory: g.memory},
		}}},
	}
}

// caBundles renders the CA bundles of forges whose certificates are not publicly trusted.
func (g *baseline) caBundles() (out []Object) {
	seen := map[string]bool{}
	for _, t := range g.tenants {
		if f := t.Forge; f.Spec.CABundle != "" && !seen[f.Name] {
			seen[f.Name] = true
			out = append(
				out,
				&corev1.ConfigMap{
					TypeMeta:   typeMeta(corev1.SchemeGroupVersion, "ConfigMap"),
					ObjectMeta: objectMeta(g.namespace, caBundleName(f), g.org, nil),
					Data:       map[string]string{caKey: f.Spec.CABundle},
				},
			)
		}
	}
	return out
}

func caBundleName(f *v1alpha1.RunnerForge) string { return "tailplane-forge-" + f.Name }

// isRestricted reports whether the level restricted of Pod Security Admission would admit a pod.
func isRestricted(p *corev1.PodSpec) bool {
	pod := cmp.Or(p.SecurityContext, &corev1.PodSecurityContext{})
	confined := func(s *corev1.SeccompProfile) bool {
		return s != nil && (s.Type == corev1.SeccompProfileTypeRuntimeDefault || s.Type == corev1.SeccompProfileTypeLocalhost)
	}
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		s := c.SecurityContext
		if s == nil {
			return false
		}
		asRoot := s.RunAsUser != nil && *s.RunAsUser == 0 || s.RunAsUser == nil && pod.RunAsUser != nil && *pod.RunAsUser == 0
		switch {
		case asRoot, !is(s.AllowPrivilegeEscalation, false), is(s.Privileged, true):
			return false
		case s.RunAsNonRoot == nil && !is(pod.RunAsNonRoot, true), is(s.RunAsNonRoot, false):
			return false
		case s.SeccompProfile == nil && !confined(pod.SeccompProfile), s.SeccompProfile != nil && !confined(s.SeccompProfile):
			return false
		case s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL"),
			slices.ContainsFunc(s.Capabilities.Add, func(c corev1.Capability) bool { return c != "NET_BIND_SERVICE" }):
			return false
		}
	}
	return !slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap == nil && v.CSI == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Ephemeral == nil &&
			v.PersistentVolumeClaim == nil &&
			v.Projected == nil &&
			v.Secret == nil
	})
}

// labelSelector returns a label selector.
func labelSelector(labels map[string]string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: labels}
}

// policies renders policies that deny all traffic in both directions, and then allow what the
// organisation may use. In the shared namespace, the allowed traffic differs by organisation. There
// the policies select pods by the organisation's label, which a job cannot change.
func (g *baseline) policies() ([]*networkingv1.NetworkPolicy, error) {
	all := labelSelector(nil)
	base := g.policy(egressName, g.org, nil)
	base.Spec.PolicyTypes = append(base.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	base.Spec.PodSelector = all
	base.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{
		To: []networkingv1.NetworkPolicyPeer{
			{
				NamespaceSelector: new(labelSelector(map[string]string{corev1.LabelMetadataName: "kube-system"})),
				PodSelector:       new(labelSelector(map[string]string{"k8s-app": "kube-dns"})),
			},
		},
		Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolUDP, 53), port(corev1.ProtocolTCP, 53)}}}
	out := []*networkingv1.NetworkPolicy{base}
	rules, err := g.egress(g.own.Enrollment)
	if err != nil {
		return nil, fmt.Errorf("network of %s: %w", g.own.Enrollment.Name, err)
	}
	if g.org != "" {
		base.Spec.Egress = append(base.Spec.Egress, rules...)
	} else {
		name := g.own.Enrollment.Name
		p := g.policy(egressName+"-"+name, name, map[string]string{v1alpha1.OrgLabel: name})
		p.Spec.Egress = rules
		out = append(out, p)
	}
	if g.gitlab || g.pods {
		if len(g.APIServers) == 0 {
			return nil, fmt.Errorf("the addresses of the API server are not known")
		}
		p := g.policy(apiServerName, g.org, map[string]string{apiLabel: "true"})
		for _, a := range slices.Compact(slices.SortedFunc(slices.Values(g.APIServers), netip.AddrPort.Compare)) {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
				To: []networkingv1.NetworkPolicyPeer{
					{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String()}},
				},
				Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, int32(a.Port()))}})
		}
		out = append(out, p)
	}
	return out, nil
}

func (g *baseline) policy(name, org string, pods map[string]string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   typeMeta(networkingv1.SchemeGroupVersion, "NetworkPolicy"),
		ObjectMeta: objectMeta(g.namespace, name, org, nil),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: labelSelector(pods),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
}

func port(p corev1.Protocol, n int32) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: &p, Port: new(intstr.FromInt32(n))}
}

// egress returns the destinations that one organisation may connect to, in addition to the
// cluster's DNS.
func (g *baseline) egress(e *v1alpha1.RunnerEnrollment) (rules []networkingv1.NetworkPolicyEgressRule, err error) {
	network := cmp.Or(e.Spec.Network, &v1alpha1.EnrollmentNetwork{})
	outside := network.Egress
	if len(outside) == 0 {
		outside = []v1alpha1.NetworkEgress{{CIDR: "0.0.0.0/0", Ports: []int32{443}}, {CIDR: "::/0", Ports: []int32{443}}}
	}
	for _, o := range outside {
		cidr, err := netip.ParsePrefix(o.CIDR)
		if err != nil || cidr != cidr.Masked() || len(o.Ports) == 0 {
			return nil, fmt.Errorf("egress %q with %d ports is not a valid range", o.CIDR, len(o.Ports))
		}
		block := &networkingv1.IPBlock{CIDR: cidr.String()}
		for _, private := range slices.Concat(fleet.PrivatePrefixes(), g.ClusterCIDRs) {
			private = private.Masked()
			switch {
			case !private.Overlaps(cidr):
			case private.Bits() <= cidr.Bits():
				return nil, fmt.Errorf("egress %s is within %s, which jobs may not connect to", cidr, private)
			case !slices.Contains(block.Except, private.String()):
				block.Except = append(block.Except, private.String())
			}
		}
		r := networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}
		for _, n := range o.Ports {
			r.Ports = append(r.Ports, port(corev1.ProtocolTCP, n))
		}
		rules = append(rules, r)
	}
	for _, c := range network.Caches {
		if c.Namespace == "" || len(c.PodSelector) == 0 || c.Port == 0 {
			return nil, fmt.Errorf("a cache in %q has no pod selector or no port", c.Namespace)
		}
		if !slices.Contains(g.CacheNamespaces, c.Namespace) {
			continue // the enrollment is refused because of it; its running jobs get no access either
		}
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{
				{
					NamespaceSelector: new(labelSelector(map[string]string{corev1.LabelMetadataName: c.Namespace})),
					PodSelector:       new(labelSelector(c.PodSelector)),
				},
			},
			Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, c.Port)}})
	}
	return rules, nil
}
