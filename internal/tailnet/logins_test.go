package tailnet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"
	"tailscale.com/types/key"
	"tailscale.com/types/views"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// ID-16: Logins that differ in letter case or in the form of Unicode only are one login.
func TestID16_OneLogin(t *testing.T) {
	for _, tt := range []struct {
		why, a, b string
		same      bool
	}{
		{"the same", "pat@platform.dev", "pat@platform.dev", true},
		{"letter case", "Pat@PLATFORM.dev", "pat@platform.dev", true},
		{"letter case beyond one letter", "stra\u00dfe@platform.dev", "STRASSE@platform.dev", true},
		{"final and other sigma", "\u03c3@platform.dev", "\u03c2@platform.dev", true},
		{"composed and decomposed", "j\u00f6rg@platform.dev", "jo\u0308rg@platform.dev", true},
		{"full width", "\uff50at@platform.dev", "pat@platform.dev", true},
		{"full width, upper case", "\uff30at@platform.dev", "pat@platform.dev", true},
		{"a ligature", "\ufb01n@platform.dev", "fin@platform.dev", true},
		{"another domain", "pat@platform.dev", "pat@platform.example", false},
		{"a letter of another script", "p\u0430t@platform.dev", "pat@platform.dev", false},
		{"without a domain", "pat", "pat@platform.dev", false},
	} {
		if got := normalizeLogin(tt.a) == normalizeLogin(tt.b); got != tt.same {
			t.Errorf("%s: %q and %q are one login: %v, want %v", tt.why, tt.a, tt.b, got, tt.same)
		}
	}
}

// ID-16: Only users that own nodes count, and nodes of other tailnets are apart.
func TestID16_Owners(t *testing.T) {
	st := &ipnstate.Status{
		Self: &ipnstate.PeerStatus{UserID: 1},
		Peer: map[key.NodePublic]*ipnstate.PeerStatus{},
		User: map[tailcfg.UserID]tailcfg.UserProfile{
			1: {ID: 1, LoginName: "pat@platform.dev"}, 2: {ID: 2, LoginName: "kim@platform.dev"}, 3: {ID: 3, LoginName: "pat@platform.dev"},
			4: {ID: 4, LoginName: "Pat@platform.dev"}, 5: {ID: 5, LoginName: "pat@platform.dev"},
		},
	}
	for _, p := range []*ipnstate.PeerStatus{
		{UserID: 2}, {UserID: 2}, {UserID: 3, Tags: new(views.SliceOf([]string{"tag:ci"}))}, {UserID: 4, ShareeNode: true}, {UserID: 5, AltSharerUserID: 9}, {UserID: 6},
	} {
		st.Peer[key.NewNode().Public()] = p
	}
	got := map[loginKey]int{}
	for k, ids := range loginOwnersOf(st) {
		got[k] = len(ids)
	}
	if diff := cmp.Diff(map[loginKey]int{{false, "pat@platform.dev"}: 1, {false, "kim@platform.dev"}: 1, {true, "pat@platform.dev"}: 2}, got); diff != "" {
		t.Errorf("owners of each login (-want +got):\n%s", diff)
	}
}

// ID-16: On Headscale, a user can have the name that is another user's e-mail address. Both are refused, and only they, until the
// devices of one are gone.
func TestID16_TwoUsersOneLogin(t *testing.T) {
	t.Parallel()
	tn := tailnettest.StartWith(t, tailnettest.Options{Headscale: true, Policy: policyForHeadscale,
		Emails: map[string]string{"pat": "pat@platform.dev", "kim": "kim@platform.dev"}})
	cfg, _ := serverConfig(t, tn)
	n := run(t, cfg)
	pat, kim, visitor := tn.Node("pat-laptop", "pat"), tn.Node("kim-laptop", "kim"), tn.Node("visitor", "PAT@platform.dev")
	n.up(t)
	if name := n.Names()[0]; name != "tka.mesh.example" {
		t.Errorf("the server's name is %q, want %q", name, "tka.mesh.example")
	}
	if domain := n.Status().CertDomain; domain != "" {
		t.Errorf("the server gets certificates for %q, want none", domain)
	}
	ready(t, tn, "tka", pat, kim, visitor)
	code := func(s *tsnet.Server) problem.Code {
		t.Helper()
		c, err := n.whoIs(within(t), ip4(s), "")
		if err != nil {
			t.Fatal(err)
		}
		return problem.CodeOf(access.Admit(c))
	}
	become := func(why string, want map[string]problem.Code, nodes ...*tsnet.Server) {
		t.Helper()
		got := map[string]problem.Code{}
		eventually(t, why+": it arrived", func() bool {
			clear(got)
			for _, s := range nodes {
				got[s.Hostname] = code(s)
			}
			return cmp.Equal(want, got)
		})
	}

	const refused = problem.IdentityAmbiguous
	become("another letter case", map[string]problem.Code{"pat-laptop": refused, "kim-laptop": "", "visitor": refused}, pat, kim, visitor)
	tn.Share(stableID(t, tn, visitor))
	become("a visitor of another tailnet", map[string]problem.Code{"pat-laptop": "", "kim-laptop": "", "visitor": ""}, pat, kim, visitor)

	imposter := tn.Node("imposter-laptop", "pat@platform.dev")
	ready(t, tn, "tka", imposter)
	become("a user with the name of another's address", map[string]problem.Code{"pat-laptop": refused, "kim-laptop": "", "visitor": "", "imposter-laptop": refused}, pat, kim, visitor, imposter)
	var ids []string
	for _, s := range []*tsnet.Server{pat, imposter} {
		c, err := n.whoIs(within(t), ip4(s), "")
		if err != nil {
			t.Fatal(err)
		}
		if c.Login != "pat@platform.dev" {
			t.Errorf("%s has the login %q, want %q", s.Hostname, c.Login, "pat@platform.dev")
		}
		ids = append(ids, c.UserID)
	}
	if ids[0] == ids[1] {
		t.Errorf("both users have the id %q", ids[0])
	}
	id := string(stableID(t, tn, pat))
	devices, err := n.Devices(within(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if !devices[id].Ambiguous {
		t.Errorf("the device of a live sign-in: %+v, want it known and ambiguous", devices[id])
	}

	tn.Delete(stableID(t, tn, imposter))
	become("the other's devices are gone", map[string]problem.Code{"pat-laptop": "", "kim-laptop": "", "visitor": ""}, pat, kim, visitor)
}

const policyForHeadscale = `{
	"tagOwners": {"tag:tailplane": ["pat@platform.dev"]},
	"grants": [{"src": ["*"], "dst": ["tag:tailplane"], "ip": ["*"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}}],
}`
