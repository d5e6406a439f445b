package codec

import (
	"fmt"
	"io"
)

// EventType is the type of a watch event.
type EventType uint8

// The types of watch events.
const (
	UnknownEvent EventType = iota
	EventAdded
	EventModified
	EventDeleted
	EventBookmark
	EventError
)

func parseType(b []byte) EventType {
	switch string(b) {
	case "ADDED":
		return EventAdded
	case "MODIFIED":
		return EventModified
	case "DELETED":
		return EventDeleted
	case "BOOKMARK":
		return EventBookmark
	case "ERROR":
		return EventError
	}
	return UnknownEvent
}

// initialEnd is the annotation of the bookmark that ends the initial events.
const initialEnd = "k8s.io/initial-events-end"

// Event is one event of a member's watch. Its byte slices belong to the reader and are valid only until the
// reader's next read.
type Event struct {
	Type            EventType
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
	row     rowFields
	rows    int
}

// EventReader reads the watch stream of a member.
type EventReader struct {
	format Format
	w      window
}

// NewEventReader returns a reader of r. If idle is not nil, it is called before each read of r, which may block.
// The events that Next returned since the last call of idle are valid until then. An idle reader holds 1 KiB;
// it borrows more from the pool when data arrives.
func NewEventReader(r io.Reader, f Format, from *BufferPool, idle func() error) *EventReader {
	small := make([]byte, eventWindow)
	return &EventReader{format: f, w: window{r: r, buf: small, small: small, idle: idle, most: batchWindow, buffers: from}}
}

// Next reads one event. The error is io.EOF if the stream ends between two events, and io.ErrUnexpectedEOF if
// it ends within one.
func (e *EventReader) Next(ev *Event) error {
	*ev = Event{row: rowFields{each: ev.row.each[:0]}}
	w := &e.w
	w.keep()
	if e.format.Proto {
		return e.nextProto(ev)
	}
	w.to(nil) // the rest of the previous line
	if w.bad != nil {
		return w.bad
	}
	if err := w.find(); err != nil {
		return err
	}
	w.keep()
	c := w.container('{')
	if !c.open {
		w.fail(fmt.Errorf("%w: an event is not an object", errJSON))
	}
	o := eventFields{table: e.format.Shape == ShapeTable}
	for c.next() {
		switch string(c.key) {
		case "type":
			ev.Type = parseType(unescaped(w.get(w.textOr())))
		case "object":
			o.scan(w, ev.Type)
		default:
			w.skip()
		}
	}
	if w.bad != nil {
		return w.bad
	}
	ev.Raw = w.get(w.since(0))
	return o.fill(w, ev)
}

// eventFields holds the positions of the parts of an event's object.
type eventFields struct {
	table                                           bool
	object, kind, version, ns, name, rv, annotation span
}

// scan reads the object of an event only as far as necessary.
func (o *eventFields) scan(w *window, t EventType) {
	w.peek()
	at, depth := w.at(), w.depth
	c := w.container('{')
	if !c.open {
		w.fail(fmt.Errorf("%w: an event has no object", errJSON))
	}
	whole := o.table || t != EventAdded && t != EventModified && t != EventDeleted
	for known := false; !known && c.next(); {
		switch string(c.key) {
		case "kind":
			o.kind = w.textOr()
		case "apiVersion":
			o.version = w.textOr()
		case "metadata":
			o.meta(w, whole)
			known = !whole
		default:
			w.skip()
		}
	}
	w.unwind(depth)
	o.object = w.since(at)
}

func (o *eventFields) meta(w *window, whole bool) {
	for c := w.container('{'); c.next(); {
		switch string(c.key) {
		case "name":
			o.name = w.textOr()
		case "namespace":
			o.ns = w.textOr()
		case "resourceVersion":
			o.rv = w.textOr()
		case "annotations":
			o.annotation = w.value()
		default:
			w.skip()
		}
		if !whole && o.name.to > 0 && o.ns.to > 0 && o.rv.to > 0 {
			return
		}
	}
}

// fill sets the fields of ev from the positions.
func (o *eventFields) fill(w *window, ev *Event) error {
	if ev.Type == UnknownEvent {
		return fmt.Errorf("%w: an event has an unknown type", errJSON)
	}
	ev.Kind, ev.APIVersion = unescaped(w.get(o.kind)), unescaped(w.get(o.version))
	if ev.Type == EventError {
		ev.Status = parseStatusJSON(w.get(o.object))
		return nil
	}
	if o.table && string(ev.Kind) == "Table" {
		return ev.scanTable(w.get(o.object))
	}
	ev.Namespace, ev.Name = unescaped(w.get(o.ns)), unescaped(w.get(o.name))
	if ev.Type == EventBookmark {
		ev.InitialEnd = hasInitialEnd(w.get(o.annotation))
	}
	var err error
	ev.ResourceVersion, err = number(w.get(o.rv))
	return err
}

// hasInitialEnd reports whether raw annotations contain the initial-events-end annotation.
func hasInitialEnd(raw []byte) bool {
	w := view(raw)
	for c := w.container('{'); c.next(); {
		is := string(c.key) == initialEnd
		if s := w.textOr(); is {
			return string(w.get(s)) == "true"
		}
	}
	return false
}
