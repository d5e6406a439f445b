package signin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

// A check adds to what must be recorded and never takes away. A sign-in that may have been given a token ends instead: its token goes
// past the recording. One that had a record never got a token.
func TestRecheckRecord(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view"}, Min: access.MinPeriod, Max: 24 * time.Hour}
	for _, x := range []struct {
		why    string
		had    []string
		rule   string
		tokens bool
		want   CheckResult // the reason is a part of the reason
	}{
		{"nothing", nil, `{"role":"view","period":"8h"}`, true, CheckResult{}},
		{"the same", []string{"exec"}, `{"role":"view","period":"8h","record":["exec"]}`, true, CheckResult{}},
		{"taken away", []string{"exec"}, `{"role":"view","period":"8h"}`, true, CheckResult{}},
		{"more", []string{"exec"}, `{"role":"view","period":"8h","record":["attach"]}`, true, CheckResult{Record: []string{"exec", "attach"}, Reason: "now requires"}},
		{"the first, without tokens", nil, `{"role":"view","period":"8h","record":["exec"]}`, false, CheckResult{Record: []string{"exec"}, Reason: "now requires"}},
		{"the first, with tokens", nil, `{"role":"view","period":"8h","record":["exec"]}`, true, CheckResult{End: true, Reason: "may have been given a token"}},
		{"more, and a shorter period", []string{"exec"}, `{"role":"view","period":"1h","record":["attach"]}`, true, CheckResult{Period: time.Hour, Record: []string{"exec", "attach"}, Reason: "now granted for 1h"}},
	} {
		c := access.Caller{Login: "alice@example.com", UserID: "1", Device: access.Device{ID: "n1", Name: "n1"}, Tailnet: "example.com", Via: access.ViaTailnet, Rules: []json.RawMessage{json.RawMessage(x.rule)}}
		o := OwnerOf(c, "")
		s := Signin{Name: o.Name(), Owner: o, Binds: access.Binds{{Role: "view"}}, Record: x.had, Period: 8 * time.Hour, AskedAt: t0, Generation: 1,
			Report: Report{Phase: PhaseReady, ValidUntil: t0.Add(8 * time.Hour), ObservedGeneration: 1}}
		got := (&Guard{Policy: policy, Tokens: x.tokens, Interval: time.Minute}).recheck(s, DeviceState{Caller: c}, t0)
		if !strings.Contains(got.Reason, x.want.Reason) {
			t.Errorf("%s: the reason is %q, want %q", x.why, got.Reason, x.want.Reason)
		}
		got.Reason, x.want.Reason = "", ""
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}

// A login whose rule has a record replaces a sign-in that may have been given a token, and extends one that never got one.
func TestEvades(t *testing.T) {
	both := &Service{Cluster: ClusterInfo{Modes: []Mode{ModeProxy, ModeToken}, Proxies: []ProxyServer{{URL: "https://east-api"}}}}
	only := &Service{Cluster: ClusterInfo{Modes: []Mode{ModeProxy}, Proxies: []ProxyServer{{URL: "https://east-api"}}}}
	for _, x := range []struct {
		why       string
		d         *Service
		had, want []string
		evades    bool
	}{
		{"no record", both, nil, nil, false},
		{"the first record", both, nil, []string{"exec"}, true},
		{"the first record, and no tokens", only, nil, []string{"exec"}, false},
		{"another record", both, []string{"exec"}, []string{"attach"}, false},
	} {
		if got := x.d.evades(Signin{Record: x.had}, x.want); got != x.evades {
			t.Errorf("%s: %v, want %v", x.why, got, x.evades)
		}
	}
}
