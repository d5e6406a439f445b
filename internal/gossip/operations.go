package gossip

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// GetMemberlist is the operation that people ask.
var GetMemberlist = door.Op[MemberlistRequest, Memberlist]{
	Pattern: "GET /api/v1alpha1/memberlist", Verb: access.ClusterMembers,
	MaxAnswer: 16 << 20, // 2,048 servers with labels
	Doc:       "List the clusters that this server knows of, its own included: those that can be had, or all.",
	Answers: []Memberlist{{Clusters: []Cluster{{APIEndpoint: "https://k8s.prod-eu.example:6443", APIPort: 6443, Labels: map[string]string{"env": "prod"},
		Name: "prod-eu", ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", URL: "https://tka.tail1234.ts.net", State: Alive,
		LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC), Verified: true, Self: true,
		CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Key: door.PublicKey{1}, Software: "0.4.0",
		Members: []ClusterMember{{Node: "nVQ1kLDx7R11CNTRL", Host: "tka.tail1234.ts.net", State: Alive, LastSeen: time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)}}}}}},
	Refusals: []problem.Code{problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability},
}

// A MemberlistRequest says which clusters are wanted.
type MemberlistRequest struct {
	State StateFilter `json:"-" query:"state" doc:"\"all\" adds clusters that are dead or have left"`
}

// A StateFilter is "all", or empty: those that can be had.
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
	IsolatedHeader = "Tailplane-Members-Isolated" // "true" while the server hears nobody
	RefusedHeader  = "Tailplane-Members-Refused"  // once for each server whose record does not count: which one and why, a phrase
)

const maxRefused = 8 // headers

// A Memberlist is the answer: JSON is the list alone, as existing clients read
// it; the rest is in headers.
type Memberlist struct {
	Clusters []Cluster
	Hidden   int
	Isolated bool
	Refused  []Refusal
}

// Memberlist answers a request from what a node believes.
func (s *Members) Memberlist(r MemberlistRequest) Memberlist {
	clusters, hidden := s.Clusters(r.State == "all")
	return Memberlist{clusters, hidden, s.Isolated, s.Refused}
}

// Shape answers JSON, or a page to who prefers one.
func (m Memberlist) Shape(accept string) (door.Shape, error) {
	shape := door.Shape{Status: http.StatusOK, Header: http.Header{}, Body: m.Clusters}
	shape.Header.Set(HiddenHeader, strconv.Itoa(m.Hidden))
	shape.Header.Set(IsolatedHeader, strconv.FormatBool(m.Isolated))
	for _, r := range m.Refused[:min(len(m.Refused), maxRefused)] {
		shape.Header.Add(RefusedHeader, r.phrase())
	}
	shape.Header.Set("Vary", "Accept")
	if m.Clusters == nil {
		shape.Body = []Cluster{}
	}
	if prefersHTML(accept) {
		return m.page(shape)
	}
	return shape, nil
}

// MarshalJSON writes the list, never null.
func (m Memberlist) MarshalJSON() ([]byte, error) {
	if m.Clusters == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(m.Clusters)
}

// UnmarshalJSON reads the list.
func (m *Memberlist) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &m.Clusters) }

// ServeMemberlist answers GetMemberlist from what members returns.
func ServeMemberlist(members func() *Members, now func() time.Time) door.Route {
	return GetMemberlist.Serve(func(_ context.Context, p access.Permit, r MemberlistRequest) (Memberlist, error) {
		if err := p.Require(access.ClusterMembers, now()); err != nil {
			return Memberlist{}, err
		}
		return members().Memberlist(r), nil
	})
}

// Alone is the members of a server that does not gossip: itself.
func Alone(f Facts, now time.Time) *Members {
	r := &Record{Facts: f, Status: Up}
	return &Members{At: now, List: []Member{{Record: r, State: Alive, LastSeen: now, Verified: true, Self: true}}}
}
