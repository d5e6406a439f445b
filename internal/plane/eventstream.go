package plane

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Intervals and limits of an event stream.
const (
	heartbeat     = 15 * time.Second
	permitRenewal = 5 * time.Second       // half the time that the server allows a stream between renewals
	batchDelay    = 50 * time.Millisecond // the stream sends changes of this interval together
	maxStreams    = 8                     // per login and node
)

// Topic is a part of the event stream.
type Topic string

// The topics.
const (
	TopicPools       Topic = "pools"       // runners of an organisation, and forges
	TopicRunners     Topic = "runners"     // single runners
	TopicHolds       Topic = "holds"       // pauses of runners
	TopicEnrollments Topic = "enrollments" // organisations
	TopicChanges     Topic = "changes"     // changes of the configuration
	TopicDrift       Topic = "drift"       // differences between desired and actual state
	TopicInfra       Topic = "infra"       // clusters, tailnets, gateways, routes, proxy groups, adapters
	TopicSignins     Topic = "signins"     // sign-ins
	TopicSources     Topic = "sources"     // the health of sources
	TopicAudit       Topic = "audit"       // audit entries; only for a client that names this topic
)

// topicKinds has the kinds of each topic.
var topicKinds = map[Topic][]Kind{
	TopicPools:       {KindPool, KindForge},
	TopicRunners:     {KindRunner},
	TopicHolds:       {KindHold},
	TopicEnrollments: {KindEnrollment},
	TopicChanges:     {KindChange},
	TopicDrift:       {KindDrift},
	TopicInfra:       {KindCluster, KindTailnet, KindGateway, KindRoute, KindProxyGroup, KindAdapter},
	TopicSignins:     {KindSignin},
	TopicSources:     nil,
	TopicAudit:       nil,
}

// Topics is a parameter: a comma-separated list of topics. An empty list means all.
type Topics []Topic

// MarshalText implements [encoding.TextMarshaler].
func (t Topics) MarshalText() ([]byte, error) {
	var names []string
	for _, topic := range t {
		names = append(names, string(topic))
	}
	return []byte(strings.Join(names, ",")), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Topics) UnmarshalText(b []byte) error {
	for name := range strings.SplitSeq(string(b), ",") {
		if _, known := topicKinds[Topic(name)]; !known {
			return fmt.Errorf("%.40q is not a topic; use pools, runners, holds, enrollments, changes, drift, infra, signins, sources or audit", name)
		}
		*t = append(*t, Topic(name))
	}
	return nil
}

func (t Topics) has(topic Topic) bool { return len(t) == 0 || slices.Contains(t, topic) }

// kinds returns the kinds of all the topics.
func (t Topics) kinds() (kinds []Kind) {
	for topic, of := range topicKinds {
		if t.has(topic) {
			kinds = append(kinds, of...)
		}
	}
	return kinds
}

// EventsRequest asks for changes from now on, or after a revision.
type EventsRequest struct {
	Topics Topics `json:"-" query:"topics" doc:"comma-separated topics: pools, runners, holds, enrollments, changes, drift, infra, signins, sources, audit (default: all but audit)"`
	After  Text   `json:"-" query:"after" doc:"the revision to continue from; without it the stream begins with a snapshot"`
	LastID Text   `json:"-" header:"Last-Event-ID" doc:"same as after; browsers send it when they reconnect"`
}

// Hello is the first event of a stream.
type Hello struct {
	ServerTime       time.Time `json:"serverTime"`
	Revision         string    `json:"revision"`
	HeartbeatSeconds int       `json:"heartbeatSeconds"`
}

// Heartbeat shows that the stream is alive.
type Heartbeat struct {
	ServerTime time.Time `json:"serverTime"`
}

// Snapshot holds what the caller may see at one revision. An unknown kind is null. A kind that the caller may not see is absent.
type Snapshot struct {
	Revision string          `json:"revision"`
	Objects  SnapshotObjects `json:"objects" null:"never" doc:"the objects by kind; null: not known; absent: hidden from the caller, or of another topic"`
	Sources  []Source        `json:"sources,omitempty"`
}

// SnapshotObjects are lists of objects by kind.
type SnapshotObjects map[Kind][]Object

// Members returns a list for each kind, for the generated reference.
func (SnapshotObjects) Members() map[string]any {
	lists := map[string]any{}
	for _, f := range kindForms() {
		lists[string(f.kind)] = f.list
	}
	return lists
}

// Notice says why a stream ends, or why the client must read everything again.
type Notice struct {
	Reason string `json:"reason"`
}

// DeletedObject identifies a deleted object.
type DeletedObject struct {
	ID string `json:"id"`
}

// eventReader is one event stream.
type eventReader struct {
	store         *Store
	topics        Topics
	kinds         []Kind // of the topics
	viewer        Viewer
	revision      uint64
	recentAudit   *audit.Recent // nil: the stream does not follow the audit log
	auditPosition uint64        // its position in recentAudit
	out           bytes.Buffer  // what the stream sends next
}

// streamEvents serves one stream until its permit expires or its client disconnects.
func (d *Service) streamEvents(ctx context.Context, p access.Permit, req EventsRequest, s *httpapi.Stream) error {
	if err := p.Require(WatchEvents.Verb, d.Now()); err != nil {
		return err
	}
	leave, err := d.streams.open(p.Caller())
	if err != nil {
		return err
	}
	defer leave()
	if err := s.Begin("text/event-stream", http.Header{"X-Accel-Buffering": {"no"}}); err != nil {
		return err
	}
	r := &eventReader{store: d.Store, topics: req.Topics, kinds: req.Topics.kinds(), viewer: ViewerOf(p)}
	if slices.Contains(req.Topics, TopicAudit) {
		r.recentAudit, r.auditPosition = d.RecentAudit, d.RecentAudit.End()
	}
	r.start(d.Now().UTC(), string(req.LastID), string(req.After))
	renew, beat := time.NewTicker(permitRenewal), time.NewTicker(heartbeat)
	defer renew.Stop()
	defer beat.Stop()
	for {
		if r.out.Len() > 0 {
			if _, err := s.Write(r.out.Bytes()); err != nil {
				return nil // the client has disconnected or does not read: not an error of the plane
			}
			r.out.Reset()
			if r.out.Cap() > 1<<20 {
				r.out = bytes.Buffer{} // free the memory of a large snapshot
			}
		}
		select {
		case <-ctx.Done():
			r.writeEvent("bye", Notice{"ended"})
			_, _ = s.Write(r.out.Bytes()) // in case the client is still connected
			return nil
		case <-renew.C:
			p, err := s.Renew()
			if err != nil {
				r.writeEvent("bye", Notice{string(problem.CodeOf(err))})
				_, _ = s.Write(r.out.Bytes())
				return err
			}
			r.setViewer(ViewerOf(p))
		case <-beat.C:
			r.writeHeartbeat(d.Now().UTC())
		case <-r.store.Changed(r.revision):
			_ = retry.Sleep(ctx, batchDelay) // the loop checks ctx itself
			r.sendChanges()
		case <-r.auditChanged():
			_ = retry.Sleep(ctx, batchDelay) // the loop checks ctx itself
			r.sendAudit()
		}
	}
}

// start sends hello. It then sends the changes after the client's revision, or a snapshot if the client has none.
func (r *eventReader) start(now time.Time, lastID, after string) {
	r.out.WriteString("retry: 2000\n\n")
	r.writeEvent("hello", Hello{now, strconv.FormatUint(r.store.Revision(), 10), int(heartbeat / time.Second)})
	from := cmp.Or(lastID, after)
	if from == "" {
		r.sendSnapshot()
		return
	}
	at, err := strconv.ParseUint(from, 10, 64)
	if err != nil {
		r.resync("unknown_revision")
		return
	}
	r.revision = at
	r.sendChanges()
}

// sendSnapshot sends all objects that the caller may see.
func (r *eventReader) sendSnapshot() {
	lists, revision := r.store.ListAll(r.kinds...)
	snap := Snapshot{Revision: strconv.FormatUint(revision, 10), Objects: SnapshotObjects{}}
	for _, l := range lists {
		switch {
		case !r.viewer.seesAny(l.Kind):
		case !l.Known:
			snap.Objects[l.Kind] = nil
		default:
			snap.Objects[l.Kind] = visibleObjects[Object](r.viewer, l.Kind, l.Objects)
		}
	}
	if r.topics.has(TopicSources) {
		snap.Sources = r.store.Sources()
	}
	r.revision = revision
	r.writeResumable(revision, "snapshot", encode(snap))
}

// sendChanges sends the changes after the reader's position.
func (r *eventReader) sendChanges() {
	events, revision, ok := r.store.Since(r.revision, r.sees)
	if !ok {
		r.resync("too_far_behind")
		return
	}
	r.revision = revision
	for _, e := range events {
		switch e.Type {
		case EventSourceStatus:
			r.writeResumable(e.Revision, "source.status", e.JSON())
		case EventKnown: // the list was null before
			r.writeResumable(e.Revision, "resync", encode(Notice{string(e.Kind) + "_known"}))
		case EventDelete:
			r.writeResumable(e.Revision, string(e.Kind)+".delete", encode(DeletedObject{e.Object.Key()}))
		default:
			data := e.JSON()
			if _, personal := e.Object.(Personal); personal {
				data = encode(r.viewer.view(e.Object))
			}
			r.writeResumable(e.Revision, string(e.Kind)+".upsert", data)
		}
	}
}

// auditChanged returns a channel that closes when the audit log has entries that the reader has not received.
func (r *eventReader) auditChanged() <-chan struct{} {
	if r.recentAudit == nil {
		return nil
	}
	return r.recentAudit.Changed(r.auditPosition)
}

// sendAudit sends the entries that the caller may read. Receiving them adds no audit entry. The events have no id, so a client cannot resume
// from them; a client that reconnects must read the audit log.
func (r *eventReader) sendAudit() {
	entries, end, ok := r.recentAudit.Since(r.auditPosition)
	if r.auditPosition = end; !ok {
		r.writeEvent("resync", Notice{"record_too_far_behind"})
	}
	for _, e := range entries {
		if !r.viewer.seesEntry(e) {
			continue
		}
		if e, ok := e.Stored(); ok {
			r.writeEvent("audit.append", e)
		}
	}
}

func (r *eventReader) sees(e StoreEvent) bool {
	switch e.Type {
	case EventSourceStatus:
		return r.topics.has(TopicSources)
	case EventKnown:
		return slices.Contains(r.kinds, e.Kind) && r.viewer.seesAny(e.Kind)
	}
	return slices.Contains(r.kinds, e.Kind) && r.viewer.sees(e.Kind, e.Object)
}

// setViewer sets a new view. If the caller's verbs have changed, the client must read everything again and drop what it may no longer see.
func (r *eventReader) setViewer(v Viewer) {
	changed := !maps.EqualFunc(r.viewer.verbs, v.verbs, slices.Equal)
	r.viewer = v
	if changed {
		r.resync("role_changed")
	}
}

// resync makes the client read everything again, and continues from the current revision.
func (r *eventReader) resync(reason string) {
	r.revision = r.store.Revision()
	r.writeResumable(r.revision, "resync", encode(Notice{reason}))
}

// writeHeartbeat shows that the stream is alive: with a comment for proxies, and with an event for pages, which do not see comments. The event
// carries the current revision, which also advances for changes that the client may not see.
func (r *eventReader) writeHeartbeat(now time.Time) {
	r.out.WriteString(": still here\n")
	r.writeResumable(r.revision, "heartbeat", encode(Heartbeat{now}))
}

// writeResumable writes one event that a client can resume from. JSON has no line feed.
func (r *eventReader) writeResumable(revision uint64, name string, data []byte) {
	fmt.Fprintf(&r.out, "id: %d\nevent: %s\ndata: %s\n\n", revision, name, data)
}

// writeEvent writes an event that a client cannot resume from.
func (r *eventReader) writeEvent(name string, data any) {
	fmt.Fprintf(&r.out, "event: %s\ndata: %s\n\n", name, encode(data))
}

// streamCounter counts the open streams of each caller.
type streamCounter struct {
	mu    sync.Mutex
	count map[string]int
}

// open reserves a stream for c. The caller must call leave when the stream ends.
func (s *streamCounter) open(c access.Caller) (leave func(), err error) {
	who := string(c.Via) + " " + c.Identity() + " " + c.Device.ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count[who] >= maxStreams {
		return nil, problem.New(problem.RateLimited, fmt.Sprintf("You have %d open event streams, which is the maximum.", maxStreams),
			"Close a tab, or wait until a stream ends.").WithRetryAfter(heartbeat)
	}
	if s.count == nil {
		s.count = map[string]int{}
	}
	s.count[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count[who]--; s.count[who] == 0 {
			delete(s.count, who)
		}
	}, nil
}
