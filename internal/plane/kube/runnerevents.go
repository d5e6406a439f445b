package kube

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Limits of reading events. The plane reads at most maxEvents of a namespace, once per maxEventsAge, for any number of callers.
const (
	maxEvents           = 2000
	maxEventsAge        = 5 * time.Second
	eventsTimeout       = 10 * time.Second
	maxCachedNamespaces = 256
)

// EventReader reads recent events by namespace. It needs list on events. A watch of all events of a cluster would keep far more than callers
// read. So it lists on demand and shares one result among the callers of the next seconds.
type EventReader struct {
	client client.Client
	now    func() time.Time
	cached plane.ReadCache[eventList]
}

// eventList is the result of one list. An error is shared like events.
type eventList struct {
	all []plane.Event
	err error
}

// Events returns a reader of events.
func (c *Connection) Events() *EventReader {
	return &EventReader{client: c.client, now: c.now, cached: plane.ReadCache[eventList]{Max: maxCachedNamespaces}}
}

// List returns the recent events of a namespace. The caller must not modify the slice.
func (s *EventReader) List(ctx context.Context, namespace string) ([]plane.Event, error) {
	now := s.now()
	list, err := s.cached.Do(ctx, namespace, now, now.Add(maxEventsAge), func(ctx context.Context) (eventList, error) {
		return s.list(ctx, namespace), nil
	})
	return list.all, cmp.Or(err, list.err)
}

func (s *EventReader) list(ctx context.Context, namespace string) eventList {
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	var list corev1.EventList
	if err := s.client.List(ctx, &list, client.InNamespace(namespace), client.Limit(maxEvents)); err != nil {
		return eventList{err: fmt.Errorf("list events of %s: %w", namespace, err)}
	}
	all := []plane.Event{}
	for i := range list.Items {
		all = append(all, eventOf(&list.Items[i]))
	}
	return eventList{all: all}
}

// eventOf converts an event of either API. In a series, the series' count and time apply.
func eventOf(e *corev1.Event) plane.Event {
	o := plane.Event{Type: e.Type, Reason: clip(e.Reason), Message: clip(e.Message), Kind: e.InvolvedObject.Kind, Name: e.InvolvedObject.Name, By: cmp.Or(e.Source.Component, e.ReportingController),
		Count: max(int(e.Count), 1), First: e.FirstTimestamp.UTC(), Last: e.LastTimestamp.UTC()}
	if e.FirstTimestamp.IsZero() {
		o.First = e.EventTime.UTC()
	}
	if e.LastTimestamp.IsZero() {
		o.Last = o.First
	}
	if e.Series != nil {
		o.Count, o.Last = int(e.Series.Count), e.Series.LastObservedTime.UTC()
	}
	return o
}

// LogReader reads the logs of pods. It needs get on pods/log.
type LogReader struct {
	client corev1client.PodsGetter
	now    func() time.Time
}

// Logs returns a reader of logs.
func (c *Connection) Logs() *LogReader { return &LogReader{c.pods, c.now} }

// Open opens the log of a runner of the permit's organisation. The stream ends with ctx. The caller must close it.
func (s *LogReader) Open(ctx context.Context, p access.Permit, o plane.LogOptions) (io.ReadCloser, error) {
	if err := p.Require(access.LogsRead, s.now()); err != nil {
		return nil, err
	}
	if r := o.Runner; p.Org() != r.OrgName && !p.Everywhere() {
		return nil, problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("a permit of %q was used for the log of %s, which is of %q", p.Org(), r.ID, r.OrgName))
	}
	text, err := s.client.Pods(o.Runner.Namespace).GetLogs(o.Runner.Name, &corev1.PodLogOptions{Container: o.Container, TailLines: new(int64(o.Tail)), Follow: o.Follow}).Stream(ctx)
	switch {
	case err == nil:
		return text, nil
	case apierrors.IsNotFound(err):
		return nil, problem.New(problem.NotFound, "The log no longer exists.", "The pod is gone. Check the job at its forge.").WithCause(err)
	case apierrors.IsBadRequest(err): // the container has not started, or does not exist
		return nil, problem.New(problem.Conflict, "The runner has no log yet.", "Check the runner's pod, and try again in a moment.").WithCause(err)
	case apierrors.IsForbidden(err):
		return nil, problem.New(problem.Unavailable, "This server's account may not read logs.", "Grant it get on pods/log. The chart does this with plane.logs.enabled: true.").WithCause(err)
	}
	return nil, problem.New(problem.Unavailable, "The log cannot be read at the moment.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(fmt.Errorf("log of %s: %w", o.Runner.ID, err))
}
