package planeenroll

import (
	"encoding/json"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxAnswer is the maximum size of a response, in bytes. It includes a diff.
const maxAnswer = 4 << 20

// The operations. The server, the client, the reference, the MCP tool and the commands of tka are all derived from them.
var (
	Request = door.Op[RequestRequest, Answer]{Pattern: "POST " + plane.Base + "/enrollments", Verb: access.EnrollmentRequest, MaxAnswer: maxAnswer,
		Doc:     "Ask for runners of an organisation: by a pull request that is opened, or where the plane approves, by an enrollment that nobody has approved yet.",
		Example: RequestRequest{Org: "acme", Forge: "github", Pools: []Use{{Name: "gh-nix"}}, Owners: []plane.Text{"amy@acme.dev"}, Reason: "our builds wait for an hour", Key: "1f0c6c1e"},
		Answers: answers(Proposed, Written), Refusals: writing}
	Edit = door.Op[EditRequest, Answer]{Pattern: "PATCH " + plane.Base + "/enrollments/{org}", Verb: access.EnrollmentRequest, MaxAnswer: maxAnswer,
		Doc:     "Change what an organisation has, by a pull request; or where the plane approves, at once: then it has to be approved anew, but for owners and members.",
		Example: EditRequest{Org: "acme", Patch: json.RawMessage(`{"quota":{"pods":80}}`), Reason: "the release"}, Answers: answers(Proposed, Written), Refusals: writing}
	Approve = door.Op[DecideRequest, Answer]{Pattern: "POST " + plane.Base + "/enrollments/{org}/approve", Verb: access.EnrollmentApprove, MaxAnswer: maxAnswer,
		Doc:     "Approve an enrollment as it was looked at, or the open change of it. Who asked for it, or belongs to the organisation, cannot.",
		Example: DecideRequest{Org: "acme", Seen: exampleDigest, Reason: "they share our budget"}, Answers: answers(Approved), Refusals: slices.Concat(writing, []problem.Code{problem.SelfApproval})}
	Decline = door.Op[DecideRequest, Answer]{Pattern: "POST " + plane.Base + "/enrollments/{org}/decline", Verb: access.EnrollmentDecline, MaxAnswer: maxAnswer,
		Doc:     "Decline an enrollment that was only asked for, as it was looked at, or the open change of it that nobody has approved. The one goes; the other is closed at the forge, with the reason.",
		Example: DecideRequest{Org: "acme", Seen: exampleDigest, Reason: "they have runners of their own"}, Answers: answers(Declined), Refusals: writing}
	Offboard = door.Op[OffboardRequest, Answer]{Pattern: "POST " + plane.Base + "/enrollments/{org}/offboard", Verb: access.OffboardRequest, MaxAnswer: maxAnswer,
		Doc:     "End an organisation's runners: by a pull request; or where the plane approves, at once, if the caller may do that, and else by asking for it.",
		Example: OffboardRequest{Org: "acme", Reason: "they have moved away", Confirm: "OFFBOARD acme"}, Answers: answers(Proposed, Written, Asked), Refusals: ending}
	// Delete is Offboard as a DELETE request.
	Delete = door.Op[OffboardRequest, Answer]{Pattern: "DELETE " + plane.Base + "/enrollments/{org}", Verb: access.OffboardRequest, MaxAnswer: maxAnswer,
		Doc: "The same as to offboard.", Example: Offboard.Example, Answers: Offboard.Answers, Refusals: ending}
	Rotate = door.Op[RotateRequest, Answer]{Pattern: "POST " + plane.Base + "/enrollments/{org}/rotate", Verb: access.RotateRequest, MaxAnswer: maxAnswer,
		Doc:     "Have an organisation's credential replaced: GitLab's runners by the fleet, GitHub's App key by a person, who is told to. By a pull request; or where the plane approves, at once or by asking for it.",
		Example: RotateRequest{Org: "acme", Reason: "a laptop was lost"}, Answers: answers(Proposed, Written, Asked), Refusals: slices.Concat(writing, []problem.Code{problem.SelfApproval})}
)

var (
	writing = slices.Concat(plane.Writing, []problem.Code{problem.AuditUnavailable})
	ending  = slices.Concat(writing, []problem.Code{problem.Confirmation})
)

// Routes returns the routes of the API, served by d.
func (d *Desk) Routes() []door.Route {
	return []door.Route{
		plane.Behind(d.Plane, Request, d.request), plane.Behind(d.Plane, Edit, d.edit), plane.Behind(d.Plane, Approve, d.approve), plane.Behind(d.Plane, Decline, d.decline),
		plane.Behind(d.Plane, Offboard, d.offboard), plane.Behind(d.Plane, Delete, d.offboard), plane.Behind(d.Plane, Rotate, d.rotate),
	}
}

// Operations describes the API.
func Operations() []door.Declaration {
	var all []door.Declaration
	for _, rt := range (&Desk{Plane: new(plane.Desk)}).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

const exampleDigest = "sha256:0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c"

// answers returns example responses for the reference.
func answers(done ...string) (all []Answer) {
	for _, is := range done {
		o := Outcome{OrgName: "acme", Approval: "plane", Done: is, Seen: exampleDigest}
		if is == Proposed {
			o.Approval, o.Seen, o.Change = "git", "0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f607182", new(planechange.ExampleEnrollment())
		} else {
			o.Enrollment = new(planefleet.ExampleEnrollment())
		}
		all = append(all, Answer{plane.Example("EnrollmentOutcome", o)})
	}
	return all
}
