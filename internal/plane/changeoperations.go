package plane

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	fleetgitops "github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	PreviewChange = httpapi.Op[PreviewRequest, Envelope[Preview]]{Pattern: "POST " + Base + "/changes/preview", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc:     "Preview a change of the configuration: the diff of the file, and whether the API server would accept it. Nothing is changed.",
		Example: PreviewRequest{exampleEdit}, Responses: []Envelope[Preview]{newExample("ChangePreview", Preview{File: "fleet/gh-nix.yaml", Base: exampleCommit, Version: exampleBlob,
			Diff: exampleDiff, Risk: Risk{"medium", []string{"capacity"}}, Platform: true})}, Refusals: writeRefusals}
	ProposeChange = httpapi.Op[ProposeRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc:       "Propose a change by pull request. If the object has an open change, the request adds to it.",
		Example:   ProposeRequest{Edit: exampleEdit, Title: "More nix runners", Reason: "the queue is long in the morning", Version: exampleBlob, Key: "1f0c6c1e"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
	ListChanges = httpapi.Op[ChangeListRequest, Envelope[[]Change]]{Pattern: "GET " + Base + "/changes", Verb: access.FleetRead, MaxResponse: 16 << 20,
		Doc: "List changes of the configuration.", Responses: []Envelope[[]Change]{newExamplePage("ChangeList", exampleChange())}, Refusals: listRefusals}
	GetChange = httpapi.Op[ChangeRequest, Envelope[Change]]{Pattern: "GET " + Base + "/changes/{id}", Verb: access.FleetRead, MaxResponse: maxDiff,
		Doc: "Show one change.", Example: ChangeRequest{exampleChangeID}, Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: getRefusals}
	ApproveChange = httpapi.Op[DecideRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/approve", Verb: access.ConfigApprove, MaxResponse: maxDiff,
		Doc: "Approve a change at the commit that the caller has reviewed. An author of the change cannot approve it.", Example: DecideRequest{exampleChangeID, exampleCommit, "the nodes carry it"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: slices.Concat(writeRefusals, []problem.Code{problem.SelfApproval})}
	MergeChange = httpapi.Op[DecideRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/merge", Verb: access.ConfigApprove, MaxResponse: maxDiff,
		Doc: "Merge an approved change at the commit that the caller has reviewed. The approval is used up.", Example: DecideRequest{exampleChangeID, exampleCommit, "now is a quiet moment"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
	legacyProposeChange = withPath(ProposeChange, "/api/gitops/submit") // the path that the existing dashboard and its tools use
	CloseChange         = httpapi.Op[CloseRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/close", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc: "Close a change without a merge.", Example: CloseRequest{exampleChangeID, "the queue is short again"}, Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
)

// maxDiff is the maximum size of a response with a diff, in bytes.
const maxDiff = 4 << 20

// Routes returns the routes of the API, served by d.
func (d *ChangeService) Routes() []httpapi.Route {
	return []httpapi.Route{
		handle(d.Plane, PreviewChange, d.previewChange), handle(d.Plane, ProposeChange, d.proposeChange), handle(d.Plane, ListChanges, d.listChanges), handle(d.Plane, GetChange, d.getChange),
		handle(d.Plane, ApproveChange, d.approveChange), handle(d.Plane, MergeChange, d.mergeChange), handle(d.Plane, CloseChange, d.closeChange),
		handle(d.Plane, legacyProposeChange, d.proposeChange),
	}
}

// ChangeListRequest asks for one page of the changes.
type ChangeListRequest struct {
	ListRequest
	Org Text `json:"-" query:"org" doc:"only entries of this organisation"`
}

func (d *ChangeService) listChanges(_ context.Context, p access.Permit, req ChangeListRequest) (Envelope[[]Change], error) {
	return listPage(d.Plane, changes(), p, req.ListRequest, string(req.Org), func(o Change) bool { return req.Org == "" || string(req.Org) == o.OrgName })
}

func changes() table[Change] {
	return table[Change]{Kind: KindChange, Name: "ChangeList", Columns: map[string]func(Change) string{
		"opened":   func(o Change) string { return o.OpenedAt.UTC().Format(time.RFC3339) },
		"name":     func(o Change) string { return o.Name },
		"kind":     func(o Change) string { return o.Kind },
		"org":      func(o Change) string { return o.OrgName },
		"proposer": func(o Change) string { return o.Proposer },
		"title":    func(o Change) string { return o.Title },
		"risk":     func(o Change) string { return o.Risk.Level },
		"number":   func(o Change) string { return cmp.Or(strconv.Itoa(o.Number), "0") },
		"state":    func(o Change) string { return o.State },
	}, State: Change.CurrentState, States: []string{string(fleetgitops.StateOpen), string(fleetgitops.StateApproved), string(fleetgitops.StateMerging), string(fleetgitops.StateMerged), string(fleetgitops.StateApplied), string(fleetgitops.StateClosed)}}
}

const (
	exampleChangeID = "c3f9c1a2b4d5e6f70"
	exampleCommit   = "0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f607182"
	exampleBlob     = "9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c"
	exampleDiff     = "diff a/fleet/gh-nix.yaml b/fleet/gh-nix.yaml\n--- a/fleet/gh-nix.yaml\n+++ b/fleet/gh-nix.yaml\n@@ -8,4 +8,4 @@\n   runsOn: [self-hosted, nix]\n" +
		"   scaling:\n     min: 0\n-    max: 5\n+    max: 8\n"
)

var exampleEdit = Edit{Kind: "RunnerPool", Name: "gh-nix", Patch: json.RawMessage(`{"scaling":{"max":8}}`)}

func exampleChange() Change {
	return Change{ID: exampleChangeID, Kind: "RunnerPool", Name: "gh-nix", File: "fleet/gh-nix.yaml", Number: 42, URL: "https://github.com/acme/fleet/pull/42", Branch: "tailplane/" + exampleChangeID,
		Base: exampleCommit, Head: exampleCommit, State: string(fleetgitops.StateApproved), Proposer: "amy@acme.dev", Title: "More nix runners", Reason: "the queue is long in the morning",
		Risk: Risk{"medium", []string{"capacity"}}, Platform: true, Diff: exampleDiff, DiffOf: exampleCommit, Checks: []Check{{"yamllint", "success", ""}},
		Approvals: []Approval{{"pat@platform.dev", exampleTime, exampleCommit}}, OpenedAt: exampleTime, ObservedAt: exampleTime}
}

// exampleEnrollmentChange returns an open change of an organisation, for the reference.
func exampleEnrollmentChange() Change {
	c := exampleChange()
	c.OrgName, c.Kind, c.Name, c.File, c.Title, c.State, c.Approvals, c.Diff = "acme", "RunnerEnrollment", "acme", "fleet/acme.yaml", "Enroll acme", string(fleetgitops.StateOpen), []Approval{}, ""
	c.Reason, c.Risk = "our builds wait for an hour", Risk{"medium", []string{"it is new"}}
	return c
}
