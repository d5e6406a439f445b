package frames

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndWaits checks that an end comes after the rest of a frame if the rest comes in time.
func TestEndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Protocol: wsExec})
		var client bytes.Buffer
		w := c.ToClient(&client)
		out := frame(Server, bitFin|opBinary, "\x01abcdef")
		w.Write(out[:5])
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			ended <- c.End(ctx, Reason{Message: "x"})
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("the end did not wait: %v", err)
		default:
		}
		began := time.Now()
		if _, err := w.Write(append(out[5:], out...)); !errors.Is(err, ErrEnded) {
			t.Errorf("the next frame was written: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the end waited %v after the frame", waited)
		}
		if !bytes.HasPrefix(client.Bytes(), append(out, bitFin|opBinary)) || bytes.Count(client.Bytes(), []byte("abcdef")) != 1 {
			t.Errorf("the client got %q", client.Bytes())
		}
	})
}

// TestEndOfPortInFrame checks that no bytes are made up for a forwarded port.
func TestEndOfPortInFrame(t *testing.T) {
	for _, protocol := range []Protocol{{PortForward, SPDY, "portforward.k8s.io"}, {PortForward, SPDYOverWebSocket, "SPDY/3.1+portforward.k8s.io"}} {
		c := New(Config{Protocol: protocol})
		var client bytes.Buffer
		got := data(1, 0, "abcdef")
		if protocol.Framing == SPDYOverWebSocket {
			got = frame(Server, bitFin|opBinary, string(got))
		}
		c.ToClient(&client).Write(got[:len(got)-2])
		before := client.Len()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.End(ctx, Reason{Message: "x"}); !errors.Is(err, ErrMidFrame) {
			t.Errorf("%s: the error is %v, want ErrMidFrame", protocol.Framing, err)
		}
		if client.Len() != before {
			t.Errorf("%s: the client got %q", protocol.Framing, client.Bytes()[before:])
		}
	}
}

// TestEndReleasesPass checks that an end does not wait for a Pass that holds output back, and that the output is not written.
func TestEndReleasesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := errors.New("held back")
		c := New(Config{Protocol: wsExec, Pass: func(ctx context.Context, _ Side) error {
			<-ctx.Done()
			return held
		}})
		var client bytes.Buffer
		wrote := make(chan error, 1)
		w := c.ToClient(&client)
		go func() {
			_, err := w.Write(frame(Server, bitFin|opBinary, "\x01secret"))
			wrote <- err
		}()
		synctest.Wait()
		if err := c.End(t.Context(), Reason{Message: "x"}); err != nil {
			t.Error(err)
		}
		if err := <-wrote; !errors.Is(err, held) {
			t.Errorf("the write's error is %v, want that of Pass", err)
		}
		if bytes.Contains(client.Bytes(), []byte("secret")) {
			t.Error("the output was written")
		}
		if log := readEnd(t, wsExec, nil, client.Bytes()); len(log) != 1 {
			t.Errorf("the client reads %q, want only a Status", log)
		}
	})
}

// TestEndOfClientThatDoesNotRead checks that an end returns when its context ends although the client does not read.
func TestEndOfClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := New(Config{Protocol: wsExec})
		w := c.ToClient(near)
		go w.Write(frame(Server, bitFin|opBinary, "\x01abc"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.End(ctx, Reason{Message: "x"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v, want a deadline", err)
		}
		near.Close()
	})
}

// TestRefusedBytesDoNotPass checks that an end still works after a frame that is refused.
func TestRefusedBytesDoNotPass(t *testing.T) {
	c := New(Config{Protocol: wsExec})
	var client bytes.Buffer
	w := c.ToClient(&client)
	good, bad := frame(Server, bitFin|opBinary, "\x01abc"), frame(Server, 0xc0|opBinary, "\x01bad")
	if _, err := w.Write(append(good, bad...)); err == nil {
		t.Error("extension bits were accepted")
	}
	if err := c.End(t.Context(), Reason{Message: "x"}); err != nil {
		t.Error(err)
	}
	if log := readEnd(t, wsExec, nil, client.Bytes()); len(log) != 2 || log[0] != "server stdout 1: <abc" {
		t.Errorf("the client reads %q, want the good frame and a Status", log)
	}
}

// BenchmarkInput measures what parsing costs for 32 KiB of masked input.
func BenchmarkInput(b *testing.B) {
	up := New(Config{Protocol: wsExec}).ToServer(io.Discard)
	chunk := frame(Client, bitFin|opBinary, string(make([]byte, 32<<10)))
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := up.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFrames measures what parsing costs for 32 KiB of output, in bytes a second and allocations.
func BenchmarkFrames(b *testing.B) {
	for _, protocol := range []Protocol{wsExec, spdyExec} {
		b.Run(string(protocol.Framing), func(b *testing.B) {
			client, server := commandStreams()
			chunk := frame(Server, bitFin|opBinary, string(make([]byte, 32<<10)))
			c := New(Config{Protocol: protocol})
			up, down := c.ToServer(io.Discard), c.ToClient(io.Discard)
			if protocol.Framing == SPDY {
				up.Write(client)
				down.Write(server)
				chunk = data(5, 0, string(make([]byte, 32<<10)))
			}
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := down.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
