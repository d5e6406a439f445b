package accessproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/problem"
)

// switchProtocols takes over the client's connection after the API server has switched protocols.
func (x *exchange) switchProtocols(res *http.Response) error {
	backend, ok := res.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(res.Header.Get("Upgrade"), x.upgrade) {
		return problem.New(problem.Internal, "The API server switched to another protocol than the requested one.")
	}
	observer, err := x.conn(res.Header)
	if err != nil {
		return err
	}
	x.stream = x.proxy.streams.add(x)
	defer x.proxy.streams.remove(x.stream)
	h := http.Header{}
	apiproxy.ResponseHeaders(h, res.Header, res.Request.URL)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"], h["Audit-Id"] = []string{"Upgrade"}, res.Header["Upgrade"], []string{x.id}
	client, pending, err := apiproxy.Hijack(x.w, h, func() { x.status = http.StatusSwitchingProtocols })
	if client == nil {
		return err
	}
	defer client.Close()
	if err != nil { // the client has left
		return nil
	}
	x.carry(client, io.MultiReader(bytes.NewReader(pending), client), backend, observer)
	return nil
}

// Limits of the end of an upgraded connection.
const (
	endWrite = time.Second // for a client that does not read
	endRead  = time.Second // until the client closes the connection after it has received the end
)

// carry copies in both directions until both sides have ended, or until the stream is cut. If one side ends its
// direction, the end is forwarded and the other side may continue.
func (x *exchange) carry(client net.Conn, fromClient io.Reader, backend io.ReadWriteCloser, observer *frames.Conn) {
	closeBoth := sync.OnceFunc(func() {
		client.Close()
		backend.Close()
	})
	defer closeBoth()
	sentAll := make(chan struct{})
	toClient, toServer, end := x.observe(client, backend, observer, sentAll)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			return
		case <-x.stream.live.Done():
		}
		if end != nil {
			end()
		}
		closeBoth()
	}()
	go x.cutIfLost(done)
	var both sync.WaitGroup
	var sent, received int64
	var clientEnds atomic.Bool
	both.Go(func() {
		received = x.copyOneWay(toClient, client, &serverReader{backend, func() bool { return x.breaksOff(observer, &clientEnds) }}, closeBoth)
	})
	both.Go(func() {
		defer close(sentAll)
		defer clientEnds.Store(true)
		sent = x.copyOneWay(toServer, backend, fromClient, closeBoth)
	})
	both.Wait()
	close(done)
	<-ended
	x.bytes = sent + received
}

// A serverReader reads what the API server sends.
type serverReader struct {
	io.Reader
	breaksOff func() bool // called at its end
}

// errBreaksOff ends the copying without the end of the client's connection, which the cut of the stream writes.
var errBreaksOff = errors.New("the connection to the API server broke off")

// Read implements [io.Reader].
func (r *serverReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	switch {
	case n > 0:
		return n, nil // the next Read has the error again
	case err != nil && r.breaksOff():
		return 0, errBreaksOff
	}
	return 0, err
}

// breaksOff cuts the stream if the API server ends it without the result of the command: kubectl exits with 0 where a connection just
// ends, although it has a part of the output only.
func (x *exchange) breaksOff(observer *frames.Conn, clientEnds *atomic.Bool) bool {
	if observer == nil || clientEnds.Load() || observer.IsComplete() {
		return false
	}
	x.stream.cut(cutBroken)
	return true
}

// observe returns the writers through which both directions are copied, and the function that writes the end of the
// stream to the client; nil: the protocol has none that we know. sentAll is closed when nothing more is copied from the client.
func (x *exchange) observe(client net.Conn, backend io.WriteCloser, c *frames.Conn, sentAll <-chan struct{}) (toClient, toServer io.Writer, end func()) {
	if c == nil {
		return client, backend, nil
	}
	toServer = c.ToServer(backend)
	return c.ToClient(client), toServer, func() {
		why, _ := x.stream.isCut()
		ctx, cancel := context.WithTimeout(context.Background(), boundaryWait)
		defer cancel()
		client.SetWriteDeadline(time.Now().Add(boundaryWait + endWrite))
		if err := c.End(ctx, frames.Reason{Message: x.sentence(why)}); err != nil {
			x.proxy.Log.Info("the client of a stream did not receive why it ended", "audit", x.id, "err", err)
			return
		}
		// A reset would discard the end, so this waits until the client has read it and closed.
		client.SetReadDeadline(time.Now().Add(endRead))
		backend.Close() // releases a write
		<-sentAll
		io.Copy(toServer, client)
		io.Copy(io.Discard, client) // of a client whose frames cannot be read any more
	}
}

// frameKinds are the kinds of streams that the proxy can end with a reason.
var frameKinds = map[apiproxy.StreamKind]frames.Kind{
	apiproxy.StreamExec: frames.Exec, apiproxy.StreamAttach: frames.Attach, apiproxy.StreamPortForward: frames.PortForward,
}

// A countingWriter adds what it writes to the bytes of a stream.
type countingWriter struct {
	io.Writer
	bytes *atomic.Int64
}

// Write implements [io.Writer].
func (w countingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.bytes.Add(int64(n))
	return n, err
}

// copyOneWay copies until from ends, and then ends the direction at its end. An error ends both directions, unless the
// stream is cut, whose end closes both.
func (x *exchange) copyOneWay(through io.Writer, to io.Closer, from io.Reader, closeBoth func()) int64 {
	large := x.proxy.buffers.large.Get().(*[largeBuffer]byte)
	defer x.proxy.buffers.large.Put(large)
	n, err := apiproxy.CopyOneWay(countingWriter{through, &x.stream.bytes}, to, from, large[:])
	if err != nil {
		x.cutLost() // a lost recording is the error, and the client must get the reason
	}
	if _, cut := x.stream.isCut(); err != nil && !cut {
		closeBoth()
	}
	return n
}
