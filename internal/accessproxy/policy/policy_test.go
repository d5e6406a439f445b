package policy

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Requests of the tests.
var (
	alice = Caller{Login: "alice@example.com", Device: "laptop.example.ts.net", Roles: []string{"view"}, Session: "default"}
	ci    = Caller{Device: "runner-1.example.ts.net", Tags: []string{"tag:ci", "tag:prod"}, Roles: []string{"edit"}, Session: "default", Reason: "deploy 1.2"}
	two   = Caller{Login: "bob@example.com", Device: "desk.example.ts.net", Roles: []string{"view", "cluster-admin"}, Session: "admin", Reason: "INC-7"}

	listPods    = Resource{Verb: "list", Version: "v1", Resource: "pods", Namespace: "shop"}
	getSecret   = Resource{Verb: "get", Version: "v1", Resource: "secrets", Namespace: "prod", Name: "db"}
	execPod     = Resource{Verb: "create", Version: "v1", Resource: "pods", Subresource: "exec", Namespace: "prod", Name: "api-0"}
	deleteNodes = Resource{Verb: "deletecollection", Version: "v1", Resource: "nodes"}
	scale       = Resource{Verb: "patch", Group: "apps", Version: "v1", Resource: "deployments", Subresource: "scale", Namespace: "shop", Name: "web"}

	discovery = NonResource{Path: "/apis", Verb: "get"}
)

// refusedBy returns the verdict of a single rule that denies with the text no.
func refusedBy(rule string) Verdict {
	return Verdict{Refusal: &Refusal{Rule: rule, Kind: Denied, Message: "no"}, Matched: []string{rule}}
}

func deny(when string) Rule { return Rule{Name: "r", When: when, Deny: "no"} }

func mustCompile(t testing.TB, rules ...Rule) *Policy {
	t.Helper()
	p, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// PRX-14: what each rule does with a request.
func TestPRX14_Rules(t *testing.T) {
	no, yes := Verdict{}, refusedBy("r")
	const res, non = "request.resourceAttributes.", "request.nonResourceAttributes."
	f := false
	reason := Rule{Name: "r", When: res + `subresource in ["exec", "attach"]`, RequireReason: true}
	for _, x := range []struct {
		why  string
		rule Rule
		in   Input
		want Verdict
	}{
		{"resource", deny(res + `resource == "secrets"`), Input{Resource: getSecret}, yes},
		{"another resource", deny(res + `resource == "secrets"`), Input{Resource: listPods}, no},
		{"discovery has no resource", deny(res + `resource == "secrets"`), Input{NonResource: discovery}, no},
		{"verb", deny(res + `verb == "deletecollection"`), Input{Resource: deleteNodes}, yes},
		{"verbs", deny(res + `verb in ["delete", "deletecollection"]`), Input{Resource: deleteNodes}, yes},
		{"not one of the verbs", deny(res + `verb in ["delete", "deletecollection"]`), Input{Resource: getSecret}, no},
		{"group", deny(res + `group == "apps" && ` + res + `subresource == "scale"`), Input{Resource: scale}, yes},
		{"the core group is empty", deny(res + `group == "apps"`), Input{Resource: listPods}, no},
		{"version", deny(res + `version.startsWith("v1beta")`), Input{Resource: listPods}, no},
		{"subresource", deny(res + `subresource == "exec"`), Input{Resource: execPod}, yes},
		{"namespace", deny(res + `namespace.startsWith("prod")`), Input{Resource: execPod}, yes},
		{"the whole cluster has no namespace", deny(res + `namespace == "" && ` + res + `resource != ""`), Input{Resource: deleteNodes}, yes},
		{"everything but one namespace", deny(res + `resource != "" && ` + res + `namespace != "shop"`), Input{Resource: getSecret}, yes},
		{"everything but this namespace", deny(res + `resource != "" && ` + res + `namespace != "shop"`), Input{Resource: listPods}, no},
		{"name", deny(res + `name.matches("^api-[0-9]+$")`), Input{Resource: execPod}, yes},
		{"name by another pattern", deny(res + `name.matches("^web-")`), Input{Resource: execPod}, no},
		{"path", deny(non + `path.startsWith("/debug/")`), Input{NonResource: NonResource{Path: "/debug/pprof/heap", Verb: "get"}}, yes},
		{"another path", deny(non + `path.startsWith("/debug/")`), Input{NonResource: discovery}, no},
		{"a resource has no path", deny(non + `path.startsWith("/debug/")`), Input{Resource: listPods}, no},
		{"verb of a path", deny(non + `verb == "post"`), Input{NonResource: NonResource{Path: "/api", Verb: "post"}}, yes},
		{"impersonated user", deny(`request.impersonate.user != ""`), Input{Impersonate: Impersonate{User: "jane"}}, yes},
		{"no impersonation", deny(`request.impersonate.user != ""`), Input{Resource: listPods}, no},
		{"impersonated group", deny(`"system:masters" in request.impersonate.groups`), Input{Impersonate: Impersonate{User: "x", Groups: []string{"a", "system:masters"}}}, yes},
		{"one of the groups", deny(`request.impersonate.groups.exists(g, g.startsWith("system:"))`), Input{Impersonate: Impersonate{User: "x", Groups: []string{"dev"}}}, no},
		{"login", deny(`caller.login.endsWith("@partner.example")`), Input{Caller: Caller{Login: "eve@partner.example"}}, yes},
		{"another login", deny(`caller.login.endsWith("@partner.example")`), Input{Caller: alice}, no},
		{"a tagged device has no login", deny(`caller.login == ""`), Input{Caller: ci}, yes},
		{"device", deny(`caller.device == "laptop.example.ts.net"`), Input{Caller: alice}, yes},
		{"tag", deny(`"tag:ci" in caller.tags && ` + res + `resource == "secrets"`), Input{Caller: ci, Resource: getSecret}, yes},
		{"a person has no tags", deny(`"tag:ci" in caller.tags && ` + res + `resource == "secrets"`), Input{Caller: alice, Resource: getSecret}, no},
		{"all tags", deny(`size(caller.tags) > 0 && caller.tags.all(t, t in ["tag:ci", "tag:dev"])`), Input{Caller: ci}, no},
		{"role", deny(`caller.role == "view" && ` + res + `resource == "secrets"`), Input{Caller: alice, Resource: getSecret}, yes},
		{"several roles as one text", deny(`caller.role == "view,cluster-admin"`), Input{Caller: two}, yes},
		{"one of several roles", deny(`"cluster-admin" in caller.roles`), Input{Caller: two}, yes},
		{"session", deny(`caller.session != "default"`), Input{Caller: two}, yes},
		{"reason", deny(`!caller.reason.startsWith("INC-") && caller.session == "admin"`), Input{Caller: two}, no},
		{"a choice", deny(res + `resource != "" && (caller.session == "admin" ? ` + res + `verb == "delete" : ` + res + `verb == "list")`), Input{Caller: two, Resource: listPods}, no},
		{"an index", deny(`size(caller.tags) > 1 && caller.tags[1] == "tag:prod"`), Input{Caller: ci}, yes},
		{"always", deny(`true`), Input{NonResource: discovery}, yes},
		{"never", deny(`false`), Input{Resource: listPods}, no},
		{"a comment", deny("// of production\n" + res + `namespace == "prod"`), Input{Resource: execPod}, yes},

		{"reason is missing", reason, Input{Caller: alice, Resource: execPod}, Verdict{Matched: []string{"r"}, Refusal: &Refusal{
			Rule: "r", Kind: ReasonRequired, Message: `The rule "r" of the access proxy's policy requires a reason.`, Advice: `Sign in again with a reason: tka login --reason "why"`,
		}}},
		{"reason is given", reason, Input{Caller: two, Resource: execPod}, Verdict{Matched: []string{"r"}}},
		{"no reason is required", reason, Input{Caller: alice, Resource: listPods}, no},
		{"record", Rule{Name: "r", When: `true`, Record: []string{"exec", "attach"}}, Input{Resource: execPod},
			Verdict{Record: Recording{Exec: Required, Attach: Required}, Matched: []string{"r"}}},
		{"record if possible", Rule{Name: "r", When: `true`, Record: []string{"portForward"}, Required: &f}, Input{},
			Verdict{Record: Recording{PortForward: BestEffort}, Matched: []string{"r"}}},
		{"warn", Rule{Name: "r", When: res + `namespace == "prod"`, Warn: "this is production"}, Input{Resource: getSecret},
			Verdict{Warnings: []Warning{{"r", "this is production"}}, Matched: []string{"r"}}},
		{"several effects", Rule{Name: "r", When: `true`, RequireReason: true, Record: []string{"exec"}, Warn: "w"}, Input{Caller: two},
			Verdict{Warnings: []Warning{{"r", "w"}}, Record: Recording{Exec: Required}, Matched: []string{"r"}}},
	} {
		t.Run(x.why, func(t *testing.T) {
			if diff := cmp.Diff(x.want, mustCompile(t, x.rule).Judge(x.in)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", x.rule.When, diff)
			}
		})
	}
}

// PRX-14: the first refusal wins, records are united, and warnings before a refusal stay.
func TestPRX14_SeveralRules(t *testing.T) {
	f := false
	p := mustCompile(t,
		Rule{Name: "warn-prod", When: `request.resourceAttributes.namespace == "prod"`, Warn: "this is production"},
		Rule{Name: "record-if-possible", When: `true`, Record: []string{"exec", "portForward"}, Required: &f},
		Rule{Name: "record-exec", When: `request.resourceAttributes.subresource == "exec"`, Record: []string{"exec", "attach"}},
		Rule{Name: "exec-reason", When: `request.resourceAttributes.subresource == "exec"`, RequireReason: true},
		Rule{Name: "no-secrets", When: `request.resourceAttributes.resource == "secrets"`, Deny: "Secrets stay in the cluster."},
		Rule{Name: "no-secrets-either", When: `request.resourceAttributes.resource == "secrets"`, Deny: "never shown"},
		Rule{Name: "warn-late", When: `true`, Warn: "late"},
	)
	for _, x := range []struct {
		why  string
		in   Input
		want Verdict
	}{
		{"all conditions", Input{Caller: two, Resource: execPod}, Verdict{
			Warnings: []Warning{{"warn-prod", "this is production"}, {"warn-late", "late"}},
			Record:   Recording{Exec: Required, Attach: Required, PortForward: BestEffort},
			Matched:  []string{"warn-prod", "record-if-possible", "record-exec", "exec-reason", "warn-late"},
		}},
		{"the first refusal", Input{Caller: two, Resource: getSecret}, Verdict{
			Refusal:  &Refusal{Rule: "no-secrets", Kind: Denied, Message: "Secrets stay in the cluster."},
			Warnings: []Warning{{"warn-prod", "this is production"}},
			Matched:  []string{"warn-prod", "record-if-possible", "no-secrets"},
		}},
	} {
		if diff := cmp.Diff(x.want, p.Judge(x.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}

// PRX-14: an expression that fails to evaluate denies, whatever the effect of its rule is.
func TestPRX14_FailedEvaluationDenies(t *testing.T) {
	for _, r := range []Rule{
		{Name: "bad", When: `caller.tags[0] == "tag:ci"`, Deny: "no"},
		{Name: "bad", When: `caller.tags[0] == "tag:ci"`, Warn: "w"},
		{Name: "bad", When: `caller.tags[size(caller.tags)] == "tag:ci"`, Record: []string{"exec"}},
		{Name: "bad", When: `size(caller.login) + 9223372036854775807 > 0`, RequireReason: true},
	} {
		v := mustCompile(t, r, Rule{Name: "later", When: "true", Warn: "w"}).Judge(Input{Caller: alice, NonResource: discovery})
		if v.Refusal == nil || v.Refusal.Detail == "" {
			t.Errorf("%s: %v, want a refusal with a detail", r.When, v)
			continue
		}
		v.Refusal.Detail = ""
		want := Verdict{Refusal: &Refusal{
			Rule: "bad", Kind: Failed, Message: `The rule "bad" of the access proxy's policy failed for this request.`,
			Advice: "Ask an administrator of the cluster to correct the rule.",
		}}
		if diff := cmp.Diff(want, v); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.When, diff)
		}
	}
}

// PRX-14: the cost is bounded for values up to the limits of the variables, so larger ones are refused.
func TestPRX14_LargeValuesAreRefused(t *testing.T) {
	p := mustCompile(t, Rule{Name: "r", When: "false", Deny: "no"})
	many := func(n, size int) (all []string) {
		for range n {
			all = append(all, strings.Repeat("x", size))
		}
		return all
	}
	for _, x := range []struct {
		in   Input
		want string
	}{
		{Input{Resource: Resource{Name: strings.Repeat("x", 1024)}}, ""},
		{Input{Resource: Resource{Name: strings.Repeat("x", 1025)}}, "request.resourceAttributes.name has 1025 bytes, more than 1024"},
		{Input{NonResource: NonResource{Path: strings.Repeat("/", 2049)}}, "request.nonResourceAttributes.path has 2049 bytes, more than 2048"},
		{Input{Impersonate: Impersonate{Groups: many(64, 256)}}, ""},
		{Input{Impersonate: Impersonate{Groups: many(65, 1)}}, "request.impersonate.groups has 65 values, more than 64"},
		{Input{Impersonate: Impersonate{Groups: many(1, 257)}}, "a value of request.impersonate.groups has 257 bytes, more than 256"},
		{Input{Caller: Caller{Roles: many(8, 253)}}, ""},
		{Input{Caller: Caller{Roles: many(9, 1)}}, "caller.roles has 9 values, more than 8"},
	} {
		got := ""
		if v := p.Judge(x.in); v.Refusal != nil {
			got = fmt.Sprint(v.Refusal.Kind, ": ", v.Refusal.Message)
		}
		want := x.want
		if want != "" {
			want = "tooLarge: The policy does not judge this request: " + want + "."
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if v := (*Policy)(nil).Judge(Input{Resource: Resource{Name: strings.Repeat("x", 1025)}}); !v.Allowed() {
		t.Errorf("without rules: %v, want it allowed", v)
	}
}

// Every variable resolves, is empty for an empty request, and has the value of its own field.
func TestVariables(t *testing.T) {
	full := Input{
		Resource:    Resource{"verb", "group", "version", "resource", "subresource", "namespace", "name"},
		NonResource: NonResource{"path", "nverb"}, Impersonate: Impersonate{"user", []string{"groups"}},
		Caller: Caller{"login", "device", []string{"tags"}, []string{"roles"}, "session", "reason"},
	}
	seen := map[string]bool{}
	for i, v := range table {
		if n := slot(v.name); n != i {
			t.Errorf("%s has the place %d, want %d", v.name, n, i)
		}
		empty, value := `""`, v.text
		if v.list > 0 {
			empty, value = `[]`, func(i *Input) string { return v.all(i)[0] }
		}
		// The mention of a path says that the rule may match discovery.
		p := mustCompile(t, deny(fmt.Sprintf(`%s == %s && request.nonResourceAttributes.path != "x"`, v.name, empty)))
		if got := p.Judge(Input{}); got.Allowed() {
			t.Errorf("%s is not empty for an empty request: %v", v.name, got)
		}
		if got := p.Judge(full); !got.Allowed() {
			t.Errorf("%s is empty for a full request: %v", v.name, got)
		}
		seen[value(&full)+v.name[:1]] = true
	}
	if len(seen) != len(table)-1 { // caller.role and caller.roles have one field
		t.Errorf("%d different values of %d variables: %v", len(seen), len(table), seen)
	}
	if n := len(activation{}.values); n != len(table) {
		t.Errorf("the activation has room for %d variables, want %d", n, len(table))
	}
}

// Rules judge concurrent requests independently.
func TestConcurrentJudge(t *testing.T) {
	p := mustCompile(t, deny(`caller.login == "alice@example.com" && request.resourceAttributes.name.matches("^x") && "a" in request.impersonate.groups`))
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			in := Input{Caller: alice, Resource: Resource{Name: "x"}, Impersonate: Impersonate{Groups: []string{"a"}}}
			if n%2 == 1 {
				in.Caller = two
			}
			for range 500 {
				if got, want := p.Judge(in).Allowed(), n%2 == 1; got != want {
					t.Errorf("caller %s: allowed %t, want %t", in.Caller.Login, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestEnforces(t *testing.T) {
	for _, x := range []struct {
		why  string
		rule Rule
		want bool
	}{
		{"deny", Rule{Deny: "no"}, true},
		{"requireReason", Rule{RequireReason: true}, true},
		{"record", Rule{Record: []string{"exec"}}, true},
		{"warn", Rule{Warn: "w"}, false},
	} {
		x.rule.Name, x.rule.When = "r", "true"
		if got := mustCompile(t, x.rule).Enforces(); got != x.want {
			t.Errorf("%s: Enforces() = %t, want %t", x.why, got, x.want)
		}
	}
	if (*Policy)(nil).Enforces() {
		t.Error("a policy without rules enforces something")
	}
}
