package policy

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
)

// Limits of the parser, for text of any content.
const (
	maxDepth   = 32   // nesting of an expression
	maxPattern = 1000 // instructions of all patterns of an expression
	maxErrors  = 10   // reported errors of one rule
)

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// An Error is an invalid rule.
type Error struct {
	Rule   string // name of the rule, or its number from 1 if it has no valid name
	Field  string // key of the rule in the settings file
	Line   int    // in the expression, from 1; 0: the error has no place in it
	Column int    // in characters, from 1
	Text   string
}

// Error returns a line such as `rule "no-secrets": when, line 1, column 9: …`.
func (e *Error) Error() string {
	at := ""
	if e.Line > 0 {
		at = fmt.Sprintf(", line %d, column %d", e.Line, e.Column)
	}
	return fmt.Sprintf("rule %s: %s%s: %s", e.Rule, e.Field, at, e.Text)
}

// Compile returns the policy of the rules. It refuses every rule that could surprise at run time: unknown names, a result
// that is not bool, a cost above MaxCost for the largest request, and a rule about resources that also matches discovery,
// which has no resource. The error joins an [*Error] for each error of each rule.
//
// Expressions are foreign text: Compile does bounded work for any content, by the limits of this package.
func Compile(rules []Rule) (*Policy, error) {
	if err := checkSize(rules); err != nil {
		return nil, err
	}
	c, err := newCompiler()
	if err != nil {
		return nil, fmt.Errorf("prepare the language of the policy: %w", err)
	}
	p := &Policy{}
	var errs []error
	for i, r := range rules {
		c.rule, c.errs, c.places = fmt.Sprintf("%q", r.Name), nil, 0
		if !label.MatchString(r.Name) {
			c.rule = fmt.Sprint(i + 1)
			c.fail("name", "%.80q is not a DNS label such as no-secrets", r.Name)
		} else if slices.ContainsFunc(rules[:i], func(o Rule) bool { return o.Name == r.Name }) {
			c.fail("name", "two rules have this name")
		}
		done := compiled{Rule: r, record: c.effects(r), program: c.expression(r)}
		p.rules = append(p.rules, done)
		errs = append(errs, c.errs...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

func checkSize(rules []Rule) error {
	total := 0
	for _, r := range rules {
		total += len(r.When)
	}
	switch {
	case len(rules) > MaxRules:
		return fmt.Errorf("the policy has %d rules, more than %d", len(rules), MaxRules)
	case total > MaxPolicy:
		return fmt.Errorf("the expressions of the policy have %d bytes, more than %d", total, MaxPolicy)
	}
	return nil
}

// A compiler compiles one rule after another.
type compiler struct {
	env     *cel.Env
	unknown []*cel.AttributePatternType // what a discovery request leaves open
	rule    string
	errs    []error
	places  int // errors of the rule's expression
	line    int // where the rule's expression begins
	column  int
}

// language is the part of CEL's standard library that rules can use. Conversions, times and dyn are not included: an
// expression that passes the type check then fails only for an index out of range or an arithmetic overflow.
func language() *env.LibrarySubset {
	s := &env.LibrarySubset{IncludeMacros: []string{"all", "exists", "exists_one", "filter", "map"}}
	for _, name := range []string{
		"_?_:_", "_&&_", "_||_", "!_", "@not_strictly_false", "_==_", "_!=_", "_+_", "_-_", "-_", "_<_", "_<=_", "_>_", "_>=_", "_[_]", "@in", "size",
		"contains", "endsWith", "startsWith", "matches",
	} {
		s.IncludeFunctions = append(s.IncludeFunctions, &env.Function{Name: name})
	}
	return s
}

func newCompiler() (*compiler, error) {
	options := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(language())),
		cel.ParserExpressionSizeLimit(MaxExpression), cel.ParserRecursionLimit(maxDepth), cel.ParserErrorRecoveryLimit(maxErrors),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(2)),
	}
	c := &compiler{}
	for _, v := range table {
		t := cel.StringType
		if v.list > 0 {
			t = cel.ListType(cel.StringType)
		}
		options = append(options, cel.Variable(v.name, t))
		if !strings.HasPrefix(v.name, resources) {
			c.unknown = append(c.unknown, cel.AttributePattern(v.name))
		}
	}
	e, err := cel.NewCustomEnv(options...)
	c.env = e
	return c, err
}

func (c *compiler) fail(field, format string, args ...any) {
	c.errs = append(c.errs, &Error{Rule: c.rule, Field: field, Text: fmt.Sprintf(format, args...)})
}

func (c *compiler) failAt(line, column int, format string, args ...any) {
	c.places++
	switch {
	case c.places <= maxErrors:
		c.errs = append(c.errs, &Error{c.rule, "when", line, column, clip(fmt.Sprintf(format, args...))})
	case c.places == maxErrors+1:
		c.errs = append(c.errs, &Error{c.rule, "when", line, column, "there are more errors from here"})
	}
}

// failIn reports an error of the part of the expression with this id.
func (c *compiler) failIn(a *cel.Ast, id int64, format string, args ...any) {
	at := a.NativeRep().SourceInfo().GetStartLocation(id)
	c.failAt(max(at.Line(), 1), max(at.Column(), 0)+1, format, args...)
}

// failWhole reports an error of the whole expression.
func (c *compiler) failWhole(format string, args ...any) { c.failAt(c.line, c.column, format, args...) }

// begin sets the place where an expression begins, after spaces and comments.
func (c *compiler) begin(expression string) {
	c.line, c.column = 1, 1
	for i, line := range strings.Split(expression, "\n") {
		text := strings.TrimLeft(line, " \t\r\f")
		if text != "" && !strings.HasPrefix(text, "//") {
			c.line, c.column = i+1, utf8.RuneCountInString(line)-utf8.RuneCountInString(text)+1
			return
		}
	}
}

// effects checks everything but the expression, and returns what the rule records.
func (c *compiler) effects(r Rule) Recording {
	if r.Deny == "" && !r.RequireReason && len(r.Record) == 0 && r.Warn == "" {
		c.fail("deny", "the rule has no effect: set deny, requireReason, record or warn to a value that is not empty")
	}
	if r.Deny != "" && (r.RequireReason || len(r.Record) > 0 || r.Warn != "") {
		c.fail("deny", "a rule that refuses the request has no other effect: remove the others")
	}
	if r.Required != nil && len(r.Record) == 0 {
		c.fail("required", "it applies to record, which is missing or empty")
	}
	c.text("deny", r.Deny)
	c.text("warn", r.Warn)
	record, err := ParseRecording(r.Record, r.Required == nil || *r.Required)
	if err != nil {
		c.fail("record", "%v", err)
	}
	return record
}

func (c *compiler) text(field, s string) {
	switch {
	case len(s) > MaxText:
		c.fail(field, "the text has %d bytes, more than %d", len(s), MaxText)
	case s != "" && strings.TrimSpace(s) == "":
		c.fail(field, "the text is empty")
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		c.fail(field, "the text contains characters that cannot be printed in one line")
	}
}

// expression compiles r.When. It reports each error, and returns nil if there is one.
func (c *compiler) expression(r Rule) cel.Program {
	before := len(c.errs)
	switch {
	case strings.TrimSpace(r.When) == "":
		c.fail("when", "the expression is empty")
	case len(r.When) > MaxExpression:
		c.fail("when", "the expression has %d bytes, more than %d", len(r.When), MaxExpression)
	case !utf8.ValidString(r.When):
		c.fail("when", "the expression is not UTF-8")
	}
	if len(c.errs) > before {
		return nil
	}
	parsed, issues := c.env.Parse(r.When)
	if len(issues.Errors()) > 0 {
		c.issues(issues, false)
		return nil
	}
	c.begin(r.When)
	c.names(parsed)
	checked, issues := c.env.Check(parsed)
	if len(issues.Errors()) > 0 {
		c.issues(issues, len(c.errs) > before)
		return nil
	}
	if t := checked.OutputType(); t != cel.BoolType {
		c.failWhole("the result is of type %s, not bool", cel.FormatCELType(t))
	}
	c.mixed(checked)
	c.patterns(checked)
	if len(c.errs) == before {
		c.cost(checked)
	}
	if len(c.errs) > before {
		return nil
	}
	program, err := c.env.Program(checked, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		c.failWhole("%v", err)
		return nil
	}
	c.discovery(r, checked)
	return program
}

var undeclared = regexp.MustCompile(`^undeclared reference to '(request|caller|has)\b`)

// issues reports the errors of CEL. If names has reported unknown names, the less precise errors for these are omitted.
func (c *compiler) issues(issues *cel.Issues, named bool) {
	for _, e := range issues.Errors() {
		if text := strings.ReplaceAll(e.Message, " (in container '')", ""); !named || !undeclared.MatchString(text) {
			c.failAt(max(e.Location.Line(), 1), max(e.Location.Column(), 0)+1, "%s", text)
		}
	}
}

// cost checks the highest estimated cost of the expression.
func (c *compiler) cost(a *cel.Ast) {
	estimate, err := c.env.EstimateCost(a, sizes{})
	switch {
	case err != nil:
		c.failWhole("estimate the cost: %v", err)
	case estimate.Max > MaxCost:
		c.failWhole("the cost is up to %s, more than %d: use shorter patterns, fewer loops, or == and startsWith instead of matches", costText(estimate.Max), MaxCost)
	}
}

func costText(n uint64) string {
	if n > 1e12 {
		return "more than 1e12"
	}
	return fmt.Sprint(n)
}

// sizes gives CEL the largest sizes of the variables.
type sizes struct{}

// EstimateSize implements [cost.Estimator].
func (sizes) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	path := node.Path()
	if len(path) == 0 {
		return nil
	}
	i := slot(path[0])
	if i < 0 {
		return nil
	}
	v, text := table[i], cost.RangedSizeEstimate(0, uint64(table[i].size))
	switch {
	case v.list == 0 && len(path) == 1, v.list > 0 && len(path) == 2 && path[1] == "@items":
		return &text
	case v.list > 0 && len(path) == 1:
		list := cost.ListSizeEstimate(cost.RangedSizeEstimate(0, uint64(v.list)), text)
		return &list
	}
	return nil
}

// EstimateCallCost implements [cost.Estimator]. CEL counts the characters of a pattern, but a repetition such as a{1000} is
// written out when it is compiled. So the cost of matches is counted by instructions where they are more, in the same unit:
// one for 40 steps of an instruction over a character. All other estimates of CEL hold.
func (s sizes) EstimateCallCost(function, _ string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if function != "matches" || len(args) == 0 {
		return nil
	}
	text, pattern := args[0], args[len(args)-1].Expr()
	if target != nil {
		text = *target
	}
	if pattern.Kind() != ast.LiteralKind {
		return nil
	}
	literal, ok := pattern.AsLiteral().(types.String)
	if !ok {
		return nil
	}
	re, err := syntax.Parse(string(literal), syntax.Perl)
	if err != nil {
		return nil
	}
	steps := uint64(max(instructions(re), utf8.RuneCountInString(string(literal))) + 1)
	most := cost.SafeMultiplyByFactor(cost.SafeMultiply(steps, cost.EstimateSize(s, text).Max), 1.0/40)
	estimate := cost.RangedCostEstimate(0, cost.SafeAdd(most, 1))
	return cost.NewCallEstimate(estimate, nil)
}

const (
	resources    = "request.resourceAttributes."
	nonResources = "request.nonResourceAttributes."
)

// discovery refuses a rule about resources that also matches a request without a resource, such as discovery: it would
// cut clients off. A rule that mentions request.nonResourceAttributes means such requests.
func (c *compiler) discovery(r Rule, a *cel.Ast) {
	if r.Deny == "" && !r.RequireReason && r.Warn == "" || !mentions(a, resources) || mentions(a, nonResources) {
		return
	}
	program, err := c.env.Program(a, cel.EvalOptions(cel.OptPartialEval))
	if err != nil {
		c.fail("when", "%v", err)
		return
	}
	vars, err := cel.PartialVars(&activation{input: &Input{}}, c.unknown...)
	if err != nil {
		c.fail("when", "%v", err)
		return
	}
	// An error for empty attributes would refuse discovery, too.
	if out, _, err := program.Eval(vars); err != nil || out != types.False {
		c.failWhole(`the rule is about resources, but it can also match discovery, whose resource is "": add ` +
			`request.resourceAttributes.resource != "" && (…), or mention request.nonResourceAttributes if you mean it`)
	}
}

// mentions reports whether a checked expression reads a variable with this prefix.
func mentions(a *cel.Ast, prefix string) bool {
	found := false
	ast.PreOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.IdentKind && strings.HasPrefix(strings.TrimPrefix(e.AsIdent(), "."), prefix)
	}))
	return found
}
