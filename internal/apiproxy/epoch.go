package apiproxy

import (
	"encoding/json"
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

// maxMoves bounds what is told, maxPoints what is looked at: a document of so many
// different rules is compared as a text.
const (
	maxMoves  = 20
	maxPoints = 100_000
)

// Moves says what objects a change of document takes out of a collection, or
// moves to another cluster; nothing if none. That clusters or members are added,
// and that weights, places, limits or credentials change, moves nothing.
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
	for i := range prev.Rules {
		moves = append(moves, rankedAnew(&prev.Rules[i], next)...)
	}
	return append(moves, movedObjects(prev, next)...)
}

// alone says whether the only cluster is the one that the pod runs in.
func alone(d *document.Document) bool { return len(d.Clusters) == 1 && d.Clusters[0].InCluster }

// rankedAnew says whether another member than before has an object that several
// have.
func rankedAnew(was *document.Rule, next *document.Document) []string {
	i := slices.IndexFunc(next.Rules, func(r document.Rule) bool { return r.Name == was.Name })
	if i < 0 || was.Target.Spread == nil || next.Rules[i].Target.Spread == nil {
		return nil
	}
	old, is := was.Target.Spread, next.Rules[i].Target.Spread
	if old.OnConflict != is.OnConflict {
		return []string{fmt.Sprintf("onConflict of rule %s was %s and is %s", was.Name, old.OnConflict, is.OnConflict)}
	}
	last := -1
	for _, m := range old.Members {
		at := slices.Index(is.Members, m)
		if at >= 0 && at < last {
			return []string{fmt.Sprintf("the members of rule %s are in another order", was.Name)}
		}
		last = max(last, at)
	}
	return nil
}

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

// free stands for a name that no document has; the API server takes no such name.
const free = "-any-"

// movedObjects looks at a point of each region that the rules of both documents
// make: what is told apart by resource, namespace and user agent.
func movedObjects(prev, next *document.Document) (moves []string) {
	if routes(prev) == routes(next) {
		return nil
	}
	was, is := NewTable(prev, nil), NewTable(next, nil)
	resources, namespaces, agents := points(prev, next)
	if len(resources)*(len(namespaces)+1)*len(agents) > maxPoints {
		return []string{"the rules are not what they were, and too many to say what that moves"}
	}
	count := 0
	for _, r := range resources {
		scope := document.BuiltinScope(r.group, r.resource)
		for _, agent := range agents {
			for _, ns := range namespaces {
				q := question{verb: "list", group: r.group, resource: r.resource, namespace: ns, agent: agent, namespaced: ns != "" && scope != document.ClusterWide}
				if ns == "" && scope == document.Namespaced || ns != "" && scope == document.ClusterWide && !q.isNamespace() {
					continue // there are no such objects
				}
				had, has := was.holders(&q), is.holders(&q)
				lost := slices.DeleteFunc(slices.Clone(had), func(c string) bool { return slices.Contains(has, c) })
				if len(lost) == 0 {
					continue
				}
				if count++; count > maxMoves {
					continue
				}
				now := "no cluster"
				if len(has) > 0 {
					now = strings.Join(has, ", ")
				}
				moves = append(moves, fmt.Sprintf("%s were in %s and are in %s", describe(&q), strings.Join(had, ", "), now))
			}
		}
	}
	if count > maxMoves {
		moves = append(moves, fmt.Sprintf("and %d more", count-maxMoves))
	}
	return moves
}

// holders returns the clusters that have the objects of a namespace.
func (t *Table) holders(q *question) []string {
	i, _, _ := t.first(q)
	if i < 0 {
		d := t.unmatched()
		return d.Clusters()
	}
	return t.rules[i].decision.Clusters()
}

func describe(q *question) string {
	s := q.resource
	if s == free {
		s = "all other resources"
	}
	if q.group == free {
		s += " of all other groups"
	} else if q.group != "" {
		s += "." + q.group
	}
	switch {
	case q.namespace == free:
		s += " in all other namespaces"
	case q.namespace != "":
		s += " in namespaces such as " + strings.ReplaceAll(q.namespace, free, "*")
	}
	if q.agent != "" && q.agent != free {
		s += ", for " + strings.ReplaceAll(q.agent, free, "*")
	}
	return s
}

// A point is one resource.
type point struct{ group, resource string }

// points returns a resource, a namespace and a user agent of each kind that rules
// tell apart. The namespace "" is of what is in none.
func points(docs ...*document.Document) (resources []point, namespaces, agents []string) {
	groups := map[string]bool{"": true, free: true}
	names := map[string]bool{free: true, "namespaces": true}
	in, by := map[document.Pattern]bool{}, map[document.Pattern]bool{}
	for _, d := range docs {
		for i := range d.Rules {
			m := &d.Rules[i].Match
			for _, g := range m.APIGroups {
				groups[g] = true
			}
			for _, r := range m.Resources {
				names[r.Name] = true
			}
			for _, p := range m.Namespaces {
				in[p] = true
			}
			for _, p := range m.UserAgents {
				by[p] = true
			}
		}
	}
	for g := range groups {
		for n := range names {
			resources = append(resources, point{g, n})
		}
	}
	slices.SortFunc(resources, func(a, b point) int { return strings.Compare(a.group+" "+a.resource, b.group+" "+b.resource) })
	return resources, append(samples(in), ""), samples(by)
}

// samples returns a text for each pattern, one for what each two have in common,
// and one that no pattern knows.
func samples(patterns map[document.Pattern]bool) []string {
	all := map[string]bool{free: true}
	for p := range patterns {
		before, after, glob := p.Ends()
		if !glob {
			all[before] = true
			continue
		}
		all[before+free+after] = true
		for q := range patterns {
			if s, ok := p.Common(q, free); ok {
				all[s] = true
			}
		}
	}
	out := make([]string, 0, len(all))
	for s := range all {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// routes returns, as a text, what of a document says where objects are.
func routes(d *document.Document) string {
	type route struct {
		Match   document.Match
		Cluster string
		Members []string
		Denied  bool
	}
	all := []any{d.Home, d.Unmatched}
	for i := range d.Rules {
		r := &d.Rules[i]
		to := route{Match: r.Match, Cluster: r.Target.Cluster, Denied: r.Target.Deny != ""}
		if r.Target.Spread != nil {
			to.Members = r.Target.Spread.Members
		}
		all = append(all, to)
	}
	b, _ := json.Marshal(all) // of texts and lists
	return string(b)
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
