package tfvars

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	hcljson "github.com/hashicorp/hcl/v2/json"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// setVariable returns the file with value set at key: an attribute, and keys of the objects in it. Missing objects are created.
// value must be as [canonicalValue] returns it.
func setVariable(text []byte, key []string, value any) ([]byte, error) {
	return editFile(
		text,
		key,
		func(e *editor, body *hclsyntax.Body) { e.set(body, key, value) },
		func(values map[string]any) { setValue(values, key, value) },
	)
}

// deleteVariable returns the file without a key. The key must exist.
func deleteVariable(text []byte, key []string) ([]byte, error) {
	return editFile(
		text,
		key,
		func(e *editor, body *hclsyntax.Body) { e.delete(body, key) },
		func(values map[string]any) { deleteValue(values, key) },
	)
}

// editFile changes a text and reads it again: the result must have the desired values and no other change. A file in the format
// of `tofu fmt` keeps that format.
func editFile(text []byte, key []string, change func(*editor, *hclsyntax.Body), mean func(map[string]any)) ([]byte, error) {
	body, want, err := parse(text)
	if err != nil {
		return nil, err
	}
	if len(key) == 0 || !hclsyntax.ValidIdentifier(key[0]) {
		return nil, fmt.Errorf("%w: %.60q is not a variable name", errLayout, strings.Join(key, "."))
	}
	e := &editor{text: text, eol: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		e.eol = "\r\n"
	}
	if change(e, body); e.failed != nil {
		return nil, e.failed
	}
	out := e.result()
	if bytes.Equal(hclwrite.Format(text), text) {
		out = hclwrite.Format(out)
	}
	mean(want)
	if got, err := readVariables(out); err != nil || !reflect.DeepEqual(got, want) {
		return nil, fmt.Errorf(
			"%w: %s: the layout of the file makes it impossible to change only this value",
			errLayout,
			strings.Join(key, "."),
		)
	}
	return out, nil
}

// editor collects replacements of parts of a text.
type editor struct {
	text   []byte
	eol    string
	edits  []splice
	failed error
}

// splice replaces the bytes from offset from up to, but not including, offset to.
type splice struct {
	from, to int
	text     string
}

func (e *editor) fail(at hcl.Range, why string) {
	e.failed = fmt.Errorf("%w: line %d: %s", errLayout, at.Start.Line, why)
}

func (e *editor) splice(from, to int, text string) { e.edits = append(e.edits, splice{from, to, text}) }

func (e *editor) result() []byte {
	slices.SortStableFunc(e.edits, func(a, b splice) int { return a.from - b.from })
	var b bytes.Buffer
	at := 0
	for _, s := range e.edits {
		b.Write(e.text[at:s.from])
		b.WriteString(s.text)
		at = s.to
	}
	b.Write(e.text[at:])
	return b.Bytes()
}

func (e *editor) set(body *hclsyntax.Body, key []string, value any) {
	a := body.Attributes[key[0]]
	if a == nil {
		start := ""
		if n := len(e.text); n > 0 && e.text[n-1] != '\n' {
			start = e.eol
		}
		e.splice(len(e.text), len(e.text), start+key[0]+" = "+e.render(nestValue(key[1:], value), "")+e.eol)
		return
	}
	expr := a.Expr
	for i, k := range key[1:] {
		o, ok := expr.(*hclsyntax.ObjectConsExpr)
		if !ok {
			e.fail(expr.Range(), strings.Join(key[:i+1], ".")+" is not an object")
			return
		}
		at := findItem(o, k)
		if at < 0 {
			r := e.objectRow(o)
			e.rewrite(r, append(keepAll(len(r.items)), slot{-1, renderKey(k) + " = " + e.render(nestValue(key[i+2:], value), r.indent)}))
			return
		}
		expr = o.Items[at].ValueExpr
	}
	old, was := expr.(*hclsyntax.TupleConsExpr)
	if list, ok := value.([]any); ok && was && len(list) < maxItems && len(old.Exprs) < maxItems {
		e.list(old, list)
		return
	}
	r := expr.Range()
	e.splice(r.Start.Byte, r.End.Byte, e.render(value, e.indentAt(r.Start.Byte)))
}

// list changes the items of a list that differ.
func (e *editor) list(old *hclsyntax.TupleConsExpr, want []any) {
	v, err := value(e.text, old)
	if err != nil {
		e.failed = err
		return
	}
	r, was := e.listRow(old), v.([]any)
	var next []slot
	for _, p := range yamledit.Align(was, want) {
		switch {
		case p.Want < 0:
		case p.Was < 0:
			next = append(next, slot{-1, e.render(want[p.Want], r.indent)})
		case reflect.DeepEqual(was[p.Was], want[p.Want]):
			next = append(next, slot{p.Was, ""})
		default:
			next = append(next, slot{p.Was, e.render(want[p.Want], r.indent)})
		}
	}
	e.rewrite(r, next)
}

func (e *editor) delete(body *hclsyntax.Body, key []string) {
	a := body.Attributes[key[0]]
	if a == nil {
		e.failed = fmt.Errorf("%w: there is no %s", errLayout, key[0])
		return
	}
	if len(key) == 1 {
		from := e.lineStart(a.SrcRange.Start.Byte)
		if len(bytes.TrimSpace(e.text[from:a.SrcRange.Start.Byte])) > 0 {
			e.fail(a.SrcRange, "other text precedes it on its line")
		}
		e.splice(from, e.lineEnd(a.SrcRange.End.Byte), "")
		return
	}
	expr := a.Expr
	for i, k := range key[1:] {
		o, ok := expr.(*hclsyntax.ObjectConsExpr)
		at := -1
		if ok {
			at = findItem(o, k)
		}
		if at < 0 {
			e.fail(expr.Range(), "there is no "+strings.Join(key[:i+2], "."))
			return
		}
		if i == len(key)-2 {
			r := e.objectRow(o)
			e.rewrite(r, slices.Delete(keepAll(len(r.items)), at, at+1))
			return
		}
		expr = o.Items[at].ValueExpr
	}
}

func findItem(o *hclsyntax.ObjectConsExpr, name string) int {
	return slices.IndexFunc(o.Items, func(i hclsyntax.ObjectConsItem) bool {
		k, err := keyOf(i)
		return err == nil && k == name
	})
}

// render returns a value as HCL. indent is the indentation of its line.
func (e *editor) render(value any, indent string) string {
	text, err := json.Marshal(value)
	if err != nil {
		e.failed = fmt.Errorf("%w: %w", errLayout, err)
		return ""
	}
	x, diags := hcljson.ParseExpression(text, "")
	if diags.HasErrors() {
		e.failed = errLayout
		return ""
	}
	v, diags := x.Value(nil) // without a context, strings are literal and not templates
	if diags.HasErrors() {
		e.failed = errLayout
		return ""
	}
	return strings.ReplaceAll(string(hclwrite.TokensForValue(v).Bytes()), "\n", e.eol+indent)
}

// renderKey returns an object key as HCL.
func renderKey(k string) string {
	if hclsyntax.ValidIdentifier(k) && k != "for" {
		return k
	}
	return (&editor{eol: "\n"}).render(k, "")
}

// nestValue returns value nested in objects with one key each.
func nestValue(keys []string, value any) any {
	for _, k := range slices.Backward(keys) {
		value = map[string]any{k: value}
	}
	return value
}

// setValue and deleteValue apply to the values the same change as to the text.
func setValue(values map[string]any, key []string, value any) {
	for _, k := range key[:len(key)-1] {
		inner, ok := values[k].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[k] = inner
		}
		values = inner
	}
	values[key[len(key)-1]] = value
}

func deleteValue(values map[string]any, key []string) {
	for _, k := range key[:len(key)-1] {
		values, _ = values[k].(map[string]any)
	}
	delete(values, key[len(key)-1])
}

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
		note := len(tail) == 0 || tail[0] == '#' || bytes.HasPrefix(tail, []byte("//")) ||
			bytes.HasPrefix(tail, []byte("/*")) && bytes.Index(tail, []byte("*/")) == len(tail)-2
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
	if !bytes.HasPrefix(bytes.TrimSpace(e.text[end:e.lineEnd(end)]), []byte(",")) &&
		!(len(e.edits) > 0 && e.edits[len(e.edits)-1].from >= end) {
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
