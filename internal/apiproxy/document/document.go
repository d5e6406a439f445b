// Package document reads the one file that says which clusters an adapter
// serves and what goes where, and the credentials of those clusters. It keeps
// law 7: what is unknown, double, contradictory or dangerous is an error at
// load that names the line, all of them at once, and never a guess.
package document

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// The only version and kind of a document.
const (
	APIVersion = "mca.tailplane.dev/v1alpha1"
	Kind       = "Config"
)

// MaxEpoch is the largest epoch: it is written with ten digits.
const MaxEpoch = 9999999999

// Slots is the number of slots, 0 to Slots-1.
const Slots = 32

// A Document is the whole file, with its defaults filled in and checked.
type Document struct {
	Epoch             int64     `json:"epoch"`         // 0: not given, as one cluster needs none
	Home              string    `json:"home"`          // name of the cluster of everything that no rule sends elsewhere
	Unmatched         Unmatched `json:"unmatched"`     // what becomes of a request that no rule matches
	Clusters          []Cluster `json:"clusters"`      // in the order of the file
	Rules             []Rule    `json:"rules"`         // first match wins
	AllNamespaces     string    `json:"allNamespaces"` // Union or Home: what a list of all namespaces covers
	Impersonation     bool      `json:"impersonation"` // Impersonate-* headers are passed on
	AllowTokenRequest bool      `json:"allowTokenRequest"`
	Annotate          bool      `json:"annotate"` // merged items say which cluster they are from
	Audit             Audit     `json:"audit"`
	Tracing           Tracing   `json:"tracing"`
}

// Unmatched says what becomes of a request that no rule matches.
type Unmatched string

// The two values of Document.AllNamespaces; Home is also one of Unmatched.
const (
	Union = "union"
	Home  = "home"

	UnmatchedHome   Unmatched = "home"
	UnmatchedRefuse Unmatched = "refuse"
)

// A Cluster is one Kubernetes API. Exactly one of InCluster, Secret and Servers says where it is.
type Cluster struct {
	Name      string `json:"name"`
	Slot      int    `json:"slot"`
	InCluster bool   `json:"inCluster,omitempty"` // the one this pod runs in
	// Secret is the folder below the credentials folder that has address, CA and
	// credential together.
	Secret string `json:"secret,omitempty"`
	// Servers are addresses of the same cluster. Only a token of an audience of
	// its own goes there, for who writes the document may not collect others.
	Servers       []string `json:"servers,omitempty"`
	CAFile        string   `json:"caFile,omitempty"` // below the credentials folder; with Servers only
	UID           string   `json:"uid,omitempty"`    // of its kube-system namespace; "": not checked
	AllowLoopback bool     `json:"allowLoopback,omitempty"`
	Limits        Limits   `json:"limits"`
	Health        Health   `json:"health"`

	Line int `json:"-"`
}

// Limits bound what goes to one cluster; 0: no limit.
type Limits struct {
	QPS      float64 `json:"qps,omitempty"`   // requests a second
	Burst    int     `json:"burst,omitempty"` // at once; the rounded-up QPS if only that is given
	InFlight int     `json:"inFlight,omitempty"`
}

// Health is how a cluster is asked whether it is there.
type Health struct {
	Path      string        `json:"path"`
	Interval  time.Duration `json:"interval"`
	Timeout   time.Duration `json:"timeout"`
	Failures  int           `json:"failures"`  // in a row, until it is unhealthy
	Successes int           `json:"successes"` // in a row, until it is healthy again
}

// Audit says what is recorded.
type Audit struct {
	Level string `json:"level"` // "none" or "metadata"
}

// Tracing says where spans go, and of how many requests.
type Tracing struct {
	Endpoint string  `json:"endpoint,omitempty"` // URL of an OTLP/HTTP receiver; "": none
	Ratio    float64 `json:"ratio"`              // 0 to 1
}

// A Rule sends what it matches to its target.
type Rule struct {
	Name           string `json:"name"`
	Match          Match  `json:"match"`
	Target         Target `json:"target"`
	AllowVerbSplit bool   `json:"allowVerbSplit,omitempty"`

	Line int `json:"-"`
}

// A Match is what a rule is about; a nil field matches all.
type Match struct {
	APIGroups  []string   `json:"apiGroups,omitempty"` // "" is the core group
	Resources  []Resource `json:"resources,omitempty"` // nil: everything that is in a namespace
	Namespaces []Pattern  `json:"namespaces,omitempty"`
	Names      []Pattern  `json:"names,omitempty"`
	Verbs      []string   `json:"verbs,omitempty"`
	UserAgents []Pattern  `json:"userAgents,omitempty"`
}

// A Resource is a resource, which covers its subresources, or one subresource.
type Resource struct {
	Name        string `json:"name"`
	Subresource string `json:"subresource,omitempty"`
}

// String returns the form of the file, such as "pods/log".
func (r Resource) String() string {
	if r.Subresource == "" {
		return r.Name
	}
	return r.Name + "/" + r.Subresource
}

// A Target is where a rule sends: a Cluster, a Spread, or nowhere, for the reason Deny.
type Target struct {
	Cluster         string          `json:"cluster,omitempty"`
	OwnerReferences OwnerReferences `json:"ownerReferences,omitempty"` // of Cluster; a Spread has its own
	Spread          *Spread         `json:"spread,omitempty"`
	Deny            string          `json:"deny,omitempty"`
}

// OwnerReferences says what becomes of an object whose owner is in another cluster.
type OwnerReferences string

// Follow places it with its owner, or refuses it; Shelter hides the reference
// from the garbage collector and shows it to clients; Keep leaves it alone.
const (
	Follow  OwnerReferences = "follow"
	Shelter OwnerReferences = "shelter"
	Keep    OwnerReferences = "keep"
)

// A Strategy is how the cluster of a new object is chosen.
type Strategy string

// Hash is by the object's name, so that every instance agrees; Weighted is by
// chance; None refuses what nothing else places.
const (
	Hash       Strategy = "hash"
	Weighted   Strategy = "weighted"
	RoundRobin Strategy = "roundRobin"
	None       Strategy = "none"
)

// A Spread holds the objects of one kind in several clusters.
type Spread struct {
	Members             []string        `json:"members"` // the first is preferred
	Place               []Place         `json:"place,omitempty"`
	Strategy            Strategy        `json:"strategy"`
	Weights             map[string]int  `json:"weights,omitempty"` // nil: all the same; a member that is not in it has 0
	OwnerReferences     OwnerReferences `json:"ownerReferences"`
	OnConflict          string          `json:"onConflict"` // "reject" or "prefer"
	Read                string          `json:"read"`       // without a member: "fail" or "skip"
	Create              string          `json:"create"`     // without a member: "fail" or "spill"
	DeleteAllCollection bool            `json:"deleteAllCollection"`
}

// Weight returns the weight of a member.
func (s *Spread) Weight(member string) int {
	if s.Weights == nil {
		return 1
	}
	return s.Weights[member]
}

// A Place sends new objects with such labels to a cluster.
type Place struct {
	Labels   string          `json:"labels"`
	Cluster  string          `json:"cluster"`
	Selector labels.Selector `json:"-"`
}

// Cluster returns the cluster of that name, or nil.
func (d *Document) Cluster(name string) *Cluster {
	for i := range d.Clusters {
		if d.Clusters[i].Name == name {
			return &d.Clusters[i]
		}
	}
	return nil
}

// Default returns the document of an adapter that has none: one cluster, the
// one this pod runs in, serves everything.
func Default() *Document {
	d := fresh()
	d.Home = Home
	d.Clusters = []Cluster{{Name: Home, InCluster: true, Health: health()}}
	return d
}

// fresh returns a document with the defaults of what is not required.
func fresh() *Document {
	return &Document{Unmatched: UnmatchedHome, AllNamespaces: Union, Audit: Audit{Level: "metadata"}}
}

func health() Health {
	return Health{Path: "/readyz", Interval: 30 * time.Second, Timeout: 5 * time.Second, Failures: 3, Successes: 1}
}
