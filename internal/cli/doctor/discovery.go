package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/signin"
)

// A Discovery is what the server reported about other clusters.
type Discovery struct {
	Unsupported bool     // the server's version has no discovery
	ListsItself bool     // the server lists its own cluster
	Others      int      // number of other clusters
	Isolated    bool     // the server hears none of them
	Unverified  []string // names of clusters that the server has not met itself
	Conflicts   []string // names of clusters that another key claims too
	Refused     []string // records that the server does not list, with the reason
	Elsewhere   []string // names of clusters whose servers this machine does not use
	Silent      []string // names of clusters that did not say which rules they can use
}

func (f Facts) discovery() Result {
	switch d := f.Discovery; {
	case f.DiscoveryFailure.Message != "": // this does not prevent signing in
		return Result{Status: Warn, Message: f.DiscoveryFailure.Message, Advice: slices.Clone(f.DiscoveryFailure.Advice)}.
			advise("To sign in to another cluster, select its server: tka login --server NAME")
	case d == nil:
		return result(Skipped, "The clusters that the server knows are unknown.")
	case d.Unsupported:
		return result(Skipped, "This version of the server does not discover other clusters.")
	case d.Isolated:
		return result(Warn, "The server receives nothing from the clusters that it knows, so their state is unknown.").
			advise("Ask its administrator whether the tailnet's policy still lets the access servers reach each other, and whether its node is connected.")
	case !d.ListsItself:
		return result(Warn, "The server does not list its own cluster: it has not announced itself, or its record was rejected.").advise("Ask its administrator to read its log.")
	case d.Others == 0:
		return result(OK, "The server knows only its own cluster.").
			advise("If other clusters exist, the tailnet's policy must let the access servers reach each other, such as tag:tailplane to tag:tailplane on tcp:7946.")
	case d.Others == 1:
		return result(OK, "The server knows 1 other cluster.").advise("tka clusters")
	default:
		return result(OK, "The server knows %d other clusters.", d.Others).advise("tka clusters")
	}
}

func (f Facts) clusters() Result {
	switch d := f.Discovery; {
	case d == nil, d.Unsupported:
		return result(Skipped, "Whether you can sign in to all clusters is unknown.")
	case len(d.Conflicts) > 0:
		return result(Warn, "Another server claims a known cluster with a different key, so tka does not sign in to it: %s.", joinNames(d.Conflicts)).
			advise("See the keys: tka clusters --all -o wide").
			advise("Ask an administrator of these clusters which key is correct: another machine may impersonate one of them.")
	case len(d.Refused) > 0:
		return result(Warn, "The server rejects the records that these servers announce: %s.", strings.Join(d.Refused[:min(len(d.Refused), maxNames)], "; ")).
			advise("If such an address is correct, an administrator of this server must add it to gossip.allowEndpoints.").
			advise("Otherwise, the server that announces it has a wrong cluster.server, which people cannot reach.")
	case len(d.Unverified) > 0:
		return result(Warn, "The server has not contacted these clusters yet, so tka does not sign in to them: %s.", joinNames(d.Unverified)).
			advise("Try again in a moment. If this stays, the tailnet's policy may not let the server reach their servers.")
	case len(d.Elsewhere) > 0:
		return result(Warn, "These clusters list a server that tka does not connect to: %s.", joinNames(d.Elsewhere)).
			advise("See why: tka clusters -o wide").advise("If you know the server, select it: tka login --server NAME")
	}
	return result(OK, "All clusters are usable.")
}

// maxNames bounds how many names one result lists.
const maxNames = 8

func joinNames(names []string) string {
	if n := len(names) - maxNames; n > 0 {
		return strings.Join(names[:maxNames], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ")
}

// A RuleProblem is a rule of the tailnet's policy that a cluster cannot use.
type RuleProblem struct {
	Cluster string
	Version string // of its server
	Problem string // from the server
}

// RuleProblems returns the rules that a cluster cannot use, as its server reports them to this device.
func RuleProblems(cluster, version string, who signin.Whoami) (all []RuleProblem) {
	for _, r := range who.Rules {
		if p := (RuleProblem{cluster, version, strings.TrimPrefix(r.Problem, "The rule is invalid: ")}); r.Problem != "" && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// policy reports clusters whose servers refuse a rule of the policy. Servers decode rules strictly, so an older server refuses a rule with a
// field that it does not know.
func (f Facts) policy() Result {
	switch d := f.Discovery; {
	case len(f.Policy) > 0:
		all := make([]string, 0, len(f.Policy))
		for _, p := range f.Policy {
			all = append(all, fmt.Sprintf("%s (server %s): %s", p.Cluster, cmp.Or(p.Version, "of an unknown version"), strings.TrimSuffix(p.Problem, ".")))
		}
		r := result(Warn, "These clusters cannot use a rule of the tailnet's policy: %s.", strings.Join(all[:min(len(all), maxNames)], "; "))
		if n := len(all) - maxNames; n > 0 {
			r.Message += fmt.Sprintf(" And %d more.", n)
		}
		return r.advise("If the rule has a field that a server does not know, upgrade that server first, and change the policy after.").
			advise("Otherwise correct the rule in the tailnet's policy.")
	case f.Whoami == nil:
		return result(Skipped, "Whether all clusters can use the rules of the policy is unknown.")
	case d != nil && len(d.Silent) > 0:
		return result(Skipped, "These clusters did not say whether they can use the rules of the policy: %s.", joinNames(d.Silent))
	}
	return result(OK, "Every cluster that answers can use the rules that the policy has for this device.")
}
