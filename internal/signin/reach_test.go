package signin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

// SI-15: ReachesAccounts finds each right that reaches every ServiceAccount, also through wildcards.
func TestSI15_ReachesAccounts(t *testing.T) {
	rule := func(group, resource string, verbs ...string) PolicyRule {
		return PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	named := func(r PolicyRule) PolicyRule { r.ResourceNames = []string{"one"}; return r }
	const rbac = "rbac.authorization.k8s.io"
	for _, tt := range []struct {
		why  string
		rule PolicyRule
		want string
	}{
		{"impersonation", rule("", "serviceaccounts", "impersonate"), "impersonate accounts"},
		{"impersonation of one user", named(rule("", "users", "impersonate")), "impersonate accounts"},
		{"extra fields", rule("authentication.k8s.io", "userextras/scopes", "impersonate"), "impersonate accounts"},
		{"a constrained form of impersonation", rule("authentication.k8s.io", "serviceaccounts", "impersonate:serviceaccount"), "impersonate accounts"},
		{"every verb on groups", rule("", "groups", "*"), "impersonate accounts"},
		{"tokens", rule("", "serviceaccounts/token", "create"), "create tokens of ServiceAccounts"},
		{"tokens of one account of each namespace", named(rule("", "serviceaccounts/token", "create")), "create tokens of ServiceAccounts"},
		{"every resource's token", rule("*", "*/token", "create"), "create tokens of ServiceAccounts"},
		{"Secrets", rule("", "secrets", "get"), "read Secrets"},
		{"a list of Secrets", rule("", "secrets", "list"), "read Secrets"},
		{"a watch of Secrets", rule("*", "secrets", "watch"), "read Secrets"},
		{"one Secret of each namespace", named(rule("", "secrets", "get")), "read Secrets"},
		{"pods", rule("", "pods", "create"), "write pods"},
		{"a change of pods", rule("", "pods", "patch"), "write pods"},
		{"replication controllers", rule("", "replicationcontrollers", "update"), "write pods"},
		{"debug containers", rule("", "pods/ephemeralcontainers", "patch"), "add containers to pods"},
		{"commands", rule("", "pods/exec", "create"), "execute commands in pods"},
		{"commands over a WebSocket", rule("", "pods/exec", "get"), "execute commands in pods"},
		{"attach", rule("", "*/attach", "create"), "execute commands in pods"},
		{"Deployments", rule("apps", "deployments", "patch"), "write workloads"},
		{"DaemonSets", rule("apps", "daemonsets", "create"), "write workloads"},
		{"StatefulSets", rule("apps", "statefulsets", "update"), "write workloads"},
		{"ReplicaSets", rule("apps", "replicasets", "create"), "write workloads"},
		{"Jobs", rule("batch", "jobs", "create"), "write workloads"},
		{"CronJobs", rule("batch", "*", "create"), "write workloads"},
		{"nodes", rule("", "nodes/proxy", "get"), "reach pods through their nodes"},
		{"bind", rule(rbac, "clusterroles", "bind"), "give rights that it does not have"},
		{"bind of one role", named(rule(rbac, "clusterroles", "bind")), "give rights that it does not have"},
		{"escalate", rule(rbac, "roles", "escalate"), "give rights that it does not have"},
		{"everything of RBAC", rule(rbac, "*", "*"), "give rights that it does not have"},
		{"reading everything", rule("*", "*", "get", "list", "watch"), "read Secrets, execute commands in pods, reach pods through their nodes"},

		{"no rule", PolicyRule{}, ""},
		{"every path, but no resource", PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}, ""},
		{"reading pods", rule("", "pods", "get", "list", "watch"), ""},
		{"deleting pods", rule("", "pods", "delete"), ""},
		{"logs", rule("", "pods/log", "get"), ""},
		{"scaling", rule("apps", "deployments/scale", "update"), ""},
		{"writing Secrets", rule("", "secrets", "create"), ""},
		{"accounts without their tokens", rule("", "serviceaccounts", "create", "update"), ""},
		{"another group's Secrets", rule("example.com", "secrets", "get"), ""},
		{"another group's bind", rule("example.com", "exports", "bind"), ""},
		{"another subresource", rule("", "*/status", "update"), ""},
		{"a pattern that Kubernetes does not know", rule("", "serviceaccounts/*", "create"), ""},
		{"ConfigMaps", rule("", "configmaps", "*"), ""},
		{"nodes without their proxy", rule("", "nodes", "get", "list"), ""},
		{"writing bindings", rule(rbac, "rolebindings", "create"), ""},
	} {
		if got := ReachesAccounts([]PolicyRule{rule("", "events", "get"), tt.rule}); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.why, got, tt.want)
		}
	}
}

// SI-15: an entry for requests does not allow a plain sign-in, and an absent list allows all roles with a warning.
func TestSI15_ClusterWide(t *testing.T) {
	for _, tt := range []struct {
		why              string
		list             ClusterWide
		reaches          string
		refused, warning bool
	}{
		{"absent", nil, "read Secrets", false, true},
		{"absent, harmless role", nil, "", false, false},
		{"empty", ClusterWide{}, "read Secrets", true, false},
		{"empty, harmless role", ClusterWide{}, "", false, false},
		{"named", ClusterWide{{Role: "edit"}}, "read Secrets", false, false},
		{"another one", ClusterWide{{Role: "admin"}}, "read Secrets", true, false},
		{"by request", ClusterWide{{Role: "edit", ByRequest: true}}, "read Secrets", true, false},
	} {
		refusal, warning := tt.list.Refusal("edit", tt.reaches, false), tt.list.Warning("edit", tt.reaches)
		if (refusal != "") != tt.refused || (warning != "") != tt.warning {
			t.Errorf("%s: refusal %q, warning %q; want %v, %v", tt.why, refusal, warning, tt.refused, tt.warning)
		}
	}
}

// SI-15: the operator provisions no sign-in to the whole cluster with a role that needs namespaces. A live one keeps
// its access until its present end.
func TestSI15_Next(t *testing.T) {
	end := t0.Add(8 * time.Hour)
	reaching := func(f *Facts) { f.Roles, f.Rules.ClusterWide = reachingRoles("read Secrets"), ClusterWide{} }
	extended := func(f *Facts) { f.AskedAt, f.Generation = t0.Add(30*time.Second), f.Generation+1 }
	type result struct {
		Action Action
		Phase  Phase
		Reason string
		Until  time.Time
		Wake   time.Time
		Role   access.Role
	}
	now := t0.Add(time.Minute)
	for _, tt := range []struct {
		why  string
		f    Facts
		want result
	}{
		{"a new sign-in is refused", pendingFacts(reaching), result{Refuse, PhaseRefused, ReasonRoleNeedsNamespaces, time.Time{}, now.Add(rules.Recheck), ""}},
		{"a new sign-in to namespaces is not", pendingFacts(reaching, inNamespaces), result{Provision, PhaseReady, ReasonProvisioned, end, end, "view"}},
		{"without the setting it is allowed", pendingFacts(reaching, func(f *Facts) { f.Rules.ClusterWide = nil }), result{Provision, PhaseReady, ReasonProvisioned, end, end, "view"}},
		{"a live one stays, with a warning", liveFacts(reaching), result{Warn, PhaseReady, ReasonRoleNeedsNamespaces, end, end, "view"}},
		{"a live one is not extended", liveFacts(reaching, extended), result{Warn, PhaseReady, ReasonRoleNeedsNamespaces, end, end, "view"}},
		{"without its binding it is not live", liveFacts(reaching, func(f *Facts) { f.Bindings = nil }), result{Refuse, PhaseRefused, ReasonRoleNeedsNamespaces, time.Time{}, now.Add(rules.Recheck), ""}},
		{"a status alone proves nothing", pendingFacts(reaching, func(f *Facts) {
			f.Report = liveFacts().Report
		}), result{Refuse, PhaseRefused, ReasonRoleNeedsNamespaces, time.Time{}, now.Add(rules.Recheck), ""}},
	} {
		step, wake := Next(tt.f, now)
		got := result{step.Action, step.Report.Phase, step.Report.Reason, step.Report.ValidUntil, wake, step.Report.Bound.Role()}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
	// After the report is stored there is nothing to write, and the end comes as before.
	f := liveFacts(reaching, extended)
	step, _ := Next(f, now)
	store(&f, step.Report, now)
	if step, wake := Next(f, now); step.Action != Keep || !wake.Equal(end) {
		t.Errorf("again: %s at %v, want %s at %v", step.Action, wake, Keep, end)
	}
	if step, _ := Next(f, end); step.Action != Expire {
		t.Errorf("at the end: %s, want %s", step.Action, Expire)
	}
}
