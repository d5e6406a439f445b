package apiproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

// CheckEpoch refuses a document that may not follow another one: it goes back, or
// it takes objects out of collections, or moves them, and does not raise the
// epoch by which clients learn of that.
func CheckEpoch(prev, next *document.Document) error {
	if next.Epoch < prev.Epoch {
		return fmt.Errorf("the epoch goes back from %d to %d", prev.Epoch, next.Epoch)
	}
	if next.Epoch > prev.Epoch {
		return nil
	}
	if moves := Moves(prev, next); len(moves) > 0 {
		return fmt.Errorf("%s; raise epoch to %d", strings.Join(moves, "; "), prev.Epoch+1)
	}
	return nil
}

// maxMoves bounds how many differences are listed.
const maxMoves = 20

// Moves lists what in a change of document may take objects out of a collection, or
// move them to another cluster; nothing if none. It compares what routing means field
// by field and does not compute which objects a rule takes from others. That clusters
// or members are added, and that weights, places, limits or credentials change, moves
// nothing.
func Moves(prev, next *document.Document) (moves []string) {
	if alone(prev) && alone(next) {
		return nil // whatever it is called, it is the cluster of this pod
	}
	for i := range prev.Clusters {
		was := &prev.Clusters[i]
		for j := range next.Clusters {
			if is := &next.Clusters[j]; is.Slot == was.Slot && is.Name != was.Name {
				moves = append(moves, fmt.Sprintf("slot %d was that of %s and is that of %s", was.Slot, was.Name, is.Name))
			}
		}
		is := next.Cluster(was.Name)
		switch {
		case is == nil: // what that moves shows below
		case is.Slot != was.Slot:
			moves = append(moves, fmt.Sprintf("the slot of %s was %d and is %d", was.Name, was.Slot, is.Slot))
		case was.UID != "" && is.UID != was.UID:
			moves = append(moves, fmt.Sprintf("the uid of %s is not what it was", was.Name))
		case !sameCluster(was, is):
			moves = append(moves, fmt.Sprintf("%s may be another cluster: its address comes from elsewhere, and no uid says that it is the same", was.Name))
		}
	}
	if prev.AllNamespaces == document.Union && next.AllNamespaces == document.Home && len(prev.Rules) > 0 {
		moves = append(moves, "allNamespaces was union and is home")
	}
	moves = append(moves, movedRules(prev, next)...)
	if n := len(moves) - maxMoves; n > 0 {
		moves = append(moves[:maxMoves], fmt.Sprintf("and %d more", n))
	}
	return moves
}

// alone says whether the only cluster is the one that the pod runs in.
func alone(d *document.Document) bool { return len(d.Clusters) == 1 && d.Clusters[0].InCluster }

// sameCluster says whether two entries of one name are certainly one cluster.
func sameCluster(was, is *document.Cluster) bool {
	if was.UID != "" && was.UID == is.UID {
		return true
	}
	if was.InCluster != is.InCluster || was.Secret != is.Secret || (len(was.Servers) > 0) != (len(is.Servers) > 0) {
		return false
	}
	return len(was.Servers) == 0 || slices.ContainsFunc(was.Servers, func(s string) bool { return slices.Contains(is.Servers, s) })
}

// movedRules compares the rules of two documents, in their order.
func movedRules(prev, next *document.Document) (moves []string) {
	rest, restNow := unmatchedHolders(prev), unmatchedHolders(next)
	if lacks(rest, restNow) {
		moves = append(moves, fmt.Sprintf("objects that no rule matches were in %s and are in %s", clusters(rest), clusters(restNow)))
	}
	was, is := collectionRules(prev), collectionRules(next)
	for len(was) > 0 && len(is) > 0 && len(changes(was[0], is[0])) == 0 {
		was, is = was[1:], is[1:]
	}
	last := true // what is left are the last rules: behind them only the unmatched is
	for len(was) > 0 && len(is) > 0 && len(changes(was[len(was)-1], is[len(is)-1])) == 0 {
		was, is, last = was[:len(was)-1], is[:len(is)-1], false
	}
	switch {
	case len(is) == 0:
		for _, r := range was {
			if has := holders(&r.Target); len(has) > 0 && (!last || lacks(has, restNow)) {
				moves = append(moves, fmt.Sprintf("rule %s is gone: its objects were in %s", r.Name, clusters(has)))
			}
		}
	case len(was) == 0:
		for _, r := range is {
			if has := holders(&r.Target); !last || lacks(rest, has) {
				moves = append(moves, fmt.Sprintf("rule %s is new: its objects are in %s", r.Name, clusters(has)))
			}
		}
	default:
		moves = append(moves, namedChanges(was, is)...)
	}
	return moves
}

// namedChanges lists how rules that do not follow each other in the same way differ,
// by their names.
func namedChanges(was, is []*document.Rule) (moves []string) {
	find := func(rules []*document.Rule, name string) int {
		return slices.IndexFunc(rules, func(r *document.Rule) bool { return r.Name == name })
	}
	for _, r := range was {
		if i := find(is, r.Name); i >= 0 {
			moves = append(moves, changes(r, is[i])...)
		} else {
			moves = append(moves, fmt.Sprintf("rule %s is gone: its objects were in %s", r.Name, clusters(holders(&r.Target))))
		}
	}
	for _, r := range is {
		if find(was, r.Name) < 0 {
			moves = append(moves, fmt.Sprintf("rule %s is new: its objects are in %s", r.Name, clusters(holders(&r.Target))))
		}
	}
	if len(moves) == 0 {
		moves = append(moves, fmt.Sprintf("the rules from %s on are in another order", was[0].Name))
	}
	return moves
}

// changes lists how a rule that takes the place of another one moves objects.
func changes(was, is *document.Rule) []string {
	if !sameCollections(&was.Match, &is.Match) {
		return []string{fmt.Sprintf("rule %s does not match the objects that it did", was.Name)}
	}
	if had, has := holders(&was.Target), holders(&is.Target); lacks(had, has) {
		return []string{fmt.Sprintf("the objects of rule %s were in %s and are in %s", was.Name, clusters(had), clusters(has))}
	}
	old, now := was.Target.Spread, is.Target.Spread
	if old == nil || now == nil {
		return nil
	}
	// Another member than before may have an object that several have.
	if old.OnConflict != now.OnConflict {
		return []string{fmt.Sprintf("onConflict of rule %s was %s and is %s", was.Name, old.OnConflict, now.OnConflict)}
	}
	kept := slices.DeleteFunc(slices.Clone(now.Members), func(m string) bool { return !slices.Contains(old.Members, m) })
	if !slices.Equal(kept, old.Members) {
		return []string{fmt.Sprintf("the members of rule %s are in another order", was.Name)}
	}
	return nil
}

// collectionRules returns the rules that say where lists and watches go.
func collectionRules(d *document.Document) (rules []*document.Rule) {
	for i := range d.Rules {
		if list, watch := readsCollections(&d.Rules[i].Match); list || watch {
			rules = append(rules, &d.Rules[i])
		}
	}
	return rules
}

func readsCollections(m *document.Match) (list, watch bool) {
	return m.Verbs == nil || slices.Contains(m.Verbs, "list"), m.Verbs == nil || slices.Contains(m.Verbs, "watch")
}

// sameCollections says whether two matches are of the same lists and watches.
func sameCollections(a, b *document.Match) bool {
	list, watch := readsCollections(a)
	listToo, watchToo := readsCollections(b)
	return list == listToo && watch == watchToo && sameSet(a.APIGroups, b.APIGroups) && sameSet(a.Resources, b.Resources) &&
		sameSet(a.Namespaces, b.Namespaces) && sameSet(a.Names, b.Names) && sameSet(a.UserAgents, b.UserAgents)
}

// sameSet compares two lists of a match, whose order means nothing; nil is all.
func sameSet[T comparable](a, b []T) bool {
	in := func(all []T) func(T) bool { return func(v T) bool { return !slices.Contains(all, v) } }
	return (a == nil) == (b == nil) && !slices.ContainsFunc(a, in(b)) && !slices.ContainsFunc(b, in(a))
}

// holders returns the clusters that have the objects of a rule.
func holders(t *document.Target) []string {
	switch {
	case t.Spread != nil:
		return t.Spread.Members
	case t.Cluster != "":
		return []string{t.Cluster}
	}
	return nil
}

func unmatchedHolders(d *document.Document) []string {
	if d.Unmatched == document.UnmatchedRefuse {
		return nil
	}
	return []string{d.Home}
}

// lacks says whether one of the clusters that had objects has them no more.
func lacks(had, has []string) bool {
	return slices.ContainsFunc(had, func(c string) bool { return !slices.Contains(has, c) })
}

func clusters(names []string) string {
	if len(names) == 0 {
		return "no cluster"
	}
	return strings.Join(names, ", ")
}

// Retargeted says whether a collection that one cluster serves now was served by
// another one under a document that this pod ran under before: its clients may
// hold positions of that one, which mean something else here.
func (t *Table) Retargeted(past []*Table, r *Request, beside Beside) bool {
	d := t.Route(r, beside)
	if d.Kind != Home && d.Kind != Single {
		return false
	}
	is := t.doc.Cluster(d.Cluster)
	return slices.ContainsFunc(past, func(p *Table) bool {
		d := p.Route(r, beside)
		if d.Kind == Deny {
			return false // it gave out no positions
		}
		was := p.doc.Cluster(d.Cluster)
		if was != nil && was.InCluster && is.InCluster {
			return false // whatever it is called
		}
		return was == nil || was.Name != is.Name || was.UID != "" && is.UID != "" && was.UID != is.UID || !sameCluster(was, is)
	})
}
