package tfvars

import (
	"bytes"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// row is a list or an object in the text.
type row struct {
	whole  hcl.Range // with its brackets
	items  []hcl.Range
	list   bool
	indent string // indentation of items that have their own lines
}

// slot is an item of the new row. was is the index of the old item, or -1 for a new one. A non-empty text replaces the old item.
type slot struct {
	was  int
	text string
}

// keepAll returns slots for all n old items, unchanged.
func keepAll(n int) []slot {
	all := make([]slot, n)
	for i := range all {
		all[i].was = i
	}
	return all
}

func (e *editor) listRow(t *hclsyntax.TupleConsExpr) row {
	r := row{whole: t.SrcRange, list: true}
	for _, x := range t.Exprs {
		r.items = append(r.items, x.Range())
	}
	return e.measured(r)
}

func (e *editor) objectRow(o *hclsyntax.ObjectConsExpr) row {
	r := row{whole: o.SrcRange}
	for _, x := range o.Items {
		r.items = append(r.items, hcl.RangeBetween(x.KeyExpr.Range(), x.ValueExpr.Range()))
	}
	return e.measured(r)
}

func (e *editor) measured(r row) row {
	r.indent = e.indentAt(r.whole.Start.Byte) + "  "
	if len(r.items) > 0 && r.items[0].Start.Line > r.whole.Start.Line {
		r.indent = e.indentAt(r.items[0].Start.Byte)
	}
	return r
}

// rewrite replaces the items of a row. If every item has its own lines, only those lines change. Otherwise it writes the whole row again,
// which fails if the row has comments.
func (e *editor) rewrite(r row, next []slot) {
	switch {
	case e.isMultiline(r):
		e.lines(r, next)
	case e.commented(r.whole):
		e.fail(r.whole, "there are comments between values on the same line; put each value on a separate line")
	default:
		e.rewriteRow(r, next)
	}
}

// isMultiline reports whether every item of a row has its own lines.
func (e *editor) isMultiline(r row) bool {
	if r.whole.Start.Line == r.whole.End.Line || !e.blank(e.lineStart(r.whole.End.Byte), r.whole.End.Byte-1) {
		return false
	}
	for _, i := range r.items {
		tail := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(e.text[i.End.Byte:e.lineEnd(i.End.Byte)]), []byte(",")))
		note := len(tail) == 0 || tail[0] == '#' || bytes.HasPrefix(tail, []byte("//")) || bytes.HasPrefix(tail, []byte("/*")) && bytes.Index(tail, []byte("*/")) == len(tail)-2
		if !note || !e.blank(e.lineStart(i.Start.Byte), i.Start.Byte) {
			return false
		}
	}
	return true
}

func (e *editor) lines(r row, next []slot) {
	at, last := e.lineEnd(r.whole.Start.Byte), -1
	gone := func(to int) { // delete items that are not in next
		for i := last + 1; i < to; i++ {
			at = e.lineEnd(r.items[i].End.Byte)
			e.splice(e.lineStart(r.items[i].Start.Byte), at, "")
		}
	}
	for _, s := range next {
		if s.was < 0 {
			e.comma(r, last)
			text := r.indent + s.text
			if r.list {
				text += ","
			}
			e.splice(at, at, text+e.eol)
			continue
		}
		gone(s.was)
		if i := r.items[s.was]; s.text != "" {
			e.splice(i.Start.Byte, i.End.Byte, s.text)
		}
		at, last = e.lineEnd(r.items[s.was].End.Byte), s.was
	}
	gone(len(r.items))
}

// comma adds a missing comma after a list item, before a new item follows.
func (e *editor) comma(r row, item int) {
	if !r.list || item < 0 {
		return
	}
	end := r.items[item].End.Byte
	if !bytes.HasPrefix(bytes.TrimSpace(e.text[end:e.lineEnd(end)]), []byte(",")) && !(len(e.edits) > 0 && e.edits[len(e.edits)-1].from >= end) {
		e.splice(end, end, ",")
	}
}

// rewriteRow writes the whole row: on one line if it was on one, and otherwise one item per line.
func (e *editor) rewriteRow(r row, next []slot) {
	texts := make([]string, 0, len(next))
	for _, s := range next {
		text := s.text
		if text == "" {
			text = string(e.text[r.items[s.was].Start.Byte:r.items[s.was].End.Byte])
		}
		texts = append(texts, text)
	}
	open, end, pad := "{", "}", " "
	if r.list {
		open, end, pad = "[", "]", ""
	}
	all := open + end
	switch {
	case len(texts) == 0:
	case r.whole.Start.Line == r.whole.End.Line && !strings.Contains(strings.Join(texts, ""), "\n"):
		all = open + pad + strings.Join(texts, ", ") + pad + end
	default:
		all = open + e.eol + r.indent + strings.Join(texts, ","+e.eol+r.indent) + "," + e.eol + e.indentAt(r.whole.Start.Byte) + end
	}
	e.splice(r.whole.Start.Byte, r.whole.End.Byte, all)
}

func (e *editor) commented(r hcl.Range) bool {
	tokens, _ := hclsyntax.LexConfig(e.text, "", hcl.InitialPos)
	for _, t := range tokens {
		if t.Type == hclsyntax.TokenComment && t.Range.Start.Byte >= r.Start.Byte && t.Range.End.Byte <= r.End.Byte {
			return true
		}
	}
	return false
}

// lineStart and lineEnd return the start of the line at a position, and the start of the next one.
func (e *editor) lineStart(at int) int { return bytes.LastIndexByte(e.text[:at], '\n') + 1 }

func (e *editor) lineEnd(at int) int {
	if n := bytes.IndexByte(e.text[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(e.text)
}

func (e *editor) blank(from, to int) bool { return len(bytes.TrimSpace(e.text[from:to])) == 0 }

// indentAt returns the indentation of the line at a position.
func (e *editor) indentAt(at int) string {
	line := e.text[e.lineStart(at):at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}
