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

// setVariable returns the file with value set at key: an attribute, and keys of the objects in it. Missing objects are created. value must be as
// [canonicalValue] returns it.
func setVariable(text []byte, key []string, value any) ([]byte, error) {
	return editFile(text, key, func(e *editor, body *hclsyntax.Body) { e.set(body, key, value) }, func(values map[string]any) { setValue(values, key, value) })
}

// deleteVariable returns the file without a key. The key must exist.
func deleteVariable(text []byte, key []string) ([]byte, error) {
	return editFile(text, key, func(e *editor, body *hclsyntax.Body) { e.delete(body, key) }, func(values map[string]any) { deleteValue(values, key) })
}

// editFile changes a text and reads it again: the result must have the desired values and no other change. A file in the format of `tofu fmt`
// keeps that format.
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
		return nil, fmt.Errorf("%w: %s: the layout of the file makes it impossible to change only this value", errLayout, strings.Join(key, "."))
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

// setValue and take apply to the values the same change as to the text.
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
