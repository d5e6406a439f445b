// Package strictjson reads JSON from untrusted peers. It keeps law 7: it rejects input that two readers could interpret differently, and
// input that has no bound.
package strictjson

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// UnmarshalKnown decodes b, which must be exactly one JSON value, into v. It refuses fields that v does not have. Unlike a [Cursor], it
// accepts names that occur twice or in another case, so it is for texts that a trusted program wrote or that the caller checks again.
func UnmarshalKnown(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is data after the JSON object")
	}
	return nil
}

// A Cursor reads a JSON text from beginning to end, value by value. It rejects duplicate names in an object, names in another case, and
// negative or malformed numbers where a count is required. It bounds nesting. Callers skip unknown fields, because a peer may be newer.
type Cursor struct {
	b    []byte
	i    int
	deep int // number of objects and lists around i
}

// New returns a cursor at the beginning of b. It does not modify b.
func New(b []byte) Cursor { return Cursor{b: b} }

const maxNesting = 4

// ErrSyntax reports input that is not JSON, or not a value of the requested kind.
var ErrSyntax = errors.New("it is not JSON")

func (c *Cursor) peek() byte {
	for ; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case ' ', '\t', '\r', '\n':
		default:
			return c.b[c.i]
		}
	}
	return 0
}

func (c *Cursor) skipByte(want byte) bool {
	if c.peek() != want || c.i >= len(c.b) {
		return false
	}
	c.i++
	return true
}

// readItems reads the items between open and shut.
func (c *Cursor) readItems(open, closing byte, item func() error) error {
	if !c.skipByte(open) {
		return ErrSyntax
	}
	if c.deep++; c.deep > maxNesting {
		return fmt.Errorf("it is nested deeper than %d levels", maxNesting)
	}
	defer func() { c.deep-- }()
	if c.skipByte(closing) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if c.skipByte(closing) {
			return nil
		}
		if !c.skipByte(',') {
			return ErrSyntax
		}
	}
}

// Object reads an object. It calls field for each name; field must read the value.
func (c *Cursor) Object(field func(name string) error) error {
	var seen []string
	var many map[string]bool // used once a search through seen would be slow
	return c.readItems('{', '}', func() error {
		name, err := c.Text()
		if err != nil || !c.skipByte(':') {
			return ErrSyntax
		}
		twice := many[name]
		for _, s := range seen {
			twice = twice || s == name
		}
		if twice {
			return fmt.Errorf("%.40q occurs twice", name)
		}
		if seen = append(seen, name); len(seen) == 64 {
			if many == nil {
				many = map[string]bool{}
			}
			for _, s := range seen {
				many[s] = true
			}
			seen = seen[:0]
		}
		return field(name)
	})
}

// Array reads a list. It calls item for each item; item must read it.
func (c *Cursor) Array(item func() error) error { return c.readItems('[', ']', item) }

// Raw returns the bytes between the quotes of a string. plain reports whether they are ASCII without an escape.
func (c *Cursor) Raw() (text []byte, plain bool, err error) {
	if !c.skipByte('"') {
		return nil, false, ErrSyntax
	}
	start := c.i
	plain = true
	for ; c.i < len(c.b); c.i++ {
		switch b := c.b[c.i]; {
		case b == '"':
			c.i++
			return c.b[start : c.i-1], plain, nil
		case b == '\\':
			plain = false
			c.i++
		case b < ' ':
			return nil, false, ErrSyntax
		case b >= 0x80:
			plain = false
		}
	}
	return nil, false, ErrSyntax
}

// Text reads a string.
func (c *Cursor) Text() (string, error) {
	raw, plain, err := c.Raw()
	if err != nil || plain {
		return string(raw), err
	}
	var s string
	quoted := c.b[c.i-len(raw)-2 : c.i]
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", ErrSyntax
	}
	return s, nil
}

// Base64 reads a string of bytes in base64, with padding.
func (c *Cursor) Base64() ([]byte, error) {
	raw, plain, err := c.Raw()
	if err != nil || !plain {
		return nil, ErrSyntax
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(raw)))
	n, err := base64.StdEncoding.Strict().Decode(out, raw)
	if err != nil {
		return nil, errors.New("it is not base64")
	}
	return out[:n], nil
}

// Count reads an integer from 0 to limit.
func (c *Cursor) Count(limit uint64) (uint64, error) {
	c.peek()
	start := c.i
	var n uint64
	for ; c.i < len(c.b) && c.b[c.i] >= '0' && c.b[c.i] <= '9'; c.i++ {
		if n = n*10 + uint64(c.b[c.i]-'0'); n > limit {
			return 0, fmt.Errorf("a number is larger than %d", limit)
		}
	}
	digits := c.i - start
	if digits == 0 || digits > 1 && c.b[start] == '0' {
		return 0, errors.New("a number is not a non-negative integer")
	}
	if c.i < len(c.b) {
		switch c.b[c.i] {
		case '.', 'e', 'E':
			return 0, errors.New("a number is not a non-negative integer")
		}
	}
	return n, nil
}

// Row reads a list of a plain string and three counts, each up to its limit. It skips further items.
func (c *Cursor) Row(limits [3]uint64) (text []byte, counts [3]uint64, err error) {
	if text, counts, ok := c.fastRow(limits); ok {
		return text, counts, nil
	}
	field := 0
	err = c.Array(func() (err error) {
		switch field {
		case 0:
			var plain bool
			if text, plain, err = c.Raw(); err == nil && !plain {
				err = errors.New("a name contains a quote or an escape")
			}
		case 1, 2, 3:
			counts[field-1], err = c.Count(limits[field-1])
		default:
			err = c.Skip()
		}
		field++
		return err
	})
	if err == nil && field < 4 {
		err = errors.New("an entry has fewer than 4 parts")
	}
	return text, counts, err
}

// fastRow is the fast path of Row for a list without white space that ends after the counts, which is the usual form. For any other input
// it returns false and does not move the cursor.
func (c *Cursor) fastRow(limits [3]uint64) (text []byte, counts [3]uint64, ok bool) {
	b, i := c.b, c.i
	if len(b)-i < 2 || b[i] != '[' || b[i+1] != '"' || c.deep == maxNesting {
		return nil, counts, false
	}
	i += 2
	start := i
	for i < len(b) && b[i] != '"' {
		if b[i] < ' ' || b[i] >= 0x80 || b[i] == '\\' {
			return nil, counts, false
		}
		i++
	}
	text = b[start:min(i, len(b))]
	for n, limit := range limits {
		if i++; i >= len(b) || b[i] != ',' {
			return nil, counts, false
		}
		first, count := i+1, uint64(0)
		for ; i+1 < len(b) && b[i+1] >= '0' && b[i+1] <= '9'; i++ {
			if count = count*10 + uint64(b[i+1]-'0'); count > limit {
				return nil, counts, false
			}
		}
		if i < first || i > first && b[first] == '0' {
			return nil, counts, false
		}
		counts[n] = count
	}
	if i++; i >= len(b) || b[i] != ']' {
		return nil, counts, false
	}
	c.i = i + 1
	return text, counts, true
}

// Skip reads any value.
func (c *Cursor) Skip() error {
	switch c.peek() {
	case '{':
		return c.Object(func(string) error { return c.Skip() })
	case '[':
		return c.Array(c.Skip)
	case '"':
		_, err := c.Text()
		return err
	}
	start := c.i
	for ; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case ' ', '\t', '\r', '\n', ',', ']', '}':
			goto end
		}
	}
end:
	if c.i == start || !json.Valid(c.b[start:c.i]) {
		return ErrSyntax
	}
	return nil
}

// End returns an error if anything but white space follows.
func (c *Cursor) End() error {
	if c.peek(); c.i < len(c.b) {
		return errors.New("there is more data after it")
	}
	return nil
}
