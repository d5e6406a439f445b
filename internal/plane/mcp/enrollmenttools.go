package mcp

import (
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// enrollmentTools returns the tool for enrollments. There are deliberately no tools to approve, decline or end one, or to rotate a credential,
// because people must do that.

func enrollmentTools() []tool {
	request := requestTool(tool{name: "request_enrollment", title: "Ask for runners", set: Enrollment, verb: plane.RequestEnrollment.Verb, pattern: plane.RequestEnrollment.Pattern, maxResponse: plane.RequestEnrollment.MaxResponse,
		doc: "Ask for runners of an organisation that has none. Nothing is made before people have approved it: the answer is the pull request that was opened, or the enrollment that waits for approval."},
		requestEnrollment, outcomeSummary, nil)
	request.readOnly, request.destructive, request.idempotent = false, false, true
	return []tool{request}
}

type enrollArgs struct {
	Org       plane.Text `query:"org" required:"true" doc:"the organisation's name here: a DNS label of at most 40 characters"`
	Forge     plane.Text `query:"forge" required:"true" doc:"where it is; list_forges names them"`
	Pools     plane.Text `query:"pools" required:"true" doc:"names of the pools that it is to use, with commas between"`
	Isolation plane.Text `query:"isolation" doc:"what keeps its runners apart from others: None, Namespace or Node; None without it"`
	Owners    plane.Text `query:"owners" doc:"full logins of who administers it here, with commas between"`
	Reason    plane.Text `query:"reason" required:"true" doc:"why, 1 to 500 characters: it stands in the record"`
	DryRun    plane.Flag `query:"dryRun" doc:"true: show what it would become, and change nothing"`
}

func requestEnrollment(a *enrollArgs) (string, any, error) {
	r := &plane.RequestRequest{Org: a.Org, Forge: a.Forge, Isolation: a.Isolation, Reason: plane.Reason(a.Reason), DryRun: a.DryRun}
	for _, name := range split(a.Pools) {
		r.Pools = append(r.Pools, plane.Use{Name: name})
	}
	r.Owners = split(a.Owners)
	if strings.Contains(string(a.Pools+a.Org+a.Forge), "*") { // no wildcards (MC-05)
		return "", nil, problem.New(problem.Validation, "\"*\" is no name.", "Name each pool.")
	}
	return plane.RequestEnrollment.Pattern, r, nil
}

// split returns the names in a comma-separated list.
func split(list plane.Text) (names []plane.Text) {
	for name := range strings.SplitSeq(string(list), ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, plane.Text(name))
		}
	}
	return names
}

func outcomeSummary(o plane.Outcome, _ plane.Meta) string {
	switch {
	case o.Would != "" && o.Preview != nil && o.Preview.Refused != "":
		return "Nothing was changed. The API server would not take it: " + o.Preview.Refused
	case o.Would != "":
		return "Nothing was changed. It would be " + o.Would + "."
	case o.Change != nil:
		return "It is proposed, as " + o.Change.ID + ", number " + strconv.Itoa(o.Change.Number) + ", at " + o.Change.URL + ". People have to approve it."
	case o.Done == plane.OutcomeNothing:
		return o.OrgName + " was asked for already, by the same request."
	}
	return o.OrgName + " is asked for. Somebody who runs the platform has to approve it."
}
