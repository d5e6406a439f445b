package settings

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// FleetRole plays the runner fleet.
const FleetRole Role = "fleet"

// Fleet is how runners are shared among organisations. Who may write enrollments is
// not here: the API server's admission policies know it, and nobody else asks.
type Fleet struct {
	Namespace       string        `yaml:"namespace"`       // its own, and of the credentials, which holds no other Secret
	SharedNamespace string        `yaml:"sharedNamespace"` // for runners with isolation None
	ARCNamespace    string        `yaml:"arcNamespace"`
	Approval        FleetApproval `yaml:"approval"`
	// Approvers are those whose approval counts where the plane approves; none:
	// whoever the plane says, which alone can write an approval.
	Approvers []string `yaml:"approvers"`
	// ClusterCIDRs are the addresses of pods, services and nodes: no job may connect
	// to them. Without them there is no isolation Namespace or Node.
	ClusterCIDRs    []string    `yaml:"clusterCIDRs"`
	APIServers      []string    `yaml:"apiServers"` // address and port; none: as the cluster says
	CacheNamespaces []string    `yaml:"cacheNamespaces"`
	RequireOwnApp   bool        `yaml:"requireOwnApp"`
	TruthCheckEvery Duration    `yaml:"truthCheckEvery"` // how often what a forge has is compared with the cluster, for each organisation
	Images          FleetImages `yaml:"images"`
	Canary          FleetCanary `yaml:"canary"`
}

// A FleetCanary is a pod beside the jobs of each organisation that tries whether the
// network keeps the policies.
type FleetCanary struct {
	Image   string   `yaml:"image"`   // with tailplaned; "": there is no such pod
	Targets []string `yaml:"targets"` // host:port that no job may reach, beside metadata, the tailnet and the API server
}

// A FleetApproval says what makes an enrollment approved.
type FleetApproval string

// Where approval comes from: that it is stored, which only those can do who apply what
// was reviewed; or what the operator plane wrote into it.
const (
	ApprovalGit   FleetApproval = "git"
	ApprovalPlane FleetApproval = "plane"
)

// FleetImages are what pods run where a pool does not say. Without one, pools that
// need it are refused.
type FleetImages struct {
	Runner  string `yaml:"runner"`  // GitHub's
	Docker  string `yaml:"docker"`  // beside it in container mode dind
	Manager string `yaml:"manager"` // GitLab's
	Helper  string `yaml:"helper"`  // of GitLab's jobs; "": as the manager has it
	Job     string `yaml:"job"`     // of GitLab's jobs that name none
}

func defaultFleet() Fleet {
	return Fleet{Namespace: "tailplane-fleet", SharedNamespace: "tailplane-runners", ARCNamespace: "arc-systems", Approval: ApprovalGit, TruthCheckEvery: Duration(5 * time.Minute)}
}

// validateApproval says what is wrong of what the operator plane reads, too.
func (f Fleet) validateApproval() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if f.Approval != ApprovalGit && f.Approval != ApprovalPlane {
		bad("fleet.approval: %q; git or plane", f.Approval)
	}
	for _, a := range f.Approvers {
		if _, err := access.ParseLogin(a); err != nil {
			bad("fleet.approvers: %w", err)
		} else if strings.HasPrefix(a, "*") {
			bad("fleet.approvers: %q: name each login", a)
		}
	}
	return errs
}

// validate says what is wrong of all that the fleet reads.
func (f Fleet) validate() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, x := range []struct{ name, namespace string }{{"namespace", f.Namespace}, {"sharedNamespace", f.SharedNamespace}, {"arcNamespace", f.ARCNamespace}} {
		if !label.MatchString(x.namespace) {
			bad("fleet.%s: %q is not the name of a namespace", x.name, x.namespace)
		}
	}
	if f.Namespace == f.SharedNamespace || f.Namespace == f.ARCNamespace || f.SharedNamespace == f.ARCNamespace {
		bad("fleet.namespace (%q), fleet.sharedNamespace (%q) and fleet.arcNamespace (%q) are not three namespaces: jobs, credentials and ARC are kept apart", f.Namespace, f.SharedNamespace, f.ARCNamespace)
	}
	if strings.HasPrefix(f.SharedNamespace, "tailplane-org-") {
		bad("fleet.sharedNamespace: %q is what the namespace of one organisation is called", f.SharedNamespace)
	}
	errs = append(errs, f.validateApproval()...)
	for _, text := range f.ClusterCIDRs {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			bad("fleet.clusterCIDRs: %q is not a range of addresses such as 10.0.0.0/14", text)
		} else if p.Bits() == 0 {
			bad("fleet.clusterCIDRs: %q is every address: jobs could connect to nothing", text)
		}
	}
	for _, text := range f.APIServers {
		if a, err := netip.ParseAddrPort(text); err != nil || a.Port() == 0 {
			bad("fleet.apiServers: %q is not an address with a port such as 10.0.0.1:443", text)
		}
	}
	for _, ns := range f.CacheNamespaces {
		switch {
		case !label.MatchString(ns):
			bad("fleet.cacheNamespaces: %q is not the name of a namespace", ns)
		case ns == f.Namespace || ns == f.ARCNamespace:
			bad("fleet.cacheNamespaces: %q: jobs have no business there", ns)
		}
	}
	if every := time.Duration(f.TruthCheckEvery); every < time.Minute || every > 24*time.Hour {
		bad("fleet.truthCheckEvery: %v; from 1m to 24h", every)
	}
	for _, x := range []struct{ name, image string }{{"images.runner", f.Images.Runner}, {"images.docker", f.Images.Docker}, {"images.manager", f.Images.Manager}, {"images.helper", f.Images.Helper}, {"images.job", f.Images.Job}, {"canary.image", f.Canary.Image}} {
		if strings.ContainsFunc(x.image, isUnprintable) {
			bad("fleet.%s: %q is not the name of an image", x.name, x.image)
		}
	}
	for _, text := range f.Canary.Targets {
		if host, port, err := net.SplitHostPort(text); err != nil || host == "" || !isDecimal(port) || strings.ContainsFunc(host, isUnprintable) {
			bad("fleet.canary.targets: %q is not a host with a port such as 10.0.0.1:9091", text)
		}
	}
	return errs
}

// isUnprintable are what no name of an image or a host has.
func isUnprintable(r rune) bool { return r <= ' ' || r > '~' }

func isDecimal(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// Prefixes are ClusterCIDRs.
func (f Fleet) Prefixes() (all []netip.Prefix) {
	for _, text := range f.ClusterCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil { // Validate has told
			all = append(all, p)
		}
	}
	return all
}

// Servers are APIServers.
func (f Fleet) Servers() (all []netip.AddrPort) {
	for _, text := range f.APIServers {
		if a, err := netip.ParseAddrPort(text); err == nil { // Validate has told
			all = append(all, a)
		}
	}
	return all
}

// Approver says whether somebody's approval counts. It is asked only of an approval
// that the operator plane wrote.
func (f Fleet) Approver(login string) bool {
	return len(f.Approvers) == 0 || slices.Contains(f.Approvers, login)
}
