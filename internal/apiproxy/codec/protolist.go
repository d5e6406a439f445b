package codec

import (
	"errors"
	"fmt"
	"io"

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

var errProto = errors.New("not protobuf in the form of an API server")

// varint reads a varint. The window must be in mode hold.
func (w *window) varint() (uint64, error) {
	for n := 1; ; n++ {
		if err := w.fill(n); err != nil {
			return 0, err
		}
		if w.buf[w.pos+n-1] < 0x80 || n == 10 {
			v, size := protowire.ConsumeVarint(w.bytes(n))
			if size < 0 {
				return 0, errProto
			}
			w.pos += n
			return v, nil
		}
	}
}

// tag reads the number and the length of a field. All fields that are read here are length-delimited; any
// other is an error.
func (w *window) tag() (num uint64, size uint64, err error) {
	tag, err := w.varint()
	if err != nil {
		return 0, 0, err
	}
	if tag&7 != uint64(protowire.BytesType) {
		return 0, 0, fmt.Errorf("%w: field %d is not a string or message", errProto, tag>>3)
	}
	size, err = w.varint()
	return tag >> 3, size, err
}

func (l *ListReader) openProto() error {
	w := &l.w
	w.keep()
	if err := w.fill(len(magic)); err != nil {
		return err
	}
	if string(w.bytes(len(magic))) != magic {
		return fmt.Errorf("%w: no envelope", errProto)
	}
	w.pos += len(magic)
	for {
		num, size, err := w.tag()
		if err != nil {
			return err
		}
		if num == 2 {
			l.rest = size
			return l.metaProto()
		}
		b, err := w.message(size)
		if err != nil {
			return err
		}
		if num == 1 {
			kind, version := typeMeta(b)
			l.Kind, l.APIVersion = string(kind), string(version)
		}
	}
}

// message returns the next n bytes. They are valid until the next read.
func (w *window) message(n uint64) ([]byte, error) {
	if n > maxKept {
		return nil, errKept
	}
	if err := w.fill(int(n)); err != nil {
		return nil, err
	}
	b := w.bytes(int(n))
	w.pos += int(n)
	return b, nil
}

// within subtracts the bytes read since at from the rest of the list.
func (l *ListReader) within(at int) error {
	n := uint64(l.w.at() - at)
	if n > l.rest {
		return fmt.Errorf("%w: a field is longer than its list", errProto)
	}
	l.rest -= n
	return nil
}

// metaProto reads the list up to its first item.
func (l *ListReader) metaProto() error {
	w := &l.w
	for l.rest > 0 {
		w.keep()
		if err := w.fill(1); err != nil {
			return err
		}
		if w.buf[w.pos] == tagItem {
			return nil
		}
		at := w.at()
		num, size, err := w.tag()
		if err != nil {
			return err
		}
		b, err := w.message(size)
		if err != nil {
			return err
		}
		if err := l.within(at); err != nil {
			return err
		}
		if num != 1 {
			return fmt.Errorf("%w: field %d before the items of a list", errProto, num)
		}
		if l.Meta.ResourceVersion != 0 {
			return errDuplicateField
		}
		if err := l.Meta.parse(b); err != nil {
			return err
		}
	}
	return nil
}

// parse reads a ListMeta: resourceVersion 2, continue 3, remainingItemCount 4, shardInfo 5.
func (m *ListMeta) parse(b []byte) (err error) {
	return fields(b, func(num protowire.Number, v []byte, n uint64) bool {
		switch num {
		case 2:
			if len(v) > 0 {
				m.ResourceVersion, err = number(v)
			}
		case 3:
			m.Continue = string(v)
		case 4:
			m.Remaining = int64(n)
		case 5:
			m.Shard = append([]byte(nil), v...)
		}
		return err == nil
	}, &err)
}

// fields calls f for each field of a message with its bytes or its number, until f returns false. It returns
// *err, or its own error for malformed input.
func fields(b []byte, f func(num protowire.Number, v []byte, n uint64) bool, err *error) error {
	for len(b) > 0 {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errProto
		}
		b = b[size:]
		var v []byte
		var n uint64
		switch typ {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(num, typ, b)
		}
		if size < 0 {
			return errProto
		}
		b = b[size:]
		if !f(num, v, n) {
			break
		}
	}
	return *err
}

func typeMeta(b []byte) (kind, version []byte) {
	var err error
	_ = fields(b, func(num protowire.Number, v []byte, _ uint64) bool {
		switch num {
		case 1:
			version = v
		case 2:
			kind = v
		}
		return true
	}, &err) // callers that need the kind detect an envelope without one
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
		if err := w.release(); err != nil {
			return false, err
		}
		return false, l.endProto()
	}
	at := w.at()
	num, size, err := w.tag()
	if err != nil {
		return false, err
	}
	if err := l.within(at); err != nil {
		return false, err
	}
	if size > l.rest {
		return false, fmt.Errorf("%w: an item is longer than its list", errProto)
	}
	if num == 1 {
		return false, errDuplicateField
	}
	l.left = size
	l.Foreign = num != 2
	if l.Foreign {
		return true, nil
	}
	at = w.at()
	ns, name, err := w.identityProto(size)
	if err != nil {
		return false, err
	}
	l.left -= uint64(w.at() - at)
	l.Namespace, l.Name = l.itemName(ns), l.itemName(name)
	return true, l.within(at)
}

// identityProto reads an object of size bytes until its namespace and name are known. A server writes fields
// in numerical order: metadata 1, which has name 1 and namespace 3.
func (w *window) identityProto(size uint64) (ns, name span, err error) {
	if size == 0 {
		return ns, name, nil
	}
	at := w.at()
	num, n, err := w.tag()
	if err != nil || num != 1 {
		return ns, name, err
	}
	if uint64(w.at()-at)+n > size {
		return ns, name, fmt.Errorf("%w: metadata is longer than its object", errProto)
	}
	for at, size = w.at(), n; uint64(w.at()-at) < size; {
		tag, err := w.varint()
		if err != nil || tag>>3 > 3 {
			return ns, name, err
		}
		n, err := w.varint()
		if err != nil {
			return ns, name, err
		}
		if tag&7 != uint64(protowire.BytesType) || n > size || uint64(w.at()-at)+n > size {
			return ns, name, fmt.Errorf("%w: a name is longer than its metadata", errProto)
		}
		from := w.at()
		if _, err := w.message(n); err != nil {
			return ns, name, err
		}
		switch tag >> 3 {
		case 1:
			name = w.since(from)
		case 3:
			return w.since(from), name, nil
		}
	}
	return ns, name, nil
}

// endProto reads the rest of the envelope after the list.
func (l *ListReader) endProto() error {
	w := &l.w
	for {
		w.keep()
		if !w.ahead(1) {
			switch err := w.more(); {
			case err == io.EOF:
				l.w = window{}
				return nil
			case err != nil:
				return err
			}
		}
		num, size, err := w.tag()
		if err != nil {
			return err
		}
		if num == 2 {
			return errDuplicateField
		}
		if _, err := w.message(size); err != nil {
			return err
		}
		if num == 3 && size > 0 {
			return fmt.Errorf("%w: a list has a content encoding", errProto)
		}
	}
}
