package merge

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// readAhead is how many bytes of a member's page are read to find out whether it has fewer items than the
// limit, so that the next member's page may follow. A page that is longer ends the merged page. It is not
// empty, and pages may be shorter than the limit.
const readAhead = 256 << 10

// openPage assembles one page. It starts with the current member and adds the next members while the page is
// short.
func (l *List) openPage(ctx context.Context, plan Plan) error {
	current, err := l.fetchNextMember(ctx, plan)
	if err != nil {
		return err
	}
	first := l.c.memberIndex(current.member)
	if err := l.loadEarlierNames(ctx, l.c.Members[:first]); err != nil {
		current.body.Close()
		return err
	}
	for skipped := l.limit; ; {
		n, full, err := l.addPage(current, skipped)
		if err != nil {
			return err
		}
		skipped -= n
		if full || skipped <= 0 && l.limit > 0 {
			return nil
		}
		if len(l.sources) == 1 && l.token != nil && l.token.Inner != "" {
			if err := l.loadEarlierNames(ctx, l.c.Members[first:first+1]); err != nil {
				return err
			}
		}
		next := l.queue[0]
		next.Limit = max(skipped, 0)
		responses, _, err := l.c.fetchAll(ctx, []MemberRequest{next})
		if err != nil || responses[0].body.Format != current.body.Format {
			if err == nil {
				closeAll(responses)
			}
			return nil // the request for the next page returns the error
		}
		l.queue = l.queue[1:]
		current = responses[0]
	}
}

// fetchNextMember requests the first member's part of the page. For the first page it also requests the positions of all
// members, which every later token contains.
func (l *List) fetchNextMember(ctx context.Context, plan Plan) (memberResponse, error) {
	requests := plan.Requests
	if plan.Known {
		l.queue = requests[1:]
		current := memberResponse{member: l.c.member(requests[0].Slot), request: requests[0]}
		current.body, current.err = l.c.Fetch(ctx, current.member, current.request)
		if current.err != nil {
			return memberResponse{}, l.pageFailure(current)
		}
		return current, nil
	}
	for i := range requests[1:] {
		requests[i+1].Limit = 1
	}
	responses, skipped, err := l.c.fetchAll(ctx, requests)
	if err != nil {
		return memberResponse{}, err
	}
	l.Skipped = skipped
	for i, a := range responses[1:] {
		rv, err := readPosition(a)
		if err != nil {
			closeAll(responses[:1])
			closeAll(responses[i+2:])
			return memberResponse{}, clientError(a.member, err)
		}
		l.vector.Raise(a.member.Slot, rv)
		l.queue = append(l.queue, requestExactly(a.member.Slot, rv, l.limit))
	}
	if responses[0].request.Slot != requests[0].Slot { // this request was only for the position
		rv, err := readPosition(responses[0])
		if err != nil {
			return memberResponse{}, clientError(responses[0].member, err)
		}
		l.vector.Raise(responses[0].member.Slot, rv)
		again, _, err := l.c.fetchAll(ctx, []MemberRequest{requestExactly(responses[0].member.Slot, rv, l.limit)})
		if err != nil {
			return memberResponse{}, err
		}
		return again[0], nil
	}
	return responses[0], nil
}

// readPosition reads the resourceVersion of a list and closes the body.
func readPosition(a memberResponse) (uint64, error) {
	defer a.body.Close()
	list := codec.NewListReader(a.body, a.body.Format)
	if err := list.Open(); err != nil {
		return 0, err
	}
	for list.Meta.ResourceVersion == 0 {
		ok, err := list.Next()
		if err == nil && ok {
			err = list.SkipItem(io.Discard)
		}
		if err != nil {
			return 0, err
		}
		if !ok && list.Meta.ResourceVersion == 0 {
			return 0, errors.New("a list has no resourceVersion")
		}
	}
	return list.Meta.ResourceVersion, nil
}

// pageFailure returns the error for the client if the next page fails. If the position has expired, its token
// lets the client continue with an inconsistent list.
func (l *List) pageFailure(a memberResponse) error {
	err := clientError(a.member, a.err)
	s, ok := errors.AsType[*codec.Status](err)
	if !ok || s.Code != 410 || l.token == nil {
		return err
	}
	token := continueToken{Vector: l.vector, Slot: a.member.Slot, Inner: s.Continue, Inconsistent: true}
	s.Continue = token.Encode(l.c.Hash)
	return s
}

// addPage appends a member's page. It returns the number of its items and whether the merged page is
// complete.
func (l *List) addPage(a memberResponse, limit int64) (n int64, full bool, err error) {
	if len(l.queue) == 0 {
		return 0, true, l.add(a, a.body, nil)
	}
	head, err := io.ReadAll(io.LimitReader(a.body, readAhead))
	if err != nil {
		a.body.Close()
		return 0, true, clientError(a.member, err)
	}
	if len(head) == readAhead {
		return 0, true, l.add(a, io.MultiReader(bytes.NewReader(head), a.body), nil)
	}
	list := codec.NewListReader(bytes.NewReader(head), a.body.Format)
	if err := eachItem(list, func() { n++ }); err != nil {
		a.body.Close()
		return 0, true, clientError(a.member, err)
	}
	err = l.add(a, bytes.NewReader(head), list)
	return n, list.Meta.Continue != "" || limit > 0 && n >= limit, err
}

// nextToken returns the continue token of the next page, or "".
func (l *List) nextToken() string {
	if !l.paged {
		return ""
	}
	last := l.sources[len(l.sources)-1]
	t := continueToken{Vector: l.vector, Slot: last.member.Slot, Inner: last.meta().Meta.Continue}
	switch {
	case t.Inner != "":
		t.Inconsistent = l.token != nil && l.token.Slot == t.Slot && l.token.Inconsistent
	case len(l.queue) > 0:
		t.Slot = l.queue[0].Slot
	default:
		return ""
	}
	return t.Encode(l.c.Hash)
}

// loadEarlierNames adds the names of the members whose pages are done, because a page does not contain the items of
// earlier pages. It reads only names, and only if names can repeat.
func (l *List) loadEarlierNames(ctx context.Context, members []Member) error {
	if l.names == nil || l.token == nil {
		return nil
	}
	req := func(at func(slot int) MemberRequest) error {
		var requests []MemberRequest
		for _, m := range members {
			if l.vector.At(m.Slot) > 0 {
				requests = append(requests, at(m.Slot))
			}
		}
		if len(requests) == 0 {
			return nil
		}
		return l.c.loadNames(ctx, l.names, requests)
	}
	err := req(func(slot int) MemberRequest { return requestExactly(slot, l.vector.At(slot), 0) })
	if isExpired(err) {
		err = req(func(slot int) MemberRequest { return MemberRequest{Slot: slot} })
	}
	return err
}
