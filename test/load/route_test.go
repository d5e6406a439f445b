package load

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// thousandRules returns a configuration of 1,000 rules. Each N in form is replaced by the number of the rule.
func thousandRules(b *testing.B, form string) []byte {
	b.Helper()
	var doc strings.Builder
	doc.WriteString("apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nepoch: 1\nhome: here\n" +
		"clusters:\n- {name: here, slot: 0, inCluster: true}\n- {name: east, slot: 1, credentials: {secret: east}}\nrules:\n")
	for i := range 1000 {
		doc.WriteString(strings.ReplaceAll(form, "N", fmt.Sprint(i)) + "\n")
	}
	return []byte(doc.String())
}

// each returns the average duration of f.
func each(b *testing.B, n int, f func()) time.Duration {
	b.Helper()
	began := time.Now()
	for range n {
		f()
	}
	return time.Since(began) / time.Duration(n)
}

// BenchmarkAdapterDecisions measures the adapter's decisions that need no request: the route of a request with 1,000
// rules, the member of one of 50,000 objects, and the cost of a new configuration.
func BenchmarkAdapterDecisions(b *testing.B) {
	for b.Loop() { // the reported numbers come from many runs, not from this loop
	}
	decisions(b)
}

func decisions(b *testing.B) {
	var slowest time.Duration
	for form, target := range map[string]string{
		"- {name: rN, match: {namespaces: [team-N]}, target: {cluster: east}}":            "/api/v1/namespaces/team-999/pods/a",
		`- {name: rN, match: {namespaces: ["team-N-*"]}, target: {cluster: east}}`:        "/api/v1/namespaces/team-999-x/pods/a",
		`- {name: rN, match: {resources: [thingN]}, target: {cluster: east}}`:             "/apis/example.com/v1/namespaces/x/thing999/a",
		`- {name: rN, match: {namespaces: ["*-N-team"]}, target: {cluster: east}}`:        "/api/v1/namespaces/other/pods/a",
		"- {name: rN, match: {apiGroups: [gN.example.com]}, target: {cluster: east}}":     "/apis/g999.example.com/v1/namespaces/a/things/b",
		"- {name: rN, match: {namespaces: [all-N], names: [a]}, target: {cluster: east}}": "/api/v1/pods",
	} {
		d, _, err := config.Parse(thousandRules(b, form))
		if err != nil {
			b.Fatal(err)
		}
		table := multicluster.NewTable(d, nil)
		u, err := url.ParseRequestURI(target)
		if err != nil {
			b.Fatal(err)
		}
		r, err := apiproxy.ParseRequest(http.MethodGet, u)
		if err != nil {
			b.Fatal(err)
		}
		slowest = max(slowest, each(b, 20_000, func() { table.Route(&r, multicluster.RouteInput{}) }))
	}
	budget("adapter-route-1000-rules", slowest, 5*time.Microsecond)

	owners, now := multicluster.NewOwnerCache(), time.Now()
	key := func(i int) multicluster.ObjectKey {
		return multicluster.ObjectKey{Group: "batch", Resource: "jobs", Namespace: "n", Name: fmt.Sprint("job-", i)}
	}
	for i := range 50_000 {
		owners.Set(key(i), "east")
	}
	k := key(25_000)
	find := func() {
		if cluster, _ := owners.Get(k, now); cluster != "east" {
			b.Fatal("the server has forgotten it")
		}
	}
	budget("adapter-learned-owner", each(b, 100_000, find), 5*time.Microsecond)
	budgetCount("adapter-learned-owner-allocations", int(testing.AllocsPerRun(1000, find)), 0)

	doc := thousandRules(b, "- {name: rN, match: {namespaces: [team-N]}, target: {cluster: east}}")
	prev, _, err := config.Parse(doc)
	if err != nil {
		b.Fatal(err)
	}
	budget("adapter-new-document-1000-rules", each(b, 5, func() {
		next, _, err := config.Parse(doc)
		if err == nil {
			err = multicluster.CheckEpoch(prev, next)
		}
		if err != nil {
			b.Fatal(err)
		}
		multicluster.NewTable(next, nil)
	}), 50*time.Millisecond)
}
