// Package audit is the one record of what was asked, decided and done. It keeps
// the law that every visit leaves exactly one entry, refusals too, that no
// secret is ever in one, and that what was written cannot be changed, taken away
// or added to unseen.
//
// A record is JSON lines. Each line carries its number, the hash of the line
// before it and its own, so the lines form a chain; signed lines vouch for all
// that came before them:
//
//	header     begins a file: whose record it is, and the key that signs it
//	entry      one visit
//	gap        how many entries were lost here while the record could not be written
//	torn       bytes before it that are no line: a write that a crash cut short
//	checkpoint a signature, every so many lines and seconds, and at the end
//	key        the old key names the new one
//
// A [Log] writes a record and [Verify] checks one, offline.
package audit

import (
	"crypto/rand"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// An Entry is one visit, or one thing a process did of itself (then Actor is
// the process and Reason the cause). Its fields are the whole schema: nothing
// else of a visit is ever stored.
type Entry struct {
	Time      time.Time         `json:"ts"`        // RFC 3339, UTC
	RequestID string            `json:"requestId"` // the audit id that the caller was told
	Actor     Actor             `json:"actor"`
	Surface   string            `json:"surface"`        // "http", "mcp", "ui", "process"
	Tool      string            `json:"tool,omitempty"` // the MCP tool that was called
	Verb      access.Verb       `json:"verb"`
	Org       string            `json:"org,omitempty"`    // the organisation it was about
	Object    string            `json:"object,omitempty"` // what it was about, such as a sign-in's name
	Args      map[string]string `json:"args,omitempty"`   // what was asked for; never a secret
	Before    map[string]string `json:"before,omitempty"` // what a change replaced
	After     map[string]string `json:"after,omitempty"`  // and what by
	Reason    string            `json:"reason,omitempty"`
	Result    Result            `json:"result"`
	Code      problem.Code      `json:"code,omitempty"`
	Error     string            `json:"error,omitempty"`   // the sentence that the caller saw
	Clipped   bool              `json:"clipped,omitempty"` // it was too large, so its longest parts were cut
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
