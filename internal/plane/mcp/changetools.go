package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tailplane/tailplane/internal/plane"
)

// changeTools returns the tools for configuration changes. There are deliberately no tools to approve or merge one, because people must do
// that.

func changeTools() []tool {
	changes := func(all []plane.Change) table {
		return newTable([]string{"ID", "OBJECT", "ORG", "STATE", "RISK", "BY", "TITLE", "URL"}, all, func(o plane.Change) []string {
			return []string{o.ID, o.Kind + " " + o.Name, o.OrgName, o.State, o.Risk.Level, o.Proposer, o.Title, o.URL}
		})
	}
	alone := func(o plane.Change) table { return changes([]plane.Change{o}) }
	list := readTool[plane.ChangeListRequest](tool{name: "list_changes", title: "Changes", set: Config, verb: plane.ListChanges.Verb, doc: plane.ListChanges.Doc, pattern: plane.ListChanges.Pattern, maxResponse: plane.ListChanges.MaxResponse},
		func(e *plane.Envelope[[]plane.Change]) plane.Envelope[[]plane.Change] { return *e }, func(all []plane.Change, m plane.Meta) string { return pageSummary(len(all), "change", m) }, changes)
	list.view.fewer = func(r any, n int) { r.(*plane.ChangeListRequest).Limit = plane.PageLimit(n) }
	list.view.length = func(all any) int { return len(*all.(*[]plane.Change)) }
	propose := requestTool(tool{name: "propose_change", title: "Propose a change", set: Config, verb: plane.ProposeChange.Verb, doc: "Propose a change of the configuration by pull request. Nothing is changed before people have approved it. Preview it first.",
		pattern: plane.ProposeChange.Pattern, maxResponse: plane.ProposeChange.MaxResponse},
		func(a *proposeArgs) (string, any, error) {
			return plane.ProposeChange.Pattern, &plane.ProposeRequest{Edit: a.edit(), Title: string(a.Title), Reason: plane.Reason(a.Reason), Version: string(a.Version)}, nil
		},
		func(o plane.Change, _ plane.Meta) string {
			return "The change is proposed as " + o.ID + ", number " + strconv.Itoa(o.Number) + ". People must approve it."
		}, alone)
	propose.readOnly, propose.destructive, propose.idempotent = false, false, true
	return []tool{
		list,
		requestTool(tool{name: "get_change", title: "Change", set: Config, verb: plane.GetChange.Verb, doc: plane.GetChange.Doc, pattern: plane.GetChange.Pattern, maxResponse: plane.GetChange.MaxResponse},
			func(a *changeArgs) (string, any, error) {
				return plane.GetChange.Pattern, &plane.ChangeRequest{ID: string(a.ID)}, nil
			}, func(o plane.Change, _ plane.Meta) string { return o.ID + " is " + o.State + "." }, alone),
		requestTool(tool{name: "preview_change", title: "Preview a change", set: Config, verb: plane.PreviewChange.Verb, doc: plane.PreviewChange.Doc, pattern: plane.PreviewChange.Pattern, maxResponse: plane.PreviewChange.MaxResponse},
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
		propose,
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
