package planekube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane/planejobs"
)

// Limits of reading events. The plane reads at most mostEvents of a namespace, once per eventsAge, for any number of callers.
const (
	mostEvents  = 2000
	eventsAge   = 5 * time.Second
	eventsLimit = 10 * time.Second
	mostPlaces  = 256
)

// Events reads recent events by namespace. It needs list on events. A watch of all events of a cluster would keep far more than callers
// read. So it lists on demand and shares one result among the callers of the next seconds.
type Events struct {
	client client.Client
	now    func() time.Time

	mu    sync.Mutex
	known map[string]*eventsOf
}

// eventsOf holds the events of one namespace.
type eventsOf struct {
	read chan struct{} // closed when the list is complete
	at   time.Time
	all  []planejobs.Event
	err  error
}

// NewEvents returns an Events. It sends no request yet.
func NewEvents(config *rest.Config, now func() time.Time) (*Events, error) {
	if config == nil || now == nil {
		return nil, errors.New("reading events takes a client configuration and a clock")
	}
	c, err := NewClient(kube.Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &Events{client: c, now: now, known: map[string]*eventsOf{}}, nil
}

// In returns the recent events of a namespace. The caller must not modify the slice.
func (s *Events) In(ctx context.Context, namespace string) ([]planejobs.Event, error) {
	is, mine := s.of(namespace)
	if mine {
		// Other callers wait for this list, so it must not end with the first caller's context.
		go s.list(context.WithoutCancel(ctx), namespace, is)
	}
	select {
	case <-is.read:
		return is.all, is.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// of returns the list to wait for, and whether the caller must start it.
func (s *Events) of(namespace string) (is *eventsOf, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if is := s.known[namespace]; is != nil && now.Sub(is.at) < eventsAge {
		return is, false
	}
	for name, is := range s.known {
		if now.Sub(is.at) >= eventsAge || len(s.known) >= mostPlaces {
			delete(s.known, name)
		}
	}
	is = &eventsOf{read: make(chan struct{}), at: now}
	s.known[namespace] = is
	return is, true
}

func (s *Events) list(ctx context.Context, namespace string, is *eventsOf) {
	defer close(is.read)
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	var list corev1.EventList
	if err := s.client.List(ctx, &list, client.InNamespace(namespace), client.Limit(mostEvents)); err != nil {
		is.err = fmt.Errorf("list events of %s: %w", namespace, err)
		return
	}
	is.all = []planejobs.Event{}
	for i := range list.Items {
		is.all = append(is.all, eventOf(&list.Items[i]))
	}
}

// eventOf converts an event of either API. In a series, the series' count and time apply.
func eventOf(e *corev1.Event) planejobs.Event {
	o := planejobs.Event{Type: e.Type, Reason: short(e.Reason), Message: short(e.Message), Kind: e.InvolvedObject.Kind, Name: e.InvolvedObject.Name, By: e.Source.Component,
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
