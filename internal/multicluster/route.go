package multicluster

import (
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// DecisionKind is the kind of a decision.
type DecisionKind string

// The kinds of decisions.
const (
	DecisionHome   DecisionKind = "home"   // Cluster serves it, because no rule matches
	DecisionSingle DecisionKind = "single" // Cluster serves it
	DecisionSpread DecisionKind = "spread" // merged from Members; one object is in its owner's cluster, see [placeObject] and [OwnerCache]
	DecisionUnion  DecisionKind = "union"  // the response merges all Members, each with its own namespaces
	DecisionDeny   DecisionKind = "deny"   // Refusal is the response
	DecisionBody   DecisionKind = "body"   // the routing depends on the body: the caller must [parseObject] and call Route again
)

// Decision is the result of routing: which clusters serve a request, and why.
type Decision struct {
	Kind    DecisionKind
	Cluster string            // of Home and Single
	Members []Member          // of Spread and Union, in order of preference
	Rule    string            // the name of the rule; "" if none
	Why     string            // one sentence
	Refusal *apiproxy.Refusal // of Deny
	// Spread is the spread of the rule, if Kind is Spread.
	Spread *config.Spread
	// OwnerReferences is how to treat owner references in written objects; "" leaves them to the cluster. For
	// a collection in all namespaces it is HideOwners if it is HideOwners for any namespace.
	OwnerReferences config.OwnerReferences
	// Overlap reports that two members may have an object with the same name.
	Overlap bool
	// Review marks an access review. The adapter sends it to all members and allows only what all of them
	// allow. A Refusal then becomes a review response "not allowed".
	Review bool
	// MustExist is set if the request may create the object that it updates and a rule forbids the creation.
	// It is the response if the object does not exist.
	MustExist *apiproxy.Refusal
	// Warnings are for the client.
	Warnings []string
}

// Member is a cluster that holds a part of a merged response.
type Member struct {
	Cluster    string
	Namespaces *NamespaceSet // nil: all objects of the cluster
}

// IsMerged reports whether the response combines the responses of several clusters.
func (d *Decision) IsMerged() bool { return d.Kind == DecisionSpread || d.Kind == DecisionUnion }

// ClusterNames returns the names of the clusters that may receive the request.
func (d *Decision) ClusterNames() []string {
	if d.Cluster != "" {
		return []string{d.Cluster}
	}
	names := make([]string, len(d.Members))
	for i, m := range d.Members {
		names[i] = m.Cluster
	}
	return names
}

// RouteInput holds the routing input that is not in the request line.
type RouteInput struct {
	UserAgent   string
	ContentType string         // of the body
	Object      *requestObject // of the body; nil: not read yet
}

// Route decides which clusters serve a request. It is a pure function.
func (t *Table) Route(r *apiproxy.Request, input RouteInput) Decision {
	if r.NonResource {
		return t.homeDecision("it is not a resource")
	}
	if !t.config.AllowTokenRequest && r.Verb == "create" && r.Group == "" && r.Resource == "serviceaccounts" && r.Subresource == "token" {
		return Decision{Kind: DecisionDeny, Why: "applications get no tokens", Refusal: apiproxy.NewRefusal(
			http.StatusForbidden,
			"a token would give the application a real credential; to allow that, set allowTokenRequest: true in the configuration of the adapter",
		)}
	}
	q := routeQuery{
		verb:        r.Verb,
		group:       r.Group,
		resource:    r.Resource,
		subresource: r.Subresource,
		namespace:   r.Namespace,
		name:        r.Name,
		agent:       input.UserAgent,
	}
	creates := r.Verb == "create" && r.Name == ""
	if creates {
		if d, ok := t.routeByBody(r, &q, input); ok {
			return d
		}
	}
	q.mayCreate = r.Subresource == "" && apiproxy.CreatesWithoutPost(r, input.ContentType)
	switch {
	case q.isNamespace():
		if q.namespace == "" {
			q.namespace = q.name // of a list that selects one namespace by name
		}
	case r.Namespace != "":
		q.namespaced = true
	case r.IsCollection():
		if d, ok := t.acrossNamespaces(r, &q); ok {
			return d
		}
	}
	d := t.decide(&q)
	if d.Kind == DecisionSpread && r.WatchPrefix && r.Name != "" {
		return Decision{
			Kind:    DecisionDeny,
			Rule:    d.Rule,
			Why:     "one object of several clusters cannot be watched with /watch/",
			Refusal: watchWithName(d.Rule, r.Name),
		}
	}
	return d
}

// watchWithName refuses the deprecated watch of one object, which cannot be served as a collection.
func watchWithName(rule, name string) *apiproxy.Refusal {
	return apiproxy.NewBadRequest(
		"objects of rule %s cannot be watched with /watch/ and a name; watch the collection with fieldSelector=metadata.name=%s",
		rule,
		name,
	)
}

// decide routes a request for one namespace or for a cluster-scoped resource.
func (t *Table) decide(q *routeQuery) Decision {
	i, peek, forbids := t.firstMatch(q)
	switch {
	case peek:
		return Decision{Kind: DecisionBody, Why: "a rule depends on the name of the new object"}
	case i < 0:
		d := t.unmatched()
		d.MustExist = forbids
		return d
	}
	d := t.rules[i].decision
	d.MustExist = forbids
	if q.verb == "deletecollection" && d.Kind == DecisionSpread && !d.Spread.DeleteAllCollection {
		return t.noDeleteCollection(d.Rule)
	}
	return d
}

func (t *Table) noDeleteCollection(rule string) Decision {
	return Decision{
		Kind: DecisionDeny,
		Rule: rule,
		Why:  "a collection cannot be deleted in several clusters at once",
		Refusal: apiproxy.NewRefusal(http.StatusMethodNotAllowed,
			"deleting the collection would delete objects in several clusters; a spread allows that with deleteCollection: all"),
	}
}

func (t *Table) homeDecision(why string) Decision {
	return Decision{Kind: DecisionHome, Cluster: t.config.Home, Why: why}
}

// unmatched returns the decision for requests that no rule matches.
func (t *Table) unmatched() Decision {
	if t.config.Unmatched == config.UnmatchedRefuse {
		return Decision{
			Kind: DecisionDeny,
			Why:  "no rule matches, and unmatched is refuse",
			Refusal: apiproxy.NewRefusal(http.StatusForbidden,
				"no rule matches this request, and the configuration of the adapter has unmatched: refuse"),
		}
	}
	return t.homeDecision("no rule matches")
}

// routeByBody prepares the question for a create. It returns true if the decision depends only on the body, or if
// the caller must read the body first.
func (t *Table) routeByBody(r *apiproxy.Request, q *routeQuery, input RouteInput) (Decision, bool) {
	o := input.Object
	if isReview(r) && !t.lists(r) {
		if !t.reviews {
			return t.homeDecision("there are no rules"), true
		}
		if o == nil {
			return Decision{Kind: DecisionBody, Why: "a review goes to the cluster that would serve the request under review"}, true
		}
		return t.routeReview(r, o, input.UserAgent), true
	}
	q.unnamed = o == nil
	if o != nil {
		q.name, q.generateName = o.Name, o.GenerateName
	}
	if q.isNamespace() {
		if o == nil && t.namespaces {
			return Decision{Kind: DecisionBody, Why: "a rule may match the namespace"}, true
		}
		if q.namespace = q.name; q.name == "" && q.generateName != "" {
			q.namespace = q.generateName + "?????" // the future name, as precisely as rules can match it
		}
	}
	return Decision{}, false
}

// lists reports whether a rule lists the resource by name.
func (t *Table) lists(r *apiproxy.Request) bool {
	x := t.named[r.Resource]
	return x != nil && slices.ContainsFunc(x.all, func(i int32) bool {
		groups := t.rules[i].Match.APIGroups
		return groups == nil || slices.Contains(groups, r.Group)
	})
}

// acrossNamespaces routes a collection across all namespaces. It returns false if the resource is
// cluster-scoped, or if no rule splits it by namespace.
func (t *Table) acrossNamespaces(r *apiproxy.Request, q *routeQuery) (Decision, bool) {
	scope := t.scopeOf(r.Group, r.Resource)
	q.namespaced, q.anyNamespace = scope != config.ScopeCluster, true
	defer func() { q.namespaced, q.anyNamespace = scope == config.ScopeNamespaced, false }()
	if scope == config.ScopeCluster {
		return Decision{}, false
	}
	var members []string
	var left []string // the rules that deny a part
	var few [3][]int32
	lists := few[:0]
	for _, x := range t.candidateIndexes(q) {
		if x != nil {
			lists = append(lists, x.all)
		}
	}
	last := t.unmatched()
	parts, overlap := 0, false
	var owners config.OwnerReferences
	for i := popSmallest(lists); i >= 0; i = popSmallest(lists) {
		r := &t.rules[i]
		if yes, _ := q.matches(&r.Match, q.verb); !yes {
			continue
		}
		if scope == config.ScopeUnknown && (r.Match.Resources == nil || r.Match.Namespaces != nil) {
			return t.unknown(q), true
		}
		if r.Match.Namespaces == nil {
			last = r.decision
			break
		}
		parts++
		overlap = overlap || r.decision.Overlap
		if r.decision.OwnerReferences == config.HideOwners {
			owners = config.HideOwners
		}
		members = appendMissing(members, r.decision.ClusterNames())
		if r.decision.Kind == DecisionDeny {
			left = append(left, r.Name)
		}
	}
	if parts == 0 {
		return Decision{}, false
	}
	if last.OwnerReferences == config.HideOwners {
		owners = config.HideOwners
	}
	d := t.union(q, last, members, left, overlap)
	d.OwnerReferences = owners
	return d, true
}

// union combines the decisions for all namespaces. last is the decision for the namespaces that no rule
// names.
func (t *Table) union(q *routeQuery, last Decision, members, left []string, overlap bool) Decision {
	rest := last.ClusterNames()
	members = append(slices.DeleteFunc(members, func(c string) bool { return slices.Contains(rest, c) }), rest...)
	if i := slices.Index(members, t.config.Home); i > 0 {
		members = slices.Insert(slices.Delete(members, i, i+1), 0, t.config.Home)
	}
	d := Decision{Kind: DecisionUnion, Why: "the rules send its namespaces to several clusters", Overlap: overlap || last.Overlap}
	if last.Kind == DecisionDeny {
		d.Warnings = append(d.Warnings, "namespaces that no rule sends to a cluster are left out")
	}
	if len(left) > 0 {
		d.Warnings = append(d.Warnings, "these rules leave out namespaces: "+strings.Join(left, ", "))
	}
	switch {
	case len(members) == 0:
		return last // every namespace is refused
	case len(members) == 1 && last.Kind != DecisionDeny && len(left) == 0:
		return Decision{Kind: DecisionSingle, Cluster: members[0], Why: "all rules that may match, and the default, select one cluster"}
	case q.verb == "deletecollection":
		return t.noDeleteCollection("")
	case t.config.AllNamespaces == config.AllNamespacesHome:
		d = t.homeDecision("allNamespaces is home")
		others := slices.DeleteFunc(members, func(c string) bool { return c == t.config.Home })
		d.Warnings = []string{"this is only the part of the home cluster; left out: " + strings.Join(others, ", ")}
		return d
	}
	part := *q
	part.anyNamespace, part.namespaced = false, true
	for _, c := range members {
		d.Members = append(d.Members, Member{c, &NamespaceSet{table: t, question: part, cluster: c}})
	}
	return d
}

// unknown refuses the request, because the scope of the resource is not known yet.
func (t *Table) unknown(q *routeQuery) Decision {
	r := unavailable(
		"it is not known yet whether %s are namespaced, which determines their cluster",
		strings.TrimSuffix(q.resource+"."+q.group, "."),
	)
	return Decision{Kind: DecisionDeny, Why: "the scope of the resource is not known yet", Refusal: r}
}

// NamespaceSet is the set of namespaces that one member contributes to a union.
type NamespaceSet struct {
	table    *Table
	question routeQuery
	cluster  string
}

// Has reports whether the member contributes the objects of namespace.
func (n *NamespaceSet) Has(namespace string) bool {
	q := n.question
	q.namespace = namespace
	i, _, _ := n.table.firstMatch(&q)
	if i < 0 {
		return n.table.config.Unmatched == config.UnmatchedHome && n.cluster == n.table.config.Home
	}
	d := &n.table.rules[i].decision
	return d.Cluster == n.cluster || slices.ContainsFunc(d.Members, func(m Member) bool { return m.Cluster == n.cluster })
}

// Patterns returns the namespace patterns that rules assign to the member, in rule order. rest reports that
// the member also has every namespace that no rule names.
func (n *NamespaceSet) Patterns() (patterns []string, rest bool) {
	q := n.question
	q.anyNamespace = true
	for i := range n.table.rules {
		r := &n.table.rules[i]
		if yes, _ := q.matches(&r.Match, q.verb); !yes {
			continue
		}
		has := slices.Contains(r.decision.ClusterNames(), n.cluster)
		if r.Match.Namespaces == nil {
			return patterns, has
		}
		for _, p := range r.Match.Namespaces {
			if has {
				patterns = append(patterns, p.String())
			}
		}
	}
	return patterns, n.table.config.Unmatched == config.UnmatchedHome && n.cluster == n.table.config.Home
}

// appendMissing appends the clusters that are not in the list yet.
func appendMissing(clusters, more []string) []string {
	for _, c := range more {
		if !slices.Contains(clusters, c) {
			clusters = append(clusters, c)
		}
	}
	return clusters
}
