package merge

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// readAhead is how many bytes of a member's page are read to find out whether it has fewer items than the
// limit, so that the next member's page may follow. A page that is longer ends the merged page. It is not
// empty, and pages may be shorter than the limit.
const readAhead = 256 << 10

// openPage assembles one page. It starts with the current member and adds the next members while the page is
// short.
func (l *List) openPage(ctx context.Context, plan position.Plan) error {
	current, err := l.turn(ctx, plan)
	if err != nil {
		return err
	}
	first := l.c.order(current.member)
	if err := l.earlier(ctx, l.c.Members[:first]); err != nil {
		current.body.Close()
		return err
	}
	for left := l.limit; ; {
		n, full, err := l.addPage(current, left)
		if err != nil {
			return err
		}
		left -= n
		if full || left <= 0 && l.limit > 0 {
			return nil
		}
		if len(l.sources) == 1 && l.token != nil && l.token.Inner != "" {
			if err := l.earlier(ctx, l.c.Members[first:first+1]); err != nil {
				return err
			}
		}
		next := l.queue[0]
		next.Limit = max(left, 0)
		answers, _, err := l.c.askAll(ctx, []position.Ask{next})
		if err != nil || answers[0].body.Form != current.body.Form {
			if err == nil {
				closeAll(answers)
			}
			return nil // the request for the next page returns the error
		}
		l.queue = l.queue[1:]
		current = answers[0]
	}
}

// turn requests the first member's part of the page. For the first page it also requests the positions of all
// members, which every later token contains.
func (l *List) turn(ctx context.Context, plan position.Plan) (answer, error) {
	asks := plan.Asks
	if plan.Known {
		l.queue = asks[1:]
		current := answer{member: l.c.member(asks[0].Slot), ask: asks[0]}
		current.body, current.err = l.c.Ask(ctx, current.member, current.ask)
		if current.err != nil {
			return answer{}, l.pageFailure(current)
		}
		return current, nil
	}
	for i := range asks[1:] {
		asks[i+1].Limit = 1
	}
	answers, left, err := l.c.askAll(ctx, asks)
	if err != nil {
		return answer{}, err
	}
	l.Left = left
	for i, a := range answers[1:] {
		rv, err := readPosition(a)
		if err != nil {
			closeAll(answers[:1])
			closeAll(answers[i+2:])
			return answer{}, failure(a.member, err)
		}
		l.vector.Raise(a.member.Slot, rv)
		l.queue = append(l.queue, position.Exactly(a.member.Slot, rv, l.limit))
	}
	if answers[0].ask.Slot != asks[0].Slot { // this request was only for the position
		rv, err := readPosition(answers[0])
		if err != nil {
			return answer{}, failure(answers[0].member, err)
		}
		l.vector.Raise(answers[0].member.Slot, rv)
		again, _, err := l.c.askAll(ctx, []position.Ask{position.Exactly(answers[0].member.Slot, rv, l.limit)})
		if err != nil {
			return answer{}, err
		}
		return again[0], nil
	}
	return answers[0], nil
}

// readPosition reads the resourceVersion of a list and closes the body.
func readPosition(a answer) (uint64, error) {
	defer a.body.Close()
	list := wire.NewList(a.body, a.body.Form)
	if err := list.Open(); err != nil {
		return 0, err
	}
	for list.Meta.ResourceVersion == 0 {
		ok, err := list.Next()
		if err == nil && ok {
			err = list.Drop(io.Discard)
		}
		if err != nil {
			return 0, err
		}
		if !ok && list.Meta.ResourceVersion == 0 {
			return 0, errors.New("a list without a resourceVersion")
		}
	}
	return list.Meta.ResourceVersion, nil
}

// pageFailure returns the error for the client if the next page fails. If the position has expired, its token
// lets the client continue with an inconsistent list.
func (l *List) pageFailure(a answer) error {
	err := failure(a.member, a.err)
	s, ok := errors.AsType[*wire.Status](err)
	if !ok || s.Code != 410 || l.token == nil {
		return err
	}
	token := position.Token{Vector: l.vector, Slot: a.member.Slot, Inner: s.Continue, Inconsistent: true}
	s.Continue = token.Encode(l.c.Hash)
	return s
}

// addPage appends a member's page. It returns the number of its items and whether the merged page is
// complete.
func (l *List) addPage(a answer, limit int64) (n int64, full bool, err error) {
	if len(l.queue) == 0 {
		return 0, true, l.add(a, a.body, nil)
	}
	head, err := io.ReadAll(io.LimitReader(a.body, readAhead))
	if err != nil {
		a.body.Close()
		return 0, true, failure(a.member, err)
	}
	if len(head) == readAhead {
		return 0, true, l.add(a, io.MultiReader(bytes.NewReader(head), a.body), nil)
	}
	list := wire.NewList(bytes.NewReader(head), a.body.Form)
	if err := eachItem(list, func() { n++ }); err != nil {
		a.body.Close()
		return 0, true, failure(a.member, err)
	}
	err = l.add(a, bytes.NewReader(head), list)
	return n, list.Meta.Continue != "" || limit > 0 && n >= limit, err
}

// next returns the continue token of the next page, or "".
func (l *List) next() string {
	if !l.paged {
		return ""
	}
	last := l.sources[len(l.sources)-1]
	t := position.Token{Vector: l.vector, Slot: last.member.Slot, Inner: last.said().Meta.Continue}
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

// earlier adds the names of the members whose pages are done, because a page does not contain the items of
// earlier pages. It reads only names, and only if names can repeat.
func (l *List) earlier(ctx context.Context, members []Member) error {
	if l.names == nil || l.token == nil {
		return nil
	}
	ask := func(at func(slot int) position.Ask) error {
		var asks []position.Ask
		for _, m := range members {
			if l.vector.At(m.Slot) > 0 {
				asks = append(asks, at(m.Slot))
			}
		}
		if len(asks) == 0 {
			return nil
		}
		return l.c.prime(ctx, l.names, asks)
	}
	err := ask(func(slot int) position.Ask { return position.Exactly(slot, l.vector.At(slot), 0) })
	if expired(err) {
		err = ask(func(slot int) position.Ask { return position.Ask{Slot: slot} })
	}
	return err
}
