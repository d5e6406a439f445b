package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

// maxDepth is the maximal nesting depth of JSON, as in encoding/json.
const maxDepth = 10000

var errJSON = errors.New("not JSON in the form of an API server")

// find moves to the next byte that is not white space. Its error is io.EOF at the end of the stream.
func (w *window) find() error {
	for {
		for ; w.pos < w.end; w.pos++ {
			switch w.buf[w.pos] {
			case ' ', '\t', '\n', '\r':
			default:
				return nil
			}
		}
		if err := w.more(); err != nil {
			return err
		}
	}
}

// peek returns the next byte that is not white space, or 0 after an error.
func (w *window) peek() byte {
	if w.bad == nil {
		w.fail(short(w.find()))
	}
	if w.bad != nil {
		return 0
	}
	return w.buf[w.pos]
}

// expect skips c. Another byte is an error.
func (w *window) expect(c byte) {
	if got := w.peek(); got == c {
		w.pos++
	} else {
		w.fail(fmt.Errorf("%w: found %q, want %q", errJSON, got, c))
	}
}

// enter skips an opening bracket. If another value comes, it skips that value and returns false.
func (w *window) enter(c byte) bool {
	if w.peek() != c {
		w.skip()
		return false
	}
	w.pos++
	w.push(c)
	return w.bad == nil
}

func (w *window) push(c byte) {
	if w.depth >= maxDepth {
		w.fail(fmt.Errorf("%w: nesting is deeper than %d", errJSON, maxDepth))
		return
	}
	at, bit := w.depth/64, uint64(1)<<(w.depth%64)
	if at == len(w.kinds) {
		w.kinds = append(w.kinds, 0)
	}
	if c == '{' {
		w.kinds[at] |= bit
	} else {
		w.kinds[at] &^= bit
	}
	w.depth++
}

func (w *window) pop(c byte) {
	d := w.depth - 1
	if d < 0 || (c == '}') != (w.kinds[d/64]&(1<<(d%64)) != 0) {
		w.fail(fmt.Errorf("%w: unexpected %q", errJSON, c))
		return
	}
	w.depth = d
}

// container is a loop over the fields of an object or the items of a list. The body of the loop must read the value:
//
//	for o := w.container('{'); o.next(); {
//		switch string(o.key) {
//
// The loop has no iterations for a value of another type, and ends at an error. The window must be in mode hold.
type container struct {
	w     *window
	end   byte   // the closing bracket
	open  bool   // the value is a container, and its end has not been read
	comma bool   // a comma precedes the next item
	key   []byte // of the field; valid until the next read
}

// container enters the container that begins with the bracket c.
func (w *window) container(c byte) container {
	return container{w: w, end: c + 2, open: w.enter(c)} // a closing bracket is two after its opening one
}

// next moves to the value of the next field or to the next item. At the end of the container it leaves it and returns false.
func (c *container) next() bool {
	w := c.w
	if !c.open {
		return false
	}
	if got := w.peek(); got == c.end {
		w.pos++
		w.pop(got)
		c.open = false
		return false
	}
	if c.comma {
		w.expect(',')
	}
	c.comma = true
	if c.end == '}' {
		s := w.text()
		w.expect(':')
		c.key = unescaped(w.get(s))
	}
	return w.bad == nil
}

// marks are the bytes that matter outside strings.
var marks = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// unwind reads until at most depth containers are open. All bytes of a list pass through it, so it is the hot
// path.
func (w *window) unwind(depth int) {
	for w.bad == nil && w.depth > depth {
		b := w.buf[w.pos:w.end]
		i := 0
		for i < len(b) {
			c := b[i]
			i++
			if !marks[c] {
				continue
			}
			if c == '"' {
				if n := stringEnd(b[i:]); n > 0 {
					i += n
					continue
				}
				w.pos += i
				w.skipString()
				b, i = w.buf[w.pos:w.end], 0
				continue
			}
			if c == '{' || c == '[' {
				w.push(c)
			} else {
				w.pop(c)
			}
			if w.depth <= depth || w.bad != nil {
				break
			}
		}
		w.pos += i
		if w.depth > depth {
			w.need()
		}
	}
}

// Constants for stringEnd, which reads eight bytes at a time.
const (
	ones    = 0x0101010101010101
	highs   = ones << 7
	quotes  = '"' * ones
	slashes = '\\' * ones
)

// stringEnd returns the number of bytes of b up to and including the quote that ends the current string. It
// returns 0 if there is no quote in about the first 64 bytes. Most strings are short, and the start of
// [bytes.IndexByte] costs more than reading them.
func stringEnd(b []byte) int {
	i := 0
	for i+8 <= len(b) && i < 64 {
		x := binary.LittleEndian.Uint64(b[i:])
		q, s := x^quotes, x^slashes
		// Sets the high bit of each byte that matches. Bits after the first match may be wrong.
		found := ((q-ones)&^q | (s-ones)&^s) & highs
		if found == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(found) / 8
		if b[i] == '"' {
			return i + 1
		}
		i += 2
	}
	return 0
}

// skipString skips the rest of the current string and its closing quote.
func (w *window) skipString() {
	if n := stringEnd(w.buf[w.pos:w.end]); n > 0 {
		w.pos += n
		return
	}
	for w.bad == nil {
		b := w.buf[w.pos:w.end]
		quote := bytes.IndexByte(b, '"')
		if quote >= 0 {
			b = b[:quote]
		}
		switch slash := bytes.IndexByte(b, '\\'); {
		case slash >= 0:
			w.pos += slash + 1
			if w.fill(1) {
				w.pos++
			}
		case quote >= 0:
			w.pos += quote + 1
			return
		default:
			w.pos = w.end
			w.need()
		}
	}
}

// skip skips one value.
func (w *window) skip() {
	switch c := w.peek(); c {
	case '{', '[':
		depth := w.depth
		w.pos++
		w.push(c)
		w.unwind(depth)
		return
	case '"':
		w.pos++
		w.skipString()
		return
	case ',', ':', '}', ']':
		w.fail(fmt.Errorf("%w: found %q, want a value", errJSON, c))
	}
	for w.bad == nil {
		for ; w.pos < w.end; w.pos++ {
			switch w.buf[w.pos] {
			case ',', '}', ']', ' ', '\t', '\n', '\r':
				return
			case '"', '{', '[', ':':
				w.fail(fmt.Errorf("%w: %q in a value", errJSON, w.buf[w.pos]))
				return
			}
		}
		w.need() // values that are read here never end the stream
	}
}

// value returns the next value. The window must be in mode hold.
func (w *window) value() span {
	w.peek()
	at := w.at()
	w.skip()
	return w.since(at)
}

// text returns the next string, without its quotes and still escaped. The window must be in mode hold.
func (w *window) text() span {
	w.expect('"')
	at := w.at()
	if w.skipString(); w.bad != nil {
		return span{}
	}
	return span{at, w.at() - 1}
}

// textOr returns the next string as text does, or an empty span for any other value, which it skips.
func (w *window) textOr() span {
	if w.peek() != '"' {
		w.skip()
		return span{}
	}
	return w.text()
}

// unescaped unescapes a JSON string.
func unescaped(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	var s string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &s); err != nil {
		return raw // an invalid string cannot be a name
	}
	return []byte(s)
}

// number parses a resourceVersion.
func number(raw []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %.40q is not a 64-bit number", raw)
	}
	return n, nil
}
