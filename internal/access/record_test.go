package access_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

func TestParseRecord(t *testing.T) {
	g, err := access.ParseGrant([]byte(`{"role":"edit","period":"1h","record":["portForward","exec"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"exec", "portForward"}, g.Record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	for record, want := range map[string]string{`[]`: "is empty", `["logs"]`: "is not exec", `["exec","exec"]`: "listed twice", `"exec"`: "not a list", `[1]`: "not a string", `true`: "not a list"} {
		_, err := access.ParseGrant([]byte(`{"role":"edit","period":"1h","record":` + record + `}`))
		if got := fmt.Sprint(err); !strings.Contains(got, `"record"`) || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want the field and %q", record, err, want)
		}
	}
}

// Of several rules that cover a role, the one that counts says what is recorded. Equal rules add up.
func TestRecordFor(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pol := access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit"}, Min: access.MinPeriod, Max: 24 * time.Hour}
	for _, x := range []struct {
		why   string
		rules []string
		want  []string
	}{
		{"none", []string{`{"role":"edit","period":"1h"}`}, nil},
		{"one", []string{`{"role":"edit","period":"1h","record":["exec"]}`}, []string{"exec"}},
		{"of another role", []string{`{"role":"edit","period":"1h"}`, `{"role":"view","period":"8h","priority":9,"record":["exec"]}`}, nil},
		{"the higher priority", []string{`{"role":"edit","period":"1h","record":["exec"]}`, `{"role":"edit","period":"1h","priority":1,"record":["attach"]}`}, []string{"attach"}},
		{"equal rules", []string{`{"role":"edit","period":"1h","record":["attach"]}`, `{"role":"edit","period":"1h","record":["exec"]}`, `{"role":"edit","period":"1h"}`}, []string{"exec", "attach"}},
	} {
		c := access.Caller{Login: "alice@example.com", UserID: "1", Device: access.Device{ID: "n1", Name: "n1"}, Tailnet: "example.com", Via: access.ViaTailnet}
		for _, r := range x.rules {
			c.Rules = append(c.Rules, json.RawMessage(r))
		}
		p, err := access.Decide(c, access.SigninKubeconfig, pol, now)
		if err != nil {
			t.Fatalf("%s: %v", x.why, err)
		}
		if diff := cmp.Diff(x.want, p.RecordFor(access.Binds{{Role: "edit"}}, nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}
