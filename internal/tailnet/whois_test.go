package tailnet

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// ID-05: WhoIs can carry any rules that a policy can contain. They cost bounded time and memory,
// widen nothing, and end with the policy that contains them.
func TestHugeRules(t *testing.T) {
	t.Parallel()
	tn := tailnettest.Start(t, policy)
	cfg, _ := serverConfig(t, tn)
	n := run(t, cfg)
	alice := tn.Node("alice-laptop", "alice@example.com")
	n.up(t)
	ready(t, tn, "tka", alice)
	ip := ip4(alice)
	grant := `{"role": "view", "period": "8h"},`
	for _, tt := range []struct{ why, rule string }{
		{"900 kB string", `{"role":"` + strings.Repeat("a", 900_000) + `"}`},
		{"10,000 rules", strings.TrimSuffix(strings.Repeat(`{"role":"view","period":"8h"},`, 10_000), ",")},
		{"nested 2,000 deep", strings.Repeat("[", 2_000) + strings.Repeat("]", 2_000)},
	} {
		before := n.Changed()
		if err := tn.SetPolicy(strings.Replace(policy, grant, grant+tt.rule+",", 1)); err != nil {
			t.Fatalf("%s: %v", tt.why, err)
		}
		<-before
		eventually(t, tt.why+": it arrived", func() bool {
			begin := time.Now()
			c, err := n.whoIs(within(t), ip, "")
			took := time.Since(begin)
			if err != nil && problem.CodeOf(err) != problem.IdentityUnavailable || took > whoIsLimit+long/2 {
				t.Fatalf("%s: %v after %v", tt.why, err, took)
			}
			if err != nil {
				t.Logf("%s: %v", tt.why, problem.From(err).Cause())
				return true
			}
			if len(c.Rules) < 3 {
				return false
			}
			t.Logf("%s: %d rules, the largest of %d bytes, after %v", tt.why, len(c.Rules), len(slices.MaxFunc(c.Rules, func(a, b json.RawMessage) int { return len(a) - len(b) })), took.Round(time.Millisecond))
			return string(c.Rules[0]) == `{"role":"view","period":"8h"}`
		})
	}
	if err := tn.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is over", func() bool { c, err := n.whoIs(within(t), ip, ""); return err == nil && len(c.Rules) == 2 })
}

// The complete query, as for each request.
func BenchmarkIdentify(b *testing.B) {
	tn := tailnettest.Start(b, policy)
	cfg, _ := serverConfig(b, tn)
	n := run(b, cfg)
	alice := tn.Node("alice-laptop", "alice@example.com")
	n.up(b)
	ready(b, tn, "tka", alice)
	r := aRequest(n.Node, nil)
	r.RemoteAddr = ip4(alice) + ":4242"
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		begin := time.Now()
		if c, err := n.Identify(r); err != nil || c.Login != "alice@example.com" {
			b.Fatal(c, err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// A request over the tailnet that calls Identify.
func BenchmarkRequest(b *testing.B) {
	tn := tailnettest.Start(b, policy)
	cfg, _ := serverConfig(b, tn)
	n := run(b, cfg)
	alice := tn.Node("alice-laptop", "alice@example.com")
	n.up(b)
	serve(b, n.Node, listen(b, n.Node), identified(n.Node))
	ready(b, tn, "tka", alice)
	hc := &http.Client{Transport: &http.Transport{DialContext: alice.Dial}}
	for b.Loop() {
		get(b, hc, "http://tka/")
	}
}
