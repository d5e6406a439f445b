package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Columns are a Table's columnDefinitions.
type Columns struct {
	raw   []byte
	names []string
}

// clusterColumn is shown by `kubectl get -o wide`, as its priority is not 0.
const clusterColumn = `{"name":"Cluster","type":"string","format":"","description":"the cluster that the object lives in","priority":1}`

// parseColumns reads an array of column definitions; null is none.
func parseColumns(raw []byte) (*Columns, error) {
	raw = bytes.TrimSpace(raw)
	if string(raw) == "null" {
		return nil, nil
	}
	w := view(raw)
	if err := w.expect('['); err != nil {
		return nil, err
	}
	if err := w.push('['); err != nil {
		return nil, err
	}
	c := &Columns{raw: bytes.Clone(raw)}
	for first := true; ; {
		ok, err := w.item(&first, ']')
		if err != nil {
			return nil, err
		}
		if !ok {
			return c, nil
		}
		isObject, err := w.enter('{')
		if err != nil {
			return nil, err
		}
		if !isObject {
			return nil, fmt.Errorf("%w: a column that is no object", errJSON)
		}
		name := ""
		for first := true; ; {
			key, ok, err := w.key(&first)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if string(key) != "name" {
				if err := w.skip(); err != nil {
					return nil, err
				}
				continue
			}
			s, err := w.textOr()
			if err != nil {
				return nil, err
			}
			name = string(plain(w.get(s)))
		}
		c.names = append(c.names, name)
	}
}

// Len is how many columns there are, without the cluster's.
func (c *Columns) Len() int { return len(c.names) }

// AppendWithCluster appends the columns and, behind them, one for the cluster.
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

// A Row says how the rows of one member become rows of the merged Table.
type Row struct {
	from    []int  // for each column its cell in the member's row; -1: none
	same    bool   // as they come
	cluster []byte // the last cell
	strip   bool   // without the object
}

// NewRow fits rows with the columns have into a table with the columns want, by
// the columns' names. With strip a row loses the object that was asked for only
// to know its name.
func NewRow(have, want *Columns, cluster string, strip bool) *Row {
	quoted, err := json.Marshal(cluster)
	if err != nil {
		quoted = []byte(`""`) // a string has no such error
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

// rowSpans is where the parts of a row are.
type rowSpans struct {
	cells     span // the array, with its brackets
	each      []span
	object    span // the value of "object"
	hasCells  bool
	hasObject bool
}

// scanRow reads a row that was entered until cells and name are known.
func (l *List) scanRow() error {
	w := &l.w
	strip := l.Row != nil && l.Row.strip
	l.row = rowSpans{each: l.row.each[:0]}
	var ns, name span
	for first := true; ; {
		key, ok, err := w.key(&first)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch string(key) {
		case "cells":
			err = l.scanCells()
		case "object":
			if _, err := w.peek(); err != nil {
				return short(err)
			}
			at, depth := w.at(), w.depth
			isObject, err := w.enter('{')
			if err != nil {
				return err
			}
			if isObject {
				if ns, name, err = w.identity(depth); err != nil {
					return err
				}
				if l.row.hasCells && !strip {
					l.Namespace, l.Name = l.named(ns), l.named(name)
					return nil // the rest goes by when it is taken
				}
				if err := w.unwind(depth); err != nil {
					return err
				}
			}
			l.row.object, l.row.hasObject = w.since(at), true
		default:
			err = w.skip()
		}
		if err != nil {
			return err
		}
	}
	l.Namespace, l.Name = l.named(ns), l.named(name)
	if !l.row.hasCells {
		return fmt.Errorf("%w: a row without cells", errJSON)
	}
	return nil
}

func (l *List) scanCells() (err error) {
	l.row.cells, l.row.each, err = l.w.cells(l.row.each[:0])
	l.row.hasCells = err == nil
	return err
}

// cells reads the array of a row's cells, which must be held.
func (w *window) cells(each []span) (all span, _ []span, err error) {
	if _, err := w.peek(); err != nil {
		return all, each, short(err)
	}
	from := w.at()
	isArray, err := w.enter('[')
	if err != nil {
		return all, each, err
	}
	for first := true; isArray; {
		ok, err := w.item(&first, ']')
		if err != nil {
			return all, each, err
		}
		if !ok {
			break
		}
		if _, err := w.peek(); err != nil {
			return all, each, short(err)
		}
		at := w.at()
		if err := w.skip(); err != nil {
			return all, each, err
		}
		each = append(each, w.since(at))
	}
	return w.since(from), each, nil
}

// appendCells appends the array of a row's cells as the merged Table has them.
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

// takeRow writes the row that Next found, as it fits.
func (l *List) takeRow(out io.Writer) error {
	w := &l.w
	if l.Row == nil {
		w.to(out)
		if err := w.unwind(l.base); err != nil {
			return err
		}
		return w.release()
	}
	b := slices.Concat(w.get(span{0, l.row.cells.from}))
	b = l.Row.appendCells(b, l.row.each, w.get)
	if !l.Row.strip {
		if _, err := out.Write(b); err != nil {
			return &writeError{err}
		}
		w.mark += l.row.cells.to // written already
		w.to(out)
		if err := w.unwind(l.base); err != nil {
			return err
		}
		return w.release()
	}
	all := w.since(0) // of a row that is to be stripped all is held
	switch o := l.row; {
	case !o.hasObject:
		b = append(b, w.get(span{o.cells.to, all.to})...)
	case o.object.from < o.cells.to:
		return fmt.Errorf("%w: a row whose object comes before its cells", errJSON)
	default:
		b = append(b, w.get(span{o.cells.to, o.object.from})...)
		b = append(b, "null"...)
		b = append(b, w.get(span{o.object.to, all.to})...)
	}
	w.to(nil)
	if _, err := out.Write(b); err != nil {
		return &writeError{err}
	}
	return w.release()
}
