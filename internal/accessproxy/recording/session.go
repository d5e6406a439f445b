package recording

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

// Intervals of a session.
const (
	digestEvery = time.Minute
	flushEvery  = time.Second // of sizes
	flushBytes  = 64 << 10    // of sizes
)

// ErrLost is wrapped by the error of a session whose recording is lost.
var ErrLost = errors.New("the recording is lost")

// Config describes a session.
type Config struct {
	Sink     Sink
	Required bool   // if the recording cannot begin or is lost, the stream must not go on
	Input    bool   // record input too
	TTY      bool   // the stream is a terminal: record its output; otherwise record sizes and hashes
	Header   Header // Version, Width, Height, Timestamp and the RecordingID are set by Start, unless they are set already

	Digest func(Digest)     // called every minute if something was recorded, and at the end; may be nil
	Now    func() time.Time // nil means time.Now
}

// A Session records one stream. Its methods are safe for concurrent use.
type Session struct {
	cfg    Config
	id     string
	window *window
	lost   chan struct{}
	once   sync.Once // closes lost
	stop   chan struct{}
	ticked chan struct{} // run has returned

	upload Upload // nil if the recording could not begin, and is not required

	mu      sync.Mutex
	cast    caster
	began   bool  // the header is written
	written int64 // bytes of the recording
	sum     hash.Hash
	told    int64 // bytes at the last digest
	over    bool

	protocol frames.Protocol
	resize   []byte // the beginning of a resize message
	status   []byte // what the error channel has carried
	sizes    *sizes // nil for terminals

	// pending is what each side has sent and Pass has not yet seen. Each entry belongs to the goroutine that copies from that side.
	pending [2]struct {
		bytes int64
		place place
	}
}

// Start begins a recording. If it cannot begin and is required, Start fails. The caller must call End.
func Start(ctx context.Context, cfg Config) (*Session, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	now := cfg.Now()
	s := &Session{cfg: cfg, id: NewID(now), window: newWindow(cfg.Now), sum: sha256.New(),
		lost: make(chan struct{}), stop: make(chan struct{}), ticked: make(chan struct{})}
	h := &s.cfg.Header
	d := Details{}
	if h.Tailplane != nil {
		d = *h.Tailplane
	}
	d.RecordingID, d.TTY, d.Input = s.id, cfg.TTY, cfg.Input
	h.Tailplane, h.Version, h.Timestamp = &d, 2, now.Unix()
	s.cast.start = now
	if !cfg.TTY {
		s.sizes = newSizes(cfg.Input)
	}
	upload, err := cfg.Sink.Start(ctx, s.id, s.window.ack, s.lose)
	switch {
	case err == nil:
		s.upload = upload
	case cfg.Required:
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	default:
		s.lose(err)
	}
	go s.run()
	return s, nil
}

// ID returns the recording's id.
func (s *Session) ID() string { return s.id }

// Lost is closed when the recording is lost. If it is required, the caller must cut the stream.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err returns why the recording is lost, or nil.
func (s *Session) Err() error { return s.window.err() }

// Conn returns the Conn for the stream once its protocol is known. It fails if the recording is required and the protocol cannot be
// recorded; if it is not required, nothing is recorded. It must be called once.
func (s *Session) Conn(p frames.Protocol) (*frames.Conn, error) {
	if !p.Recordable() {
		err := fmt.Errorf("%s %q cannot be recorded; use v4.channel.k8s.io, v5.channel.k8s.io or SPDY/3.1", p.Framing, p.Version)
		if s.cfg.Required {
			return nil, fmt.Errorf("this stream must be recorded: %w", err)
		}
		s.lose(err)
		return frames.New(frames.Config{Protocol: p}), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protocol = p
	s.cfg.Header.Tailplane.Protocol = string(p.Framing) + " " + p.Version
	return frames.New(frames.Config{Protocol: p, Event: s.event, Pass: s.pass}), nil
}

// run flushes sizes and reports digests until End.
func (s *Session) run() {
	defer close(s.ticked)
	minute := time.NewTicker(digestEvery)
	defer minute.Stop()
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	if s.sizes == nil {
		flush.Stop()
	}
	for {
		select {
		case <-flush.C:
			s.mu.Lock()
			s.flushSizes()
			s.mu.Unlock()
		case <-minute.C:
			s.mu.Lock()
			d, news := s.digest(), s.written > s.told
			s.told = s.written
			s.mu.Unlock()
			if news && s.cfg.Digest != nil {
				s.cfg.Digest(d)
			}
		case <-s.stop:
			return
		}
	}
}

// digest returns the present state. The caller must hold s.mu.
func (s *Session) digest() Digest {
	return Digest{ID: s.id, At: s.cfg.Now(), Bytes: s.written, SHA256: hex.EncodeToString(s.sum.Sum(nil))}
}

// pass holds bytes back until the window has room for them. If the recording is not required, they go on without it.
func (s *Session) pass(ctx context.Context, from frames.Side) error {
	p := &s.pending[from]
	n := p.bytes
	p.bytes = 0
	if err := s.window.pass(ctx, from, n, p.place); err != nil && s.cfg.Required {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over && s.cfg.Required {
		return errOver
	}
	return nil
}

var errOver = errors.New("the recording has ended")

// event records what a side has sent.
func (s *Session) event(e frames.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	now := s.cfg.Now()
	recorded := true
	switch {
	case e.Type != frames.Bytes:
		if s.sizes != nil {
			s.marker(now, s.sizes.connection(e))
		}
		recorded = false
	case e.Channel == frames.Resize && e.From == frames.Client:
		s.resized(now, e.Data)
		recorded = false
	case e.Channel == frames.Error && s.protocol.Kind != frames.PortForward:
		if e.From == frames.Server && len(s.status) < maxStatus {
			s.status = append(s.status, e.Data[:min(len(e.Data), maxStatus-len(s.status))]...)
		}
		recorded = false
	case s.sizes != nil:
		recorded = s.sizes.add(e)
		if s.sizes.unflushed >= flushBytes {
			s.flushSizes()
		}
	default:
		recorded = s.terminal(now, e)
	}
	s.write()
	if recorded {
		p := &s.pending[e.From]
		p.bytes += int64(len(e.Data))
		p.place = place{written: s.written}
		if s.sizes != nil && s.sizes.unflushed > 0 {
			p.place = place{written: notYet, flushes: s.sizes.flushes}
		}
	}
}

// terminal records the output and, if it is asked for, the input of a terminal.
func (s *Session) terminal(now time.Time, e frames.Event) bool {
	output := e.From == frames.Server && (e.Channel == frames.Stdout || e.Channel == frames.Stderr)
	input := e.From == frames.Client && e.Channel == frames.Stdin && s.cfg.Input
	if !output && !input {
		return false
	}
	s.begin()
	code := byte(codeOutput)
	if input {
		code = codeInput
	}
	s.cast.bytes(now, code, e.Channel.String(), e.Data)
	return true
}

// begin appends the header if it is not written yet.
func (s *Session) begin() {
	if s.began {
		return
	}
	s.began = true
	h := &s.cfg.Header
	if h.Width == 0 || h.Height == 0 {
		h.Width, h.Height = 80, 24
	}
	if err := s.cast.header(*h); err != nil {
		s.lose(err)
	}
}

// lose gives the recording up. It may be called with and without s.mu.
func (s *Session) lose(err error) {
	s.window.lose(fmt.Errorf("%w: %w", ErrLost, err))
	s.once.Do(func() { close(s.lost) })
}

// resized records the size of a terminal. The first one is in the header if there was no output before it.
func (s *Session) resized(now time.Time, p []byte) {
	if s.sizes != nil {
		return
	}
	s.resize = append(s.resize, p[:min(len(p), maxResize)]...)
	end := bytes.LastIndexByte(s.resize, '}') + 1
	var size struct{ Width, Height uint16 }
	for d := json.NewDecoder(bytes.NewReader(s.resize[:end])); d.Decode(&size) == nil; {
	}
	if s.resize = s.resize[end:]; len(s.resize) > maxResize {
		s.resize = nil
	}
	h := &s.cfg.Header
	if size.Width == 0 || size.Height == 0 || h.Width == int(size.Width) && h.Height == int(size.Height) {
		return
	}
	h.Width, h.Height = int(size.Width), int(size.Height)
	if !s.began {
		s.begin()
		return
	}
	s.cast.text(now, codeResize, fmt.Sprintf("%dx%d", h.Width, h.Height))
}

// marker appends a marker if its text is not empty.
func (s *Session) marker(now time.Time, text string) {
	if text != "" {
		s.begin()
		s.cast.text(now, codeMarker, text)
	}
}

// flushSizes records the sizes that have changed. The caller must hold s.mu.
func (s *Session) flushSizes() {
	if s.over || s.sizes == nil || s.sizes.unflushed == 0 {
		return
	}
	now := s.cfg.Now()
	for _, text := range s.sizes.flush() {
		s.marker(now, text)
	}
	s.write()
	s.window.flush(s.written)
}

// write gives the lines to the sink. The caller must hold s.mu.
func (s *Session) write() {
	if len(s.cast.buf) == 0 {
		return
	}
	s.sum.Write(s.cast.buf)
	s.written += int64(len(s.cast.buf))
	if s.upload != nil && s.window.err() == nil {
		if _, err := s.upload.Write(s.cast.buf); err != nil {
			s.lose(err)
		}
	}
	s.cast.buf = s.cast.buf[:0]
}

// End ends the recording. It waits for the last acknowledgement until ctx ends. reason says why the stream has ended; if it is empty, the
// server's Status does. The digest, which the Config's function gets too, says whether the recording is complete. A session without any
// event has an empty recording, which a Dir removes. Further calls return the error only.
func (s *Session) End(ctx context.Context, reason string) (Digest, error) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return Digest{}, s.Err()
	}
	now := s.cfg.Now()
	if reason == "" {
		reason = statusText(s.status)
	}
	if s.protocol != (frames.Protocol{}) {
		s.flushSizes()
		s.cast.flush(now, codeOutput, frames.Stdout.String())
		s.cast.flush(now, codeOutput, frames.Stderr.String())
		s.cast.flush(now, codeInput, frames.Stdin.String())
		if s.sizes != nil {
			for _, text := range s.sizes.end() {
				s.marker(now, text)
			}
		}
		s.marker(now, "end: "+reason)
		s.write()
	}
	s.over = true
	d := s.digest()
	s.mu.Unlock()
	close(s.stop)
	<-s.ticked
	err := s.Err()
	switch {
	case s.upload == nil:
	case err != nil:
		s.upload.Abort()
	default:
		if err = s.upload.Close(ctx); err != nil {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
	d.Final, d.Complete, d.Reason = true, err == nil, reason
	if s.cfg.Digest != nil {
		s.cfg.Digest(d)
	}
	return d, err
}
