package policy

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"cel.dev/cel-go/cel"
)

// maxWork is the most that Compile allocates for one expression, in bytes, and so a measure of its work. A policy has at
// most 8 expressions of full length, so it stays below the 256 MB of law 11.
const maxWork = 24 << 20

// FuzzCompile checks that every expression is either refused with a place in it, or judges every request without a panic,
// and that the work is bounded (PRX-14, law 11).
func FuzzCompile(f *testing.F) {
	for _, r := range twenty() {
		f.Add(r.When)
	}
	for _, s := range []string{
		"", "true", "((((", "a.b.c.d", `"\xff"`, "'''", `r"(" `, "[[[[[[]]]]]]", "{1: 2}[1] == 2", "caller.tags[0] == ''", "1/0 == 0", "-9223372036854775808",
		"caller.tags.map(t, t + t).exists(t, t == '')", `caller.login.matches("(a{30}){30}")`, "google.protobuf.Struct{}", "!!!!!true", "a?b:c?d:e", "`x`",
		strings.Repeat("(", 31) + "true" + strings.Repeat(")", 31), strings.Repeat("!", 100) + "true", strings.Repeat("a.", 500) + "a",
		"true" + strings.Repeat(" || true", 400), "\"" + strings.Repeat("\\x41", 900) + "\" == \"\"", "caller.login in [" + strings.Repeat("'a',", 900) + "'']",
	} {
		f.Add(s)
	}
	for _, s := range hard() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, when string) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := Compile([]Rule{{Name: "r", When: when, Deny: "no"}})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > maxWork {
			t.Fatalf("%d bytes allocated for an expression of %d", n, len(when))
		}
		if err != nil {
			at, ok := errors.AsType[*Error](err)
			switch {
			case !ok && len(when) <= MaxPolicy:
				t.Fatalf("the error names no rule: %v", err)
			case ok && at.Line == 0 && len(when) <= MaxExpression && strings.TrimSpace(when) != "" && at.Text != "the expression is not UTF-8":
				t.Fatalf("the error names no place: %v", err)
			case strings.ContainsAny(strings.ReplaceAll(err.Error(), "\nrule ", ""), "\n\x1b"):
				t.Fatalf("the error contains text that cannot be printed: %q", err)
			case len(err.Error()) > 16<<10:
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		tracked := track(t, when)
		for _, in := range inputs() {
			if n := tracked(in); n > MaxCost {
				t.Fatalf("%q: an evaluation costs %d, more than %d", when, n, MaxCost)
			}
			runtime.ReadMemStats(&before)
			v := p.Judge(in)
			runtime.ReadMemStats(&after)
			if v.Refusal != nil && strings.HasPrefix(v.Refusal.Detail, "internal error") {
				t.Fatalf("%q: the evaluation panicked: %s", when, v.Refusal.Detail)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
				t.Fatalf("%q: %d bytes allocated for one request", when, n)
			}
		}
	})
}

// track returns a function that evaluates an expression and returns CEL's count of the actual cost.
func track(t *testing.T, when string) func(Input) uint64 {
	t.Helper()
	c, err := newCompiler()
	if err != nil {
		t.Fatal(err)
	}
	a, issues := c.env.Compile(when)
	if len(issues.Errors()) > 0 {
		t.Fatal(issues.Err())
	}
	program, err := c.env.Program(a, cel.CostTracking(nil))
	if err != nil {
		t.Fatal(err)
	}
	return func(in Input) uint64 {
		// A failed evaluation has a cost, too.
		_, details, _ := program.Eval(&activation{input: &in})
		return *details.ActualCost()
	}
}

// inputs returns requests of each kind, and the largest one.
func inputs() []Input {
	large := Input{Resource: Resource{
		Verb: strings.Repeat("v", 64), Group: strings.Repeat("g", 253), Version: strings.Repeat("v", 63), Resource: strings.Repeat("r", 253),
		Subresource: strings.Repeat("s", 253), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("x", 1024),
	}, NonResource: NonResource{strings.Repeat("/", 2048), strings.Repeat("v", 64)}, Impersonate: Impersonate{User: strings.Repeat("u", 1024)}, Caller: Caller{
		Login: strings.Repeat("l", 254), Device: strings.Repeat("d", 253), Session: strings.Repeat("s", 63), Reason: strings.Repeat("r", 2000),
	}}
	for range 64 {
		large.Impersonate.Groups = append(large.Impersonate.Groups, strings.Repeat("g", 256))
		large.Caller.Tags = append(large.Caller.Tags, strings.Repeat("t", 128))
	}
	for range 8 {
		large.Caller.Roles = append(large.Caller.Roles, strings.Repeat("r", 253))
	}
	return []Input{
		{}, {Caller: alice, Resource: listPods}, {Caller: ci, Resource: execPod}, {Caller: two, NonResource: discovery},
		{Resource: Resource{Name: "\xff\x00\u202e"}, Impersonate: Impersonate{User: "\xff", Groups: []string{""}}}, large,
	}
}

// FuzzJudge checks that no request makes the rules of a large installation panic or fail.
func FuzzJudge(f *testing.F) {
	p := mustCompile(f, twenty()...)
	f.Add("get", "secrets", "prod", "/apis", "alice@example.com", "tag:ci")
	f.Add("\xff", "", "\u202e", "//", "", "\x00")
	f.Fuzz(func(t *testing.T, verb, resource, namespace, path, login, tag string) {
		v := p.Judge(Input{
			Resource: Resource{Verb: verb, Resource: resource, Namespace: namespace, Name: path}, NonResource: NonResource{Path: path, Verb: verb},
			Impersonate: Impersonate{User: login, Groups: []string{tag}}, Caller: Caller{Login: login, Tags: []string{tag}, Roles: []string{resource}},
		})
		switch {
		case v.Refusal == nil:
		case v.Refusal.Kind == Failed:
			t.Fatalf("%+v", v.Refusal)
		case strings.ContainsFunc(strings.Join(v.Explain(), ""), func(r rune) bool { return !unicode.IsPrint(r) }):
			t.Fatalf("it contains text that cannot be printed: %q", v.Explain())
		}
	})
}

// hard returns expressions of full length, or nearly so, that make parsers work: each nests, repeats or fails in another way.
func hard() []string {
	fill := func(prefix, unit, suffix string) string {
		return prefix + strings.Repeat(unit, (MaxExpression-len(prefix)-len(suffix))/len(unit)) + suffix
	}
	return []string{
		fill("true", "||true", ""),
		fill("true", "&&true", ""),
		"true" + strings.Repeat("||true", 330),
		fill("1", "+1", "==1"),
		"1" + strings.Repeat("+1", 200) + "==1",
		fill("caller.login in [", "'a',", "'']"),
		"caller.login in [" + strings.Repeat("'a',", 900) + "'']",
		fill("", "(", ""),
		fill("", "[", ""),
		fill("", "{", ""),
		fill("", "{1:", ""),
		fill("", "!", "true"),
		fill("", "-", "1==1"),
		fill("", "a?", "b"),
		fill("true", "?true:true", ""),
		"true" + strings.Repeat("?true:true", 30),
		fill("a", ".a", ""),
		fill("a", ".a()", ""),
		fill("a", "[0]", ""),
		fill("", "[1].exists(a,", "true"),
		fill("true", "&&[1].all(a,a==1)", ""),
		"true" + strings.Repeat("&&[1].all(a,a==1)", 60),
		fill("[1]", ".map(a,a)", "==[1]"),
		"[1]" + strings.Repeat(".map(a,a)", 20) + "==[1]",
		fill("1", "<1", ""),
		fill("1", "==1", ""),
		fill("", ",", ""),
		fill("", "'", ""),
		fill("", "x ", ""),
		fill("", "$", ""),
		fill("", "caller.a||", "true"),
		fill("a", "a", ""),
		fill("", "//\n", "true"),
		fill("", "(a?[{1:", ""),
		fill("", "A{a:", ""),
		fill("true", `&&"".matches("")`, ""),
		fill(`caller.login.matches("`, `[\\pL]`, `")`),
		`caller.session.matches("` + strings.Repeat(`(?i)\\pL`, 10) + `")`,
		fill(`"".matches("`, `(a|b)*`, `")`),
		fill(`"".matches("`, `(`, `")`),
		fill(`'a'`, `+'a'`, `==''`),
		fill("true", "||u", ""),
		fill("true", "||1 in [1,'']", ""),
		fill("true", "||[1,'']==[]", ""),
		fill("true", `||"".matches("(")`, ""),
		fill("true", `||has(a.b)`, ""),
		fill("true", `||[1].all(caller,true)`, ""),
		fill("[", `[1].map(a,a),`, "[1]]==[[1]]"),
		fill("", `[1].all(a,[1].all(b,true))&&`, "true"),
		"(" + strings.Repeat("caller.reason+", 20) + "'').contains('a')",
		"size(" + strings.Repeat("caller.tags+", 20) + "[])>1",
		"caller.tags.map(a,caller.tags+caller.tags).all(x,size(x)>1)",
		"caller.tags.map(a,caller.reason+caller.reason+caller.reason).all(x,size(x)>1)",
		fill(`true`, `||caller.login==caller.login`, ``),
	}
}
