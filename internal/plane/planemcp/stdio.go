package planemcp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

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
	w := &lines{out: out}
	s := newServer(o, all, func(access.Verb) bool { return true }, func(string) door.Client { return c }, log)
	err := s.Run(ctx, &mcp.IOTransport{Writer: w, Reader: &strictLines{ctx: ctx, in: bufio.NewReaderSize(in, 64<<10), out: w,
		patience: cmp.Or(o.Timeout, DefaultTimeout) + time.Second}})
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// lines takes whole lines from several at once, and knows which requests have no
// answer yet.
type lines struct {
	mu      sync.Mutex
	out     io.Writer
	open    map[string]bool
	settled chan struct{} // closed when none is open
}

// key is an id however it is spelt.
func key(id json.RawMessage) string {
	var text string
	if json.Unmarshal(id, &text) == nil {
		return "text " + text
	}
	return string(id)
}

// Write takes one message of the SDK.
func (w *lines) Write(b []byte) (int, error) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	answer := json.Unmarshal(b, &m) == nil && m.ID != nil && m.Method == ""
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := key(m.ID); answer && w.open[k] {
		if delete(w.open, k); len(w.open) == 0 {
			defer close(w.settled) // once it is written
		}
	}
	return w.out.Write(b)
}

// say writes a message of our own.
func (w *lines) say(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.out.Write(append(b, '\n'))
	return err
}

// asked notes that there is one request more; false: there is one with its id.
func (w *lines) asked(id json.RawMessage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := key(id)
	switch {
	case w.open[k]:
		return false
	case len(w.open) == 0:
		w.open, w.settled = map[string]bool{}, make(chan struct{})
	}
	w.open[k] = true
	return true
}

// quiet is closed when all requests have been answered.
func (w *lines) quiet() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	return w.settled
}

// Close does nothing: the output is the program's.
func (w *lines) Close() error { return nil }

// strictLines are those lines of in that are messages. The others are answered at
// once, and nobody sees them. The end is told when what came before it is answered.
type strictLines struct {
	ctx      context.Context // of the server: Read knows no other
	in       *bufio.Reader
	out      *lines
	patience time.Duration // more than any call takes
	rest     []byte
}

// Close does nothing: the input is the program's.
func (r *strictLines) Close() error { return nil }

func (r *strictLines) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.next()
		if err != nil {
			r.settle()
			return 0, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		m, refused := read(line)
		if refused == nil && m.method != "" && m.id != nil && !r.out.asked(m.id) {
			// The SDK would drop it without a word. An answer with its id would be
			// taken for the other's.
			refused = &fault{code: codeInvalid, text: "the id is that of a request which has no answer yet"}
		}
		if refused != nil {
			if err := r.out.say(refused.response()); err != nil {
				return 0, err
			}
			continue
		}
		r.rest = append(line, '\n')
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *strictLines) settle() {
	late := time.NewTimer(r.patience) // a request that was taken back is never answered
	defer late.Stop()
	select {
	case <-r.out.quiet():
	case <-r.ctx.Done():
	case <-late.C:
	}
}

// next is the next line. Of one that is too long there is a byte more than a message
// may have, so that it is refused; the rest of it is read and forgotten.
func (r *strictLines) next() ([]byte, error) {
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
