// Package load measures the budgets of the sign-in path on the real parts. Its
// figures are printed and written to docs/benchmarks.md; none of them fails a
// test, as machines are shared.
package load

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
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

// BenchmarkSigninLogin measures login -> usable kubeconfig: one POST /login, one
// GET /kubeconfig?wait=, from a device of the tailnet, each time from nothing to
// a token, and logout in between (not counted).
//
// The budget: p50 <= 150 ms, p99 <= 500 ms.
func BenchmarkSigninLogin(b *testing.B) {
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
	first, at := spread(took)
	b.Logf("login: %d times; first %v, p50 %v, p90 %v, p99 %v, worst %v", len(took), first, at(.50), at(.90), at(.99), at(1))
	budget("signin-login-p50", at(.50), 150*time.Millisecond)
	budget("signin-login-p99", at(.99), 500*time.Millisecond)
}

// BenchmarkSigninCLI measures what a person waits for: `tka login` as a program,
// and the credential plugin that kubectl runs.
func BenchmarkSigninCLI(b *testing.B) {
	r := start(b)
	p, err := r.Person(b.Context(), "carol", "carol@example.com")
	if err != nil {
		b.Fatal(err)
	}
	var logins, credentials []time.Duration
	for b.Loop() {
		for _, c := range []struct {
			took *[]time.Duration
			args []string
		}{{&logins, []string{"login"}}, {&credentials, []string{"credential", "--cluster", "east"}}} {
			res, err := p.Run(b.Context(), "tka", c.args...)
			if err != nil || res.Exit != 0 {
				b.Fatalf("tka %v: exit %d, %v: %s", c.args, res.Exit, err, res.Stderr)
			}
			*c.took = append(*c.took, res.Took)
		}
	}
	_, at := spread(logins)
	b.Logf("tka login: p50 %v, p99 %v", at(.50), at(.99))
	_, at = spread(credentials)
	b.Logf("tka credential, nothing cached: p50 %v, p99 %v", at(.50), at(.99))
}

// BenchmarkSigninPlugin measures the exec credential plugin as kubectl runs it:
// warm, out of its cache, and cold, by a fresh token from the server; and beside
// them, at the same time on the same machine, how long kubectl takes to start. A
// process that asks a second time is one whose token was refused, so each is asked
// by a shell of its own; what that costs is measured, too, and not taken off.
//
// The budget: <= 20 ms when warm.
func BenchmarkSigninPlugin(b *testing.B) {
	r := start(b)
	p, err := r.Person(b.Context(), "erin", "erin@example.com")
	if err != nil {
		b.Fatal(err)
	}
	cache := filepath.Join(p.Home, ".run", "tka")
	if err := os.MkdirAll(cache, 0o700); err != nil { // the folder of a person's session, as systemd makes it
		b.Fatal(err)
	}
	if res, err := p.Run(b.Context(), "tka", "login"); err != nil || res.Exit != 0 {
		b.Fatalf("exit %d, %v: %s", res.Exit, err, res.Stderr)
	}
	run := func(command string) time.Duration {
		cmd := exec.CommandContext(b.Context(), "/bin/sh", "-c", command+"; exit $?")
		cmd.Env, cmd.Dir = p.Env(), p.Home
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		began := time.Now()
		if err := cmd.Run(); err != nil {
			b.Fatalf("%s: %v: %s", command, err, errs.String())
		}
		took := time.Since(began)
		if strings.HasPrefix(command, "tka ") && !strings.Contains(out.String(), `"token"`) {
			b.Fatalf("%s: no credential", command)
		}
		return took
	}
	const plugin = "tka credential --cluster east"
	var warm, cold, kubectl, shell []time.Duration
	for b.Loop() {
		if err := os.RemoveAll(cache); err != nil {
			b.Fatal(err)
		}
		cold = append(cold, run(plugin))
		if _, err := os.Stat(cache); err != nil {
			b.Fatal("the cache is not where this looks for it: ", err)
		}
		warm = append(warm, run(plugin))
		kubectl = append(kubectl, run("kubectl version --client"))
		shell = append(shell, run(":"))
	}
	for _, row := range []struct {
		what string
		took []time.Duration
	}{{"the plugin, warm", warm}, {"the plugin, cold", cold}, {"kubectl version --client", kubectl}, {"the shell that starts each of them", shell}} {
		_, at := spread(row.took)
		b.Logf("%s: %d times; p50 %v, p99 %v", row.what, len(row.took), at(.50), at(.99))
	}
	_, at := spread(warm)
	budget("signin-plugin-warm-p50", at(.50), 20*time.Millisecond)
}

// BenchmarkSigninExtend measures a login again, while the sign-in lives.
func BenchmarkSigninExtend(b *testing.B) {
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
	_, at := spread(took)
	b.Logf("extend: %d times; p50 %v, p99 %v, worst %v", len(took), at(.50), at(.99), at(1))
	budget("signin-extend-p50", at(.50), 150*time.Millisecond)
}

func start(b *testing.B) *testenv.Env {
	b.Helper()
	dir, err := os.MkdirTemp("", "load")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(b.Context(), 4*time.Minute)
	defer cancel()
	r, err := testenv.Start(ctx, dir, testenv.Options{Policy: policy, Settings: map[string]string{
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

// spread returns the first of some times, and their quantiles.
func spread(took []time.Duration) (first time.Duration, at func(q float64) time.Duration) {
	first = took[0]
	sorted := slices.Sorted(slices.Values(took))
	return first, func(q float64) time.Duration {
		return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(time.Millisecond / 100)
	}
}

// budget prints a row of `make budgets`. It reports; it fails nothing.
func budget(name string, measured, bound time.Duration) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %v %v %s\n", name, measured, bound, verdict)
}

// budgetMost is a row whose bound is the most there may be.
func budgetMost(name string, measured, bound float64) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f %.3f %s\n", name, measured, bound, verdict)
}

// budgetFloor is a row whose bound is the least that will do.
func budgetFloor(name string, measured, bound float64) {
	verdict := "ok"
	if measured < bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f %.3f %s\n", name, measured, bound, verdict)
}

// budgetCount is a row of something counted.
func budgetCount(name string, measured, bound int) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %d %d %s\n", name, measured, bound, verdict)
}
