package wire

import (
	"fmt"
	"io"
)

// Type is the type of a watch event.
type Type uint8

// The types of watch events.
const (
	Unknown Type = iota
	Added
	Modified
	Deleted
	Bookmark
	Error
)

func parseType(b []byte) Type {
	switch string(b) {
	case "ADDED":
		return Added
	case "MODIFIED":
		return Modified
	case "DELETED":
		return Deleted
	case "BOOKMARK":
		return Bookmark
	case "ERROR":
		return Error
	}
	return Unknown
}

// initialEnd is the annotation of the bookmark that ends the initial events.
const initialEnd = "k8s.io/initial-events-end"

// Event is one event of a member's watch. Its byte slices belong to the reader and are valid only until the
// reader's next read.
type Event struct {
	Type            Type
	Raw             []byte // without framing
	Kind            []byte // of the object; so is APIVersion
	APIVersion      []byte
	Namespace, Name []byte
	ResourceVersion uint64
	InitialEnd      bool    // of a bookmark
	Status          *Status // of an error

	// Columns is set if the event is a Table with column definitions.
	Columns *Columns
	object  []byte
	columns span
	row     rowSpans
	rows    int
}

// Events reads the watch stream of a member.
type Events struct {
	form Form
	w    window
}

// NewEvents returns a reader of r. If idle is not nil, it is called before each read of r, which may block.
// The events that Next returned since the last call of idle are valid until then. An idle reader holds 1 KiB;
// it borrows more from the pool when data arrives.
func NewEvents(r io.Reader, f Form, from *Buffers, idle func() error) *Events {
	small := make([]byte, eventWindow)
	return &Events{form: f, w: window{r: r, buf: small, small: small, idle: idle, most: batchWindow, buffers: from}}
}

// Next reads one event. The error is io.EOF if the stream ends between two events, and io.ErrUnexpectedEOF if
// it ends within one.
func (e *Events) Next(ev *Event) error {
	*ev = Event{row: rowSpans{each: ev.row.each[:0]}}
	w := &e.w
	w.keep()
	if e.form.Proto {
		return e.nextProto(ev)
	}
	w.to(nil) // the rest of the previous line
	if _, err := w.peek(); err != nil {
		return err
	}
	w.keep()
	isObject, err := w.enter('{')
	if err != nil {
		return err
	}
	if !isObject {
		return fmt.Errorf("%w: an event that is no object", errJSON)
	}
	o := eventSpans{table: e.form.Shape == Table}
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch string(key) {
		case "type":
			s, err := w.textOr()
			if err != nil {
				return err
			}
			ev.Type = parseType(plain(w.get(s)))
		case "object":
			err = o.scan(w, ev.Type)
		default:
			err = w.skip()
		}
		if err != nil {
			return err
		}
	}
	ev.Raw = w.get(w.since(0))
	return o.fill(w, ev)
}

// eventSpans holds the positions of the parts of an event's object.
type eventSpans struct {
	table                                           bool
	object, kind, version, ns, name, rv, annotation span
}

// scan reads the object of an event only as far as necessary.
func (o *eventSpans) scan(w *window, t Type) error {
	if _, err := w.peek(); err != nil {
		return short(err)
	}
	at, depth := w.at(), w.depth
	isObject, err := w.enter('{')
	if err != nil {
		return err
	}
	if !isObject {
		return fmt.Errorf("%w: an event without an object", errJSON)
	}
	whole := o.table || t != Added && t != Modified && t != Deleted
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch string(key) {
		case "kind":
			o.kind, err = w.textOr()
		case "apiVersion":
			o.version, err = w.textOr()
		case "metadata":
			err = o.meta(w, whole)
			if err == nil && !whole {
				err = w.unwind(depth)
				o.object = w.since(at)
				return err
			}
		default:
			err = w.skip()
		}
		if err != nil {
			return err
		}
	}
	o.object = w.since(at)
	return nil
}

func (o *eventSpans) meta(w *window, whole bool) error {
	isObject, err := w.enter('{')
	if err != nil || !isObject {
		return err
	}
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil || !ok {
			return err
		}
		switch string(key) {
		case "name":
			o.name, err = w.textOr()
		case "namespace":
			o.ns, err = w.textOr()
		case "resourceVersion":
			o.rv, err = w.textOr()
		case "annotations":
			if _, err := w.peek(); err != nil {
				return short(err)
			}
			at := w.at()
			err = w.skip()
			o.annotation = w.since(at)
		default:
			err = w.skip()
		}
		if err != nil || !whole && o.name.to > 0 && o.ns.to > 0 && o.rv.to > 0 {
			return err
		}
	}
}

// fill sets the fields of ev from the positions.
func (o *eventSpans) fill(w *window, ev *Event) error {
	if ev.Type == Unknown {
		return fmt.Errorf("%w: an event of no known type", errJSON)
	}
	ev.Kind, ev.APIVersion = plain(w.get(o.kind)), plain(w.get(o.version))
	if ev.Type == Error {
		ev.Status = statusJSON(w.get(o.object))
		return nil
	}
	if o.table && string(ev.Kind) == "Table" {
		return ev.scanTable(w.get(o.object))
	}
	ev.Namespace, ev.Name = plain(w.get(o.ns)), plain(w.get(o.name))
	if ev.Type == Bookmark {
		ev.InitialEnd = hasInitialEnd(w.get(o.annotation))
	}
	var err error
	ev.ResourceVersion, err = number(w.get(o.rv))
	return err
}

// hasInitialEnd reports whether raw annotations contain the initial-events-end annotation.
func hasInitialEnd(raw []byte) bool {
	w := view(raw)
	if isObject, err := w.enter('{'); err != nil || !isObject {
		return false
	}
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil || !ok {
			return false
		}
		is := string(key) == initialEnd
		s, err := w.textOr()
		if err != nil {
			return false
		}
		if is {
			return string(w.get(s)) == "true"
		}
	}
}
