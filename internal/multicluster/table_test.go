package multicluster

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// newTestTable parses rules into a configuration with four clusters. The first one is home.
func newTestTable(t testing.TB, rules string, options ...string) *Table {
	t.Helper()
	doc := "apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nepoch: 7\nhome: here\nclusters:\n- {name: here, slot: 0, inCluster: true}\n"
	for i, name := range []string{"east", "west", "north"} {
		doc += fmt.Sprintf("- {name: %s, slot: %d, credentials: {secret: %s}}\n", name, i+1, name)
	}
	if rules != "" {
		doc += "rules:\n" + rules + "\n"
	}
	d, _, err := config.Parse([]byte(doc + strings.Join(options, "\n")))
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	return NewTable(d, testScopes)
}

// testScopes is the discovery of the custom resources in these tests.
func testScopes(group, resource string) config.Scope {
	switch resource + "." + group {
	case "widgets.example.com":
		return config.ScopeNamespaced
	case "regions.example.com":
		return config.ScopeCluster
	}
	return config.ScopeUnknown
}

// summarize returns a decision as one line.
func summarize(d *Decision) string {
	switch d.Kind {
	case DecisionHome, DecisionSingle:
		return string(d.Kind) + " " + d.Cluster
	case DecisionSpread:
		return "spread " + strings.Join(d.ClusterNames(), " ")
	case DecisionUnion:
		var parts []string
		for _, m := range d.Members {
			if m.Namespaces == nil {
				parts = append(parts, m.Cluster)
				continue
			}
			patterns, rest := m.Namespaces.Patterns()
			if rest {
				patterns = append(patterns, "all others")
			}
			parts = append(parts, m.Cluster+"("+strings.Join(patterns, ", ")+")")
		}
		return "union " + strings.Join(parts, " ")
	case DecisionDeny:
		return fmt.Sprintf("deny %d", d.Refusal.Status)
	}
	return string(d.Kind)
}

func routeRequest(t testing.TB, tb *Table, request string, input RouteInput) Decision {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	r, err := apiproxy.ParseRequest(method, u)
	if err != nil {
		t.Fatal(err)
	}
	return tb.Route(&r, input)
}

const specRules = `- {name: elections-at-home, match: {apiGroups: [coordination.k8s.io]}, target: {cluster: here}}
- {name: no-crds, match: {resources: [customresourcedefinitions], verbs: [create, delete]}, target: {deny: "CRDs are installed by the platform team"}}
- {name: production, match: {namespaces: [production, "prod-*"]}, target: {cluster: east}}
- name: batch
  match: {apiGroups: [batch], resources: [jobs], namespaces: [batch]}
  target: {spread: {members: [east, west]}}`

func TestRoute(t *testing.T) {
	spec := newTestTable(t, specRules)
	object := func(name string) RouteInput { return RouteInput{Object: &requestObject{Name: name}} }
	for _, tt := range []struct {
		table   *Table
		request string
		beside  RouteInput
		want    string
		why     string
	}{
		{spec, "GET /version", RouteInput{}, "home here", "not a resource"},
		{spec, "GET /openapi/v3", RouteInput{}, "home here", ""},
		{spec, "GET /api/v1/namespaces/other/pods", RouteInput{}, "home here", "no rule"},
		{spec, "GET /api/v1/namespaces/production/pods/a", RouteInput{}, "single east", ""},
		{spec, "POST /api/v1/namespaces/prod-x/pods/a/exec", RouteInput{}, "single east", "subresources too"},
		{spec, "POST /api/v1/namespaces/prod-x/pods", RouteInput{}, "single east", "no look into the body is needed"},
		{spec, "GET /apis/events.k8s.io/v1/namespaces/production/events", RouteInput{}, "single east", "the kubelet there writes them"},
		{spec, "GET /apis/coordination.k8s.io/v1/namespaces/production/leases/x", RouteInput{}, "single here", "an earlier rule"},
		{spec, "GET /apis/example.com/v1/namespaces/production/widgets", RouteInput{}, "single east", "custom resources too"},
		{spec, "GET /apis/unheard.of/v1/namespaces/production/things/a", RouteInput{}, "single east", "what is in a namespace is namespaced"},
		{spec, "GET /api/v1/namespaces/production", RouteInput{}, "single east", "the Namespace object of that name too"},
		{spec, "DELETE /api/v1/namespaces/prod-x", RouteInput{}, "single east", ""},
		{spec, "PUT /api/v1/namespaces/production/finalize", RouteInput{}, "single east", ""},
		{spec, "GET /api/v1/namespaces", RouteInput{}, "home here", "the list of namespaces is home's"},
		{spec, "GET /api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dproduction", RouteInput{}, "single east", "of one namespace"},
		{spec, "POST /api/v1/namespaces", RouteInput{}, "body", "its name decides"},
		{spec, "POST /api/v1/namespaces", object("prod-y"), "single east", ""},
		{spec, "POST /api/v1/namespaces", object("other"), "home here", ""},
		{spec, "POST /api/v1/namespaces", RouteInput{Object: &requestObject{GenerateName: "prod-"}}, "single east", "whatever it will be called"},
		{spec, "POST /api/v1/namespaces", RouteInput{Object: &requestObject{GenerateName: "production"}}, "home here", "it will be called otherwise"},
		{spec, "POST /api/v1/namespaces", RouteInput{Object: &requestObject{}}, "home here", "the server will refuse it"},
		{newTestTable(t, ""), "POST /api/v1/namespaces", RouteInput{}, "home here", "nobody asks for the name"},
		{spec, "GET /api/v1/nodes", RouteInput{}, "home here", "cluster-wide"},
		{spec, "GET /api/v1/nodes/n", RouteInput{}, "home here", "cluster-wide"},
		{spec, "GET /apis/example.com/v1/regions", RouteInput{}, "home here", "cluster-wide, as discovery says"},
		{spec, "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", RouteInput{}, "deny 403", ""},
		{spec, "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", RouteInput{}, "home here", "patches are not refused"},
		{spec, "POST /api/v1/namespaces/a/serviceaccounts/b/token", RouteInput{}, "deny 403", "a real credential"},
		{newTestTable(t, "", "allowTokenRequest: true"), "POST /api/v1/namespaces/a/serviceaccounts/b/token", RouteInput{}, "home here", ""},

		{spec, "GET /apis/batch/v1/namespaces/batch/jobs", RouteInput{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/namespaces/batch/jobs/a/status", RouteInput{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/watch/namespaces/batch/jobs", RouteInput{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/watch/namespaces/batch/jobs/a", RouteInput{}, "deny 400", "the old form names an object and is no get"},
		{spec, "GET /api/v1/watch/namespaces/production/pods/a", RouteInput{}, "single east", ""},
		{spec, "GET /apis/batch/v1/namespaces/batch/cronjobs", RouteInput{}, "home here", ""},
		{spec, "GET /apis/example.com/v1/namespaces/batch/jobs", RouteInput{}, "home here", "another group's jobs"},
		{spec, "DELETE /apis/batch/v1/namespaces/batch/jobs", RouteInput{}, "deny 405", "AD-10"},
		{spec, "DELETE /apis/batch/v1/namespaces/batch/jobs?fieldSelector=metadata.name%3Da", RouteInput{}, "deny 405", "AD-10: by a selector too"},
		{newTestTable(t, "- {name: a, match: {resources: [jobs]}, target: {spread: {members: [east, west], deleteCollection: all}}}"), "DELETE /apis/batch/v1/namespaces/batch/jobs", RouteInput{}, "spread east west", "AD-10: opted in"},

		{spec, "GET /api/v1/pods", RouteInput{}, "union here(all others) east(production, prod-*)", ""},
		{spec, "GET /api/v1/pods?watch=1", RouteInput{}, "union here(all others) east(production, prod-*)", ""},
		{spec, "GET /apis/batch/v1/jobs", RouteInput{}, "union here(all others) east(production, prod-*, batch) west(batch)", "a spread is part of it"},
		{spec, "GET /apis/coordination.k8s.io/v1/leases", RouteInput{}, "single here", "all of them are at home"},
		{spec, "DELETE /api/v1/pods", RouteInput{}, "deny 405", "AD-10"},
		{spec, "GET /apis/unheard.of/v1/things", RouteInput{}, "deny 503", "whether it is in namespaces is not known"},
		{newTestTable(t, "- {name: a, match: {apiGroups: [apps]}, target: {cluster: east}}"), "GET /apis/unheard.of/v1/things", RouteInput{}, "home here", "it makes no difference"},
		{newTestTable(t, specRules, "allNamespaces: home"), "GET /api/v1/pods", RouteInput{}, "home here", "as the document says"},
		{newTestTable(t, specRules, "unmatched: refuse"), "GET /api/v1/pods", RouteInput{}, "union east(production, prod-*)", ""},
		{newTestTable(t, specRules, "unmatched: refuse"), "GET /api/v1/namespaces/other/pods/a", RouteInput{}, "deny 403", "AD-04: nothing falls to home"},
		{newTestTable(t, specRules, "unmatched: refuse"), "POST /api/v1/namespaces/other/pods", RouteInput{}, "deny 403", "AD-04"},
		{newTestTable(t, specRules, "unmatched: refuse"), "GET /version", RouteInput{}, "home here", "not a resource"},
		{newTestTable(t, "- {name: a, match: {namespaces: [a]}, target: {cluster: here}}"), "GET /api/v1/pods", RouteInput{}, "single here", "one cluster has all"},
		{newTestTable(t, "- {name: a, match: {namespaces: [a]}, target: {cluster: east}}\n- {name: b, target: {cluster: east}}"), "GET /api/v1/pods", RouteInput{}, "single east", "one cluster has all"},
		{newTestTable(t, "- {name: a, match: {namespaces: [a], verbs: [list]}, target: {deny: no}}"), "GET /api/v1/pods", RouteInput{}, "union here(all others)", "but for what is refused"},
		{newTestTable(t, "- {name: a, match: {namespaces: [a], verbs: [create]}, target: {deny: no}}"), "GET /api/v1/pods", RouteInput{}, "home here", "creating is another verb"},

		{newTestTable(t, "- {name: a, match: {resources: [nodes]}, target: {cluster: east}}"), "GET /api/v1/nodes", RouteInput{}, "single east", "named, it is covered"},
		{newTestTable(t, `- {name: a, match: {resources: ["*"]}, target: {cluster: east}}`), "GET /api/v1/nodes", RouteInput{}, "home here", "the star is for namespaced ones"},
		{newTestTable(t, `- {name: a, match: {resources: ["*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x", RouteInput{}, "home here", "Namespaces are not in one"},
		{newTestTable(t, `- {name: a, match: {resources: [pods], namespaces: [x]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x", RouteInput{}, "home here", "only its pods move"},
		{newTestTable(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}\n- {name: b, match: {resources: [pods]}, target: {cluster: east}}"), "GET /api/v1/namespaces/x/pods/a/log", RouteInput{}, "single west", "the earlier rule names it"},
		{newTestTable(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}\n- {name: b, match: {resources: [pods]}, target: {cluster: east}}"), "GET /api/v1/namespaces/x/pods/a/exec", RouteInput{}, "single east", ""},
		{newTestTable(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}"), "GET /api/v1/namespaces/x/pods/a", RouteInput{}, "home here", ""},
		{newTestTable(t, `- {name: a, match: {userAgents: ["kubectl/*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", RouteInput{UserAgent: "kubectl/v1.37"}, "single east", ""},
		{newTestTable(t, `- {name: a, match: {userAgents: ["kubectl/*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", RouteInput{UserAgent: "other"}, "home here", ""},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods/job-1", RouteInput{}, "single east", ""},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods?fieldSelector=metadata.name%3Djob-1", RouteInput{}, "single east", ""},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", RouteInput{}, "home here", ""},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", RouteInput{}, "body", "AD-04"},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", object("job-1"), "single east", "AD-04"},
		{newTestTable(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", RouteInput{Object: &requestObject{GenerateName: "job-x"}}, "single east", "whatever it will be called"},
		{newTestTable(t, `- {name: a, match: {names: ["job-1"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", RouteInput{Object: &requestObject{GenerateName: "job-"}}, "home here", ""},
	} {
		t.Run(tt.request, func(t *testing.T) {
			d := routeRequest(t, tt.table, tt.request, tt.beside)
			if got := summarize(&d); got != tt.want {
				t.Errorf("%s, want %s: %s", got, tt.want, tt.why)
			}
			if d.Why == "" {
				t.Error("the decision has no reason")
			}
			if d.Rule != "" && d.Kind != DecisionDeny && !strings.Contains(d.Why, d.Rule) {
				t.Errorf("the rule is %s, the reason %q", d.Rule, d.Why)
			}
		})
	}
}

// TestPartialListWarns checks that a partial list has a warning.
func TestPartialListWarns(t *testing.T) {
	for _, tt := range []struct {
		table *Table
		says  string
	}{
		{newTestTable(t, specRules, "allNamespaces: home"), "left out: east"},
		{newTestTable(t, specRules, "unmatched: refuse"), "left out"},
		{newTestTable(t, "- {name: secret, match: {namespaces: [a], verbs: [list]}, target: {deny: no}}\n- {name: b, match: {namespaces: [b]}, target: {cluster: east}}"), "secret"},
	} {
		d := routeRequest(t, tt.table, "GET /api/v1/pods", RouteInput{})
		if !slices.ContainsFunc(d.Warnings, func(w string) bool { return strings.Contains(w, tt.says) }) {
			t.Errorf("%s: warnings %v, want %q", summarize(&d), d.Warnings, tt.says)
		}
	}
}

// TestUnionIsAPartition checks that each namespace of a union belongs to one cluster, the one that serves
// requests in that namespace.
func TestUnionIsAPartition(t *testing.T) {
	for _, rules := range []string{specRules,
		"- {name: a, match: {namespaces: [\"a*\"]}, target: {cluster: east}}\n- {name: b, match: {namespaces: [\"*b\", ab]}, target: {cluster: west}}\n- {name: c, match: {namespaces: [c], verbs: [list]}, target: {deny: no}}\n- {name: d, match: {namespaces: [d]}, target: {cluster: here}}",
	} {
		tb := newTestTable(t, rules)
		d := routeRequest(t, tb, "GET /api/v1/pods", RouteInput{})
		for _, ns := range []string{"production", "prod-a", "prod-", "a", "ab", "b", "xb", "c", "d", "other", "batch"} {
			var have []string
			for _, m := range d.Members {
				if m.Namespaces.Has(ns) {
					have = append(have, m.Cluster)
				}
			}
			one := routeRequest(t, tb, "GET /api/v1/namespaces/"+ns+"/pods", RouteInput{})
			if want := one.ClusterNames(); !slices.Equal(have, want) && !(one.Kind == DecisionDeny && have == nil) {
				t.Errorf("namespace %s belongs to %v in the union, and to %v alone", ns, have, want)
			}
		}
	}
}

// TestMustExist checks that a patch or update cannot create an object that a rule forbids to create.
func TestMustExist(t *testing.T) {
	tb := newTestTable(t, specRules+"\n- {name: no-roles, match: {resources: [roles], verbs: [create]}, target: {deny: \"no roles\"}}")
	apply := RouteInput{ContentType: "application/apply-patch+yaml"}
	for _, tt := range []struct {
		request string
		beside  RouteInput
		want    bool
	}{
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", apply, true},
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", RouteInput{ContentType: "application/merge-patch+json"}, false},
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x/status", apply, false},
		{"PUT /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", RouteInput{}, false},
		{"PUT /apis/rbac.authorization.k8s.io/v1/namespaces/a/roles/x", RouteInput{}, true},
		{"PUT /apis/rbac.authorization.k8s.io/v1/namespaces/production/roles/x", RouteInput{}, false},
		{"PATCH /api/v1/namespaces/a/pods/x", apply, false},
	} {
		d := routeRequest(t, tb, tt.request, tt.beside)
		if d.Kind == DecisionDeny || (d.MustExist != nil) != tt.want {
			t.Errorf("%s: %s, must exist %v, want %v", tt.request, summarize(&d), d.MustExist != nil, tt.want)
		}
	}
}

func TestReviews(t *testing.T) {
	tb := newTestTable(t, specRules+"\n- {name: no-secrets, match: {resources: [secrets], namespaces: [vault]}, target: {deny: no}}")
	for _, tt := range []struct {
		a    *reviewAttributes
		want string
	}{
		{nil, "home here"},
		{&reviewAttributes{Verb: "get", Resource: "pods", Namespace: "other"}, "single here"},
		{&reviewAttributes{Verb: "get", Resource: "pods", Namespace: "production"}, "single east"},
		{&reviewAttributes{Verb: "list", Resource: "pods"}, "union east here"},
		{&reviewAttributes{Verb: "create", Group: "batch", Resource: "jobs", Namespace: "batch"}, "union east west"},
		{&reviewAttributes{Verb: "list", Group: "batch", Resource: "jobs"}, "union east west here"},
		{&reviewAttributes{Verb: "get", Resource: "nodes", Namespace: "production"}, "single here"},
		{&reviewAttributes{Verb: "delete", Resource: "namespaces", Name: "production", Namespace: "default"}, "single east"},
		{&reviewAttributes{Verb: "list", Resource: "namespaces"}, "single here"},
		{&reviewAttributes{Verb: "create", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "deny 403"},
		{&reviewAttributes{Verb: "get", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "single here"},
		{&reviewAttributes{Verb: "get", Resource: "secrets", Namespace: "vault"}, "deny 403"},
		{&reviewAttributes{Verb: "get", Resource: "secrets", Namespace: "production"}, "single east"},
		{&reviewAttributes{Verb: "*", Group: "*", Resource: "*", Namespace: "production"}, "union here east"},
		{&reviewAttributes{Verb: "*", Group: "*", Resource: "*"}, "union here east west"},
		{&reviewAttributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "production"}, "single here"},
		{&reviewAttributes{Verb: "get", Group: "unheard.of", Resource: "things"}, "union east here"},
	} {
		d := routeRequest(t, tb, "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", RouteInput{Object: &requestObject{Attributes: tt.a}})
		if got := summarize(&d); got != tt.want || d.Review != (tt.a != nil) {
			t.Errorf("%+v: %s (review %v), want %s", tt.a, got, d.Review, tt.want)
		}
	}
	d := routeRequest(t, tb, "POST /apis/authorization.k8s.io/v1/namespaces/production/localsubjectaccessreviews", RouteInput{})
	if d.Kind != DecisionBody {
		t.Errorf("a review is routed without its body: %s", summarize(&d))
	}
	for ns, want := range map[string]string{"production": "single east", "other": "single here"} {
		d := routeRequest(t, tb, "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", RouteInput{Object: &requestObject{ReviewNamespace: ns}})
		if got := summarize(&d); got != want {
			t.Errorf("rules in %s: %s, want %s", ns, got, want)
		}
	}
	d = routeRequest(t, tb, "POST /apis/authentication.k8s.io/v1/tokenreviews", RouteInput{})
	if got := summarize(&d); got != "home here" {
		t.Errorf("a token review goes to %s", got)
	}
	d = routeRequest(t, newTestTable(t, ""), "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", RouteInput{})
	if got := summarize(&d); got != "home here" {
		t.Errorf("without rules a review is %s", got)
	}
}

// AD-04: the namespace in the URL decides, not the one in the body. The API server refuses a body with
// another namespace.
func TestNamespaceOfTheURL(t *testing.T) {
	tb := newTestTable(t, specRules)
	for _, ns := range []string{"", "production", "batch"} {
		d := routeRequest(t, tb, "POST /api/v1/namespaces/production/pods", RouteInput{Object: &requestObject{Name: "a", Namespace: ns}})
		if got := summarize(&d); got != "single east" {
			t.Errorf("a body with %q goes to %s", ns, got)
		}
		d = routeRequest(t, tb, "POST /api/v1/namespaces/other/pods", RouteInput{Object: &requestObject{Name: "a", Namespace: ns}})
		if got := summarize(&d); got != "home here" {
			t.Errorf("a body with %q goes to %s", ns, got)
		}
		o := requestObject{Namespace: ns, OwnerReferences: []ownerReference{{Kind: "Job", Name: "j"}}}
		if ref, ok := o.anchor(); !ok || ref.Namespace != "" {
			t.Errorf("the lookup of its owner is in %q", ref.Namespace)
		}
	}
}

// manyRules returns a table with 1,000 rules.
func manyRules(b *testing.B, form string) *Table {
	var rules []string
	for i := range 1000 {
		rules = append(rules, strings.ReplaceAll(form, "N", fmt.Sprint(1000+i)))
	}
	return newTestTable(b, strings.Join(rules, "\n"))
}

func BenchmarkRoute(b *testing.B) {
	for _, bb := range []struct{ name, form, target string }{
		{"namespaces", "- {name: rN, match: {namespaces: [team-N]}, target: {cluster: east}}", "/api/v1/namespaces/team-1999/pods/a"},
		{"patterns", `- {name: rN, match: {namespaces: ["team-N-*"]}, target: {cluster: east}}`, "/api/v1/namespaces/team-1999-x/pods/a"},
		{"resources", `- {name: rN, match: {resources: [thingN]}, target: {cluster: east}}`, "/apis/example.com/v1/namespaces/x/thing1999/a"},
		{"nothing", `- {name: rN, match: {namespaces: ["*-team-N"]}, target: {cluster: east}}`, "/api/v1/namespaces/other/pods/a"},
		{"all-namespaces", "- {name: rN, match: {namespaces: [team-N]}, target: {cluster: east}}", "/api/v1/pods"},
	} {
		b.Run(bb.name, func(b *testing.B) {
			tb := manyRules(b, bb.form)
			u, err := url.ParseRequestURI(bb.target)
			if err != nil {
				b.Fatal(err)
			}
			r, err := apiproxy.ParseRequest(http.MethodGet, u)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				d := tb.Route(&r, RouteInput{})
				if d.Kind == DecisionDeny {
					b.Fatal(d.Why)
				}
			}
		})
	}
}

// TestExampleConfig checks that the example of the specification routes as the specification describes.
func TestExampleConfig(t *testing.T) {
	b, err := os.ReadFile("config/testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := config.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got := routeRequest(t, NewTable(d, nil), "GET /apis/batch/v1/namespaces/batch/jobs", RouteInput{})
	switch s := summarize(&got); {
	case s != "spread east west":
		t.Errorf("jobs of batch: s = %q, want %q", s, "spread east west")
	case got.Rule != "batch":
		t.Errorf("jobs of batch: got.Rule = %q, want %q", got.Rule, "batch")
	case got.Spread.Weight("east") != 70:
		t.Errorf(`jobs of batch: got.Spread.Weight("east") != 70; %s, %s`, s, got.Rule)
	}
}

// TestIndexesFindTheFirst checks that the indexes find the same rule as a linear search.
func TestIndexesFindTheFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	some := func(field string, from ...string) string {
		if r.IntN(2) == 0 {
			return ""
		}
		list := []string{}
		for range 1 + r.IntN(2) {
			list = append(list, fmt.Sprintf("%q", pick(from...)))
		}
		return field + ": [" + strings.Join(list, ", ") + "], "
	}
	for range 300 {
		var rules []config.Rule
		for i := range 1 + r.IntN(8) {
			match := some("namespaces", "a", "ab", "abc", "a*", "*b", "ab*", "*", "a*c", "b*") + some("apiGroups", "", "apps", "example.com") +
				some("resources", "pods", "widgets", "deployments") + some("verbs", "get", "list")
			doc := fmt.Sprintf("apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nepoch: 1\nhome: here\nclusters: [{name: here, slot: 0, inCluster: true}, {name: east, slot: 1, credentials: {secret: e}}, {name: west, slot: 2, credentials: {secret: w}}]\n"+
				"rules: [{name: r%d, match: {%s}, allowVerbSplit: true, target: {cluster: %s}}]", i, strings.TrimSuffix(match, ", "), pick("here", "east", "west"))
			d, _, err := config.Parse([]byte(doc))
			if err != nil {
				t.Fatalf("%v\n%s", err, doc)
			}
			rules = append(rules, d.Rules[0]) // one at a time, so that shadowed rules are included
		}
		d := newTestTable(t, "").Config()
		tb := NewTable(&config.Config{Home: d.Home, Clusters: d.Clusters, Unmatched: d.Unmatched, AllNamespaces: d.AllNamespaces, Rules: rules}, testScopes)
		for range 50 {
			q := routeQuery{verb: pick("get", "list"), group: pick("", "apps", "example.com"), resource: pick("pods", "widgets", "deployments", "x"), namespace: pick("", "a", "ab", "abc", "b", "abb", "c"), namespaced: true}
			want := slices.IndexFunc(tb.rules, func(r compiledRule) bool { yes, _ := q.matches(&r.Match, q.verb); return yes })
			if got, _, _ := tb.firstMatch(&q); got != want {
				t.Fatalf("%+v: the first rule is %d, want %d of %+v", q, got, want, rules)
			}
		}
		for _, target := range []string{"/api/v1/pods", "/apis/apps/v1/deployments", "/apis/example.com/v1/widgets"} {
			got := routeRequest(t, tb, "GET "+target, RouteInput{})
			var want []string
			for _, ns := range []string{"a", "ab", "abc", "b", "abb", "c", "zb", "ac", "bz"} {
				in := strings.Replace(target, "/v1/", "/v1/namespaces/"+ns+"/", 1)
				d := routeRequest(t, tb, "GET "+in, RouteInput{})
				want = append(want, d.ClusterNames()...)
				if got.Kind == DecisionUnion && slices.ContainsFunc(got.Members, func(m Member) bool { return m.Namespaces.Has(ns) != (m.Cluster == d.Cluster) }) {
					t.Fatalf("%s: namespace %s is %s's, not so in %s", target, ns, d.Cluster, summarize(&got))
				}
			}
			for _, c := range want {
				if !slices.Contains(got.ClusterNames(), c) {
					t.Fatalf("%s includes %v, but %s has a namespace", target, got.ClusterNames(), c)
				}
			}
		}
	}
}
