package e2e

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A roleHistory records every write about one sign-in, in the API server's order. A condition that holds after each
// entry held at every moment.
type roleHistory struct {
	name  string
	mu    sync.Mutex
	lines []line
	died  map[string]time.Time // account UIDs with the time at which the deletion was observed
}

type line struct {
	version uint64
	gone    bool
	object  client.Object
}

func chronicleOf(t *testing.T, r *testenv.Env, name string) *roleHistory {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	k, err := client.NewWithWatch(r.Cluster.AdminConfig(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	c := &roleHistory{name: name, died: map[string]time.Time{}}
	for _, list := range []client.ObjectList{&v1alpha1.TkaSigninList{}, &corev1.ServiceAccountList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}} {
		w, err := k.Watch(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		go func() {
			for e := range w.ResultChan() {
				c.hear(e)
			}
		}()
	}
	return c
}

func (c *roleHistory) hear(e watch.Event) {
	o, ok := e.Object.(client.Object)
	if !ok || !strings.HasSuffix(o.GetName(), c.name) {
		return
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return // the checks below would miss this entry
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, line{version, e.Type == watch.Deleted, o})
	if _, account := o.(*corev1.ServiceAccount); account && e.Type == watch.Deleted {
		c.died[string(o.GetUID())] = time.Now()
	}
}

func (c *roleHistory) ended(account string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, dead := c.died[account]
	return at, dead
}

// check replays the chronicle. There are never two roles, and a sign-in is ready only with its role bound. check
// returns the roles in the order in which they were shown.
func (c *roleHistory) check(t *testing.T) (shown []string) {
	t.Helper()
	c.mu.Lock()
	lines := slices.Clone(c.lines)
	c.mu.Unlock()
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.version, b.version) })
	bound := map[string]string{} // bindings by UID: role and namespace
	for _, l := range lines {
		uid := string(l.object.GetUID())
		switch o := l.object.(type) {
		case *rbacv1.ClusterRoleBinding:
			bound[uid] = o.RoleRef.Name + " everywhere"
		case *rbacv1.RoleBinding:
			bound[uid] = o.RoleRef.Name + " in " + o.Namespace
		}
		if l.gone {
			delete(bound, uid)
		}
		if len(bound) > 1 {
			t.Errorf("at %d: bound are %v", l.version, slices.Collect(maps.Values(bound)))
		}
		s, ok := l.object.(*v1alpha1.TkaSignin)
		if !ok || l.gone || s.DeletionTimestamp != nil || s.Status.Phase != v1alpha1.SigninPhase(signin.PhaseReady) || s.Status.ObservedGeneration != s.Generation {
			continue
		}
		want := s.Status.Role + " everywhere"
		if len(s.Status.Namespaces) == 1 {
			want = s.Status.Role + " in " + s.Status.Namespaces[0]
		}
		if got := slices.Collect(maps.Values(bound)); !slices.Equal(got, []string{want}) {
			t.Errorf("at %d: shown as ready is %s, bound are %v", l.version, want, got)
		}
		if len(shown) == 0 || shown[len(shown)-1] != want {
			shown = append(shown, want)
		}
	}
	return shown
}

// A tokenUser uses one token all the time.
type tokenUser struct {
	account string
	role    string
	client  *kubernetes.Clientset

	mu      sync.Mutex
	uses    int
	last    time.Time // start of the last accepted request
	unknown time.Time // first 401 of the API server
}

func (h *tokenUser) use(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		_, err := h.client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{Limit: 1})
		h.mu.Lock()
		switch {
		case err == nil:
			h.uses, h.last = h.uses+1, began
		case apierrors.IsUnauthorized(err) && h.unknown.IsZero():
			h.unknown = time.Now()
		}
		done := !h.unknown.IsZero()
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// SGN-09: the role changes in both directions, cluster-wide and in a namespace, while all tokens ever issued are in
// use. There are never two bound roles, and the shown role is the bound role. A kubeconfig is issued only when the
// new role is ready. Tokens of the old role fail within the API server's ten seconds of caching.
func TestSGN09_RoleChange(t *testing.T) {
	r := start(t)
	for _, tt := range []struct {
		who, login string
		roles      []string
		shown      []string
	}{
		{"roles-erin", "erin@example.com", []string{"view", "edit", "view", "edit"}, []string{"view everywhere", "edit everywhere", "view everywhere", "edit everywhere"}},
		{"roles-alice", "alice@example.com", []string{"view", "edit", "view"}, []string{"view everywhere", "edit in shop", "view everywhere"}},
	} {
		t.Run(tt.who, func(t *testing.T) {
			p := person(t, r, tt.who, tt.login)
			c := p.Client()
			who, err := signin.GetWhoami.Call(t.Context(), c, signin.WhoamiRequest{})
			if err != nil {
				t.Fatal(err)
			}
			name := signin.Owner{Login: tt.login, DeviceID: who.Caller.NodeID, Tailnet: who.Caller.Tailnet}.Name()
			told := chronicleOf(t, r, name)
			admin, _ := clients(t, r)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer func() { stop(); wg.Wait() }()
			var holders []*tokenUser
			for i, role := range tt.roles {
				st, err := signin.Login.Call(t.Context(), c, signin.LoginRequest{Role: role})
				if err != nil {
					t.Fatalf("change %d, to %s: %v", i, role, err)
				}
				if st.Name != name || st.Role != role {
					t.Fatalf("change %d, to %s: %+v", i, role, st)
				}
				k, err := signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(25 * time.Second)})
				if err != nil {
					t.Fatalf("change %d, kubeconfig as %s: %v", i, role, err)
				}
				// Only the product changes the sign-in, so its stored state equals the state when the kubeconfig was
				// issued.
				var s v1alpha1.TkaSignin
				if err := admin.Get(t.Context(), client.ObjectKey{Namespace: testenv.SigninNamespace, Name: name}, &s); err != nil {
					t.Fatal(err)
				}
				account := tokenAccount(t, k.Token.Reveal())
				switch {
				case s.Status.Phase != v1alpha1.SigninPhase(signin.PhaseReady):
					t.Errorf("change: s.Status.Phase = %q, want %q; %d", s.Status.Phase, v1alpha1.SigninPhase(signin.PhaseReady), i)
				case s.Status.Role != role:
					t.Errorf("change: s.Status.Role = %q, want %q; %d", s.Status.Role, role, i)
				case s.Status.ServiceAccount == nil:
					t.Errorf("change: s.Status.ServiceAccount is nil; %d", i)
				case string(s.Status.ServiceAccount.UID) != account:
					t.Errorf("change: got %q, want %q; %d", string(s.Status.ServiceAccount.UID), account, i)
				}
				h := &tokenUser{account: account, role: role, client: heldClient(t, r, k.Token.Reveal())}
				holders = append(holders, h)
				// The rights of the role.
				if may := mayCreate(t, h.client); may != (role == "edit") {
					t.Errorf("change %d: as %s, creating is allowed: %v", i, role, may)
				}
				wg.Go(func() { h.use(ctx) })
				eventually(t, 20*time.Second, "the token is used", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.uses > 1 })
				// An older token never has more rights than the current role.
				for _, old := range holders[:i] {
					if role == "view" && mayCreate(t, old.client) {
						t.Errorf("change %d: a token from the time as %s still creates", i, old.role)
					}
				}
			}
			if _, err := signin.Logout.Call(t.Context(), c, signin.LogoutRequest{Wait: httpapi.Duration(20 * time.Second)}); err != nil {
				t.Error(err)
			}
			eventually(t, time.Minute, "every token is unknown", func() bool {
				return !slices.ContainsFunc(holders, func(h *tokenUser) bool { h.mu.Lock(); defer h.mu.Unlock(); return h.unknown.IsZero() })
			})
			for i, h := range holders {
				died, dead := told.ended(h.account)
				if !dead {
					t.Errorf("token %d: the end of its account was not reported", i)
					continue
				}
				// Ten seconds for the API server's cache, and one second for the clock's resolution.
				if late := h.last.Sub(died); late > 11*time.Second {
					t.Errorf("token %d, as %s, was taken %v after its account was gone", i, h.role, late)
				}
				t.Logf("token %d, as %s: used %d times, last %v after its account's end, unknown after %v", i, h.role, h.uses,
					h.last.Sub(died).Round(time.Millisecond), h.unknown.Sub(died).Round(time.Millisecond))
			}
			if shown := told.check(t); !slices.Equal(shown, tt.shown) {
				t.Errorf("shown were %v, want %v", shown, tt.shown)
			}
		})
	}
}

// mayCreate reports whether the holder of a token can create an object, by trying it.
func mayCreate(t *testing.T, k *kubernetes.Clientset) bool {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}}
	_, err := k.CoreV1().ConfigMaps("shop").Create(t.Context(), cm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Fatal(err)
	}
	return err == nil
}

// tokenAccount returns the UID of the ServiceAccount of a token.
func tokenAccount(t *testing.T, token string) string {
	t.Helper()
	var c struct {
		Kubernetes struct {
			ServiceAccount struct{ UID string }
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatal("not a token")
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.Kubernetes.ServiceAccount.UID == "" {
		t.Fatalf("the token's claims: %v", err)
	}
	return c.Kubernetes.ServiceAccount.UID
}

// SGN-05: the Accept header of a client and the format that it receives, over the wire, as in the table of section
// 3.3. The list form is a kubeconfig file that kubectl accepts unchanged. The map form is for existing clients.
func TestSGN05_Accept(t *testing.T) {
	r := start(t)
	p := person(t, r, "accept-alice", "alice@example.com")
	if _, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{Role: "edit"}); err != nil {
		t.Fatal(err)
	}
	defer logout(t, p)
	for _, tt := range []struct {
		accept string // "": no header is sent
		yaml   bool
	}{
		{"", false}, {"*/*", false}, {"application/json", false}, {"text/html", false}, {"nonsense", false}, {"application/*", false},
		{"application/yaml", true}, {"text/yaml", true}, {"application/x-yaml", true}, {"Application/YAML", true},
		{"application/yaml, */*", true}, {"application/yaml;q=0.5, */*", true}, {"application/yaml; charset=utf-8", true},
		{"application/json, application/yaml", true}, {"application/yaml, application/json;q=0.9", true},
		{"application/yaml;q=0.4, application/json;q=0.5", false}, {"application/yaml;q=0", false}, {"application/yaml;q=x", false},
		{"application/json;q=0.1, text/yaml;q=0.1", true},
	} {
		t.Run(tt.accept, func(t *testing.T) {
			var headers []string
			if tt.accept != "" {
				headers = append(headers, "Accept: "+tt.accept)
			}
			a := ask(t, p, "GET", r.Server()+signin.Base+"/kubeconfig?wait=20s", "", headers...)
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if _, err := time.Parse(time.RFC3339, a.header.Get(signin.ExpiresHeader)); err != nil {
				t.Errorf("%s: %v", signin.ExpiresHeader, err)
			}
			want := "application/json"
			if tt.yaml {
				want = "application/yaml"
			}
			if got := a.header.Get("Content-Type"); got != want {
				t.Fatalf("Content-Type %q, want %q", got, want)
			}
			checkForm(t, a.body, tt.yaml)
		})
	}
	// kubectl accepts the body unchanged as a file: no plugin, no proxy, no home directory.
	a := ask(t, p, "GET", r.Server()+signin.Base+"/kubeconfig", "", "Accept: application/yaml")
	file := t.TempDir() + "/kubeconfig"
	write(t, file, string(a.body))
	run(t, p, 0, "kubectl --kubeconfig "+file+" get pods") // in the context's namespace
	if out := run(t, p, 0, "kubectl --kubeconfig "+file+" create configmap x --dry-run=server -o name"); strings.TrimSpace(out.Stdout) != "configmap/x" {
		t.Errorf("create: %s%s", out.Stdout, out.Stderr)
	}
	if out := run(t, p, 1, "kubectl --kubeconfig "+file+" get pods -n default"); !strings.Contains(out.Stderr, "forbidden") {
		t.Errorf("another namespace: %s", out.Stderr)
	}
	if out := run(t, p, 0, "kubectl --kubeconfig "+file+" auth whoami -o jsonpath={.status.userInfo.username}"); !strings.HasPrefix(out.Stdout, "system:serviceaccount:"+testenv.SigninNamespace+":alice-example-com-") {
		t.Errorf("whoami: %s", out.Stdout)
	}
	for _, args := range []string{"config current-context", "config view --minify -o jsonpath={.contexts[0].context.namespace}"} {
		want := map[bool]string{true: "tka-east", false: "shop"}[strings.HasSuffix(args, "current-context")]
		if out := run(t, p, 0, "kubectl --kubeconfig "+file+" "+args); strings.TrimSpace(out.Stdout) != want {
			t.Errorf("%s: %q, want %q", args, out.Stdout, want)
		}
	}
}

// checkForm checks the body of a kubeconfig. It decodes the list form strictly with clientcmd and allows only the
// fields that a token needs. It checks the map form by its text.
func checkForm(t *testing.T, body []byte, list bool) {
	t.Helper()
	if !list {
		var k signin.Kubeconfig // reads the map form strictly
		switch err := json.Unmarshal(body, &k); {
		case err != nil:
			t.Errorf("map form: %v", err)
		case k.Context() != "tka-east":
			t.Errorf("map form: k.Context() = %q, want %q", k.Context(), "tka-east")
		case k.Namespace != "shop":
			t.Errorf("map form: k.Namespace = %q, want %q", k.Namespace, "shop")
		case k.Token.Reveal() == "":
			t.Errorf("map form: k.Token.Reveal() is empty; %v", err)
		}
		if c, err := clientcmd.Load(body); err == nil && len(c.Contexts) > 0 {
			t.Error("the map form loads as a kubeconfig file: it is not the map form")
		}
		return
	}
	c, err := clientcmd.Load(body)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.ConfirmUsable(*c, ""); err != nil {
		t.Error(err)
	}
	switch {
	case c.CurrentContext != "tka-east":
		t.Fatalf("context: c.CurrentContext = %q, want %q", c.CurrentContext, "tka-east")
	case len(c.Clusters) != 1:
		t.Fatalf("context: len(c.Clusters) = %v, want 1", len(c.Clusters))
	case len(c.AuthInfos) != 1:
		t.Fatalf("context: len(c.AuthInfos) = %v, want 1", len(c.AuthInfos))
	case len(c.Contexts) != 1:
		t.Fatalf("context: len(c.Contexts) = %v, want 1", len(c.Contexts))
	}
	cluster, user, context := c.Clusters["east"], c.AuthInfos["tka-east"], c.Contexts["tka-east"]
	switch {
	case cluster == nil:
		t.Fatal("the names are others: cluster is nil")
	case user == nil:
		t.Fatal("the names are others: user is nil")
	case context == nil:
		t.Fatal("the names are others: context is nil")
	}
	switch {
	case context.Cluster != "east":
		t.Errorf("context: context.Cluster = %q, want %q", context.Cluster, "east")
	case context.AuthInfo != "tka-east":
		t.Errorf("context: context.AuthInfo = %q, want %q", context.AuthInfo, "tka-east")
	case context.Namespace != "shop":
		t.Errorf("context: context.Namespace = %q, want %q", context.Namespace, "shop")
	}
	switch {
	case len(cluster.CertificateAuthorityData) == 0:
		t.Errorf("the cluster is not just an address and an authority: len(cluster.CertificateAuthorityData) = %v",
			len(cluster.CertificateAuthorityData))
	case cluster.InsecureSkipTLSVerify:
		t.Error("the cluster is not just an address and an authority: cluster.InsecureSkipTLSVerify is true")
	case cluster.ProxyURL != "":
		t.Errorf("the cluster is not just an address and an authority: cluster.ProxyURL = %q, want none", cluster.ProxyURL)
	case cluster.CertificateAuthority != "":
		t.Errorf("the cluster is not just an address and an authority: got %q, want none", cluster.CertificateAuthority)
	}
	switch {
	case user.Token == "":
		t.Error("the user is not just a token: user.Token is empty")
	case user.Exec != nil:
		t.Errorf("the user is not just a token: user.Exec = %v, want nil", user.Exec)
	case user.AuthProvider != nil:
		t.Errorf("the user is not just a token: user.AuthProvider = %v, want nil", user.AuthProvider)
	case user.TokenFile != "":
		t.Errorf("the user is not just a token: user.TokenFile = %q, want none", user.TokenFile)
	case user.ClientCertificate != "":
		t.Errorf("the user is not just a token: user.ClientCertificate = %q, want none", user.ClientCertificate)
	case user.Password != "":
		t.Errorf("the user is not just a token: user.Password = %q, want none", user.Password)
	case user.Impersonate != "":
		t.Errorf("the user is not just a token: user.Impersonate = %q, want none", user.Impersonate)
	}
}
