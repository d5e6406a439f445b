// Package audit writes and verifies the audit log of requests, decisions and results. Every request
// leaves exactly one entry, including refused requests. No entry contains a secret. Changes,
// removals and additions are detectable.
//
// An audit log is a file of JSON lines. Each line has its number, the hash of the previous line and
// its own hash, so the lines form a chain. Signed lines vouch for all lines before them:
//
//	header     begins a file; names the cluster, the process's role and the signing key
//	entry      one request
//	gap        the number of entries lost here while the audit log could not be written
//	torn       bytes before it that are not a line, such as a write that a crash cut short
//	checkpoint a signature, after a number of lines or seconds, and at the end
//	key        the old key names the new key
//
// A [Log] writes an audit log and [Verify] checks one, offline.
package audit

import (
	"crypto/rand"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// An Entry records one request, or one action that a process started on its own. In the second case
// Actor is the process and Reason the cause. The fields are the whole schema; nothing else of a
// request is stored.
type Entry struct {
	Time      time.Time         `json:"ts"`        // RFC 3339, UTC
	RequestID string            `json:"requestId"` // the audit ID that the response contains
	Actor     Actor             `json:"actor"`
	Surface   string            `json:"surface"`        // "http", "mcp", "ui", "process"
	Tool      string            `json:"tool,omitempty"` // name of the MCP tool, if any
	Verb      access.Verb       `json:"verb"`
	Org       string            `json:"org,omitempty"`    // the organisation that the request concerns
	Object    string            `json:"object,omitempty"` // the object that the request concerns, such as the name of a sign-in
	Args      map[string]string `json:"args,omitempty"`   // the arguments of the request; never a secret
	Before    map[string]string `json:"before,omitempty"` // the values before a change
	After     map[string]string `json:"after,omitempty"`  // the values after a change
	Reason    string            `json:"reason,omitempty"`
	Result    Result            `json:"result"`
	Code      problem.Code      `json:"code,omitempty"`
	Error     string            `json:"error,omitempty"`   // the message that the caller saw
	Clipped   bool              `json:"clipped,omitempty"` // the entry was too large, so its longest parts were cut
}

// An Actor is the caller of a request, as authenticated by the tailnet.
type Actor struct {
	Login  string     `json:"login,omitempty"`
	Node   string     `json:"node,omitempty"`
	NodeID string     `json:"nodeId,omitempty"`
	Tags   []string   `json:"tags,omitempty"`
	Via    access.Via `json:"via,omitempty"`
}

// A Result is the outcome of a request.
type Result string

// The results. NotYet means that the caller must try again later: the request is neither done nor
// refused.
const (
	Done    Result = "done"
	NotYet  Result = "notYet"
	Refused Result = "refused"
	Failed  Result = "failed"
)

// ActorOf returns the Actor for caller c.
func ActorOf(c access.Caller) Actor {
	a := Actor{Login: string(c.Login), Node: c.Device.Name, NodeID: c.Device.ID, Via: c.Via}
	for _, t := range c.Tags {
		a.Tags = append(a.Tags, string(t))
	}
	return a
}

// Conclude sets the result, code and error message from the error of the request. A nil error means
// Done.
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

// NewID returns a new audit ID: a ULID of 26 characters that sorts by time.
func NewID(now time.Time) string {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // Crockford's base 32
	var raw [16]byte
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		raw[i] = byte(ms >> (40 - 8*i))
	}
	rand.Read(raw[6:]) // never fails
	out := make([]byte, 26)
	// 26 characters hold 130 bits for 128 bits of data, so the first character carries only three
	// bits.
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
