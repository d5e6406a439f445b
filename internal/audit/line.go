package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// SchemaVersion is the version of the line format, as written in headers. A version only ever gains
// fields.
const SchemaVersion = 1

// A Kind is the kind of a line.
type Kind string

// The kinds of lines.
const (
	KindHeader     Kind = "header"
	KindEntry      Kind = "entry"
	KindGap        Kind = "gap"
	KindTorn       Kind = "torn"
	KindCheckpoint Kind = "checkpoint"
	KindKey        Kind = "key"
)

func (k Kind) signed() bool { return k == KindHeader || k == KindCheckpoint || k == KindKey }

// A Hash is a SHA-256. Its text is 64 lower-case hexadecimal digits.
type Hash [sha256.Size]byte

// String returns the text of h.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements [encoding.TextMarshaler].
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *Hash) UnmarshalText(b []byte) error {
	p, ok := parseHash(b)
	if !ok {
		return fmt.Errorf("%.80q is not a SHA-256 hash in lower-case hexadecimal", b)
	}
	*h = p
	return nil
}

func parseHash(b []byte) (h Hash, ok bool) {
	if len(b) != 2*len(h) {
		return h, false
	}
	_, err := hex.Decode(h[:], b)
	return h, err == nil && !bytes.ContainsAny(b, "ABCDEF") // one text for one hash
}

// A Head identifies one line of an audit log. Through the hash chain it also fixes every line
// before it. If a Head is stored elsewhere, it later proves that the log still has that line. Its
// text is the sequence number, a colon and the hash.
type Head struct {
	Seq  uint64 // of the line; the first line of an audit log is 1
	Hash Hash
}

// ParseHead parses the text of a Head.
func ParseHead(s string) (h Head, err error) {
	number, hash, _ := strings.Cut(s, ":")
	sum, ok := parseHash([]byte(hash))
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || seq == 0 || seq > maxSeq {
		return Head{}, fmt.Errorf("%.100q is not a head of an audit log: such a head is a number, a colon and 64 hexadecimal digits", s)
	}
	return Head{seq, sum}, nil
}

// String returns the text of h.
func (h Head) String() string { return strconv.FormatUint(h.Seq, 10) + ":" + h.Hash.String() }

// MarshalText implements [encoding.TextMarshaler].
func (h Head) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *Head) UnmarshalText(b []byte) (err error) {
	*h, err = ParseHead(string(b))
	return err
}

// A Header begins each file of an audit log, and each run of the process that writes it. It is
// signed.
type Header struct {
	Time      time.Time `json:"ts"`
	Version   int       `json:"version"` // SchemaVersion
	Cluster   string    `json:"cluster"`
	ClusterID string    `json:"clusterId,omitempty"`
	Role      string    `json:"role"` // of the process
	Software  string    `json:"software,omitempty"`
	Key       PublicKey `json:"key"` // the key that signs from this line on
	KeyID     string    `json:"keyId"`
	Why       Why       `json:"why"`
	Prev      LogHead   `json:"prev,omitzero"` // the last known line of the log that the process wrote before this log
}

// A Why is the reason for a header.
type Why string

// The reasons for a header.
const (
	Started   Why = "started"   // a new audit log
	Restarted Why = "restarted" // a new process continues the log
	Rotated   Why = "rotated"   // the previous file was full
	Moved     Why = "moved"     // another process moved or deleted the previous file
	Shrunk    Why = "shrunk"    // another process truncated the file
)

// A Gap counts entries that were lost because the audit log could not be written and the queue was
// full.
type Gap struct {
	Time time.Time `json:"ts"`
	Lost int64     `json:"lost"`
	From time.Time `json:"from"` // when the first entry was lost
	To   time.Time `json:"to"`   // when the last entry was lost
}

// A Torn accounts for bytes before it that are not lines of the audit log. Such bytes are the rest
// of an interrupted write, or another process wrote them.
type Torn struct {
	Time   time.Time `json:"ts"`
	Bytes  int64     `json:"bytes"`
	SHA256 Hash      `json:"sha256"` // of the invalid lines, joined by line feeds
}

// A Checkpoint signs every line before it.
type Checkpoint struct {
	Time  time.Time `json:"ts"`
	KeyID string    `json:"keyId"`
	End   End       `json:"end,omitempty"`
}

// An End says what a checkpoint ends. It is empty for a checkpoint that ends nothing.
type End string

// The values of End.
const (
	EndOfFile End = "file"  // the audit log continues in another file
	EndOfRun  End = "close" // the process closed the log normally
)

// A KeyChange is the last line that a key signs. It names the key that replaces it.
type KeyChange struct {
	Time  time.Time `json:"ts"`
	Key   PublicKey `json:"key"` // the new key
	KeyID string    `json:"keyId"`
	By    string    `json:"by"` // ID of the old key, which signs this line
}

// A Line is one parsed line of an audit log.
type Line struct {
	Seq  uint64
	Log  string // the random ID of the audit log
	Prev Hash   // hash of the previous line; zero for the first line
	Kind Kind
	Hash Hash   // as written in the line
	Text []byte // the whole line, without its line feed

	payload []byte // the bytes that Hash covers
	body    []byte // the fields after the kind, including the signature
}

// maxSeq is the largest integer that every JSON parser reads exactly.
const maxSeq = 1<<53 - 1

// The layout of a line is fixed to the byte. The hash therefore covers the bytes as written, and
// two parsers cannot read one line differently:
//
//	{"seq":1,"log":"…","prev":"…","kind":"…",…[,"sig":"…"],"hash":"…"}
const (
	openSeq  = `{"seq":`
	openLog  = `,"log":"`
	openPrev = `","prev":"`
	openKind = `","kind":"`
	openSig  = `,"sig":"`
	openHash = `,"hash":"`
	closing  = `"}`

	logLen = 16
	hexLen = 2 * sha256.Size
	sigLen = 86 // 64 bytes in unpadded base64
)

// ParseLine parses the layout of a line, given without its line feed. It does not check the hash;
// use Sound for that. The Line keeps a reference to text.
func ParseLine(text []byte) (Line, error) {
	l := Line{Text: text}
	bad := func(what string) (Line, error) {
		return Line{}, fmt.Errorf("not a line of an audit log: %s", what)
	}
	tail := len(text) - len(openHash) - hexLen - len(closing)
	if tail < 0 || !bytes.HasPrefix(text[tail:], []byte(openHash)) || !bytes.HasSuffix(text, []byte(closing)) {
		return bad("it does not end with its hash")
	}
	var ok bool
	if l.Hash, ok = parseHash(text[tail+len(openHash) : tail+len(openHash)+hexLen]); !ok {
		return bad("its hash is malformed")
	}
	l.payload = text[:tail]
	rest, ok := bytes.CutPrefix(l.payload, []byte(openSeq))
	number, rest, found := bytes.Cut(rest, []byte(openLog))
	if !ok || !found || len(number) > 16 || len(number) == 0 || number[0] == '0' {
		return bad("its number is not in the expected place")
	}
	var err error
	if l.Seq, err = strconv.ParseUint(string(number), 10, 64); err != nil {
		return bad("its number is malformed")
	}
	if l.Seq > maxSeq {
		return bad("its number is too large")
	}
	id, rest, found := bytes.Cut(rest, []byte(openPrev))
	if !found || !isLogID(id) {
		return bad("it does not name its audit log")
	}
	prev, rest, found := bytes.Cut(rest, []byte(openKind))
	if l.Prev, ok = parseHash(prev); !ok || !found {
		return bad("it does not name the previous line")
	}
	kind, rest, found := bytes.Cut(rest, []byte(`",`))
	if !found || len(rest) == 0 {
		return bad("it does not name its kind")
	}
	if l.Kind = Kind(kind); contents[l.Kind] == nil {
		return bad(fmt.Sprintf("its kind %.20q is unknown", kind))
	}
	l.Log, l.body = string(id), rest
	return l, nil
}

func isLogID(id []byte) bool {
	other := func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '2' || c > '7') }
	return len(id) == logLen && !bytes.ContainsFunc(id, other)
}

// Sound reports whether the stored hash matches the content of the line.
func (l Line) Sound() bool { return Hash(sha256.Sum256(l.payload)) == l.Hash }

// Head returns the Head that identifies the line.
func (l Line) Head() Head { return Head{l.Seq, l.Hash} }

// signature returns the signed text and the signature of a line of a signed kind.
func (l Line) signature() (text, sig []byte, ok bool) {
	at := len(l.payload) - len(openSig) - sigLen - 1
	if !l.Kind.signed() || at < 0 || !bytes.HasPrefix(l.payload[at:], []byte(openSig)) {
		return nil, nil, false
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(string(l.payload[at+len(openSig) : len(l.payload)-1]))
	return l.payload[:at], sig, err == nil
}

// Content decodes the line into an Entry, Header, Gap, Torn, Checkpoint or KeyChange. It returns an
// error for a field outside the schema, a repeated field or a different spelling, because two
// parsers could read such a line differently.
func (l Line) Content() (any, error) {
	return l.content(strict)
}

func (l Line) content(strict bool) (any, error) {
	if contents[l.Kind] == nil {
		return nil, fmt.Errorf("a line of unknown kind %.20q", l.Kind)
	}
	return contents[l.Kind](l, strict)
}

// contents decodes the lines of each kind.
var contents = map[Kind]func(l Line, strict bool) (any, error){
	KindHeader: contentOf[Header], KindEntry: contentOf[Entry], KindGap: contentOf[Gap],
	KindTorn: contentOf[Torn], KindCheckpoint: contentOf[Checkpoint], KindKey: contentOf[KeyChange],
}

// The modes of contentOf. In lenient mode it accepts unknown fields, which a newer program may have
// written.
const (
	strict  = true
	lenient = false
)

func contentOf[T any](l Line, strict bool) (any, error) {
	var c T
	body := l.body
	if text, _, ok := l.signature(); ok {
		body = body[:len(body)-(len(l.payload)-len(text))]
	}
	d := json.NewDecoder(bytes.NewReader(slices.Concat([]byte("{"), body, []byte("}"))))
	if strict {
		d.DisallowUnknownFields()
	}
	err := d.Decode(&c)
	if err == nil {
		if _, more := d.Token(); more != io.EOF || strict && !bytes.Equal(bodyOf(c), body) {
			err = errors.New("it does not have the form of written lines")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("line %d of the audit log: %w", l.Seq, err)
	}
	return c, nil
}

// A chain is the current end of an audit log: its ID and its last line.
type chain struct {
	log  string
	head Head
}

// append appends the next line to dst and advances the chain. It uses key only for signed kinds.
func (c *chain) append(dst []byte, kind Kind, body []byte, key Key) []byte {
	start := len(dst)
	c.head.Seq++
	dst = strconv.AppendUint(append(dst, openSeq...), c.head.Seq, 10)
	dst = append(append(dst, openLog...), c.log...)
	dst = hex.AppendEncode(append(dst, openPrev...), c.head.Hash[:])
	dst = append(append(append(dst, openKind...), kind...), `",`...)
	dst = append(dst, body...)
	if kind.signed() {
		sig := key.sign(dst[start:])
		dst = append(base64.RawURLEncoding.AppendEncode(append(dst, openSig...), sig), '"')
	}
	c.head.Hash = sha256.Sum256(dst[start:])
	dst = hex.AppendEncode(append(dst, openHash...), c.head.Hash[:])
	return append(dst, closing+"\n"...)
}

// bodyOf returns the JSON fields of content without the braces. Use it only for this package's
// types, whose texts come from settings. Use encode for values that callers choose.
func bodyOf(content any) []byte {
	b, err := json.Marshal(content)
	if err != nil {
		panic("audit: " + err.Error()) // a time outside the years 0 to 9999
	}
	return sanitize.JSON(b[1 : len(b)-1])
}

// junk is text between the lines of an audit log that is not a valid line. A crash cut it short, or
// another process wrote it.
type junk struct {
	lines int
	bytes int64
	sum   hash.Hash
}

// add adds one invalid line, given without its line feed.
func (j *junk) add(line []byte) {
	if j.sum == nil {
		j.sum = sha256.New()
	}
	if j.lines > 0 {
		j.sum.Write([]byte{'\n'})
		j.bytes++
	}
	j.lines++
	j.bytes += int64(len(line))
	j.sum.Write(line)
}

// torn returns the Torn line that accounts for j.
func (j *junk) torn(now time.Time) Torn {
	return Torn{Time: now, Bytes: j.bytes, SHA256: Hash(j.sum.Sum(nil))}
}

// is reports whether t accounts for j.
func (j *junk) is(t Torn) bool {
	return j.lines > 0 && t.Bytes == j.bytes && t.SHA256 == Hash(j.sum.Sum(nil))
}
