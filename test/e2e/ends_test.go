package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// Section 6: a sign-in that ends without a request is in the audit log of the process that detected the end, and that
// process counts it by cause. Ends that a request caused are not recorded there.
func TestEndsThatNoRequestCaused(t *testing.T) {
	r := start(t)
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	counted := func(name string) float64 { return series(t, r.Operator)[name] }
	const byAdmin, ready = `tailplane_signin_ends_total{cause="admin"}`, `tailplane_signin_ready_seconds_count`
	ends, readied := counted(byAdmin), counted(ready)

	names := map[string]string{}
	for _, who := range []string{"logout", "deleted", "robbed"} {
		p := person(t, r, "ends-"+who, "alice@example.com")
		st, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{Role: "view"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := signin.GetKubeconfig.Call(t.Context(), p.Client(), signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		names[who] = st.Name
		if who == "logout" {
			if _, err := signin.Logout.Call(t.Context(), p.Client(), signin.LogoutRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := counted(ready) - readied; n != 3 {
		t.Errorf("%v became ready, want 3", n)
	}
	if _, ok := series(t, r.Operator)[`tailplane_signins{phase="Ready"}`]; !ok {
		t.Error("the operator does not show the sign-ins")
	}
	if _, errs, exit := kubetest.Kubectl(t.Context(), r.Cluster.Kubeconfig, "-n", "tailplane-signins", "delete", "tkasignin", names["deleted"]); exit != 0 {
		t.Fatal(errs)
	}
	if err := k.CoreV1().ServiceAccounts("tailplane-signins").Delete(t.Context(), names["robbed"], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	found := map[string]audit.Entry{}
	eventually(t, 30*time.Second, "both ends are recorded", func() bool {
		f, err := os.Open(r.OperatorAuditFile())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		clear(found)
		for s := bufio.NewScanner(f); s.Scan(); {
			var e audit.Entry
			if err := json.Unmarshal(s.Bytes(), &e); err != nil {
				t.Fatalf("%q: %v", s.Text(), err)
			}
			for who, name := range names {
				if e.Object == name {
					if _, twice := found[who]; twice {
						t.Errorf("the end of %s is recorded twice", who)
					}
					found[who] = e
				}
			}
		}
		return found["deleted"].Object != "" && found["robbed"].Object != ""
	})
	for _, who := range []string{"deleted", "robbed"} {
		e := found[who]
		switch {
		case e.Verb != access.SigninEnd:
			t.Errorf("%s is recorded: e.Verb = %q, want %q", who, e.Verb, access.SigninEnd)
		case e.Surface != "process":
			t.Errorf("%s is recorded: e.Surface = %q, want %q", who, e.Surface, "process")
		case e.Result != audit.Done:
			t.Errorf("%s is recorded: e.Result = %q, want %q", who, e.Result, audit.Done)
		case e.Args["cause"] != string(signin.CauseAdmin):
			t.Errorf(`%s is recorded: e.Args["cause"] = %q, want %q`, who, e.Args["cause"], string(signin.CauseAdmin))
		case e.Args["login"] != "alice@example.com":
			t.Errorf(`%s is recorded: e.Args["login"] = %q, want %q`, who, e.Args["login"], "alice@example.com")
		case e.Reason == "":
			t.Errorf("%s is recorded: e.Reason is empty, %+v", who, e)
		case e.Actor.Node == "":
			t.Errorf("%s is recorded: e.Actor.Node is empty, %+v", who, e)
		case e.Actor.Login != "":
			t.Errorf("%s is recorded: e.Actor.Login = %q, want none", who, e.Actor.Login)
		}
	}
	if e, ok := found["logout"]; ok {
		t.Errorf("the access server recorded this end, and the operator as well: %+v", e)
	}
	if n := counted(byAdmin) - ends; n != 2 {
		t.Errorf("%v ends by an administrator of the cluster are counted, want 2", n)
	}
}
