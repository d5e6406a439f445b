package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// Serve serves one client over lines. The client writes to in, and out receives only messages. The tools call the plane's API through c,
// and the plane authorises the identity behind c. Serve returns when in or ctx ends. When in ends, Serve first answers the requests that it
// has received.
func Serve(ctx context.Context, in io.Reader, out io.Writer, c httpapi.Client, o Options, log *slog.Logger) error {
	return serveTools(ctx, in, out, c, o, allTools(), log)
}

func serveTools(ctx context.Context, in io.Reader, out io.Writer, c httpapi.Client, o Options, all []tool, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newServer(ctx, o, describe(all), func(access.Verb) bool { return true }, func(string) httpapi.Client { return c }, log)
	l := &lineConnection{check: s.check, stop: ctx.Done(), arrived: make(chan line), slots: make(chan struct{}, maxCalls), closed: make(chan struct{}),
		out: out, open: map[jsonrpc.ID]bool{}}
	go l.pump(&lineReader{bufio.NewReaderSize(in, 64<<10)}) // a read cannot be interrupted, so Serve does not wait for it
	session, err := s.sdk.Connect(ctx, l, nil)
	if err != nil {
		return err
	}
	err = session.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// maxCalls is the maximum number of concurrent calls of one client.
const maxCalls = 16

// lineConnection is the SDK's connection to one client. The SDK sees a message only after read and check have accepted it.
type lineConnection struct {
	check   func(message) *rpcError
	stop    <-chan struct{} // ends reading
	arrived chan line
	slots   chan struct{} // one for each unanswered request
	closed  chan struct{}
	once    sync.Once

	mu   sync.Mutex
	out  io.Writer
	open map[jsonrpc.ID]bool // unanswered requests; true: the client has cancelled it
}

type line struct {
	text []byte
	err  error
}

// Connect implements [mcp.Transport].
func (l *lineConnection) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// SessionID implements [mcp.Connection]. There is one session.
func (l *lineConnection) SessionID() string { return "" }

// Close implements [mcp.Connection].
func (l *lineConnection) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// pump passes lines on until the input ends.
func (l *lineConnection) pump(in *lineReader) {
	for {
		text, err := in.next()
		select {
		case l.arrived <- line{text, err}:
		case <-l.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements [mcp.Connection]. At the end of the input it waits until all requests are answered, because the SDK cancels the calls of
// a closed connection.
func (l *lineConnection) Read(context.Context) (jsonrpc.Message, error) {
	for {
		var got line
		select {
		case <-l.stop:
			return nil, context.Canceled
		case <-l.closed:
			return nil, io.EOF
		case got = <-l.arrived:
		}
		if got.err != nil {
			for range maxCalls {
				if err := l.acquire(); err != nil {
					return nil, err
				}
			}
			return nil, got.err
		}
		text := bytes.TrimSpace(got.text)
		if len(text) == 0 {
			continue
		}
		if m, err := l.accept(text); m != nil || err != nil {
			return m, err
		}
	}
}

// acquire waits until one more request may be answered.
func (l *lineConnection) acquire() error {
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-l.stop:
		return context.Canceled
	}
}

// accept returns the message of a line for the SDK, or nil if no further action is needed. It returns an error if a write fails or Serve must
// end.
func (l *lineConnection) accept(text []byte) (jsonrpc.Message, error) {
	m, refused := parseMessage(text)
	switch {
	case refused != nil:
		return nil, l.writeLine(refused.response())
	case m.method == "": // a response, but the server sends no requests
		return nil, nil
	case m.id == nil && m.method == "notifications/cancelled":
		l.cancel(m.params)
		return jsonrpc.DecodeMessage(text)
	case m.id == nil && m.method == "notifications/initialized":
		return jsonrpc.DecodeMessage(text)
	case m.id == nil:
		return nil, nil
	}
	if !l.begin(idOf(m.id)) { // the client would take a response with this id for the other request's
		return nil, l.writeLine((&rpcError{code: codeInvalid, text: "the id belongs to a request that has no answer yet"}).response())
	}
	msg, err := jsonrpc.DecodeMessage(text)
	if refused = l.check(m); refused == nil && err != nil {
		refused = &rpcError{code: codeInvalid, text: err.Error(), id: m.id}
	}
	if refused != nil {
		l.end(idOf(m.id))
		return nil, l.writeLine(refused.response())
	}
	return msg, l.acquire()
}

// Write implements [mcp.Connection]. It sends only responses.
func (l *lineConnection) Write(_ context.Context, msg jsonrpc.Message) error {
	res, ok := msg.(*jsonrpc.Response)
	if !ok {
		return nil
	}
	defer func() { <-l.slots }()
	b, err := jsonrpc.EncodeMessage(res)
	if err != nil {
		id, _ := json.Marshal(res.ID.Raw()) // text or a number
		b = (&rpcError{code: codeInternal, text: "internal error", id: id}).response()
	}
	if needed := l.end(res.ID); needed {
		_ = l.writeLine(b) // if the client has disconnected, reading ends too
	}
	return nil
}

// writeLine writes one message.
func (l *lineConnection) writeLine(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.out.Write(append(b, '\n'))
	return err
}

// idOf returns an id as the SDK decodes it. It returns the zero id for JSON that is not an id.
func idOf(text json.RawMessage) jsonrpc.ID {
	var v any
	_ = json.Unmarshal(text, &v)
	id, _ := jsonrpc.MakeID(v)
	return id
}

// begin records a request. It returns false if the id is in use.
func (l *lineConnection) begin(id jsonrpc.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, used := l.open[id]
	if !used {
		l.open[id] = false
	}
	return !used
}

// end removes a request, so that its id may be reused. It reports whether the client still wants a response.
func (l *lineConnection) end(id jsonrpc.ID) (needed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cancelled, found := l.open[id]
	delete(l.open, id)
	return found && !cancelled
}

// cancel records that the client no longer wants a response.
func (l *lineConnection) cancel(params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, found := l.open[idOf(p.ID)]; found {
		l.open[idOf(p.ID)] = true
	}
}

// lineReader reads lines with a size limit.
type lineReader struct{ in *bufio.Reader }

// next returns the next line. It cuts a line that is too long to one byte more than maxMessage, so that read rejects it, and discards the
// rest.
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
