package settings

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// FleetRole runs the runner fleet.
const FleetRole Role = "fleet"

// Fleet configures the runner fleet. The API server's admission policies, not these settings,
// decide which accounts may write enrollments.
type Fleet struct {
	Namespace       string        `yaml:"namespace"`       // namespace of the fleet and of the credentials; it must have no other Secrets
	SharedNamespace string        `yaml:"sharedNamespace"` // for runners with isolation None
	ARCNamespace    string        `yaml:"arcNamespace"`
	Approval        FleetApproval `yaml:"approval"`
	// Approvers are the logins whose approval counts if the plane approves. Empty: the fleet
	// accepts every approver that the plane writes. Only the plane can write an approval.
	Approvers []string `yaml:"approvers"`
	// ClusterCIDRs are the address ranges of pods, services and nodes. Jobs may not connect to
	// them. If the list is empty, the isolations Namespace and Node are not available.
	ClusterCIDRs       []string    `yaml:"clusterCIDRs"`
	APIServers         []string    `yaml:"apiServers"` // address and port; empty: read from the cluster
	CacheNamespaces    []string    `yaml:"cacheNamespaces"`
	RequireOwnApp      bool        `yaml:"requireOwnApp"`
	DriftCheckInterval Duration    `yaml:"truthCheckEvery"` // how often to compare a forge with the cluster, for each organisation
	Images             FleetImages `yaml:"images"`
	Canary             FleetCanary `yaml:"canary"`
}

// A FleetCanary configures a pod in the namespace of each organisation that tests whether the
// network enforces the policies.
type FleetCanary struct {
	Image   string   `yaml:"image"`   // image with tailplaned; "": no canary pod
	Targets []string `yaml:"targets"` // host:port that no job may reach, in addition to metadata, the tailnet and the API server
}

// A FleetApproval is the source of the approval of an enrollment.
type FleetApproval string

// The sources of approval. With git, a stored enrollment is approved, because only the pipeline
// that applies reviewed changes can store it. With plane, the operator plane writes the approval.
const (
	ApprovalGit   FleetApproval = "git"
	ApprovalPlane FleetApproval = "plane"
)

// FleetImages are the default images of pods. The fleet refuses pools that need an image that is
// set neither here nor in the pool.
type FleetImages struct {
	Runner  string `yaml:"runner"`  // GitHub's
	Docker  string `yaml:"docker"`  // second container in container mode dind
	Manager string `yaml:"manager"` // GitLab's
	Helper  string `yaml:"helper"`  // of GitLab's jobs; "": the manager's default
	Job     string `yaml:"job"`     // default of GitLab's jobs
}

func defaultFleet() Fleet {
	return Fleet{Namespace: "tailplane-fleet", SharedNamespace: "tailplane-runners", ARCNamespace: "arc-systems", Approval: ApprovalGit, DriftCheckInterval: Duration(5 * time.Minute)}
}

// validateApproval reports the errors of the settings that the operator plane reads too.
func (f Fleet) validateApproval(v *validation) {
	v.failIf(f.Approval != ApprovalGit && f.Approval != ApprovalPlane, "fleet.approval: %q is neither git nor plane", f.Approval)
	for _, a := range f.Approvers {
		if _, err := access.ParseLogin(a); err != nil {
			v.fail("fleet.approvers: %w", err)
		} else if strings.HasPrefix(a, "*") {
			v.fail("fleet.approvers: %q: list each login", a)
		}
	}
}

// validate reports the errors of all settings that the fleet reads.
func (f Fleet) validate(v *validation) {
	for _, x := range []struct{ name, namespace string }{{"namespace", f.Namespace}, {"sharedNamespace", f.SharedNamespace}, {"arcNamespace", f.ARCNamespace}} {
		v.failIf(!label.MatchString(x.namespace), "fleet.%s: %q is not the name of a namespace", x.name, x.namespace)
	}
	v.failIf(f.Namespace == f.SharedNamespace || f.Namespace == f.ARCNamespace || f.SharedNamespace == f.ARCNamespace,
		"fleet.namespace (%q), fleet.sharedNamespace (%q) and fleet.arcNamespace (%q) must be three different namespaces, to separate jobs, credentials and ARC", f.Namespace, f.SharedNamespace, f.ARCNamespace)
	v.failIf(strings.HasPrefix(f.SharedNamespace, "tailplane-org-"),
		"fleet.sharedNamespace: %q has the prefix of namespaces of organisations", f.SharedNamespace)
	f.validateApproval(v)
	for _, text := range f.ClusterCIDRs {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			v.fail("fleet.clusterCIDRs: %q is not a range of addresses such as 10.0.0.0/14", text)
		} else if p.Bits() == 0 {
			v.fail("fleet.clusterCIDRs: %q is the whole address range: jobs could not connect to any address", text)
		}
	}
	for _, text := range f.APIServers {
		a, err := netip.ParseAddrPort(text)
		v.failIf(err != nil || a.Port() == 0, "fleet.apiServers: %q is not an address with a port such as 10.0.0.1:443", text)
	}
	for _, ns := range f.CacheNamespaces {
		switch {
		case !label.MatchString(ns):
			v.fail("fleet.cacheNamespaces: %q is not the name of a namespace", ns)
		case ns == f.Namespace || ns == f.ARCNamespace:
			v.fail("fleet.cacheNamespaces: %q: jobs must not connect to this namespace", ns)
		}
	}
	v.failIf(!f.DriftCheckInterval.isBetween(time.Minute, 24*time.Hour), "fleet.truthCheckEvery: %v is not between 1m and 24h", f.DriftCheckInterval)
	for _, x := range []struct{ name, image string }{{"images.runner", f.Images.Runner}, {"images.docker", f.Images.Docker}, {"images.manager", f.Images.Manager}, {"images.helper", f.Images.Helper}, {"images.job", f.Images.Job}, {"canary.image", f.Canary.Image}} {
		v.failIf(strings.ContainsFunc(x.image, isUnprintable), "fleet.%s: %q is not the name of an image", x.name, x.image)
	}
	for _, text := range f.Canary.Targets {
		if host, port, err := net.SplitHostPort(text); err != nil || host == "" || !isDecimal(port) || strings.ContainsFunc(host, isUnprintable) {
			v.fail("fleet.canary.targets: %q is not a host with a port such as 10.0.0.1:9091", text)
		}
	}
}

// isUnprintable reports whether r is not valid in the name of an image or a host.
func isUnprintable(r rune) bool { return r <= ' ' || r > '~' }

func isDecimal(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// Prefixes returns the parsed ClusterCIDRs.
func (f Fleet) Prefixes() []netip.Prefix { return parseAll(f.ClusterCIDRs, netip.ParsePrefix) }

// Servers returns the parsed APIServers.
func (f Fleet) Servers() []netip.AddrPort { return parseAll(f.APIServers, netip.ParseAddrPort) }

func parseAll[T any](texts []string, parse func(string) (T, error)) (all []T) {
	for _, text := range texts {
		if x, err := parse(text); err == nil { // Validate reports the error
			all = append(all, x)
		}
	}
	return all
}

// Approver reports whether the approval of login counts. It applies only to approvals that the
// operator plane wrote.
func (f Fleet) Approver(login string) bool {
	return len(f.Approvers) == 0 || slices.Contains(f.Approvers, login)
}
