package frames

import (
	"bytes"
	"context"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// feedAll writes b as the bytes of a side in chunks whose sizes are given in turns, and returns the events, what came through, and the error.
func feedAll(p Protocol, opening, b []byte, from Side, sizes ...int) (log []string, through []byte, c *Conn, err error) {
	c = New(record(p, &log))
	var out [2]bytes.Buffer
	writers := []io.Writer{Client: c.ToServer(&out[Client]), Server: c.ToClient(&out[Server])}
	writers[Client].Write(opening)
	skip := 0
	if from == Client {
		skip = out[Client].Len()
	}
	for i := 0; len(b) > 0 && err == nil; i++ {
		n := min(max(sizes[i%len(sizes)], 1), len(b))
		_, err = writers[from].Write(b[:n])
		b = b[n:]
	}
	return log, out[from].Bytes()[skip:], c, err
}

// checkFeed checks the laws of a parser for one input: it does not panic, every split of the input has the same events and errors, the bytes
// that pass are a prefix of the input, what is held is bounded, and an end that can be written is understood by the parser of the other side.
func checkFeed(t *testing.T, p Protocol, opening, b []byte, from Side, split byte) {
	whole, through, c, err := feedAll(p, opening, b, from, max(len(b), 1))
	if !bytes.HasPrefix(b, through) {
		t.Fatalf("the bytes were changed: %q", through)
	}
	if missing := len(b) - len(through); err == nil && missing > maxControlFrame+spdyHeader {
		t.Errorf("%d bytes are held", missing)
	}
	for _, sizes := range [][]int{{1}, {int(split)}, {1, int(split), 7}} {
		got, passed, _, wrong := feedAll(p, opening, b, from, sizes...)
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Errorf("chunks of %v have other events (-whole +chunks):\n%s", sizes, diff)
		}
		if (err == nil) != (wrong == nil) || err != nil && err.Error() != wrong.Error() {
			t.Errorf("chunks of %v: the error is %v, want %v", sizes, wrong, err)
		}
		// A tunnel passes on parts of SPDY's frames, so how much comes before an error depends on the chunks.
		if exact := err == nil || p.Framing != SPDYOverWebSocket; exact && !bytes.Equal(passed, through) {
			t.Errorf("chunks of %v pass %d bytes, want %d", sizes, len(passed), len(through))
		}
	}
	if from != Server {
		return
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	client := c.client.(*bytes.Buffer)
	closed := c.at.closed
	if err := c.End(ended, Reason{Message: "x"}); err != nil {
		return
	}
	reader := New(Config{Protocol: p})
	reader.ToServer(io.Discard).Write(opening)
	if _, err := reader.ToClient(io.Discard).Write(client.Bytes()); err != nil {
		t.Errorf("the other side cannot read the end: %v in %q", err, client)
	}
	if !reader.at.boundary || !closed && !hasEnd(reader) {
		t.Errorf("the end leaves the other side at %+v in %q", reader.at, client)
	}
}

func FuzzWebSocket(f *testing.F) {
	for _, seed := range [][]byte{
		frame(Server, bitFin|opBinary, "\x01hello"), frame(Client, bitFin|opBinary, "\x00ls\n"),
		append(frame(Server, opBinary, "\x01a"), frame(Server, bitFin, "b")...),
		append(frame(Server, opText, "3a"), frame(Server, bitFin|opPing, "b")...),
		appendClose(nil), frame(Server, bitFin|opBinary, "\x02"+string(make([]byte, 300))), {bitFin | opBinary, 127, 0, 0, 0, 0, 0, 1, 0, 0, 1},
	} {
		f.Add(seed, byte(3), byte(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, split, kind byte) {
		p := []Protocol{wsExec, {Exec, WebSocket, "base64.channel.k8s.io"}, {PortForward, WebSocket, "v4.channel.k8s.io"}, {Attach, WebSocket, ""}}[kind%4]
		checkFeed(t, p, nil, b, Server, split)
		checkFeed(t, p, nil, b, Client, split)
	})
}

func FuzzSPDY(f *testing.F) {
	client, server := commandStreams()
	var w spdyWriter
	forward := append(w.syn(1, "streamtype", "data", "port", "80", "requestid", "0"), data(1, 0, "x")...)
	for _, seed := range [][]byte{
		client, server, forward, append(slices.Clone(server), data(5, 0, "hello")...), append(slices.Clone(server), data(1, bitSPDYFin, "{}")...),
		control(typeGoAway, 0, make([]byte, 8)...), control(typeSettings, 0, append(number(1), make([]byte, 8)...)...),
		control(typeRstStream, 0, append(number(5), number(1)...)...), control(typeHeaders, bitSPDYFin, number(3)...),
	} {
		f.Add(seed, byte(5), byte(0))
		f.Add(frame(Server, bitFin|opBinary, string(seed)), byte(5), byte(2))
		f.Add(frame(Client, bitFin|opBinary, string(seed)), byte(5), byte(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, split, kind byte) {
		switch kind % 3 {
		case 0:
			checkFeed(t, spdyExec, client, b, Server, split)
			checkFeed(t, spdyExec, nil, b, Client, split)
		case 1:
			p := Protocol{PortForward, SPDY, "portforward.k8s.io"}
			checkFeed(t, p, forward, b, Server, split)
			checkFeed(t, p, nil, b, Client, split)
		default:
			p := Protocol{PortForward, SPDYOverWebSocket, "SPDY/3.1+portforward.k8s.io"}
			checkFeed(t, p, frame(Client, bitFin|opBinary, string(forward)), b, Server, split)
			checkFeed(t, p, nil, b, Client, split)
		}
	})
}
