package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Columns are the columnDefinitions of a Table.
type Columns struct {
	raw   []byte
	names []string
}

// clusterColumn is the added column. Its priority is not 0, so `kubectl get -o wide` shows it and plain
// `kubectl get` does not.
const clusterColumn = `{"name":"Cluster","type":"string","format":"","description":"the cluster that the object lives in","priority":1}`

// parseColumns parses an array of column definitions. It returns nil for null.
func parseColumns(raw []byte) (*Columns, error) {
	raw = bytes.TrimSpace(raw)
	if string(raw) == "null" {
		return nil, nil
	}
	w := view(raw)
	w.expect('[')
	w.push('[')
	c := &Columns{raw: bytes.Clone(raw)}
	for list := (container{w: &w, end: ']', open: true}); list.next(); {
		column := w.container('{')
		if !column.open {
			w.fail(fmt.Errorf("%w: a column is not an object", errJSON))
		}
		name := ""
		for column.next() {
			if string(column.key) == "name" {
				name = string(unescaped(w.get(w.textOr())))
			} else {
				w.skip()
			}
		}
		c.names = append(c.names, name)
	}
	return c, w.bad
}

// Len returns the number of columns, without the cluster column.
func (c *Columns) Len() int { return len(c.names) }

// AppendWithCluster appends the columns and the cluster column.
func (c *Columns) AppendWithCluster(dst []byte) []byte {
	if c == nil {
		return append(append(append(dst, '['), clusterColumn...), ']')
	}
	dst = append(dst, c.raw[:len(c.raw)-1]...)
	if len(c.names) > 0 {
		dst = append(dst, ',')
	}
	return append(append(dst, clusterColumn...), ']')
}

// Row converts the rows of one member to rows of the merged Table.
type Row struct {
	from    []int  // for each merged column the index of the member's cell; -1: none
	same    bool   // the columns are the same
	cluster []byte // the last cell, as JSON
	strip   bool   // remove the object
}

// NewRow returns the conversion of rows with columns have to a table with columns want. It matches columns by
// name. strip removes the object, which the adapter requested only to learn the name.
func NewRow(have, want *Columns, cluster string, strip bool) *Row {
	quoted, err := json.Marshal(cluster)
	if err != nil {
		quoted = []byte(`""`) // marshalling a string cannot fail
	}
	r := &Row{cluster: quoted, strip: strip, same: true}
	if have == nil || want == nil {
		return r
	}
	used := make([]bool, len(have.names))
	for i, name := range want.names {
		at := -1
		for j, other := range have.names {
			if other == name && !used[j] {
				at, used[j] = j, true
				break
			}
		}
		r.from = append(r.from, at)
		r.same = r.same && at == i
	}
	r.same = r.same && len(have.names) == len(want.names)
	return r
}

// rowFields holds the positions of the parts of a row.
type rowFields struct {
	cells     span // the array with its brackets
	each      []span
	object    span // the value of "object"
	hasCells  bool
	hasObject bool
}

// scanRow reads a row until its cells and name are known.
func (l *ListReader) scanRow(row container) {
	w := &l.w
	strip := l.Row != nil && l.Row.strip
	l.row = rowFields{each: l.row.each[:0]}
	var ns, name span
	for known := false; !known && row.next(); {
		switch string(row.key) {
		case "cells":
			l.row.readCells(w)
		case "object":
			w.peek()
			at, depth := w.at(), w.depth
			if object := w.container('{'); object.open {
				ns, name = object.identity()
				if l.row.hasCells && !strip {
					known = true // copyRow reads the rest
					continue
				}
				w.unwind(depth)
			}
			l.row.object, l.row.hasObject = w.since(at), true
		default:
			w.skip()
		}
	}
	l.Namespace, l.Name = l.itemName(ns), l.itemName(name)
	if !l.row.hasCells {
		w.fail(fmt.Errorf("%w: a row has no cells", errJSON))
	}
}

// readCells reads the array of cells of a row. The window must be in mode hold.
func (r *rowFields) readCells(w *window) {
	w.peek()
	from := w.at()
	r.each = r.each[:0]
	for c := w.container('['); c.next(); {
		r.each = append(r.each, w.value())
	}
	r.cells, r.hasCells = w.since(from), true
}

// appendCells appends the cells of a row in the layout of the merged Table.
func (r *Row) appendCells(dst []byte, each []span, get func(span) []byte) []byte {
	dst = append(dst, '[')
	cell := func(i int) {
		if i < 0 || i >= len(each) {
			dst = append(dst, "null,"...)
			return
		}
		dst = append(append(dst, get(each[i])...), ',')
	}
	if r.same {
		for i := range each {
			cell(i)
		}
	} else {
		for _, i := range r.from {
			cell(i)
		}
	}
	return append(append(dst, r.cluster...), ']')
}

// copyRow writes the converted row that Next found.
func (l *ListReader) copyRow(out io.Writer) error {
	w := &l.w
	if w.bad != nil {
		return w.bad
	}
	if l.Row == nil {
		w.to(out)
		w.unwind(l.base)
		w.release()
		return w.bad
	}
	b := slices.Concat(w.get(span{0, l.row.cells.from}))
	b = l.Row.appendCells(b, l.row.each, w.get)
	if !l.Row.strip {
		w.write(out, b)
		w.mark += l.row.cells.to // the cells are already written
		w.to(out)
		w.unwind(l.base)
		w.release()
		return w.bad
	}
	all := w.since(0) // a row to strip is completely in the buffer
	switch o := l.row; {
	case !o.hasObject:
		b = append(b, w.get(span{o.cells.to, all.to})...)
	case o.object.from < o.cells.to:
		return fmt.Errorf("%w: the object of a row comes before its cells", errJSON)
	default:
		b = append(b, w.get(span{o.cells.to, o.object.from})...)
		b = append(b, "null"...)
		b = append(b, w.get(span{o.object.to, all.to})...)
	}
	w.to(nil)
	w.write(out, b)
	w.release()
	return w.bad
}
