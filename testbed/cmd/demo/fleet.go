package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The content of a team's repository: two forges, a class of runners for each, and an organisation at each. URLs and
// credentials are those of the demo's forges.
const fleetObjects = `apiVersion: tailplane.dev/v1alpha1
kind: RunnerForge
metadata: {name: github}
spec: {type: github, url: "GITHUB"}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerForge
metadata: {name: gitlab}
spec: {type: gitlab, url: "GITLAB"}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerPool
metadata: {name: gh-nix}
spec: {forge: github, runsOn: [self-hosted, nix], scaling: {max: 3, budget: 10, guarantee: 1}}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerPool
metadata: {name: gl-docker}
spec: {forge: gitlab, runsOn: [docker], scaling: {max: 4, budget: 10}}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec: {forge: github, configURL: "GITHUB/acme", isolation: None, credentials: {secretName: acme-github}, pools: [{name: gh-nix, type: Shared}]}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: omega}
spec: {forge: gitlab, configURL: "GITLAB/omega", isolation: None, credentials: {secretName: omega-gitlab}, pools: [{name: gl-docker, type: Shared}]}
`

const credentialObject = `apiVersion: v1
kind: Secret
metadata: {name: %s-%s, namespace: tailplane-fleet, labels: {tailplane.dev/org: %s}}
stringData: {%s: %q}
`

const fleetSettings = `fleet:
  clusterCIDRs: [10.96.0.0/12]
  apiServers: ["10.96.0.1:443"]
  images: {runner: registry.invalid/runner:1, manager: registry.invalid/manager:1, job: registry.invalid/job:1}
health: 127.0.0.1:0
`

// runnerNamespace is the namespace in which the fleet creates runners.
const runnerNamespace = "tailplane-runners"

// fleetShow is the state of the chapter about the fleet.
type fleetShow struct {
	*show
	github *forgetest.GitHubFake
	gitlab *forgetest.GitLabFake
	arc    *arctest.ARC
	plane  httpapi.Client // as alice
	url    string         // flag of tka for the dashboard
}

// fleet enrolls two organisations, runs their jobs, pauses everything, resumes it, and removes one organisation.
func (s *show) fleet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s.note("fakes replace GitHub, GitLab and GitHub's runner controller (ARC), which are not available here;")
	s.note("the fleet, the API server and the plane are real")
	f, err := s.openForges(ctx)
	if err != nil {
		return err
	}
	if err := s.startFleet(ctx); err != nil {
		return err
	}
	if err := f.enroll(ctx); err != nil {
		return err
	}
	complete, err := f.showRunners(ctx)
	if err != nil || !complete {
		return err
	}
	job, err := f.startJobs(ctx)
	if err != nil {
		return err
	}
	if err := f.freeze(ctx); err != nil {
		return err
	}
	hold, err := f.showPause(ctx)
	if err != nil {
		return err
	}
	if err := f.resume(ctx, hold); err != nil {
		return err
	}
	if err := f.finishJobs(ctx, job); err != nil {
		return err
	}
	return f.offboard(ctx)
}

// openForges starts the fakes of GitHub, GitLab and ARC. They stop at the end of the demo.
func (s *show) openForges(ctx context.Context) (*fleetShow, error) {
	github, stopGitHub := forgetest.OpenGitHub()
	s.ends = append(s.ends, func() error { stopGitHub(); return nil })
	gitlab, stopGitLab := forgetest.OpenGitLab()
	s.ends = append(s.ends, func() error { stopGitLab(); return nil })
	arc, err := s.startARC(ctx, github)
	if err != nil {
		return nil, err
	}
	client := httpapi.Client{HTTP: s.people["alice"].HTTP(), Base: s.env.Dashboard(), Open: plane.ParseEnvelope}
	return &fleetShow{show: s, github: github, gitlab: gitlab, arc: arc, plane: client, url: "--url=" + s.env.Dashboard()}, nil
}

// enroll creates an organisation at each forge, and applies their Secrets and the objects of the team's repository.
func (f *fleetShow) enroll(ctx context.Context) error {
	f.note("the demo applies a Secret for each organisation, and the objects of the team's repository")
	f.github.AddAccount("acme", "")
	group := f.gitlab.AddGroup("omega")
	githubToken := f.github.AddToken("admin:org", "repo")
	gitlabToken := f.gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})
	objects := strings.NewReplacer("GITHUB", f.github.URL, "GITLAB", f.gitlab.URL).Replace(fleetObjects)
	return f.env.Cluster.Apply(ctx,
		fmt.Appendf(nil, credentialObject, "acme", "github", "acme", "github_token", githubToken),
		fmt.Appendf(nil, credentialObject, "omega", "gitlab", "omega", "access_token", gitlabToken),
		[]byte(objects))
}

// waitPools waits until the plane lists both pools in a state. It returns the last list that it received.
func (f *fleetShow) waitPools(ctx context.Context, state string) (all []plane.Pool, err error) {
	err = f.sees(ctx, func() (bool, error) {
		l, err := plane.ListPools.Call(ctx, f.plane, plane.FleetListRequest{})
		all = l.Data
		return len(all) == 2 && !slices.ContainsFunc(all, func(p plane.Pool) bool { return p.State != state }), err
	})
	return all, err
}

// showRunners shows that both organisations have runners. It returns false if a forge has none, because the rest of
// the chapter needs them.
func (f *fleetShow) showRunners(ctx context.Context) (complete bool, err error) {
	f.note("no node runs pods here, so the demo reports omega's manager as running, and contacts GitLab for it")
	if err := f.runManager(ctx); err != nil {
		return false, err
	}
	all, err := f.waitPools(ctx, plane.PoolActive)
	if err != nil {
		return false, err
	}
	lacks := []string{"Provisioning"}
	if err := f.steps(ctx, "alice",
		step{says: "both organisations have runners", admin: true, run: "kubectl get runnerenrollments",
			wants: []string{"acme", "omega", "Active"}, lacks: lacks},
		step{says: "alice sees the runners", run: "tka fleet runners " + f.url,
			wants: []string{"gh-nix", "gl-docker", "Active"}, lacks: lacks}); err != nil {
		return false, err
	}
	sets, runners := f.github.ScaleSets(), f.gitlab.Runners()
	f.claim(len(all) == 2 && len(sets) == 1 && sets[0].Name == "acme-gh-nix" && len(runners) == 1,
		"GitHub has the scale set acme-gh-nix, and GitLab has a runner")
	return len(sets) == 1 && len(runners) == 1, nil
}

// startJobs starts one job at each forge. It returns the ID of GitLab's.
func (f *fleetShow) startJobs(ctx context.Context) (gitlabJob int64, err error) {
	f.assign("build", 11)
	if err := f.arc.Start(ctx, "build"); err != nil {
		return 0, err
	}
	gitlabJob = f.gitlab.StartJob(f.gitlab.Runners()[0].ID, 7)
	f.note("one job of acme and one of omega are running; now an administrator wants to upgrade the nodes")
	return gitlabJob, nil
}

// assign lets GitHub assign a job to acme's scale set. Its ID is its name.
func (f *fleetShow) assign(name string, run int64) {
	job := arctest.Job{ID: name, Repository: "acme/app", Workflow: "ci.yaml", Name: name, Run: run}
	f.arc.Assign(runnerNamespace, "acme-gh-nix", job)
}

// freeze pauses everything, as a user does after reading the refusal.
func (f *fleetShow) freeze(ctx context.Context) error {
	args := []string{"fleet", "pause", "--all", f.url, "--reason", "node upgrade"}
	if err := f.typed(ctx, "alice", "tka", args...); err != nil {
		return err
	}
	f.claim(f.lastOut.Exit != 0 && strings.Contains(f.lastOut.Both, "PAUSE ALL"), "a pause of all runners needs a confirmation")
	if err := f.typed(ctx, "alice", "tka", append(args, "--confirm", "PAUSE ALL")...); err != nil {
		return err
	}
	f.claim(f.lastOut.Exit == 0, "the confirmed command pauses all runners")
	return nil
}

// showPause shows what a pause does to jobs and runners. It returns the name of its object.
func (f *fleetShow) showPause(ctx context.Context) (hold string, err error) {
	paused, err := f.waitPools(ctx, plane.PoolPaused)
	if err != nil {
		return "", err
	}
	f.assign("test", 12)
	if err := pause(ctx, time.Second); err != nil { // time in which a listener would have taken it
		return "", err
	}
	waiting, taken, running := f.arc.Jobs(runnerNamespace, "acme-gh-nix")
	active := slices.ContainsFunc(paused, func(p plane.Pool) bool { return p.State != plane.PoolPaused })
	f.claim(!active && f.gitlab.Runners()[0].Paused, "one command paused both forges, and each forge confirmed it")
	f.claim(running == 1 && taken == 0 && waiting == 1, "the running job continues, and a new job waits")
	out, _, _ := kubetest.Kubectl(ctx, f.env.Cluster.Kubeconfig, "get", "runnerholds", "-o", "name")
	hold = strings.TrimPrefix(strings.TrimSpace(out), "runnerhold.tailplane.dev/")
	return hold, f.steps(ctx, "alice", step{says: "the pause is an object with the actor and the reason", admin: true,
		run: "kubectl get runnerholds", wants: []string{"Pause", alice}})
}

// resume lifts the pause, and shows that the waiting job starts.
func (f *fleetShow) resume(ctx context.Context, hold string) error {
	args := []string{"fleet", "lift", hold, f.url, "--reason", "the nodes are upgraded", "--confirm", "LIFT ALL"}
	if err := f.typed(ctx, "alice", "tka", args...); err != nil {
		return err
	}
	f.claim(f.lastOut.Exit == 0, "alice lifts the pause that she set")
	if _, err := f.waitPools(ctx, plane.PoolActive); err != nil {
		return err
	}
	err := f.arc.Start(ctx, "test")
	f.claim(err == nil, "the waiting job gets a runner%s", because(err))
	return nil
}

// finishJobs ends the jobs of both organisations.
func (f *fleetShow) finishJobs(ctx context.Context, gitlabJob int64) error {
	for _, id := range []string{"build", "test"} {
		if err := f.arc.Finish(ctx, id); err != nil {
			return err
		}
	}
	f.gitlab.EndJob(gitlabJob, "success")
	return nil
}

// offboard removes acme, and shows that nothing of it remains.
func (f *fleetShow) offboard(ctx context.Context) error {
	if err := f.steps(ctx, "alice", step{says: "acme is offboarded", admin: true,
		run: "kubectl delete runnerenrollment acme --timeout=2m", wants: []string{"deleted"}}); err != nil {
		return err
	}
	left, _, _ := kubetest.Kubectl(ctx, f.env.Cluster.Kubeconfig,
		"get", "secrets,autoscalingrunnersets,serviceaccounts", "-A", "-l", "tailplane.dev/org=acme", "-o", "name")
	f.claim(len(f.github.ScaleSets()) == 0 && strings.TrimSpace(left) == "",
		"nothing of acme remains, at GitHub or in the cluster; its credential was deleted last")
	f.claim(len(f.gitlab.Runners()) == 1, "omega still has its runner")
	return nil
}

// runManager acts as the runner manager of omega: its pod is marked as running, and it contacts GitLab.
func (f *fleetShow) runManager(ctx context.Context) error {
	const running = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
	config := f.env.Cluster.Kubeconfig
	return f.sees(ctx, func() (bool, error) {
		out, _, _ := kubetest.Kubectl(ctx, config,
			"get", "pods", "-n", runnerNamespace, "-l", "app.kubernetes.io/component=runner-manager", "-o", "name")
		pods, runners := strings.Fields(out), f.gitlab.Runners()
		if len(pods) == 0 || len(runners) == 0 {
			return false, nil
		}
		if _, errs, exit := kubetest.Kubectl(ctx, config,
			"patch", "-n", runnerNamespace, pods[0], "--subresource=status", "--type=merge", "-p", running); exit != 0 {
			return false, fmt.Errorf("kubectl patch: %s", errs)
		}
		f.gitlab.Contact(runners[0].Token, "s_demo")
		return true, nil
	})
}

// startARC installs the fake of ARC and runs it.
func (s *show) startARC(ctx context.Context, github *forgetest.GitHubFake) (*arctest.ARC, error) {
	arc, err := arctest.New(arctest.Options{
		Cluster: s.env.Cluster, Namespace: "arc-systems", Version: "0.14.2", GitHub: arctest.At(github, nil),
	})
	if err != nil {
		return nil, err
	}
	if err := arc.Install(ctx); err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- arc.Run(working) }()
	s.ends = append(s.ends, func() error { cancel(); return <-ended })
	return arc, nil
}

// startFleet installs the fleet's objects and starts its program with the rights of its account.
func (s *show) startFleet(ctx context.Context) error {
	s.note("starting tailplaned fleet, as the ServiceAccount tailplane-fleet, " +
		"which admission policies restrict to namespaces of runners")
	if err := s.env.FleetManifests(ctx); err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "fleet")
	p, err := testenv.StartFleet(ctx, dir, s.env.Cluster, "tailplane-fleet", "tailplane-fleet", fleetSettings)
	if err != nil {
		return err
	}
	s.ends = append(s.ends, func() error { return p.Stop(time.Minute) })
	return nil
}

// typed runs a command whose words may contain spaces.
func (s *show) typed(ctx context.Context, who, program string, args ...string) (err error) {
	var words []string
	for _, a := range append([]string{program}, args...) {
		if strings.Contains(a, " ") {
			a = fmt.Sprintf("%q", a)
		}
		words = append(words, a)
	}
	s.command(who, "%s", strings.Join(words, " "))
	if s.lastOut, err = s.people[who].Run(ctx, program, args...); err == nil {
		s.output(s.lastOut.Both)
	}
	return err
}
