package accessproxy

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/signin"
)

// A cut is why the proxy ends a stream.
type cut struct {
	cause  string // for metrics and the audit log
	reason string // one sentence for the person, without a final dot
}

// The causes of a cut.
const (
	cutSignin    = "signin"    // the sign-in has ended
	cutIdentity  = "identity"  // the tailnet no longer admits the caller
	cutProof     = "proof"     // the API server no longer proves that the sign-in lives
	cutPolicy    = "policy"    // the rules of the settings changed
	cutRecording = "recording" // a required recording was lost
	cutStop      = "stop"      // the proxy stops
	cutUpstream  = "upstream"  // the API server's connection broke off
	cutAsked     = "asked"     // a person asked for it
)

var (
	cutStopping = cut{cutStop, "the access proxy is stopping; connect again"}
	cutBroken   = cut{cutUpstream, "the connection to the API server broke off, or one behind it"}
)

// StreamKinds returns the kinds of streams.
func StreamKinds() []string {
	var all []string
	for _, k := range []apiproxy.StreamKind{apiproxy.StreamWatch, apiproxy.StreamLog, apiproxy.StreamExec, apiproxy.StreamAttach, apiproxy.StreamPortForward, apiproxy.StreamProxy} {
		all = append(all, string(k))
	}
	return all
}

// A stream is an open stream of one exchange. Its end is a function of its kind, see end.go.
type stream struct {
	connections.Stream
	bytes  atomic.Int64  // in both directions
	conn   *http.Request // of the same connection, to identify the client again
	caller access.Caller
	input  policy.Input
	level  policy.Level // at which the stream is recorded
	uid    string       // of the sign-in
	// version is a resource version of the sign-in at which it lived.
	version string

	once   sync.Once
	why    cut // written before wasCut
	wasCut atomic.Bool
	live   context.Context // ends when the stream is cut, and when it is over
	end    context.CancelFunc
}

func (s *stream) kind() apiproxy.StreamKind { return apiproxy.StreamKind(s.Kind) }

// cut ends the stream. Only the first call has an effect.
func (s *stream) cut(why cut) {
	s.once.Do(func() {
		s.why = why
		s.wasCut.Store(true)
		s.end()
	})
}

// isCut returns why the proxy ends the stream, or false.
func (s *stream) isCut() (cut, bool) {
	if !s.wasCut.Load() {
		return cut{}, false
	}
	return s.why, true
}

// streams are the open streams. For each sign-in with streams, one goroutine waits for its end.
type streams struct {
	proxy   *Proxy
	mu      sync.Mutex
	open    map[*stream]struct{}
	signins map[string]*watchedSignin // by UID
	stopped bool
	none    chan struct{} // closed while no stream is open
}

type watchedSignin struct {
	streams map[*stream]struct{}
	stop    context.CancelFunc
}

func (t *streams) init(p *Proxy) {
	t.proxy, t.open, t.signins, t.none = p, map[*stream]struct{}{}, map[string]*watchedSignin{}, make(chan struct{})
	close(t.none)
}

// add registers the stream of x, whose request the API server has accepted.
func (t *streams) add(x *exchange) *stream {
	s := &stream{conn: bareRequest(x.r), caller: x.caller, input: x.input(), level: x.level, uid: x.signin.UID, version: x.signin.Version,
		Stream: x.describe()}
	s.live, s.end = context.WithCancel(context.Background())
	defer t.judgeAgain(s, x)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) == 0 {
		t.none = make(chan struct{})
	}
	t.open[s] = struct{}{}
	w := t.signins[s.uid]
	if w == nil {
		w = &watchedSignin{streams: map[*stream]struct{}{}}
		t.signins[s.uid] = w
		var ctx context.Context
		ctx, w.stop = context.WithCancel(context.Background())
		go t.watch(ctx, x.signin)
	}
	w.streams[s] = struct{}{}
	if t.stopped {
		s.cut(cutStopping)
	}
	return s
}

// judgeAgain judges a stream whose rules or sign-in changed after its request was judged and before it was registered.
func (t *streams) judgeAgain(s *stream, x *exchange) {
	if rules := t.proxy.rules.Load(); rules != x.rules {
		s.judge(rules)
	}
	if now, ok := t.proxy.Signins.GetCached(x.signin.Name); ok && now.UID == x.signin.UID {
		s.judgeSignin(now)
	}
}

// remove forgets a stream that has ended.
func (t *streams) remove(s *stream) {
	defer s.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, s)
	if len(t.open) == 0 {
		close(t.none)
	}
	w := t.signins[s.uid]
	delete(w.streams, s)
	if len(w.streams) == 0 {
		w.stop()
		delete(t.signins, s.uid)
	}
}

// watch cuts the streams of a sign-in when it ends.
func (t *streams) watch(ctx context.Context, s signin.Signin) {
	p := t.proxy
	for ctx.Err() == nil {
		until, cancel := context.WithDeadline(ctx, s.ValidUntil)
		err := p.Signins.Await(until, s.Name, func(now signin.Signin, ok bool) bool {
			if ok && now.UID == s.UID && (!now.ValidUntil.Equal(s.ValidUntil) || len(now.Record) > len(s.Record)) {
				return true // extended or shortened, or it must be recorded now: wait for the new end
			}
			return !ok || now.UID != s.UID || !isLive(now, p.Now())
		})
		cancel()
		now, ok := p.Signins.GetCached(s.Name)
		switch {
		case ctx.Err() != nil:
			return
		case ok && now.UID == s.UID && isLive(now, p.Now()):
			s = now
			t.judgeSignin(now)
		case err != nil && until.Err() == nil: // the API server did not confirm the end; proofs decide
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		default:
			t.cutSignin(s.UID, cut{cutSignin, endOf(now, ok && now.UID == s.UID, p.Now())})
			return
		}
	}
}

// isLive reports whether a sign-in gives access at now. A sign-in that is being extended is Pending for a moment.
func isLive(s signin.Signin, now time.Time) bool {
	state := s.State(now)
	return (state == signin.Ready && mismatch(s, now) == nil || state == signin.Pending) && now.Before(s.ValidUntil)
}

// endOf says why a sign-in no longer gives access.
func endOf(s signin.Signin, exists bool, now time.Time) string {
	switch {
	case exists && !s.ValidUntil.IsZero() && !now.Before(s.ValidUntil):
		return "the sign-in expired at " + s.ValidUntil.UTC().Format(time.RFC3339)
	case exists && s.State(now) == signin.Refused:
		return "the sign-in was refused: " + s.Message
	}
	return "the sign-in was ended: by a logout, by a change of the tailnet policy, or by an administrator"
}

// cutSignin cuts all streams of the sign-in with this UID.
func (t *streams) cutSignin(uid string, why cut) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.signins[uid]; w != nil {
		for s := range w.streams {
			s.cut(why)
		}
	}
}

// judgeSignin judges the streams of a sign-in that has changed.
func (t *streams) judgeSignin(now signin.Signin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.signins[now.UID]; w != nil {
		for s := range w.streams {
			s.judgeSignin(now)
		}
	}
}

// cutAll cuts all streams. If the proxy stops, it also cuts the ones that begin later.
func (t *streams) cutAll(why cut) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = t.stopped || why.cause == cutStop
	for s := range t.open {
		s.cut(why)
	}
}

// list returns the open streams, in no order.
func (t *streams) list() []*stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*stream, 0, len(t.open))
	for s := range t.open {
		all = append(all, s)
	}
	return all
}

// wait waits until no stream is open, or until ctx ends.
func (t *streams) wait(ctx context.Context) {
	t.mu.Lock()
	none := t.none
	t.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// Kinds returns the kind of each open stream.
func (p *Proxy) Kinds() (kinds []string) {
	p.prepare()
	for _, s := range p.streams.list() {
		kinds = append(kinds, s.Kind)
	}
	return kinds
}
