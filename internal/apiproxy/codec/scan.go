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

// peek returns the next byte that is not white space.
func (w *window) peek() (byte, error) {
	for {
		for ; w.pos < w.end; w.pos++ {
			switch c := w.buf[w.pos]; c {
			case ' ', '\t', '\n', '\r':
			default:
				return c, nil
			}
		}
		if err := w.more(); err != nil {
			return 0, err
		}
	}
}

// expect skips c, or returns an error if another byte comes.
func (w *window) expect(c byte) error {
	got, err := w.peek()
	if err != nil {
		return short(err)
	}
	if got != c {
		return fmt.Errorf("%w: found %q, want %q", errJSON, got, c)
	}
	w.pos++
	return nil
}

// enter skips an opening bracket. If another value comes, it skips that value and returns false.
func (w *window) enter(c byte) (bool, error) {
	got, err := w.peek()
	if err != nil {
		return false, short(err)
	}
	if got != c {
		return false, w.skip()
	}
	w.pos++
	return true, w.push(c)
}

func (w *window) push(c byte) error {
	if w.depth >= maxDepth {
		return fmt.Errorf("%w: nesting is deeper than %d", errJSON, maxDepth)
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
	return nil
}

func (w *window) pop(c byte) error {
	d := w.depth - 1
	if d < 0 || (c == '}') != (w.kinds[d/64]&(1<<(d%64)) != 0) {
		return fmt.Errorf("%w: unexpected %q", errJSON, c)
	}
	w.depth = d
	return nil
}

// marks are the bytes that matter outside strings.
var marks = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// unwind reads until at most depth containers are open. All bytes of a list pass through it, so it is the hot
// path.
func (w *window) unwind(depth int) error {
	for w.depth > depth {
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
				if err := w.skipString(); err != nil {
					return err
				}
				b, i = w.buf[w.pos:w.end], 0
				continue
			}
			var err error
			if c == '{' || c == '[' {
				err = w.push(c)
			} else {
				err = w.pop(c)
			}
			if err != nil {
				return err
			}
			if w.depth <= depth {
				break
			}
		}
		w.pos += i
		if w.depth > depth {
			if err := w.more(); err != nil {
				return short(err)
			}
		}
	}
	return nil
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
func (w *window) skipString() error {
	if n := stringEnd(w.buf[w.pos:w.end]); n > 0 {
		w.pos += n
		return nil
	}
	for {
		b := w.buf[w.pos:w.end]
		quote := bytes.IndexByte(b, '"')
		if quote >= 0 {
			b = b[:quote]
		}
		if slash := bytes.IndexByte(b, '\\'); slash >= 0 {
			w.pos += slash + 1
			if !w.ahead(1) {
				if err := w.more(); err != nil {
					return short(err)
				}
			}
			w.pos++
			continue
		}
		if quote >= 0 {
			w.pos += quote + 1
			return nil
		}
		w.pos = w.end
		if err := w.more(); err != nil {
			return short(err)
		}
	}
}

// skip skips one value.
func (w *window) skip() error {
	c, err := w.peek()
	if err != nil {
		return short(err)
	}
	switch c {
	case '{', '[':
		depth := w.depth
		w.pos++
		if err := w.push(c); err != nil {
			return err
		}
		return w.unwind(depth)
	case '"':
		w.pos++
		return w.skipString()
	case ',', ':', '}', ']':
		return fmt.Errorf("%w: found %q, want a value", errJSON, c)
	}
	for {
		for ; w.pos < w.end; w.pos++ {
			switch w.buf[w.pos] {
			case ',', '}', ']', ' ', '\t', '\n', '\r':
				return nil
			case '"', '{', '[', ':':
				return fmt.Errorf("%w: %q in a value", errJSON, w.buf[w.pos])
			}
		}
		if err := w.more(); err != nil {
			return short(err) // values that are read here never end the stream
		}
	}
}

// text returns the next string, without its quotes and still escaped. The window must be in mode hold.
func (w *window) text() (span, error) {
	if err := w.expect('"'); err != nil {
		return span{}, err
	}
	at := w.at()
	if err := w.skipString(); err != nil {
		return span{}, err
	}
	return span{at, w.at() - 1}, nil
}

// textOr returns the next string as text does, or an empty span for any other value, which it skips.
func (w *window) textOr() (span, error) {
	c, err := w.peek()
	if err != nil {
		return span{}, short(err)
	}
	if c != '"' {
		return span{}, w.skip()
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

// key moves to the value of the next field of the current object. At the end of the object it leaves it and
// returns false. The window must be in mode hold. The name is valid until the next read.
func (w *window) key(first *bool) (name []byte, ok bool, err error) {
	if ok, err = w.item(first, '}'); !ok || err != nil {
		return nil, false, err
	}
	s, err := w.text()
	if err != nil {
		return nil, false, err
	}
	if err := w.expect(':'); err != nil {
		return nil, false, err
	}
	return unescaped(w.get(s)), true, nil
}

// item moves to the next item of the current container. At the end of the container it leaves it and returns
// false.
func (w *window) item(first *bool, end byte) (bool, error) {
	c, err := w.peek()
	if err != nil {
		return false, short(err)
	}
	if c == end {
		w.pos++
		return false, w.pop(c)
	}
	if *first {
		*first = false
		return true, nil
	}
	return true, w.expect(',')
}

// number parses a resourceVersion.
func number(raw []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %.40q is not a 64-bit number", raw)
	}
	return n, nil
}
