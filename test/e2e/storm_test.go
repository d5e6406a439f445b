package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// gate puts a reverse proxy, which can inject faults, between one program and the API server. It returns the
// program's kubeconfig file.
func gate(t *testing.T, r *testenv.Env, account string, storm *kubetest.Storm) (kubeconfig string) {
	t.Helper()
	direct, err := r.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, account, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(r.Cluster.Server)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(r.Cluster.AdminConfig()))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(server) },
		Transport:     storm.Wrap(transport),
		FlushInterval: -1, // for watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:      log.New(io.Discard, "", 0),
	})
	proxy.EnableHTTP2 = true
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	proxy.StartTLS()
	t.Cleanup(func() { proxy.CloseClientConnections(); proxy.Close() })
	k, err := clientcmd.LoadFromFile(direct)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range k.Clusters {
		c.Server = proxy.URL
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// operatorBehind restarts the operator behind the fault injector. The environment's own operator returns after the
// test.
func operatorBehind(t *testing.T, r *testenv.Env, storm *kubetest.Storm) {
	t.Helper()
	text, err := r.Settings("operator")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Operator.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.StartOperator(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	p, err := r.Try("operator-in-a-storm", "operator", nil, string(text), "--kubeconfig", gate(t, r, "tailplane-operator", storm))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.WaitLog(ctx, `"the sign-in operator is running"`); err != nil {
		t.Fatal(err)
	}
}

// SGN-17: people sign in, use their access and sign out. Meanwhile the API server answers both programs with 429, 5xx
// and conflicts, breaks connections, cuts watches and sends 410 Gone. No person sees "internal error". Afterwards
// everything works again.
func TestSGN17_Storms(t *testing.T) {
	r := start(t)
	toAccess, toOperator := kubetest.NewStorm(17), kubetest.NewStorm(18)
	replicaBy(t, r, "tka-storm", gate(t, r, "tailplane-access", toAccess))
	operatorBehind(t, r, toOperator)
	base := "https://tka-storm." + r.Net.Suffix()
	people := []*testenv.Person{
		person(t, r, "storm-alice", "alice@example.com"), person(t, r, "storm-carol", "carol@example.com"),
		person(t, r, "storm-dave", "dave@example.com"), person(t, r, "storm-other", "alice@b.example"),
	}
	for _, p := range people {
		if err := r.Net.WaitPeer(t.Context(), p.Node, "tka-storm"); err != nil {
			t.Fatal(err)
		}
	}
	weathers := []struct {
		why              string
		access, operator map[kubetest.Fault]float64
	}{
		{"429 with Retry-After", map[kubetest.Fault]float64{kubetest.TooManyRequests: .2}, map[kubetest.Fault]float64{kubetest.TooManyRequests: .3}},
		{"5xx", map[kubetest.Fault]float64{kubetest.ServerError: .15, kubetest.Unavailable: .15}, map[kubetest.Fault]float64{kubetest.ServerError: .2, kubetest.Unavailable: .2}},
		{"conflicts", map[kubetest.Fault]float64{kubetest.Conflict: .6}, map[kubetest.Fault]float64{kubetest.Conflict: .4}},
		{"broken connections", map[kubetest.Fault]float64{kubetest.Refused: .1, kubetest.Lost: .3}, map[kubetest.Fault]float64{kubetest.Refused: .1, kubetest.Lost: .3}},
		{"watches that end and cannot go on", map[kubetest.Fault]float64{kubetest.WatchExpired: .5, kubetest.WatchCut: .5}, map[kubetest.Fault]float64{kubetest.WatchExpired: .5, kubetest.WatchCut: .5}},
		{"all of it", map[kubetest.Fault]float64{kubetest.ServerError: .1, kubetest.Conflict: .2, kubetest.Refused: .1, kubetest.Lost: .1, kubetest.WatchCut: .5, kubetest.WatchExpired: .2},
			map[kubetest.Fault]float64{kubetest.ServerError: .1, kubetest.Conflict: .2, kubetest.Refused: .1, kubetest.Lost: .1, kubetest.WatchCut: .5, kubetest.WatchExpired: .2}},
	}
	for _, weather := range weathers {
		t.Run(weather.why, func(t *testing.T) {
			toAccess.Blow(weather.access)
			toOperator.Blow(weather.operator)
			before := toAccess.Struck()
			toAccess.CutWatches()
			toOperator.CutWatches()
			// Access has received each kind of fault. One watch fault is enough when there are no others, because
			// after it a watch may pause for half a minute.
			enough := func() bool {
				now, watches, cut := toAccess.Struck(), 0, 0
				for f := range weather.access {
					switch n := now[f] - before[f]; {
					case f == kubetest.WatchExpired || f == kubetest.WatchCut:
						watches, cut = watches+1, cut+n
					case n == 0:
						return false
					}
				}
				return watches < len(weather.access) || cut > 0
			}
			heard := map[string]int{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			errs := make(chan error, len(people))
			for _, p := range people {
				wg.Go(func() {
					errs <- pester(t.Context(), p, base, enough, func(op string, status int, code problem.Code) {
						mu.Lock()
						defer mu.Unlock()
						heard[fmt.Sprint(op, " ", status, " ", code)]++
					})
				})
			}
			wg.Wait()
			for range people {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if !enough() {
				t.Errorf("the storm has not struck: %v, before %v", toAccess.Struck(), before)
			}
			t.Logf("received: %v", heard)
		})
	}
	t.Logf("faults: access %v, operator %v", toAccess.Struck(), toOperator.Struck())

	// Afterwards.
	toAccess.Blow(nil)
	toOperator.Blow(nil)
	for _, p := range people {
		c := httpapi.Client{HTTP: p.HTTP(), Base: base}
		var last error
		eventually(t, time.Minute, "a kubeconfig after the storm", func() bool {
			if _, last = signin.Login.Call(t.Context(), c, signin.LoginRequest{}); last != nil {
				return false
			}
			_, last = signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)})
			return last == nil
		})
		st, err := signin.Logout.Call(t.Context(), c, signin.LogoutRequest{Wait: httpapi.Duration(20 * time.Second)})
		if err != nil {
			t.Errorf("logout after the storm: %v", err)
		}
		eventually(t, time.Minute, "nothing is left", func() bool { return len(left(t, r, st.Name)) == 0 })
	}
}

// pester signs in, requests a kubeconfig, reads and signs out repeatedly, for two seconds and until enough returns
// true. It returns the messages that a person must never see.
func pester(ctx context.Context, p *testenv.Person, base string, enough func() bool, tell func(op string, status int, code problem.Code)) error {
	h := p.HTTP()
	defer h.CloseIdleConnections()
	ask := func(method, path string) (int, problem.Code, error) {
		req, err := http.NewRequestWithContext(ctx, method, base+signin.Base+path, strings.NewReader(""))
		if err != nil {
			return 0, "", err
		}
		began := time.Now()
		res, err := h.Do(req)
		if err != nil {
			return 0, "", fmt.Errorf("%s %s is not answered after %v: %w", method, path, time.Since(began), err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, "", err
		}
		var refused problem.Error
		_ = json.Unmarshal(body, &refused) // the body may be no problem document: then there is no code
		tell(method+" "+strings.SplitN(path, "?", 2)[0], res.StatusCode, refused.Code)
		switch {
		case res.StatusCode < 300:
		case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "":
			return 0, "", fmt.Errorf("%s %s: 503 without Retry-After", method, path)
		case res.StatusCode == http.StatusServiceUnavailable, res.StatusCode == http.StatusConflict && refused.Code == problem.Conflict:
		case refused.Code == problem.NotSignedIn:
		default:
			return 0, "", fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
		}
		return res.StatusCode, refused.Code, nil
	}
	for began := time.Now(); time.Since(began) < 2*time.Second || !enough() && time.Since(began) < time.Minute; {
		status, _, err := ask("POST", "/login")
		if err != nil {
			return err
		}
		_, code, err := ask("GET", "/kubeconfig?wait=5s")
		if err != nil {
			return err
		}
		if status == http.StatusAccepted && code == problem.NotSignedIn {
			return fmt.Errorf("not signed in, after a login that was accepted")
		}
		for _, a := range [][2]string{{"GET", "/login"}, {"POST", "/logout"}} {
			if _, _, err := ask(a[0], a[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// SGN-17: while the API server accepts connections and does not answer, every caller gets 503 before its own timeout.
// Nothing hangs when the API server is back.
func TestSGN17_SilentAPIServer(t *testing.T) {
	r := start(t)
	storm := kubetest.NewStorm(19)
	replicaBy(t, r, "tka-silent", gate(t, r, "tailplane-access", storm))
	p := person(t, r, "silent-alice", "alice@example.com")
	if err := r.Net.WaitPeer(t.Context(), p.Node, "tka-silent"); err != nil {
		t.Fatal(err)
	}
	c := httpapi.Client{HTTP: p.HTTP(), Base: "https://tka-silent." + r.Net.Suffix()}
	if _, err := signin.Login.Call(t.Context(), c, signin.LoginRequest{}); err != nil {
		t.Fatal(err)
	}
	storm.Blow(map[kubetest.Fault]float64{kubetest.Silent: 1})
	var wg sync.WaitGroup
	ops := map[string]func() error{
		"login": func() error { _, err := signin.Login.Call(t.Context(), c, signin.LoginRequest{}); return err },
		"read":  func() error { _, err := signin.Read.Call(t.Context(), c, signin.ReadRequest{}); return err },
		"kubeconfig": func() error {
			_, err := signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(time.Second)})
			return err
		},
		"logout": func() error { _, err := signin.Logout.Call(t.Context(), c, signin.LogoutRequest{}); return err },
	}
	for name, op := range ops {
		wg.Go(func() {
			began := time.Now()
			err := op() // the client's timeout is 60 seconds
			if code := problem.CodeOf(err); code != problem.Unavailable {
				t.Errorf("%s: %v after %v, want %s", name, err, time.Since(began), problem.Unavailable)
			}
			t.Logf("%s: refused after %v", name, time.Since(began).Round(time.Millisecond))
		})
	}
	wg.Wait()
	storm.Blow(nil)
	eventually(t, time.Minute, "a kubeconfig when the API server answers again", func() bool {
		_, err := signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(5 * time.Second)})
		return err == nil
	})
	logout(t, p)
}

// SGN-17: the clock of the access server that wrote the sign-in is ahead of the operator's. Such a sign-in gives no
// access. The caller and tka doctor receive the reason by name.
func TestSGN17_DoctorNamesTheSkew(t *testing.T) {
	r := start(t)
	p := person(t, r, "skew-alice", "alice@example.com")
	run(t, p, 0, "tka login --use")
	defer logout(t, p)
	s := signinOf(t, r, p)
	if len(left(t, r, s.Name)) == 0 {
		t.Fatal("nothing is bound")
	}
	// The sign-in that an access server with a clock ten minutes ahead would write.
	config := r.Cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-access"}
	k, err := client.New(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"spec":{"askedAt":%q}}`, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
	if err := k.Patch(t.Context(), &s, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the access is taken down", func() bool { return len(left(t, r, s.Name)) == 0 })
	eventually(t, time.Minute, "the sign-in is refused", func() bool {
		_, err := signin.GetKubeconfig.Call(t.Context(), p.Client(), signin.KubeconfigRequest{})
		return problem.CodeOf(err) == problem.CannotProvision && strings.Contains(err.Error(), "ClockSkew")
	})
	if got := run(t, p, 1, "tka doctor"); !strings.Contains(got.Stdout, "ClockSkew") || !strings.Contains(got.Stdout, "the clocks of the access server and the operator differ") {
		t.Errorf("doctor:\n%s", got.Stdout)
	}
	run(t, p, 0, "tka login") // from a server with a correct clock
	run(t, p, 0, "kubectl get pods -n shop")
}

// signinOf returns the only sign-in of p's device.
func signinOf(t *testing.T, r *testenv.Env, p *testenv.Person) v1alpha1.TkaSignin {
	t.Helper()
	who, err := signin.GetWhoami.Call(t.Context(), p.Client(), signin.WhoamiRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range signins(t, r, "") {
		if s.Spec.Device.ID == who.Caller.NodeID {
			return s
		}
	}
	t.Fatal("this device has no sign-in")
	return v1alpha1.TkaSignin{}
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}
