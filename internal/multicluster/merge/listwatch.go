package merge

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// openStream opens a watch at a member. A server without support for initial events answers 422. stream then
// sends a list request and a watch request, which together give the same events.
func (c *Collection) openStream(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
	body, err := c.fetchStream(ctx, m, a)
	if s, ok := errors.AsType[*codec.Status](err); !ok || s.Code != 422 || !a.isInitial() {
		return body, err
	}
	req := MemberRequest{Slot: a.Slot, RV: a.RV, Namespace: a.Namespace, Name: a.Name}
	if a.RV != "" && a.RV != "0" {
		req.Match = a.Match
	}
	ctx, cancel := context.WithCancelCause(ctx)
	list, err := c.fetchStream(ctx, m, req)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r, w := io.Pipe()
	go func() { // it ends when the reader is closed, and every Body is closed
		w.CloseWithError(c.replayList(ctx, m, req, list, w))
	}()
	return &Body{CloseWith(r, func() { cancel(nil) }), list.Format}, nil
}

// replayList writes a list as initial events, then the events of a watch from there.
func (c *Collection) replayList(ctx context.Context, m Member, req MemberRequest, list *Body, out io.Writer) error {
	defer list.Close()
	l := codec.NewListReader(list, list.Format)
	if err := l.Open(); err != nil {
		return err
	}
	var b []byte
	for first := true; ; first = false {
		ok, err := l.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if b, err = l.AppendItem(b[:0], first); err != nil {
			return err
		}
		if _, err := out.Write(codec.AppendFrame(nil, b, list.Format.Proto)); err != nil {
			return err
		}
	}
	if l.Meta.ResourceVersion == 0 || l.Meta.Continue != "" {
		return errors.New("a list is incomplete")
	}
	mark := codec.BookmarkObject{
		Kind:            l.ItemKind(),
		APIVersion:      l.APIVersion,
		ResourceVersion: strconv.FormatUint(l.Meta.ResourceVersion, 10),
		InitialEnd:      true,
	}
	if _, err := out.Write(codec.AppendFrame(nil, mark.Append(nil, list.Format), list.Format.Proto)); err != nil {
		return err
	}
	next := requestAt(m.Slot, l.Meta.ResourceVersion)
	next.Namespace, next.Name = req.Namespace, req.Name
	watch, err := c.fetchStream(ctx, m, next)
	if err != nil {
		return err
	}
	defer watch.Close()
	if watch.Format != list.Format {
		return ErrMixedFormats
	}
	stop := context.AfterFunc(ctx, func() { watch.Close() })
	defer stop()
	_, err = io.Copy(out, watch)
	return err
}
