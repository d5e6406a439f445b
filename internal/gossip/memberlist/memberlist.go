// Package memberlist implements the operation that lists clusters to people, both client and server. It keeps law 10: text that other
// servers announce is data in every format.
package memberlist

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/problem"
)

// Get is the operation that lists clusters.
var Get = door.Op[Request, List]{
	Pattern: "GET /api/v1alpha1/memberlist", Verb: access.ClusterMembers,
	MaxAnswer: 16 << 20, // 2,048 servers with labels
	Doc:       "List the clusters that this server knows of, its own included: those that can be had, or all.",
	Answers: []List{{Clusters: []gossip.Cluster{{APIEndpoint: "https://k8s.prod-eu.example:6443", APIPort: 6443, Labels: map[string]string{"env": "prod"},
		Name: "prod-eu", ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", URL: "https://tka.tail1234.ts.net", State: gossip.Alive,
		LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC), Verified: true, Self: true,
		CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Key: door.PublicKey{1}, Software: "0.4.0",
		Members: []gossip.ClusterMember{{Node: "nVQ1kLDx7R11CNTRL", Host: "tka.tail1234.ts.net", State: gossip.Alive, LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)}}}}}},
	Refusals: []problem.Code{problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability},
}

// A Request selects clusters.
type Request struct {
	State StateFilter `json:"-" query:"state" doc:"\"all\" adds clusters that are dead or have left"`
}

// A StateFilter is "all", or empty for the available clusters.
type StateFilter string

// MarshalText implements [encoding.TextMarshaler].
func (f StateFilter) MarshalText() ([]byte, error) { return []byte(f), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *StateFilter) UnmarshalText(text []byte) error {
	if string(text) != "all" {
		return errFilter
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

const maxRefused = 8 // headers

// A List is the response. Its JSON is the list of clusters alone, as existing clients read it; the rest is in headers.
type List struct {
	Clusters []gossip.Cluster
	Hidden   int
	Isolated bool
	Refused  []gossip.Refusal

	page Page // set by the server; nil: JSON only
}

// A Page renders a list as HTML.
type Page func(List) ([]byte, error)

// Of builds the response to a request from a node's members.
func Of(s *gossip.Members, r Request) List {
	clusters, hidden := s.Clusters(r.State == "all")
	return List{Clusters: clusters, Hidden: hidden, Isolated: s.Isolated, Refused: s.Refused}
}

// Shape returns JSON, or an HTML page if the client prefers it.
func (m List) Shape(accept string) (door.Shape, error) {
	shape := door.Shape{Status: http.StatusOK, Header: http.Header{}, Body: m.Clusters}
	shape.Header.Set(HiddenHeader, strconv.Itoa(m.Hidden))
	shape.Header.Set(IsolatedHeader, strconv.FormatBool(m.Isolated))
	for _, r := range m.Refused[:min(len(m.Refused), maxRefused)] {
		shape.Header.Add(RefusedHeader, phrase(r))
	}
	shape.Header.Set("Vary", "Accept")
	if m.Clusters == nil {
		shape.Body = []gossip.Cluster{}
	}
	if m.page != nil && prefersHTML(accept) {
		return m.pageShape(shape)
	}
	return shape, nil
}

// MarshalJSON writes the list, never null.
func (m List) MarshalJSON() ([]byte, error) {
	if m.Clusters == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(m.Clusters)
}

// UnmarshalJSON reads the list.
func (m *List) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &m.Clusters) }

// Serve implements Get with the snapshot that members returns; page renders it for browsers.
func Serve(members func() *gossip.Members, now func() time.Time, page Page) door.Route {
	return Get.Serve(func(_ context.Context, p access.Permit, r Request) (List, error) {
		if err := p.Require(access.ClusterMembers, now()); err != nil {
			return List{}, err
		}
		list := Of(members(), r)
		list.page = page
		return list, nil
	})
}

// phrase describes a refused record and the reason in one line of printable ASCII.
func phrase(r gossip.Refusal) string {
	text := fmt.Sprintf("%s of cluster %s: %s", r.Node, r.Cluster, r.Detail)
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text[:min(len(text), 400)])
}
