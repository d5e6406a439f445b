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
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/broadcast"
	"github.com/tailplane/tailplane/internal/util/sanitize"
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
	// CredentialID identifies the token that the request issued, in the text of Kubernetes' audit annotation
	// authentication.kubernetes.io/credential-id. It is no secret, and finds all requests that were sent with the token.
	CredentialID string       `json:"credentialId,omitempty"`
	Result       Result       `json:"result"`
	Code         problem.Code `json:"code,omitempty"`
	Error        string       `json:"error,omitempty"`   // the message that the caller saw
	Clipped      bool         `json:"clipped,omitempty"` // the entry was too large, so its longest parts were cut
}

// An Actor is the caller of a request, as authenticated by the tailnet.
type Actor struct {
	Login  string     `json:"login,omitempty"`
	Node   string     `json:"node,omitempty"`
	NodeID string     `json:"nodeId,omitempty"`
	UserID string     `json:"userId,omitempty"` // ID of the user; unlike a login, it never passes to another user
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
	return Actor{Login: string(c.Login), Node: c.Device.Name, NodeID: c.Device.ID, UserID: c.UserID, Tags: c.TagNames(), Via: c.Via}
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
	// The 26 characters are the end of 32 characters for 160 bits: two zero bits, 48 bits of the time
	// and 80 random bits.
	var raw [20]byte
	binary.BigEndian.PutUint64(raw[2:], uint64(now.UnixMilli()))
	rand.Read(raw[10:]) // never fails
	return crockford.EncodeToString(raw[:])[6:]
}

// crockford is Crockford's base 32.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

// Limits of one entry. A larger entry is clipped, never dropped.
const (
	maxEntry     = 64 << 10 // bytes of the JSON of an entry
	clippedText  = 256      // maximum bytes of a string after clipping
	clippedParts = 16       // maximum number of tags, and of pairs in a map, after clipping
)

// redacted replaces a suspected credential.
const redacted = "[redacted]"

// encode returns the fields of e as an audit line stores them: a JSON object without its braces.
// Strings that a caller chose cannot end the line or move a terminal's cursor (law 10). Suspected
// credentials are not stored (law 8).
func encode(e Entry) ([]byte, error) {
	e.Time = e.Time.UTC()
	e = e.mapStrings(redact, math.MaxInt)
	b, err := json.Marshal(e)
	if err == nil && len(b) > maxEntry {
		e = e.mapStrings(clip, clippedParts)
		e.Clipped = true
		b, err = json.Marshal(e)
	}
	if err != nil {
		return nil, err
	}
	return sanitize.JSON(b[1 : len(b)-1]), nil
}

// mapStrings returns e with f applied to every string that a caller can influence. It keeps at most the
// given number of tags and pairs.
func (e Entry) mapStrings(f func(string) string, most int) Entry {
	e.Actor.Login, e.Actor.UserID, e.Actor.Node, e.Actor.NodeID = f(e.Actor.Login), f(e.Actor.UserID), f(e.Actor.Node), f(e.Actor.NodeID)
	e.Actor.Tags = mapTexts(e.Actor.Tags, f, most)
	e.RequestID, e.Surface, e.Tool, e.Org, e.Object = f(e.RequestID), f(e.Surface), f(e.Tool), f(e.Org), f(e.Object)
	e.Args, e.Before, e.After = mapPairs(e.Args, f, most), mapPairs(e.Before, f, most), mapPairs(e.After, f, most)
	e.Reason, e.CredentialID, e.Error = f(e.Reason), f(e.CredentialID), f(e.Error)
	return e
}

func mapTexts(in []string, f func(string) string, most int) []string {
	out := slices.Clone(in[:min(len(in), most)])
	for i, s := range out {
		out[i] = f(s)
	}
	return out
}

func mapPairs(in map[string]string, f func(string) string, most int) map[string]string {
	changes := len(in) > most
	for k, v := range in {
		changes = changes || f(k) != k || f(v) != v
	}
	if !changes { // as in most entries
		return in
	}
	out := make(map[string]string, len(in))
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if len(out) == most {
			break
		}
		out[f(k)] = f(in[k])
	}
	return out
}

func clip(s string) string {
	if len(s) <= clippedText {
		return s
	}
	n := clippedText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// redact removes suspected credentials. The code that writes an entry must not include one, but a
// caller can put one into a path or a reason.
func redact(s string) string {
	const pem = "-----BEGIN "
	if i := strings.Index(s, pem); i >= 0 {
		s = s[:i] + redacted
	}
	if len(s) < shortestToken {
		return s
	}
	for _, mark := range [...]string{"eyJ", "tskey-", "glrt-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"} {
		for from := 0; ; {
			i := strings.Index(s[from:], mark)
			if i < 0 {
				break
			}
			i += from
			end := i
			for end < len(s) && isTokenByte(s[end]) {
				end++
			}
			if from = i + len(mark); end-i >= shortestToken {
				s = s[:i] + redacted + s[end:]
				from = i + len(redacted)
			}
		}
	}
	return s
}

// shortestToken is the minimum length of a suspected credential, in bytes.
const shortestToken = 20

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// recentSize is the minimum number of entries that a Recent keeps. Readers that are further behind
// must read the audit log.
const recentSize = 500

// A Recent holds the most recent entries of a Log for readers that follow it. Each reader has its
// own position, so a slow reader delays no other. The zero value is ready for use. A Recent is safe
// for concurrent use.
type Recent struct {
	mu      sync.Mutex
	latest  []Entry // the last recentSize entries, and at most as many before them
	first   uint64  // number of entries before latest[0]
	changed broadcast.Change
}

// Add adds an entry.
func (t *Recent) Add(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = append(t.latest, e)
	if over := len(t.latest) - recentSize; over >= recentSize {
		t.latest = slices.Clone(t.latest[over:])
		t.first += uint64(over)
	}
	t.changed.Notify()
}

// End returns the position after the last entry.
func (t *Recent) End() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first + uint64(len(t.latest))
}

// Since returns the entries after a position, in order, and the position after them. ok is false if
// the Recent no longer has the entries from there.
func (t *Recent) Since(at uint64) (entries []Entry, end uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end = t.first + uint64(len(t.latest))
	if at < t.first || at > end {
		return nil, end, false
	}
	return t.latest[at-t.first : len(t.latest) : len(t.latest)], end, true
}

// Changed returns a channel that is closed when there are entries after the position.
func (t *Recent) Changed(at uint64) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at != t.first+uint64(len(t.latest)) {
		return broadcast.Closed()
	}
	return t.changed.Next()
}

// Stored returns the entry as the audit log stores it, with suspected credentials removed (law 8).
// It returns false if the entry cannot be encoded.
func (e Entry) Stored() (Entry, bool) {
	body, err := encode(e)
	if err != nil {
		return Entry{}, false
	}
	var out Entry
	err = json.Unmarshal(slices.Concat([]byte("{"), body, []byte("}")), &out)
	return out, err == nil
}
