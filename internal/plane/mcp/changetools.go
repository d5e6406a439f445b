package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// changeTools returns the tools for configuration changes and enrollments. There are deliberately no tools to approve or merge a change,
// because people must do that.
func changeTools() []tool {
	changes := rowsOf([]string{"ID", "OBJECT", "ORG", "STATE", "RISK", "BY", "TITLE", "URL"}, func(o plane.Change) []string {
		return []string{o.ID, o.Kind + " " + o.Name, o.OrgName, o.State, o.Risk.Level, o.Proposer, o.Title, o.URL}
	})
	return []tool{
		listTool[plane.ChangeListRequest](operationTool(plane.ListChanges, "list_changes", "Changes", Config), "change", changes),
		requestTool(operationTool(plane.GetChange, "get_change", "Change", Config),
			func(a *changeArgs) (string, any, error) {
				return plane.GetChange.Pattern, &plane.ChangeRequest{ID: string(a.ID)}, nil
			}, func(o plane.Change, _ plane.Meta) string { return o.ID + " is " + o.State + "." }, one(changes)),
		requestTool(operationTool(plane.PreviewChange, "preview_change", "Preview a change", Config),
			func(a *editArgs) (string, any, error) {
				return plane.PreviewChange.Pattern, &plane.PreviewRequest{Edit: a.edit()}, nil
			},
			func(o plane.Preview, _ plane.Meta) string {
				if o.Refused != "" {
					return "The API server would reject it: " + o.Refused
				}
				if o.Note != "" {
					return o.Note + " Risk: " + o.Risk.Level + "."
				}
				messages := "The API server would accept it. Risk: " + o.Risk.Level + "."
				if len(o.Rules) > 0 {
					messages += fmt.Sprintf(" It would break %d rules of the fleet. The fleet does not apply an object that breaks a rule.", len(o.Rules))
				}
				return messages
			}, nil),
		writeTool(requestTool(operationTool(plane.ProposeChange, "propose_change", "Propose a change", Config).withDoc("Propose a change of the configuration by pull request. "+
			"Nothing is changed before people have approved it. Preview it first."),
			func(a *proposeArgs) (string, any, error) {
				return plane.ProposeChange.Pattern, &plane.ProposeRequest{Edit: a.edit(), Title: string(a.Title), Reason: plane.Reason(a.Reason), Version: string(a.Version)}, nil
			},
			func(o plane.Change, _ plane.Meta) string {
				return "The change is proposed as " + o.ID + ", number " + strconv.Itoa(o.Number) + ". People must approve it."
			}, one(changes)), false, true),
		// There are deliberately no tools to approve, decline or end an enrollment, or to rotate a credential, because people must do that.
		writeTool(requestTool(operationTool(plane.RequestEnrollment, "request_enrollment", "Request runners", Enrollment).
			withDoc("Request runners for an organisation that has none. Nothing is created before people have approved it. "+
				"The answer is the opened pull request, or the enrollment that waits for approval."), requestEnrollment, outcomeSummary, nil), false, true),
	}
}

type changeArgs struct {
	ID plane.Text `query:"id" required:"true" doc:"the id in list_changes"`
}

type editArgs struct {
	Kind  plane.Text `query:"kind" required:"true" doc:"RunnerPool, RunnerEnrollment or RunnerForge"`
	Name  plane.Text `query:"name" required:"true" doc:"the object's name"`
	Patch object     `query:"patch" required:"true" doc:"a merge patch of its spec (RFC 7386), such as {\"scaling\": {\"max\": 8}}"`
}

func (a editArgs) edit() plane.Edit {
	return plane.Edit{Kind: a.Kind, Name: a.Name, Patch: json.RawMessage(a.Patch)}
}

type proposeArgs struct {
	editArgs
	Title   plane.Text `query:"title" doc:"title of the pull request"`
	Reason  plane.Text `query:"reason" required:"true" doc:"reason for the audit log, 1 to 500 characters"`
	Version plane.Text `query:"version" doc:"version of the file, from the preview; if the file has changed since, the request is refused"`
}

// object is an argument that is a JSON object, unchanged.
type object string

// MarshalText implements [encoding.TextMarshaler].
func (o object) MarshalText() ([]byte, error) { return []byte(o), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *object) UnmarshalText(b []byte) error {
	if len(b) == 0 || b[0] != '{' || !json.Valid(b) {
		return errors.New("it is not a JSON object")
	}
	*o = object(b)
	return nil
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
