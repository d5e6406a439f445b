package accessproxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// unseen is the most output that a client may see and no recorder has acknowledged.
const unseen = 256 << 10

// rules compiles rules of the settings.
func rules(t *testing.T, all ...policy.Rule) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(all)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var recordAll = policy.Rule{Name: "recorded", When: "true", Record: []string{"exec", "attach", "portForward"}}

const ttyHead = "GET /api/v1/namespaces/shop/pods/app/exec?command=sh&tty=true&stdout=true HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\nConnection: Upgrade\r\n\r\n"

// printing is an API server whose command prints without end: frames of WebSocket for the channel of stdout. The header of a frame has four
// bytes, because it has 1 to 64 KiB.
func printing(w http.ResponseWriter, r *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	rw.Flush()
	text := "\x01" + strings.Repeat("output ", 1024)
	frame := append(binary.BigEndian.AppendUint16([]byte{0x82, 126}, uint16(len(text))), text...)
	for {
		if _, err := c.Write(frame); err != nil {
			return
		}
	}
}

// seen is what a client of an exec has seen.
type seen struct {
	output atomic.Int64
	end    atomic.Pointer[string] // the Status on the error channel
	done   chan struct{}          // closed when the connection is over
}

// watchExec opens an exec and reads its frames until the end.
func (e *env) watchExec(t *testing.T) *seen {
	t.Helper()
	c, in := e.Raw(t, aliceAt, ttyHead)
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("the exec was answered with %d %s", res.StatusCode, b)
	}
	s := &seen{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for s.frame(in) == nil {
		}
	}()
	return s
}

func (s *seen) frame(in *bufio.Reader) error {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return err
	}
	size := uint64(head[1] & 0x7f)
	if size == 126 {
		var long [2]byte
		if _, err := io.ReadFull(in, long[:]); err != nil {
			return err
		}
		size = uint64(binary.BigEndian.Uint16(long[:]))
	}
	if head[1]&0x80 != 0 || size == 127 {
		return fmt.Errorf("a frame with the header %x", head)
	}
	body := make([]byte, size)
	n, err := io.ReadFull(in, body)
	switch {
	case head[0]&0xf != 2 || n == 0:
	case body[0] == 1:
		s.output.Add(int64(n - 1))
	case body[0] == 3:
		s.end.Store(new(string(body[1:n])))
	}
	return err
}

// recorder serves handle as a recorder of e, whose policy requires recordings.
func (e *env) recorder(t *testing.T, handle http.HandlerFunc) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handle, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	e.Proxy.Recorder = &recording.Recorder{Addr: ln.Addr().String(), Dial: new(net.Dialer).DialContext}
	e.Proxy.SetPolicy(rules(t, recordAll))
}

// answering is a recorder that answers the question, and then lets answer write frames. read reports how much of the body has come.
func answering(answer func(ctx context.Context, send func(frame string), read func() int64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			return
		}
		w.WriteHeader(http.StatusOK)
		c := http.NewResponseController(w)
		c.Flush()
		var size atomic.Int64
		go func() {
			for b := make([]byte, 32<<10); ; {
				n, err := r.Body.Read(b)
				if size.Add(int64(n)); err != nil {
					return
				}
			}
		}()
		answer(r.Context(), func(frame string) { io.WriteString(w, frame); c.Flush() }, size.Load)
	}
}

// PX-19. A recorder that lies, stalls or fills up ends a stream that must be recorded. The client has seen no more output than the window
// allows, and gets a reason. A recorder that is slow only slows the stream down, until it restarts.
//
// Guard: recording.window, recording.upload and exchange.cutIfLost.
func TestPX19_BadRecorders(t *testing.T) {
	ack := func(n int64) string { return fmt.Sprintf("{\"ack\":%d}\n", n) }
	hang := func(ctx context.Context) { <-ctx.Done() }
	some := func(ctx context.Context, read func() int64) {
		for tick := time.NewTicker(10 * time.Millisecond); read() < 1000; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
	full := func(t *testing.T) http.HandlerFunc {
		d, err := recording.OpenDir(recording.DirConfig{Path: t.TempDir(), MaxOne: 128 << 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d.Handler().ServeHTTP
	}
	for name, x := range map[string]struct {
		handle http.HandlerFunc
		fills  bool
	}{
		"lies about what was never sent": {handle: answering(func(ctx context.Context, send func(string), read func() int64) { send(ack(1 << 40)); hang(ctx) })},
		"lies backwards": {handle: answering(func(ctx context.Context, send func(string), read func() int64) {
			some(ctx, read)
			send(ack(900))
			send(ack(100))
			hang(ctx)
		})},
		"sends something else": {handle: answering(func(ctx context.Context, send func(string), read func() int64) { send("<html>"); hang(ctx) })},
		"sends without an end": {handle: answering(func(ctx context.Context, send func(string), read func() int64) {
			send(`{"x":"` + strings.Repeat("y", 1<<20))
			hang(ctx)
		})},
		"reports an error": {handle: answering(func(ctx context.Context, send func(string), read func() int64) {
			send("{\"error\":\"the disk is full\"}\n")
			hang(ctx)
		})},
		"ends in the beginning": {handle: answering(func(context.Context, func(string), func() int64) {})},
		"stalls":                {handle: answering(func(ctx context.Context, send func(string), read func() int64) { hang(ctx) })},
		"lives and acknowledges nothing": {handle: answering(func(ctx context.Context, send func(string), read func() int64) {
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-tick.C:
					send(ack(0))
				case <-ctx.Done():
					return
				}
			}
		})},
		"fills up": {handle: full(t), fills: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, printing)
			e.recorder(t, x.handle)
			s := e.watchExec(t)
			select {
			case <-s.done:
			case <-time.After(90 * time.Second):
				t.Fatal("the stream goes on")
			}
			most := int64(unseen)
			if x.fills {
				most += 128 << 10 // those are on the recorder
			}
			if got := s.output.Load(); got > most {
				t.Errorf("the client has seen %d bytes, want %d at most", got, most)
			}
			if end := s.end.Load(); end == nil || !strings.Contains(*end, "its recording was lost") {
				t.Errorf("the client got no reason: %v", end)
			}
		})
	}
	for name, handle := range map[string]http.HandlerFunc{
		"is no recorder":             http.NotFound,
		"fails":                      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"speaks the old path only":   func(w http.ResponseWriter, r *http.Request) { answerOld(w, r) },
		"answers the question, only": func(w http.ResponseWriter, r *http.Request) { answerHead(w, r) },
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, printing)
			e.recorder(t, handle)
			e.API.Quietly(t, name, func() {
				if status, body := e.RawStatus(t, aliceAt, ttyHead); status != http.StatusServiceUnavailable || !strings.Contains(body, "the recording cannot begin") {
					t.Errorf("an exec: %d %s, want 503 with the reason", status, body)
				}
			})
		})
	}
	t.Run("is slow, and restarts", func(t *testing.T) {
		t.Parallel()
		e := start(t, printing)
		restart := make(chan struct{})
		e.recorder(t, answering(func(ctx context.Context, send func(string), read func() int64) {
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-tick.C:
					send(ack(read()))
				case <-restart:
					panic(http.ErrAbortHandler)
				case <-ctx.Done():
					return
				}
			}
		}))
		s := e.watchExec(t)
		attacktest.Eventually(t, 30*time.Second, "the client sees more than the window", func() bool { return s.output.Load() > 4*unseen })
		close(restart)
		<-s.done
		if end := s.end.Load(); end == nil || !strings.Contains(*end, "its recording was lost") {
			t.Errorf("the client got no reason: %v", end)
		}
	})
}

// answerOld is a recorder of before acknowledgements: /record only.
func answerOld(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/record" {
		http.NotFound(w, r)
	}
}

// answerHead refuses the upload itself.
func answerHead(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodHead {
		w.WriteHeader(http.StatusForbidden)
	}
}

// PX-18. A stream that was opened before recording became required, or before a rule refused it, is cut with a sentence: when the settings
// change, when the sign-in must be recorded, and when one of them changes while the stream is being opened.
//
// Guard: Proxy.SetPolicy, streams.judgeAgain and streams.judgeSignin in internal/accessproxy.
func TestPX18_OpenedBefore(t *testing.T) {
	requireRecord := func(t *testing.T, e *env) { e.Proxy.SetPolicy(rules(t, recordAll)) }
	for name, x := range map[string]struct {
		change func(t *testing.T, e *env)
		want   string
	}{
		"recording is required": {requireRecord, "this session must be recorded now"},
		"a rule refuses": {func(t *testing.T, e *env) {
			e.Proxy.SetPolicy(rules(t, policy.Rule{Name: "no-exec", When: `request.resourceAttributes.subresource == "exec"`, Deny: "No shells today."}))
		}, "No shells today"},
		"the sign-in must be recorded": {func(_ *testing.T, e *env) { e.edit(func(s *signin.Signin) { s.Record = []string{"exec"} }) }, "this session must be recorded now"},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, printing)
			s := e.watchExec(t)
			attacktest.Eventually(t, attacktest.Soon, "output", func() bool { return s.output.Load() > 0 })
			began := time.Now()
			x.change(t, e)
			<-s.done
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the stream was cut after %v, want 2 s at most", took)
			}
			if end := s.end.Load(); end == nil || !strings.Contains(*end, x.want) {
				t.Errorf("the client got %v, want a status with %q", end, x.want)
			} else if status := (struct{ Status string }{}); json.Unmarshal([]byte(*end), &status) != nil || status.Status != "Failure" {
				t.Errorf("the client got %s, want a Status", *end)
			}
		})
		t.Run(name+", while it opens", func(t *testing.T) {
			var e *env
			e = start(t, func(w http.ResponseWriter, r *http.Request) {
				x.change(t, e)
				printing(w, r)
			})
			s := e.watchExec(t)
			select {
			case <-s.done:
			case <-time.After(10 * time.Second):
				t.Fatal("the stream goes on")
			}
			if end := s.end.Load(); end == nil || !strings.Contains(*end, x.want) {
				t.Errorf("the client got %v, want a status with %q", end, x.want)
			}
		})
	}
	t.Run("over SPDY", func(t *testing.T) {
		e := start(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
			proxytest.Switching(w, r)
		})
		_, in := e.Raw(t, aliceAt, spdyHead+"Connection: Upgrade\r\n\r\n")
		if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("the upgrade: %v, %v", res, err)
		}
		began := time.Now()
		requireRecord(t, e)
		io.Copy(io.Discard, in)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the stream was cut after %v, want 3 s at most", took)
		}
	})
}
