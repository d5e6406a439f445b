package policy

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// names reports unknown names below request and caller. CEL's type check would report only the first part of such a name,
// which is the part that is right.
func (c *compiler) names(a *cel.Ast) {
	inner := map[int64]bool{} // parts of a name that was already read as a whole
	ast.PreOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			for _, name := range []string{e.AsComprehension().IterVar(), e.AsComprehension().IterVar2()} {
				if name == "request" || name == "caller" {
					c.failIn(a, e.ID(), "%s cannot be the name of a loop's variable", name)
				}
			}
		case ast.CallKind:
			if call := e.AsCall(); call.FunctionName() == "has" {
				c.failIn(a, e.ID(), `has() is not available: every variable has a value, which is "" or [] if the request has none`)
			}
		case ast.IdentKind, ast.SelectKind:
			if inner[e.ID()] {
				return
			}
			name := ""
			for e.Kind() == ast.SelectKind {
				name = "." + e.AsSelect().FieldName() + name
				e = e.AsSelect().Operand()
				inner[e.ID()] = true
			}
			if e.Kind() != ast.IdentKind {
				return
			}
			name = strings.TrimPrefix(e.AsIdent(), ".") + name
			if root, _, _ := strings.Cut(name, "."); (root == "request" || root == "caller") && !known(name) {
				c.failIn(a, e.ID(), "%s is not a variable; %s", name, nearest(name))
			}
		}
	}))
}

// known reports whether a name is a variable or a field of one, which the type check judges.
func known(name string) bool {
	for _, v := range table {
		if name == v.name || strings.HasPrefix(name, v.name+".") {
			return true
		}
	}
	return false
}

// nearest lists the variables that share the longest beginning with an unknown name.
func nearest(name string) string {
	for {
		var names []string
		for _, v := range table {
			if strings.HasPrefix(v.name, name+".") {
				names = append(names, v.name[len(name)+1:])
			}
		}
		if len(names) > 0 {
			return name + " has " + strings.Join(names, ", ")
		}
		name = name[:max(strings.LastIndexByte(name, '.'), 0)]
	}
}

// mixed reports lists and maps of several types: CEL compares their entries at run time, and a misspelt one is never equal.
func (c *compiler) mixed(a *cel.Ast) {
	ast.PreOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		filled := e.Kind() == ast.ListKind && e.AsList().Size() > 0 || e.Kind() == ast.MapKind && e.AsMap().Size() > 0
		if filled && slices.ContainsFunc(a.NativeRep().GetType(e.ID()).Parameters(), func(t *types.Type) bool { return t.Kind() == types.DynKind }) {
			c.failIn(a, e.ID(), "the entries are of several types")
		}
	}))
}

// patterns checks the regular expressions. They must be literals, so that they are compiled once and no request brings
// one.
func (c *compiler) patterns(a *cel.Ast) {
	total := 0
	ast.PreOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "matches" {
			return
		}
		args := e.AsCall().Args()
		last := args[len(args)-1]
		pattern, ok := types.String(""), last.Kind() == ast.LiteralKind
		if ok {
			pattern, ok = last.AsLiteral().(types.String)
		}
		if !ok {
			c.failIn(a, last.ID(), "the pattern of matches must be a text in quotes")
			return
		}
		re, err := syntax.Parse(string(pattern), syntax.Perl)
		if err != nil {
			c.failIn(a, last.ID(), "the pattern is invalid: %v", err)
			return
		}
		total += instructions(re)
		switch {
		case total > maxPattern:
			c.failIn(a, last.ID(), "the patterns are too large: they have about %d instructions, more than %d", total, maxPattern)
		default:
			if _, err := regexp.Compile(string(pattern)); err != nil {
				c.failIn(a, last.ID(), "the pattern is invalid: %v", err)
			}
		}
	}))
}

// instructions estimates the size of a compiled pattern, in which a repetition is written out. A class counts its ranges
// twice.
func instructions(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	} else {
		n += max(len(re.Rune), 1)
	}
	return min(n, 1<<24) // an upper bound prevents an overflow in nested repetitions
}
