package multicluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// CheckEpoch returns an error if next may not follow prev. The epoch must not decrease. It must increase if
// next removes objects from collections or moves them, because clients learn of such a change only by the
// epoch.
func CheckEpoch(prev, next *config.Config) error {
	if next.Epoch < prev.Epoch {
		return fmt.Errorf("the epoch decreases from %d to %d", prev.Epoch, next.Epoch)
	}
	if next.Epoch > prev.Epoch {
		return nil
	}
	if moves := listMoves(prev, next); len(moves) > 0 {
		return fmt.Errorf("%s; raise epoch to %d", strings.Join(moves, "; "), prev.Epoch+1)
	}
	return nil
}

// maxMoves limits how many differences listMoves lists.
const maxMoves = 20

// listMoves lists the differences that may remove objects from a collection or move them to another cluster. It
// returns nil if there are none. It compares the routing settings field by field and does not compute which
// objects one rule takes from another. Added clusters or members do not count as moves. Nor do changed
// weights, places, limits or credentials.
func listMoves(prev, next *config.Config) (moves []string) {
	if isHomeOnly(prev) && isHomeOnly(next) {
		return nil // both are the pod's own cluster, even if the name differs
	}
	for i := range prev.Clusters {
		was := &prev.Clusters[i]
		for j := range next.Clusters {
			if is := &next.Clusters[j]; is.Slot == was.Slot && is.Name != was.Name {
				moves = append(moves, fmt.Sprintf("slot %d belonged to %s and now belongs to %s", was.Slot, was.Name, is.Name))
			}
		}
		is := next.Cluster(was.Name)
		switch {
		case is == nil: // movedRules reports the effects of a removed cluster
		case is.Slot != was.Slot:
			moves = append(moves, fmt.Sprintf("the slot of %s changes from %d to %d", was.Name, was.Slot, is.Slot))
		case was.UID != "" && is.UID != was.UID:
			moves = append(moves, fmt.Sprintf("the uid of %s changes", was.Name))
		case !sameCluster(was, is):
			moves = append(
				moves,
				fmt.Sprintf("%s may be another cluster: its address has another source, and no uid shows that it is the same", was.Name),
			)
		}
	}
	if prev.AllNamespaces == config.AllNamespacesUnion && next.AllNamespaces == config.AllNamespacesHome && len(prev.Rules) > 0 {
		moves = append(moves, "allNamespaces changes from union to home")
	}
	moves = append(moves, movedRules(prev, next)...)
	if n := len(moves) - maxMoves; n > 0 {
		moves = append(moves[:maxMoves], fmt.Sprintf("and %d more", n))
	}
	return moves
}

// isHomeOnly reports whether the pod's own cluster is the only cluster.
func isHomeOnly(d *config.Config) bool { return len(d.Clusters) == 1 && d.Clusters[0].InCluster }

// sameCluster reports whether two entries with one name are certainly the same cluster.
func sameCluster(was, is *config.Cluster) bool {
	if was.UID != "" && was.UID == is.UID {
		return true
	}
	if was.InCluster != is.InCluster || was.Secret != is.Secret || (len(was.Servers) > 0) != (len(is.Servers) > 0) {
		return false
	}
	return len(was.Servers) == 0 || slices.ContainsFunc(was.Servers, func(s string) bool { return slices.Contains(is.Servers, s) })
}

// movedRules compares the rules of two configurations in order.
func movedRules(prev, next *config.Config) (moves []string) {
	rest, restNow := unmatchedClusters(prev), unmatchedClusters(next)
	if lacks(rest, restNow) {
		moves = append(moves, fmt.Sprintf("objects that no rule matches move from %s to %s", joinNames(rest), joinNames(restNow)))
	}
	was, is := collectionRules(prev), collectionRules(next)
	for len(was) > 0 && len(is) > 0 && len(ruleChanges(was[0], is[0])) == 0 {
		was, is = was[1:], is[1:]
	}
	last := true // true while the remaining rules are the last ones, with only the unmatched setting after them
	for len(was) > 0 && len(is) > 0 && len(ruleChanges(was[len(was)-1], is[len(is)-1])) == 0 {
		was, is, last = was[:len(was)-1], is[:len(is)-1], false
	}
	switch {
	case len(is) == 0:
		for _, r := range was {
			if has := targetClusters(&r.Target); len(has) > 0 && (!last || lacks(has, restNow)) {
				moves = append(moves, fmt.Sprintf("rule %s is removed: its objects were in %s", r.Name, joinNames(has)))
			}
		}
	case len(was) == 0:
		for _, r := range is {
			if has := targetClusters(&r.Target); !last || lacks(rest, has) {
				moves = append(moves, fmt.Sprintf("rule %s is new: its objects are in %s", r.Name, joinNames(has)))
			}
		}
	default:
		moves = append(moves, changedRules(was, is)...)
	}
	return moves
}

// changedRules compares the rules that are left after the common start and end. It pairs them by name.
func changedRules(was, is []*config.Rule) (moves []string) {
	find := func(rules []*config.Rule, name string) int {
		return slices.IndexFunc(rules, func(r *config.Rule) bool { return r.Name == name })
	}
	for _, r := range was {
		if i := find(is, r.Name); i >= 0 {
			moves = append(moves, ruleChanges(r, is[i])...)
		} else {
			moves = append(moves, fmt.Sprintf("rule %s is removed: its objects were in %s", r.Name, joinNames(targetClusters(&r.Target))))
		}
	}
	for _, r := range is {
		if find(was, r.Name) < 0 {
			moves = append(moves, fmt.Sprintf("rule %s is new: its objects are in %s", r.Name, joinNames(targetClusters(&r.Target))))
		}
	}
	if len(moves) == 0 {
		moves = append(moves, fmt.Sprintf("the order of the rules changes from %s on", was[0].Name))
	}
	return moves
}

// ruleChanges lists how replacing rule was by rule is moves objects.
func ruleChanges(was, is *config.Rule) []string {
	if !sameCollections(&was.Match, &is.Match) {
		return []string{fmt.Sprintf("rule %s does not match the same objects as before", was.Name)}
	}
	if had, has := targetClusters(&was.Target), targetClusters(&is.Target); lacks(had, has) {
		return []string{fmt.Sprintf("the objects of rule %s move from %s to %s", was.Name, joinNames(had), joinNames(has))}
	}
	old, now := was.Target.Spread, is.Target.Spread
	if old == nil || now == nil {
		return nil
	}
	// If several members have the object, another member may now serve it.
	if old.OnConflict != now.OnConflict {
		return []string{fmt.Sprintf("onConflict of rule %s changes from %s to %s", was.Name, old.OnConflict, now.OnConflict)}
	}
	remaining := slices.DeleteFunc(slices.Clone(now.Members), func(m string) bool { return !slices.Contains(old.Members, m) })
	if !slices.Equal(remaining, old.Members) {
		return []string{fmt.Sprintf("the order of the members of rule %s changes", was.Name)}
	}
	return nil
}

// collectionRules returns the rules that route lists or watches.
func collectionRules(d *config.Config) (rules []*config.Rule) {
	for i := range d.Rules {
		if list, watch := readsCollections(&d.Rules[i].Match); list || watch {
			rules = append(rules, &d.Rules[i])
		}
	}
	return rules
}

func readsCollections(m *config.Match) (list, watch bool) {
	return m.Verbs == nil || slices.Contains(m.Verbs, "list"), m.Verbs == nil || slices.Contains(m.Verbs, "watch")
}

// sameCollections reports whether two matches select the same lists and watches.
func sameCollections(a, b *config.Match) bool {
	list, watch := readsCollections(a)
	listToo, watchToo := readsCollections(b)
	return list == listToo && watch == watchToo && sameSet(a.APIGroups, b.APIGroups) && sameSet(a.Resources, b.Resources) &&
		sameSet(a.Namespaces, b.Namespaces) && sameSet(a.Names, b.Names) && sameSet(a.UserAgents, b.UserAgents)
}

// sameSet compares two lists of a match as sets; nil means all.
func sameSet[T comparable](a, b []T) bool {
	in := func(all []T) func(T) bool { return func(v T) bool { return !slices.Contains(all, v) } }
	return (a == nil) == (b == nil) && !slices.ContainsFunc(a, in(b)) && !slices.ContainsFunc(b, in(a))
}

// targetClusters returns the clusters that hold the objects of a rule.
func targetClusters(t *config.Target) []string {
	switch {
	case t.Spread != nil:
		return t.Spread.Members
	case t.Cluster != "":
		return []string{t.Cluster}
	}
	return nil
}

func unmatchedClusters(d *config.Config) []string {
	if d.Unmatched == config.UnmatchedRefuse {
		return nil
	}
	return []string{d.Home}
}

// lacks reports whether a cluster of had is missing from has.
func lacks(had, has []string) bool {
	return slices.ContainsFunc(had, func(c string) bool { return !slices.Contains(has, c) })
}

func joinNames(names []string) string {
	if len(names) == 0 {
		return "no cluster"
	}
	return strings.Join(names, ", ")
}

// movedSince reports whether a single cluster serves the collection now and another one may have served it
// under an earlier configuration of this pod. Clients may then hold resource versions of the other cluster,
// which mean something else here.
func (t *Table) movedSince(earlier []*Table, r *apiproxy.Request, input RouteInput) bool {
	d := t.Route(r, input)
	if d.Kind != DecisionHome && d.Kind != DecisionSingle {
		return false
	}
	is := t.config.Cluster(d.Cluster)
	return slices.ContainsFunc(earlier, func(p *Table) bool {
		d := p.Route(r, input)
		if d.Kind == DecisionDeny {
			return false // a denied collection has issued no resource versions
		}
		was := p.config.Cluster(d.Cluster)
		if was != nil && was.InCluster && is.InCluster {
			return false // both are the pod's own cluster, even if the name differs
		}
		return was == nil || was.Name != is.Name || was.UID != "" && is.UID != "" && was.UID != is.UID || !sameCluster(was, is)
	})
}
