package planemcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
)

// Serve speaks with one client over lines: in is what it sends, out takes messages
// and nothing else. What is asked goes to the plane's API by way of c, whose answers
// depend on whom the plane sees behind it. It returns when in or ctx ends, with what
// was asked before answered.
func Serve(ctx context.Context, in io.Reader, out io.Writer, c door.Client, o Options, log *slog.Logger) error {
	return serveTools(ctx, in, out, c, o, tools(), log)
}

func serveTools(ctx context.Context, in io.Reader, out io.Writer, c door.Client, o Options, all []tool, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	t := &talk{out: out, open: map[string]context.CancelFunc{},
		server: newServer(o, all, func(access.Verb) bool { return true }, func(string) door.Client { return c }, log)}
	ended := make(chan error, 1)
	go func() { ended <- t.listen(ctx, &lineReader{bufio.NewReaderSize(in, 64<<10)}) }() // reading cannot be stopped: who is asked to stop does not wait for it
	defer t.close()
	defer cancel()
	select {
	case err := <-ended:
		t.calls.Wait()
		return err
	case <-ctx.Done():
		return nil
	}
}

// maxCalls is how many calls of one client are answered at a time.
const maxCalls = 16

// A talk is one client over lines.
type talk struct {
	server *server
	calls  sync.WaitGroup

	mu   sync.Mutex
	out  io.Writer
	open map[string]context.CancelFunc // requests without an answer
	over bool                          // no request is taken any more
}

// close waits for the calls that have begun, and lets no other begin.
func (t *talk) close() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.calls.Wait()
}

// key is an id however it is spelt.
func key(id json.RawMessage) string {
	var text string
	if json.Unmarshal(id, &text) == nil {
		return "text " + text
	}
	return string(id)
}

// say writes one message.
func (t *talk) say(b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.out.Write(append(b, '\n'))
	return err
}

// listen takes messages until there are no more. Each is answered on its own.
func (t *talk) listen(ctx context.Context, in *lineReader) error {
	turns := make(chan struct{}, maxCalls)
	for {
		line, err := in.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		m, refused := read(line)
		if refused != nil {
			if err := t.say(refused.response()); err != nil {
				return err
			}
			continue
		}
		if m.method == "notifications/cancelled" {
			t.takeBack(m.params)
		}
		if m.id == nil || m.method == "" {
			continue
		}
		mine, end, ok := t.begin(ctx, m.id)
		if !ok { // an answer with its id would be taken for the other's
			if err := t.say((&fault{code: codeInvalid, text: "the id is that of a request which has no answer yet"}).response()); err != nil {
				return err
			}
			continue
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			end()
			return nil
		}
		began := t.start(func() {
			defer func() { <-turns }()
			answer := t.server.answer(mine, m)
			taken := mine.Err() != nil
			end()
			if !taken {
				_ = t.say(answer) // who does not listen is gone, which reading tells
			}
		})
		if !began {
			end()
			return nil
		}
	}
}

// start calls f beside what goes on; false: it is over.
func (t *talk) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.calls.Go(f)
	}
	return !t.over
}

// begin notes a request. Its id may be used again when it has ended.
func (t *talk) begin(ctx context.Context, id json.RawMessage) (mine context.Context, end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key(id)
	if _, used := t.open[k]; used {
		return nil, nil, false
	}
	mine, cancel := context.WithCancel(ctx)
	t.open[k] = cancel
	return mine, func() {
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, k)
	}, true
}

// takeBack ends a request that the client no longer wants an answer to.
func (t *talk) takeBack(params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if cancel, ok := t.open[key(p.ID)]; ok {
		cancel()
	}
}

// A lineReader reads lines that are no longer than a message.
type lineReader struct{ in *bufio.Reader }

// next is the next line. Of one that is too long there is a byte more than a message
// may have, so that it is refused; the rest of it is read and forgotten.
func (r *lineReader) next() ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if room := maxMessage + 1 - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
