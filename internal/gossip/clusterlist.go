package gossip

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// ListClusters is the operation that lists clusters.
var ListClusters = httpapi.Op[ClusterListRequest, ClusterList]{
	Pattern: "GET /api/v1alpha1/memberlist", Verb: access.ClusterMembers,
	MaxResponse: 16 << 20, // 2,048 servers with labels
	Doc:         "List the clusters that this server knows, including its own cluster: the available clusters, or all.",
	Responses: []ClusterList{{Clusters: []Cluster{{APIEndpoint: "https://k8s.prod-eu.example:6443", APIPort: 6443, Labels: map[string]string{"env": "prod"},
		Name: "prod-eu", ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", URL: "https://tka.tail1234.ts.net", State: Alive,
		LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC), Verified: true, Self: true,
		CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Key: httpapi.PublicKey{1}, Software: "0.4.0",
		Members: []ClusterMember{{Node: "nVQ1kLDx7R11CNTRL", Host: "tka.tail1234.ts.net", State: Alive, LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)}}}}}},
	Refusals: []problem.Code{problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability},
}

// A ClusterListRequest selects clusters.
type ClusterListRequest struct {
	State StateFilter `json:"-" query:"state" doc:"\"all\" includes clusters that are dead or have left"`
}

// A StateFilter is "all", or empty for the available clusters.
type StateFilter string

// MarshalText implements [encoding.TextMarshaler].
func (f StateFilter) MarshalText() ([]byte, error) { return []byte(f), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *StateFilter) UnmarshalText(text []byte) error {
	if string(text) != "all" {
		return errStateFilter
	}
	*f = StateFilter(text)
	return nil
}

// Headers of the memberlist.
const (
	HiddenHeader   = "Tailplane-Members-Hidden"   // how many clusters were left out
	IsolatedHeader = "Tailplane-Members-Isolated" // "true" while the server hears no other server
	RefusedHeader  = "Tailplane-Members-Refused"  // one for each rejected record: a phrase with the server and the reason
)

const maxRefusedHeaders = 8 // headers

// A ClusterList is the response. Its JSON is the list of clusters alone, as existing clients read it; the rest is in headers.
type ClusterList struct {
	Clusters []Cluster
	Hidden   int
	Isolated bool
	Refused  []Refusal

	page RenderFunc // set by the server; nil: JSON only
}

// A RenderFunc renders a list as HTML.
type RenderFunc func(ClusterList) ([]byte, error)

// newClusterList builds the response to a request from a node's members.
func newClusterList(s *Members, r ClusterListRequest) ClusterList {
	clusters, hidden := s.Clusters(r.State == "all")
	return ClusterList{Clusters: clusters, Hidden: hidden, Isolated: s.Isolated, Refused: s.Refused}
}

// EncodeResponse returns JSON, or an HTML page if the client prefers it.
func (m ClusterList) EncodeResponse(accept string) (httpapi.Response, error) {
	shape := httpapi.Response{Status: http.StatusOK, Header: http.Header{}, Body: m.Clusters}
	shape.Header.Set(HiddenHeader, strconv.Itoa(m.Hidden))
	shape.Header.Set(IsolatedHeader, strconv.FormatBool(m.Isolated))
	for _, r := range m.Refused[:min(len(m.Refused), maxRefusedHeaders)] {
		shape.Header.Add(RefusedHeader, describeRefusal(r))
	}
	shape.Header.Set("Vary", "Accept")
	if m.Clusters == nil {
		shape.Body = []Cluster{}
	}
	if m.page != nil && prefersHTML(accept) {
		return m.encodePage(shape)
	}
	return shape, nil
}

// MarshalJSON writes the list, never null.
func (m ClusterList) MarshalJSON() ([]byte, error) {
	if m.Clusters == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(m.Clusters)
}

// UnmarshalJSON reads the list.
func (m *ClusterList) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &m.Clusters) }

// ServeClusters implements Get with the snapshot that members returns; page renders it for browsers.
func ServeClusters(members func() *Members, now func() time.Time, page RenderFunc) httpapi.Route {
	return ListClusters.Serve(func(_ context.Context, p access.Permit, r ClusterListRequest) (ClusterList, error) {
		if err := p.Require(access.ClusterMembers, now()); err != nil {
			return ClusterList{}, err
		}
		list := newClusterList(members(), r)
		list.page = page
		return list, nil
	})
}

// describeRefusal describes a refused record and the reason in one line of printable ASCII.
func describeRefusal(r Refusal) string {
	text := fmt.Sprintf("%s of cluster %s: %s", r.Node, r.Cluster, r.Detail)
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text[:min(len(text), 400)])
}
