package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
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

	mu     sync.Mutex
	cached map[string]*cachedEvents
}

// cachedEvents holds the events of one namespace.
type cachedEvents struct {
	done chan struct{} // closed when the list is complete
	at   time.Time
	all  []plane.Event
	err  error
}

// NewEventReader returns an Events. It sends no request yet.
func NewEventReader(config *rest.Config, now func() time.Time) (*EventReader, error) {
	c, err := connect(config, now != nil, "the event reader needs a client configuration and a clock")
	if err != nil {
		return nil, err
	}
	return &EventReader{client: c, now: now, cached: map[string]*cachedEvents{}}, nil
}

// List returns the recent events of a namespace. The caller must not modify the slice.
func (s *EventReader) List(ctx context.Context, namespace string) ([]plane.Event, error) {
	is, own := s.cachedList(namespace)
	if own {
		// Other callers wait for this list, so it must not end with the first caller's context.
		go s.list(context.WithoutCancel(ctx), namespace, is)
	}
	select {
	case <-is.done:
		return is.all, is.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cachedList returns the list to wait for, and whether the caller must start it.
func (s *EventReader) cachedList(namespace string) (is *cachedEvents, own bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if is := s.cached[namespace]; is != nil && now.Sub(is.at) < maxEventsAge {
		return is, false
	}
	for name, is := range s.cached {
		if now.Sub(is.at) >= maxEventsAge || len(s.cached) >= maxCachedNamespaces {
			delete(s.cached, name)
		}
	}
	is = &cachedEvents{done: make(chan struct{}), at: now}
	s.cached[namespace] = is
	return is, true
}

func (s *EventReader) list(ctx context.Context, namespace string, is *cachedEvents) {
	defer close(is.done)
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	var list corev1.EventList
	if err := s.client.List(ctx, &list, client.InNamespace(namespace), client.Limit(maxEvents)); err != nil {
		is.err = fmt.Errorf("list events of %s: %w", namespace, err)
		return
	}
	is.all = []plane.Event{}
	for i := range list.Items {
		is.all = append(is.all, eventOf(&list.Items[i]))
	}
}

// eventOf converts an event of either API. In a series, the series' count and time apply.
func eventOf(e *corev1.Event) plane.Event {
	o := plane.Event{Type: e.Type, Reason: clip(e.Reason), Message: clip(e.Message), Kind: e.InvolvedObject.Kind, Name: e.InvolvedObject.Name, By: e.Source.Component,
		Count: max(int(e.Count), 1), First: e.FirstTimestamp.UTC(), Last: e.LastTimestamp.UTC()}
	if o.By == "" {
		o.By = e.ReportingController
	}
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

// NewLogReader returns a Logs. It sends no request yet.
func NewLogReader(config *rest.Config, now func() time.Time) (*LogReader, error) {
	if config == nil || now == nil {
		return nil, errors.New("the log reader needs a client configuration and a clock")
	}
	c, err := corev1client.NewForConfig(kube.Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &LogReader{c, now}, nil
}

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
