package merge

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// stream opens a watch at a member. A server without support for initial events answers 422. stream then
// sends a list request and a watch request, which together give the same events.
func (c *Collection) stream(ctx context.Context, m Member, a position.Ask) (*Body, error) {
	body, err := c.askStream(ctx, m, a)
	if s, ok := errors.AsType[*wire.Status](err); !ok || s.Code != 422 || !a.Begins() {
		return body, err
	}
	ask := position.Ask{Slot: a.Slot, RV: a.RV, Namespace: a.Namespace, Name: a.Name}
	if a.RV != "" && a.RV != "0" {
		ask.Match = a.Match
	}
	ctx, cancel := context.WithCancelCause(ctx)
	list, err := c.askStream(ctx, m, ask)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r, w := io.Pipe()
	go func() { // it ends when the reader is closed, and every Body is closed
		w.CloseWithError(c.replay(ctx, m, ask, list, w))
	}()
	return &Body{Ending(r, func() { cancel(nil) }), list.Form}, nil
}

// replay writes a list as initial events, then the events of a watch from there.
func (c *Collection) replay(ctx context.Context, m Member, ask position.Ask, list *Body, out io.Writer) error {
	defer list.Close()
	l := wire.NewList(list, list.Form)
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
		if _, err := out.Write(wire.AppendFrame(nil, b, list.Form.Proto)); err != nil {
			return err
		}
	}
	if l.Meta.ResourceVersion == 0 || l.Meta.Continue != "" {
		return errors.New("a list that is not whole")
	}
	mark := wire.Mark{Kind: l.ItemKind(), APIVersion: l.APIVersion, ResourceVersion: strconv.FormatUint(l.Meta.ResourceVersion, 10), InitialEnd: true}
	if _, err := out.Write(wire.AppendFrame(nil, mark.Append(nil, list.Form), list.Form.Proto)); err != nil {
		return err
	}
	next := position.At(m.Slot, l.Meta.ResourceVersion)
	next.Namespace, next.Name = ask.Namespace, ask.Name
	watch, err := c.askStream(ctx, m, next)
	if err != nil {
		return err
	}
	defer watch.Close()
	if watch.Form != list.Form {
		return ErrForms
	}
	stop := context.AfterFunc(ctx, func() { watch.Close() })
	defer stop()
	_, err = io.Copy(out, watch)
	return err
}
