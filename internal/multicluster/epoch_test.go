package multicluster

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

func exampleConfig(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("config/testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parseConfig(t testing.TB, s string) *config.Config {
	t.Helper()
	d, _, err := config.Parse([]byte(s))
	if err != nil {
		t.Fatalf("%v\n%s", err, s)
	}
	return d
}

// TestEpoch checks that a change that moves objects needs a higher epoch, and that no other change does.
func TestEpoch(t *testing.T) {
	doc := exampleConfig(t)
	prev := parseConfig(t, doc)
	north := "rules:"
	for _, tt := range []struct {
		name, old, new string
		says           string // "": the change moves nothing
	}{
		{"nothing", "epoch: 7", "epoch: 7", ""},
		{"cluster added", north, "- {name: north, slot: 3, credentials: {secret: north}}\nrules:", ""},
		{"member added", "members: [east, west]", "members: [east, west, here]", ""},
		{"member added before", "members: [east, west]", "members: [here, east, west]", ""},
		{"weights", "east: 70", "east: 10", ""},
		{"placement", "tier in (gold)", "tier in (iron)", ""},
		{"limits", "qps: 50", "qps: 5", ""},
		{"uid learned", "- {name: here, slot: 0, inCluster: true}", "- {name: here, slot: 0, inCluster: true, uid: 00000000-0000-4000-8000-000000000000}", ""},
		{"one server of two", `"https://10.1.0.1:6443", `, "", ""},
		{"Secret renamed, with its uid", "secret: east", "secret: east-2", ""},
		{"creating is denied", "verbs: [create, delete]", "verbs: [create]", ""},
		{"a rule renamed", "name: production", "name: prod", ""},
		{"patterns in another order", `[production, "prod-*"]`, `["prod-*", production]`, ""},
		{"a last rule for home", "allNamespaces: union", "- {name: last, match: {namespaces: [other]}, target: {cluster: here}}\nallNamespaces: union", ""},
		{"a last rule for home and another", "allNamespaces: union", "- {name: last, match: {resources: [pods], namespaces: [other]}, target: {spread: {members: [here, east]}}}\nallNamespaces: union", ""},
		{"a refusal of writing", "rules:\n", "rules:\n- {name: first, match: {namespaces: [other], verbs: [update]}, target: {deny: no}}\n", ""},

		{"member removed", "members: [east, west]\n      place: [{labels: \"tier in (gold)\", cluster: east}]\n      strategy: hash\n      weights: {east: 70, west: 30}", "members: [east, here]", "the objects of rule batch move from east, west to east, here"},
		{"members in another order", "members: [east, west]", "members: [west, east]", "the order of the members of rule batch changes"},
		{"another policy", "onConflict: reject", "onConflict: prefer", "onConflict of rule batch"},
		{"slot", "slot: 2", "slot: 3", "the slot of west changes from 2 to 3"},
		{"slots exchanged", "slot: 1", "slot: 9", "the slot of east"},
		{"uid", "uid: 5d0f2c1e", "uid: 6d0f2c1e", "the uid of east"},
		{"uid dropped", "  uid: 5d0f2c1e-0000-4000-8000-000000000001\n", "", "the uid of east"},
		{"all servers", `["https://10.1.0.1:6443", "https://10.1.0.2:6443"]`, `["https://10.9.0.1:6443"]`, "west may be another cluster"},
		{"namespace pattern", `[production, "prod-*"]`, `[production, "prd-*"]`, "rule production does not match the same objects as before"},
		{"namespace added", "[production,", "[production, other,", "rule production does not match the same objects as before"},
		{"target", "target: {cluster: east}", "target: {cluster: west}", "the objects of rule production move from east to west"},
		{"rule removed", "- {name: production, match: {namespaces: [production, \"prod-*\"]}, target: {cluster: east}}\n", "", "rule production is removed: its objects were in east"},
		{"rule in between", "rules:\n", "rules:\n- {name: first, match: {namespaces: [\"*-x\"]}, target: {cluster: west}}\n", "rule first is new: its objects are in west"},
		{"reading is denied", "rules:\n", "rules:\n- {name: first, match: {resources: [secrets], verbs: [list]}, target: {deny: no}}\n", "rule first is new: its objects are in no cluster"},
		{"home", "home: here", "home: west", "objects that no rule matches move from here to west"},
		{"unmatched", "home: here", "home: here\nunmatched: refuse", "objects that no rule matches move from here to no cluster"},
		{"a first rule that says the same", "rules:\n", "rules:\n- {name: first, match: {namespaces: [other]}, target: {cluster: here}}\n", "rule first is new: its objects are in here"},
		{"a last rule", "allNamespaces: union", "- {name: last, match: {namespaces: [other]}, target: {cluster: west}}\nallNamespaces: union", "rule last is new: its objects are in west"},
		{"watching is denied", "rules:\n", "rules:\n- {name: first, match: {resources: [secrets], verbs: [watch]}, target: {deny: no}}\n", "rule first is new"},
		{"a user agent", "match: {namespaces: [production,", "match: {userAgents: [x], namespaces: [production,", "rule production does not match"},
		{"an object by name", "match: {namespaces: [production,", "match: {names: [x], namespaces: [production,", "rule production does not match"},
		{"renamed and in another order", "- name: batch\n  match: {apiGroups: [batch], resources: [jobs], namespaces: [batch]}\n  target:\n    spread:\n      members: [east, west]", "- name: jobs\n  match: {apiGroups: [batch], resources: [jobs], namespaces: [batch]}\n  target:\n    spread:\n      members: [west, east]", "rule batch is removed"},
		{"allNamespaces", "allNamespaces: union", "allNamespaces: home", "allNamespaces changes from union to home"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(doc, tt.old) {
				t.Fatalf("the configuration has no %q", tt.old)
			}
			changed := strings.Replace(doc, tt.old, tt.new, 1)
			next := parseConfig(t, changed)
			got := strings.Join(listMoves(prev, next), "\n")
			if tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("the moves are\n%s\nwant %q", got, tt.says)
			}
			if err := CheckEpoch(prev, next); (err == nil) != (tt.says == "") {
				t.Errorf("with the same epoch: %v", err)
			}
			if err := CheckEpoch(prev, parseConfig(t, strings.Replace(changed, "epoch: 7", "epoch: 8", 1))); err != nil {
				t.Errorf("with a higher epoch: %v", err)
			}
			if err := CheckEpoch(prev, parseConfig(t, strings.Replace(changed, "epoch: 7", "epoch: 6", 1))); err == nil {
				t.Error("a lower epoch is accepted")
			}
		})
	}
}

// TestEpochOfOneCluster checks that the pod's cluster may be renamed while it is the only one.
func TestEpochOfOneCluster(t *testing.T) {
	other := parseConfig(t, "apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nhome: x\nclusters: [{name: x, slot: 3, inCluster: true}]\n")
	if err := CheckEpoch(config.Default(), other); err != nil {
		t.Error(err)
	}
	two := newTestTable(t, "").Config()
	if err := CheckEpoch(config.Default(), two); err != nil {
		t.Errorf("a first epoch is not accepted: %v", err)
	}
}

// TestEpochOfManyRules checks that only some of many changes are listed.
func TestEpochOfManyRules(t *testing.T) {
	var rules strings.Builder
	for i := range 600 {
		n := string(rune('a'+i%26)) + string(rune('a'+i/26))
		rules.WriteString("- {name: r" + n + ", match: {resources: [thing" + n + "], namespaces: [ns" + n + "]}, target: {cluster: east}}\n")
	}
	prev := newTestTable(t, rules.String()).Config()
	if moves := listMoves(prev, newTestTable(t, rules.String(), "impersonation: allow").Config()); len(moves) != 0 {
		t.Errorf("nothing moved: %v", moves)
	}
	if moves := listMoves(prev, newTestTable(t, strings.Replace(rules.String(), "east", "west", 1)).Config()); len(moves) != 1 {
		t.Errorf("a collection moved: %v", moves)
	}
	moves := listMoves(prev, newTestTable(t, strings.ReplaceAll(rules.String(), "east", "west")).Config())
	if len(moves) != maxMoves+1 || moves[maxMoves] != "and 580 more" {
		t.Errorf("all moved: %v", moves)
	}
}

// Law: if listMoves finds nothing, every cluster that had objects of a collection is still part of it, for any
// rules.
func TestListMovesIsComplete(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	rule := func(i int) string {
		return fmt.Sprintf("- {name: r%d, match: {%sresources: [%s]%s%s}, target: {%s}}\n", i,
			pick("", "apiGroups: [\"\"], "), pick("pods", "secrets", "pods, secrets"), pick("", ", namespaces: [a]", ", namespaces: [\"a*\"]", ", namespaces: [\"a*\", b]"),
			pick("", "", ", userAgents: [x]"), pick("cluster: here", "cluster: east", "cluster: west", "deny: no", "spread: {members: [here, east]}", "spread: {members: [here, east, west]}"))
	}
	parse := func(rules []string) *config.Config {
		d, _, err := config.Parse([]byte(strings.Split(exampleConfig(t), "rules:\n")[0] + "rules:\n" + strings.Join(rules, "")))
		if err != nil {
			return nil // a rule that never matches
		}
		return d
	}
	held := func(tb *Table, resource, namespace, agent string) []string {
		q := routeQuery{verb: "list", resource: resource, namespace: namespace, agent: agent, namespaced: true}
		i, _, _ := tb.firstMatch(&q)
		if i < 0 {
			return []string{tb.config.Home}
		}
		return tb.rules[i].decision.ClusterNames()
	}
	compared := 0
	for range 2_000 {
		var before []string
		for i := range 1 + random.IntN(3) {
			before = append(before, rule(i))
		}
		after := slices.Clone(before)
		for range 1 + random.IntN(2) {
			switch at := random.IntN(len(after) + 1); {
			case at == len(after) || random.IntN(3) == 0:
				after = slices.Insert(after, at, rule(10+len(after)))
			case random.IntN(2) == 0:
				after[at] = rule(at)
			default:
				after = slices.Delete(after, at, at+1)
			}
		}
		prev, next := parse(before), parse(after)
		if prev == nil || next == nil || len(listMoves(prev, next)) > 0 {
			continue
		}
		compared++
		was, is := NewTable(prev, nil), NewTable(next, nil)
		for _, resource := range []string{"pods", "secrets"} {
			for _, namespace := range []string{"a", "ab", "b", "c"} {
				for _, agent := range []string{"x", "y"} {
					had, has := held(was, resource, namespace, agent), held(is, resource, namespace, agent)
					if lacks(had, has) {
						t.Fatalf("%s in %s for %s were in %v and are in %v:\n%s\nthen\n%s", resource, namespace, agent, had, has, strings.Join(before, ""), strings.Join(after, ""))
					}
				}
			}
		}
	}
	if compared < 50 {
		t.Errorf("only %d changes moved nothing", compared)
	}
}

func TestMovedSince(t *testing.T) {
	before := newTestTable(t, "- {name: a, match: {namespaces: [a]}, target: {cluster: east}}")
	now := newTestTable(t, "- {name: a, match: {namespaces: [b]}, target: {cluster: east}}")
	for target, want := range map[string]bool{
		"/api/v1/namespaces/a/pods": true,
		"/api/v1/namespaces/b/pods": true,
		"/api/v1/namespaces/c/pods": false,
		"/api/v1/nodes":             false,
		"/api/v1/pods":              false, // merged before and now: its positions are vectors
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		r, err := apiproxy.ParseRequest("GET", u)
		if err != nil {
			t.Fatal(err)
		}
		if got := now.movedSince([]*Table{now, before}, &r, RouteInput{}); got != want {
			t.Errorf("%s was retargeted: %v, want %v", target, got, want)
		}
		if now.movedSince([]*Table{now}, &r, RouteInput{}) || now.movedSince(nil, &r, RouteInput{}) {
			t.Errorf("%s was retargeted without a reason", target)
		}
	}
}

func TestExplain(t *testing.T) {
	tb := NewTable(parseConfig(t, exampleConfig(t)), nil)
	for _, tt := range []struct{ method, target, body, want string }{
		{"GET", "/api/v1/namespaces/production/pods/a", "", `{"verb":"get","version":"v1","resource":"pods","namespace":"production","name":"a","kind":"single","rule":"production","why":"rule production in line 21 sends it to east","clusters":[{"name":"east","slot":1}]}`},
		{"GET", "/api/v1/pods", "", `{"verb":"list","version":"v1","resource":"pods","kind":"union","why":"the rules send its namespaces to several clusters","clusters":[{"name":"here","slot":0,"others":true},{"name":"east","slot":1,"namespaces":["production","prod-*"]}]}`},
		{"POST", "/apis/batch/v1/namespaces/batch/jobs", `{"metadata":{"name":"a","labels":{"tier":"gold"}}}`, `{"verb":"create","group":"batch","version":"v1","resource":"jobs","namespace":"batch","kind":"spread","rule":"batch","why":"rule batch in line 22 spreads it over east, west","clusters":[{"name":"east","slot":1},{"name":"west","slot":2}],"place":"east","placeWhy":"its labels are tier in (gold)"}`},
		{"POST", "/apis/batch/v1/namespaces/batch/jobs", `{"metadata":{"labels":{"mca.tailplane.dev/cluster":"nowhere"}}}`, `"kind":"deny"`},
		{"POST", "/apis/batch/v1/namespaces/batch/jobs", `{"metadata":{"generateName":"x-"}}`, `one of several possible answers`},
		{"POST", "/apis/batch/v1/namespaces/batch/jobs", `{"metadata":{"name":"x","ownerReferences":[{"kind":"CronJob","name":"c"}]}}`, `to the cluster of CronJob c`},
		{"POST", "/api/v1/namespaces", "", `"kind":"body"`},
		{"POST", "/api/v1/namespaces", `{"metadata":{"name":"production"}}`, `"name":"east"`},
		{"POST", "/api/v1/namespaces", `[`, `"status":400`},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", `"message":"rule no-crds refuses the request: CRDs are installed by the platform team"`},
		{"GET", "/api//v1", "", `"status":400`},
		{"GET", "/version", "", `{"nonResource":true,"verb":"get","kind":"home"`},
	} {
		u, err := url.ParseRequestURI(tt.target)
		if err != nil {
			t.Fatal(err)
		}
		var body []byte
		if tt.body != "" {
			body = []byte(tt.body)
		}
		b, err := json.Marshal(tb.Explain(tt.method, u, "", "application/json", body))
		if err != nil || !strings.Contains(string(b), tt.want) {
			t.Errorf("%s %s: %s\n(%v), want %s", tt.method, tt.target, b, err, tt.want)
		}
	}
}

func TestValidate(t *testing.T) {
	doc := exampleConfig(t)
	r, err := ValidateConfig([]byte(doc), nil)
	switch {
	case err != nil:
		t.Error(err)
	case !r.Valid:
		t.Errorf("r.Valid is false; %+v, %v", r, err)
	case r.Errors != nil:
		t.Errorf("r.Errors = %v, want nil", r.Errors)
	}
	switch r, err = ValidateConfig([]byte("kind: Config"), nil); {
	case err != nil:
		t.Error(err)
	case r.Valid:
		t.Errorf("r.Valid is true; %+v, %v", r, err)
	case len(r.Errors) != 3:
		t.Errorf("len(r.Errors) = %v, want 3", len(r.Errors))
	}
	moved := strings.Replace(doc, "home: here", "home: west", 1)
	switch r, err = ValidateConfig([]byte(moved), []byte(doc)); {
	case err != nil:
		t.Error(err)
	case r.Valid:
		t.Errorf("r.Valid is true; %+v, %v", r, err)
	case len(r.Errors) != 1:
		t.Errorf("len(r.Errors) = %v, want 1", len(r.Errors))
	case len(r.Moves) == 0:
		t.Errorf("len(r.Moves) = %v", len(r.Moves))
	case len(r.Warnings) == 0:
		t.Errorf("len(r.Warnings) = %v", len(r.Warnings))
	}
	if r, err = ValidateConfig([]byte(strings.Replace(moved, "epoch: 7", "epoch: 8", 1)), []byte(doc)); err != nil || !r.Valid {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err = ValidateConfig([]byte(doc), []byte("x")); err == nil {
		t.Error("an unreadable previous configuration counts as none")
	}
}

// BenchmarkReload parses a configuration, compares it with the previous one and compiles it. The budget is 50
// ms.
func BenchmarkReload(b *testing.B) {
	var rules strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&rules, "- {name: r%d, match: {namespaces: [team-%d]}, target: {cluster: east}}\n", i, i)
	}
	doc := strings.Replace(exampleConfig(b), "rules:\n", "rules:\n"+rules.String(), 1)
	prev := parseConfig(b, doc)
	for b.Loop() {
		next := parseConfig(b, doc)
		if err := CheckEpoch(prev, next); err != nil {
			b.Fatal(err)
		}
		NewTable(next, nil)
	}
}
