package codec

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The Kubernetes envelope is a prefix of four bytes and an Unknown: typeMeta 1 (apiVersion 1, kind 2), raw 2,
// contentEncoding 3, contentType 4. A list has metadata 1 and repeated items 2. An object has metadata 1 and
// more.
const (
	magic = "k8s\x00"

	tagItem    = 2<<3 | 2
	tagUnknown = 15<<3 | 2 // an unknown field, which decoders skip
)

// ErrProtobuf is the error for input that is not protobuf.
var ErrProtobuf = errors.New("not protobuf in the form of an API server")

// varint reads a varint. The window must be in mode hold.
func (w *window) varint() uint64 {
	for n := 1; w.fill(n); n++ {
		if w.buf[w.pos+n-1] < 0x80 || n == 10 {
			v, size := protowire.ConsumeVarint(w.bytes(n))
			if size < 0 {
				w.fail(ErrProtobuf)
				return 0
			}
			w.pos += n
			return v
		}
	}
	return 0
}

// tag reads the number and the length of a field. All fields that are read here are length-delimited; any
// other is an error.
func (w *window) tag() (num uint64, size uint64) {
	tag := w.varint()
	if w.bad == nil && tag&7 != uint64(protowire.BytesType) {
		w.fail(fmt.Errorf("%w: field %d is not a string or message", ErrProtobuf, tag>>3))
	}
	return tag >> 3, w.varint()
}

func (l *ListReader) openProto() {
	w := &l.w
	w.keep()
	if !w.fill(len(magic)) {
		return
	}
	if string(w.bytes(len(magic))) != magic {
		w.fail(fmt.Errorf("%w: no envelope", ErrProtobuf))
	}
	w.pos += len(magic)
	for w.bad == nil {
		num, size := w.tag()
		if num == 2 {
			l.rest = size
			l.metaProto()
			return
		}
		if b := w.message(size); num == 1 {
			kind, version := typeMeta(b)
			l.Kind, l.APIVersion = string(kind), string(version)
		}
	}
}

// message returns the next n bytes. They are valid until the next read.
func (w *window) message(n uint64) []byte {
	if n > maxBuffered {
		w.fail(errTooLarge)
	}
	if w.bad != nil || !w.fill(int(n)) {
		return nil
	}
	b := w.bytes(int(n))
	w.pos += int(n)
	return b
}

// within subtracts the bytes read since at from the rest of the list.
func (l *ListReader) within(at int) {
	n := uint64(l.w.at() - at)
	if n > l.rest {
		l.w.fail(fmt.Errorf("%w: a field is longer than its list", ErrProtobuf))
	}
	l.rest -= n
}

// metaProto reads the list up to its first item.
func (l *ListReader) metaProto() {
	w := &l.w
	for l.rest > 0 && w.bad == nil {
		w.keep()
		if w.fill(1) && w.buf[w.pos] == tagItem {
			return
		}
		at := w.at()
		num, size := w.tag()
		b := w.message(size)
		l.within(at)
		switch {
		case w.bad != nil:
		case num != 1:
			w.fail(fmt.Errorf("%w: field %d before the items of a list", ErrProtobuf, num))
		case l.Meta.ResourceVersion != 0:
			w.fail(errDuplicateField)
		default:
			w.fail(l.Meta.parse(b))
		}
	}
}

// parse reads a ListMeta: resourceVersion 2, continue 3, remainingItemCount 4, shardInfo 5.
func (m *ListMeta) parse(b []byte) error {
	f := NewMessage(b)
	for f.Next() {
		switch f.Num {
		case 2:
			if len(f.Value) > 0 {
				m.ResourceVersion, f.Err = number(f.Value)
			}
		case 3:
			m.Continue = string(f.Value)
		case 4:
			m.Remaining = int64(f.N)
		case 5:
			m.Shard = slices.Clone(f.Value)
		}
	}
	return f.Err
}

// typeMeta reads a TypeMeta. Callers that need the kind detect an envelope without one.
func typeMeta(b []byte) (kind, version []byte) {
	m := NewMessage(b)
	for m.Next() {
		switch m.Num {
		case 1:
			version = m.Value
		case 2:
			kind = m.Value
		}
	}
	return kind, version
}

// Rest returns the number of bytes of a protobuf list from its first item on. It is valid between Open and
// Next.
func (l *ListReader) Rest() uint64 { return l.rest }

func (l *ListReader) nextProto() (bool, error) {
	w := &l.w
	w.next()
	if l.rest == 0 {
		l.ended = true
		w.release()
		l.endProto()
		return false, l.w.bad
	}
	at := w.at()
	num, size := w.tag()
	l.within(at)
	switch {
	case w.bad != nil:
	case size > l.rest:
		w.fail(fmt.Errorf("%w: an item is longer than its list", ErrProtobuf))
	case num == 1:
		w.fail(errDuplicateField)
	default:
		l.left = size
		if l.Foreign = num != 2; l.Foreign {
			return true, nil
		}
		at = w.at()
		ns, name := w.identityProto(size)
		l.left -= uint64(w.at() - at)
		l.within(at)
		l.Namespace, l.Name = l.itemName(ns), l.itemName(name)
	}
	return w.bad == nil, w.bad
}

// identityProto reads an object of size bytes until its namespace and name are known. A server writes fields
// in numerical order: metadata 1, which has name 1 and namespace 3.
func (w *window) identityProto(size uint64) (ns, name span) {
	if size == 0 {
		return ns, name
	}
	at := w.at()
	num, n := w.tag()
	if w.bad != nil || num != 1 {
		return ns, name
	}
	if uint64(w.at()-at)+n > size {
		w.fail(fmt.Errorf("%w: metadata is longer than its object", ErrProtobuf))
	}
	for at, size = w.at(), n; w.bad == nil && uint64(w.at()-at) < size; {
		tag := w.varint()
		if tag>>3 > 3 {
			return ns, name
		}
		n := w.varint()
		if w.bad == nil && (tag&7 != uint64(protowire.BytesType) || n > size || uint64(w.at()-at)+n > size) {
			w.fail(fmt.Errorf("%w: a name is longer than its metadata", ErrProtobuf))
		}
		from := w.at()
		w.message(n)
		switch tag >> 3 {
		case 1:
			name = w.since(from)
		case 3:
			return w.since(from), name
		}
	}
	return ns, name
}

// endProto reads the rest of the envelope after the list.
func (l *ListReader) endProto() {
	w := &l.w
	for w.bad == nil {
		w.keep()
		if !w.ahead(1) {
			switch err := w.more(); {
			case err == io.EOF:
				l.w = window{}
				return
			case err != nil:
				w.fail(err)
			}
		}
		num, size := w.tag()
		w.message(size)
		switch {
		case num == 2:
			w.fail(errDuplicateField)
		case num == 3 && size > 0:
			w.fail(fmt.Errorf("%w: a list has a content encoding", ErrProtobuf))
		}
	}
}
