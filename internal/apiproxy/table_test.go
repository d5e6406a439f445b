package apiproxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

// table parses rules into a configuration with four clusters. The first one is home.
func table(t testing.TB, rules string, options ...string) *Table {
	t.Helper()
	doc := "apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nepoch: 7\nhome: here\nclusters:\n- {name: here, slot: 0, inCluster: true}\n"
	for i, name := range []string{"east", "west", "north"} {
		doc += fmt.Sprintf("- {name: %s, slot: %d, credentials: {secret: %s}}\n", name, i+1, name)
	}
	if rules != "" {
		doc += "rules:\n" + rules + "\n"
	}
	d, _, err := document.Parse([]byte(doc + strings.Join(options, "\n")))
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	return NewTable(d, scopes)
}

// scopes is the discovery of the custom resources in these tests.
func scopes(group, resource string) document.Scope {
	switch resource + "." + group {
	case "widgets.example.com":
		return document.Namespaced
	case "regions.example.com":
		return document.ClusterWide
	}
	return document.Unknown
}

// summary returns a decision as one line.
func summary(d *Decision) string {
	switch d.Kind {
	case Home, Single:
		return string(d.Kind) + " " + d.Cluster
	case Spread:
		return "spread " + strings.Join(d.Clusters(), " ")
	case Union:
		var parts []string
		for _, m := range d.Members {
			if m.Namespaces == nil {
				parts = append(parts, m.Cluster)
				continue
			}
			parts = append(parts, m.Cluster+"("+m.Namespaces.String()+")")
		}
		return "union " + strings.Join(parts, " ")
	case Deny:
		return fmt.Sprintf("deny %d", d.Refusal.Status)
	}
	return string(d.Kind)
}

func routed(t testing.TB, tb *Table, request string, beside Beside) Decision {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	u, err := parseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(method, u)
	if err != nil {
		t.Fatal(err)
	}
	return tb.Route(&r, beside)
}

const specRules = `- {name: elections-at-home, match: {apiGroups: [coordination.k8s.io]}, target: {cluster: here}}
- {name: no-crds, match: {resources: [customresourcedefinitions], verbs: [create, delete]}, target: {deny: "CRDs are installed by the platform team"}}
- {name: production, match: {namespaces: [production, "prod-*"]}, target: {cluster: east}}
- name: batch
  match: {apiGroups: [batch], resources: [jobs], namespaces: [batch]}
  target: {spread: {members: [east, west]}}`

func TestRoute(t *testing.T) {
	spec := table(t, specRules)
	object := func(name string) Beside { return Beside{Object: &Object{Name: name}} }
	for _, tt := range []struct {
		table   *Table
		request string
		beside  Beside
		want    string
		why     string
	}{
		{spec, "GET /version", Beside{}, "home here", "no resource"},
		{spec, "GET /openapi/v3", Beside{}, "home here", ""},
		{spec, "GET /api/v1/namespaces/other/pods", Beside{}, "home here", "no rule"},
		{spec, "GET /api/v1/namespaces/production/pods/a", Beside{}, "single east", ""},
		{spec, "POST /api/v1/namespaces/prod-x/pods/a/exec", Beside{}, "single east", "subresources too"},
		{spec, "POST /api/v1/namespaces/prod-x/pods", Beside{}, "single east", "no look into the body is needed"},
		{spec, "GET /apis/events.k8s.io/v1/namespaces/production/events", Beside{}, "single east", "the kubelet there writes them"},
		{spec, "GET /apis/coordination.k8s.io/v1/namespaces/production/leases/x", Beside{}, "single here", "an earlier rule"},
		{spec, "GET /apis/example.com/v1/namespaces/production/widgets", Beside{}, "single east", "custom resources too"},
		{spec, "GET /apis/unheard.of/v1/namespaces/production/things/a", Beside{}, "single east", "what is in a namespace is namespaced"},
		{spec, "GET /api/v1/namespaces/production", Beside{}, "single east", "the Namespace object of that name too"},
		{spec, "DELETE /api/v1/namespaces/prod-x", Beside{}, "single east", ""},
		{spec, "PUT /api/v1/namespaces/production/finalize", Beside{}, "single east", ""},
		{spec, "GET /api/v1/namespaces", Beside{}, "home here", "the list of namespaces is home's"},
		{spec, "GET /api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dproduction", Beside{}, "single east", "of one namespace"},
		{spec, "POST /api/v1/namespaces", Beside{}, "body", "its name decides"},
		{spec, "POST /api/v1/namespaces", object("prod-y"), "single east", ""},
		{spec, "POST /api/v1/namespaces", object("other"), "home here", ""},
		{spec, "POST /api/v1/namespaces", Beside{Object: &Object{GenerateName: "prod-"}}, "single east", "whatever it will be called"},
		{spec, "POST /api/v1/namespaces", Beside{Object: &Object{GenerateName: "production"}}, "home here", "it will be called otherwise"},
		{spec, "POST /api/v1/namespaces", Beside{Object: &Object{}}, "home here", "the server will refuse it"},
		{table(t, ""), "POST /api/v1/namespaces", Beside{}, "home here", "nobody asks for the name"},
		{spec, "GET /api/v1/nodes", Beside{}, "home here", "cluster-wide"},
		{spec, "GET /api/v1/nodes/n", Beside{}, "home here", "cluster-wide"},
		{spec, "GET /apis/example.com/v1/regions", Beside{}, "home here", "cluster-wide, as discovery says"},
		{spec, "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Beside{}, "deny 403", ""},
		{spec, "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", Beside{}, "home here", "patches are not refused"},
		{spec, "POST /api/v1/namespaces/a/serviceaccounts/b/token", Beside{}, "deny 403", "a real credential"},
		{table(t, "", "allowTokenRequest: true"), "POST /api/v1/namespaces/a/serviceaccounts/b/token", Beside{}, "home here", ""},

		{spec, "GET /apis/batch/v1/namespaces/batch/jobs", Beside{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/namespaces/batch/jobs/a/status", Beside{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/watch/namespaces/batch/jobs", Beside{}, "spread east west", ""},
		{spec, "GET /apis/batch/v1/watch/namespaces/batch/jobs/a", Beside{}, "deny 400", "the old form names an object and is no get"},
		{spec, "GET /api/v1/watch/namespaces/production/pods/a", Beside{}, "single east", ""},
		{spec, "GET /apis/batch/v1/namespaces/batch/cronjobs", Beside{}, "home here", ""},
		{spec, "GET /apis/example.com/v1/namespaces/batch/jobs", Beside{}, "home here", "another group's jobs"},
		{spec, "DELETE /apis/batch/v1/namespaces/batch/jobs", Beside{}, "deny 405", "AD-10"},
		{spec, "DELETE /apis/batch/v1/namespaces/batch/jobs?fieldSelector=metadata.name%3Da", Beside{}, "deny 405", "AD-10: by a selector too"},
		{table(t, "- {name: a, match: {resources: [jobs]}, target: {spread: {members: [east, west], deleteCollection: all}}}"), "DELETE /apis/batch/v1/namespaces/batch/jobs", Beside{}, "spread east west", "AD-10: opted in"},

		{spec, "GET /api/v1/pods", Beside{}, "union here(all that no rule names) east(production, prod-*)", ""},
		{spec, "GET /api/v1/pods?watch=1", Beside{}, "union here(all that no rule names) east(production, prod-*)", ""},
		{spec, "GET /apis/batch/v1/jobs", Beside{}, "union here(all that no rule names) east(production, prod-*, batch) west(batch)", "a spread is part of it"},
		{spec, "GET /apis/coordination.k8s.io/v1/leases", Beside{}, "single here", "all of them are at home"},
		{spec, "DELETE /api/v1/pods", Beside{}, "deny 405", "AD-10"},
		{spec, "GET /apis/unheard.of/v1/things", Beside{}, "deny 503", "whether it is in namespaces is not known"},
		{table(t, "- {name: a, match: {apiGroups: [apps]}, target: {cluster: east}}"), "GET /apis/unheard.of/v1/things", Beside{}, "home here", "it makes no difference"},
		{table(t, specRules, "allNamespaces: home"), "GET /api/v1/pods", Beside{}, "home here", "as the document says"},
		{table(t, specRules, "unmatched: refuse"), "GET /api/v1/pods", Beside{}, "union east(production, prod-*)", ""},
		{table(t, specRules, "unmatched: refuse"), "GET /api/v1/namespaces/other/pods/a", Beside{}, "deny 403", "AD-04: nothing falls to home"},
		{table(t, specRules, "unmatched: refuse"), "POST /api/v1/namespaces/other/pods", Beside{}, "deny 403", "AD-04"},
		{table(t, specRules, "unmatched: refuse"), "GET /version", Beside{}, "home here", "no resource"},
		{table(t, "- {name: a, match: {namespaces: [a]}, target: {cluster: here}}"), "GET /api/v1/pods", Beside{}, "single here", "one cluster has all"},
		{table(t, "- {name: a, match: {namespaces: [a]}, target: {cluster: east}}\n- {name: b, target: {cluster: east}}"), "GET /api/v1/pods", Beside{}, "single east", "one cluster has all"},
		{table(t, "- {name: a, match: {namespaces: [a], verbs: [list]}, target: {deny: no}}"), "GET /api/v1/pods", Beside{}, "union here(all that no rule names)", "but for what is refused"},
		{table(t, "- {name: a, match: {namespaces: [a], verbs: [create]}, target: {deny: no}}"), "GET /api/v1/pods", Beside{}, "home here", "creating is another verb"},

		{table(t, "- {name: a, match: {resources: [nodes]}, target: {cluster: east}}"), "GET /api/v1/nodes", Beside{}, "single east", "named, it is covered"},
		{table(t, `- {name: a, match: {resources: ["*"]}, target: {cluster: east}}`), "GET /api/v1/nodes", Beside{}, "home here", "the star is for namespaced ones"},
		{table(t, `- {name: a, match: {resources: ["*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x", Beside{}, "home here", "Namespaces are not in one"},
		{table(t, `- {name: a, match: {resources: [pods], namespaces: [x]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x", Beside{}, "home here", "only its pods move"},
		{table(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}\n- {name: b, match: {resources: [pods]}, target: {cluster: east}}"), "GET /api/v1/namespaces/x/pods/a/log", Beside{}, "single west", "the earlier rule names it"},
		{table(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}\n- {name: b, match: {resources: [pods]}, target: {cluster: east}}"), "GET /api/v1/namespaces/x/pods/a/exec", Beside{}, "single east", ""},
		{table(t, "- {name: a, match: {resources: [pods/log]}, target: {cluster: west}}"), "GET /api/v1/namespaces/x/pods/a", Beside{}, "home here", ""},
		{table(t, `- {name: a, match: {userAgents: ["kubectl/*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", Beside{UserAgent: "kubectl/v1.37"}, "single east", ""},
		{table(t, `- {name: a, match: {userAgents: ["kubectl/*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", Beside{UserAgent: "other"}, "home here", ""},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods/job-1", Beside{}, "single east", ""},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods?fieldSelector=metadata.name%3Djob-1", Beside{}, "single east", ""},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "GET /api/v1/namespaces/x/pods", Beside{}, "home here", ""},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", Beside{}, "body", "AD-04"},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", object("job-1"), "single east", "AD-04"},
		{table(t, `- {name: a, match: {names: ["job-*"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", Beside{Object: &Object{GenerateName: "job-x"}}, "single east", "whatever it will be called"},
		{table(t, `- {name: a, match: {names: ["job-1"]}, target: {cluster: east}}`), "POST /api/v1/namespaces/x/pods", Beside{Object: &Object{GenerateName: "job-"}}, "home here", ""},
	} {
		t.Run(tt.request, func(t *testing.T) {
			d := routed(t, tt.table, tt.request, tt.beside)
			if got := summary(&d); got != tt.want {
				t.Errorf("%s, want %s: %s", got, tt.want, tt.why)
			}
			if d.Why == "" {
				t.Error("the decision does not say why")
			}
			if d.Rule != "" && d.Kind != Deny && !strings.Contains(d.Why, d.Rule) {
				t.Errorf("the rule is %s, the reason %q", d.Rule, d.Why)
			}
		})
	}
}

// TestPartIsSaid checks that a partial list has a warning.
func TestPartIsSaid(t *testing.T) {
	for _, tt := range []struct {
		table *Table
		says  string
	}{
		{table(t, specRules, "allNamespaces: home"), "left out: east"},
		{table(t, specRules, "unmatched: refuse"), "left out"},
		{table(t, "- {name: secret, match: {namespaces: [a], verbs: [list]}, target: {deny: no}}\n- {name: b, match: {namespaces: [b]}, target: {cluster: east}}"), "secret"},
	} {
		d := routed(t, tt.table, "GET /api/v1/pods", Beside{})
		if !slices.ContainsFunc(d.Warnings, func(w string) bool { return strings.Contains(w, tt.says) }) {
			t.Errorf("%s: warnings %v, want %q", summary(&d), d.Warnings, tt.says)
		}
	}
}

// TestUnionIsAPartition checks that each namespace of a union belongs to one cluster, the one that serves
// requests in that namespace.
func TestUnionIsAPartition(t *testing.T) {
	for _, rules := range []string{specRules,
		"- {name: a, match: {namespaces: [\"a*\"]}, target: {cluster: east}}\n- {name: b, match: {namespaces: [\"*b\", ab]}, target: {cluster: west}}\n- {name: c, match: {namespaces: [c], verbs: [list]}, target: {deny: no}}\n- {name: d, match: {namespaces: [d]}, target: {cluster: here}}",
	} {
		tb := table(t, rules)
		d := routed(t, tb, "GET /api/v1/pods", Beside{})
		for _, ns := range []string{"production", "prod-a", "prod-", "a", "ab", "b", "xb", "c", "d", "other", "batch"} {
			var have []string
			for _, m := range d.Members {
				if m.Namespaces.Has(ns) {
					have = append(have, m.Cluster)
				}
			}
			one := routed(t, tb, "GET /api/v1/namespaces/"+ns+"/pods", Beside{})
			if want := one.Clusters(); !slices.Equal(have, want) && !(one.Kind == Deny && have == nil) {
				t.Errorf("namespace %s is of %v in the union, and of %v alone", ns, have, want)
			}
		}
	}
}

// TestMustExist checks that a patch or update cannot create an object that a rule forbids to create.
func TestMustExist(t *testing.T) {
	tb := table(t, specRules+"\n- {name: no-roles, match: {resources: [roles], verbs: [create]}, target: {deny: \"no roles\"}}")
	apply := Beside{ContentType: "application/apply-patch+yaml"}
	for _, tt := range []struct {
		request string
		beside  Beside
		want    bool
	}{
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", apply, true},
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", Beside{ContentType: "application/merge-patch+json"}, false},
		{"PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x/status", apply, false},
		{"PUT /apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", Beside{}, false},
		{"PUT /apis/rbac.authorization.k8s.io/v1/namespaces/a/roles/x", Beside{}, true},
		{"PUT /apis/rbac.authorization.k8s.io/v1/namespaces/production/roles/x", Beside{}, false},
		{"PATCH /api/v1/namespaces/a/pods/x", apply, false},
	} {
		d := routed(t, tb, tt.request, tt.beside)
		if d.Kind == Deny || (d.MustExist != nil) != tt.want {
			t.Errorf("%s: %s, must exist %v, want %v", tt.request, summary(&d), d.MustExist != nil, tt.want)
		}
	}
}

func TestReviews(t *testing.T) {
	tb := table(t, specRules+"\n- {name: no-secrets, match: {resources: [secrets], namespaces: [vault]}, target: {deny: no}}")
	for _, tt := range []struct {
		a    *Attributes
		want string
	}{
		{nil, "home here"},
		{&Attributes{Verb: "get", Resource: "pods", Namespace: "other"}, "single here"},
		{&Attributes{Verb: "get", Resource: "pods", Namespace: "production"}, "single east"},
		{&Attributes{Verb: "list", Resource: "pods"}, "union east here"},
		{&Attributes{Verb: "create", Group: "batch", Resource: "jobs", Namespace: "batch"}, "union east west"},
		{&Attributes{Verb: "list", Group: "batch", Resource: "jobs"}, "union east west here"},
		{&Attributes{Verb: "get", Resource: "nodes", Namespace: "production"}, "single here"},
		{&Attributes{Verb: "delete", Resource: "namespaces", Name: "production", Namespace: "default"}, "single east"},
		{&Attributes{Verb: "list", Resource: "namespaces"}, "single here"},
		{&Attributes{Verb: "create", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "deny 403"},
		{&Attributes{Verb: "get", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "single here"},
		{&Attributes{Verb: "get", Resource: "secrets", Namespace: "vault"}, "deny 403"},
		{&Attributes{Verb: "get", Resource: "secrets", Namespace: "production"}, "single east"},
		{&Attributes{Verb: "*", Group: "*", Resource: "*", Namespace: "production"}, "union here east"},
		{&Attributes{Verb: "*", Group: "*", Resource: "*"}, "union here east west"},
		{&Attributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "production"}, "single here"},
		{&Attributes{Verb: "get", Group: "unheard.of", Resource: "things"}, "union east here"},
	} {
		d := routed(t, tb, "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Beside{Object: &Object{Attributes: tt.a}})
		if got := summary(&d); got != tt.want || d.Review != (tt.a != nil) {
			t.Errorf("%+v: %s (review %v), want %s", tt.a, got, d.Review, tt.want)
		}
	}
	d := routed(t, tb, "POST /apis/authorization.k8s.io/v1/namespaces/production/localsubjectaccessreviews", Beside{})
	if d.Kind != Body {
		t.Errorf("a review is routed without a look: %s", summary(&d))
	}
	for ns, want := range map[string]string{"production": "single east", "other": "single here"} {
		d := routed(t, tb, "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", Beside{Object: &Object{ReviewNamespace: ns}})
		if got := summary(&d); got != want {
			t.Errorf("rules in %s: %s, want %s", ns, got, want)
		}
	}
	d = routed(t, tb, "POST /apis/authentication.k8s.io/v1/tokenreviews", Beside{})
	if got := summary(&d); got != "home here" {
		t.Errorf("a token review goes to %s", got)
	}
	d = routed(t, table(t, ""), "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Beside{})
	if got := summary(&d); got != "home here" {
		t.Errorf("without rules a review is %s", got)
	}
}

// AD-04: the namespace in the URL decides, not the one in the body. The API server refuses a body with
// another namespace.
func TestNamespaceOfTheURL(t *testing.T) {
	tb := table(t, specRules)
	for _, ns := range []string{"", "production", "batch"} {
		d := routed(t, tb, "POST /api/v1/namespaces/production/pods", Beside{Object: &Object{Name: "a", Namespace: ns}})
		if got := summary(&d); got != "single east" {
			t.Errorf("a body that says %q goes to %s", ns, got)
		}
		d = routed(t, tb, "POST /api/v1/namespaces/other/pods", Beside{Object: &Object{Name: "a", Namespace: ns}})
		if got := summary(&d); got != "home here" {
			t.Errorf("a body that says %q goes to %s", ns, got)
		}
		o := Object{Namespace: ns, OwnerReferences: []OwnerReference{{Kind: "Job", Name: "j"}}}
		if ref, ok := o.Anchor(); !ok || ref.Namespace != "" {
			t.Errorf("its owner is looked for in %q", ref.Namespace)
		}
	}
}

// many returns a table with 1,000 rules.
func many(b *testing.B, form string) *Table {
	var rules []string
	for i := range 1000 {
		rules = append(rules, strings.ReplaceAll(form, "N", fmt.Sprint(1000+i)))
	}
	return table(b, strings.Join(rules, "\n"))
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
			tb := many(b, bb.form)
			u, err := parseTarget(bb.target)
			if err != nil {
				b.Fatal(err)
			}
			r, err := Parse(http.MethodGet, u)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				d := tb.Route(&r, Beside{})
				if d.Kind == Deny {
					b.Fatal(d.Why)
				}
			}
		})
	}
}

// TestExampleDocument checks that the example of the specification routes as the specification describes.
func TestExampleDocument(t *testing.T) {
	b, err := os.ReadFile("document/testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := document.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got := routed(t, NewTable(d, nil), "GET /apis/batch/v1/namespaces/batch/jobs", Beside{})
	if s := summary(&got); s != "spread east west" || got.Rule != "batch" || got.Spread.Weight("east") != 70 {
		t.Errorf("jobs of batch: %s by %s", s, got.Rule)
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
		var rules []document.Rule
		for i := range 1 + r.IntN(8) {
			match := some("namespaces", "a", "ab", "abc", "a*", "*b", "ab*", "*", "a*c", "b*") + some("apiGroups", "", "apps", "example.com") +
				some("resources", "pods", "widgets", "deployments") + some("verbs", "get", "list")
			doc := fmt.Sprintf("apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nepoch: 1\nhome: here\nclusters: [{name: here, slot: 0, inCluster: true}, {name: east, slot: 1, credentials: {secret: e}}, {name: west, slot: 2, credentials: {secret: w}}]\n"+
				"rules: [{name: r%d, match: {%s}, allowVerbSplit: true, target: {cluster: %s}}]", i, strings.TrimSuffix(match, ", "), pick("here", "east", "west"))
			d, _, err := document.Parse([]byte(doc))
			if err != nil {
				t.Fatalf("%v\n%s", err, doc)
			}
			rules = append(rules, d.Rules[0]) // one at a time, so that shadowed rules are included
		}
		d := table(t, "").Document()
		tb := NewTable(&document.Document{Home: d.Home, Clusters: d.Clusters, Unmatched: d.Unmatched, AllNamespaces: d.AllNamespaces, Rules: rules}, scopes)
		for range 50 {
			q := question{verb: pick("get", "list"), group: pick("", "apps", "example.com"), resource: pick("pods", "widgets", "deployments", "x"), namespace: pick("", "a", "ab", "abc", "b", "abb", "c"), namespaced: true}
			want := slices.IndexFunc(tb.rules, func(r rule) bool { yes, _ := q.matches(&r.Match, q.verb); return yes })
			if got, _, _ := tb.first(&q); got != want {
				t.Fatalf("%+v: the first rule is %d, want %d of %+v", q, got, want, rules)
			}
		}
		for _, target := range []string{"/api/v1/pods", "/apis/apps/v1/deployments", "/apis/example.com/v1/widgets"} {
			got := routed(t, tb, "GET "+target, Beside{})
			var want []string
			for _, ns := range []string{"a", "ab", "abc", "b", "abb", "c", "zb", "ac", "bz"} {
				in := strings.Replace(target, "/v1/", "/v1/namespaces/"+ns+"/", 1)
				d := routed(t, tb, "GET "+in, Beside{})
				want = append(want, d.Clusters()...)
				if got.Kind == Union && slices.ContainsFunc(got.Members, func(m Member) bool { return m.Namespaces.Has(ns) != (m.Cluster == d.Cluster) }) {
					t.Fatalf("%s: namespace %s is %s's, not so in %s", target, ns, d.Cluster, summary(&got))
				}
			}
			for _, c := range want {
				if !slices.Contains(got.Clusters(), c) {
					t.Fatalf("%s asks %v, but %s has a namespace", target, got.Clusters(), c)
				}
			}
		}
	}
}
