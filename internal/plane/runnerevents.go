package plane

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// eventsSource is the name of the source of events.
const eventsSource = "kubernetes:events"

// Event is a Kubernetes event.
type Event struct {
	Type    string    `json:"type" enum:"Normal,Warning"`
	Reason  string    `json:"reason" doc:"a word"`
	Message string    `json:"message" doc:"a sentence"`
	Kind    string    `json:"kind" doc:"kind of the object that the event is about"`
	Name    string    `json:"name"`
	By      string    `json:"by" doc:"the component that reports it"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// maxEvents is the maximum number of events in one response.
const maxEvents = 200

// listEvents returns the events of a pool of an organisation, newest first.
func (d *RunnerService) listEvents(ctx context.Context, p access.Permit, req PoolRequest) (e Envelope[[]Event], err error) {
	o, l, err := d.getPool(p, req)
	if err != nil {
		return e, err
	}
	all, source := d.poolEvents(ctx, o)
	return newEnvelope(d.Plane, "EventList", all, l.Revision, append(slices.Clone(l.Sources), source)), nil
}

// poolEvents returns the events of a pool of an organisation, newest first. It returns nil if they are unknown; the source then has the
// reason.
func (d *RunnerService) poolEvents(ctx context.Context, o Pool) ([]Event, Source) {
	source := Source{Name: eventsSource, Status: StatusOK, ObservedAt: d.now(), Since: d.now()}
	fail := func(err error) ([]Event, Source) {
		source.Status, source.Message, source.ObservedAt = StatusDown, "Events cannot be read: "+err.Error()+".", time.Time{}
		return nil, source
	}
	// Events of cluster-scoped objects are in the namespace default.
	own, err := d.ReadEvents(ctx, "default")
	if err != nil {
		return fail(err)
	}
	out := []Event{}
	for _, e := range own {
		if e.Kind == "RunnerEnrollment" && e.Name == o.OrgName { // events of pools, holds and forges concern all organisations
			out = append(out, e)
		}
	}
	if where := o.Controller.Namespace; where != "" {
		others := d.workloads(where)
		here, err := d.ReadEvents(ctx, where)
		if err != nil {
			return fail(err)
		}
		for _, e := range here {
			if workloadOf(e.Name, others) == o.Controller.Name {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Name, b.Name)) })
	return out[:min(len(out), maxEvents)], source
}

// workloads returns the names of all workloads in a namespace, of every organisation. They show which workload a deleted pod belonged to.
func (d *RunnerService) workloads(namespace string) (names []string) {
	for _, o := range d.Plane.Store.List(KindPool).Objects {
		if p, ok := o.(Pool); ok && p.Controller.Namespace == namespace && p.Controller.Name != "" {
			names = append(names, p.Controller.Name)
		}
	}
	return names
}

// generatedSuffix matches the suffixes that controllers add to a workload's name: for runner sets, runners and their pods, and for replica sets and
// their pods.
var generatedSuffix = regexp.MustCompile(`^(-[a-z0-9]{1,10}(-(runner-)?[a-z0-9]{5})?|-[a-z0-9]+-listener)?$`)

// workloadOf returns the workload of an object by the object's name, or "". If several match, the longest wins: an object of acme-gh-nix is not
// one of acme-gh.
func workloadOf(object string, workloads []string) (of string) {
	for _, w := range workloads {
		if rest, begins := strings.CutPrefix(object, w); begins && len(w) > len(of) && (rest == "" || rest[0] == '-') {
			of = w
		}
	}
	if of != "" && !generatedSuffix.MatchString(object[len(of):]) {
		return ""
	}
	return of
}
