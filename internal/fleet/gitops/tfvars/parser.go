package tfvars

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The kinds of errors.
var (
	errUnreadable = errors.New("the file cannot be read")
	errLayout     = errors.New("the value cannot be written there")
)

// The limits: nesting depth of values, exponent of a number in bits, and items of an edited list.
const (
	maxDepth    = 32
	maxExponent = 4096
	maxItems    = 1000
)

// plain holds the tokens of plain values.
var plain = []hclsyntax.TokenType{
	hclsyntax.TokenOBrace,
	hclsyntax.TokenCBrace,
	hclsyntax.TokenOBrack,
	hclsyntax.TokenCBrack,
	hclsyntax.TokenOQuote,
	hclsyntax.TokenCQuote,
	hclsyntax.TokenOHeredoc,
	hclsyntax.TokenCHeredoc,
	hclsyntax.TokenMinus,
	hclsyntax.TokenEqual,
	hclsyntax.TokenComma,
	hclsyntax.TokenColon,
	hclsyntax.TokenQuotedLit,
	hclsyntax.TokenStringLit,
	hclsyntax.TokenNumberLit,
	hclsyntax.TokenIdent,
	hclsyntax.TokenComment,
	hclsyntax.TokenNewline,
	hclsyntax.TokenEOF,
}

// readVariables returns the values of a file: strings, bools, nil, [json.Number], []any and map[string]any.
func readVariables(text []byte) (map[string]any, error) {
	_, values, err := parse(text)
	return values, err
}

// parse reads a file. It checks the tokens first, because the HCL parser does not limit the nesting depth.
func parse(text []byte) (*hclsyntax.Body, map[string]any, error) {
	if err := scan(text); err != nil {
		return nil, nil, err
	}
	f, diags := hclsyntax.ParseConfig(text, "", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, nil, parseError(diags)
	}
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok || len(body.Blocks) > 0 {
		return nil, nil, fmt.Errorf("%w: it has blocks, but only values are supported", errUnreadable)
	}
	values := map[string]any{}
	for name, a := range body.Attributes {
		v, err := value(text, a.Expr)
		if err != nil {
			return nil, nil, err
		}
		values[name] = v
	}
	return body, values, nil
}

func scan(text []byte) error {
	tokens, diags := hclsyntax.LexConfig(text, "", hcl.InitialPos)
	if diags.HasErrors() {
		return parseError(diags)
	}
	depth := 0
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack:
			depth--
		}
		if depth > maxDepth {
			return fmt.Errorf("%w: line %d: values are nested more than %d levels deep", errUnreadable, t.Range.Start.Line, maxDepth)
		}
		if !slices.Contains(plain, t.Type) ||
			t.Type == hclsyntax.TokenMinus && i+1 < len(tokens) && tokens[i+1].Type != hclsyntax.TokenNumberLit {
			return notPlain(t.Range)
		}
	}
	return nil
}

// value returns the value of an expression.
func value(text []byte, e hclsyntax.Expression) (any, error) {
	switch e := e.(type) {
	case *hclsyntax.TupleConsExpr:
		list := []any{}
		for _, x := range e.Exprs {
			v, err := value(text, x)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case *hclsyntax.ObjectConsExpr:
		object := map[string]any{}
		for _, item := range e.Items {
			k, err := keyOf(item)
			if err != nil {
				return nil, err
			}
			if _, twice := object[k]; twice {
				return nil, fmt.Errorf("%w: line %d: %.60q is defined twice", errUnreadable, item.KeyExpr.Range().Start.Line, k)
			}
			if object[k], err = value(text, item.ValueExpr); err != nil {
				return nil, err
			}
		}
		return object, nil
	case *hclsyntax.LiteralValueExpr, *hclsyntax.UnaryOpExpr, *hclsyntax.TemplateExpr:
		return literal(e)
	}
	return nil, notPlain(e.Range())
}

// literal returns the value of an expression without nested expressions.
func literal(e hclsyntax.Expression) (any, error) {
	v, diags := e.Value(nil)
	switch {
	case diags.HasErrors() || !v.IsKnown():
		return nil, notPlain(e.Range())
	case v.IsNull():
		return nil, nil
	}
	switch v.Type().FriendlyName() {
	case "string":
		return v.AsString(), nil
	case "bool":
		return v.True(), nil
	case "number":
		if n, ok := number(v.AsBigFloat()); ok {
			return n, nil
		}
	}
	return nil, notPlain(e.Range())
}

// number returns the canonical form of a number. It returns false for a number with too many digits.
func number(f *big.Float) (json.Number, bool) {
	if e := f.MantExp(nil); f.IsInf() || e > maxExponent || e < -maxExponent {
		return "", false
	}
	if f.IsInt() {
		if f.Sign() == 0 {
			return "0", true
		}
		return json.Number(f.Text('f', 0)), true
	}
	return json.Number(f.Text('g', -1)), true
}

func keyOf(item hclsyntax.ObjectConsItem) (string, error) {
	k, diags := item.KeyExpr.Value(nil)
	if diags.HasErrors() || k.IsNull() || !k.IsKnown() || k.Type().FriendlyName() != "string" {
		return "", notPlain(item.KeyExpr.Range())
	}
	return k.AsString(), nil
}

func notPlain(r hcl.Range) error {
	return fmt.Errorf("%w: line %d has an expression, but only plain values are supported", errUnreadable, r.Start.Line)
}

// parseError returns why a file cannot be read. The error does not contain text of the file.
func parseError(diags hcl.Diagnostics) error {
	for _, d := range diags {
		if d.Severity == hcl.DiagError && d.Subject != nil {
			return fmt.Errorf("%w: line %d: %s", errUnreadable, d.Subject.Start.Line, strings.ToLower(d.Summary))
		}
	}
	return errUnreadable
}

// canonicalValue returns a JSON value in the form of [readVariables]. It returns an error if no file can represent the value.
func canonicalValue(v any) (any, error) { return canonical(v, 0) }

func canonical(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: values are nested more than %d levels deep", errLayout, maxDepth)
	}
	switch v := v.(type) {
	case map[string]any:
		object := make(map[string]any, len(v))
		for k, x := range v {
			c, err := canonical(x, depth+1)
			if err != nil {
				return nil, err
			}
			object[k] = c
		}
		return object, nil
	case []any:
		list := make([]any, 0, len(v))
		for _, x := range v {
			c, err := canonical(x, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, c)
		}
		return list, nil
	case nil, bool, string:
		return v, nil
	}
	f, _, err := big.ParseFloat(fmt.Sprint(v), 10, 512, big.ToNearestEven)
	if err == nil {
		if n, ok := number(f); ok {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w: %.40q is not a number", errLayout, fmt.Sprint(v))
}
