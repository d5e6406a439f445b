package merge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// List is a merged list, or one page of it, that is ready to be written.
type List struct {
	// Format is the encoding of the list, which is that of the members' responses.
	Format codec.Format
	// Skipped lists the members that are left out because Skip allowed it.
	Skipped []Member
	// Dropped counts the omitted copies of names that an earlier member has. It is final when WriteTo has
	// returned.
	Dropped int

	c       *Collection
	vector  Vector
	sources []*listSource
	queue   []MemberRequest // the members after this page
	paged   bool
	limit   int64
	late    bool     // the metadata follows the items
	names   *nameSet // names of the members so far; nil: names cannot repeat
	token   *continueToken
}

// listSource is one member's part of a list.
type listSource struct {
	memberResponse
	list *codec.ListReader
	// whole is the list, if it has already been read completely.
	whole *codec.ListReader
}

// meta returns the metadata of the member's list, as far as it is known.
func (s *listSource) meta() *codec.ListReader {
	if s.whole != nil {
		return s.whole
	}
	return s.list
}

// List requests the list from all members and reads the start of their responses. The error is a *codec.Status
// for the client, [ErrMixedFormats], or the error of ctx. The caller must close the List.
func (c *Collection) List(ctx context.Context, q Query) (*List, error) {
	plan, refusal := c.planner().Plan(q)
	if refusal != nil {
		return nil, refusal
	}
	if plan.Verbatim {
		return nil, c.relayError(ctx, plan.Requests[0])
	}
	l := &List{c: c, vector: plan.Vector, limit: q.Limit, token: plan.Token}
	if c.Spread && len(c.Members) > 1 {
		l.names = newNameSet()
	}
	var err error
	if l.paged = q.Limit > 0 || plan.Token != nil; l.paged {
		err = l.openPage(ctx, plan)
	} else {
		err = l.openWhole(ctx, plan)
	}
	if err == nil {
		err = l.checkSameKind()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// relayError forwards an invalid request to a member and returns that member's error.
func (c *Collection) relayError(ctx context.Context, a MemberRequest) error {
	m := c.member(a.Slot)
	body, err := c.Fetch(ctx, m, a)
	if err == nil {
		body.Close()
		return badRequestStatus("this combination of parameters is not possible for several clusters")
	}
	if s, ok := errors.AsType[*codec.Status](err); ok {
		return s
	}
	return clientError(m, err)
}

func (l *List) openWhole(ctx context.Context, plan Plan) error {
	responses, skipped, err := l.c.fetchAll(ctx, plan.Requests)
	if err != nil {
		return err
	}
	l.Skipped = skipped
	for i, a := range responses {
		if err := l.add(a, a.body, nil); err != nil {
			closeAll(responses[i:])
			return err
		}
	}
	return nil
}

// add appends a member's response, whose content is read from r.
func (l *List) add(a memberResponse, r io.Reader, whole *codec.ListReader) error {
	s := &listSource{memberResponse: a, list: codec.NewListReader(r, a.body.Format), whole: whole}
	l.sources = append(l.sources, s)
	if err := s.list.Open(); err != nil {
		return clientError(a.member, err)
	}
	rv := s.meta().Meta.ResourceVersion
	if rv == 0 && a.body.Format.Proto {
		return clientError(a.member, errors.New("a list has no resourceVersion"))
	}
	l.late = l.late || rv == 0
	l.vector.Raise(a.member.Slot, rv)
	return nil
}

// checkSameKind checks everything that is known before the first byte is written.
func (l *List) checkSameKind() error {
	first := l.sources[0]
	l.Format = first.body.Format
	for _, s := range l.sources {
		if s.body.Format != l.Format {
			return ErrMixedFormats
		}
		if l.Format.Shape == codec.ShapeTable {
			s.list.Row = codec.NewRow(s.list.Columns, first.list.Columns, s.member.Name, l.c.Bare)
		}
		if !l.late {
			if err := l.sameKind(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *List) sameKind(s *listSource) error {
	first, other := l.sources[0].meta(), s.meta()
	if other.Kind == first.Kind && other.APIVersion == first.APIVersion {
		return nil
	}
	return clientError(
		s.member,
		fmt.Errorf("it has %s of %s where another cluster has %s of %s", other.Kind, other.APIVersion, first.Kind, first.APIVersion),
	)
}

// Close closes the members' responses.
func (l *List) Close() error {
	for _, s := range l.sources {
		s.body.Close()
	}
	return nil
}

// head returns the metadata of the merged list.
func (l *List) head() codec.ListHead {
	first := l.sources[0].meta()
	h := codec.ListHead{Kind: first.Kind, APIVersion: first.APIVersion, ResourceVersion: l.vector.String()}
	h.Meta.Remaining = -1
	h.Meta.Shard = first.Meta.Shard
	h.Meta.Continue = l.nextToken()
	if last := l.sources[len(l.sources)-1]; h.Meta.Continue != "" && len(l.queue) == 0 {
		h.Meta.Remaining = last.meta().Meta.Remaining
	}
	return h
}

// WriteTo writes the list. After an error the output is truncated. The caller must then abort the connection,
// so that the client detects it.
func (l *List) WriteTo(out io.Writer) (int64, error) {
	counted := &countingWriter{out: out}
	var err error
	switch {
	case l.Format.Proto:
		err = l.writeProto(counted)
	case l.Format.Shape == codec.ShapeTable: // each row is written in several pieces
		w := bufio.NewWriterSize(counted, 32<<10)
		if err = l.writeJSON(w); err == nil {
			err = w.Flush()
		}
	default:
		err = l.writeJSON(counted)
	}
	return counted.n, err
}

type countingWriter struct {
	out io.Writer
	n   int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.out.Write(b)
	c.n += int64(n)
	return n, err
}

func (l *List) writeJSON(w io.Writer) error {
	head := codec.ListHead{}
	if !l.late {
		head = l.head()
	}
	if _, err := w.Write(head.AppendJSON(nil, l.Format, l.sources[0].list.Columns, l.late)); err != nil {
		return err
	}
	first := true
	for _, s := range l.sources {
		if err := l.items(s, func(keep bool) error {
			if !keep {
				return s.list.SkipItem(nil)
			}
			comma := !first
			first = false
			return s.list.SpliceItem(w, comma)
		}); err != nil {
			return err
		}
	}
	if l.late {
		head = l.head()
	}
	_, err := w.Write(head.AppendEnd(nil, l.late))
	return err
}

func (l *List) writeProto(w io.Writer) error {
	var rest uint64
	for _, s := range l.sources {
		rest += s.list.Rest()
	}
	if _, err := w.Write(l.head().AppendProto(nil, rest)); err != nil {
		return err
	}
	for _, s := range l.sources {
		if err := l.items(s, func(keep bool) error {
			if keep {
				return s.list.SpliceItem(w, false)
			}
			return s.list.SkipItem(w)
		}); err != nil {
			return err
		}
	}
	_, err := w.Write(codec.AppendProtoEnd(nil))
	return err
}

// items calls f for each item of a member. keep reports whether the item belongs to the merged list.
func (l *List) items(s *listSource, f func(keep bool) error) error {
	bit := uint32(1) << l.c.memberIndex(s.member)
	for {
		ok, err := s.list.Next()
		if err == nil && !ok {
			return l.checkComplete(s)
		}
		if err == nil {
			var keep bool
			if keep, err = l.isFirstCopy(s, bit); err == nil {
				err = f(keep)
			}
		}
		if err != nil {
			return fmt.Errorf("list of cluster %s: %w", s.member.Name, err)
		}
	}
}

// isFirstCopy reports whether the current item belongs to the merged list.
func (l *List) isFirstCopy(s *listSource, bit uint32) (bool, error) {
	if s.list.Foreign {
		return true, nil
	}
	if len(s.list.Name) == 0 && l.c.needsNames(s.member) {
		return false, errors.New("an item has no name")
	}
	if s.member.Keep != nil && !s.member.Keep(s.list.Namespace) {
		return false, nil
	}
	if l.names != nil {
		h := l.names.hash(s.list.Namespace, s.list.Name)
		if l.names.bits[h]&(bit-1) != 0 {
			l.Dropped++
			return false, nil
		}
		l.names.bits[h] |= bit
	}
	if l.c.OnObject != nil && len(s.list.Name) > 0 {
		l.c.OnObject(s.member, s.list.Namespace, s.list.Name, true)
	}
	return true, nil
}

// checkComplete checks a member's list after its last item.
func (l *List) checkComplete(s *listSource) error {
	m := s.meta().Meta
	if m.ResourceVersion == 0 {
		return clientError(s.member, errors.New("a list has no resourceVersion"))
	}
	if err := l.sameKind(s); err != nil {
		return err
	}
	if m.Continue != "" && (!l.paged || s != l.sources[len(l.sources)-1]) {
		return clientError(s.member, errors.New("a list is a page, although all items were requested"))
	}
	l.vector.Raise(s.member.Slot, m.ResourceVersion)
	return nil
}
