package fleet

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// network checks that the network settings of e do not let jobs connect to the cluster or to
// private networks around it.
func (c *checker) network(e *v1alpha1.RunnerEnrollment) {
	n := e.Spec.Network
	if n == nil {
		return
	}
	for _, cache := range n.Caches {
		if !slices.Contains(c.Rules.CacheNamespaces, cache.Namespace) {
			c.report(e, "", EffectStop, ReasonCacheNamespace, "The settings allow no caches in namespace %q.", cache.Namespace)
		}
	}
	for _, egress := range n.Egress {
		cidr, err := netip.ParsePrefix(egress.CIDR)
		within := func(p netip.Prefix) bool { return p.Bits() <= cidr.Bits() && p.Overlaps(cidr) }
		if err != nil || slices.ContainsFunc(slices.Concat(PrivatePrefixes(), c.Rules.ClusterCIDRs), within) {
			c.report(e, "", EffectBlock, ReasonEgressPrivate, "Jobs may not connect to %q: it is a private range or a range of the cluster.", egress.CIDR)
		}
	}
}

// PrivatePrefixes returns the address ranges that no job may connect to, regardless of its enrollment:
// private networks, the tailnet's range and link-local addresses. Cloud providers serve node
// credentials on link-local addresses.
func PrivatePrefixes() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10")}
}

// placement checks that e selects or tolerates no nodes of other organisations.
func (c *checker) placement(e *v1alpha1.RunnerEnrollment) {
	p := e.Spec.Placement
	if p == nil {
		return
	}
	if org, named := p.NodeSelector[v1alpha1.OrgLabel]; named && org != e.Name {
		c.report(e, "", EffectStop, ReasonPlacementOfAnother, "The nodes with the label %s: %s belong to another organisation.", v1alpha1.OrgLabel, org)
	}
	for _, t := range p.Tolerations {
		own := t.Key == v1alpha1.OrgLabel && t.Operator != corev1.TolerationOpExists && t.Value == e.Name
		if (t.Key == "" || t.Key == v1alpha1.OrgLabel) && !own {
			c.report(e, "", EffectStop, ReasonPlacementOfAnother, "A toleration with the key %q would let its pods run on another organisation's nodes.", t.Key)
		}
	}
}

// containers checks that organisations in a shared namespace cannot reach each other's jobs and
// Secrets. A job with its own Docker daemon controls its node. A job in a kubernetes mode can read
// every Secret of its namespace, including the keys of all organisations there.
func (c *checker) containers(e *v1alpha1.RunnerEnrollment, gitlab bool, pool *v1alpha1.RunnerPool) {
	mode := pool.Spec.ContainerMode
	reads := mode == v1alpha1.ModeKubernetes || mode == v1alpha1.ModeKubernetesNoVolume
	if gitlab && reads {
		c.report(e, pool.Name, EffectBlock, ReasonContainerMode, "Only GitHub runners have the container mode %s.", mode)
		return
	}
	if e.Spec.Isolation == v1alpha1.IsolationNamespace || e.Spec.Isolation == v1alpha1.IsolationNode {
		return
	}
	refuse := func(format, other string) {
		c.report(e, pool.Name, EffectStop, ReasonContainerMode, "With isolation None, "+format+".", mode, other)
	}
	if c.reader != "" && c.reader != e.Name {
		c.report(e, pool.Name, EffectStop, ReasonContainerMode, "With isolation None, jobs of %q could read the credential of %s.", c.reader, e.Name)
		return
	}
	if c.shared == "" {
		c.shared = e.Name
	}
	if reads && c.shared != e.Name {
		refuse("jobs in container mode %s could read the credential of %q", c.shared)
		return
	}
	if reads {
		c.reader = e.Name
	}
	if mode == v1alpha1.ModeDind {
		if other, ok := claimOnce(c.docker, pool.Name, e); !ok {
			refuse("container mode %s allows only one organisation per pool, and the older enrollment %q uses the pool", other)
		}
	}
}

// apps finds isolated organisations that share one GitHub App. The holder of the App's key can act
// for all of them.
func (c *checker) apps(byAge []*v1alpha1.RunnerEnrollment) {
	first := map[string]string{}
	for _, e := range byAge {
		app := c.Credentials[e.Name].AppID
		if app == 0 {
			continue
		}
		other, ok := claimOnce(first, fmt.Sprint(e.Spec.Forge, " ", app), e)
		if ok || e.Spec.Isolation != v1alpha1.IsolationNamespace && e.Spec.Isolation != v1alpha1.IsolationNode {
			continue
		}
		effect := EffectWarn
		if c.Rules.RequireOwnApp {
			effect = EffectBlock
		}
		c.report(e, "", effect, ReasonSharedApp, "Its GitHub App %d is also used by %q: one key gives access to both.", app, other)
	}
}
