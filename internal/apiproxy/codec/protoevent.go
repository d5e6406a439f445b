package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
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
	var err error
	err = fields(raw, func(num protowire.Number, v []byte, _ uint64) bool {
		switch num {
		case 1:
			ev.Type = parseType(v)
		case 2:
			err = fields(v, func(num protowire.Number, v []byte, _ uint64) bool {
				if num == 1 {
					object = v
				}
				return true
			}, &err)
		}
		return err == nil
	}, &err)
	if err != nil {
		return err
	}
	if ev.Type == UnknownEvent {
		return fmt.Errorf("%w: an event has an unknown type", errProto)
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
		return nil, fmt.Errorf("%w: an object has no envelope", errProto)
	}
	err = fields(object[len(magic):], func(num protowire.Number, v []byte, _ uint64) bool {
		switch num {
		case 1:
			ev.Kind, ev.APIVersion = typeMeta(v)
		case 2:
			body = v
		}
		return true
	}, &err)
	return body, err
}

// metaProto reads the ObjectMeta of an object: name 1, namespace 3, resourceVersion 6, annotations 12 (key 1,
// value 2).
func (ev *Event) metaProto(object []byte) error {
	var err error
	var meta []byte
	if err := fields(object, func(num protowire.Number, v []byte, _ uint64) bool {
		meta = v
		return num != 1
	}, &err); err != nil {
		return err
	}
	err = fields(meta, func(num protowire.Number, v []byte, _ uint64) bool {
		switch num {
		case 1:
			ev.Name = v
		case 3:
			ev.Namespace = v
		case 6:
			ev.ResourceVersion, err = number(v)
		case 12:
			var key, value []byte
			err = fields(v, func(num protowire.Number, v []byte, _ uint64) bool {
				if num == 1 {
					key = v
				} else if num == 2 {
					value = v
				}
				return true
			}, &err)
			if string(key) == initialEnd && string(value) == "true" {
				ev.InitialEnd = ev.Type == EventBookmark
			}
		}
		return err == nil && (num <= 6 || ev.Type == EventBookmark)
	}, &err)
	if err == nil && ev.ResourceVersion == 0 {
		err = fmt.Errorf("%w: an event has no resourceVersion", errProto)
	}
	return err
}
