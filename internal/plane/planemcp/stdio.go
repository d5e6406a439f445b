package planemcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

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
	err := s.Run(ctx, &mcp.IOTransport{Reader: &strictLines{in: bufio.NewReaderSize(in, 64<<10), out: w}, Writer: w})
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// lines takes whole lines from several at once.
type lines struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lines) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(b)
}

// Close does nothing: the output is the program's.
func (w *lines) Close() error { return nil }

// strictLines are those lines of in that are messages. The others are answered at
// once, and nobody sees them.
type strictLines struct {
	in   *bufio.Reader
	out  io.Writer
	rest []byte
}

// Close does nothing: the input is the program's.
func (r *strictLines) Close() error { return nil }

func (r *strictLines) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.next()
		if err != nil {
			return 0, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if _, refused := read(bytes.TrimSpace(line)); refused != nil {
			if _, err := r.out.Write(append(refused.response(), '\n')); err != nil {
				return 0, err
			}
			continue
		}
		r.rest = append(bytes.TrimSpace(line), '\n')
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
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
