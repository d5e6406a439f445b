package signin_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A cluster without the mode token gives out no token, at once and also to a caller that would wait. It refuses nothing else.
func TestProxyOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		modes []signin.Mode
		want  problem.Code // of the kubeconfig
	}{
		"a server without modes": {nil, ""},
		"token":                  {[]signin.Mode{signin.ModeToken}, ""},
		"both":                   {[]signin.Mode{signin.ModeProxy, signin.ModeToken}, ""},
		"proxy":                  {[]signin.Mode{signin.ModeProxy}, problem.ProxyOnly},
	} {
		t.Run(name, func(t *testing.T) {
			caller := guarded("alice@example.com", "n1", `{"role":"view","period":"8h"}`)
			h, service, entries := newHandler(newMemoryStore(), func() (access.Caller, error) { return caller, nil })
			service.Cluster.Modes = tt.modes
			service.Proxies = func() []signin.ProxyServer { return []signin.ProxyServer{{URL: "https://east-api.example.ts.net"}} }
			if w := request(h, signin.Login.Declare(), signin.LoginRequest{}); w.Code != http.StatusAccepted {
				t.Fatalf("login: %d %s", w.Code, w.Body)
			}
			for _, query := range []string{"", "?wait=1s"} {
				op := signin.GetKubeconfig.Declare()
				op.Pattern += query
				w := request(h, op, nil)
				if got := codeOf(t, w); got != tt.want {
					t.Errorf("kubeconfig%s: %q, want %q: %s", query, got, tt.want, w.Body)
				}
			}
			if last := (*entries)[len(*entries)-1]; last.Code != tt.want {
				t.Errorf("the audit log has %q, want %q", last.Code, tt.want)
			}
			if w := request(h, signin.Read.Declare(), nil); w.Code != http.StatusOK {
				t.Errorf("read: %d %s", w.Code, w.Body)
			}
			var info signin.ClusterInfo
			if err := json.Unmarshal(request(h, signin.GetClusterInfo.Declare(), nil).Body.Bytes(), &info); err != nil {
				t.Fatal(err)
			}
			want := tt.modes
			if want == nil {
				want = []signin.Mode{signin.ModeToken}
			}
			if diff := cmp.Diff(want, info.AccessModes()); diff != "" {
				t.Errorf("announced modes (-want +got):\n%s", diff)
			}
			caller = guarded("alice@example.com", "n1")
			if w := request(h, signin.GetKubeconfig.Declare(), nil); tt.want != "" && codeOf(t, w) != problem.ProxyOnly {
				t.Errorf("the owner without a grant: %s", w.Body)
			}
			caller = guarded("bob@example.com", "n2")
			if got := codeOf(t, request(h, signin.GetKubeconfig.Declare(), nil)); got != problem.NoCapability {
				t.Errorf("a caller without a grant learns %q, want %q", got, problem.NoCapability)
			}
		})
	}
}

// codeOf returns the code of a refusal, or "".
func codeOf(t *testing.T, w *httptest.ResponseRecorder) problem.Code {
	t.Helper()
	var p struct{ Code problem.Code }
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return p.Code
}

// Clients ignore modes that they do not know, and the mode proxy of a server that announces no proxy.
func TestAccessModes(t *testing.T) {
	for text, want := range map[string][]signin.Mode{
		`{}`:                          {signin.ModeToken},
		`{"modes":["token"]}`:         {signin.ModeToken},
		`{"modes":["proxy","token"]}`: {signin.ModeToken},
		`{"modes":["proxy","token"],"proxies":[{"url":"https://p"}]}`:  {signin.ModeProxy, signin.ModeToken},
		`{"modes":["future","proxy"],"proxies":[{"url":"https://p"}]}`: {signin.ModeProxy},
		`{"modes":["future"]}`: {},
	} {
		var info signin.ClusterInfo
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, info.AccessModes()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

// GET /login?wait= returns as soon as the sign-in is ready, and at the latest after the wait. Without it, the server answers at once.
func TestReadWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		query string
		ready time.Duration // after the request; 0: never
		took  time.Duration
		code  int
	}{
		"no wait":       {"", 0, 0, http.StatusAccepted},
		"ready":         {"?wait=1s", 300 * time.Millisecond, 300 * time.Millisecond, http.StatusOK},
		"never ready":   {"?wait=500ms", 0, 500 * time.Millisecond, http.StatusAccepted},
		"the longest":   {"?wait=1m", 0, time.Second, http.StatusAccepted},
		"no such thing": {"?session=other&wait=1s", 0, 0, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				caller := guarded("alice@example.com", "n1", `{"role":"view","period":"8h"}`)
				owner := signin.OwnerOf(caller, "")
				store := newMemoryStore()
				s := signin.Signin{Name: owner.Name(), Owner: owner, Binds: access.Binds{{Role: "view"}}, Period: 8 * time.Hour, AskedAt: time.Now()}
				store.signins[s.Name] = s
				h, _, _ := newHandler(store, func() (access.Caller, error) { return caller, nil })
				if tt.ready > 0 {
					time.AfterFunc(tt.ready, func() {
						s.Phase, s.ValidUntil = signin.PhaseReady, time.Now().Add(8*time.Hour)
						store.mu.Lock()
						defer store.mu.Unlock()
						store.signins[s.Name] = s
					})
				}
				op := signin.Read.Declare()
				op.Pattern += tt.query
				began := time.Now()
				w := request(h, op, nil)
				if w.Code != tt.code {
					t.Errorf("%d, want %d: %s", w.Code, tt.code, w.Body)
				}
				if took := time.Since(began); took < tt.took || took > tt.took+10*time.Millisecond {
					t.Errorf("the request took %v, want %v", took, tt.took)
				}
			})
		})
	}
}
