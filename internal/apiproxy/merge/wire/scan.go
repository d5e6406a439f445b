package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

// deepest is how deep JSON may nest, as encoding/json has it.
const deepest = 10000

var errJSON = errors.New("not JSON as a server writes it")

// peek is the next byte that is not space.
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

// expect moves over c.
func (w *window) expect(c byte) error {
	got, err := w.peek()
	if err != nil {
		return short(err)
	}
	if got != c {
		return fmt.Errorf("%w: %q where %q should be", errJSON, got, c)
	}
	w.pos++
	return nil
}

// enter moves over an opening bracket, and says whether it was one.
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
	if w.depth >= deepest {
		return fmt.Errorf("%w: nested deeper than %d", errJSON, deepest)
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
		return fmt.Errorf("%w: a %q that closes nothing", errJSON, c)
	}
	w.depth = d
	return nil
}

// marks are the bytes that matter outside of strings.
var marks = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// unwind moves on until no more than depth containers are open. All of a list goes
// through here.
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

// Eight bytes at once, for stringEnd.
const (
	ones    = 0x0101010101010101
	highs   = ones << 7
	quotes  = '"' * ones
	slashes = '\\' * ones
)

// stringEnd is how many bytes there are to the end of the string that b begins
// in, with its quote; 0 if that is not found soon. Most strings are short, and a
// search by [bytes.IndexByte] takes longer to begin than to read them.
func stringEnd(b []byte) int {
	i := 0
	for i+8 <= len(b) && i < 64 {
		x := binary.LittleEndian.Uint64(b[i:])
		q, s := x^quotes, x^slashes
		// The high bit of each byte that is 0 there, and perhaps of some behind the first.
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

// skipString moves behind the quote that ends the string that was begun.
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

// skip moves over one value.
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
		return fmt.Errorf("%w: %q where a value should be", errJSON, c)
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
			return short(err) // no value that is read here ends its stream
		}
	}
}

// text is the string that comes, without its quotes, as it is written. It must
// be held.
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

// textOr is text, or an empty span for a value that is no string.
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

// plain is what a string means.
func plain(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	var s string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &s); err != nil {
		return raw // nobody's name, then
	}
	return []byte(s)
}

// key moves to the value of the next field of the object that is open, or out
// of it when there is none. It must be held; the name is good until the next
// byte is read.
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
	return plain(w.get(s)), true, nil
}

// item moves to the next item of the container that is open, or out of it.
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

// number reads a resourceVersion.
func number(raw []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %.40q is not a number of 64 bits", raw)
	}
	return n, nil
}
