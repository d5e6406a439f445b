//go:build unix

package dashboard_test

import (
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
)

// fill adds a typical installation to the store: most objects are healthy, and one of each kind is not.
func (h *env) fill() {
	b, now := h.board, time.Now()
	b.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusOK})
	b.Replace(plane.KindCluster, "gossip", []plane.Object{cluster("prod-eu", "Alive", true), cluster("prod-us", "Alive", false), cluster("staging", "Alive", false),
		cluster("build", "Suspect", false), cluster("lab", "Alive", false), cluster("edge-sg", "Dead", false)})
	job := signin(40, "node:runner-8.tail1234.ts.net", "runner-8", "view", "Expired")
	job.OIDC = &plane.SigninToken{Issuer: "https://token.actions.githubusercontent.com", Subject: "repo:acme/shop:environment:prod",
		Claims: map[string]string{"repository": "acme/shop", "ref": "refs/heads/main"}}
	b.Replace(plane.KindSignin, "kubernetes", []plane.Object{
		signin(0, "alice@acme.dev", "alice-macbook", "edit", "Ready", "shop", "billing"), signin(1, "bob@acme.dev", "bob-thinkpad", "view", "Ready"),
		signin(2, "carol.jones@acme.dev", "carol-desk", "view", "Pending"), signin(3, "dave@acme.dev", "dave-laptop", "cluster-admin", "Refused"),
		signin(5, "erin@contractor.example", "erin-mbp", "view", "Ready", "shop"), signin(9, "frank@acme.dev", "frank-nuc", "edit", "Ready"),
		signin(14, "grace@acme.dev", "grace-x1", "admin", "Ending"), job})
	b.Replace(plane.KindTailnet, "kubernetes", []plane.Object{
		plane.Tailnet{ID: "acme", Name: "acme", Domain: new("tail1234.ts.net"), Organisation: new("Organization"), Credential: plane.Credential{Valid: new(true), Reason: "TokenIssued", CheckedAt: &now},
			Devices: new(148), Services: new(23), LastSync: &now, Conditions: isReady(true, "Synced", "Devices and services were read."), ObservedAt: now},
		plane.Tailnet{ID: "partner", Name: "partner", Domain: new("tail9f31.ts.net"), Credential: plane.Credential{Valid: new(false), Reason: "Unauthorized", CheckedAt: &now},
			Conditions: isReady(false, "CredentialRefused", "The API of the tailnet refuses the credential."), ObservedAt: now},
		plane.Tailnet{ID: "lab", Name: "lab", Credential: plane.Credential{}, Conditions: []plane.Condition{}, ObservedAt: now}})
	b.Replace(plane.KindGateway, "kubernetes", []plane.Object{
		plane.Gateway{ID: "infra/public", Namespace: "infra", Name: "public", Target: "infra/eg", Class: new("envoy"), Listeners: []plane.Listener{{Name: "https", Protocol: "HTTPS", Port: 443, Hostname: "*.acme.dev"}},
			Tailnets: []plane.GatewayTailnet{{Name: "acme", Services: 23, LastSync: &now}}, Services: []plane.GatewayService{{Name: "db", Tailnet: "acme", Route: "tailscale-svc-db", Path: "/svc/db", Cluster: "tailscale-cluster-db", State: "Programmed"}},
			Extension: plane.ExtensionRevision{Desired: new("42"), Translated: new("42"), At: &now, Fresh: new(true)}, Conditions: isReady(true, "Programmed", ""), ObservedAt: now},
		plane.Gateway{ID: "infra/internal", Namespace: "infra", Name: "internal", Target: "infra/internal", Tailnets: []plane.GatewayTailnet{{Name: "partner", Stale: true, Message: "The credential is refused."}},
			Extension: plane.ExtensionRevision{Desired: new("43"), Translated: new("41"), At: &now, Fresh: new(false)}, Conditions: isReady(true, "Programmed", ""), ObservedAt: now}})
	b.Replace(plane.KindRoute, "kubernetes", h.routes(now))
	b.Replace(plane.KindProxyGroup, "kubernetes", []plane.Object{
		plane.ProxyGroup{ID: "infra/egress", Namespace: "infra", Name: "egress", Type: "egress", Tailnet: new("acme"), Wanted: 3, Ready: new(3), Devices: []plane.RelayDevice{
			{Ordinal: 0, Hostname: "egress-0", FQDN: "egress-0.tail1234.ts.net", Addresses: []string{"100.64.0.7"}, Ready: true}, {Ordinal: 1, Hostname: "egress-1", FQDN: "egress-1.tail1234.ts.net", Addresses: []string{"100.64.0.8"}, Ready: true},
			{Ordinal: 2, Hostname: "egress-2", FQDN: "egress-2.tail1234.ts.net", Addresses: []string{"100.64.0.9"}, Ready: true}}, Conditions: isReady(true, "Ready", ""), ObservedAt: now},
		plane.ProxyGroup{ID: "infra/partner-in", Namespace: "infra", Name: "partner-in", Type: "ingress", Tailnet: new("partner"), Wanted: 2, Ready: new(1), Devices: []plane.RelayDevice{
			{Ordinal: 0, Hostname: "partner-in-0", FQDN: "partner-in-0.tail9f31.ts.net", Addresses: []string{"100.90.1.2"}, Ready: true}, {Ordinal: 1, Hostname: "partner-in-1", Reason: "NotJoined"}},
			Conditions: isReady(false, "PodsNotReady", "1 of 2 relays is ready."), ObservedAt: now}})
	var adapters []plane.Object
	for i := range 18 {
		a := plane.Adapter{ID: fmt.Sprintf("shop/web-%d", i), Namespace: "shop", Pod: fmt.Sprintf("web-%d", i), Node: fmt.Sprintf("node-%d", i%4), Ready: new(true), Restarts: new(i % 3), Version: new("v0.9.2"),
			Outdated: new(i == 4 || i == 11), ObservedAt: now}
		if i%2 == 0 {
			a.Clusters = []plane.AdapterReach{{Cluster: "prod-eu", Healthy: true}, {Cluster: "edge-sg", Healthy: false}}
		}
		if i == 7 {
			a.Ready, a.Message = new(false), "The container is waiting: CrashLoopBackOff."
		}
		adapters = append(adapters, a)
	}
	b.Replace(plane.KindAdapter, "kubernetes", adapters)
	h.fleet(now)
}

// fleet adds runners of three organisations: some run, one is paused, one is broken, and one has an unknown state.
func (h *env) fleet(now time.Time) {
	b := h.board
	row := func(forge, org, pool, state, why string, change func(*plane.Pool)) plane.Object {
		p := plane.Pool{ID: forge + "/" + org + "/" + pool, Name: pool, Forge: forge, OrgName: org, Type: "Shared", Isolation: "None", RunsOn: []string{"self-hosted", pool}, Scaling: &plane.Scaling{Max: 8, Budget: 20},
			State: state, StateReason: why, Holds: []string{}, Assigned: new(3), Counts: plane.Counts{Idle: new(1), Busy: new(3), Pending: new(0), Failed: new(0)}, EffectiveMax: new(8), Allocated: new(8), Drift: []string{},
			Controller: plane.Controller{Kind: "AutoscalingRunnerSet", Namespace: "tailplane-runners", Name: org + "-" + pool}, ObservedAt: now}
		if change != nil {
			change(&p)
		}
		return p
	}
	b.Replace(plane.KindPool, "kubernetes", []plane.Object{
		row("github", "acme", "gh-nix", plane.PoolActive, "", nil), row("github", "acme", "gh-docker", plane.PoolDegraded, "2 of its runners have failed.", func(p *plane.Pool) { p.Counts.Failed = new(2) }),
		row("github", "globex", "gh-nix", plane.PoolPaused, "Hold globex-freeze by gus@globex.dev: release week", func(p *plane.Pool) {
			p.Holds, p.EffectiveMax, p.Assigned, p.Stranded, p.Counts = []string{"globex-freeze"}, new(0), new(3), new(2), plane.Counts{Idle: new(0), Busy: new(1), Pending: new(0), Failed: new(0)}
		}),
		row("gitlab", "initech", "gl-docker", plane.PoolFailing, "The credential is refused by the forge.", func(p *plane.Pool) { p.Assigned, p.Controller.Kind = nil, "Deployment" }),
		row("gitlab", "initech", "gl-nix", plane.StateUnknown, "The fleet has not reported a status for this pool yet.", func(p *plane.Pool) {
			p.Counts, p.EffectiveMax, p.Allocated, p.Assigned, p.Scaling, p.RunsOn, p.Controller = plane.Counts{}, nil, nil, nil, nil, nil, plane.Controller{}
		})})
	enrolled := func(org, forge, phase string, pools ...string) plane.Object {
		e := plane.Enrollment{ID: org, Name: org, Forge: forge, ConfigURL: "https://" + forge + ".com/" + org, Isolation: "None", Phase: phase, Owners: []string{"amy@" + org + ".dev"}, Members: []string{"*@" + org + ".dev"},
			Credential: &plane.EnrollmentCredential{Kind: "githubApp", Fingerprint: "3f9c1a2b4d5e6071", ExpiresAt: new(now.Add(20 * 24 * time.Hour))}, Conditions: isReady(phase == "Active", phase, "It is "+phase+"."), ObservedAt: now}
		for _, p := range pools {
			e.Pools = append(e.Pools, plane.EnrolledPool{Name: p, Type: "Shared"})
		}
		return e
	}
	acme := enrolled("acme", "github", "Active", "gh-nix", "gh-docker").(plane.Enrollment)
	acme.ExternalScaleSets = []plane.Adoption{{Pool: "old-nix", Namespace: "old-runners", Workload: "nix", Min: new(0), Max: new(2147483647), Counts: plane.Counts{Idle: new(2), Busy: new(4), Pending: new(0), Failed: new(0)}, SeenAt: new(now.Add(-50 * time.Hour))},
		{Pool: "older", Namespace: "old-runners", Workload: "arm", Hold: "arm-upgrade"}}
	b.Replace(plane.KindRunner, "kubernetes", []plane.Object{
		job("acme", "gh-nix", "a", plane.RunnerBusy, &plane.Job{Name: "build", Repository: "acme/shop", Workflow: "ci.yaml", Run: new(int64(9001)), URL: "https://github.com/acme/shop/actions/runs/9001", Started: new(now.Add(-4 * time.Minute))}),
		job("acme", "gh-nix", "b", plane.RunnerIdle, nil), job("acme", "gh-docker", "c", plane.RunnerFailed, nil), job("globex", "gh-nix", "d", plane.RunnerBusy, &plane.Job{Name: "globex secret"})})
	b.Replace(plane.KindEnrollment, "kubernetes", []plane.Object{acme, enrolled("globex", "github", "Active", "gh-nix"), enrolled("initech", "gitlab", "Suspended", "gl-docker", "gl-nix")})
	b.Replace(plane.KindForge, "kubernetes", []plane.Object{
		plane.Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com", Reachable: new(true), RateLimit: &plane.RateLimit{Remaining: 4321}, Conditions: isReady(true, "Reachable", ""), EnrolledOrgs: []string{"acme", "globex"}, ObservedAt: now},
		plane.Forge{ID: "gitlab", Name: "gitlab", Type: "gitlab", URL: "https://gitlab.com", Reachable: new(false), Conditions: isReady(false, "Unreachable", "The forge does not respond."), EnrolledOrgs: []string{"initech"}, ObservedAt: now}})
	b.Replace(plane.KindDrift, "kubernetes", []plane.Object{
		plane.Drift{ID: "d-labels", OrgName: "acme", Forge: "github", Pool: "gh-nix", Workload: "acme-gh-nix", Field: "LabelsDiffer", Kind: plane.DriftForge, Severity: "warning", Want: new("self-hosted, nix"), Have: new("self-hosted"),
			Evidence: "Its labels at the forge differ from the labels of the pool.", Next: "Restore the labels, or change the pool.", FirstSeen: now.Add(-2 * time.Hour), ObservedAt: now},
		plane.Drift{ID: "d-held", OrgName: "globex", Forge: "github", Pool: "gh-nix", Workload: "globex-gh-nix", Field: "CapacityDiffers", Kind: plane.DriftActual, Severity: "info", Evidence: "The pool may have no runners.", ExplainedBy: "globex-freeze", FirstSeen: now.Add(-3 * time.Hour), ObservedAt: now}})
	freeze := holding("globex-freeze", plane.Scope{Org: "globex", Pool: "gh-nix"}, plane.ModePause, "release week", "gus@globex.dev", plane.HoldApplied)
	freeze.ExpiresAt, freeze.Targets, freeze.Applied = new(now.Add(26*time.Hour)), new(1), new(1)
	b.Replace(plane.KindHold, "kubernetes", []plane.Object{freeze})
}

func holding(name string, scope plane.Scope, mode plane.HoldMode, reason, by, state string) plane.Hold {
	held := []string{"acme", "globex", "initech"}
	if scope.Org != "" {
		held = []string{scope.Org}
	}
	return plane.Hold{ID: name, Name: name, UID: "uid-" + name, Scope: scope, Mode: mode, Reason: reason, RequestedBy: by, Created: time.Now().Add(-3 * time.Hour), State: state, Failed: []plane.HoldFailure{}, HeldOrgs: held, ObservedAt: time.Now()}
}

func (h *env) routes(now time.Time) (routes []plane.Object) {
	for i, name := range []string{"db", "cache", "grafana", "registry", "mail", "search", "billing", "auth", "queue"} {
		r := plane.Route{ID: "TailscaleService/shop/" + name, Resource: "TailscaleService", Namespace: "shop", Name: name, Target: "infra/public", Tailnet: new("acme"), Hostnames: []string{name + ".acme.dev"},
			Rules: []plane.RouteRule{{Path: "/svc/" + name, Backend: "tailscale-cluster-" + name, State: "Programmed"}}, Refused: []plane.Refusal{}, Conditions: isReady(true, "Accepted", ""), ObservedAt: now}
		if i == 3 {
			r.Refused = []plane.Refusal{{Ref: "Secret/vault/registry", Reason: "RefNotPermitted", Message: "No ReferenceGrant in the namespace vault permits references from shop."}}
			r.Conditions = isReady(false, "RefNotPermitted", "A reference is not permitted.")
		}
		routes = append(routes, r)
	}
	return routes
}

// hostile sets a hostile text in every field whose value other people choose.
func (h *env) hostile() {
	const bad = `<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"'` + "`${window.hurt=1}{{window.hurt=1}}\u202Egnp.exe\x1b[31m"
	b, now := h.board, time.Now()
	b.Set(plane.KindPool, "kubernetes", plane.Pool{ID: bad, Name: bad, Forge: bad, OrgName: bad, Type: bad, State: plane.PoolActive, StateReason: bad, RunsOn: []string{bad}, Holds: []string{bad}, Drift: []string{bad}, Controller: plane.Controller{Kind: bad, Namespace: bad, Name: bad}})
	b.Set(plane.KindEnrollment, "kubernetes", plane.Enrollment{ID: bad, Name: bad, Forge: bad, ConfigURL: "javascript:window.hurt=1", Isolation: bad, Phase: "Active", Owners: []string{bad}, Members: []string{bad}, ExternalScaleSets: []plane.Adoption{{Pool: bad, Namespace: bad, Workload: bad, Hold: bad}}, Pools: []plane.EnrolledPool{{Name: bad, Type: bad, Repositories: []string{bad}}}})
	wide := holding(bad, plane.Scope{Forge: bad}, plane.ModePause, bad, bad, plane.HoldApplied)
	wide.Failed = []plane.HoldFailure{{Pool: bad, Org: bad, Reason: bad}}
	b.Set(plane.KindHold, "kubernetes", wide)
	b.Set(plane.KindDrift, "kubernetes", plane.Drift{ID: bad, OrgName: bad, Forge: bad, Pool: bad, Workload: bad, Subject: bad, Field: bad, Kind: bad, Severity: bad, Want: new(bad), Have: new(bad), Evidence: bad, Next: bad})
	b.Set(plane.KindRunner, "kubernetes", plane.Runner{ID: "tailplane-runners/hostile", Namespace: "tailplane-runners", Name: "hostile", Pool: "github/acme/gh-nix", OrgName: "acme", State: bad, Reason: bad, Message: bad, ForgeName: bad,
		Job: &plane.Job{ID: bad, Name: bad, Repository: bad, Workflow: bad, URL: "javascript:window.hurt=1"},
		Pod: &plane.Pod{Phase: bad, Node: bad, Reason: bad, Message: bad, Containers: []plane.Container{{Name: bad, Image: bad, State: bad, Reason: bad, Message: bad}, {Name: "runner", Image: bad, State: bad}}}})
	b.Set(plane.KindForge, "kubernetes", plane.Forge{ID: bad, Name: bad, Type: bad, URL: bad, Version: new(bad)})
	b.Set(plane.KindChange, plane.ChangesSource, plane.NewChange(plane.StoredChange{Change: gitops.Change{ID: bad, Ref: gitops.Ref{Kind: bad, Name: bad}, Org: bad, File: bad, Branch: bad, URL: "javascript:window.hurt=1", Base: bad, Head: bad, Title: bad, Reason: bad,
		Risk: gitops.Risk{Level: bad, Why: []string{bad}}, Diff: "--- a\n+++ b\n@@ -1 +1 @@\n-" + bad + "\n+" + bad + "\n", Proposer: bad, State: gitops.StateClosed, Checks: []gitops.Check{{Name: bad, State: bad, URL: "javascript:window.hurt=1"}}, Blocked: bad}}, now))
	s := signin(1, bad, bad, bad, "Ready", bad)
	s.Name, s.ID = "hostile", bad
	s.OIDC = &plane.SigninToken{Issuer: bad, Subject: bad, Claims: map[string]string{bad: bad}}
	s.Conditions = []plane.Condition{{Type: bad, Status: "False", Reason: bad, Message: bad}}
	c := cluster("hostile", "Alive", false)
	c.Name, c.Endpoint, c.URL, c.Version, c.Labels = bad, "javascript:window.hurt=1", "javascript:window.hurt=1", bad, map[string]string{bad: bad}
	c.Members = []plane.ClusterMember{{Node: bad, Host: bad, Health: bad}}
	b.Set(plane.KindSignin, "kubernetes", s)
	b.Set(plane.KindCluster, "gossip", c)
	b.Set(plane.KindTailnet, "kubernetes", plane.Tailnet{ID: bad, Name: bad, Domain: new(bad), Organisation: new(bad), Credential: plane.Credential{Valid: new(false), Reason: bad}, Conditions: s.Conditions, ObservedAt: now})
	b.Set(plane.KindGateway, "kubernetes", plane.Gateway{ID: bad, Namespace: bad, Name: bad, Target: bad, Class: new(bad), Tailnets: []plane.GatewayTailnet{{Name: bad, Message: bad, Stale: true}}, Conditions: s.Conditions, ObservedAt: now})
	b.Set(plane.KindRoute, "kubernetes", plane.Route{ID: bad, Resource: bad, Namespace: bad, Name: bad, Target: bad, Tailnet: new(bad), Rules: []plane.RouteRule{{Path: bad, Backend: bad, State: bad}},
		Refused: []plane.Refusal{{Ref: bad, Reason: bad, Message: bad}}, Conditions: s.Conditions, ObservedAt: now})
	b.Set(plane.KindProxyGroup, "kubernetes", plane.ProxyGroup{ID: bad, Namespace: bad, Name: bad, Type: bad, Tailnet: new(bad), Wanted: 1, Ready: new(0),
		Devices: []plane.RelayDevice{{Hostname: bad, FQDN: bad, Addresses: []string{bad}, Reason: bad}}, Conditions: s.Conditions, ObservedAt: now})
	b.Set(plane.KindAdapter, "kubernetes", plane.Adapter{ID: bad, Namespace: bad, Pod: bad, Node: bad, Version: new(bad), Message: bad, Clusters: []plane.AdapterReach{{Cluster: bad}}, ObservedAt: now})
	b.Report(plane.Source{Name: bad, Status: plane.StatusDegraded, Message: bad})
}
