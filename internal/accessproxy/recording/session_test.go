package recording

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

// sinks runs a test with a directory, and with a recorder in front of one.
func sinks(t *testing.T, f func(t *testing.T, d *Dir, sink Sink)) {
	t.Run("directory", func(t *testing.T) {
		bubble(t, func(t *testing.T, dir string) {
			d := openDir(t, DirConfig{Path: dir})
			f(t, d, d)
		})
	})
	t.Run("recorder", func(t *testing.T) {
		bubble(t, func(t *testing.T, dir string) {
			d := openDir(t, DirConfig{Path: dir})
			r, _ := serve(t, d.Handler(), false)
			f(t, d, r)
		})
	})
}

// PRX-12: a terminal is recorded as it was seen, with its size, and with input only if asked for.
func TestPRX12_Terminal(t *testing.T) {
	sinks(t, func(t *testing.T, d *Dir, sink Sink) {
		for _, input := range []bool{false, true} {
			var digests []Digest
			s := open(t, Config{Sink: sink, Required: true, TTY: true, Input: input, Digest: func(d Digest) { digests = append(digests, d) }}, terminal)
			s.send(t, frames.Resize, `{"Width":120,`)
			s.send(t, frames.Resize, `"Height":40}`)
			s.output(t, "$ ")
			time.Sleep(1500 * time.Millisecond)
			s.send(t, frames.Stdin, "ls\r")
			s.output(t, "caf\xc3")
			s.output(t, "\xa9\r\n")
			s.send(t, frames.Resize, `{"Width":100,"Height":30}`)
			s.send(t, frames.Resize, `{"Width":100,"Height":30}`)
			s.toClient.Write(message(frames.Server, frames.Error, `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`))
			digest, err := s.End(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			text, info := contents(t, d, s.ID())
			want := []string{"o $ ", "i ls\r", "o caf", "o \u00e9\r\n", "r 100x30", "m end: exit code 3"}
			if !input {
				want = append(want[:1:1], want[2:]...)
			}
			if diff := cmp.Diff(want, events(t, text)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if h := info.Header; h.Width != 120 || h.Height != 40 {
				t.Errorf("the header has the size %dx%d, want 120x40", h.Width, h.Height)
			}
			if got, want := *info.Header.Tailplane, (Details{RecordingID: s.ID(), Cluster: "prod", AuditID: "audit-1", Kind: "exec",
				Protocol: "websocket v5.channel.k8s.io", TTY: true, Input: input}); got.Command != nil || cmp.Diff(want, got) != "" {
				t.Errorf("the header's details (-want +got):\n%s", cmp.Diff(want, got))
			}
			if !strings.Contains(text, `[1.500000,"o","caf"]`) {
				t.Errorf("the times are wrong in:\n%s", text)
			}
			sum := sha256.Sum256([]byte(text))
			wantDigest := Digest{ID: s.ID(), At: time.Now(), Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:]), Final: true, Complete: true, Reason: "exit code 3"}
			if diff := cmp.Diff([]Digest{wantDigest, wantDigest}, append(digests, digest)); diff != "" {
				t.Errorf("digests (-want +got):\n%s", diff)
			}
			if info.State != Complete {
				t.Errorf("the recording is %s, want complete", info.State)
			}
		}
	})
}

// PRX-12: replay equals what the client has seen, whatever the bytes and frames are.
func TestPRX12_ReplayEqualsWhatWasSeen(t *testing.T) {
	sinks(t, func(t *testing.T, d *Dir, sink Sink) {
		r := rand.New(rand.NewPCG(1, 2))
		s := open(t, Config{Sink: sink, Required: true, TTY: true}, terminal)
		var sent strings.Builder
		for range 60 {
			b := make([]byte, r.IntN(9000))
			for i := range b {
				b[i] = []byte("abc\r\n\x1b[\xe2\x82\xac\xff")[r.IntN(11)]
			}
			sent.Write(b)
			all := message(frames.Server, frames.Stdout, string(b))
			for len(all) > 0 {
				n := min(1+r.IntN(5000), len(all))
				if _, err := s.toClient.Write(all[:n]); err != nil {
					t.Fatal(err)
				}
				all = all[n:]
			}
		}
		if _, err := s.End(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
		text, _ := contents(t, d, s.ID())
		if got := joined(events(t, text), "o"); got != string([]rune(sent.String())) {
			t.Errorf("the replay has %d bytes, and differs from the %d bytes that were seen", len(got), sent.Len())
		}
	})
}

// PRX-12: a stream without a terminal is recorded as sizes and hashes, not as a picture.
func TestPRX12_NoTerminal(t *testing.T) {
	sinks(t, func(t *testing.T, d *Dir, sink Sink) {
		s := open(t, Config{Sink: sink, Required: true}, terminal)
		s.send(t, frames.Stdin, "a password")
		s.output(t, "top secret")
		time.Sleep(3500 * time.Millisecond)
		s.output(t, "!")
		s.toClient.Write(message(frames.Server, frames.Stderr, "oops"))
		s.toClient.Write(message(frames.Server, frames.Error, `{"status":"Success"}`))
		if _, err := s.End(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		text, _ := contents(t, d, s.ID())
		hash := func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }
		want := []string{"m stdin: 10 bytes", "m stdout: 10 bytes, SHA-256 " + hash("top secret"),
			"m stderr: 4 bytes, SHA-256 " + hash("oops"), "m stdout: 11 bytes, SHA-256 " + hash("top secret!"), "m end: exit code 0"}
		if diff := cmp.Diff(want, events(t, text)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		for _, private := range []string{"secret", "password"} {
			if strings.Contains(text, private) {
				t.Errorf("the recording contains %q", private)
			}
		}
	})
}

// TestPortForward checks that a port-forward is recorded as connections and sizes.
func TestPortForward(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir})
		s := open(t, Config{Sink: d, Required: true}, frames.Protocol{Kind: frames.PortForward, Framing: frames.WebSocket, Version: "v4.channel.k8s.io"})
		s.send(t, 0, "GET /")
		s.output(t, "x") // the error channel of the first port
		s.toClient.Write(message(frames.Server, 0, "200 OK"))
		for _, e := range []frames.Event{
			{Type: frames.Opened, From: frames.Client, Channel: frames.Data, Stream: 3, Port: "80", RequestID: "0"},
			{Type: frames.Bytes, From: frames.Client, Channel: frames.Data, Stream: 3, Data: []byte("GET /")},
			{Type: frames.Bytes, From: frames.Server, Channel: frames.Data, Stream: 3, Data: []byte("200 OK")},
			{Type: frames.Closed, From: frames.Client, Channel: frames.Data, Stream: 3},
			{Type: frames.Closed, From: frames.Server, Channel: frames.Data, Stream: 3},
			{Type: frames.Opened, From: frames.Client, Channel: frames.Data, Stream: 7, Port: "443"},
		} {
			s.event(e)
		}
		if _, err := s.End(t.Context(), "the sign-in has ended"); err != nil {
			t.Fatal(err)
		}
		text, _ := contents(t, d, s.ID())
		want := []string{"m connection 3 to port 80 opened", "m connection 3 to port 80 closed: 5 bytes from the client, 6 from the server",
			"m connection 7 to port 443 opened", "m forwarded from the client: 10 bytes", "m forwarded from the server: 12 bytes",
			"m connection 7 to port 443 closed: 0 bytes from the client, 0 from the server", "m end: the sign-in has ended"}
		if diff := cmp.Diff(want, events(t, text)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// PRX-12: a recording's hash is reported every minute in which something was recorded.
func TestPRX12_DigestEveryMinute(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir})
		var digests []Digest
		s := open(t, Config{Sink: d, Required: true, TTY: true, Digest: func(d Digest) { digests = append(digests, d) }}, terminal)
		s.output(t, "a")
		time.Sleep(150 * second)
		s.output(t, "b")
		time.Sleep(61 * second)
		if _, err := s.End(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
		text, _ := contents(t, d, s.ID())
		var at []string
		for _, x := range digests {
			at = append(at, fmt.Sprintf("%v final %t", x.At.Sub(s.cast.start), x.Final))
			if sum := sha256.Sum256([]byte(text[:x.Bytes])); hex.EncodeToString(sum[:]) != x.SHA256 {
				t.Errorf("the digest of %d bytes is not that of the file", x.Bytes)
			}
		}
		if diff := cmp.Diff([]string{"1m0s final false", "3m0s final false", "3m31s final true"}, at); diff != "" {
			t.Errorf("digests (-want +got):\n%s", diff)
		}
	})
}

// PRX-12: what cannot be recorded is refused where recording is required, and goes on where it is not.
func TestPRX12_CannotBeRecorded(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir})
		s, err := Start(t.Context(), Config{Sink: d, Required: true, TTY: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Conn(frames.Protocol{Kind: frames.Exec, Framing: frames.WebSocket, Version: "base64.channel.k8s.io"}); err == nil {
			t.Error("base64.channel.k8s.io was accepted")
		}
		if _, err := s.End(t.Context(), "refused"); err != nil {
			t.Error(err)
		}
		if names := files(t, dir); len(names) > 0 {
			t.Errorf("a stream that was refused left %v", names)
		}
		base64 := open(t, Config{Sink: d, TTY: true}, frames.Protocol{Kind: frames.Exec, Framing: frames.WebSocket, Version: "base64.channel.k8s.io"})
		base64.output(t, "aGVsbG8=")
		if digest, err := base64.End(t.Context(), "done"); digest.Complete || !errors.Is(err, ErrLost) {
			t.Errorf("a stream whose output cannot be read ended with %+v, %v, want that it is lost", digest, err)
		}
		if !strings.Contains(base64.seen.String(), "aGVsbG8=") {
			t.Error("a stream that need not be recorded was stopped")
		}
		broken := &Recorder{Addr: "recorder:80", Dial: (&pipes{gone: closedChannel()}).Dial}
		if _, err := Start(t.Context(), Config{Sink: broken, Required: true}); !errors.Is(err, ErrLost) {
			t.Errorf("without a recorder the error is %v, want ErrLost", err)
		}
		open := open(t, Config{Sink: broken, TTY: true}, terminal)
		open.output(t, "hello")
		if !strings.Contains(open.seen.String(), "hello") {
			t.Error("a stream that need not be recorded was stopped")
		}
		if digest, err := open.End(t.Context(), "done"); digest.Complete || !errors.Is(err, ErrLost) {
			t.Errorf("its end is %+v, %v, want an incomplete recording", digest, err)
		}
	})
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// PRX-12: nothing passes after the end of a recording that is required.
func TestPRX12_NothingAfterTheEnd(t *testing.T) {
	s := open(t, Config{Sink: &discard{}, Required: true, TTY: true}, terminal)
	s.output(t, "hello")
	if _, err := s.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.toClient.Write(message(frames.Server, frames.Stdout, "secret")); err == nil {
		t.Error("output passed after the end")
	}
	if _, err := s.toServer.Write(message(frames.Client, frames.Stdin, "secret")); err == nil {
		t.Error("input passed after the end")
	}
	if strings.Contains(s.seen.String(), "secret") {
		t.Error("the client has seen output that was not recorded")
	}
	if _, err := s.End(t.Context(), "again"); err != nil {
		t.Errorf("a second end: %v", err)
	}
}

// discard is a Sink that acknowledges everything and keeps nothing.
type discard struct {
	size  int64
	acked func(int64)
}

func (d *discard) Start(_ context.Context, _ string, acked func(int64), _ func(error)) (Upload, error) {
	d.acked = acked
	return d, nil
}

func (d *discard) Write(p []byte) (int, error) {
	d.size += int64(len(p))
	d.acked(d.size)
	return len(p), nil
}

func (d *discard) Close(context.Context) error { return nil }
func (d *discard) Abort()                      {}

// PRX-12: 100 MB of output allocate at most 4 MB altogether, with and without a terminal, over WebSocket.
func TestPRX12_BoundedMemory(t *testing.T) {
	size := 100
	if testing.Short() { // the race detector makes the hash slow
		size = 5
	}
	for _, tty := range []bool{true, false} {
		s, err := Start(t.Context(), Config{Sink: &discard{}, Required: true, TTY: tty, Header: shell})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Conn(terminal)
		if err != nil {
			t.Fatal(err)
		}
		w, chunk := c.ToClient(io.Discard), message(frames.Server, frames.Stdout, strings.Repeat("a line of output\r\n", 58254))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range size {
			if _, err := w.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
			t.Errorf("tty=%t: 100 MB allocated %d bytes, want at most 4 MiB", tty, n)
		}
		if _, err := s.End(t.Context(), "done"); err != nil {
			t.Error(err)
		}
	}
}

func TestNewID(t *testing.T) {
	at := time.Date(2026, 11, 28, 22, 41, 38, 0, time.FixedZone("", 3600))
	if id := NewID(at); !regexp.MustCompile(`^20261128T214138Z-[0-9a-f]{16}$`).MatchString(id) || !idForm.MatchString(id) {
		t.Errorf("the id is %s", id)
	}
	if one, other := NewID(at), NewID(at); one == other {
		t.Errorf("two ids are %s", one)
	}
}

// keep is a Sink that keeps the recording.
type keep struct{ bytes.Buffer }

func (k *keep) Start(context.Context, string, func(int64), func(error)) (Upload, error) {
	return k, nil
}
func (k *keep) Close(context.Context) error { return nil }
func (k *keep) Abort()                      {}

// FuzzSession checks that whatever the two sides send, the recording is an asciicast with a header and an end, whose hash is the digest's.
func FuzzSession(f *testing.F) {
	for _, server := range [][]byte{message(frames.Server, frames.Stdout, "caf\xc3\xa9"), message(frames.Server, frames.Error, `{"status":"Success"}`)} {
		for _, client := range [][]byte{message(frames.Client, frames.Resize, `{"Width":1,"Height":2}`), message(frames.Client, frames.Stdin, "ls")} {
			f.Add(client, server, byte(0))
			f.Add(client, server, byte(3))
		}
	}
	f.Fuzz(func(t *testing.T, client, server []byte, mode byte) {
		p := []frames.Protocol{terminal, {Kind: frames.Attach, Framing: frames.SPDY, Version: "v4.channel.k8s.io"},
			{Kind: frames.PortForward, Framing: frames.SPDY}, {Kind: frames.PortForward, Framing: frames.WebSocket, Version: "v4.channel.k8s.io"}}[mode>>2&3]
		sink := &keep{}
		s, err := Start(t.Context(), Config{Sink: sink, TTY: mode&1 == 0, Input: mode&2 == 0, Header: shell})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Conn(p)
		if err != nil {
			t.Fatal(err)
		}
		c.ToServer(io.Discard).Write(client)
		c.ToClient(io.Discard).Write(server)
		d, err := s.End(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		text := sink.String()
		if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != d.SHA256 {
			t.Error("the digest is not that of the recording")
		}
		line, _, _ := strings.Cut(text, "\n")
		if _, err := ParseHeader([]byte(line)); err != nil {
			t.Error(err)
		}
		all := events(t, text)
		if last := all[len(all)-1]; !strings.HasPrefix(last, "m end: ") {
			t.Errorf("the last event is %q", last)
		}
	})
}

// BenchmarkSession measures what recording 1 MB of a terminal's output costs, and checks the memory for 100 MB.
func BenchmarkSession(b *testing.B) {
	for _, tty := range []bool{true, false} {
		b.Run(fmt.Sprintf("tty=%t", tty), func(b *testing.B) {
			d, err := OpenDir(DirConfig{Path: b.TempDir(), MaxOne: 1 << 40, MaxBytes: 1 << 40})
			if err != nil {
				b.Fatal(err)
			}
			s, err := Start(b.Context(), Config{Sink: d, Required: true, TTY: tty, Header: shell})
			if err != nil {
				b.Fatal(err)
			}
			c, err := s.Conn(terminal)
			if err != nil {
				b.Fatal(err)
			}
			w := c.ToClient(io.Discard)
			chunk := message(frames.Server, frames.Stdout, strings.Repeat("a line of output\r\n", 1821)[:32<<10-1])
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				for range 32 {
					if _, err := w.Write(chunk); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.StopTimer()
			if _, err := s.End(b.Context(), "done"); err != nil {
				b.Fatal(err)
			}
		})
	}
}
