package codec

import (
	"errors"
	"fmt"
	"io"
	"slices"
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
	top    container // the list itself
	items  container
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
		l.openProto()
		return l.w.bad
	}
	l.w.expect('{')
	l.w.push('{')
	l.top = container{w: &l.w, end: '}', open: true}
	l.fields()
	return l.w.bad
}

var errDuplicateField = errors.New("a list has a duplicate field")

// fields reads the fields of the list up to the items or the end.
func (l *ListReader) fields() {
	w := &l.w
	for w.keep(); l.top.next(); w.keep() {
		switch name := string(l.top.key); {
		case name == "kind":
			l.textOnce(&l.Kind)
		case name == "apiVersion":
			l.textOnce(&l.APIVersion)
		case name == "metadata":
			l.meta()
		case name == "items" && l.format.Shape != ShapeTable, name == "rows" && l.format.Shape == ShapeTable:
			if l.ended {
				w.fail(errDuplicateField)
				return
			}
			w.keep()
			if l.items = w.container('['); l.items.open {
				l.base = w.depth
				w.keep()
				return
			}
			if got := w.get(w.since(0)); string(trim(got)) != "null" {
				w.fail(fmt.Errorf("%w: items is not an array", errJSON))
			}
			l.ended = true
		case name == "columnDefinitions" && l.format.Shape == ShapeTable:
			if l.Columns != nil {
				w.fail(errDuplicateField)
			}
			columns, err := parseColumns(w.get(w.value()))
			w.fail(err)
			l.Columns = columns
		default:
			w.to(nil)
			w.skip()
		}
	}
	if w.bad == nil {
		l.end()
	}
}

// textOnce reads a string field that may occur only once.
func (l *ListReader) textOnce(into *string) {
	if s := l.w.textOr(); *into != "" {
		l.w.fail(errDuplicateField)
	} else {
		*into = string(unescaped(l.w.get(s)))
	}
}

// end checks that no data follows the list.
func (l *ListReader) end() {
	if !l.ended {
		l.w.fail(errors.New("a list has no items"))
		return
	}
	l.w.to(nil)
	switch err := l.w.find(); err {
	case io.EOF:
		l.w = window{} // free the buffer; other members of a merged list may take long
	case nil:
		l.w.fail(fmt.Errorf("%w: %q after the list", errJSON, l.w.buf[l.w.pos]))
	default:
		l.w.fail(err)
	}
}

func (l *ListReader) meta() {
	w := &l.w
	if l.Meta.ResourceVersion != 0 {
		w.fail(errDuplicateField)
	}
	for o := w.container('{'); o.next(); {
		name := string(o.key)
		switch raw := w.get(w.value()); name {
		case "resourceVersion":
			rv, err := number(unquoted(raw))
			w.fail(err)
			l.Meta.ResourceVersion = rv
		case "continue":
			l.Meta.Continue = string(unescaped(unquoted(raw)))
		case "remainingItemCount":
			if n, err := number(raw); err == nil && n < 1<<62 {
				l.Meta.Remaining = int64(n)
			}
		case "shardInfo":
			l.Meta.Shard = slices.Clone(raw)
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
	l.comma = l.items.comma
	if !l.items.next() {
		if w.bad == nil {
			l.ended = true
			w.release()
			l.fields()
		}
		return false, w.bad
	}
	w.peek()
	w.next()
	object := w.container('{')
	if !object.open {
		w.fail(fmt.Errorf("%w: an item is not an object", errJSON))
		return false, w.bad
	}
	if l.format.Shape == ShapeTable {
		l.scanRow(object)
	} else {
		ns, name := object.identity()
		l.Namespace, l.Name = l.itemName(ns), l.itemName(name)
	}
	return w.bad == nil, w.bad
}

func (l *ListReader) itemName(s span) []byte {
	if s.to == s.from {
		return nil
	}
	return unescaped(l.w.get(s))
}

// identity reads an object until namespace and name are known, or to its end.
func (c *container) identity() (ns, name span) {
	w := c.w
	for c.next() {
		if string(c.key) != "metadata" {
			w.skip()
			continue
		}
		meta := w.container('{')
		isObject := meta.open
		for meta.next() {
			switch string(meta.key) {
			case "name":
				name = w.textOr()
			case "namespace":
				ns = w.textOr()
			default:
				w.skip()
			}
			if ns.to > 0 && name.to > 0 {
				return ns, name
			}
		}
		if isObject {
			return ns, name
		}
	}
	return ns, name
}

// CopyItem writes the item that Next found to out.
func (l *ListReader) CopyItem(out io.Writer) error {
	w := &l.w
	w.release()
	if l.format.Shape == ShapeTable {
		return l.copyRow(out)
	}
	w.to(out)
	l.through()
	w.release()
	return w.bad
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
		w.release()
		if comma {
			w.write(out, []byte{','})
		}
	}
	if l.format.Shape == ShapeTable {
		return l.CopyItem(out)
	}
	w.splice(out, !separate)
	l.through()
	w.spliced()
	return w.bad
}

// through reads the rest of the item. The mode of the window decides what happens to the bytes.
func (l *ListReader) through() {
	if !l.format.Proto {
		l.w.unwind(l.base)
		return
	}
	l.w.advance(l.left)
	l.rest -= l.left
}

// SkipItem skips the item that Next found. A protobuf list has its length before the items, so there SkipItem writes
// the item under an unknown field number that decoders ignore.
func (l *ListReader) SkipItem(out io.Writer) error {
	w := &l.w
	if l.format.Proto {
		if w.buf[w.mark] != tagItem {
			return fmt.Errorf("%w: an item has a tag of two bytes", ErrProtobuf)
		}
		w.buf[w.mark] = tagUnknown
		return l.SpliceItem(out, false)
	}
	w.release()
	w.to(nil)
	w.unwind(l.base)
	w.release()
	return w.bad
}
