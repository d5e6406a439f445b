package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The servers of the environment re-check grants at this interval, the default.
const grantCheck = 30 * time.Second

// lasting returns a person's device that stays in the tailnet while it is offline.
func lasting(t *testing.T, r *testenv.Env, host, login string) (*tsnet.Server, httpapi.Client) {
	t.Helper()
	n := r.Net.Node(host, login)
	n.Ephemeral, n.Store = false, nil
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := r.Net.Ready(ctx, n); err != nil {
		t.Fatal(err)
	}
	if err := r.Net.WaitPeer(ctx, n, "tka"); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: n.Dial, TLSClientConfig: &tls.Config{RootCAs: r.Roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return n, httpapi.Client{HTTP: &http.Client{Transport: transport, Timeout: time.Minute}, Base: r.Server()}
}

// ended returns the only audit log entry about an end of that sign-in that the server started itself.
func ended(t *testing.T, r *testenv.Env, name string) (e audit.Entry) {
	t.Helper()
	n := 0
	eventually(t, time.Minute, "what was done is recorded", func() bool { // the entry is written after the action
		n = 0
		for _, es := range entries(t, r) {
			for _, one := range es {
				if one.Surface == "process" && one.Object == name {
					e = one
					n++
				}
			}
		}
		return n > 0
	})
	if n != 1 {
		t.Errorf("%d entries about what was done to %s", n, name)
	}
	return e
}

// SGN-11: a withdrawn grant or a deleted device ends a sign-in, even when no request uses it. A device that is only
// offline ends nothing.
func TestSGN11_GrantsAreLookedAtAgain(t *testing.T) {
	r := start(t)
	original := r.Net.Policy()
	grant := func(src, period string) string {
		return `{"src": ["` + src + `"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "` + period + `"}]}}, `
	}
	set := func(grants ...string) {
		t.Helper()
		if err := r.Net.SetPolicy(strings.Replace(original, `"grants": [`, `"grants": [`+strings.Join(grants, ""), 1)); err != nil {
			t.Fatal(err)
		}
	}
	defer set()
	hank := grant("hank@example.com", "8h")
	set(hank, grant("gina@example.com", "8h"))
	gina := person(t, r, "gina", "gina@example.com")
	gone, goneClient := lasting(t, r, "hank-gone", "hank@example.com")
	offline, offlineClient := lasting(t, r, "hank-offline", "hank@example.com")
	names := map[string]string{}
	for who, c := range map[string]httpapi.Client{"gina": gina.Client(), "gone": goneClient, "offline": offlineClient} {
		eventually(t, 5*time.Second, who+" is let in", func() bool {
			st, err := signin.Login.Call(t.Context(), c, signin.LoginRequest{})
			names[who] = st.Name
			return err == nil
		})
		if _, err := signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(who string) (period time.Duration, there bool) {
		t.Helper()
		for _, s := range signins(t, r, "") {
			if s.Name == names[who] && s.DeletionTimestamp == nil {
				return s.Spec.Period.Duration, true
			}
		}
		return 0, false
	}

	// One device is deleted, the other only goes offline.
	id, err := r.Net.ID(gone)
	if err != nil {
		t.Fatal(err)
	}
	offline.Close()
	if !r.Net.Delete(id) {
		t.Fatal("the device was not there")
	}
	deleted := time.Now()

	// Meanwhile gina's grant gets shorter, then longer again, then is removed.
	set(hank, grant("gina@example.com", "2h"))
	took := eventually(t, grantCheck+2*time.Second, "the sign-in is shorter", func() bool { period, _ := stored("gina"); return period == 2*time.Hour })
	st, err := signin.Read.Call(t.Context(), gina.Client(), signin.ReadRequest{})
	switch until, perr := time.Parse(time.RFC3339, st.Until); {
	case err != nil:
		t.Errorf("until: %v; %s", err, st.Until)
	case perr != nil:
		t.Errorf("until: perr: %v; %s", perr, st.Until)
	case time.Until(until) > 2*time.Hour:
		t.Errorf("until: time.Until(until) > 2*time.Hour; %s, %v, perr = %v", st.Until, err, perr)
	}
	switch e := ended(t, r, names["gina"]); {
	case e.Verb != access.SigninShorten:
		t.Errorf("recorded: e.Verb = %q, want %q", e.Verb, access.SigninShorten)
	case e.Args["period"] != "2h0m0s":
		t.Errorf(`recorded: e.Args["period"] = %q, want %q`, e.Args["period"], "2h0m0s")
	case e.Result != audit.Done:
		t.Errorf("recorded: e.Result = %q, want %q", e.Result, audit.Done)
	}
	t.Logf("shortened %v after the policy's change", took.Round(time.Millisecond))

	set(hank)
	took = eventually(t, 2*time.Second, "no kubeconfig", func() bool {
		_, err := signin.GetKubeconfig.Call(t.Context(), gina.Client(), signin.KubeconfigRequest{})
		code := problem.CodeOf(err)
		return code == problem.GrantRemoved || code == problem.NoCapability
	})
	t.Logf("no kubeconfig %v after the grant was removed", took.Round(time.Millisecond))
	eventually(t, 5*time.Second, "gina's sign-in is gone", func() bool { _, there := stored("gina"); return !there })

	// No request uses hank's sign-in. One re-check that misses a device is not sufficient to end it.
	if _, there := stored("gone"); !there && time.Since(deleted) < grantCheck/2 {
		t.Errorf("the deleted device's sign-in ended %v after: before it was looked at twice", time.Since(deleted))
	}
	eventually(t, grantCheck+2*time.Second-time.Since(deleted), "the deleted device's sign-in is gone", func() bool { _, there := stored("gone"); return !there })
	t.Logf("ended %v after the device was deleted", time.Since(deleted).Round(time.Millisecond))
	switch e := ended(t, r, names["gone"]); {
	case e.Verb != access.SigninEnd:
		t.Errorf("recorded: e.Verb = %q, want %q", e.Verb, access.SigninEnd)
	case !strings.Contains(e.Reason, "no longer in the tailnet"):
		t.Errorf("recorded: e.Reason = %q does not contain %q", e.Reason, "no longer in the tailnet")
	case e.Args["login"] != "hank@example.com":
		t.Errorf(`recorded: e.Args["login"] = %q, want %q`, e.Args["login"], "hank@example.com")
	case e.Actor.Node == "":
		t.Errorf("recorded: e.Actor.Node is empty; %+v", e)
	}
	if _, there := stored("offline"); !there {
		t.Error("the sign-in of a device that is only offline has ended")
	}

	// The grant of an idle sign-in is removed: no request, and no change except that of the policy.
	removed := time.Now()
	set()
	eventually(t, grantCheck+2*time.Second, "the untouched sign-in is gone", func() bool { _, there := stored("offline"); return !there })
	t.Logf("untouched sign-in gone %v after the grant", time.Since(removed).Round(time.Millisecond))
	if e := ended(t, r, names["offline"]); !strings.Contains(e.Reason, "no longer granted") {
		t.Errorf("recorded %+v", e)
	}
	if got := series(t, r.Access)[`tailplane_signin_ends_total{cause="grant"}`]; got < 2 {
		t.Errorf("counted %v ends by grant", got)
	}
}
