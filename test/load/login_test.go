// Package load measures the budgets of the sign-in path on the real parts. Its
// figures are printed and written to docs/benchmarks.md; none of them fails a
// test, as machines are shared.
package load

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet/tailnettest"
	"github.com/tailplane/tailplane/test/rig"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"]},
  "grants": [{"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"],
    "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}}],
}`

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

// BenchmarkLogin measures login -> usable kubeconfig: one POST /login, one
// GET /kubeconfig?wait=, from a device of the tailnet, each time from nothing to
// a token, and logout in between (not counted).
//
// The budget: p50 <= 150 ms, p99 <= 500 ms.
func BenchmarkLogin(b *testing.B) {
	r := start(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, "alice", "alice@example.com")
	if err != nil {
		b.Fatal(err)
	}
	c := p.Client()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := signin.Login.Call(ctx, c, signin.LoginRequest{}); err != nil {
			b.Fatal(err)
		}
		k, err := signin.GetKubeconfig.Call(ctx, c, signin.KubeconfigRequest{Wait: door.Duration(20 * time.Second)})
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		if k.Token.Reveal() == "" {
			b.Fatal("no token")
		}
		b.StopTimer()
		if _, err := signin.Logout.Call(ctx, c, signin.LogoutRequest{}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	report(b, "login", took)
}

// BenchmarkExtend measures a login again, while the sign-in lives.
func BenchmarkExtend(b *testing.B) {
	r := start(b)
	p, err := r.Person(b.Context(), "bob", "bob@example.com")
	if err != nil {
		b.Fatal(err)
	}
	c := p.Client()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := signin.Login.Call(b.Context(), c, signin.LoginRequest{}); err != nil {
			b.Fatal(err)
		}
		if _, err := signin.GetKubeconfig.Call(b.Context(), c, signin.KubeconfigRequest{Wait: door.Duration(20 * time.Second)}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	report(b, "extend", took)
}

func start(b *testing.B) *rig.Rig {
	b.Helper()
	dir, err := os.MkdirTemp("", "load")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(b.Context(), 4*time.Minute)
	defer cancel()
	r, err := rig.Start(ctx, dir, rig.Options{Policy: policy, Settings: map[string]string{
		"api.limits": "{login: {perMinute: 0}, kubeconfig: {perMinute: 0}, others: {perMinute: 0}, all: {perMinute: 0}}"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	return r
}

func report(b *testing.B, what string, took []time.Duration) {
	first := took[0]
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[min(len(took)-1, int(q*float64(len(took))))] }
	b.ReportMetric(float64(at(.50).Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(at(.99).Microseconds())/1000, "p99-ms")
	fmt.Printf("%s: %d times; first %v, p50 %v, p90 %v, p99 %v, worst %v\n", what, len(took),
		first.Round(time.Millisecond), at(.50).Round(time.Millisecond/10), at(.90).Round(time.Millisecond/10), at(.99).Round(time.Millisecond/10), took[len(took)-1].Round(time.Millisecond/10))
}
