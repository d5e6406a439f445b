package plane

import (
	"bytes"
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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// The pace of an event stream.
const (
	heartbeat  = 15 * time.Second
	renewEvery = 5 * time.Second       // half of what the door gives a stream
	gathering  = 50 * time.Millisecond // changes that come together are sent together
	maxStreams = 8                     // of one login on one node
)

// A Topic is a part of the event stream.
type Topic string

// The topics.
const (
	TopicPools       Topic = "pools"       // runners of an organisation, and forges
	TopicRunners     Topic = "runners"     // each of them
	TopicHolds       Topic = "holds"       // pauses of runners
	TopicEnrollments Topic = "enrollments" // organisations
	TopicChanges     Topic = "changes"     // of the configuration
	TopicDrift       Topic = "drift"       // what is not as it should be
	TopicInfra       Topic = "infra"       // clusters, tailnets, gateways, routes, proxy groups, adapters
	TopicSignins     Topic = "signins"     // sign-ins
	TopicSources     Topic = "sources"     // how sources answer
	TopicAudit       Topic = "audit"       // entries of the record; only for who names it
)

// topics are all that there are.
func topics() []Topic {
	return []Topic{TopicPools, TopicRunners, TopicHolds, TopicEnrollments, TopicChanges, TopicDrift, TopicInfra, TopicSignins, TopicSources, TopicAudit}
}

// kinds are those that the topic has; false: there is no such topic.
func (t Topic) kinds() ([]Kind, bool) {
	switch t {
	case TopicPools:
		return []Kind{KindPool, KindForge}, true
	case TopicRunners:
		return []Kind{KindRunner}, true
	case TopicHolds:
		return []Kind{KindHold}, true
	case TopicEnrollments:
		return []Kind{KindEnrollment}, true
	case TopicChanges:
		return []Kind{KindChange}, true
	case TopicDrift:
		return []Kind{KindDrift}, true
	case TopicInfra:
		return []Kind{KindCluster, KindTailnet, KindGateway, KindRoute, KindProxyGroup, KindAdapter}, true
	case TopicSignins:
		return []Kind{KindSignin}, true
	case TopicSources, TopicAudit:
		return nil, true
	}
	return nil, false
}

// Topics is a parameter: topics with commas between them; none: all.
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
		if _, ok := Topic(name).kinds(); !ok {
			return fmt.Errorf("%.40q is not a topic: there are pools, runners, holds, enrollments, changes, drift, infra, signins, sources and audit", name)
		}
		*t = append(*t, Topic(name))
	}
	return nil
}

func (t Topics) has(topic Topic) bool { return len(t) == 0 || slices.Contains(t, topic) }

// kinds are those that the topics have.
func (t Topics) kinds() (kinds []Kind) {
	for _, topic := range topics() {
		if of, _ := topic.kinds(); t.has(topic) {
			kinds = append(kinds, of...)
		}
	}
	return kinds
}

// An EventsRequest asks for what changes from now on, or from a revision on.
type EventsRequest struct {
	Topics Topics `json:"-" query:"topics" doc:"pools, runners, holds, enrollments, changes, drift, infra, signins, sources, audit, with commas between them; all but audit without it"`
	After  Text   `json:"-" query:"after" doc:"the revision to go on from; without it the stream begins with a snapshot"`
	LastID Text   `json:"-" header:"Last-Event-ID" doc:"as after; browsers send it when they come back"`
}

// A Hello begins an event stream.
type Hello struct {
	ServerTime       time.Time `json:"serverTime"`
	Revision         string    `json:"revision"`
	HeartbeatSeconds int       `json:"heartbeatSeconds"`
}

// A Beat says that the stream is alive.
type Beat struct {
	ServerTime time.Time `json:"serverTime"`
}

// A Snapshot is what the caller may see at one revision. A kind that is null is not
// known; one that is not there is not for the caller.
type Snapshot struct {
	Revision string            `json:"revision"`
	Objects  map[Kind][]Object `json:"objects"`
	Sources  []Source          `json:"sources,omitempty"`
}

// A Notice says why a stream ends, or why everything is to be read anew.
type Notice struct {
	Reason string `json:"reason"`
}

// A Gone is what was deleted.
type Gone struct {
	ID string `json:"id"`
}

// reader is one event stream.
type reader struct {
	board  *Board
	topics Topics
	kinds  []Kind // of the topics
	viewer Viewer
	at     uint64
	trail  *audit.Trail // nil: it does not follow the record
	entry  uint64       // its place there
	out    bytes.Buffer // what is to be sent next
}

// events serves one stream until its permit or its client is gone.
func (d *Desk) events(ctx context.Context, p access.Permit, req EventsRequest, s *door.Stream) error {
	if err := p.Require(WatchEvents.Verb, d.Now()); err != nil {
		return err
	}
	leave, err := d.streams.enter(p.Caller())
	if err != nil {
		return err
	}
	defer leave()
	if err := s.Begin("text/event-stream", http.Header{"X-Accel-Buffering": {"no"}}); err != nil {
		return err
	}
	r := &reader{board: d.Board, topics: req.Topics, kinds: req.Topics.kinds(), viewer: ViewerOf(p)}
	if slices.Contains(req.Topics, TopicAudit) {
		r.trail, r.entry = d.Trail, d.Trail.End()
	}
	r.begin(d.Now().UTC(), string(req.LastID), string(req.After))
	renew, beat := time.NewTicker(renewEvery), time.NewTicker(heartbeat)
	defer renew.Stop()
	defer beat.Stop()
	for {
		if r.out.Len() > 0 {
			if _, err := s.Write(r.out.Bytes()); err != nil {
				return nil // the client is gone, or does not read: no failure of ours
			}
			r.out.Reset()
			if r.out.Cap() > 1<<20 {
				r.out = bytes.Buffer{} // after a large snapshot
			}
		}
		select {
		case <-ctx.Done():
			r.tell("bye", Notice{"ended"})
			_, _ = s.Write(r.out.Bytes()) // if anybody is there
			return nil
		case <-renew.C:
			p, err := s.Renew()
			if err != nil {
				r.tell("bye", Notice{string(problem.CodeOf(err))})
				_, _ = s.Write(r.out.Bytes())
				return err
			}
			r.look(ViewerOf(p))
		case <-beat.C:
			r.beat(d.Now().UTC())
		case <-r.board.Changed(r.at):
			gather(ctx)
			r.catchUp()
		case <-r.written():
			gather(ctx)
			r.follow()
		}
	}
}

// gather waits for changes that come together.
func gather(ctx context.Context) {
	pause := time.NewTimer(gathering)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// begin says hello, and from where the stream goes on: from a revision that the
// client has, or from a snapshot.
func (r *reader) begin(now time.Time, lastID, after string) {
	r.out.WriteString("retry: 2000\n\n")
	r.tell("hello", Hello{now, strconv.FormatUint(r.board.Revision(), 10), int(heartbeat / time.Second)})
	from := lastID
	if from == "" {
		from = after
	}
	if from == "" {
		r.snapshot()
		return
	}
	at, err := strconv.ParseUint(from, 10, 64)
	if err != nil {
		r.resync("unknown_revision")
		return
	}
	r.at = at
	r.catchUp()
}

// snapshot sends all that the caller may see.
func (r *reader) snapshot() {
	lists, revision := r.board.Lists(r.kinds...)
	snap := Snapshot{Revision: strconv.FormatUint(revision, 10), Objects: map[Kind][]Object{}}
	for _, l := range lists {
		switch {
		case !r.viewer.any(l.Kind):
		case !l.Known:
			snap.Objects[l.Kind] = nil
		default:
			snap.Objects[l.Kind] = seen[Object](r.viewer, l.Kind, l.Objects)
		}
	}
	if r.topics.has(TopicSources) {
		snap.Sources = r.board.Sources()
	}
	r.at = revision
	r.event(revision, "snapshot", encode(snap))
}

// catchUp sends what has changed since the reader's place.
func (r *reader) catchUp() {
	events, revision, ok := r.board.Since(r.at, r.sees)
	if !ok {
		r.resync("too_far_behind")
		return
	}
	r.at = revision
	for _, e := range events {
		switch e.Change {
		case SourceStatus:
			r.event(e.Revision, "source.status", e.JSON())
		case Known: // what was null is a list
			r.event(e.Revision, "resync", encode(Notice{string(e.Kind) + "_known"}))
		case Delete:
			r.event(e.Revision, string(e.Kind)+".delete", encode(Gone{e.Object.Key()}))
		default:
			data := e.JSON()
			if _, personal := e.Object.(Personal); personal {
				data = encode(r.viewer.show(e.Object))
			}
			r.event(e.Revision, string(e.Kind)+".upsert", data)
		}
	}
}

// written is closed when the record has entries that the reader was not told of.
func (r *reader) written() <-chan struct{} {
	if r.trail == nil {
		return nil
	}
	return r.trail.Changed(r.entry)
}

// follow sends the entries that the caller may read. To be told leaves no entry, and an
// entry is no place to come back to: who comes back reads the record.
func (r *reader) follow() {
	entries, end, ok := r.trail.Since(r.entry)
	if r.entry = end; !ok {
		r.tell("resync", Notice{"record_too_far_behind"})
	}
	for _, e := range entries {
		if !r.viewer.recorded(e) {
			continue
		}
		if e, ok := e.Written(); ok {
			r.tell("audit.append", e)
		}
	}
}

func (r *reader) sees(e Event) bool {
	switch e.Change {
	case SourceStatus:
		return r.topics.has(TopicSources)
	case Known:
		return slices.Contains(r.kinds, e.Kind) && r.viewer.any(e.Kind)
	}
	return slices.Contains(r.kinds, e.Kind) && r.viewer.sees(e.Kind, e.Object)
}

// look goes on with another view. Who sees less than before has to forget.
func (r *reader) look(v Viewer) {
	changed := !maps.EqualFunc(r.viewer.verbs, v.verbs, slices.Equal)
	r.viewer = v
	if changed {
		r.resync("role_changed")
	}
}

// resync asks the client to read everything anew, and goes on from now.
func (r *reader) resync(reason string) {
	r.at = r.board.Revision()
	r.event(r.at, "resync", encode(Notice{reason}))
}

// beat says that the stream is alive: by a comment, for what stands between, and by
// an event, as pages hear no comments. With it goes the revision that the client may
// come back with: what it does not see moves on, too.
func (r *reader) beat(now time.Time) {
	r.out.WriteString(": still here\n")
	r.event(r.at, "heartbeat", encode(Beat{now}))
}

// event sends one event. JSON has no line feed.
func (r *reader) event(revision uint64, name string, data []byte) {
	fmt.Fprintf(&r.out, "id: %d\nevent: %s\ndata: %s\n\n", revision, name, data)
}

// tell sends what is no place to come back to.
func (r *reader) tell(name string, data any) {
	fmt.Fprintf(&r.out, "event: %s\ndata: %s\n\n", name, encode(data))
}

// streams counts the open ones.
type streams struct {
	mu   sync.Mutex
	open map[string]int
}

// enter takes a place for c, and returns what gives it back.
func (s *streams) enter(c access.Caller) (leave func(), err error) {
	who := string(c.Via) + " " + c.Identity() + " " + c.Device.ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[who] >= maxStreams {
		return nil, problem.New(problem.RateLimited, fmt.Sprintf("You have %d event streams open, which is as many as there may be.", maxStreams),
			"Close a tab, or wait until one ends.").After(heartbeat)
	}
	if s.open == nil {
		s.open = map[string]int{}
	}
	s.open[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[who]--; s.open[who] == 0 {
			delete(s.open, who)
		}
	}, nil
}
