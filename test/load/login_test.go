// Package load measures the budgets of the sign-in path with real components. It prints its figures and writes them
// to docs/benchmarks.md. No figure fails a test, because machines are shared.
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

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"]},
  "grants": [{"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"],
    "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}}],
}`

func TestMain(m *testing.M) { testenv.Main(m) }

// BenchmarkSigninLogin measures login -> usable kubeconfig: one POST /login and one GET /kubeconfig?wait=, from a
// device of the tailnet. Each round starts without a sign-in and ends with a token. The logout between rounds is not
// counted.
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
		k, err := signin.GetKubeconfig.Call(ctx, c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)})
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

// BenchmarkSigninCLI measures the waiting time of a person: `tka login` as a program, and the credential plugin that
// kubectl runs.
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

// BenchmarkSigninPlugin measures the exec credential plugin as kubectl runs it. Warm runs read the cache, and cold
// runs get a new token from the server. At the same time on the same machine it measures how long kubectl takes to
// start. A second request from one process means that its token was refused. Each run therefore uses a new shell. The
// cost of the shell is measured too and not subtracted.
//
// The budget: <= 20 ms when warm.
func BenchmarkSigninPlugin(b *testing.B) {
	r := start(b)
	p, err := r.Person(b.Context(), "erin", "erin@example.com")
	if err != nil {
		b.Fatal(err)
	}
	cache := filepath.Join(p.Home, ".run", "tka")
	if err := os.MkdirAll(cache, 0o700); err != nil { // a person's runtime directory, as systemd creates it
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

// BenchmarkSigninWait measures the time from the moment at which a watch of the cluster shows that a sign-in is ready to
// the answer of the request that waits for it (SGN-06).
//
// The budget: p50 <= 50 ms.
func BenchmarkSigninWait(b *testing.B) {
	r := start(b)
	p, err := r.Person(b.Context(), "carol", "alice@example.com")
	if err != nil {
		b.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	watcher, err := client.NewWithWatch(r.Cluster.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		b.Fatal(err)
	}
	c := p.Client()
	var took []time.Duration
	for b.Loop() {
		ctx, stop := context.WithTimeout(b.Context(), time.Minute)
		w, err := watcher.Watch(ctx, &v1alpha1.TkaSigninList{}, client.InNamespace(testenv.SigninNamespace))
		if err != nil {
			b.Fatal(err)
		}
		ready := make(chan time.Time, 1)
		st, err := signin.Login.Call(ctx, c, signin.LoginRequest{})
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			defer close(ready)
			for e := range w.ResultChan() {
				s, ok := e.Object.(*v1alpha1.TkaSignin)
				if ok && s.Name == st.Name && s.DeletionTimestamp == nil && s.Status.Phase == v1alpha1.SigninPhase(signin.PhaseReady) {
					ready <- time.Now()
					return
				}
			}
		}()
		if _, err := signin.GetKubeconfig.Call(ctx, c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)}); err != nil {
			b.Fatal(err)
		}
		answered := time.Now()
		at, ok := <-ready
		if !ok {
			b.Fatal("the watch ended before the sign-in became ready")
		}
		took = append(took, answered.Sub(at))
		w.Stop()
		stop()
		if _, err := signin.Logout.Call(b.Context(), c, signin.LogoutRequest{}); err != nil {
			b.Fatal(err)
		}
	}
	_, at := spread(took)
	b.Logf("answered after Ready: %d times; p50 %v, p99 %v, worst %v", len(took), at(.50), at(.99), at(1))
	budget("signin-wait-p50", at(.50), 50*time.Millisecond)
}

// BenchmarkSigninExtend measures another login while the sign-in exists.
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
		if _, err := signin.GetKubeconfig.Call(b.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)}); err != nil {
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
		"api.limits": testenv.NoLimits}})
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

// spread returns the first duration and a function for the quantiles.
func spread(took []time.Duration) (first time.Duration, at func(q float64) time.Duration) {
	first = took[0]
	sorted := slices.Sorted(slices.Values(took))
	return first, func(q float64) time.Duration {
		return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(time.Millisecond / 100)
	}
}

// budget prints a row of `make budgets`. It fails no test.
func budget(name string, measured, bound time.Duration) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %v %v %s\n", name, measured, bound, verdict)
}

// budgetMost prints a row with an upper bound.
func budgetMost(name string, measured, bound float64) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f %.3f %s\n", name, measured, bound, verdict)
}

// budgetFloor prints a row with a lower bound.
func budgetFloor(name string, measured, bound float64) {
	verdict := "ok"
	if measured < bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f %.3f %s\n", name, measured, bound, verdict)
}

// budgetCount prints a row with a count.
func budgetCount(name string, measured, bound int) {
	verdict := "ok"
	if measured > bound {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %d %d %s\n", name, measured, bound, verdict)
}
