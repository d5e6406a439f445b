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

// A Member is one of the clusters that keep a collection.
type Member struct {
	Slot int
	Name string // of the cluster
	// Keep says whether an object of this namespace counts; nil: all do.
	Keep func(namespace []byte) bool
}

// A Body is what a member answered with 200.
type Body struct {
	io.ReadCloser
	Form wire.Form
}

// A Collection is one that several clusters keep: a path with its selectors,
// asked for in one way. It is made for each request and not changed after.
type Collection struct {
	Members []Member // in their order, by which the first of several copies wins
	Epoch   uint64   // of the document
	Width   int      // the highest slot of the document plus 1
	// Spread says that any member may have any object, so that a name may be
	// there twice. In a union each namespace is of one member.
	Spread bool
	// Bare says that a Table was asked for without objects. Members must be
	// asked for the objects' metadata all the same.
	Bare bool
	Hash string // position.CollectionHash
	// Ring is of all streams of this collection, and as old as the adapter's
	// process; nil: who comes back with an event's number reads again.
	Ring *position.Ring

	// Buffers are lent to streams, of this collection and others; nil: each takes
	// its own.
	Buffers *wire.Buffers

	// Ask asks a member; what is not a 200 is a *wire.Status, any other error
	// is no answer. The body lives until it is closed or ctx ends.
	Ask func(ctx context.Context, m Member, a position.Ask) (*Body, error)
	// Skip says whether a member that failed may be left out; nil: none may.
	// A failure that is a 410 is never asked about.
	Skip func(m Member, err error) bool
	// Learn is told of an object that is, or is no longer, at a member, before
	// the client is; nil: nobody asks.
	Learn func(m Member, namespace, name []byte, here bool)
}

// ErrForms says that members answered in different forms. JSON is one that all
// of them have.
var ErrForms = errors.New("members answered in different forms")

// retryAfter is for members that do not answer, in seconds.
const retryAfter = 1

func (c *Collection) place() position.Place {
	p := position.Place{Epoch: c.Epoch, Width: c.Width, Hash: c.Hash, Ring: c.Ring, Now: time.Now()}
	for _, m := range c.Members {
		p.Slots = append(p.Slots, m.Slot)
	}
	return p
}

// member is the one in a slot.
func (c *Collection) member(slot int) Member {
	for _, m := range c.Members {
		if m.Slot == slot {
			return m
		}
	}
	panic(fmt.Sprintf("no member in slot %d was planned for", slot))
}

// named is the member whose failure a Status is; nil if it is nobody's.
func (c *Collection) named(s *wire.Status) *Member {
	for i := range c.Members {
		if c.Members[i].Name == s.From {
			return &c.Members[i]
		}
	}
	return nil
}

// needsNames says whether it matters which object an item is.
func (c *Collection) needsNames(m Member) bool { return c.Spread || m.Keep != nil }

// An answer is what one member said to one question.
type answer struct {
	member Member
	ask    position.Ask
	body   *Body
	err    error
}

// askAll asks all at the same time. The answers are in the order of the asks;
// no body is open when there is an error.
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

// sift leaves out who may be left out, and makes one failure of several.
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
		failed = all // nobody is left
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

// worst is what a client is told when several failed: a 410, as it must read
// again anyway, or else the first in order.
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

// failure is a member's failure as the client is told of it.
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

// names are the names that members have, by a hash: a bit for each member, in
// their order. The seed is a secret, so nobody can make two names meet.
type names struct {
	seed maphash.Seed
	bits map[uint64]uint32
}

func newNames() *names { return &names{maphash.MakeSeed(), map[uint64]uint32{}} }

func (n *names) hash(namespace, name []byte) uint64 {
	return bits.RotateLeft64(maphash.Bytes(n.seed, namespace), 29) ^ maphash.Bytes(n.seed, name)
}

// prime takes in the names that members have: all that asks are for.
func (c *Collection) prime(ctx context.Context, n *names, asks []position.Ask) error {
	for i := range asks {
		asks[i].Names = true
	}
	all := *c
	all.Skip = nil // without a member's names its objects would count as nobody's
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

// order is a member's place.
func (c *Collection) order(m Member) int {
	for i, o := range c.Members {
		if o.Slot == m.Slot {
			return i
		}
	}
	return 0
}

// eachItem reads a list to its end.
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
