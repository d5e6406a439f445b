package document

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Follows says whether next may follow old while clients stand somewhere in what
// old showed them. Whatever takes objects out of a merged collection, or moves a
// collection to another cluster, needs a larger epoch: then every watch ends with
// 410, and clients read anew. To add a cluster or a member, and to change places,
// strategies, weights, limits and credentials, needs none.
func Follows(old, next *Document) error {
	switch {
	case next.Epoch > old.Epoch:
		return nil
	case next.Epoch < old.Epoch:
		return fmt.Errorf("its epoch is %d, which is before %d: clients hold positions of the later one", next.Epoch, old.Epoch)
	case len(old.Clusters) == 1 && len(next.Clusters) == 1 && old.Clusters[0].InCluster && next.Clusters[0].InCluster:
		return nil // nothing was or is merged
	}
	if moves := moves(old, next); len(moves) > 0 {
		return fmt.Errorf("%s; raise epoch to %d", strings.Join(moves, "; "), old.Epoch+1)
	}
	return nil
}

// moves are the changes that need a larger epoch, each in half a sentence.
func moves(old, next *Document) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if old.Home != next.Home {
		add("home was %s and is %s", old.Home, next.Home)
	}
	if old.Unmatched != next.Unmatched || old.AllNamespaces != next.AllNamespaces {
		add("unmatched or allNamespaces was changed")
	}
	for i := range old.Clusters {
		was := &old.Clusters[i]
		is := next.Cluster(was.Name)
		switch {
		case is == nil:
			add("cluster %s was removed", was.Name)
		case is.Slot != was.Slot:
			add("cluster %s moved from slot %d to %d", was.Name, was.Slot, is.Slot)
		case was.UID != "" && is.UID != was.UID:
			add("cluster %s has another uid", was.Name)
		case was.UID != "": // the same cluster, wherever it is
		case is.InCluster != was.InCluster, is.Secret != was.Secret, was.Servers != nil && !slices.ContainsFunc(was.Servers, func(s string) bool { return slices.Contains(is.Servers, s) }):
			add("cluster %s may be another one: it is found in another way, and has no uid", was.Name)
		}
	}
	if len(old.Rules) != len(next.Rules) {
		add("there were %d rules and are %d", len(old.Rules), len(next.Rules))
		return all
	}
	for i := range old.Rules {
		was, is := &old.Rules[i], &next.Rules[i]
		switch {
		case !reflect.DeepEqual(was.Match, is.Match):
			add("rule %s matches something else", is.Name)
		case was.Target.Cluster != is.Target.Cluster, (was.Target.Deny == "") != (is.Target.Deny == ""), (was.Target.Spread == nil) != (is.Target.Spread == nil):
			add("rule %s has another target", is.Name)
		case was.Target.Spread != nil && !keepsOrder(was.Target.Spread.Members, is.Target.Spread.Members):
			add("rule %s has lost a member, or another order of members", is.Name)
		case was.Target.Spread != nil && was.Target.Spread.OnConflict != is.Target.Spread.OnConflict:
			add("rule %s treats conflicts in another way", is.Name)
		}
	}
	return all
}

// keepsOrder says whether all of old are in next, in the same order.
func keepsOrder(old, next []string) bool {
	for _, m := range old {
		i := slices.Index(next, m)
		if i < 0 {
			return false
		}
		next = next[i+1:]
	}
	return true
}
