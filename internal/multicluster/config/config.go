// Package config reads the adapter's configuration, which defines the clusters and the routing rules, and
// the credentials of the clusters. It keeps law 7: anything unknown, duplicate, contradictory or dangerous is
// an error at load time. The error lists all findings with their lines. The package never guesses.
package config

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// The only API version and kind of a configuration.
const (
	APIVersion = "mca.tailplane.dev/v1alpha1"
	Kind       = "Config"
)

// MaxEpoch is the largest epoch, because it is encoded in ten digits.
const MaxEpoch = 9999999999

// Slots is the number of slots. They are numbered from 0 to Slots-1.
const Slots = 32

// Config is the validated configuration, with its defaults.
type Config struct {
	Epoch             int64     `json:"epoch"`         // 0: not given, allowed with one cluster
	Home              string    `json:"home"`          // name of the cluster for everything that no rule sends elsewhere
	Unmatched         Unmatched `json:"unmatched"`     // what happens to a request that no rule matches
	Clusters          []Cluster `json:"clusters"`      // in the order of the file
	Rules             []Rule    `json:"rules"`         // first match wins
	AllNamespaces     string    `json:"allNamespaces"` // AllNamespacesUnion or AllNamespacesHome: which clusters a list of all namespaces covers
	Impersonation     bool      `json:"impersonation"` // Impersonate-* headers are forwarded
	AllowTokenRequest bool      `json:"allowTokenRequest"`
	Annotate          bool      `json:"annotate"` // merged items have an annotation with their cluster
	Audit             Audit     `json:"audit"`
	Tracing           Tracing   `json:"tracing"`
}

// Unmatched is what happens to a request that no rule matches.
type Unmatched string

// The two values of Config.AllNamespaces. AllNamespacesHome is also a value of Unmatched.
const (
	AllNamespacesUnion = "union"
	AllNamespacesHome  = "home"

	UnmatchedHome   Unmatched = "home"
	UnmatchedRefuse Unmatched = "refuse"
)

// Cluster is one Kubernetes API. Exactly one of InCluster, Secret and Servers locates it.
type Cluster struct {
	Name      string `json:"name"`
	Slot      int    `json:"slot"`
	InCluster bool   `json:"inCluster,omitempty"` // the pod's own cluster
	// Secret is the directory, in the credentials directory, that has the address, the CA and the credential.
	Secret string `json:"secret,omitempty"`
	// Servers are addresses of the same cluster. They receive only a token with an audience of their own, so
	// that an author of the configuration cannot collect other credentials.
	Servers       []string `json:"servers,omitempty"`
	CAFile        string   `json:"caFile,omitempty"` // in the credentials directory; only with Servers
	UID           string   `json:"uid,omitempty"`    // of its kube-system namespace; "": not checked
	AllowLoopback bool     `json:"allowLoopback,omitempty"`
	Limits        Limits   `json:"limits"`
	Health        Probe    `json:"health"`

	Line int `json:"-"`
}

// Limits limit the requests to one cluster; 0: no limit.
type Limits struct {
	QPS      float64 `json:"qps,omitempty"`   // requests per second
	Burst    int     `json:"burst,omitempty"` // size of the token bucket; 0 means 1
	InFlight int     `json:"inFlight,omitempty"`
}

// Probe configures the health probe of a cluster.
type Probe struct {
	Path      string        `json:"path"`
	Interval  time.Duration `json:"interval"`
	Timeout   time.Duration `json:"timeout"`
	Failures  int           `json:"failures"`  // consecutive ones that make it unhealthy
	Successes int           `json:"successes"` // consecutive ones that make it healthy again
}

// Audit configures the audit log.
type Audit struct {
	Level string `json:"level"` // "none" or "metadata"
}

// Tracing configures where spans are sent, and for what fraction of requests.
type Tracing struct {
	Endpoint string  `json:"endpoint,omitempty"` // URL of an OTLP/HTTP receiver; "": none
	Ratio    float64 `json:"ratio"`              // 0 to 1
}

// Rule sends the requests that it matches to its target.
type Rule struct {
	Name           string `json:"name"`
	Match          Match  `json:"match"`
	Target         Target `json:"target"`
	AllowVerbSplit bool   `json:"allowVerbSplit,omitempty"`

	Line int `json:"-"`
}

// Match selects the requests of a rule; a nil field matches all.
type Match struct {
	APIGroups  []string   `json:"apiGroups,omitempty"` // "" is the core group
	Resources  []Resource `json:"resources,omitempty"` // nil: all namespaced resources
	Namespaces []Pattern  `json:"namespaces,omitempty"`
	Names      []Pattern  `json:"names,omitempty"`
	Verbs      []string   `json:"verbs,omitempty"`
	UserAgents []Pattern  `json:"userAgents,omitempty"`
}

// Resource is a resource, which includes its subresources, or one subresource.
type Resource struct {
	Name        string `json:"name"`
	Subresource string `json:"subresource,omitempty"`
}

// String returns the form of the configuration file, such as "pods/log".
func (r Resource) String() string {
	if r.Subresource == "" {
		return r.Name
	}
	return r.Name + "/" + r.Subresource
}

// Target is where a rule sends requests: a Cluster, a Spread, or nowhere, with the reason in Deny.
type Target struct {
	Cluster         string          `json:"cluster,omitempty"`
	OwnerReferences OwnerReferences `json:"ownerReferences,omitempty"` // of Cluster; a Spread has its own
	Spread          *Spread         `json:"spread,omitempty"`
	Deny            string          `json:"deny,omitempty"`
}

// OwnerReferences is the treatment of an object whose owner is in another cluster.
type OwnerReferences string

// FollowOwners places the object in its owner's cluster, or refuses it. HideOwners hides the reference from the
// garbage collector and shows it to clients. KeepOwners does not change it.
const (
	FollowOwners OwnerReferences = "follow"
	HideOwners   OwnerReferences = "shelter"
	KeepOwners   OwnerReferences = "keep"
)

// Strategy is how the cluster of a new object is chosen.
type Strategy string

// StrategyHash uses the object's name, so that all replicas agree. StrategyWeighted is random. StrategyNone refuses objects that
// nothing else places.
const (
	StrategyHash       Strategy = "hash"
	StrategyWeighted   Strategy = "weighted"
	StrategyRoundRobin Strategy = "roundRobin"
	StrategyNone       Strategy = "none"
)

// Spread distributes the objects of a rule over several clusters.
type Spread struct {
	Members             []string        `json:"members"` // in order of preference
	Place               []PlaceRule     `json:"place,omitempty"`
	Strategy            Strategy        `json:"strategy"`
	Weights             map[string]int  `json:"weights,omitempty"` // nil: equal weights; otherwise a missing member has weight 0
	OwnerReferences     OwnerReferences `json:"ownerReferences"`
	OnConflict          string          `json:"onConflict"` // "reject" or "prefer"
	Read                string          `json:"read"`       // when a member is down: "fail" or "skip"
	Create              string          `json:"create"`     // when a member is down: "fail" or "spill"
	DeleteAllCollection bool            `json:"deleteAllCollection"`
}

// Weight returns the weight of a member.
func (s *Spread) Weight(member string) int {
	if s.Weights == nil {
		return 1
	}
	return s.Weights[member]
}

// PlaceRule sends new objects with matching labels to a cluster.
type PlaceRule struct {
	Labels   string          `json:"labels"`
	Cluster  string          `json:"cluster"`
	Selector labels.Selector `json:"-"`
}

// Cluster returns the cluster with that name, or nil.
func (d *Config) Cluster(name string) *Cluster {
	for i := range d.Clusters {
		if d.Clusters[i].Name == name {
			return &d.Clusters[i]
		}
	}
	return nil
}

// Default returns the configuration of an adapter without a file: the pod's own cluster serves everything.
func Default() *Config {
	d := newConfig()
	d.Home = AllNamespacesHome
	d.Clusters = []Cluster{{Name: AllNamespacesHome, InCluster: true, Health: defaultProbe()}}
	return d
}

// newConfig returns a configuration with the defaults of optional fields.
func newConfig() *Config {
	return &Config{Unmatched: UnmatchedHome, AllNamespaces: AllNamespacesUnion, Audit: Audit{Level: "metadata"}}
}

func defaultProbe() Probe {
	return Probe{Path: "/readyz", Interval: 30 * time.Second, Timeout: 5 * time.Second, Failures: 3, Successes: 1}
}
