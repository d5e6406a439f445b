package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of a recorder.
const (
	startTimeout    = 10 * time.Second // for the connection and both answers
	maxBuffered     = 4 << 20          // of a recording, not sent yet; a window of control characters is 1.5 MiB
	maxAckFrame     = 4 << 10          // bytes of a frame of the recorder
	maxRecorderText = 200              // bytes of a recorder's sentence
)

// A Recorder is a Sink that sends recordings to a recorder on the tailnet: HEAD and then POST /v2/record over HTTP/2 without TLS, whose
// answer is a stream of JSON objects, {"ack":n} and at the end {"error":s} (tailscale.com/sessionrecording). It never uses /record, which
// acknowledges nothing. Each recording has its own connection, so one cannot hold up another.
type Recorder struct {
	Addr string // host:port
	// Dial connects to Addr. It must make sure that the address belongs to a node with the recorder's tag.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Start connects to the recorder. It fails after 10 s.
func (r *Recorder) Start(ctx context.Context, _ string, acked func(int64), lost func(error)) (Upload, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{DialContext: r.Dial, Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{SendPingTimeout: ackTimeout / 2, PingTimeout: ackTimeout / 2}}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	u := &upload{acked: acked, lost: lost, wake: make(chan struct{}, 1), done: make(chan struct{}), cancel: end}
	late := time.AfterFunc(startTimeout, end)
	stop := context.AfterFunc(ctx, end)
	answer, err := r.open(life, client, u)
	if inTime := late.Stop(); err == nil && (!stop() || !inTime) {
		answer.Body.Close()
		err = errors.New("it did not answer in time")
	}
	if err != nil {
		u.stop(err)
		end()
		transport.CloseIdleConnections()
		return nil, fmt.Errorf("start a recording on the recorder %s: %w", r.Addr, err)
	}
	u.watch = time.AfterFunc(ackTimeout, u.check)
	u.mu.Lock()
	u.heard, u.progress = time.Now(), time.Now()
	u.mu.Unlock()
	go func() {
		defer transport.CloseIdleConnections()
		defer end()
		u.readAcks(answer.Body)
	}()
	return u, nil
}

// open asks whether the recorder speaks the protocol, and begins the upload.
func (r *Recorder) open(ctx context.Context, client *http.Client, u *upload) (*http.Response, error) {
	url := "http://" + r.Addr + "/v2/record"
	do := func(method string, body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, url, body)
		if err != nil {
			return nil, err
		}
		answer, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
			answer.Body.Close()
			return nil, fmt.Errorf("%s /v2/record was answered with %d over %s, want 200 over HTTP/2",
				method, answer.StatusCode, answer.Proto)
		}
		return answer, nil
	}
	probe, err := do(http.MethodHead, nil)
	if err != nil {
		return nil, err
	}
	probe.Body.Close()
	return do(http.MethodPost, body{u})
}

// An upload is one POST.
type upload struct {
	acked  func(int64)
	lost   func(error)
	cancel context.CancelFunc
	wake   chan struct{} // the body has something to read, or has ended
	done   chan struct{} // closed when no more acknowledgements come
	watch  *time.Timer

	mu       sync.Mutex
	buf      bytes.Buffer // written, not sent yet
	sent     int64
	received int64     // the last acknowledgement
	heard    time.Time // when the last frame came
	progress time.Time // when the last byte was acknowledged, or the first one was written after that
	closed   bool      // nothing more is written
	unread   bool      // the transport reads no more
	err      error
}

func (u *upload) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.err != nil:
		return 0, u.err
	case u.closed:
		return 0, errors.New("write to a recording that has ended")
	case u.buf.Len()+len(p) > maxBuffered:
		return 0, fmt.Errorf("the recorder has not taken %d bytes", u.buf.Len())
	}
	if u.received == u.sent+int64(u.buf.Len()) {
		u.progress = time.Now()
	}
	u.buf.Write(p)
	u.signal()
	return len(p), nil
}

func (u *upload) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// body is the body of an upload's request.
type body struct{ *upload }

// Close is called by the transport. It must end a Read: otherwise a broken connection is noticed only by a timeout.
func (u body) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unread = true
	u.signal()
	return nil
}

func (u body) Read(p []byte) (int, error) {
	for {
		u.mu.Lock()
		n, _ := u.buf.Read(p)
		u.sent += int64(n)
		over, err := u.closed && u.buf.Len() == 0, u.err
		if u.unread && err == nil {
			err = io.ErrClosedPipe
		}
		u.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case err != nil:
			return 0, err
		case over:
			return 0, io.EOF
		}
		<-u.wake
	}
}

// fail ends the upload with its first error. Afterwards nothing is sent.
func (u *upload) fail(err error) {
	if u.stop(err) {
		u.watch.Stop()
		u.cancel()
		u.lost(err)
	}
}

// stop sets the error, and reports whether it is the first one.
func (u *upload) stop(err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.signal()
	if u.err == nil {
		u.err = err
		return true
	}
	return false
}

// check fails the upload if the recorder is silent, or acknowledges nothing new, for too long.
func (u *upload) check() {
	u.mu.Lock()
	since := u.heard
	if outstanding := u.received < u.sent+int64(u.buf.Len()); outstanding && u.progress.Before(since) {
		since = u.progress
	}
	left := ackTimeout - time.Since(since)
	u.mu.Unlock()
	if left <= 0 {
		u.fail(fmt.Errorf("the recorder has not acknowledged anything for %v", ackTimeout))
		return
	}
	u.watch.Reset(left)
}

// readAcks reads the answer until it ends.
func (u *upload) readAcks(body io.ReadCloser) {
	defer close(u.done)
	defer body.Close()
	in := &limitedReader{r: body}
	d := json.NewDecoder(in)
	for {
		var frame struct {
			Ack   int64  `json:"ack"`
			Error string `json:"error"`
		}
		in.left = maxAckFrame // what the decoder has read ahead is less than another frame
		err := d.Decode(&frame)
		switch {
		case errors.Is(err, io.EOF) && u.whole():
			u.watch.Stop()
			return
		case err != nil:
			err = fmt.Errorf("the recorder has ended the recording: %w", err)
		case frame.Error != "":
			err = fmt.Errorf("the recorder reports: %.*q", maxRecorderText, frame.Error)
		default:
			err = u.ack(frame.Ack)
		}
		if err != nil {
			u.fail(err)
			return
		}
	}
}

// ack takes one acknowledgement.
func (u *upload) ack(n int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case n > u.sent:
		return fmt.Errorf("the recorder acknowledges %d bytes, but %d were sent", n, u.sent)
	case n < u.received:
		return fmt.Errorf("the recorder acknowledges %d bytes after %d", n, u.received)
	}
	u.heard = time.Now()
	if n > u.received {
		u.received, u.progress = n, u.heard
		u.acked(n)
	}
	return nil
}

// whole reports whether the recording has ended and is acknowledged.
func (u *upload) whole() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed && u.buf.Len() == 0 && u.received == u.sent
}

// Close sends what is left, and waits until the recorder has acknowledged it and ended its answer.
func (u *upload) Close(ctx context.Context) error {
	u.mu.Lock()
	u.closed = true
	u.signal()
	u.mu.Unlock()
	select {
	case <-u.done:
	case <-ctx.Done():
		if u.whole() { // only the end of the answer is missing
			u.watch.Stop()
			u.cancel()
			return nil
		}
		u.fail(fmt.Errorf("the recorder has not acknowledged the end: %w", ctx.Err()))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// Abort resets the upload, so that the recorder sees that it is incomplete.
func (u *upload) Abort() { u.fail(errors.New("the recording was given up")) }

// A limitedReader fails when more than left bytes are read.
type limitedReader struct {
	r    io.Reader
	left int
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("a frame is too long")
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}
