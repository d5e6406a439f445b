package merge

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/bits"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Member is one of the clusters that hold a collection.
type Member struct {
	Slot int
	Name string // of the cluster
	// Keep reports whether objects of a namespace belong to the collection; nil: all do.
	Keep func(namespace []byte) bool
}

// Body is a member's response with status 200.
type Body struct {
	io.ReadCloser
	Form wire.Form
}

// Collection is a collection that several clusters hold: a path with its selectors and output form. It is
// created for each request and does not change afterwards.
type Collection struct {
	Members []Member // in order of precedence: the copy of the first member wins
	Epoch   uint64   // of the configuration
	Width   int      // the highest slot of the configuration plus 1
	// Spread means that any member may have any object, so a name may occur several times. In a union each
	// namespace belongs to one member.
	Spread bool
	// Bare means that the client requested a Table without objects. Requests to members must still include
	// the objects' metadata.
	Bare bool
	Hash string // position.CollectionHash
	// Ring is shared by all streams of this collection and lives as long as the adapter process. If it is
	// nil, a client that returns with the resourceVersion of an event must list again.
	Ring *position.Ring

	// Buffers is the buffer pool of the streams, shared with other collections; nil: each stream allocates
	// its own.
	Buffers *wire.Buffers

	// Ask sends a request to a member. A response other than 200 is a *wire.Status; any other error means
	// that there was no response. The body is valid until it is closed or ctx ends.
	Ask func(ctx context.Context, m Member, a position.Ask) (*Body, error)
	// Skip reports whether a failed member may be left out; nil: none may. It is not called for a 410.
	Skip func(m Member, err error) bool
	// Learn is called when an object appears at a member or disappears, before the client sees the event;
	// nil: not called.
	Learn func(m Member, namespace, name []byte, here bool)
}

// ErrForms reports that members answered in different encodings. Every member supports JSON, so the caller
// can retry with it.
var ErrForms = errors.New("members answered in different forms")

// retryAfter is the Retry-After in seconds if members do not respond.
const retryAfter = 1

func (c *Collection) place() position.Place {
	p := position.Place{Epoch: c.Epoch, Width: c.Width, Hash: c.Hash, Ring: c.Ring, Now: time.Now()}
	for _, m := range c.Members {
		p.Slots = append(p.Slots, m.Slot)
	}
	return p
}

// member returns the member in a slot. It panics if there is none.
func (c *Collection) member(slot int) Member {
	for _, m := range c.Members {
		if m.Slot == slot {
			return m
		}
	}
	panic(fmt.Sprintf("no member in slot %d was planned for", slot))
}

// named returns the member that caused a Status; nil if no member did.
func (c *Collection) named(s *wire.Status) *Member {
	for i := range c.Members {
		if c.Members[i].Name == s.From {
			return &c.Members[i]
		}
	}
	return nil
}

// needsNames reports whether the merge needs the name of each item.
func (c *Collection) needsNames(m Member) bool { return c.Spread || m.Keep != nil }

// answer is a member's response to one request.
type answer struct {
	member Member
	ask    position.Ask
	body   *Body
	err    error
}

// askAll sends all requests concurrently. The answers are in the order of asks. If it returns an error, it
// has closed all bodies.
func (c *Collection) askAll(ctx context.Context, asks []position.Ask) (answers []answer, left []Member, err error) {
	all := make([]answer, len(asks))
	var wg sync.WaitGroup
	for i, a := range asks {
		all[i] = answer{member: c.member(a.Slot), ask: a}
		wg.Go(func() { all[i].body, all[i].err = c.Ask(ctx, all[i].member, a) })
	}
	wg.Wait()
	return c.sift(all)
}

// sift leaves out the failed members that may be left out, and combines the other failures into one error.
func (c *Collection) sift(all []answer) (answers []answer, left []Member, err error) {
	var failed []answer
	for _, a := range all {
		switch {
		case a.err == nil:
			answers = append(answers, a)
		case !expired(a.err) && c.Skip != nil && c.Skip(a.member, a.err):
			left = append(left, a.member)
		default:
			failed = append(failed, a)
		}
	}
	if len(failed) == 0 && len(answers) == 0 {
		failed = all // no member is left
	}
	if len(failed) > 0 {
		closeAll(answers)
		return nil, nil, worst(failed)
	}
	for _, a := range answers {
		if a.body.Form != answers[0].body.Form {
			closeAll(answers)
			return nil, nil, ErrForms
		}
	}
	return answers, left, nil
}

func closeAll(answers []answer) {
	for _, a := range answers {
		a.body.Close()
	}
}

// worst selects the error for the client if several members failed. A 410 has precedence, because the client
// must list again anyway. Otherwise it is the first in member order.
func worst(failed []answer) error {
	for _, a := range failed {
		if expired(a.err) {
			return failure(a.member, a.err)
		}
	}
	return failure(failed[0].member, failed[0].err)
}

func expired(err error) bool {
	s, ok := errors.AsType[*wire.Status](err)
	return ok && s.Code == 410
}

// failure converts a member's error to the error for the client.
func failure(m Member, err error) error {
	if s, ok := errors.AsType[*wire.Status](err); ok {
		told := *s
		told.From = m.Name
		told.Message = fmt.Sprintf("mca: cluster %s: %s", m.Name, s.Message)
		return &told
	}
	if errors.Is(err, ErrForms) || errors.Is(err, context.Canceled) {
		return err
	}
	return &wire.Status{Code: 503, Reason: wire.ReasonUnavailable, RetryAfter: retryAfter,
		Message: fmt.Sprintf("mca: cluster %s did not answer: %v", m.Name, err)}
}

// names records which members have which names, by hash. The value has a bit for each member, in member
// order. The seed is secret, so that a client cannot create colliding names.
type names struct {
	seed maphash.Seed
	bits map[uint64]uint32
}

func newNames() *names { return &names{maphash.MakeSeed(), map[uint64]uint32{}} }

func (n *names) hash(namespace, name []byte) uint64 {
	return bits.RotateLeft64(maphash.Bytes(n.seed, namespace), 29) ^ maphash.Bytes(n.seed, name)
}

// prime adds the names that the members in asks have.
func (c *Collection) prime(ctx context.Context, n *names, asks []position.Ask) error {
	for i := range asks {
		asks[i].Names = true
	}
	all := *c
	all.Skip = nil // without its names, a skipped member's objects would look absent
	answers, _, err := all.askAll(ctx, asks)
	if err != nil {
		return err
	}
	defer closeAll(answers)
	for _, a := range answers {
		bit := uint32(1) << c.order(a.member)
		l := wire.NewList(a.body, a.body.Form)
		if err := eachItem(l, func() {
			if a.member.Keep == nil || a.member.Keep(l.Namespace) {
				n.bits[n.hash(l.Namespace, l.Name)] |= bit
			}
		}); err != nil {
			return failure(a.member, err)
		}
	}
	return nil
}

// order returns the index of a member.
func (c *Collection) order(m Member) int {
	for i, o := range c.Members {
		if o.Slot == m.Slot {
			return i
		}
	}
	return 0
}

// eachItem reads a list to its end and calls f for each item.
func eachItem(l *wire.List, f func()) error {
	if err := l.Open(); err != nil {
		return err
	}
	for {
		ok, err := l.Next()
		if err != nil || !ok {
			return err
		}
		f()
		if err := l.Drop(io.Discard); err != nil {
			return err
		}
	}
}
