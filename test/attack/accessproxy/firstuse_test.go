package accessproxy

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// PX-24. The first-use operation serves this cluster's proxies only, and only devices whose own rules allow it. Nothing else
// writes anything, and a flood of refused requests slows no other device.
//
// Guard: admitProxy in internal/access, the device of the access server's own netmap in internal/signin, and its limits for
// each named device.
func TestPX24_FirstUseForOthers(t *testing.T) {
	s := attacktest.Start(t)
	onUse := `{"role": "view", "period": "1h", "onUse": true}`
	s.SetPolicy(t, attacktest.Grant("heidi@example.com", onUse), attacktest.Grant("ivan@example.com", onUse), attacktest.Grant("judy@example.com", `{"role": "view", "period": "1h"}`))
	heidi, ivan, judy := s.Person(t, "heidi-laptop", "heidi@example.com"), s.Person(t, "ivan-laptop", "ivan@example.com"), s.Person(t, "judy-laptop", "judy@example.com")
	own, foreign := s.Person(t, "east-proxy", "", "tag:east-proxy"), s.Person(t, "west-proxy", "", "tag:robot")
	for _, p := range []*testenv.Person{heidi, ivan, judy} {
		s.WaitGranted(t, p)
	}
	id := func(p *testenv.Person) string {
		lc, err := p.Node.LocalClient()
		if err != nil {
			t.Fatal(err)
		}
		st, err := lc.StatusWithoutPeers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(st.Self.ID)
	}
	begin := func(as *testenv.Person, device string) error {
		_, err := signin.FirstUse.Call(t.Context(), s.APIClient(as), signin.FirstUseRequest{Device: device})
		return err
	}
	for _, x := range []struct {
		why    string
		as     *testenv.Person
		device string
		want   problem.Code
	}{
		{"a person, for their own device", heidi, id(heidi), problem.NotAProxy},
		{"another cluster's proxy", foreign, id(heidi), problem.NotAProxy},
		{"an unknown device", own, "nUnknown11CNTRL", problem.NotSignedIn},
		{"no device", own, "", problem.BadRequest},
		{"a device without onUse", own, id(judy), problem.RoleNotGranted},
		{"the proxy itself", own, id(own), problem.TaggedNode},
		{"another proxy, which is tagged", own, id(foreign), problem.TaggedNode},
	} {
		if got := problem.CodeOf(begin(x.as, x.device)); got != x.want {
			t.Errorf("%s: %q, want %q", x.why, got, x.want)
		}
	}
	if _, err := signin.ReportUsage.Call(t.Context(), s.APIClient(heidi), signin.UsageReport{Signins: []string{"x"}}); problem.CodeOf(err) != problem.NotAProxy {
		t.Errorf("a person's report of usage: %v, want %s", err, problem.NotAProxy)
	}
	refused := 0
	for range 1000 {
		if begin(foreign, id(ivan)) != nil {
			refused++
		}
	}
	if refused != 1000 {
		t.Errorf("%d of 1000 requests of a node that is no proxy were refused", refused)
	}
	for _, login := range []string{"heidi@example.com", "judy@example.com", "node:east-proxy"} {
		if all := s.SignIns(t, login); len(all) != 0 {
			t.Errorf("%s has %d sign-ins, want none", login, len(all))
		}
	}
	began := time.Now()
	if err := begin(own, id(ivan)); err != nil {
		t.Errorf("control: the first use of another device: %v", err)
	}
	t.Logf("after 1000 refusals, the first use of another device took %v", time.Since(began).Round(time.Millisecond))
	if all := s.SignIns(t, "ivan@example.com"); len(all) != 1 || !all[0].Spec.OnUse {
		t.Errorf("control: ivan has %d sign-ins with onUse, want 1", len(all))
	}
	t.Run("marked", func(t *testing.T) {
		s.Login(t, heidi, signin.LoginRequest{})
		s.Logout(t, heidi)
		var m corev1.ConfigMap
		if err := s.KubeClient.Get(t.Context(), client.ObjectKey{Namespace: testenv.SystemNamespace, Name: "tailplane-first-use"}, &m); err != nil || len(m.Data) == 0 {
			t.Errorf("after a logout: %v, %v, want a mark", m.Data, err)
		}
		if err := begin(own, id(heidi)); problem.CodeOf(err) != problem.NotSignedIn {
			t.Errorf("a marked device: %v, want %s", err, problem.NotSignedIn)
		}
	})
}
