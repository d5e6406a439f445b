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
	return []tool{writeTool(requestTool(operationTool(plane.RequestEnrollment, "request_enrollment", "Request runners", Enrollment).
		withDoc("Request runners for an organisation that has none. Nothing is created before people have approved it. "+
			"The answer is the opened pull request, or the enrollment that waits for approval."), requestEnrollment, outcomeSummary, nil), false, true)}
}

type enrollArgs struct {
	Org       plane.Text `query:"org" required:"true" doc:"the organisation's name in Tailplane: a DNS label of at most 40 characters"`
	Forge     plane.Text `query:"forge" required:"true" doc:"the organisation's forge, from list_forges"`
	Pools     plane.Text `query:"pools" required:"true" doc:"comma-separated names of the pools to use"`
	Isolation plane.Text `query:"isolation" doc:"isolation from other organisations' runners: None, Namespace or Node (default None)"`
	Owners    plane.Text `query:"owners" doc:"comma-separated full logins of the administrators"`
	Reason    plane.Text `query:"reason" required:"true" doc:"reason for the audit log, 1 to 500 characters"`
	DryRun    plane.Flag `query:"dryRun" doc:"true: show the result, and change nothing"`
}

func requestEnrollment(a *enrollArgs) (string, any, error) {
	r := &plane.RequestRequest{Org: a.Org, Forge: a.Forge, Isolation: a.Isolation, Reason: plane.Reason(a.Reason), DryRun: a.DryRun}
	for _, name := range split(a.Pools) {
		r.Pools = append(r.Pools, plane.Use{Name: name})
	}
	r.Owners = split(a.Owners)
	if strings.Contains(string(a.Pools+a.Org+a.Forge), "*") { // no wildcards (MC-05)
		return "", nil, problem.New(problem.Validation, "\"*\" is not a name.", "Name each pool.")
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
		return "Nothing was changed. The API server would reject it: " + o.Preview.Refused
	case o.Would != "":
		return "Nothing was changed. The enrollment would be " + o.Would + "."
	case o.Change != nil:
		return "The enrollment is proposed as " + o.Change.ID + ", number " + strconv.Itoa(o.Change.Number) + ", at " + o.Change.URL + ". People must approve it."
	case o.Done == plane.OutcomeNothing:
		return o.OrgName + " was already requested by the same request."
	}
	return o.OrgName + " is requested. A platform-admin must approve it."
}
