package recording

import (
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// A role that does not cover everything reads the recordings of the caller's own sessions: not those of a longer or shorter login, and not
// those of an earlier user with the same login.
func TestMayRead(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	permit := func(rule string) access.Permit {
		c := access.Caller{Login: "ada@example.com", UserID: "7", Device: access.Device{ID: "n1", Name: "laptop"}, Tailnet: "example.com", Via: access.ViaTailnet}
		c.Rules = append(c.Rules, []byte(rule))
		p, err := access.DecidePlane(c, access.RecordingsRead, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, now)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, x := range []struct {
		why, rule string
		h         Header
		may       bool
	}{
		{"own", `{"role":"viewer","orgs":["*"]}`, Header{SrcNodeUser: "ada@example.com", SrcNodeUserID: 7}, true},
		{"of Tailscale's proxy, without the user's id", `{"role":"viewer","orgs":["*"]}`, Header{SrcNodeUser: "ada@example.com"}, true},
		{"of an earlier user", `{"role":"viewer","orgs":["*"]}`, Header{SrcNodeUser: "ada@example.com", SrcNodeUserID: 6}, false},
		{"of another login", `{"role":"operator","orgs":["*"]}`, Header{SrcNodeUser: "ada@example.com.evil", SrcNodeUserID: 7}, false},
		{"of a tagged node", `{"role":"org-admin","orgs":["*"]}`, Header{SrcNodeTags: []string{"tag:ci"}}, false},
		{"of nobody", `{"role":"org-admin","orgs":["acme"]}`, Header{}, false},
		{"of anybody, for an administrator", `{"role":"platform-admin","orgs":["*"]}`, Header{SrcNodeUser: "bob@example.com"}, true},
	} {
		if got := mayRead(permit(x.rule), x.h); got != x.may {
			t.Errorf("%s: %v, want %v", x.why, got, x.may)
		}
	}
	if mayRead(access.Permit{}, Header{}) {
		t.Error("the zero permit reads a recording without a caller")
	}
}
