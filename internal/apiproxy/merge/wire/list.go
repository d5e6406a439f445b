package wire

import (
	"errors"
	"fmt"
	"io"
)

// Meta is what a list says of itself.
type Meta struct {
	// ResourceVersion is 0 until it was read: a server writes the one of a list
	// of custom resources behind the items.
	ResourceVersion uint64
	Continue        string
	Remaining       int64  // how many items are not in this page; -1: it does not say
	Shard           []byte // shardInfo, as it is written
}

// A List reads what one member answered: Open, then Next and either Take, Splice
// or Drop for each item until Next says there is none.
//
// It holds no more than 32 KiB, of a long one 128, or what is before the end of
// an item's name where that is more: 16 MiB at most.
type List struct {
	Kind, APIVersion string
	Meta             Meta
	Columns          *Columns // of a Table
	// Namespace and Name of the item that Next found, until the next call.
	Namespace, Name []byte
	// Foreign says that the item is none, but something of a protobuf list that
	// this version does not know, to be taken as it is.
	Foreign bool

	// Row makes a Table's row fit the table it goes into. It may be set after
	// Open.
	Row *Row

	form  Form
	w     window
	began bool // the first item is past
	comma bool // one stands before the item
	ended bool // the items are past
	base  int  // the depth of the items
	row   rowSpans
	left  uint64 // protobuf: bytes of the item that were not looked at
	rest  uint64 // protobuf: bytes of the list that were not looked at
}

// NewList makes a List of what r has.
func NewList(r io.Reader, f Form) *List {
	return &List{form: f, w: window{r: r, buf: make([]byte, listWindow), most: longWindow}, Meta: Meta{Remaining: -1}}
}

// Open reads up to the first item.
func (l *List) Open() error {
	if l.form.Proto {
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

var errTwice = errors.New("a list that says something twice")

// fields reads the list's own fields, up to the items or to the end.
func (l *List) fields(first *bool) error {
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
				return errTwice
			}
			*into = string(plain(w.get(s)))
		case name == "metadata":
			if err := l.meta(); err != nil {
				return err
			}
		case name == "items" && l.form.Shape != Table, name == "rows" && l.form.Shape == Table:
			if l.ended {
				return errTwice
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
				return fmt.Errorf("%w: items that are no array", errJSON)
			}
			l.ended = true
		case name == "columnDefinitions" && l.form.Shape == Table:
			if l.Columns != nil {
				return errTwice
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

// end checks that nothing follows.
func (l *List) end() error {
	if !l.ended {
		return errors.New("a list without items")
	}
	l.w.to(nil)
	switch c, err := l.w.peek(); {
	case err == io.EOF:
		l.w = window{} // others of a merged list may follow for a long time
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("%w: %q behind the list", errJSON, c)
	}
}

func (l *List) meta() error {
	w := &l.w
	if l.Meta.ResourceVersion != 0 {
		return errTwice
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
			l.Meta.Continue = string(plain(unquoted(raw)))
		case "remainingItemCount":
			if n, err := number(raw); err == nil && n < 1<<62 {
				l.Meta.Remaining = int64(n)
			}
		case "shardInfo":
			l.Meta.Shard = append([]byte(nil), raw...)
		}
	}
}

// unquoted is a string without its quotes; anything else is nothing.
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

// Next finds the next item and names it. When there is none, the list was read
// to its end and Meta is complete.
func (l *List) Next() (bool, error) {
	if l.ended {
		return false, nil
	}
	l.Namespace, l.Name = nil, nil
	if l.form.Proto {
		return l.nextProto()
	}
	w := &l.w
	w.next() // a comma and what space there is
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
		return false, fmt.Errorf("%w: an item that is no object", errJSON)
	}
	if l.form.Shape == Table {
		return true, l.scanRow()
	}
	ns, name, err := w.identity(w.depth - 1)
	l.Namespace, l.Name = l.named(ns), l.named(name)
	return true, err
}

func (l *List) named(s span) []byte {
	if s.to == s.from {
		return nil
	}
	return plain(l.w.get(s))
}

// identity reads an object that was entered until its namespace and name are
// known, or to its end, where depth containers are open.
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

// Take writes the item that Next found to out.
func (l *List) Take(out io.Writer) error {
	w := &l.w
	if err := w.release(); err != nil {
		return err
	}
	if l.form.Shape == Table {
		return l.takeRow(out)
	}
	w.to(out)
	if err := l.through(); err != nil {
		return err
	}
	return w.release()
}

// Splice writes the item that Next found to out, in JSON with a comma before it
// if that is asked for. It may be written as late as Next says that there is none,
// in one piece with others.
func (l *List) Splice(out io.Writer, comma bool) error {
	w := &l.w
	separate := l.form.Shape == Table || comma != l.comma
	if l.form.Proto {
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
	if l.form.Shape == Table {
		return l.Take(out)
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

// through moves over the rest of the item.
func (l *List) through() error {
	if !l.form.Proto {
		return l.w.unwind(l.base)
	}
	if err := l.w.advance(l.left); err != nil {
		return err
	}
	l.rest -= l.left
	return nil
}

// Drop leaves out the item that Next found. The length of a protobuf list was
// said before its items, so there it is written under a tag that nobody reads.
func (l *List) Drop(out io.Writer) error {
	w := &l.w
	if l.form.Proto {
		if w.buf[w.mark] != tagItem {
			return fmt.Errorf("%w: an item under a tag of two bytes", errProto)
		}
		w.buf[w.mark] = tagNobody
		return l.Splice(out, false)
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
