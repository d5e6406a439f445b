package codec

import "fmt"

// scanTable reads an event whose object is a Table with one row. The row's object holds namespace and name.
func (ev *Event) scanTable(table []byte) error {
	w := view(table)
	o := eventFields{table: true}
	for c := w.container('{'); c.next(); {
		switch string(c.key) {
		case "metadata":
			o.meta(&w, true)
		case "columnDefinitions":
			ev.columns = w.value()
			columns, err := parseColumns(w.get(ev.columns))
			w.fail(err)
			ev.Columns = columns
		case "rows":
			ev.scanRows(&w, &o)
		default:
			w.skip()
		}
	}
	if w.bad != nil {
		return w.bad
	}
	ev.object = table
	ev.Namespace, ev.Name = unescaped(w.get(o.ns)), unescaped(w.get(o.name))
	if ev.Type == EventBookmark {
		ev.InitialEnd = hasInitialEnd(w.get(o.annotation))
	} else if ev.rows != 1 {
		return fmt.Errorf("%w: an event has a table with %d rows", errJSON, ev.rows)
	}
	var err error
	ev.ResourceVersion, err = number(w.get(o.rv))
	return err
}

func (ev *Event) scanRows(w *window, o *eventFields) {
	for rows := w.container('['); rows.next(); ev.rows++ {
		row := w.container('{')
		if !row.open {
			w.fail(fmt.Errorf("%w: a row is not an object", errJSON))
		}
		for row.next() {
			switch string(row.key) {
			case "cells":
				ev.row.readCells(w)
			case "object":
				w.peek()
				at := w.at()
				for object := w.container('{'); object.next(); {
					if string(object.key) == "metadata" {
						o.meta(w, true)
					} else {
						w.skip()
					}
				}
				ev.row.object, ev.row.hasObject = w.since(at), true
			default:
				w.skip()
			}
		}
	}
}

// AppendTable appends the event with its row converted by r. withColumns includes the columns want and the
// cluster column; otherwise the columns are null.
func (ev *Event) AppendTable(dst []byte, r *Row, want *Columns, withColumns bool) ([]byte, error) {
	if !ev.row.hasCells {
		return nil, fmt.Errorf("%w: a row has no cells", errJSON)
	}
	get := func(s span) []byte { return ev.object[s.from:s.to] }
	columns := func() {
		if withColumns {
			dst = want.AppendWithCluster(dst)
		} else {
			dst = append(dst, "null"...)
		}
	}
	dst = append(dst, `{"type":"`...)
	dst = append(dst, ev.Type.String()...)
	dst = append(dst, `","object":`...)
	at := 0
	copyTo := func(n int) {
		if n > at {
			dst = append(dst, ev.object[at:n]...)
			at = n
		}
	}
	switch {
	case ev.columns.to > ev.row.cells.from:
		return nil, fmt.Errorf("%w: the columns of a table come after its rows", errJSON)
	case ev.columns.to > 0:
		copyTo(ev.columns.from)
		columns()
		at = ev.columns.to
	case withColumns:
		return nil, fmt.Errorf("%w: a table has no column definitions", errJSON)
	}
	copyTo(ev.row.cells.from)
	dst = r.appendCells(dst, ev.row.each, get)
	at = ev.row.cells.to
	if r.strip && ev.row.hasObject {
		if ev.row.object.from < at {
			return nil, fmt.Errorf("%w: the object of a row comes before its cells", errJSON)
		}
		copyTo(ev.row.object.from)
		dst = append(dst, "null"...)
		at = ev.row.object.to
	}
	copyTo(len(ev.object))
	return append(dst, '}'), nil
}

// String returns the type as it is in an event.
func (t EventType) String() string {
	return [...]string{"", "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"}[t]
}

// IsTable reports whether the object is a Table with a row. It is not if the server failed to convert the
// object to a Table.
func (ev *Event) IsTable() bool { return ev.row.hasCells }
