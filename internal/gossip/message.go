package gossip

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// A Claim is a peer's statement about a node in numbers. It can cause a request for a record and move a heartbeat, and nothing else. The
// zero Order means that the peer has no record.
type Claim struct {
	Node string // in a decoded message: "" if member is set
	Order
	Heartbeat uint64

	member *member // in a decoded message: the member that Node identifies; nil: unknown
}

// A message is one part of an exchange.
type message struct {
	Network string
	Digest  []Claim
	Records []Signed
	digest  bool // "d" was present, though it may be empty
}

// lists reports whether the digest has a record of a node that is not a member here.
func (m message) lists(node string) bool {
	return slices.ContainsFunc(m.Digest, func(c Claim) bool { return c.Node == node && c.Generation > 0 })
}

// MaxMessage is the maximum size in bytes of a message that a node accepts.
const MaxMessage = 64 << 10

// Limits of a message.
const (
	wireVersion = 1
	maxDigest   = 128 // entries of one digest; with more members a digest is a sample
	maxRecords  = 256
)

// encode returns the wire form of m. A digest entry has about 42 bytes.
func (m message) encode() []byte {
	size := m.overhead()
	for _, r := range m.Records {
		size += sealedSize(r)
	}
	b := append(make([]byte, 0, size), `{"v":1,"net":"`...)
	b = append(b, m.Network...) // a DNS label
	b = append(b, '"')
	if len(m.Digest) > 0 || m.digest {
		b = append(b, `,"d":[`...)
		for i, c := range m.Digest {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, `["`...), c.Node...), `",`...)
			b = append(strconv.AppendUint(b, c.Generation, 10), ',')
			b = append(strconv.AppendUint(b, c.Heartbeat, 10), ',')
			b = append(strconv.AppendUint(b, c.Version, 10), ']')
		}
		b = append(b, ']')
	}
	if len(m.Records) > 0 {
		b = append(b, `,"r":[`...)
		for i, r := range m.Records {
			if i > 0 {
				b = append(b, ',')
			}
			b = base64.StdEncoding.AppendEncode(append(b, `{"p":"`...), r.Payload)
			b = base64.StdEncoding.AppendEncode(append(b, `","s":"`...), r.Signature)
			b = append(b, `"}`...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// overhead returns the maximum size in bytes of m without its records.
func (m message) overhead() int {
	size := len(`{"v":1,"net":"","d":[],"r":[]}`) + 63 // a DNS label
	for _, c := range m.Digest {
		size += len(`["",,,],`) + len(c.Node) + digits(c.Generation) + digits(c.Heartbeat) + digits(c.Version)
	}
	return size
}

func digits(n uint64) int {
	d := 1
	for ; n > 9; n /= 10 {
		d++
	}
	return d
}

// sealedSize returns the maximum size in bytes of r in a message.
func sealedSize(r Signed) int {
	return base64.StdEncoding.EncodedLen(len(r.Payload)) + base64.StdEncoding.EncodedLen(len(r.Signature)) + len(`{"p":"","s":""},`)
}

// errNetwork reports a message of another gossip network. The sender is not backed off for it.
var errNetwork = errors.New("it belongs to another gossip network")

// decode decodes a message of that network, with room as the buffer of its digest. who returns the member with a node id, or nil if it is
// unknown.
func decode(b []byte, network string, room []Claim, who func([]byte) *member) (message, error) {
	var m message
	if len(b) == 0 {
		return m, errors.New("it is empty")
	}
	if len(b) > MaxMessage {
		return m, fmt.Errorf("it has more than %d bytes", MaxMessage)
	}
	c := &cursor{strictjson.New(b)}
	var version uint64
	err := c.Object(func(name string) (err error) { // a switch, because idle rounds decode many messages
		switch name {
		case "v":
			version, err = c.Count(maxVersion)
		case "net":
			m.Network, err = c.Text()
		case "d":
			m.digest = true
			m.Digest, err = c.claims(room, who)
		case "r":
			err = c.Array(func() error {
				s, err := c.signed()
				if err == nil && len(m.Records) == maxRecords {
					err = fmt.Errorf("more than %d records", maxRecords)
				}
				m.Records = append(m.Records, s)
				return err
			})
		default:
			err = c.Skip()
		}
		if err != nil {
			return fmt.Errorf("%.40q: %w", name, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return message{}, err
	case version != wireVersion:
		return message{}, fmt.Errorf("its version is %d, but this server supports version %d", version, wireVersion)
	case m.Network == "":
		return message{}, errors.New(`"net" is missing`)
	case m.Network != network:
		return message{}, errNetwork
	}
	return m, c.End()
}

func (c *cursor) claims(room []Claim, who func([]byte) *member) ([]Claim, error) {
	all := room[:0]
	var names [maxDigest][]byte
	err := c.Array(func() error {
		if len(all) == maxDigest {
			return fmt.Errorf("more than %d entries", maxDigest)
		}
		if cap(all) == 0 {
			all = make([]Claim, 0, maxDigest)
		}
		id, n, err := c.Row([3]uint64{maxGeneration, maxGeneration, maxVersion})
		if err == nil && !isNode(id) {
			err = errors.New("an entry has no node")
		}
		names[len(all)] = id
		all = append(all, Claim{Order: Order{Generation: n[0], Version: n[2]}, Heartbeat: n[1]})
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range all { // in one loop, so that the CPU can fetch the members' memory in parallel
		if all[i].member = who(names[i]); all[i].member == nil {
			all[i].Node = string(names[i])
		}
	}
	return all, nil
}

func (c *cursor) signed() (s Signed, err error) {
	err = c.read(map[string]any{"p": &s.Payload, "s": &s.Signature})
	if err == nil && (len(s.Payload) == 0 || len(s.Signature) == 0) {
		err = errors.New("a record without payload or signature")
	}
	return s, err
}
