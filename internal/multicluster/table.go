package multicluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// Table is a configuration compiled for routing. Its fields do not change after NewTable.
type Table struct {
	config *config.Config
	scope  func(group, resource string) config.Scope
	rules  []compiledRule
	named  map[string]*ruleIndex // rules that list the resource, by resource
	wild   map[string]*ruleIndex // rules that list no resources, by group; "*" is all groups
	bodyNeeds
}

// bodyNeeds records which creates need the body for routing.
type bodyNeeds struct {
	namespaces bool // a rule may match a Namespace by its name
	reviews    bool // there is at least one rule
}

// compiledRule is a rule of the configuration and its decision.
type compiledRule struct {
	*config.Rule
	decision Decision
}

// ruleIndex finds rules by namespace, in rule order. A rule may be in several of its lists.
type ruleIndex struct {
	all    []int32 // the first of each set of rules that differ only in their namespaces
	exact  map[string][]int32
	prefix map[string][]int32 // patterns by prefix, if the prefix is not shorter than the suffix
	suffix map[string][]int32 // other patterns by suffix
	rest   []int32            // rules for all namespaces
	// The lengths of the keys of prefix and suffix.
	prefixes, suffixes []int

	seen map[string]bool // used only while NewTable runs
}

func (x *ruleIndex) add(i int32, r *compiledRule) {
	m := r.Match
	ranged := m.Namespaces != nil
	m.Namespaces = nil
	target := r.Name
	if r.decision.Kind == DecisionSingle {
		target = "\x00" + r.decision.Cluster
	}
	if sort := fmt.Sprint(m, ranged, target); !x.seen[sort] {
		x.seen[sort] = true
		x.all = append(x.all, i)
	}
	if !ranged {
		x.rest = append(x.rest, i)
	}
	for _, p := range r.Match.Namespaces {
		prefix, suffix, glob := p.Parts()
		switch {
		case !glob:
			x.exact[prefix] = append(x.exact[prefix], i)
		case prefix == "" && suffix == "":
			x.rest = append(x.rest, i)
		case len(prefix) >= len(suffix):
			x.prefix[prefix] = append(x.prefix[prefix], i)
			x.prefixes = withLength(x.prefixes, len(prefix))
		default:
			x.suffix[suffix] = append(x.suffix[suffix], i)
			x.suffixes = withLength(x.suffixes, len(suffix))
		}
	}
}

func withLength(lengths []int, n int) []int {
	if slices.Contains(lengths, n) {
		return lengths
	}
	return append(lengths, n)
}

// lists appends the lists of the rules that may match a namespace; "" means no namespace.
func (x *ruleIndex) lists(to [][]int32, namespace string) [][]int32 {
	add := func(l []int32) {
		if len(l) > 0 {
			to = append(to, l)
		}
	}
	add(x.rest)
	if namespace == "" {
		return to
	}
	add(x.exact[namespace])
	for _, n := range x.prefixes {
		if n <= len(namespace) {
			add(x.prefix[namespace[:n]])
		}
	}
	for _, n := range x.suffixes {
		if n <= len(namespace) {
			add(x.suffix[namespace[len(namespace)-n:]])
		}
	}
	return to
}

// indexFor returns the index of a key and creates it if needed.
func indexFor(indexes map[string]*ruleIndex, key string) *ruleIndex {
	x := indexes[key]
	if x == nil {
		x = &ruleIndex{exact: map[string][]int32{}, prefix: map[string][]int32{}, suffix: map[string][]int32{}, seen: map[string]bool{}}
		indexes[key] = x
	}
	return x
}

// NewTable compiles a configuration. scope returns the scope of resources that are not built into Kubernetes.
// It may be nil, and its results may change over time.
func NewTable(d *config.Config, scope func(group, resource string) config.Scope) *Table {
	t := &Table{
		config: d,
		scope:  scope,
		rules:  make([]compiledRule, len(d.Rules)),
		named:  map[string]*ruleIndex{},
		wild:   map[string]*ruleIndex{},
	}
	t.reviews = len(d.Rules) > 0
	for i := range d.Rules {
		r := &d.Rules[i]
		t.rules[i] = compiledRule{r, ruleDecision(r)}
		t.namespaces = t.namespaces || r.Match.Resources == nil && r.Match.Namespaces != nil ||
			slices.ContainsFunc(r.Match.Resources, func(res config.Resource) bool { return res.Name == "namespaces" })
		in, keys := t.wild, slices.Clone(r.Match.APIGroups)
		switch {
		case r.Match.Resources != nil:
			in, keys = t.named, nil
			for _, res := range r.Match.Resources {
				keys = append(keys, res.Name)
			}
		case keys == nil:
			keys = []string{"*"}
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			indexFor(in, key).add(int32(i), &t.rules[i])
		}
	}
	for _, indexes := range []map[string]*ruleIndex{t.named, t.wild} {
		for _, x := range indexes {
			x.seen = nil
		}
	}
	return t
}

// candidateIndexes returns the indexes of the rules that may match a resource. Entries may be nil.
func (t *Table) candidateIndexes(q *routeQuery) [3]*ruleIndex {
	return [3]*ruleIndex{t.wild["*"], t.wild[q.group], t.named[q.resource]}
}

// Config returns the configuration of the table. Callers must not change it.
func (t *Table) Config() *config.Config { return t.config }

// ruleDecision returns the decision of a rule.
func ruleDecision(r *config.Rule) Decision {
	d := Decision{Rule: r.Name}
	switch {
	case r.Target.Deny != "":
		d.Kind = DecisionDeny
		d.Refusal = apiproxy.NewRefusal(http.StatusForbidden, "rule %s refuses the request: %s", r.Name, r.Target.Deny)
		d.Why = fmt.Sprintf("rule %s in line %d refuses the request", r.Name, r.Line)
	case r.Target.Spread != nil:
		d.Kind, d.Spread, d.OwnerReferences, d.Overlap = DecisionSpread, r.Target.Spread, r.Target.Spread.OwnerReferences, true
		for _, m := range r.Target.Spread.Members {
			d.Members = append(d.Members, Member{Cluster: m})
		}
		d.Why = fmt.Sprintf("rule %s in line %d spreads it over %s", r.Name, r.Line, strings.Join(r.Target.Spread.Members, ", "))
	default:
		d.Kind, d.Cluster, d.OwnerReferences = DecisionSingle, r.Target.Cluster, r.Target.OwnerReferences
		d.Why = fmt.Sprintf("rule %s in line %d sends it to %s", r.Name, r.Line, r.Target.Cluster)
	}
	return d
}

// routeQuery is the input of rule matching.
type routeQuery struct {
	verb, group, resource, subresource string
	namespace, name                    string
	generateName                       string // of a new object without a name
	agent                              string
	namespaced                         bool // the resource is namespaced
	mayCreate                          bool // a patch or update that creates a missing object
	unnamed                            bool // a new object whose name has not been read yet
	anyNamespace                       bool // ignore the namespaces of the match
}

// matches reports whether a rule matches q. peek is true if the result depends on the name of the new object,
// which has not been read yet.
func (q *routeQuery) matches(m *config.Match, verb string) (yes, peek bool) {
	switch {
	case !q.anyNamespace && m.Namespaces != nil && (q.namespace == "" || !config.MatchAny(m.Namespaces, q.namespace)),
		m.APIGroups != nil && !slices.Contains(m.APIGroups, q.group),
		m.Verbs != nil && !slices.Contains(m.Verbs, verb),
		!q.matchesResource(m),
		m.UserAgents != nil && !config.MatchAny(m.UserAgents, q.agent):
		return false, false
	case m.Names == nil:
		return true, false
	case q.unnamed:
		return false, true
	case q.name != "":
		return config.MatchAny(m.Names, q.name), false
	case q.generateName != "":
		return slices.ContainsFunc(m.Names, func(p config.Pattern) bool { return p.MatchPrefix(q.generateName) }), false
	}
	return false, false
}

// matchesResource reports whether a match selects the resource of q. A match without resources selects all
// namespaced resources in its namespaces, and the Namespace objects themselves.
func (q *routeQuery) matchesResource(m *config.Match) bool {
	if m.Resources == nil {
		return q.namespaced || m.Namespaces != nil && q.isNamespace() && q.namespace != ""
	}
	for i := range m.Resources {
		if r := &m.Resources[i]; r.Name == q.resource && (r.Subresource == "" || r.Subresource == q.subresource) {
			return true
		}
	}
	return false
}

func (q *routeQuery) isNamespace() bool { return q.resource == "namespaces" && q.group == "" }

// firstMatch returns the index of the first rule that matches, or -1. peek reports that this rule matches only
// depending on the object's name. forbids is the refusal of an earlier rule that denies the creation that q
// may cause.
func (t *Table) firstMatch(q *routeQuery) (at int, peek bool, forbids *apiproxy.Refusal) {
	var few [24][]int32
	lists := few[:0]
	for _, x := range t.candidateIndexes(q) {
		if x != nil {
			lists = x.lists(lists, q.namespace)
		}
	}
	for {
		i := popSmallest(lists)
		if i < 0 {
			return -1, false, forbids
		}
		r := &t.rules[i]
		yes, peek := q.matches(&r.Match, q.verb)
		if yes || peek {
			return i, peek, forbids
		}
		if q.mayCreate && forbids == nil && r.decision.Kind == DecisionDeny {
			if yes, _ := q.matches(&r.Match, "create"); yes {
				forbids = r.decision.Refusal
			}
		}
	}
}

// popSmallest removes and returns the smallest head of several sorted lists, or -1 if all are empty.
func popSmallest(lists [][]int32) int {
	least, from := int32(-1), -1
	for k := range lists {
		if len(lists[k]) > 0 && (from < 0 || lists[k][0] < least) {
			least, from = lists[k][0], k
		}
	}
	if from < 0 {
		return -1
	}
	lists[from] = lists[from][1:]
	return int(least)
}

// scopeOf returns the scope of a resource, as far as it is known.
func (t *Table) scopeOf(group, resource string) config.Scope {
	if s := config.BuiltinScope(group, resource); s != config.ScopeUnknown || t.scope == nil {
		return s
	}
	return t.scope(group, resource)
}
