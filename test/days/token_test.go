package days

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// Jobs of two repositories share a runner, as one user of one node. The tokens of their issuer keep them apart: each sees, uses and ends its
// own sign-in only, on both clusters, and a person sees none of it.
func TestDay_JobsShareARunner(t *testing.T) { inEachWorld(t, jobsShareARunner) }

func jobsShareARunner(t *testing.T, w *world) {
	laptop := w.device(t, "laptop", alice)
	runner, other := w.runner(t, w.east, "runner-8", "tag:runner"), w.runner(t, w.east, "runner-9", "tag:runner")
	all := w.policy(w.people(), w.people())
	t.Cleanup(func() {
		if err := w.east.Net.SetPolicy(all); err != nil {
			t.Error(err)
		}
	})
	run(t, laptop, 0, "tka login --use")
	type info struct{ Key string }
	key := answer[info](t, laptop, 0, "tka cluster-info -o json").Key
	token := func(job, repository, ref string) string {
		return w.issuer.Token(t, "repo:"+repository+":"+job, "east", map[string]any{"repository": repository, "ref": ref})
	}
	with := func(p *testenv.Person, token string) *testenv.Person {
		job := *p
		job.Vars = append(slices.Clone(p.Vars), "TKA_SERVER_KEY="+key, "TKA_OIDC_TOKEN="+token)
		return &job
	}
	type failure struct{ Kind, Code string }
	fails := func(why, code, command string, p *testenv.Person) {
		t.Helper()
		if diff := cmp.Diff(failure{"Error", code}, answer[failure](t, p, 3, command)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", why, diff)
		}
	}
	first := token("one", "acme/shop", "refs/heads/main")
	one, two := with(runner, first), with(runner, token("two", "acme/shop", "refs/heads/fix"))
	onLaptop, job := row(alice, "laptop", "-", "view"), row("node:runner-8."+w.east.Net.Suffix(), "runner-8", "-", "edit")

	// Only a job with a token that fits gets in.
	fails("no token", "token_required", "tka login -o json", with(runner, ""))
	fails("a pull request", "token_refused", "tka login -o json", with(runner, token("one", "acme/shop", "refs/pull/7/merge")))
	fails("another repository", "token_refused", "tka login -o json", with(runner, token("one", "acme/web", "refs/heads/main")))
	w.sees(t, "after what failed", []string{onLaptop}, nil)
	run(t, one, 0, "tka login --use")
	w.sees(t, "one job", []string{onLaptop, job}, nil)
	run(t, one, 0, "kubectl create configmap one -n shop")
	refused(t, one, "kubectl create configmap one -n default")

	// The other job of the same machine and user finds this kubeconfig, and not the sign-in. Then it signs in with a kubeconfig of the job.
	fails("the other job", "not_signed_in", "tka status -o json", two)
	refused(t, two, "kubectl get pods -n shop")
	refused(t, with(runner, ""), "kubectl get pods -n shop")
	two.Vars = append(two.Vars, "KUBECONFIG="+filepath.Join(runner.Home, "two.yaml"))
	run(t, two, 0, "tka login --use")
	w.sees(t, "two jobs", []string{onLaptop, job, job}, nil)
	run(t, two, 0, "kubectl create configmap two -n shop")
	matches(t, "whoami", run(t, two, 0, "tka whoami"), "repo:acme/shop:two")

	// A stolen token is of no use on another runner.
	fails("a stolen token", "token_refused", "tka login -o json", with(other, first))

	// One job ends, and the other goes on until its rule changes.
	run(t, two, 0, "tka logout")
	w.sees(t, "after the second job", []string{onLaptop, job}, nil)
	run(t, one, 0, "kubectl get pods -n shop")
	if err := w.east.Net.SetPolicy(w.policyForJobs(w.people(), w.people(), w.jobRule("acme/web"))); err != nil {
		t.Fatal(err)
	}
	w.becomes(t, "with a rule for another repository", []string{onLaptop}, nil)
	refused(t, one, "kubectl get pods -n shop")
	if out := run(t, laptop, 0, "tka status"); strings.Contains(out, "runner-8") {
		t.Errorf("the laptop sees the job:\n%s", out)
	}
	run(t, laptop, 0, "tka logout")
	w.sees(t, "at night", nil, nil)
}
