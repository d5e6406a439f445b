package planejobs

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// EventsSource is where events come from, on the Board's list of sources.
const EventsSource = "kubernetes:events"

// An Event is something that happened, as the cluster tells it.
type Event struct {
	Type    string    `json:"type" enum:"Normal,Warning"`
	Reason  string    `json:"reason" doc:"a word"`
	Message string    `json:"message" doc:"a sentence"`
	Kind    string    `json:"kind" doc:"of what it happened to"`
	Name    string    `json:"name"`
	By      string    `json:"by" doc:"who says so"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// maxEvents is how many events one answer has.
const maxEvents = 200

// events are what happened to a pool of an organisation, the newest first.
func (d *Desk) events(ctx context.Context, p access.Permit, req planefleet.PoolRequest) (e plane.Envelope[[]Event], err error) {
	o, l, err := d.pool(p, req)
	if err != nil {
		return e, err
	}
	all, source := d.happened(ctx, o)
	return plane.Answer(d.Plane, "EventList", all, l.Revision, append(slices.Clone(l.Sources), source)), nil
}

// happened is what happened to a pool of an organisation, the newest first; nil: it is
// not known, and the source says why.
func (d *Desk) happened(ctx context.Context, o planefleet.Pool) ([]Event, plane.Source) {
	source := plane.Source{Name: EventsSource, Status: plane.OK, ObservedAt: d.now(), Since: d.now()}
	fail := func(err error) ([]Event, plane.Source) {
		source.Status, source.Message, source.ObservedAt = plane.Down, "Events cannot be read: "+err.Error()+".", time.Time{}
		return nil, source
	}
	// What has no namespace is written down in default.
	mine, err := d.Events(ctx, "default")
	if err != nil {
		return fail(err)
	}
	out := []Event{}
	for _, e := range mine {
		if e.Kind == "RunnerEnrollment" && e.Name == o.OrgName { // those of pools, holds and forges are about all organisations
			out = append(out, e)
		}
	}
	if where := o.Controller.Namespace; where != "" {
		others := d.workloads(where)
		here, err := d.Events(ctx, where)
		if err != nil {
			return fail(err)
		}
		for _, e := range here {
			if whose(e.Name, others) == o.Controller.Name {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Name, b.Name)) })
	return out[:min(len(out), maxEvents)], source
}

// workloads are the names of all workloads in a namespace, whoever's they are: by them
// it is told whose a pod is that is there no more.
func (d *Desk) workloads(namespace string) (names []string) {
	for _, o := range d.Plane.Board.List(plane.KindPool).Objects {
		if p, ok := o.(planefleet.Pool); ok && p.Controller.Namespace == namespace && p.Controller.Name != "" {
			names = append(names, p.Controller.Name)
		}
	}
	return names
}

// made is what controllers put behind the name of a workload to name what they make of
// it: sets of runners, runners and their pods; replica sets and theirs.
var made = regexp.MustCompile(`^(-[a-z0-9]{1,10}(-(runner-)?[a-z0-9]{5})?|-[a-z0-9]+-listener)?$`)

// whose is the workload that an object is of, by its name; "": of none. Of several it
// is the one with the longest name: what is made of acme-gh-nix is not acme-gh's.
func whose(object string, workloads []string) (of string) {
	for _, w := range workloads {
		if rest, begins := strings.CutPrefix(object, w); begins && len(w) > len(of) && (rest == "" || rest[0] == '-') {
			of = w
		}
	}
	if of != "" && !made.MatchString(object[len(of):]) {
		return ""
	}
	return of
}
