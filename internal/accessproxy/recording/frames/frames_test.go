package frames

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// frame returns a WebSocket frame. A client's is masked.
func frame(from Side, head byte, payload string) []byte {
	b := appendFrame(nil, 0, []byte(payload))
	b[0] = head
	if from == Server {
		return b
	}
	mask := [4]byte{0x12, 0x34, 0x56, 0x78}
	n := headerSize(b)
	b[1] |= bitMasked
	out := append(append(bytes.Clone(b[:n]), mask[:]...), b[n:]...)
	for i := range len(payload) { // a string: not its runes
		out[n+4+i] ^= mask[i%4]
	}
	return out
}

// spdyWriter writes frames as the SPDY library of Kubernetes does.
type spdyWriter struct {
	compressed bytes.Buffer
	z          *zlib.Writer
}

func (w *spdyWriter) block(pairs ...string) []byte {
	if w.z == nil {
		w.z, _ = zlib.NewWriterLevelDict(&w.compressed, zlib.BestCompression, dictionary())
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(pairs)/2))
	for _, s := range pairs {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	w.z.Write(b)
	w.z.Flush()
	defer w.compressed.Reset()
	return bytes.Clone(w.compressed.Bytes())
}

func control(kind uint16, flags byte, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0x8003)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(flags)<<24|uint32(len(payload)))
	return append(b, payload...)
}

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func (w *spdyWriter) syn(id uint32, pairs ...string) []byte {
	return control(typeSynStream, 0, append(append(number(id), 0, 0, 0, 0, 0, 0), w.block(pairs...)...)...)
}

func (w *spdyWriter) reply(id uint32) []byte {
	return control(typeSynReply, 0, append(number(id), w.block()...)...)
}

func data(id uint32, flags byte, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = binary.BigEndian.AppendUint32(b, uint32(flags)<<24|uint32(len(text)))
	return append(b, text...)
}

// record returns a Config whose events are appended to log, with neighbouring bytes of one channel joined.
func record(p Protocol, log *[]string) Config {
	return Config{Protocol: p, Event: func(e Event) {
		line := fmt.Sprintf("%s %s %d: ", e.From, e.Channel, e.Stream)
		switch n := len(*log); {
		case e.Type == Opened:
			*log = append(*log, strings.TrimSpace(line+"opened "+e.Port+" "+e.RequestID))
		case e.Type == Closed:
			*log = append(*log, line+"closed")
		case n > 0 && strings.HasPrefix((*log)[n-1], line+"<"):
			(*log)[n-1] += string(e.Data)
		default:
			*log = append(*log, line+"<"+string(e.Data))
		}
	}}
}

// transfer writes the chunks of both sides in order, and returns what the other sides got.
func transfer(c *Conn, chunks ...[]byte) (toClient, toServer bytes.Buffer, err error) {
	writers := []io.Writer{c.ToServer(&toServer), c.ToClient(&toClient)}
	for i, chunk := range chunks {
		if _, err = writers[i%2].Write(chunk); err != nil {
			return toClient, toServer, err
		}
	}
	return toClient, toServer, nil
}

var (
	wsExec   = Protocol{Exec, WebSocket, "v5.channel.k8s.io"}
	spdyExec = Protocol{Exec, SPDY, "v4.channel.k8s.io"}
)

// commandStreams returns what client and server send to open the streams of a command with stdin and stdout.
func commandStreams() (client, server []byte) {
	var c, s spdyWriter
	client = bytes.Join([][]byte{c.syn(1, "streamtype", "error"), c.syn(3, "streamtype", "stdin"), c.syn(5, "streamtype", "stdout")}, nil)
	server = bytes.Join([][]byte{s.reply(1), s.reply(3), s.reply(5)}, nil)
	return client, server
}

// TestDictionary compares the dictionary with the checksum that every SPDY/3 header block begins with: 78 bb e3 c6 a7 c2.
func TestDictionary(t *testing.T) {
	if got := adler32.Checksum(dictionary()); got != 0xe3c6a7c2 {
		t.Errorf("the checksum is %#x, want 0xe3c6a7c2", got)
	}
}

func TestNegotiated(t *testing.T) {
	for _, x := range []struct {
		kind       Kind
		header     string // of the answer: upgrade, subprotocol of WebSocket, version of SPDY, extensions
		want       Protocol
		recordable bool
		err        string
	}{
		{Exec, "websocket|v5.channel.k8s.io||", wsExec, true, ""},
		{Attach, "WebSocket|v4.channel.k8s.io||", Protocol{Attach, WebSocket, "v4.channel.k8s.io"}, true, ""},
		{Exec, "websocket|||", Protocol{Exec, WebSocket, ""}, false, ""},
		{Exec, "websocket|base64.channel.k8s.io||", Protocol{Exec, WebSocket, "base64.channel.k8s.io"}, false, ""},
		{Exec, "websocket|v4.base64.channel.k8s.io||", Protocol{Exec, WebSocket, "v4.base64.channel.k8s.io"}, false, ""},
		{Exec, "SPDY/3.1||v4.channel.k8s.io|", spdyExec, true, ""},
		{PortForward, "SPDY/3.1||portforward.k8s.io|", Protocol{PortForward, SPDY, "portforward.k8s.io"}, true, ""},
		{PortForward, "websocket|SPDY/3.1+portforward.k8s.io||", Protocol{PortForward, SPDYOverWebSocket, "SPDY/3.1+portforward.k8s.io"}, true, ""},
		{PortForward, "websocket|v4.channel.k8s.io||", Protocol{PortForward, WebSocket, "v4.channel.k8s.io"}, true, ""},
		{Exec, "websocket|SPDY/3.1+portforward.k8s.io||", Protocol{}, false, "only port-forward"},
		{Exec, "websocket|v5.channel.k8s.io||permessage-deflate", Protocol{}, false, "extensions"},
		{Exec, "h2c|||", Protocol{}, false, "neither"},
		{Exec, "|||", Protocol{}, false, "neither"},
	} {
		v := strings.Split(x.header, "|")
		h := http.Header{"Upgrade": {v[0]}, "Sec-Websocket-Protocol": {v[1]}, "X-Stream-Protocol-Version": {v[2]}, "Sec-Websocket-Extensions": {v[3]}}
		got, err := Negotiated(x.kind, h)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s %s: the error is %v, want %q", x.kind, x.header, err, x.err)
			}
			continue
		}
		if err != nil || got != x.want {
			t.Errorf("%s %s: %v, %v, want %v", x.kind, x.header, got, err, x.want)
		}
		if got.Recordable() != x.recordable {
			t.Errorf("%s %s: recordable is %t, want %t", x.kind, x.header, got.Recordable(), x.recordable)
		}
	}
}

func TestEvents(t *testing.T) {
	client, server := commandStreams()
	var pf spdyWriter
	forward := bytes.Join([][]byte{
		pf.syn(1, "streamtype", "error", "port", "80", "requestid", "7"), data(1, bitSPDYFin, ""),
		pf.syn(3, "streamtype", "data", "port", "80", "requestid", "7"), data(3, 0, "GET /"), control(typePing, 0, number(1)...),
	}, nil)
	message := func(from Side, text string) []byte { return frame(from, bitFin|opBinary, text) }
	for _, x := range []struct {
		why      string
		protocol Protocol
		chunks   [][]byte // of the client and the server, in turns
		want     []string
	}{
		{"input and output", wsExec, [][]byte{message(Client, "\x00ls"), message(Server, "\x01a\nb\n"), nil, message(Server, "\x02oops")},
			[]string{"client stdin 0: <ls", "server stdout 1: <a\nb\n", "server stderr 2: <oops"}},
		{"a ping between fragments of a message", wsExec, [][]byte{nil, bytes.Join([][]byte{
			frame(Server, opBinary, "\x01a"), frame(Server, bitFin|opPing, "x"), frame(Server, opContinuation, ""), frame(Server, bitFin, "b")}, nil)},
			[]string{"server stdout 1: <ab"}},
		{"a fragment that is empty holds no channel", wsExec, [][]byte{nil, append(frame(Server, opBinary, ""), frame(Server, bitFin, "\x02b")...)},
			[]string{"server stderr 2: <b"}},
		{"lengths of 16 and of 64 bits", wsExec, [][]byte{message(Client, "\x00"+strings.Repeat("x", 5000)), message(Server, "\x01"+strings.Repeat("y", 70000))},
			[]string{"client stdin 0: <" + strings.Repeat("x", 5000), "server stdout 1: <" + strings.Repeat("y", 70000)}},
		{"a resize, and the end of stdin", wsExec, [][]byte{append(message(Client, "\x04{}"), message(Client, "\xff\x00")...)},
			[]string{"client resize 4: <{}", "client close signal 255: <\x00"}},
		{"digits as channels", Protocol{Exec, WebSocket, "base64.channel.k8s.io"}, [][]byte{frame(Client, bitFin|opText, "0bHM=")},
			[]string{"client stdin 0: <bHM="}},
		{"ports over WebSocket", Protocol{PortForward, WebSocket, "v4.channel.k8s.io"}, [][]byte{message(Client, "\x00GET"), message(Server, "\x01no")},
			[]string{"client data 0: <GET", "server error 1: <no"}},
		{"a command over SPDY", spdyExec, [][]byte{client, server, data(3, bitSPDYFin, "ls"), data(5, 0, "a"), nil, data(1, bitSPDYFin, "{}")},
			[]string{"client error 1: opened", "client stdin 3: opened", "client stdout 5: opened", "client stdin 3: <ls", "client stdin 3: closed",
				"server stdout 5: <a", "server error 1: <{}", "server error 1: closed"}},
		{"output after the client has reset its stream", spdyExec, [][]byte{client, server, control(typeRstStream, 0, append(number(5), number(5)...)...), data(5, 0, "secret")},
			[]string{"client error 1: opened", "client stdin 3: opened", "client stdout 5: opened", "client stdout 5: closed", "server stdout 5: <secret"}},
		{"a port over SPDY", Protocol{PortForward, SPDY, "portforward.k8s.io"}, [][]byte{forward, data(3, 0, "200 OK")},
			[]string{"client error 1: opened 80 7", "client error 1: closed", "client data 3: opened 80 7", "client data 3: <GET /", "server data 3: <200 OK"}},
		{"SPDY in messages that end inside its frames", Protocol{PortForward, SPDYOverWebSocket, "SPDY/3.1+portforward.k8s.io"},
			[][]byte{append(message(Client, string(forward[:5])), message(Client, string(forward[5:]))...), message(Server, string(data(3, 0, "200 OK")))},
			[]string{"client error 1: opened 80 7", "client error 1: closed", "client data 3: opened 80 7", "client data 3: <GET /", "server data 3: <200 OK"}},
	} {
		var log []string
		toClient, toServer, err := transfer(New(record(x.protocol, &log)), x.chunks...)
		if err != nil {
			t.Errorf("%s: %v", x.why, err)
			continue
		}
		if diff := cmp.Diff(x.want, log); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", x.why, diff)
		}
		var sent [2][]byte
		for i, chunk := range x.chunks {
			sent[i%2] = append(sent[i%2], chunk...)
		}
		if !bytes.Equal(toServer.Bytes(), sent[0]) || !bytes.Equal(toClient.Bytes(), sent[1]) {
			t.Errorf("%s: the bytes were changed", x.why)
		}
	}
}

func TestRefusedFrames(t *testing.T) {
	client, server := commandStreams()
	var one spdyWriter
	syn := func(id uint32, pairs ...string) []byte { var w spdyWriter; return w.syn(id, pairs...) }
	long := []byte{bitFin | opBinary, 127, 0, 0, 0, 0, 0, 0, 0, 1, 1}
	block := one.block("streamtype", "stdin")
	for _, x := range []struct {
		why      string
		protocol Protocol
		chunks   [][]byte
		want     string
	}{
		{"extension bits", wsExec, [][]byte{nil, frame(Server, 0xc0|opBinary, "\x01x")}, "extension bits"},
		{"a client without a mask", wsExec, [][]byte{frame(Server, bitFin|opBinary, "\x00x")}, "masked"},
		{"a server with a mask", wsExec, [][]byte{nil, frame(Client, bitFin|opBinary, "\x00x")}, "masked"},
		{"an unknown opcode", wsExec, [][]byte{frame(Client, bitFin|0x3, "\x00x")}, "opcode"},
		{"an unknown control opcode", wsExec, [][]byte{frame(Client, bitFin|0xb, "")}, "opcode"},
		{"a ping of 126 bytes", wsExec, [][]byte{nil, frame(Server, bitFin|opPing, strings.Repeat("x", 126))}, "too long"},
		{"a ping in fragments", wsExec, [][]byte{nil, frame(Server, opPing, "")}, "fragmented"},
		{"input in fragments, whose second one hides a channel", wsExec, [][]byte{frame(Client, opBinary, "\x04{")}, "fragmented"},
		{"a message inside another one", wsExec, [][]byte{nil, append(frame(Server, opBinary, "\x01a"), frame(Server, bitFin|opBinary, "\x01b")...)}, "inside another"},
		{"a fragment of no message", wsExec, [][]byte{nil, frame(Server, bitFin, "b")}, "inside another"},
		{"a length in a longer form than needed", wsExec, [][]byte{nil, long}, "wrong form"},
		{"a length of more than 63 bits", wsExec, [][]byte{nil, {bitFin | opBinary, 127, 0x80, 0, 0, 0, 0, 0, 0, 0}}, "wrong form"},
		{"output after the close frame", wsExec, [][]byte{nil, append(appendClose(nil), frame(Server, bitFin|opBinary, "\x01b")...)}, "follows the close"},
		{"another version of SPDY", spdyExec, [][]byte{{0x80, 2, 0, 1, 0, 0, 0, 0}}, "version"},
		{"a control frame of 8 KiB", spdyExec, [][]byte{control(typeSynStream, 0, make([]byte, maxControlFrame+1)...)}, "bytes"},
		{"a ping that hides a frame", spdyExec, [][]byte{control(typePing, 0, append(number(1), client...)...)}, "bytes"},
		{"a reset that hides a frame", spdyExec, [][]byte{control(typeRstStream, 0, make([]byte, 16)...)}, "bytes"},
		{"settings that hide a frame", spdyExec, [][]byte{control(typeSettings, 0, append(number(0), client...)...)}, "settings"},
		{"an unknown control frame", spdyExec, [][]byte{control(5, 0)}, "type 5"},
		{"an unknown stream", spdyExec, [][]byte{syn(1, "streamtype", "stdwhat")}, "stdwhat"},
		{"two types for one stream", spdyExec, [][]byte{syn(1, "streamtype", "stdin", "streamtype", "stdout")}, "twice"},
		{"a type in upper case", spdyExec, [][]byte{syn(1, "streamType", "stdin")}, "upper case"},
		{"a second stdout", spdyExec, [][]byte{append(client, syn(7, "streamtype", "stdout")...)}, ""},
		{"a stream's number twice", spdyExec, [][]byte{append(one.syn(3, "streamtype", "stdout"), one.syn(3, "streamtype", "stdin")...)}, ""},
		{"an even number", spdyExec, [][]byte{syn(2, "streamtype", "stdin")}, "number"},
		{"bytes after the headers", spdyExec, [][]byte{control(typeSynStream, 0, bytes.Join([][]byte{number(1), make([]byte, 6), block, {0}}, nil)...)}, "bytes follow"},
		{"headers without their end", spdyExec, [][]byte{control(typeSynStream, 0, bytes.Join([][]byte{number(1), make([]byte, 6), block[:len(block)-7]}, nil)...)}, "decompress"},
		{"a server that opens a stream", spdyExec, [][]byte{nil, syn(2, "streamtype", "stdin")}, "opens"},
		{"a client that answers", spdyExec, [][]byte{control(typeSynReply, 0, number(1)...)}, "opens none"},
		{"output on a stream that the client has not opened", spdyExec, [][]byte{client, append(server, data(7, 0, "x")...)}, "not opened"},
		{"flags of a data frame", spdyExec, [][]byte{client, append(server, data(5, 2, "x")...)}, "flags"},
		{"a header that decompresses to more than 4 KiB", spdyExec, [][]byte{syn(1, "streamtype", strings.Repeat("x", 5000))}, "more than"},
	} {
		_, _, err := transfer(New(record(x.protocol, new([]string))), x.chunks...)
		var wrong *ProtocolError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: the error is %v, want %q", x.why, err, x.want)
		}
	}
}

// statusOf reads the message of a Status.
func statusOf(t *testing.T, b []byte) string {
	t.Helper()
	var s struct {
		Kind, APIVersion, Status, Message, Reason string
		Code                                      int
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Errorf("the Status is %q: %v", b, err)
	}
	return fmt.Sprintf("%s %s %s %s %d %s", s.APIVersion, s.Kind, s.Status, s.Reason, s.Code, s.Message)
}

// readEnd describes the frames that the client got, read by a parser of its side.
func readEnd(t *testing.T, p Protocol, client, got []byte) (log []string) {
	t.Helper()
	c := New(record(p, &log))
	if _, _, err := transfer(c, client, got); err != nil {
		t.Errorf("the end cannot be read: %v", err)
	}
	if !c.at.boundary {
		t.Error("the end is not whole")
	}
	if !hasEnd(c) {
		t.Error("the end does not close")
	}
	return log
}

// hasEnd reports whether the client of c has the end of everything that it has opened.
func hasEnd(c *Conn) bool {
	if p := c.cfg.Protocol; p.Framing != SPDY || p.Kind == PortForward {
		return c.at.closed
	}
	for _, s := range c.streams.open {
		if !s.ended[Server] {
			return false
		}
	}
	return true
}

const wantStatus = "v1 Status Failure Forbidden 403 " + sentence

// TestEnd checks each end in each position of the server's frames.
func TestEnd(t *testing.T) {
	client, server := commandStreams()
	var s spdyWriter
	halfOpen := bytes.Join([][]byte{s.reply(1), s.reply(3)}, nil)
	status, err := json.Marshal(map[string]any{"kind": "Status", "status": "Success"})
	if err != nil {
		t.Fatal(err)
	}
	out := frame(Server, bitFin|opBinary, "\x01abcdef")
	for _, x := range []struct {
		why            string
		protocol       Protocol
		client, server []byte
		want           []string // the server's events; a Status is replaced by "STATUS"
	}{
		{"nothing was sent", wsExec, nil, nil, []string{"server error 3: <STATUS"}},
		{"after a message", wsExec, nil, out, []string{"server stdout 1: <abcdef", "server error 3: <STATUS"}},
		{"in a frame", wsExec, nil, out[:5], []string{"server stdout 1: <ab\x00\x00\x00\x00", "server error 3: <STATUS"}},
		{"in a header", wsExec, nil, append(bytes.Clone(out), out[0]), []string{"server stdout 1: <abcdef", "server error 3: <STATUS"}},
		{"between fragments", wsExec, nil, frame(Server, opBinary, "\x01ab"), []string{"server stdout 1: <ab", "server error 3: <STATUS"}},
		{"in a fragment", wsExec, nil, frame(Server, opBinary, "\x01ab")[:3], []string{"server stdout 1: <\x00\x00", "server error 3: <STATUS"}},
		{"in a ping", wsExec, nil, frame(Server, bitFin|opPing, "abc")[:4], []string{"server error 3: <STATUS"}},
		{"after the server's Status", wsExec, nil, frame(Server, bitFin|opBinary, "\x03"+string(status)), []string{"server error 3: <" + string(status)}},
		{"after the server's close", wsExec, nil, appendClose(nil), nil},
		{"before v4", Protocol{Exec, WebSocket, "channel.k8s.io"}, nil, nil, []string{"server error 3: <" + sentence}},
		{"in base64", Protocol{Exec, WebSocket, "base64.channel.k8s.io"}, nil, nil, []string{"server error 3: <" + base64.StdEncoding.EncodeToString([]byte(sentence))}},
		{"ports over WebSocket", Protocol{PortForward, WebSocket, "v4.channel.k8s.io"}, nil,
			append(frame(Server, bitFin|opBinary, "\x00\x50\x00"), frame(Server, bitFin|opBinary, "\x01\x50\x00")...),
			[]string{"server data 0: <\x50\x00", "server error 1: <\x50\x00" + sentence}},
		{"SPDY", spdyExec, client, server, []string{"server error 1: <STATUS", "server error 1: closed", "server stdin 3: closed", "server stdout 5: closed"}},
		{"SPDY, in a frame", spdyExec, client, append(bytes.Clone(server), data(5, 0, "abcdef")[:10]...),
			[]string{"server stdout 5: <ab\x00\x00\x00\x00", "server error 1: <STATUS", "server error 1: closed", "server stdin 3: closed", "server stdout 5: closed"}},
		{"SPDY, in a control frame", spdyExec, client, append(bytes.Clone(server), control(typePing, 0, number(2)...)[:10]...),
			[]string{"server error 1: <STATUS", "server error 1: closed", "server stdin 3: closed", "server stdout 5: closed"}},
		{"SPDY, before a stream is answered", spdyExec, client, halfOpen,
			[]string{"server error 1: <STATUS", "server error 1: closed", "server stdin 3: closed", "server stdout 5: closed"}},
		{"SPDY, before streams are opened", spdyExec, nil, nil, nil},
		{"SPDY, after stdout has ended", spdyExec, client, append(bytes.Clone(server), data(5, bitSPDYFin, "")...),
			[]string{"server stdout 5: closed", "server error 1: <STATUS", "server error 1: closed", "server stdin 3: closed"}},
		{"SPDY before v4", Protocol{Exec, SPDY, "v3.channel.k8s.io"}, client, server,
			[]string{"server error 1: <" + sentence, "server error 1: closed", "server stdin 3: closed", "server stdout 5: closed"}},
	} {
		t.Run(x.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Config{Protocol: x.protocol})
				var toClient bytes.Buffer
				c.ToServer(io.Discard).Write(x.client)
				w := c.ToClient(&toClient)
				if _, err := w.Write(x.server); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := c.End(ctx, Reason{Message: sentence}); err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, line := range readEnd(t, x.protocol, x.client, toClient.Bytes()) {
					if i := strings.Index(line, `<{"kind":"Status","apiVersion"`); i >= 0 {
						if s := statusOf(t, []byte(line[i+1:])); s != wantStatus {
							t.Errorf("the Status is %q, want %q", s, wantStatus)
						}
						line = line[:i] + "<STATUS"
					}
					if strings.HasPrefix(line, "server ") {
						got = append(got, line)
					}
				}
				if diff := cmp.Diff(x.want, got); diff != "" {
					t.Errorf("the client reads (-want +got):\n%s", diff)
				}
				before := toClient.Len()
				if _, err := w.Write(out); !errors.Is(err, ErrEnded) {
					t.Errorf("a write after the end: %v", err)
				}
				if err := c.End(t.Context(), Reason{}); !errors.Is(err, ErrEnded) {
					t.Errorf("a second end: %v", err)
				}
				if toClient.Len() != before {
					t.Error("bytes followed the end")
				}
			})
		})
	}
}
