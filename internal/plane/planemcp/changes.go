package planemcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
)

// changeTools returns the tools for configuration changes. There are deliberately no tools to approve or merge one, because people must do
// that.

func changeTools() []tool {
	changes := func(all []planechange.Change) table {
		return grid([]string{"ID", "OBJECT", "ORG", "STATE", "RISK", "BY", "TITLE", "URL"}, all, func(o planechange.Change) []string {
			return []string{o.ID, o.Kind + " " + o.Name, o.OrgName, o.State, o.Risk.Level, o.Proposer, o.Title, o.URL}
		})
	}
	alone := func(o planechange.Change) table { return changes([]planechange.Change{o}) }
	list := reading[planechange.ListRequest](tool{name: "list_changes", title: "Changes", set: Config, verb: planechange.ListChanges.Verb, doc: planechange.ListChanges.Doc, pattern: planechange.ListChanges.Pattern, most: planechange.ListChanges.MaxAnswer},
		func(e *plane.Envelope[[]planechange.Change]) plane.Envelope[[]planechange.Change] { return *e }, func(all []planechange.Change, m plane.Meta) string { return pageOf(len(all), "change", m) }, changes)
	list.view.fewer = func(r any, n int) { r.(*planechange.ListRequest).Limit = plane.Count(n) }
	list.view.length = func(all any) int { return len(*all.(*[]planechange.Change)) }
	propose := asking(tool{name: "propose_change", title: "Propose a change", set: Config, verb: planechange.ProposeChange.Verb, doc: "Propose a change of the configuration by pull request; nothing is changed before people have approved it. Preview it first.",
		pattern: planechange.ProposeChange.Pattern, most: planechange.ProposeChange.MaxAnswer},
		func(a *proposeArgs) (string, any, error) {
			return planechange.ProposeChange.Pattern, &planechange.ProposeRequest{Edit: a.edit(), Title: string(a.Title), Reason: plane.Reason(a.Reason), Version: string(a.Version)}, nil
		},
		func(o planechange.Change, _ plane.Meta) string {
			return "It is proposed, as " + o.ID + ", number " + strconv.Itoa(o.Number) + ". People have to approve it."
		}, alone)
	propose.readOnly, propose.destructive, propose.idempotent = false, false, true
	return []tool{
		list,
		asking(tool{name: "get_change", title: "Change", set: Config, verb: planechange.GetChange.Verb, doc: planechange.GetChange.Doc, pattern: planechange.GetChange.Pattern, most: planechange.GetChange.MaxAnswer},
			func(a *changeArgs) (string, any, error) {
				return planechange.GetChange.Pattern, &planechange.GetRequest{ID: string(a.ID)}, nil
			}, func(o planechange.Change, _ plane.Meta) string { return o.ID + " is " + o.State + "." }, alone),
		asking(tool{name: "preview_change", title: "Preview a change", set: Config, verb: planechange.PreviewChange.Verb, doc: planechange.PreviewChange.Doc, pattern: planechange.PreviewChange.Pattern, most: planechange.PreviewChange.MaxAnswer},
			func(a *editArgs) (string, any, error) {
				return planechange.PreviewChange.Pattern, &planechange.PreviewRequest{Edit: a.edit()}, nil
			},
			func(o planechange.Preview, _ plane.Meta) string {
				if o.Refused != "" {
					return "The API server would not take it: " + o.Refused
				}
				if o.Note != "" {
					return o.Note + " Risk: " + o.Risk.Level + "."
				}
				said := "The API server would take it. Risk: " + o.Risk.Level + "."
				if len(o.Rules) > 0 {
					said += fmt.Sprintf(" It would break %d rules of the fleet: nothing is made of what breaks one.", len(o.Rules))
				}
				return said
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

func (a editArgs) edit() planechange.Edit {
	return planechange.Edit{Kind: a.Kind, Name: a.Name, Patch: json.RawMessage(a.Patch)}
}

type proposeArgs struct {
	editArgs
	Title   plane.Text `query:"title" doc:"of the pull request"`
	Reason  plane.Text `query:"reason" required:"true" doc:"why, 1 to 500 characters: it stands in the record"`
	Version plane.Text `query:"version" doc:"of the file, from the preview: if it is another one by now it is refused"`
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
