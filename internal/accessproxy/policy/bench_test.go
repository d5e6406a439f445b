package policy

import (
	"fmt"
	"strings"
	"testing"
)

// twenty returns 20 rules like those of a large installation.
func twenty() (rules []Rule) {
	const res, non = "request.resourceAttributes.", "request.nonResourceAttributes."
	for i, when := range []string{
		res + `resource == "secrets" && ` + res + `namespace.startsWith("prod-")`,
		res + `resource == "secrets" && ` + res + `verb in ["list", "watch", "deletecollection"]`,
		res + `subresource == "exec" && ` + res + `namespace == "prod" && caller.role == "view"`,
		res + `subresource in ["exec", "attach", "portforward", "ephemeralcontainers"]`,
		res + `verb == "deletecollection"`,
		res + `verb == "delete" && ` + res + `resource == "namespaces"`,
		res + `group == "rbac.authorization.k8s.io" && ` + res + `verb != "get" && ` + res + `verb != "list"`,
		res + `resource == "nodes" && ` + res + `subresource == "proxy"`,
		res + `resource in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] && ` + res + `verb != "get"`,
		res + `name.matches("^kube-") && ` + res + `verb == "delete"`,
		non + `path.startsWith("/debug/")`,
		non + `path == "/metrics" && caller.role != "monitor"`,
		`request.impersonate.user != "" && caller.role != "admin"`,
		`"system:masters" in request.impersonate.groups`,
		`caller.login.endsWith("@partner.example") && ` + res + `namespace == "prod"`,
		`"tag:ci" in caller.tags && ` + res + `resource == "secrets"`,
		`caller.session == "break-glass" && caller.reason == ""`,
		`caller.device.startsWith("kiosk-")`,
		res + `namespace == "kube-system" && ` + res + `verb in ["create", "update", "patch", "delete"]`,
		res + `subresource == "token" && ` + res + `resource == "serviceaccounts"`,
	} {
		rules = append(rules, Rule{Name: fmt.Sprint("rule-", i), When: when, Deny: "no"})
	}
	return rules
}

// BenchmarkJudge measures 20 rules for a request that none of them refuses; the bound is 5 µs. The baseline is the same 20
// rules with a map of variables for each request, as in CEL's documentation.
func BenchmarkJudge(b *testing.B) {
	p := mustCompile(b, twenty()...)
	for _, x := range []struct {
		name string
		in   Input
	}{
		{"resource", Input{Caller: alice, Resource: listPods}},
		{"discovery", Input{Caller: alice, NonResource: discovery}},
		{"long", Input{Caller: two, Resource: Resource{Verb: "patch", Group: "apps", Version: "v1", Resource: "deployments", Namespace: strings.Repeat("n", 63), Name: strings.Repeat("k", 253)}}},
	} {
		if v := p.Judge(x.in); !v.Allowed() {
			b.Fatalf("%s: %v", x.name, v)
		}
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Judge(x.in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000/5, "of-5µs")
		})
		b.Run(x.name+"-baseline", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				vars := map[string]any{}
				for _, v := range table {
					if vars[v.name] = v.text; v.list > 0 {
						vars[v.name] = v.all(&x.in)
					} else {
						vars[v.name] = v.text(&x.in)
					}
				}
				for i := range p.rules {
					if out, _, err := p.rules[i].program.Eval(vars); err != nil || out.Value() != false {
						b.Fatal(out, err)
					}
				}
			}
		})
	}
}
