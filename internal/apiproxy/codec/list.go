package codec

import (
	"errors"
	"fmt"
	"io"
)

// ListMeta is the metadata of a list.
type ListMeta struct {
	// ResourceVersion is 0 until it has been read. For custom resources, a server writes it after the items.
	ResourceVersion uint64
	Continue        string
	Remaining       int64  // the number of items after this page; -1: not given
	Shard           []byte // raw shardInfo
}

// ListReader reads the response of one member. Callers use Open, then Next. For each item they then call CopyItem,
// SpliceItem or SkipItem, until Next returns false.
//
// It holds at most 32 KiB, or 128 KiB of a long list. It holds more only if the part of an item up to its
// name is larger, at most 16 MiB.
type ListReader struct {
	Kind, APIVersion string
	Meta             ListMeta
	Columns          *Columns // of a Table
	// Namespace and Name of the item that Next found. They are valid until the next call.
	Namespace, Name []byte
	// Foreign marks an unknown field of a protobuf list instead of an item. Callers must copy it unchanged.
	Foreign bool

	// Row adapts the rows of a Table to the merged Table. It may be set after Open.
	Row *Row

	format Format
	w      window
	began  bool // after the first item
	comma  bool // a comma precedes the current item
	ended  bool // after the last item
	base   int  // the nesting depth of the items
	row    rowFields
	left   uint64 // protobuf: unread bytes of the item
	rest   uint64 // protobuf: unread bytes of the list
}

// NewListReader returns a reader of r.
func NewListReader(r io.Reader, f Format) *ListReader {
	return &ListReader{format: f, w: window{r: r, buf: make([]byte, listWindow), most: longWindow}, Meta: ListMeta{Remaining: -1}}
}

// Open reads up to the first item.
func (l *ListReader) Open() error {
	if l.format.Proto {
		return l.openProto()
	}
	if err := l.w.expect('{'); err != nil {
		return err
	}
	if err := l.w.push('{'); err != nil {
		return err
	}
	l.began = false
	return l.fields(new(true))
}

var errDuplicateField = errors.New("a list has a duplicate field")

// fields reads the fields of the list up to the items or the end.
func (l *ListReader) fields(first *bool) error {
	w := &l.w
	for {
		w.keep()
		key, ok, err := w.key(first)
		if err != nil {
			return err
		}
		if !ok {
			return l.end()
		}
		switch name := string(key); {
		case name == "kind" || name == "apiVersion":
			s, err := w.textOr()
			if err != nil {
				return err
			}
			into := &l.Kind
			if name == "apiVersion" {
				into = &l.APIVersion
			}
			if *into != "" {
				return errDuplicateField
			}
			*into = string(unescaped(w.get(s)))
		case name == "metadata":
			if err := l.meta(); err != nil {
				return err
			}
		case name == "items" && l.format.Shape != ShapeTable, name == "rows" && l.format.Shape == ShapeTable:
			if l.ended {
				return errDuplicateField
			}
			w.keep()
			isArray, err := w.enter('[')
			if err != nil {
				return err
			}
			if isArray {
				l.base = w.depth
				w.keep()
				return nil
			}
			if got := w.get(w.since(0)); string(trim(got)) != "null" {
				return fmt.Errorf("%w: items is not an array", errJSON)
			}
			l.ended = true
		case name == "columnDefinitions" && l.format.Shape == ShapeTable:
			if l.Columns != nil {
				return errDuplicateField
			}
			if _, err := w.peek(); err != nil {
				return short(err)
			}
			at := w.at()
			if err := w.skip(); err != nil {
				return err
			}
			if l.Columns, err = parseColumns(w.get(w.since(at))); err != nil {
				return err
			}
		default:
			w.to(nil)
			if err := w.skip(); err != nil {
				return err
			}
		}
	}
}

// end checks that no data follows the list.
func (l *ListReader) end() error {
	if !l.ended {
		return errors.New("a list has no items")
	}
	l.w.to(nil)
	switch c, err := l.w.peek(); {
	case err == io.EOF:
		l.w = window{} // free the buffer; other members of a merged list may take long
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("%w: %q after the list", errJSON, c)
	}
}

func (l *ListReader) meta() error {
	w := &l.w
	if l.Meta.ResourceVersion != 0 {
		return errDuplicateField
	}
	isObject, err := w.enter('{')
	if err != nil || !isObject {
		return err
	}
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil || !ok {
			return err
		}
		name := string(key)
		if _, err := w.peek(); err != nil {
			return short(err)
		}
		at := w.at()
		if err := w.skip(); err != nil {
			return err
		}
		raw := w.get(w.since(at))
		switch name {
		case "resourceVersion":
			if l.Meta.ResourceVersion, err = number(unquoted(raw)); err != nil {
				return err
			}
		case "continue":
			l.Meta.Continue = string(unescaped(unquoted(raw)))
		case "remainingItemCount":
			if n, err := number(raw); err == nil && n < 1<<62 {
				l.Meta.Remaining = int64(n)
			}
		case "shardInfo":
			l.Meta.Shard = append([]byte(nil), raw...)
		}
	}
}

// unquoted returns a JSON string without its quotes, or nil for any other value.
func unquoted(raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// Next finds the next item and reads its namespace and name. When it returns false, it has read the whole
// list and Meta is complete.
func (l *ListReader) Next() (bool, error) {
	if l.ended {
		return false, nil
	}
	l.Namespace, l.Name = nil, nil
	if l.format.Proto {
		return l.nextProto()
	}
	w := &l.w
	w.next() // a comma and white space
	first := !l.began
	ok, err := w.item(&first, ']')
	if err != nil {
		return false, err
	}
	if !ok {
		l.ended = true
		if err := w.release(); err != nil {
			return false, err
		}
		return false, l.fields(new(false))
	}
	l.comma = l.began
	l.began = true
	if _, err := w.peek(); err != nil {
		return false, short(err)
	}
	w.next()
	isObject, err := w.enter('{')
	if err != nil {
		return false, err
	}
	if !isObject {
		return false, fmt.Errorf("%w: an item is not an object", errJSON)
	}
	if l.format.Shape == ShapeTable {
		return true, l.scanRow()
	}
	ns, name, err := w.identity(w.depth - 1)
	l.Namespace, l.Name = l.itemName(ns), l.itemName(name)
	return true, err
}

func (l *ListReader) itemName(s span) []byte {
	if s.to == s.from {
		return nil
	}
	return unescaped(l.w.get(s))
}

// identity reads an object after its opening brace until namespace and name are known, or to its end. depth
// is the nesting depth outside the object.
func (w *window) identity(depth int) (ns, name span, err error) {
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil || !ok {
			return ns, name, err
		}
		if string(key) != "metadata" {
			if err := w.skip(); err != nil {
				return ns, name, err
			}
			continue
		}
		isObject, err := w.enter('{')
		if err != nil {
			return ns, name, err
		}
		if !isObject {
			continue
		}
		for first := true; ; {
			key, ok, err := w.key(&first)
			if err != nil {
				return ns, name, err
			}
			if !ok {
				return ns, name, nil
			}
			switch string(key) {
			case "name":
				name, err = w.textOr()
			case "namespace":
				ns, err = w.textOr()
			default:
				err = w.skip()
			}
			if err != nil || ns.to > 0 && name.to > 0 {
				return ns, name, err
			}
		}
	}
}

// CopyItem writes the item that Next found to out.
func (l *ListReader) CopyItem(out io.Writer) error {
	w := &l.w
	if err := w.release(); err != nil {
		return err
	}
	if l.format.Shape == ShapeTable {
		return l.copyRow(out)
	}
	w.to(out)
	if err := l.through(); err != nil {
		return err
	}
	return w.release()
}

// SpliceItem copies the item that Next found to out. comma puts a comma before a JSON item. The bytes may be
// written later, together with other items, but at the latest when Next returns false.
func (l *ListReader) SpliceItem(out io.Writer, comma bool) error {
	w := &l.w
	separate := l.format.Shape == ShapeTable || comma != l.comma
	if l.format.Proto {
		comma, separate = false, false
	}
	if separate {
		if err := w.release(); err != nil {
			return err
		}
		if comma {
			if _, err := out.Write([]byte{','}); err != nil {
				return &writeError{err}
			}
		}
	}
	if l.format.Shape == ShapeTable {
		return l.CopyItem(out)
	}
	if err := w.splice(out, !separate); err != nil {
		return err
	}
	if err := l.through(); err != nil {
		return err
	}
	w.spliced()
	return nil
}

// through reads the rest of the item. The mode of the window decides what happens to the bytes.
func (l *ListReader) through() error {
	if !l.format.Proto {
		return l.w.unwind(l.base)
	}
	if err := l.w.advance(l.left); err != nil {
		return err
	}
	l.rest -= l.left
	return nil
}

// SkipItem skips the item that Next found. A protobuf list has its length before the items, so there SkipItem writes
// the item under an unknown field number that decoders ignore.
func (l *ListReader) SkipItem(out io.Writer) error {
	w := &l.w
	if l.format.Proto {
		if w.buf[w.mark] != tagItem {
			return fmt.Errorf("%w: an item has a tag of two bytes", errProto)
		}
		w.buf[w.mark] = tagUnknown
		return l.SpliceItem(out, false)
	}
	if err := w.release(); err != nil {
		return err
	}
	w.to(nil)
	if err := w.unwind(l.base); err != nil {
		return err
	}
	return w.release()
}
