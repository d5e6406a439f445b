package doctor

import (
	"fmt"
	"strings"
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
}

func (f Facts) discovery() Result {
	const name = "discovery"
	switch d := f.Discovery; {
	case f.DiscoveryFailure.Message != "": // this does not prevent signing in
		return Result{name, Warn, f.DiscoveryFailure.Message, append([]string{}, f.DiscoveryFailure.Advice...)}.advise("To sign in to another cluster, name its server: tka login --server NAME")
	case d == nil:
		return result(name, Skipped, "Which clusters the server knows was not learnt.")
	case d.Unsupported:
		return result(name, Skipped, "The server is of a version that does not look for other clusters.")
	case d.Isolated:
		return result(name, Warn, "The server hears none of the clusters that it knows, so it cannot say how they are.").
			advise("Ask whoever runs it whether the tailnet's policy still lets the access servers reach each other, and whether its node is connected.")
	case !d.ListsItself:
		return result(name, Warn, "The server does not list its own cluster: it has not announced itself, or its record was refused.").advise("Ask whoever runs it to look at its log.")
	case d.Others == 0:
		return result(name, OK, "The server knows no cluster but its own.").
			advise("If there are others: the tailnet's policy must let the access servers reach each other, such as tag:tailplane to tag:tailplane on tcp:7946.")
	case d.Others == 1:
		return result(name, OK, "The server knows 1 cluster beside its own.").advise("tka clusters")
	default:
		return result(name, OK, "The server knows %d clusters beside its own.", d.Others).advise("tka clusters")
	}
}

func (f Facts) clusters() Result {
	const name = "clusters"
	switch d := f.Discovery; {
	case d == nil, d.Unsupported:
		return result(name, Skipped, "Whether all clusters can be signed in to was not learnt.")
	case len(d.Conflicts) > 0:
		return result(name, Warn, "Somebody else says to be a cluster that is known by another key, and is not signed in to: %s.", joinNames(d.Conflicts)).
			advise("See the keys: tka clusters --all -o wide").
			advise("Ask whoever runs these clusters which key is the right one: another machine may pose as one of them.")
	case len(d.Refused) > 0:
		return result(name, Warn, "The server does not list what these servers announce: %s.", strings.Join(d.Refused[:min(len(d.Refused), maxNames)], "; ")).
			advise("If such an address is meant to be used, whoever runs this server lists it in gossip.allowEndpoints.").
			advise("Otherwise the server that announces it has another cluster.server than people can reach.")
	case len(d.Unverified) > 0:
		return result(name, Warn, "The server has not met these clusters itself, so they are not signed in to: %s.", joinNames(d.Unverified)).
			advise("Try again in a moment. If it stays, the tailnet's policy may not let the server reach theirs.")
	case len(d.Elsewhere) > 0:
		return result(name, Warn, "These clusters name a server that this machine does not go to: %s.", joinNames(d.Elsewhere)).
			advise("See why: tka clusters -o wide").advise("If you know the server, name it yourself: tka login --server NAME")
	}
	return result(name, OK, "No cluster is in doubt.")
}

// maxNames bounds how many names one result lists.
const maxNames = 8

func joinNames(names []string) string {
	if n := len(names) - maxNames; n > 0 {
		return strings.Join(names[:maxNames], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ")
}
