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

// fleet enrolls two organisations, runs their jobs, pauses everything, resumes it, and removes one organisation.
func (s *show) fleet(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s.note("fakes replace GitHub, GitLab and GitHub's runner controller (ARC), which are not available here;")
	s.note("the fleet, the API server and the plane are real")
	github, stopGitHub := forgetest.OpenGitHub()
	s.ends = append(s.ends, func() error { stopGitHub(); return nil })
	gitlab, stopGitLab := forgetest.OpenGitLab()
	s.ends = append(s.ends, func() error { stopGitLab(); return nil })
	arc, err := s.arc(limit, github)
	if err != nil {
		return err
	}
	if err := s.startFleet(limit); err != nil {
		return err
	}

	s.note("the demo applies a Secret for each organisation, and the objects of the team's repository")
	github.AddAccount("acme", "")
	group := gitlab.AddGroup("omega")
	objects := strings.NewReplacer("GITHUB", github.URL, "GITLAB", gitlab.URL).Replace(fleetObjects)
	if err := s.env.Cluster.Apply(limit, fmt.Appendf(nil, credentialObject, "acme", "github", "acme", "github_token", github.AddToken("admin:org", "repo")),
		fmt.Appendf(nil, credentialObject, "omega", "gitlab", "omega", "access_token", gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})), []byte(objects)); err != nil {
		return err
	}
	desk := httpapi.Client{HTTP: s.people["alice"].HTTP(), Base: s.env.Dashboard(), Open: plane.ParseEnvelope}
	pools := func(want func(plane.Pool) bool) (all []plane.Pool, err error) {
		err = s.sees(limit, func() (bool, error) {
			l, err := plane.ListPools.Call(limit, desk, plane.FleetListRequest{})
			all = l.Data
			return len(all) == 2 && !slices.ContainsFunc(all, func(p plane.Pool) bool { return !want(p) }), err
		})
		return all, err
	}
	s.note("no node runs pods here, so the demo reports omega's manager as running, and contacts GitLab for it")
	if err := s.manager(limit, gitlab); err != nil {
		return err
	}
	all, err := pools(func(p plane.Pool) bool { return p.State == plane.PoolActive })
	if err != nil {
		return err
	}
	url := "--url=" + s.env.Dashboard()
	if err := s.steps(ctx, "alice",
		step{says: "both organisations have runners", admin: true, run: "kubectl get runnerenrollments", wants: []string{"acme", "omega", "Active"}, lacks: []string{"Provisioning"}},
		step{says: "alice sees the runners", run: "tka fleet runners " + url, wants: []string{"gh-nix", "gl-docker", "Active"}, lacks: []string{"Provisioning"}}); err != nil {
		return err
	}
	sets, runners := github.ScaleSets(), gitlab.Runners()
	s.claim(len(all) == 2 && len(sets) == 1 && sets[0].Name == "acme-gh-nix" && len(runners) == 1, "GitHub has the scale set acme-gh-nix, and GitLab has a runner")
	if len(sets) != 1 || len(runners) != 1 {
		return nil
	}

	const runs = "tailplane-runners"
	arc.Assign(runs, "acme-gh-nix", arctest.Job{ID: "build", Repository: "acme/app", Workflow: "ci.yaml", Name: "build", Run: 11})
	if err := arc.Start(limit, "build"); err != nil {
		return err
	}
	job := gitlab.StartJob(runners[0].ID, 7)
	s.note("one job of acme and one of omega are running; now an administrator wants to upgrade the nodes")
	if err := s.freeze(ctx, url); err != nil {
		return err
	}
	paused, err := pools(func(p plane.Pool) bool { return p.State == plane.PoolPaused })
	if err != nil {
		return err
	}
	arc.Assign(runs, "acme-gh-nix", arctest.Job{ID: "test", Repository: "acme/app", Workflow: "ci.yaml", Name: "test", Run: 12})
	if err := pause(limit, time.Second); err != nil { // time in which a listener would have taken it
		return err
	}
	waiting, taken, running := arc.Jobs(runs, "acme-gh-nix")
	s.claim(!slices.ContainsFunc(paused, func(p plane.Pool) bool { return p.State != plane.PoolPaused }) && gitlab.Runners()[0].Paused, "one command paused both forges, and each forge confirmed it")
	s.claim(running == 1 && taken == 0 && waiting == 1, "the running job continues, and a new job waits")
	hold, _, _ := kubetest.Kubectl(limit, s.env.Cluster.Kubeconfig, "get", "runnerholds", "-o", "name")
	name := strings.TrimPrefix(strings.TrimSpace(hold), "runnerhold.tailplane.dev/")
	if err := s.steps(ctx, "alice", step{says: "the pause is an object with the actor and the reason", admin: true, run: "kubectl get runnerholds", wants: []string{"Pause", alice}}); err != nil {
		return err
	}

	if err := s.typed(ctx, "alice", "tka", "fleet", "lift", name, url, "--reason", "the nodes are upgraded", "--confirm", "LIFT ALL"); err != nil {
		return err
	}
	s.claim(s.lastOut.Exit == 0, "alice lifts the pause that she set")
	if _, err := pools(func(p plane.Pool) bool { return p.State == plane.PoolActive }); err != nil {
		return err
	}
	err = arc.Start(limit, "test")
	s.claim(err == nil, "the waiting job gets a runner%s", because(err))
	for _, id := range []string{"build", "test"} {
		if err := arc.Finish(limit, id); err != nil {
			return err
		}
	}
	gitlab.EndJob(job, "success")

	if err := s.steps(ctx, "alice", step{says: "acme is offboarded", admin: true, run: "kubectl delete runnerenrollment acme --timeout=2m", wants: []string{"deleted"}}); err != nil {
		return err
	}
	left, _, _ := kubetest.Kubectl(limit, s.env.Cluster.Kubeconfig, "get", "secrets,autoscalingrunnersets,serviceaccounts", "-A", "-l", "tailplane.dev/org=acme", "-o", "name")
	s.claim(len(github.ScaleSets()) == 0 && strings.TrimSpace(left) == "", "nothing of acme remains, at GitHub or in the cluster; its credential was deleted last")
	s.claim(len(gitlab.Runners()) == 1, "omega still has its runner")
	return nil
}

// manager is the runner manager of omega: its pod is marked as running, and it contacts GitLab.
func (s *show) manager(ctx context.Context, gitlab *forgetest.GitLabFake) error {
	const running = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
	return s.sees(ctx, func() (bool, error) {
		out, _, _ := kubetest.Kubectl(ctx, s.env.Cluster.Kubeconfig, "get", "pods", "-n", "tailplane-runners", "-l", "app.kubernetes.io/component=runner-manager", "-o", "name")
		pods, runners := strings.Fields(out), gitlab.Runners()
		if len(pods) == 0 || len(runners) == 0 {
			return false, nil
		}
		if _, errs, exit := kubetest.Kubectl(ctx, s.env.Cluster.Kubeconfig, "patch", "-n", "tailplane-runners", pods[0], "--subresource=status", "--type=merge", "-p", running); exit != 0 {
			return false, fmt.Errorf("kubectl patch: %s", errs)
		}
		gitlab.Contact(runners[0].Token, "s_demo")
		return true, nil
	})
}

// arc installs the fake of ARC and runs it.
func (s *show) arc(ctx context.Context, github *forgetest.GitHubFake) (*arctest.ARC, error) {
	arc, err := arctest.New(arctest.Options{Cluster: s.env.Cluster, Namespace: "arc-systems", Version: "0.14.2", GitHub: arctest.At(github, nil)})
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
	s.note("starting tailplaned fleet, as the ServiceAccount tailplane-fleet, which admission policies restrict to namespaces of runners")
	if err := s.env.FleetManifests(ctx); err != nil {
		return err
	}
	p, err := testenv.StartFleet(ctx, filepath.Join(s.dir, "fleet"), s.env.Cluster, "tailplane-fleet", "tailplane-fleet", fleetSettings)
	if err != nil {
		return err
	}
	s.ends = append(s.ends, func() error { return p.Stop(time.Minute) })
	return nil
}

// freeze pauses everything, as a user does after reading the refusal.
func (s *show) freeze(ctx context.Context, url string) error {
	args := []string{"fleet", "pause", "--all", url, "--reason", "node upgrade"}
	if err := s.typed(ctx, "alice", "tka", args...); err != nil {
		return err
	}
	s.claim(s.lastOut.Exit != 0 && strings.Contains(s.lastOut.Both, "PAUSE ALL"), "a pause of all runners needs a confirmation")
	if err := s.typed(ctx, "alice", "tka", append(args, "--confirm", "PAUSE ALL")...); err != nil {
		return err
	}
	s.claim(s.lastOut.Exit == 0, "the confirmed command pauses all runners")
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
