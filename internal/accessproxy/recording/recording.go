// Package recording records what goes through the access proxy: sessions of exec and attach as asciicasts, streams that are no terminals
// as sizes and hashes, port-forwards as connections and sizes.
//
// A [Session] records one stream. It writes the recording to a [Sink]: a [Recorder] on the tailnet, which speaks the protocol of
// Tailscale's own recorder, or a [Dir]. A recorder of ours is a [Handler] in front of a Dir. The proxy uses a Session like this:
//
//	s, err := recording.Start(ctx, recording.Config{…})  // before the request is forwarded; an error refuses it
//	c, err := s.Conn(protocol)                            // after the server's 101; an error refuses it
//	…                                                     // copy through c, and cut with c.End when s.Lost is closed
//	digest, err := s.End(ctx, "the command ended")        // always
//
// While a recording is required, the client sees at most 256 KiB or 5 s of output that the sink has not acknowledged. Then output and input
// stop. Without an acknowledgement for 30 s, the recording is lost. An acknowledgement means that the bytes were received. It does not mean
// that they are stored.
package recording

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"time"
)

// Bounds of what is not acknowledged.
const (
	windowBytes = 256 << 10        // of output that the client has seen
	windowAge   = 5 * time.Second  // since the client has seen it
	ackTimeout  = 30 * time.Second // without an acknowledgement
)

// A Sink stores recordings.
type Sink interface {
	// Start begins the recording with the given id. The Sink calls acked with the number of bytes that it has received so far, and lost
	// once if it cannot go on. Both may be called at any time, also before Start or Write returns, and must not block.
	Start(ctx context.Context, id string, acked func(int64), lost func(error)) (Upload, error)
}

// An Upload receives one recording.
type Upload interface {
	// Write appends to the recording. It does not wait for an acknowledgement.
	Write(p []byte) (int, error)
	// Close ends the recording. It returns nil only if everything is acknowledged. It waits for that until ctx ends.
	Close(ctx context.Context) error
	// Abort gives the recording up: what was written is incomplete.
	Abort()
}

// idForm is the form of ids. They are names of files, and sort by time.
var idForm = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}$`)

// NewID returns a new id: the time, which is in UTC, and 64 random bits, for example "20261128T224138Z-0123456789abcdef".
func NewID(now time.Time) string {
	var b [8]byte
	rand.Read(b[:])
	return now.UTC().Format("20060102T150405Z-") + hex.EncodeToString(b[:])
}

// A Digest is the state of a recording, for the audit log. SHA256 is that of the recording's first Bytes bytes.
type Digest struct {
	ID       string    `json:"id"`
	At       time.Time `json:"at"`
	Bytes    int64     `json:"bytes"`
	SHA256   string    `json:"sha256"` // in hexadecimal
	Final    bool      `json:"final,omitempty"`
	Complete bool      `json:"complete,omitempty"` // of a final one: everything is acknowledged
	Reason   string    `json:"reason,omitempty"`   // of a final one: why the stream ended
}
