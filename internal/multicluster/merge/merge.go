package merge

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/bits"
	"slices"
	"sync"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
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
	Format codec.Format
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
	Hash string // CollectionHash

	// Buffers is the buffer pool of the streams, shared with other collections; nil: each stream allocates
	// its own.
	Buffers *codec.BufferPool

	// Fetch sends a request to a member. A response other than 200 is a *codec.Status; any other error means
	// that there was no response. The body is valid until it is closed or ctx ends.
	Fetch func(ctx context.Context, m Member, a MemberRequest) (*Body, error)
	// Skip reports whether a failed member may be left out; nil: none may. It is not called for a 410.
	Skip func(m Member, err error) bool
	// OnObject is called when an object appears at a member or disappears, before the client sees the event;
	// nil: not called.
	OnObject func(m Member, namespace, name []byte, here bool)
}

// ErrMixedFormats reports that members answered in different encodings. Every member supports JSON, so the caller
// can retry with it.
var ErrMixedFormats = errors.New("members answered in different formats")

// retryAfter is the Retry-After in seconds if members do not respond.
const retryAfter = 1

func (c *Collection) planner() Planner {
	p := Planner{Epoch: c.Epoch, Width: c.Width, Hash: c.Hash}
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
	panic(fmt.Sprintf("there is no plan for a member in slot %d", slot))
}

// failedMember returns the member that caused a Status; nil if no member did.
func (c *Collection) failedMember(s *codec.Status) *Member {
	i := slices.IndexFunc(c.Members, func(m Member) bool { return m.Name == s.From })
	if i < 0 {
		return nil
	}
	return &c.Members[i]
}

// needsNames reports whether the merge needs the name of each item.
func (c *Collection) needsNames(m Member) bool { return c.Spread || m.Keep != nil }

// memberResponse is a member's response to one request.
type memberResponse struct {
	member  Member
	request MemberRequest
	body    *Body
	err     error
}

// fetchAll sends all requests concurrently. The responses are in the order of requests. If it returns an error, it
// has closed all bodies.
func (c *Collection) fetchAll(ctx context.Context, requests []MemberRequest) (responses []memberResponse, skipped []Member, err error) {
	all := make([]memberResponse, len(requests))
	var wg sync.WaitGroup
	for i, a := range requests {
		all[i] = memberResponse{member: c.member(a.Slot), request: a}
		wg.Go(func() { all[i].body, all[i].err = c.Fetch(ctx, all[i].member, a) })
	}
	wg.Wait()
	return c.skipFailed(all)
}

// skipFailed leaves out the failed members that may be left out, and combines the other failures into one error.
func (c *Collection) skipFailed(all []memberResponse) (responses []memberResponse, skipped []Member, err error) {
	var failed []memberResponse
	for _, a := range all {
		switch {
		case a.err == nil:
			responses = append(responses, a)
		case !isExpired(a.err) && c.Skip != nil && c.Skip(a.member, a.err):
			skipped = append(skipped, a.member)
		default:
			failed = append(failed, a)
		}
	}
	if len(failed) == 0 && len(responses) == 0 {
		failed = all // no member is left
	}
	if len(failed) > 0 {
		closeAll(responses)
		return nil, nil, selectFailure(failed)
	}
	for _, a := range responses {
		if a.body.Format != responses[0].body.Format {
			closeAll(responses)
			return nil, nil, ErrMixedFormats
		}
	}
	return responses, skipped, nil
}

func closeAll(responses []memberResponse) {
	for _, a := range responses {
		a.body.Close()
	}
}

// selectFailure selects the error for the client if several members failed. A 410 has precedence, because the client
// must list again anyway. Otherwise it is the first in member order.
func selectFailure(failed []memberResponse) error {
	for _, a := range failed {
		if isExpired(a.err) {
			return clientError(a.member, a.err)
		}
	}
	return clientError(failed[0].member, failed[0].err)
}

func isExpired(err error) bool {
	s, ok := errors.AsType[*codec.Status](err)
	return ok && s.Code == 410
}

// clientError converts a member's error to the error for the client.
func clientError(m Member, err error) error {
	if s, ok := errors.AsType[*codec.Status](err); ok {
		status := *s
		status.From = m.Name
		status.Message = fmt.Sprintf("mca: cluster %s: %s", m.Name, s.Message)
		return &status
	}
	if errors.Is(err, ErrMixedFormats) || errors.Is(err, context.Canceled) {
		return err
	}
	return &codec.Status{Code: 503, Reason: codec.ReasonUnavailable, RetryAfter: retryAfter,
		Message: fmt.Sprintf("mca: cluster %s did not answer: %v", m.Name, err)}
}

// nameSet records which members have which names, by hash. The value has a bit for each member, in member
// order. The seed is secret, so that a client cannot create colliding names.
type nameSet struct {
	seed maphash.Seed
	bits map[uint64]uint32
}

func newNameSet() *nameSet { return &nameSet{maphash.MakeSeed(), map[uint64]uint32{}} }

func (n *nameSet) hash(namespace, name []byte) uint64 {
	return bits.RotateLeft64(maphash.Bytes(n.seed, namespace), 29) ^ maphash.Bytes(n.seed, name)
}

// loadNames adds the names that the members have.
func (c *Collection) loadNames(ctx context.Context, n *nameSet, requests []MemberRequest) error {
	for i := range requests {
		requests[i].Names = true
	}
	all := *c
	all.Skip = nil // without its names, a skipped member's objects would look absent
	responses, _, err := all.fetchAll(ctx, requests)
	if err != nil {
		return err
	}
	defer closeAll(responses)
	for _, a := range responses {
		bit := uint32(1) << c.memberIndex(a.member)
		l := codec.NewListReader(a.body, a.body.Format)
		if err := eachItem(l, func() {
			if a.member.Keep == nil || a.member.Keep(l.Namespace) {
				n.bits[n.hash(l.Namespace, l.Name)] |= bit
			}
		}); err != nil {
			return clientError(a.member, err)
		}
	}
	return nil
}

// memberIndex returns the index of a member.
func (c *Collection) memberIndex(m Member) int {
	return max(0, slices.IndexFunc(c.Members, func(o Member) bool { return o.Slot == m.Slot }))
}

// eachItem reads a list to its end and calls f for each item.
func eachItem(l *codec.ListReader, f func()) error {
	if err := l.Open(); err != nil {
		return err
	}
	for {
		ok, err := l.Next()
		if err != nil || !ok {
			return err
		}
		f()
		if err := l.SkipItem(io.Discard); err != nil {
			return err
		}
	}
}
