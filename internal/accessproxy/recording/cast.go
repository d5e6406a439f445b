package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// A Header is the first line of a recording: asciicast v2 (docs.asciinema.org/manual/asciicast/v2) with the fields of Tailscale's recorder
// (tailscale.com/sessionrecording, CastHeader), and ours under "tailplane".
type Header struct {
	Version   int    `json:"version"`   // 2
	Width     int    `json:"width"`     // in columns
	Height    int    `json:"height"`    // in rows
	Timestamp int64  `json:"timestamp"` // the start, in seconds since 1970
	Command   string `json:"command,omitempty"`
	Title     string `json:"title,omitempty"`

	SrcNode       string            `json:"srcNode"`                 // the caller's node, without the last dot
	SrcNodeID     string            `json:"srcNodeID"`               // stable
	SrcNodeTags   []string          `json:"srcNodeTags,omitempty"`   // of a tagged node
	SrcNodeUserID int64             `json:"srcNodeUserID,omitempty"` // of a person's node
	SrcNodeUser   string            `json:"srcNodeUser,omitempty"`   // the full login
	Env           map[string]string `json:"env,omitempty"`
	LocalUser     string            `json:"localUser"`    // the ServiceAccount, as namespace/name
	ConnectionID  string            `json:"connectionID"` // the audit id
	Kubernetes    *Kubernetes       `json:"kubernetes,omitempty"`

	Tailplane *Details `json:"tailplane,omitempty"`
}

// Kubernetes names the stream's target. The names of its fields are those of Tailscale's recorder.
type Kubernetes struct {
	PodName, Namespace, Container, SessionType string
}

// Details are what the fields of Tailscale's recorder cannot say.
type Details struct {
	RecordingID string   `json:"recordingID"`
	Cluster     string   `json:"cluster"`
	SignIn      string   `json:"signin"`  // the name of the TkaSignin
	Session     string   `json:"session"` // the caller's name for it
	Role        string   `json:"role,omitempty"`
	AuditID     string   `json:"auditID"`
	Kind        string   `json:"kind"`               // exec, attach or portForward
	Protocol    string   `json:"protocol,omitempty"` // "websocket v5.channel.k8s.io"
	TTY         bool     `json:"tty"`
	Input       bool     `json:"input"` // the recording contains input
	Command     []string `json:"command,omitempty"`
}

// maxHeader is the most bytes of a header.
const maxHeader = 64 << 10

// ParseHeader reads the first line of a recording, without its end.
func ParseHeader(line []byte) (Header, error) {
	var h Header
	if len(line) > maxHeader {
		return h, fmt.Errorf("the header has more than %d bytes", maxHeader)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("the first line is no header of an asciicast: %w", err)
	}
	if h.Version != 2 {
		return h, fmt.Errorf("the asciicast has the version %d, want 2", h.Version)
	}
	return h, nil
}

// Codes of events.
const (
	codeOutput = 'o'
	codeInput  = 'i'
	codeResize = 'r'
	codeMarker = 'm'
)

// A caster builds the lines of an asciicast in buf.
type caster struct {
	buf   []byte
	start time.Time
	carry map[string]*carry // by stream: the beginning of a rune
}

// A carry is the beginning of a rune whose other bytes have not come yet.
type carry struct {
	b [utf8.UTFMax]byte
	n int
}

// header appends the header.
func (c *caster) header(h Header) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(h); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	if b.Len() > maxHeader {
		return errors.New("the header is too long")
	}
	c.buf = append(c.buf, b.Bytes()...)
	return nil
}

// begin appends the beginning of an event up to its text.
func (c *caster) begin(at time.Time, code byte) {
	c.buf = append(c.buf, '[')
	c.buf = strconv.AppendFloat(c.buf, max(at.Sub(c.start).Seconds(), 0), 'f', 6, 64)
	c.buf = append(c.buf, ',', '"', code, '"', ',', '"')
}

func (c *caster) end() { c.buf = append(c.buf, '"', ']', '\n') }

// text appends an event of a whole text.
func (c *caster) text(at time.Time, code byte, text string) {
	c.begin(at, code)
	c.escape([]byte(text))
	c.end()
}

// bytes appends an event of a stream's bytes. A rune that is split over two calls comes with the second one. Bytes that are not UTF-8
// become U+FFFD.
func (c *caster) bytes(at time.Time, code byte, stream string, p []byte) {
	k := c.carry[stream]
	if k == nil {
		if c.carry == nil {
			c.carry = map[string]*carry{}
		}
		k = &carry{}
		c.carry[stream] = k
	}
	for k.n > 0 && len(p) > 0 && !utf8.FullRune(k.b[:k.n]) && !utf8.RuneStart(p[0]) {
		k.b[k.n], p = p[0], p[1:]
		k.n++
	}
	if len(p) == 0 && !utf8.FullRune(k.b[:k.n]) {
		return // it is not finished yet
	}
	whole := len(p)
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if b := p[len(p)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-i:]) {
				whole = len(p) - i
			}
			break
		}
	}
	if k.n > 0 || whole > 0 {
		c.begin(at, code)
		c.escape(k.b[:k.n])
		c.escape(p[:whole])
		c.end()
	}
	k.n = copy(k.b[:], p[whole:])
}

// flush appends what bytes has held back of a stream.
func (c *caster) flush(at time.Time, code byte, stream string) {
	if k := c.carry[stream]; k != nil && k.n > 0 {
		c.begin(at, code)
		c.escape(k.b[:k.n])
		c.end()
		k.n = 0
	}
}

// escape appends the inside of a JSON string.
func (c *caster) escape(p []byte) {
	const digits = "0123456789abcdef"
	for len(p) > 0 {
		n := 0
		for n < len(p) && p[n] >= ' ' && p[n] < utf8.RuneSelf && p[n] != '"' && p[n] != '\\' {
			n++
		}
		c.buf = append(c.buf, p[:n]...)
		if p = p[n:]; len(p) == 0 {
			return
		}
		switch b := p[0]; {
		case b == '"' || b == '\\':
			c.buf = append(c.buf, '\\', b)
		case b == '\n':
			c.buf = append(c.buf, '\\', 'n')
		case b == '\r':
			c.buf = append(c.buf, '\\', 'r')
		case b == '\t':
			c.buf = append(c.buf, '\\', 't')
		case b < ' ':
			c.buf = append(c.buf, '\\', 'u', '0', '0', digits[b>>4], digits[b&0xf])
		default:
			r, size := utf8.DecodeRune(p)
			c.buf = utf8.AppendRune(c.buf, r) // RuneError is U+FFFD
			p = p[size:]
			continue
		}
		p = p[1:]
	}
}
