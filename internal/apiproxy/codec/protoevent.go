package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// nextProto reads a frame: a length of four bytes and a WatchEvent (type 1, object 2). The object has a raw
// field 1, which holds the envelope.
func (e *EventReader) nextProto(ev *Event) error {
	w := &e.w
	for !w.ahead(4) {
		if err := w.more(); err != nil {
			if errors.Is(err, io.EOF) && w.end > w.pos {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	n := binary.BigEndian.Uint32(w.bytes(4))
	w.pos += 4
	w.keep()
	raw := w.message(uint64(n))
	if w.bad != nil {
		return w.bad
	}
	ev.Raw = raw
	var object []byte
	m := NewMessage(raw)
	for m.Next() {
		switch m.Num {
		case 1:
			ev.Type = parseType(m.Value)
		case 2:
			o := NewMessage(m.Value)
			for o.Next() {
				if o.Num == 1 {
					object = o.Value
				}
			}
			m.Err = o.Err
		}
	}
	if m.Err != nil {
		return m.Err
	}
	if ev.Type == UnknownEvent {
		return fmt.Errorf("%w: an event has an unknown type", ErrProtobuf)
	}
	body, err := ev.envelope(object)
	if err != nil {
		return err
	}
	if ev.Type == EventError {
		ev.Status = parseStatusProto(body)
		return nil
	}
	return ev.metaProto(body)
}

func (ev *Event) envelope(object []byte) (body []byte, err error) {
	if len(object) < len(magic) || string(object[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: an object has no envelope", ErrProtobuf)
	}
	m := NewMessage(object[len(magic):])
	for m.Next() {
		switch m.Num {
		case 1:
			ev.Kind, ev.APIVersion = typeMeta(m.Value)
		case 2:
			body = m.Value
		}
	}
	return body, m.Err
}

// metaProto reads the ObjectMeta of an object: name 1, namespace 3, resourceVersion 6, annotations 12 (key 1,
// value 2).
func (ev *Event) metaProto(object []byte) error {
	var meta []byte
	o := NewMessage(object)
	for meta == nil && o.Next() {
		if o.Num == 1 {
			meta = o.Value
		}
	}
	if o.Err != nil {
		return o.Err
	}
	m := NewMessage(meta)
	for more := true; more && m.Next(); more = m.Num <= 6 || ev.Type == EventBookmark {
		switch m.Num {
		case 1:
			ev.Name = m.Value
		case 3:
			ev.Namespace = m.Value
		case 6:
			ev.ResourceVersion, m.Err = number(m.Value)
		case 12:
			var key, value []byte
			entry := NewMessage(m.Value)
			for entry.Next() {
				switch entry.Num {
				case 1:
					key = entry.Value
				case 2:
					value = entry.Value
				}
			}
			m.Err = entry.Err
			if string(key) == initialEnd && string(value) == "true" {
				ev.InitialEnd = ev.Type == EventBookmark
			}
		}
	}
	if m.Err == nil && ev.ResourceVersion == 0 {
		return fmt.Errorf("%w: an event has no resourceVersion", ErrProtobuf)
	}
	return m.Err
}
