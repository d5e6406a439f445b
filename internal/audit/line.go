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

	"github.com/tailplane/tailplane/internal/printable"
)

// SchemaVersion is the version of the lines, as headers carry it. Fields are
// only ever added to a version.
const SchemaVersion = 1

// A Kind says what a line is.
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
		return fmt.Errorf("%.80q is no SHA-256 in lower-case hexadecimal", b)
	}
	*h = p
	return nil
}

func parseHash(b []byte) (h Hash, ok bool) {
	if len(b) != 2*len(h) {
		return h, false
	}
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Hash{}, false // one text for one hash
		}
	}
	_, err := hex.Decode(h[:], b)
	return h, err == nil
}

// A Head names a line of a record and so, by the chain, everything before it.
// Noted elsewhere, it shows later that the record still has that line. Its text
// is the number, a colon and the hash.
type Head struct {
	Seq  uint64 // of the line; the first line of a record is 1
	Hash Hash
}

// ParseHead reads the text of a Head.
func ParseHead(s string) (h Head, err error) {
	number, hash, _ := strings.Cut(s, ":")
	sum, ok := parseHash([]byte(hash))
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || seq == 0 || seq > maxSeq {
		return Head{}, fmt.Errorf("%.100q is no head of an audit record: such a head is a number, a colon and 64 hexadecimal digits", s)
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

// A Header begins each file of a record, and each run of the program that
// writes it. It is signed.
type Header struct {
	Time      time.Time `json:"ts"`
	Version   int       `json:"version"` // SchemaVersion
	Cluster   string    `json:"cluster"`
	ClusterID string    `json:"clusterId,omitempty"`
	Role      string    `json:"role"` // of the process
	Software  string    `json:"software,omitempty"`
	Key       PublicKey `json:"key"` // signs from here on
	KeyID     string    `json:"keyId"`
	Why       Why       `json:"why"`
}

// A Why is the reason for a header.
type Why string

// The reasons for a header.
const (
	Started   Why = "started"   // a new record
	Restarted Why = "restarted" // a new process goes on with the record
	Rotated   Why = "rotated"   // the file before was full
	Moved     Why = "moved"     // somebody moved or deleted the file before
	Shrunk    Why = "shrunk"    // somebody made the file shorter
)

// A Gap is a number of entries that were lost: the record could not be written
// and no more entries could wait for it.
type Gap struct {
	Time time.Time `json:"ts"`
	Lost int64     `json:"lost"`
	From time.Time `json:"from"` // when the first of them was lost
	To   time.Time `json:"to"`   // and the last
}

// A Torn accounts for bytes before it that are no line of the record: the
// remains of a write that was cut short, or what somebody else wrote there.
type Torn struct {
	Time   time.Time `json:"ts"`
	Bytes  int64     `json:"bytes"`
	SHA256 Hash      `json:"sha256"` // of the lines that are none, joined by line feeds
}

// A Checkpoint vouches for every line before it. It is signed.
type Checkpoint struct {
	Time  time.Time `json:"ts"`
	KeyID string    `json:"keyId"`
	End   End       `json:"end,omitempty"`
}

// An End says that a checkpoint ends something.
type End string

// The ends.
const (
	EndOfFile End = "file"  // the record goes on in another file
	EndOfRun  End = "close" // the process ended as it should
)

// A KeyChange is the last that a key signs: it names the key that follows it.
type KeyChange struct {
	Time  time.Time `json:"ts"`
	Key   PublicKey `json:"key"` // the new one
	KeyID string    `json:"keyId"`
	By    string    `json:"by"` // id of the old one, which signs this line
}

// A Line is one line of a record, as it stands there.
type Line struct {
	Seq  uint64
	Log  string // the record's own random id
	Prev Hash   // of the line before; zero for the first
	Kind Kind
	Hash Hash   // as the line has it
	Text []byte // the whole line, without its line feed

	payload []byte // what Hash is the hash of
	body    []byte // the fields after the kind, and the signature
}

// maxSeq is the largest number that every reader of JSON reads exactly.
const maxSeq = 1<<53 - 1

// The layout of a line. It is fixed to the byte, so that the hash is one of the
// bytes as they stand, and no two readers can read one line differently:
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
	sigLen = 86 // of 64 bytes in unpadded base64
)

// ParseLine reads the layout of a line, without its line feed. It does not check
// the hash: that is Sound. The Line keeps text.
func ParseLine(text []byte) (Line, error) {
	l := Line{Text: text}
	bad := func(what string) (Line, error) {
		return Line{}, fmt.Errorf("no line of an audit record: %s", what)
	}
	tail := len(text) - len(openHash) - hexLen - len(closing)
	if tail < 0 || !bytes.HasPrefix(text[tail:], []byte(openHash)) || !bytes.HasSuffix(text, []byte(closing)) {
		return bad("it does not end in its hash")
	}
	var ok bool
	if l.Hash, ok = parseHash(text[tail+len(openHash) : tail+len(openHash)+hexLen]); !ok {
		return bad("its hash is none")
	}
	l.payload = text[:tail]
	rest, ok := bytes.CutPrefix(l.payload, []byte(openSeq))
	number, rest, found := bytes.Cut(rest, []byte(openLog))
	if !ok || !found || len(number) > 16 || len(number) == 0 || number[0] == '0' {
		return bad("its number is not where it belongs")
	}
	for _, c := range number {
		if c < '0' || c > '9' {
			return bad("its number is none")
		}
		l.Seq = l.Seq*10 + uint64(c-'0')
	}
	if l.Seq > maxSeq {
		return bad("its number is too large")
	}
	id, rest, found := bytes.Cut(rest, []byte(openPrev))
	if !found || len(id) != logLen || !isLogID(id) {
		return bad("it does not say which record it is of")
	}
	prev, rest, found := bytes.Cut(rest, []byte(openKind))
	if l.Prev, ok = parseHash(prev); !ok || !found {
		return bad("it does not name the line before it")
	}
	kind, rest, found := bytes.Cut(rest, []byte(`",`))
	if !found || len(rest) == 0 {
		return bad("it does not say what it is")
	}
	switch l.Kind = Kind(kind); l.Kind {
	case KindHeader, KindEntry, KindGap, KindTorn, KindCheckpoint, KindKey:
	default:
		return bad(fmt.Sprintf("its kind %.20q is unknown", kind))
	}
	l.Log, l.body = string(id), rest
	return l, nil
}

func isLogID(id []byte) bool {
	for _, c := range id {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(id) == logLen
}

// Sound reports whether the line's hash is the hash of what the line says.
func (l Line) Sound() bool { return Hash(sha256.Sum256(l.payload)) == l.Hash }

// Head names the line.
func (l Line) Head() Head { return Head{l.Seq, l.Hash} }

// signature returns what is signed of a signed line, and the signature.
func (l Line) signature() (text, sig []byte, ok bool) {
	at := len(l.payload) - len(openSig) - sigLen - 1
	if !l.Kind.signed() || at < 0 || !bytes.HasPrefix(l.payload[at:], []byte(openSig)) {
		return nil, nil, false
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(string(l.payload[at+len(openSig) : len(l.payload)-1]))
	return l.payload[:at], sig, err == nil
}

// Content returns what the line says: an Entry, Header, Gap, Torn, Checkpoint or
// KeyChange. A field outside the schema, or one that is there twice or in another
// spelling, is an error: two readers could read such a line differently.
func (l Line) Content() (any, error) {
	switch l.Kind {
	case KindEntry:
		return contentOf[Entry](l, strict)
	case KindHeader:
		return contentOf[Header](l, strict)
	case KindGap:
		return contentOf[Gap](l, strict)
	case KindTorn:
		return contentOf[Torn](l, strict)
	case KindCheckpoint:
		return contentOf[Checkpoint](l, strict)
	case KindKey:
		return contentOf[KeyChange](l, strict)
	}
	return nil, fmt.Errorf("a line of the unknown kind %.20q", l.Kind)
}

// How contentOf takes fields that it does not know: a newer program's.
const (
	strict  = true
	lenient = false
)

func contentOf[T any](l Line, strict bool) (c T, err error) {
	body := l.body
	if text, _, ok := l.signature(); ok {
		body = body[:len(body)-(len(l.payload)-len(text))]
	}
	d := json.NewDecoder(bytes.NewReader(slices.Concat([]byte("{"), body, []byte("}"))))
	if strict {
		d.DisallowUnknownFields()
	}
	if err = d.Decode(&c); err == nil {
		if _, more := d.Token(); more != io.EOF || strict && !bytes.Equal(bodyOf(c), body) {
			err = errors.New("it is not in the form in which it is written")
		}
	}
	if err != nil {
		return c, fmt.Errorf("line %d of the audit record: %w", l.Seq, err)
	}
	return c, nil
}

// A chain is where a record has come to.
type chain struct {
	log  string
	head Head
}

// append appends the next line of the chain to dst, and moves the chain on. The
// key is for kinds that are signed.
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

// bodyOf returns the fields of what a line says. It is for our own types, whose
// texts come from the settings: encode is for those that strangers choose.
func bodyOf(content any) []byte {
	b, err := json.Marshal(content)
	if err != nil {
		panic("audit: " + err.Error()) // a time outside the years 0 to 9999
	}
	return printable.JSON(b[1 : len(b)-1])
}

// junk is what lies between the lines of a record and is none: lines that a
// crash cut short, or that somebody else wrote.
type junk struct {
	lines int
	bytes int64
	sum   hash.Hash
}

// add takes in a line, without its line feed.
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

// torn is the account of j.
func (j *junk) torn(now time.Time) Torn {
	return Torn{Time: now, Bytes: j.bytes, SHA256: Hash(j.sum.Sum(nil))}
}

// is reports whether t accounts for j.
func (j *junk) is(t Torn) bool {
	return j.lines > 0 && t.Bytes == j.bytes && t.SHA256 == Hash(j.sum.Sum(nil))
}
