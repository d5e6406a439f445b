package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli/doctor"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// healthyFacts returns the facts of a machine without problems.
func healthyFacts() doctor.Facts {
	return doctor.Facts{
		Now: now, Tailnet: &doctor.Tailnet{State: "Running", Node: "alice.example.ts.net", KeyExpiry: now.Add(90 * 24 * time.Hour)},
		Server: "https://tka.example.ts.net", Key: "ed25519:x", ServerTime: now, ServerVersion: "v1.2.0", ClientVersion: "v1.2.3",
		Whoami: &signin.Whoami{Caller: signin.CallerIdentity{Login: "alice@example.com"}, Decision: signin.Decision{Allowed: true, Message: "A login gives view."},
			Signin: &signin.Status{Role: "view", State: signin.Ready, Until: "2026-11-21T20:00:00Z"}},
		APIServer: "https://k8s.example:6443", APIVersion: "v1.37.0", Rules: 5, RulesNamespace: "default",
		Kubeconfig: &doctor.Kubeconfig{Context: "tka-prod-eu", Exists: true, Matches: true, Current: true},
		Plugin:     "/usr/bin/tka", PluginCommand: "tka", Tokens: doctor.InMemory, Discovery: &doctor.Discovery{ListsItself: true, Others: 2},
	}
}

func TestEvaluate(t *testing.T) {
	for _, tt := range []struct {
		why    string
		change func(*doctor.Facts)
		name   string
		state  doctor.Status
		word   string
	}{
		{"settings", func(f *doctor.Facts) { f.SettingsFailure = doctor.Failure{"line 3 is wrong", []string{"mend it"}} }, "settings", doctor.Fail, "line 3"},
		{"no tailscale command", func(f *doctor.Facts) { f.Tailnet, f.TailnetFailure.Message = nil, "There is none" }, "tailnet", doctor.Skipped, "so this machine is in the tailnet"},
		{"and no server", func(f *doctor.Facts) {
			f.Tailnet, f.TailnetFailure.Message, f.ServerFailure = nil, "There is none", doctor.Failure{"down", []string{"wait"}}
		}, "tailnet", doctor.Skipped, "is unknown"},
		{"logged out", func(f *doctor.Facts) { f.Tailnet.State = "NeedsLogin" }, "tailnet", doctor.Fail, "NeedsLogin"},
		{"key expires in a week", func(f *doctor.Facts) { f.Tailnet.KeyExpiry = now.Add(6 * 24 * time.Hour) }, "node key", doctor.Warn, "2026-11-27"},
		{"key expired", func(f *doctor.Facts) { f.Tailnet.KeyExpiry = now }, "node key", doctor.Fail, "expired"},
		{"key never expires", func(f *doctor.Facts) { f.Tailnet.KeyExpiry = time.Time{} }, "node key", doctor.OK, "does not expire"},
		{"server", func(f *doctor.Facts) { f.ServerFailure = doctor.Failure{"cannot be reached", []string{"look"}} }, "server", doctor.Fail, "cannot be reached"},
		{"http", func(f *doctor.Facts) { f.Server = "http://tka" }, "server", doctor.OK, "http://"},
		{"first contact", func(f *doctor.Facts) { f.FirstContact = true }, "server proof", doctor.Warn, "new to this machine"},
		{"clock a little off", func(f *doctor.Facts) { f.ServerTime = now.Add(30 * time.Second) }, "clock", doctor.Warn, "30s behind"},
		{"clock far off", func(f *doctor.Facts) { f.ServerTime = now.Add(-10 * time.Minute) }, "clock", doctor.Fail, "10m0s ahead of"},
		{"clock a second off", func(f *doctor.Facts) { f.ServerTime = now.Add(-time.Second) }, "clock", doctor.OK, "agrees"},
		{"one minor behind", func(f *doctor.Facts) { f.ClientVersion = "v1.1.9" }, "version", doctor.OK, "v1.1.9"},
		{"two minors behind", func(f *doctor.Facts) { f.ClientVersion = "v1.0.9" }, "version", doctor.Warn, "one minor"},
		{"two minors ahead", func(f *doctor.Facts) { f.ClientVersion = "v1.4.0" }, "version", doctor.Warn, "one minor"},
		{"a build of one's own", func(f *doctor.Facts) { f.ClientVersion = "devel" }, "version", doctor.OK, "devel"},
		{"no grant", func(f *doctor.Facts) {
			f.Whoami.Decision = signin.Decision{Code: problem.NoCapability, Message: "alice has no grant.", Advice: []string{"Ask for one."}}
		}, "grant", doctor.Fail, "has no grant"},
		{"a rule that cannot be read", func(f *doctor.Facts) { f.Whoami.Rules = []signin.Rule{{Problem: "unknown field"}} }, "grant", doctor.Warn, "unknown field"},
		{"not signed in", func(f *doctor.Facts) { f.Whoami.Signin = nil }, "sign-in", doctor.Warn, "not signed in"},
		{"pending", func(f *doctor.Facts) { f.Whoami.Signin.State = signin.Pending }, "sign-in", doctor.Warn, "still preparing"},
		{"refused", func(f *doctor.Facts) { f.Whoami.Signin.State = signin.Refused }, "sign-in", doctor.Fail, "cannot provide the sign-in"},
		{"clocks of the servers apart (SGN-17)", func(f *doctor.Facts) {
			f.Whoami.Signin.State, f.Whoami.Signin.Reason, f.Whoami.Signin.Message = signin.Refused, signin.ReasonClockSkew, "the clocks differ"
		}, "sign-in", doctor.Fail, "ClockSkew: the clocks differ"},
		{"edit everywhere", func(f *doctor.Facts) { f.Whoami.Signin.Role = "edit" }, "role", doctor.Warn, "every ServiceAccount"},
		{"edit in one namespace", func(f *doctor.Facts) { f.Whoami.Signin.Role, f.Whoami.Signin.Namespaces = "edit", []string{"shop"} }, "role", doctor.OK, "edit"},
		{"API server", func(f *doctor.Facts) { f.APIFailure = doctor.Failure{"no route", []string{"look"}} }, "API server", doctor.Fail, "no route"},
		{"access proxy", func(f *doctor.Facts) { f.Mode = signin.ModeProxy }, "API server", doctor.OK, "carries requests to the API server: Kubernetes v1.37.0"},
		{"access proxy, direct", func(f *doctor.Facts) { f.Mode, f.Direct = signin.ModeProxy, true }, "API server", doctor.OK, "The connection is direct."},
		{"access proxy, relayed", func(f *doctor.Facts) { f.Mode, f.Relay = signin.ModeProxy, "fra" }, "API server", doctor.OK, "relayed through the DERP region fra"},
		{"access proxy, not signed in", func(f *doctor.Facts) { f.Mode, f.APIVersion = signin.ModeProxy, "" }, "API server", doctor.OK, "until this device is signed in"},
		{"no plugin in the mode proxy", func(f *doctor.Facts) { f.Mode, f.Plugin = signin.ModeProxy, "" }, "plugin", doctor.Skipped, "runs no plugin"},
		{"plugins denied in the mode proxy", func(f *doctor.Facts) {
			f.Mode, f.Kuberc = signin.ModeProxy, doctor.Kuberc{File: "kuberc", Policy: "DenyAll"}
		}, "plugin policy", doctor.Skipped, "runs no plugin"},
		{"no token in the mode proxy", func(f *doctor.Facts) { f.Mode, f.Tokens = signin.ModeProxy, doctor.OnDisk }, "tokens", doctor.OK, "no token from this machine"},
		{"another access proxy", func(f *doctor.Facts) { f.Mode, f.Kubeconfig.Matches = signin.ModeProxy, false }, "kubeconfig", doctor.Fail, "another access proxy"},
		{"a mode that is no longer offered", func(f *doctor.Facts) { f.Kubeconfig.Outdated = signin.ModeToken }, "kubeconfig", doctor.Fail, "uses the mode token, which the cluster no longer offers"},
		{"no rights", func(f *doctor.Facts) { f.Rules = 0 }, "rights", doctor.Warn, "no rights in the namespace default"},
		{"token refused", func(f *doctor.Facts) { f.RulesFailure = doctor.Failure{"401", []string{"tka login"}} }, "rights", doctor.Fail, "401"},
		{"no context", func(f *doctor.Facts) { f.Kubeconfig.Exists = false }, "kubeconfig", doctor.Warn, "no context tka-prod-eu"},
		{"another cluster", func(f *doctor.Facts) { f.Kubeconfig.Matches = false }, "kubeconfig", doctor.Fail, "another API server"},
		{"a lock left", func(f *doctor.Facts) { f.Kubeconfig.StaleLock = "/x.lock" }, "kubeconfig", doctor.Warn, "/x.lock"},
		{"not the current one", func(f *doctor.Facts) { f.Kubeconfig.Current = false }, "kubeconfig", doctor.OK, "not the current one"},
		{"not in PATH", func(f *doctor.Facts) { f.Plugin = "" }, "plugin", doctor.Fail, "does not find tka"},
		{"plugins denied", func(f *doctor.Facts) { f.Kuberc = doctor.Kuberc{File: "kuberc", Policy: "DenyAll"} }, "plugin policy", doctor.Fail, "DenyAll"},
		{"not on the list", func(f *doctor.Facts) { f.Kuberc = doctor.Kuberc{File: "kuberc", Policy: "Allowlist"} }, "plugin policy", doctor.Fail, "Allowlist"},
		{"on the list", func(f *doctor.Facts) { f.Kuberc = doctor.Kuberc{File: "kuberc", Policy: "Allowlist", Listed: true} }, "plugin policy", doctor.OK, "may run"},
		{"a policy of tomorrow", func(f *doctor.Facts) { f.Kuberc = doctor.Kuberc{File: "kuberc", Policy: "Ask"} }, "plugin policy", doctor.Fail, "Ask"},
		{"tokens on disk", func(f *doctor.Facts) { f.Tokens = doctor.OnDisk }, "tokens", doctor.OK, "on disk"},
		{"alone", func(f *doctor.Facts) { f.Discovery.Others = 0 }, "discovery", doctor.OK, "only its own cluster"},
		{"one other", func(f *doctor.Facts) { f.Discovery.Others = 1 }, "discovery", doctor.OK, "1 other cluster"},
		{"isolated", func(f *doctor.Facts) { f.Discovery.Isolated = true }, "discovery", doctor.Warn, "receives nothing"},
		{"not even itself", func(f *doctor.Facts) { f.Discovery.ListsItself = false }, "discovery", doctor.Warn, "does not list its own"},
		{"an older server", func(f *doctor.Facts) { f.Discovery = &doctor.Discovery{Unsupported: true} }, "discovery", doctor.Skipped, "version"},
		{"no list", func(f *doctor.Facts) { f.Discovery, f.DiscoveryFailure = nil, doctor.Failure{Message: "refused"} }, "discovery", doctor.Warn, "refused"},
		{"unverified", func(f *doctor.Facts) { f.Discovery.Unverified = []string{"prod-us"} }, "clusters", doctor.Warn, "not contacted these clusters yet, so tka does not sign in to them: prod-us."},
		{"conflict", func(f *doctor.Facts) {
			f.Discovery.Unverified, f.Discovery.Conflicts = []string{"prod-us"}, strings.Split(strings.Repeat("a,", 9)+"b", ",")
		}, "clusters", doctor.Warn, "a, a, a, a, a, a, a, a and 2 more."},
		{"refused records", func(f *doctor.Facts) {
			f.Discovery.Refused = []string{"n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address", "n8 of cluster d: host x is not the node's name"}
		}, "clusters", doctor.Warn, "announce: n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address; n8 of cluster d: host x is not the node's name."},
		{"elsewhere", func(f *doctor.Facts) { f.Discovery.Elsewhere = []string{"prod-us"} }, "clusters", doctor.Warn, "does not connect to: prod-us"},
	} {
		f := healthyFacts()
		tt.change(&f)
		all := doctor.Evaluate(f)
		i := slices.IndexFunc(all, func(f doctor.Result) bool { return f.Name == tt.name })
		switch {
		case i < 0:
			t.Errorf("%s: i = %v, want at least 0", tt.why, i)
		case all[i].Status != tt.state:
			t.Errorf("%s: all[i].Status = %q, want %q", tt.why, all[i].Status, tt.state)
		case !strings.Contains(all[i].Message, tt.word):
			t.Errorf("%s: all[i].Message = %q does not contain %q", tt.why, all[i].Message, tt.word)
		}
		if want := tt.state; want != doctor.Skipped && doctor.Worst(all) != want {
			t.Errorf("%s: the worst status is %s", tt.why, doctor.Worst(all))
		}
		checkLaws(t, tt.why, all)
	}
}

// checkLaws checks the laws that hold for every check-up.
func checkLaws(t *testing.T, why string, all []doctor.Result) {
	t.Helper()
	names := map[string]bool{}
	for _, f := range all {
		switch {
		case names[f.Name]:
			t.Errorf("%s: %s occurs twice", why, f.Name)
		case f.Message == "" || f.Advice == nil:
			t.Errorf("%s: %+v says nothing", why, f)
		case (f.Status == doctor.Warn || f.Status == doctor.Fail) && len(f.Advice) == 0 && f.Name != "grant":
			t.Errorf("%s: %+v has no advice", why, f)
		}
		names[f.Name] = true
	}
}

// Law 7: an unknown fact is never reported as ok.
func TestZeroFactsAreNotOK(t *testing.T) {
	all := doctor.Evaluate(doctor.Facts{Now: now, TailnetFailure: doctor.Failure{Message: "It was not checked"}, ServerFailure: doctor.Failure{Message: "down", Advice: []string{"wait"}}})
	checkLaws(t, "nothing", all)
	for _, f := range all {
		if f.Status == doctor.OK && !slices.Contains([]string{"settings", "plugin policy", "tokens"}, f.Name) {
			t.Errorf("%+v", f)
		}
	}
	if all := doctor.Evaluate(healthyFacts()); doctor.Worst(all) != doctor.OK || slices.ContainsFunc(all, func(f doctor.Result) bool { return f.Status != doctor.OK }) {
		t.Errorf("without a problem: %+v", all)
	}
}

func TestSkew(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"v1.2.3", "v1.2.0", false}, {"v1.2.3", "v1.3.0", false}, {"v1.2.3", "v1.4.0", true}, {"v1.4.0", "v1.2.3", true}, {"v1.2.3", "v2.2.3", true},
		{"devel", "v1.2.3", false}, {"", "v1.2.3", false}, {"v0.0.0-20260101", "v9.9.9", false}, {"v1.2", "v9.9.9", false}, {"v1.x.3", "v9.9.9", false}, {"v1.2.3-rc.1", "v1.3.0+x", false},
	} {
		if got := doctor.SkewTooLarge(tt.a, tt.b); got != tt.want {
			t.Errorf("SkewTooLarge(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
