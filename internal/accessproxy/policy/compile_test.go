package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// refused returns the text of the error of a policy that must not compile.
func refused(t *testing.T, rules ...Rule) string {
	t.Helper()
	p, err := Compile(rules)
	if err == nil {
		t.Fatalf("it compiled: %v", rules)
	}
	if p != nil {
		t.Errorf("an invalid policy is not nil: %v", p)
	}
	return err.Error()
}

// PRX-14: errors of an expression name the rule, the line and the column.
func TestPRX14_ErrorsNameLineAndColumn(t *testing.T) {
	const all = "verb, group, version, resource, subresource, namespace, name"
	for _, x := range []struct{ why, when, want string }{
		{"a misspelt attribute", `request.resourceAttributes.vreb == "get"`,
			`line 1, column 1: request.resourceAttributes.vreb is not a variable; request.resourceAttributes has ` + all},
		{"in the second line", "caller.login == \"\" ||\n  caller.mail == \"\"",
			`line 2, column 3: caller.mail is not a variable; caller has login, device, tags, role, roles, session, reason`},
		{"after characters of several bytes", `"größe" == "" || caller.mail == ""`, `line 1, column 18: caller.mail is not a variable; ` +
			`caller has login, device, tags, role, roles, session, reason`},
		{"another part of the request", `request.user == "x"`, `line 1, column 1: request.user is not a variable; request has resourceAttributes.verb, ` +
			`resourceAttributes.group, resourceAttributes.version, resourceAttributes.resource, resourceAttributes.subresource, resourceAttributes.namespace, ` +
			`resourceAttributes.name, nonResourceAttributes.path, nonResourceAttributes.verb, impersonate.user, impersonate.groups`},
		{"a presence test", `has(request.resourceAttributes)`, `line 1, column 4: has() is not available: every variable has a value, which is "" or [] if the ` +
			`request has none` + "\n" + `rule "r": when, line 1, column 5: request.resourceAttributes is not a variable; request.resourceAttributes has ` + all},
		{"an unknown name", `user == "x"`, `line 1, column 1: undeclared reference to 'user'`},
		{"an unknown function", `caller.login.lowerAscii() == "x"`, `line 1, column 24: undeclared reference to 'lowerAscii'`},
		{"a conversion", `int(caller.login) == 1`, `line 1, column 4: undeclared reference to 'int'`},
		{"a time", `timestamp("2026-01-01T00:00:00Z") == timestamp("2026-01-01T00:00:00Z")`,
			`line 1, column 10: undeclared reference to 'timestamp'` + "\n" + `rule "r": when, line 1, column 47: undeclared reference to 'timestamp'`},
		{"an untyped value", `dyn(caller.login) == 1`, `line 1, column 4: undeclared reference to 'dyn'`},
		{"a field of a text", `caller.login.name == ""`, `line 1, column 13: type 'string' does not support field selection`},
		{"a text", `caller.login`, `line 1, column 1: the result is of type string, not bool`},
		{"after a comment", "// of people\n\n  caller.login", `line 3, column 3: the result is of type string, not bool`},
		{"a number", `1 + 1`, `line 1, column 1: the result is of type int, not bool`},
		{"types that differ", `caller.login == 1`, `line 1, column 14: found no matching overload for '_==_' applied to '(string, int)'`},
		{"a list as text", `caller.tags == "tag:ci"`, `line 1, column 13: found no matching overload for '_==_' applied to '(list(string), string)'`},
		{"a mixed list", `caller.login in ["a", 1]`, `line 1, column 17: the entries are of several types`},
		{"a mixed map", `{"a": 1, "b": "x"}["a"] == 1`, `line 1, column 1: the entries are of several types`},
		{"an empty list", `caller.tags == []`, ``},
		{"many errors", "a||b||c||d||e||f||g||h||i||j||k||l", "line 1, column 1: undeclared reference to 'a'"},
		{"a comma too many", `caller.login in ["a",,]`, `line 1, column 22: Syntax error: `},
		{"an open bracket", "(caller.login == \"\"\n", `line 2, column 1: Syntax error: `},
		{"an open text", `caller.login == "x`, `line 1, column 17: Syntax error: `},
		{"an assignment", `caller.login = "x"`, `line 1, column 14: Syntax error: `},
		{"a loop over a reserved name", `caller.tags.all(caller, caller == "x")`, `line 1, column 16: caller cannot be the name of a loop's variable`},
		{"a pattern of the request", `caller.login.matches(request.resourceAttributes.name)`, `line 1, column 48: the pattern of matches must be a text in quotes`},
		{"a pattern that is computed", `matches(caller.login, "a" + "b")`, `line 1, column 27: the pattern of matches must be a text in quotes`},
		{"an invalid pattern", `caller.login.matches("(")`, "line 1, column 22: the pattern is invalid: error parsing regexp: missing closing ): `(`"},
		{"a large pattern", `caller.login.matches("(a{100}b{100}){10}")`, `line 1, column 22: the patterns are too large: they have about `},
		{"a costly pattern", `request.nonResourceAttributes.path.matches("` + strings.Repeat("a", 200) + `")`, `line 1, column 1: the cost is up to 10294, more than 5000: `},
		{"a costly repetition", `caller.login.matches("a{900}")`, `line 1, column 1: the cost is up to 5730, more than 5000: `},
		{"a costly repetition as a function", `matches(request.nonResourceAttributes.path, "^(/[a-z]{1,60}){4}$")`, `line 1, column 1: the cost is up to `},
		{"a costly repetition in a loop", `caller.tags.exists(t, t.matches("a{100}"))`, `line 1, column 1: the cost is up to `},
		{"nested loops", `caller.tags.all(a, caller.tags.all(b, a + b != "x"))`, `line 1, column 1: the cost is up to `},
		{"too many loops in loops", `caller.tags.all(a, caller.tags.all(b, caller.tags.all(c, true)))`, `line 1, column 54: comprehension exceeds nesting limit`},
		{"matches discovery", `request.resourceAttributes.namespace != "shop"`, `line 1, column 1: the rule is about resources, but it can also match discovery, whose resource is "": `},
		{"matches discovery for some", `caller.role == "view" && request.resourceAttributes.verb != "get"`, `line 1, column 1: the rule is about resources, but it can also match discovery`},
		{"fails on discovery", `size(request.resourceAttributes.verb) - 9223372036854775807 - 9 < 0 && request.resourceAttributes.verb == "x"`, ``},
		{"nothing", ` `, `the expression is empty`},
		{"too long", `caller.login == "` + strings.Repeat("x", MaxExpression) + `"`, `the expression has 4114 bytes, more than 4096`},
		{"not UTF-8", "caller.login == \"\xff\"", `the expression is not UTF-8`},
		{"too deep", strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), `line 1, column `},
	} {
		t.Run(x.why, func(t *testing.T) {
			want := x.want
			if want == "" {
				mustCompile(t, Rule{Name: "r", When: x.when, Deny: "no"})
				return
			}
			sep := ": "
			if strings.HasPrefix(want, "line ") {
				sep = ", "
			}
			if got := refused(t, deny(x.when)); !strings.HasPrefix(got, `rule "r": when`+sep+want) {
				t.Errorf("%.200s\n got %s\nwant rule \"r\": when%s%s", x.when, got, sep, want)
			}
		})
	}
}

// PRX-14: all errors of all rules are reported at once.
func TestPRX14_AllErrors(t *testing.T) {
	f := false
	got := refused(t,
		Rule{Name: "one", When: `caller.mail == "" || caller.nick == ""`, Deny: "no"},
		Rule{Name: "fine", When: `true`, Warn: "w"},
		Rule{Name: "One", When: `1`, Warn: "w"},
		Rule{Name: "fine", When: ``, Deny: " "},
		Rule{Name: "none", When: `true`},
		Rule{Name: "both", When: `true`, Deny: "no", Warn: "two\nlines"},
		Rule{Name: "long", When: `true`, Deny: strings.Repeat("x", MaxText+1)},
		Rule{Name: "streams", When: `true`, Record: []string{"exec", "logs"}},
		Rule{Name: "twice", When: `true`, Record: []string{"exec", "exec"}},
		Rule{Name: "required", When: `true`, Warn: "w", Required: &f},
	)
	want := `rule "one": when, line 1, column 1: caller.mail is not a variable; caller has login, device, tags, role, roles, session, reason
rule "one": when, line 1, column 22: caller.nick is not a variable; caller has login, device, tags, role, roles, session, reason
rule 3: name: "One" is not a DNS label such as no-secrets
rule 3: when, line 1, column 1: the result is of type int, not bool
rule "fine": name: two rules have this name
rule "fine": deny: the text is empty
rule "fine": when: the expression is empty
rule "none": deny: the rule has no effect: set deny, requireReason, record or warn to a value that is not empty
rule "both": deny: a rule that refuses the request has no other effect: remove the others
rule "both": warn: the text contains characters that cannot be printed in one line
rule "long": deny: the text has 501 bytes, more than 500
rule "streams": record: "logs" is not exec, attach or portForward
rule "twice": record: "exec" is listed twice
rule "required": required: it applies to record, which is missing or empty`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A policy has limits as a whole.
func TestPolicyLimits(t *testing.T) {
	if got, want := refused(t, make([]Rule, MaxRules+1)...), "the policy has 101 rules, more than 100"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	long := Rule{When: strings.Repeat(" ", MaxExpression)}
	if got, want := refused(t, long, long, long, long, long, long, long, long, long), "the expressions of the policy have 36864 bytes, more than 32768"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if p := mustCompile(t); p.Enforces() {
		t.Errorf("a policy without rules enforces something: %v", p)
	}
}

// PRX-14: rules that people write are far below the cost bound, also for the largest request.
func TestPRX14_CostBound(t *testing.T) {
	for _, when := range []string{
		`request.resourceAttributes.name.matches("^(api|web)-[0-9a-f]{4,10}-[a-z0-9]{5}$")`,
		`request.nonResourceAttributes.path.matches("^/(debug|metrics)(/.*)?$")`,
		`request.impersonate.groups.exists(g, g.startsWith("system:"))`,
		`caller.tags.all(t, t in ["tag:ci", "tag:prod", "tag:dev"])`,
		`caller.login.endsWith("@example.com") && request.resourceAttributes.namespace in ["a", "b", "c", "d", "e"]`,
		`caller.reason.contains("INC-")`,
	} {
		mustCompile(t, deny(when))
	}
}

// A settings file contains rules in this form.
func TestRuleYAML(t *testing.T) {
	const text = `name: exec-in-prod
when: |-
    request.resourceAttributes.subresource == "exec"
    && request.resourceAttributes.namespace == "prod"
requireReason: true
record:
    - exec
    - attach
required: false
warn: this is production
`
	var r Rule
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	f := false
	want := Rule{
		Name: "exec-in-prod", When: "request.resourceAttributes.subresource == \"exec\"\n&& request.resourceAttributes.namespace == \"prod\"",
		RequireReason: true, Record: []string{"exec", "attach"}, Required: &f, Warn: "this is production",
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	mustCompile(t, r)
	again, err := yaml.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, string(again)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The settings have a struct of their own, because they cannot import this package. It converts to a Rule.
func TestRuleConverts(t *testing.T) {
	type setting struct {
		Name          string   `yaml:"n"`
		When          string   `yaml:"w"`
		Deny          string   `yaml:"d"`
		RequireReason bool     `yaml:"r"`
		Record        []string `yaml:"s"`
		Required      *bool    `yaml:"q"`
		Warn          string   `yaml:"t"`
	}
	if diff := cmp.Diff(deny("true"), Rule(setting{Name: "r", When: "true", Deny: "no"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
