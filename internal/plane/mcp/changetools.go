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
