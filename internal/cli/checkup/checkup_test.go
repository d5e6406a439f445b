package checkup_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli/checkup"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// well returns the facts of a machine without problems.
func well() checkup.Facts {
	return checkup.Facts{
		Now: now, Tailnet: &checkup.Tailnet{State: "Running", Node: "alice.example.ts.net", KeyExpiry: now.Add(90 * 24 * time.Hour)},
		Server: "https://tka.example.ts.net", Key: "ed25519:x", ServerTime: now, ServerVersion: "v1.2.0", OurVersion: "v1.2.3",
		Whoami: &signin.Whoami{Caller: signin.Seen{Login: "alice@example.com"}, Decision: signin.Decision{Allowed: true, Message: "A login gives view."},
			Signin: &signin.Status{Role: "view", State: signin.Ready, Until: "2026-11-21T20:00:00Z"}},
		APIServer: "https://k8s.example:6443", APIVersion: "v1.37.0", Rules: 5, RulesIn: "default",
		Kubeconfig: &checkup.Kubeconfig{Context: "tka-prod-eu", There: true, Fits: true, Current: true},
		Plugin:     "/usr/bin/tka", PluginCommand: "tka", Tokens: checkup.InMemory, Discovery: &checkup.Discovery{Own: true, Others: 2},
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		why    string
		change func(*checkup.Facts)
		name   string
		state  checkup.State
		word   string
	}{
		{"settings", func(f *checkup.Facts) { f.Settings = checkup.Trouble{"line 3 is wrong", []string{"mend it"}} }, "settings", checkup.Fail, "line 3"},
		{"no tailscale command", func(f *checkup.Facts) { f.Tailnet, f.TailnetTrouble.Message = nil, "There is none" }, "tailnet", checkup.Skipped, "so this machine is in the tailnet"},
		{"and no server", func(f *checkup.Facts) {
			f.Tailnet, f.TailnetTrouble.Message, f.ServerTrouble = nil, "There is none", checkup.Trouble{"down", []string{"wait"}}
		}, "tailnet", checkup.Skipped, "is not known"},
		{"logged out", func(f *checkup.Facts) { f.Tailnet.State = "NeedsLogin" }, "tailnet", checkup.Fail, "NeedsLogin"},
		{"key expires in a week", func(f *checkup.Facts) { f.Tailnet.KeyExpiry = now.Add(6 * 24 * time.Hour) }, "node key", checkup.Warn, "2026-11-27"},
		{"key expired", func(f *checkup.Facts) { f.Tailnet.KeyExpiry = now }, "node key", checkup.Fail, "expired"},
		{"key never expires", func(f *checkup.Facts) { f.Tailnet.KeyExpiry = time.Time{} }, "node key", checkup.OK, "does not expire"},
		{"server", func(f *checkup.Facts) { f.ServerTrouble = checkup.Trouble{"cannot be reached", []string{"look"}} }, "server", checkup.Fail, "cannot be reached"},
		{"http", func(f *checkup.Facts) { f.Server = "http://tka" }, "server", checkup.Warn, "http://"},
		{"first contact", func(f *checkup.Facts) { f.FirstContact = true }, "server proof", checkup.Warn, "first time"},
		{"clock a little off", func(f *checkup.Facts) { f.ServerTime = now.Add(30 * time.Second) }, "clock", checkup.Warn, "30s behind"},
		{"clock far off", func(f *checkup.Facts) { f.ServerTime = now.Add(-10 * time.Minute) }, "clock", checkup.Fail, "10m0s ahead of"},
		{"clock a second off", func(f *checkup.Facts) { f.ServerTime = now.Add(-time.Second) }, "clock", checkup.OK, "agrees"},
		{"one minor behind", func(f *checkup.Facts) { f.OurVersion = "v1.1.9" }, "version", checkup.OK, "v1.1.9"},
		{"two minors behind", func(f *checkup.Facts) { f.OurVersion = "v1.0.9" }, "version", checkup.Warn, "one minor"},
		{"two minors ahead", func(f *checkup.Facts) { f.OurVersion = "v1.4.0" }, "version", checkup.Warn, "one minor"},
		{"a build of one's own", func(f *checkup.Facts) { f.OurVersion = "devel" }, "version", checkup.OK, "devel"},
		{"no grant", func(f *checkup.Facts) {
			f.Whoami.Decision = signin.Decision{Code: problem.NoCapability, Message: "alice has no grant.", Advice: []string{"Ask for one."}}
		}, "grant", checkup.Fail, "has no grant"},
		{"a rule that cannot be read", func(f *checkup.Facts) { f.Whoami.Rules = []signin.Rule{{Problem: "unknown field"}} }, "grant", checkup.Warn, "unknown field"},
		{"not signed in", func(f *checkup.Facts) { f.Whoami.Signin = nil }, "sign-in", checkup.Warn, "not signed in"},
		{"pending", func(f *checkup.Facts) { f.Whoami.Signin.State = signin.Pending }, "sign-in", checkup.Warn, "being made"},
		{"refused", func(f *checkup.Facts) { f.Whoami.Signin.State = signin.Refused }, "sign-in", checkup.Fail, "cannot be provisioned"},
		{"clocks of the servers apart (SGN-17)", func(f *checkup.Facts) {
			f.Whoami.Signin.State, f.Whoami.Signin.Reason, f.Whoami.Signin.Message = signin.Refused, signin.ReasonClockSkew, "the clocks differ"
		}, "sign-in", checkup.Fail, "ClockSkew: the clocks differ"},
		{"edit everywhere", func(f *checkup.Facts) { f.Whoami.Signin.Role = "edit" }, "role", checkup.Warn, "every ServiceAccount"},
		{"edit in one namespace", func(f *checkup.Facts) { f.Whoami.Signin.Role, f.Whoami.Signin.Namespaces = "edit", []string{"shop"} }, "role", checkup.OK, "edit"},
		{"API server", func(f *checkup.Facts) { f.APITrouble = checkup.Trouble{"no route", []string{"look"}} }, "API server", checkup.Fail, "no route"},
		{"no rights", func(f *checkup.Facts) { f.Rules = 0 }, "rights", checkup.Warn, "no rights in the namespace default"},
		{"token refused", func(f *checkup.Facts) { f.RulesTrouble = checkup.Trouble{"401", []string{"tka login"}} }, "rights", checkup.Fail, "401"},
		{"no context", func(f *checkup.Facts) { f.Kubeconfig.There = false }, "kubeconfig", checkup.Warn, "no context tka-prod-eu"},
		{"another cluster", func(f *checkup.Facts) { f.Kubeconfig.Fits = false }, "kubeconfig", checkup.Fail, "another API server"},
		{"a lock left", func(f *checkup.Facts) { f.Kubeconfig.Stale = "/x.lock" }, "kubeconfig", checkup.Warn, "/x.lock"},
		{"not the current one", func(f *checkup.Facts) { f.Kubeconfig.Current = false }, "kubeconfig", checkup.OK, "not the current one"},
		{"not in PATH", func(f *checkup.Facts) { f.Plugin = "" }, "plugin", checkup.Fail, "does not find tka"},
		{"plugins denied", func(f *checkup.Facts) { f.Kuberc = checkup.Kuberc{File: "kuberc", Policy: "DenyAll"} }, "plugin policy", checkup.Fail, "DenyAll"},
		{"not on the list", func(f *checkup.Facts) { f.Kuberc = checkup.Kuberc{File: "kuberc", Policy: "Allowlist"} }, "plugin policy", checkup.Fail, "Allowlist"},
		{"on the list", func(f *checkup.Facts) { f.Kuberc = checkup.Kuberc{File: "kuberc", Policy: "Allowlist", Listed: true} }, "plugin policy", checkup.OK, "may run"},
		{"a policy of tomorrow", func(f *checkup.Facts) { f.Kuberc = checkup.Kuberc{File: "kuberc", Policy: "Ask"} }, "plugin policy", checkup.Fail, "Ask"},
		{"tokens on disk", func(f *checkup.Facts) { f.Tokens = checkup.OnDisk }, "tokens", checkup.OK, "on disk"},
		{"alone", func(f *checkup.Facts) { f.Discovery.Others = 0 }, "discovery", checkup.OK, "no cluster but its own"},
		{"one other", func(f *checkup.Facts) { f.Discovery.Others = 1 }, "discovery", checkup.OK, "1 cluster beside"},
		{"isolated", func(f *checkup.Facts) { f.Discovery.Isolated = true }, "discovery", checkup.Warn, "hears none"},
		{"not even itself", func(f *checkup.Facts) { f.Discovery.Own = false }, "discovery", checkup.Warn, "does not list its own"},
		{"an older server", func(f *checkup.Facts) { f.Discovery = &checkup.Discovery{None: true} }, "discovery", checkup.Skipped, "version"},
		{"no list", func(f *checkup.Facts) { f.Discovery, f.DiscoveryTrouble = nil, checkup.Trouble{Message: "refused"} }, "discovery", checkup.Warn, "refused"},
		{"unverified", func(f *checkup.Facts) { f.Discovery.Unverified = []string{"prod-us"} }, "clusters", checkup.Warn, "not met these clusters itself, so they are not signed in to: prod-us."},
		{"conflict", func(f *checkup.Facts) {
			f.Discovery.Unverified, f.Discovery.Conflicts = []string{"prod-us"}, strings.Split(strings.Repeat("a,", 9)+"b", ",")
		}, "clusters", checkup.Warn, "a, a, a, a, a, a, a, a and 2 more."},
		{"refused records", func(f *checkup.Facts) {
			f.Discovery.Refused = []string{"n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address", "n8 of cluster d: host x is not the node's name"}
		}, "clusters", checkup.Warn, "announce: n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address; n8 of cluster d: host x is not the node's name."},
		{"elsewhere", func(f *checkup.Facts) { f.Discovery.Elsewhere = []string{"prod-us"} }, "clusters", checkup.Warn, "does not go to: prod-us"},
	} {
		f := well()
		tt.change(&f)
		all := checkup.Judge(f)
		i := slices.IndexFunc(all, func(f checkup.Finding) bool { return f.Name == tt.name })
		if i < 0 || all[i].State != tt.state || !strings.Contains(all[i].Message, tt.word) {
			t.Errorf("%s: %+v, want %s with %q", tt.why, all[max(i, 0)], tt.state, tt.word)
		}
		if want := tt.state; want != checkup.Skipped && checkup.Worst(all) != want {
			t.Errorf("%s: the worst is %s", tt.why, checkup.Worst(all))
		}
		checkLaws(t, tt.why, all)
	}
}

// checkLaws checks the laws that hold for every check-up.
func checkLaws(t *testing.T, why string, all []checkup.Finding) {
	t.Helper()
	names := map[string]bool{}
	for _, f := range all {
		switch {
		case names[f.Name]:
			t.Errorf("%s: %s is there twice", why, f.Name)
		case f.Message == "" || f.Advice == nil:
			t.Errorf("%s: %+v says nothing", why, f)
		case (f.State == checkup.Warn || f.State == checkup.Fail) && len(f.Advice) == 0 && f.Name != "grant":
			t.Errorf("%s: %+v says not what to do", why, f)
		}
		names[f.Name] = true
	}
}

// Law 7: an unknown fact is never reported as ok.
func TestNothingIsNotWell(t *testing.T) {
	all := checkup.Judge(checkup.Facts{Now: now, TailnetTrouble: checkup.Trouble{Message: "It was not looked at"}, ServerTrouble: checkup.Trouble{Message: "down", Advice: []string{"wait"}}})
	checkLaws(t, "nothing", all)
	for _, f := range all {
		if f.State == checkup.OK && !slices.Contains([]string{"settings", "plugin policy", "tokens"}, f.Name) {
			t.Errorf("%+v", f)
		}
	}
	if all := checkup.Judge(well()); checkup.Worst(all) != checkup.OK || slices.ContainsFunc(all, func(f checkup.Finding) bool { return f.State != checkup.OK }) {
		t.Errorf("all is well: %+v", all)
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
		if got := checkup.SkewTooLarge(tt.a, tt.b); got != tt.want {
			t.Errorf("SkewTooLarge(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
