// Package audit is the one record of what was asked, decided and done. It keeps
// the law that every visit leaves exactly one entry, refusals too, and that no
// secret is ever in one.
package audit

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// An Entry is one visit, or one thing a process did of itself (then Actor is
// the process and Reason the cause). Its JSON form is one line of the record.
type Entry struct {
	Time      time.Time         `json:"ts"`        // RFC 3339, UTC
	RequestID string            `json:"requestId"` // the audit id that the caller was told
	Actor     Actor             `json:"actor"`
	Surface   string            `json:"surface"` // "http", "mcp", "ui", "process"
	Verb      access.Verb       `json:"verb"`
	Object    string            `json:"object,omitempty"` // what it was about, such as a sign-in's name
	Args      map[string]string `json:"args,omitempty"`   // what was asked for; never a secret
	Reason    string            `json:"reason,omitempty"`
	Result    Result            `json:"result"`
	Code      problem.Code      `json:"code,omitempty"`
	Error     string            `json:"error,omitempty"` // the sentence that the caller saw
}

// An Actor is who asked, as the tailnet vouches.
type Actor struct {
	Login  string     `json:"login,omitempty"`
	Node   string     `json:"node,omitempty"`
	NodeID string     `json:"nodeId,omitempty"`
	Tags   []string   `json:"tags,omitempty"`
	Via    access.Via `json:"via,omitempty"`
}

// A Result is how a visit ended.
type Result string

// The results. NotYet is an honest "come back later", neither done nor refused.
const (
	Done    Result = "done"
	NotYet  Result = "notYet"
	Refused Result = "refused"
	Failed  Result = "failed"
)

// ActorOf returns the actor that c is.
func ActorOf(c access.Caller) Actor {
	a := Actor{Login: string(c.Login), Node: c.Device.Name, NodeID: c.Device.ID, Via: c.Via}
	for _, t := range c.Tags {
		a.Tags = append(a.Tags, string(t))
	}
	return a
}

// Conclude fills in how the visit ended from the error it ended with.
func (e *Entry) Conclude(err error) {
	p := problem.From(err)
	switch {
	case p == nil:
		e.Result = Done
		return
	case p.Code == problem.NotReady:
		e.Result = NotYet
	case p.Code.Status() >= 500:
		e.Result = Failed
	default:
		e.Result = Refused
	}
	e.Code, e.Error = p.Code, p.Message
}

// A Log appends entries to a writer as JSON lines. It may be used by several
// goroutines.
type Log struct {
	mu      sync.Mutex
	w       io.Writer
	dropped atomic.Int64
}

// NewLog returns a Log that writes to w, one Write a line.
func NewLog(w io.Writer) *Log { return &Log{w: w} }

// Write appends e. When the writer fails, the entry is lost and counted, and
// the error says so; the visit itself is not undone.
func (l *Log) Write(e Entry) error {
	e.Time = e.Time.UTC()
	line, err := json.Marshal(e)
	if err == nil {
		l.mu.Lock()
		_, err = l.w.Write(append(line, '\n'))
		l.mu.Unlock()
	}
	if err != nil {
		l.dropped.Add(1)
		return fmt.Errorf("write audit entry %s: %w", e.RequestID, err)
	}
	return nil
}

// Dropped is how many entries could not be written.
func (l *Log) Dropped() int64 { return l.dropped.Load() }

// NewID returns a fresh audit id: 26 characters, in the order of time (ULID).
func NewID(now time.Time) string {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // Crockford's base 32
	var raw [16]byte
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		raw[i] = byte(ms >> (40 - 8*i))
	}
	rand.Read(raw[6:]) // never fails
	out := make([]byte, 26)
	// 130 bits hold the 128: the first character carries only three of them.
	bits, have, next := uint(0), uint(2), 0
	for i := range out {
		for have < 5 {
			bits, have, next = bits<<8|uint(raw[next]), have+8, next+1
		}
		have -= 5
		out[i] = alphabet[bits>>have&31]
	}
	return string(out)
}
