package accessproxy

import (
	"encoding/binary"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// CBOR major types (RFC 8949, section 3.1).
const (
	cborBytes  = 2
	cborText   = 3
	cborArray  = 4
	cborMap    = 5
	cborTag    = 6
	cborSimple = 7
)

// Bounds of CBOR items. Kubernetes accepts 64 levels.
const (
	maxCBORDepth = 100
	maxCBORItems = 1 << 32
)

// cborItems follows the items of a CBOR sequence (RFC 8742) without a change.
type cborItems struct {
	open   []int64 // items that are left in each open array, map, tag and string of several pieces; -1: until a break
	skip   uint64  // bytes of the current string that have not passed
	head   []byte  // of the current item, while it is not complete
	broken bool    // no CBOR that Kubernetes writes; the end of its items is not known
}

func (c *cborItems) isWhole() bool {
	return !c.broken && len(c.open) == 0 && c.skip == 0 && len(c.head) == 0
}

// passed takes the next bytes of the sequence.
func (c *cborItems) passed(b []byte) {
	for len(b) > 0 && !c.broken {
		if c.skip > 0 {
			n := min(c.skip, uint64(len(b)))
			c.skip, b = c.skip-n, b[n:]
			if c.skip == 0 {
				c.itemEnds()
			}
			continue
		}
		c.head, b = append(c.head, b[0]), b[1:]
		size := 0 // of the argument
		if info := c.head[0] & 31; info >= 24 && info <= 27 {
			size = 1 << (info - 24)
		}
		if len(c.head) == 1+size {
			c.begins(c.head[0]>>5, c.head[0]&31, argument(c.head))
			c.head = c.head[:0]
		}
	}
}

// argument returns the argument of a complete head.
func argument(head []byte) uint64 {
	var all [8]byte
	copy(all[8-(len(head)-1):], head[1:])
	if len(head) == 1 {
		return uint64(head[0] & 31)
	}
	return binary.BigEndian.Uint64(all[:])
}

// begins takes the head of an item.
func (c *cborItems) begins(major, info byte, n uint64) {
	const indefinite = 31
	switch {
	case info > 27 && info < indefinite, len(c.open) >= maxCBORDepth, (major == cborArray || major == cborMap) && info != indefinite && n > maxCBORItems:
		c.broken = true
	case major == cborSimple && info == indefinite: // a break
		if len(c.open) == 0 || c.open[len(c.open)-1] != -1 {
			c.broken = true
			return
		}
		c.open = c.open[:len(c.open)-1]
		c.itemEnds()
	case major == cborTag:
		c.opens(1)
	case info == indefinite && major >= cborBytes:
		c.open = append(c.open, -1)
	case info == indefinite:
		c.broken = true
	case (major == cborBytes || major == cborText) && n > 0:
		c.skip = n
	case major == cborArray:
		c.opens(int64(n))
	case major == cborMap:
		c.opens(2 * int64(n))
	default:
		c.itemEnds()
	}
}

// opens begins an item that has n items.
func (c *cborItems) opens(n int64) {
	if n == 0 {
		c.itemEnds()
		return
	}
	c.open = append(c.open, n)
}

// itemEnds counts an item in the one around it, and ends that one with its last.
func (c *cborItems) itemEnds() {
	for len(c.open) > 0 {
		last := &c.open[len(c.open)-1]
		if *last == -1 {
			return
		}
		if *last--; *last > 0 {
			return
		}
		c.open = c.open[:len(c.open)-1]
	}
}

// selfDescribed is the tag that Kubernetes writes before each object.
const selfDescribed = "\xd9\xd9\xf7"

// appendCBORError appends the ERROR event that ends a watch with a Status.
func appendCBORError(dst []byte, s codec.Status) []byte {
	dst = appendCBORHead(append(dst, selfDescribed...), cborMap, 2)
	for _, text := range []string{"type", "ERROR", "object"} {
		dst = appendCBORText(dst, text)
	}
	dst = appendCBORHead(append(dst, selfDescribed...), cborMap, 7)
	for _, text := range []string{"kind", "Status", "apiVersion", "v1", "status", "Failure", "message", s.Message, "reason", s.Reason, "metadata"} {
		dst = appendCBORText(dst, text)
	}
	dst = appendCBORText(appendCBORHead(dst, cborMap, 0), "code")
	return appendCBORHead(dst, 0, uint64(s.Code))
}

func appendCBORText(dst []byte, text string) []byte {
	return append(appendCBORHead(dst, cborText, uint64(len(text))), text...)
}

// appendCBORHead appends the head of an item in its shortest form.
func appendCBORHead(dst []byte, major byte, n uint64) []byte {
	major <<= 5
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n <= 0xff:
		return append(dst, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|27), n)
}
