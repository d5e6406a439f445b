package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxObject is the largest object in bytes: more than API servers allow. Each object is held in memory.
const maxObject = 16 << 20

// rewriteStream is a reader of the bytes that step writes to out.
type rewriteStream struct {
	io.Closer
	in   *objectLimiter
	from *json.Decoder
	out  bytes.Buffer
	step func() error
	err  error
}

func newRewriteStream(src io.ReadCloser) *rewriteStream {
	in := &objectLimiter{r: src}
	return &rewriteStream{Closer: src, in: in, from: json.NewDecoder(in)}
}

// objectLimiter is a reader that fails when one object has too many bytes.
type objectLimiter struct {
	r io.Reader
	n int // since the last object
}

var errObjectTooLarge = fmt.Errorf("an object has more than %d bytes", maxObject)

func (b *objectLimiter) Read(p []byte) (int, error) {
	if b.n > maxObject {
		return 0, errObjectTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), maxObject+1-b.n)])
	b.n += n
	return n, err
}

// Read implements [io.Reader].
func (s *rewriteStream) Read(p []byte) (int, error) {
	for s.out.Len() == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.out.Reset()
		s.err = s.step()
	}
	return s.out.Read(p)
}

// value reads one complete value.
func (s *rewriteStream) value() (json.RawMessage, error) {
	s.in.n = 0
	var v json.RawMessage
	err := s.from.Decode(&v)
	return v, err
}

// rewriteEvents returns a watch whose objects are changed as they arrive. It does not change bookmarks and errors.
func rewriteEvents(src io.ReadCloser, change objectChange) io.ReadCloser {
	s := newRewriteStream(src)
	s.step = func() error {
		event, err := s.value()
		if err != nil {
			return err
		}
		s.out.Write(changeEvent(event, change))
		s.out.WriteByte('\n')
		return nil
	}
	return s
}

func changeEvent(event []byte, change objectChange) []byte {
	fields, err := parseFields("the event", event)
	if err != nil {
		return event // the next reader reports the error
	}
	var kind string
	if jsonText("type", fields.Get("type"), &kind) != nil {
		return event
	}
	switch kind {
	case "ADDED", "MODIFIED", "DELETED":
		return changeInside("object", func(object []byte) []byte { return rewriteResponse(object, change) })(event)
	}
	return event
}

// rewriteList returns a list, or a Table, whose objects are changed as they arrive. It holds one item at a time.
func rewriteList(src io.ReadCloser, table bool, change objectChange) io.ReadCloser {
	s := newRewriteStream(src)
	l := &listRewriter{rewriteStream: s, of: "items", change: change}
	if table {
		l.of, l.change = "rows", changeInside("object", change)
	}
	s.step = l.open
	return s
}

type listRewriter struct {
	*rewriteStream
	of     string
	change objectChange
	comma  string
}

var errNoList = errors.New("the answer is not a list")

func (l *listRewriter) open() error {
	switch t, err := l.token(); {
	case err != nil:
		return err
	case t != json.Delim('{'):
		return errNoList
	}
	l.out.WriteByte('{')
	l.step = l.field
	return nil
}

// token reads a token. The end of the input is an error here.
func (l *listRewriter) token() (json.Token, error) {
	l.in.n = 0
	t, err := l.from.Token()
	return t, unexpectedEOF(err)
}

// field copies one field of the list, or starts the items.
func (l *listRewriter) field() error {
	t, err := l.token()
	if err != nil {
		return err
	}
	key, isKey := t.(string)
	if !isKey {
		l.out.WriteByte('}')
		l.step = l.end
		return nil
	}
	l.out.WriteString(l.comma)
	l.comma = ","
	l.out.Write(jsonString(key))
	l.out.WriteByte(':')
	if key != l.of {
		v, err := l.value()
		if err != nil {
			return unexpectedEOF(err)
		}
		l.out.Write(v)
		return nil
	}
	switch t, err := l.token(); {
	case err != nil:
		return err
	case t == nil:
		l.out.WriteString("null")
	case t == json.Delim('['):
		l.out.WriteByte('[')
		l.comma = ""
		l.step = l.item
	default:
		return errNoList
	}
	return nil
}

// item copies one item with its change.
func (l *listRewriter) item() error {
	l.in.n = 0
	if !l.from.More() {
		if _, err := l.token(); err != nil {
			return err
		}
		l.out.WriteByte(']')
		l.comma, l.step = ",", l.field
		return nil
	}
	v, err := l.value()
	if err != nil {
		return unexpectedEOF(err)
	}
	l.out.WriteString(l.comma)
	l.comma = ","
	l.out.Write(l.change(v))
	return nil
}

// unexpectedEOF converts io.EOF to io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// end checks that nothing follows the list.
func (l *listRewriter) end() error {
	l.in.n = 0
	if _, err := l.from.Token(); err != nil {
		return err // io.EOF after a complete list
	}
	return errors.New("there is data after the list")
}
