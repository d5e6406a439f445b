package plane

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A revoked sign-in is deleted, its token is refused, and the audit log has the actor and the reason.
func TestRevoke(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "alice-desk", "alice@example.com"), person(t, r, "bob-desk", "bob@example.com")
	name := signIn(t, r, bob, alice)
	path := "/api/v1/signins/" + testenv.SigninNamespace + "/" + name
	for _, x := range []struct {
		why, body, code string
		status          int
	}{{"no reason", `{}`, "validation", 422}, {"a reason of blanks", `{"reason":"  "}`, "validation", 422}, {"twice the reason", `{"reason":"a","reason":"b"}`, "bad_request", 400}} {
		a, err := ask(t, r, alice, "DELETE", path, x.body)
		if a = must(t, a, err); a.status != x.status || a.code() != x.code {
			t.Errorf("%s: %d %s, want %d %s", x.why, a.status, a.code(), x.status, x.code)
		}
	}
	a, err := ask(t, r, alice, "DELETE", path, `{"reason":"lost laptop"}`)
	if a = must(t, a, err); a.status != http.StatusOK || !strings.Contains(a.body, `"deleted":true`) {
		t.Fatalf("revoke: %d %s", a.status, a.body)
	}
	until(t, "the plane no longer shows it", func() bool {
		a, err := ask(t, r, alice, "GET", "/api/v1/signins", "")
		return err == nil && !strings.Contains(a.body, `"`+name+`"`)
	})
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the account of the sign-in is gone", func() bool {
		_, err := k.CoreV1().ServiceAccounts(testenv.SigninNamespace).Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	found := false
	damaged, err := plane.AuditLog{Path: r.PlaneAuditFile()}.ReadNewest(t.Context(), func(e plane.AuditEntry) bool {
		found = e.Object == testenv.SigninNamespace+"/"+name && e.Actor.Login == "alice@example.com" && e.Reason == "lost laptop" && e.Result == audit.Done
		return !found
	})
	switch {
	case err != nil:
		t.Error(err)
	case damaged > 0:
		t.Errorf("damaged = %v, want at most 0", damaged)
	case !found:
		t.Errorf("found is false; %v, damaged = %d", err, damaged)
	}
}

// PLANE-07, PL-03: a role that is removed from the tailnet's policy has no effect from the next request on, and an
// open event stream ends.
func TestPLANE07_RoleTakenAway(t *testing.T) {
	r := start(t)
	eve := person(t, r, "eve-desk", "eve@example.com")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", r.Dashboard()+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	hc := eve.HTTP()
	hc.Timeout = 0
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := make(chan string, 1000)
	go func() { // it ends with the body
		defer close(lines)
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			lines <- s.Text()
		}
	}()
	said := func(word string) bool {
		for {
			select {
			case line, open := <-lines:
				if !open {
					return false
				}
				if strings.Contains(line, word) {
					return true
				}
			case <-ctx.Done():
				return false
			}
		}
	}
	if !said("event: hello") || !said("event: snapshot") {
		t.Fatalf("no stream: %s", res.Status)
	}
	ungrant(t, r, "eve@")
	began := time.Now()
	until(t, "the next request is refused", func() bool {
		a, err := ask(t, r, eve, "GET", "/api/v1/clusters", "")
		return err == nil && a.status == http.StatusForbidden && a.code() == "not_authorized_user"
	})
	t.Logf("refused after %v", time.Since(began).Round(time.Millisecond))
	if !said("event: bye") {
		t.Error("the stream has not sent bye")
	}
	for range lines { // until it is closed
	}
	if ctx.Err() != nil {
		t.Error("the stream goes on")
	}
	t.Logf("the stream ended after %v", time.Since(began).Round(time.Millisecond))
}

// PLANE-05, PLANE-08, ID-09, ID-10: no header sets an identity. Requests of another site's page and requests with
// another host name are refused.
func TestPLANE08_Browsers(t *testing.T) {
	r := start(t)
	mallory, alice := person(t, r, "mallory-desk", "mallory@example.com"), person(t, r, "alice-tab", "alice@example.com")
	with := func(name, value string) func(*http.Request) {
		return func(q *http.Request) {
			if name == "Host" {
				q.Host = value
			}
			q.Header.Set(name, value)
		}
	}
	for _, h := range []string{"X-Tailscale-User", "Tailscale-User-Login", "X-Webauth-User", "Impersonate-User", "X-Forwarded-User", "X_Tailscale_User"} {
		a, err := ask(t, r, mallory, "GET", "/api/v1/me", "", with(h, "pat@platform.dev"))
		if a = must(t, a, err); a.status != http.StatusForbidden || a.code() != "not_authorized_user" {
			t.Errorf("%s: %d %s", h, a.status, a.code())
		}
	}
	name := "/api/v1/signins/" + testenv.SigninNamespace + "/nobodys"
	for _, x := range []struct {
		why, method, path, body string
		edit                    func(*http.Request)
		status                  int
	}{
		{"another site's page", "GET", "/api/v1/signins", "", with("Origin", "https://evil.example"), 403},
		{"a page of no site", "DELETE", name, `{"reason":"x"}`, with("Origin", "null"), 403},
		{"another site's request", "DELETE", name, `{"reason":"x"}`, with("Sec-Fetch-Site", "cross-site"), 403},
		{"another site's event stream", "GET", "/api/v1/events", "", with("Origin", "https://evil.example"), 403},
		{"a form's content type", "DELETE", name, `{"reason":"x"}`, with("Content-Type", "text/plain"), 415},
		{"another name", "GET", "/api/v1/me", "", with("Host", "dashboard.evil.example"), 421},
		{"a path that would be cleaned", "GET", "//api/v1/me", "", func(*http.Request) {}, 404},
		{"a path below", "GET", "/api/v1/me/", "", func(*http.Request) {}, 404},
		{"another method", "POST", "/api/v1/clusters", `{}`, func(*http.Request) {}, 405},
	} {
		a, err := ask(t, r, alice, x.method, x.path, x.body, x.edit)
		if a = must(t, a, err); a.status != x.status {
			t.Errorf("%s: %d %s, want %d", x.why, a.status, a.body, x.status)
		}
	}
	// The public internet cannot reach the plane.
	edge := r.Net.Node("edge", "alice@example.com")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := r.Net.Ready(ctx, edge); err != nil {
		t.Fatal(err)
	}
	id, err := r.Net.ID(edge)
	if err != nil || !r.Net.SetIngress(id) {
		t.Fatal("ingress", err)
	}
	host := "dashboard." + r.Net.Suffix()
	short, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	if c, err := r.Net.FunnelDial(short, edge, host+":443", "203.0.113.9:4444"); err == nil {
		conn := tls.Client(c, &tls.Config{RootCAs: r.Roots, ServerName: host})
		if err := conn.HandshakeContext(short); err == nil {
			t.Error("a Funnel connection reaches the plane's TLS")
		}
		c.Close()
	}
}

// PLANE-02: nothing of the plane is served on the machine, whatever a request contains. The only listeners there are
// Tailscale's peer API, which answers only peers, and the probes, which identify no caller and show nothing of the
// installation.
func TestPLANE02_Listeners(t *testing.T) {
	r := start(t)
	ports, told, err := testenv.Listening(r.Plane.PID())
	switch {
	case !told:
		t.Skip("SKIP sockets of a process: /proc does not show them here")
	case err != nil:
		t.Fatal(err)
	}
	get := func(url string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range []string{"X-Tailscale-User", "Tailscale-User-Login", "X-Webauth-User"} {
			req.Header.Set(h, "pat@platform.dev")
		}
		hc := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		res, err := hc.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res.StatusCode, string(b), err
	}
	probes := ""
	for _, port := range ports {
		at := fmt.Sprintf("127.0.0.1:%d", port)
		if status, body, err := get("http://" + at + "/metrics"); err == nil && status == http.StatusOK {
			probes = at
			for _, word := range []string{"@", "dashboard", "acme", "example.com"} {
				if strings.Contains(body, word) {
					t.Errorf("the metrics contain %s", word)
				}
			}
		}
		for _, path := range []string{"/", "/api/v1/me", "/api/v1/signins", "/api/v1/events", "/api/health", "/mcp", "/text"} {
			for _, scheme := range []string{"http", "https"} {
				if scheme == "https" && path != "/" {
					break // a listener of another protocol may take some time to refuse
				}
				if status, body, err := get(scheme + "://" + at + path); err == nil && status/100 != 4 {
					t.Errorf("%s://%s%s: %d %s", scheme, at, path, status, body)
				}
			}
		}
	}
	nodes := 1 // each with its peer API
	if system.unnamed == nil {
		nodes += 3 // those of exposures
	}
	if probes == "" || len(ports) > 1+nodes {
		t.Errorf("it listens on %v, with probes at %q", ports, probes)
	}
}

// PLANE-16, in part: when its name is taken, the plane serves under its assigned name and reports that.
//
// PLANE-18: of two replicas one is the node. When it is killed during a pause or a confirmation, the other replica
// becomes the same node. The pause is made once. The new replica carries out nothing whose confirmation only the
// first replica knew. TestPLANE18_Merge of internal/plane/git covers a merge.
func TestPLANE18_Replicas(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	taken := r.Net.Node("board", "alice@example.com") // the node that has the name
	if err := r.Net.Ready(ctx, taken); err != nil {
		t.Fatal(err)
	}
	if err := r.Plane.Stop(time.Minute); err != nil { // it holds the Lease
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), deadline)
		defer cancel()
		if err := r.StartPlane(ctx); err != nil {
			t.Error(err)
		}
	})
	own, err := r.Settings("plane")
	if err != nil {
		t.Fatal(err)
	}
	replica := func(name string) *testenv.Process {
		dir := filepath.Join(r.Dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, "tailplane-plane", dir)
		if err != nil {
			t.Fatal(err)
		}
		key := filepath.Join(dir, "authkey")
		if err := os.WriteFile(key, []byte(r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(filepath.Join(r.Dir, "plane")+"/", dir+"/", r.AuthKeyFile(), key, "\ntailnet:\n", "\ntailnet:\n  stateSecret: tailplane-plane\n",
			"  identity: {", "  identity: {hostname: board, ").Replace(without(own, "exposures"))
		p, err := r.Try(name, "plane", nil, text, "--kubeconfig", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(time.Minute); err != nil {
				t.Error(err)
			}
		})
		if err := p.WaitLog(ctx, `"waiting to become the plane's node"`); err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := replica("replica-0")
	if err := first.WaitLog(ctx, `"the plane is serving"`); err != nil {
		t.Fatal(err)
	}
	second := replica("replica-1")
	alice := person18(t, r, ctx)
	at := "https://board-1." + r.Net.Suffix()
	send := func(method, path, body, key string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, method, at+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		hc := alice.HTTP()
		hc.Timeout = 5 * time.Second
		defer hc.CloseIdleConnections()
		res, err := hc.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		var b strings.Builder
		_, err = bufio.NewReader(res.Body).WriteTo(&b)
		return b.String(), err
	}
	get := func(path string) (string, error) { return send("GET", path, "", "") }
	until(t, "it reports that its name is taken", func() bool {
		body, err := get("/api/v1/sources")
		return err == nil && strings.Contains(body, "NameTaken: another node of the tailnet has the name board; this server is board-1.")
	})
	node := func() (ids []string) {
		for _, n := range r.Net.Nodes() {
			if strings.HasPrefix(n.Name, "board-") {
				ids = append(ids, string(n.StableID)+" "+n.Name)
			}
		}
		return ids
	}
	before := node()
	if len(before) != 1 {
		t.Fatalf("nodes %v, want one", before)
	}
	if strings.Contains(second.Output(), `"the plane is serving"`) {
		t.Fatal("both replicas serve")
	}
	held := stored(t, r)
	const everything = `{"scope":{"all":true},"reason":"failover","confirm":"PAUSE ALL"}`
	if body, err := send("POST", "/api/v1/holds", everything, ""); err != nil || !strings.Contains(body, `"confirmation_required"`) {
		t.Fatalf("everything, at the first asking: %s, %v", body, err)
	}
	const one = `{"scope":{"org":"acme","pool":"linux"},"reason":"failover"}`
	asked := make(chan struct{})
	go func() { // whatever its result is
		defer close(asked)
		_, _ = send("POST", "/api/v1/holds", one, "failover")
	}()
	time.Sleep(time.Duration(rand.IntN(int(20 * time.Millisecond)))) // at a random moment of the operation
	began := time.Now()
	first.Kill()
	<-asked
	if err := second.WaitLog(ctx, `"the plane is serving"`); err != nil {
		t.Fatal(err)
	}
	until(t, "the other one answers under the same name", func() bool {
		body, err := get("/api/v1/me")
		return err == nil && strings.Contains(body, "alice@example.com")
	})
	t.Logf("%v after the active one was killed, the other one answers", time.Since(began).Round(100*time.Millisecond))
	if after := node(); !slices.Equal(before, after) {
		t.Errorf("the node was %v and is %v", before, after)
	}
	made := func() (names []string) {
		for name, by := range stored(t, r) {
			if _, there := held[name]; !there {
				names = append(names, name+" by "+by)
			}
		}
		return names
	}
	until(t, "the pause is there, once", func() bool {
		body, err := send("POST", "/api/v1/holds", one, "failover")
		return err == nil && strings.Contains(body, `"HoldCreated"`)
	})
	if got := made(); len(got) != 1 || !strings.HasSuffix(got[0], " by alice@example.com") {
		t.Errorf("after the failover there are %v, want the requested one", got)
	}
	if body, err := send("POST", "/api/v1/holds", everything, ""); err != nil || !strings.Contains(body, `"confirmation_required"`) {
		t.Errorf("a request that only the first replica knew: %s, %v", body, err)
	}
	if got := made(); len(got) != 1 {
		t.Errorf("all runners are held without a second request here: %v", got)
	}
}

// PLANE-16, in part: without certificates of the tailnet the plane does not start and reports how to fix it. With the
// setting that allows it to run without them it serves, still only inside the tailnet.
func TestPLANE16_NoCertificates(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	plain := tailnettest.Start(t, policyOf(grants))
	own, err := r.Settings("plane")
	if err != nil {
		t.Fatal(err)
	}
	try := func(name, identity string) *testenv.Process {
		dir := filepath.Join(r.Dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, "tailplane-plane", dir)
		if err != nil {
			t.Fatal(err)
		}
		key := filepath.Join(dir, "authkey")
		if err := os.WriteFile(key, []byte(plain.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(filepath.Join(r.Dir, "plane")+"/", dir+"/", r.AuthKeyFile(), key, r.Net.ControlURL(), plain.ControlURL(),
			"  identity: {", "  identity: {"+identity+", ").Replace(without(own, "exposures"))
		p, err := r.Try(name, "plane", nil, text, "--kubeconfig", kubeconfig, "--leader-elect=false")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(time.Minute); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	refused := try("without", "hostname: dashboard")
	select {
	case <-refused.Done():
	case <-ctx.Done():
		t.Fatal("it has not ended")
	}
	switch out := refused.Output(); {
	case refused.ExitCode() != 1:
		t.Errorf("exit: refused.ExitCode() = %v, want 1", refused.ExitCode())
	case !strings.Contains(out, "plane.identity.insecureHTTP: true"):
		t.Errorf("exit: out = %q does not contain %q", out, "plane.identity.insecureHTTP: true")
	case strings.Contains(out, `"the plane is serving"`):
		t.Errorf("exit: out = %q contains %q", out, `"the plane is serving"`)
	}
	serves := try("insecure", "hostname: insecure, insecureHTTP: true")
	if err := serves.WaitLog(ctx, `"the plane is serving"`); err != nil {
		t.Fatal(err)
	}
	alice := plain.Node("alice", "alice@example.com")
	if err := plain.Ready(ctx, alice); err != nil {
		t.Fatal(err)
	}
	if err := plain.WaitPeer(ctx, alice, "insecure"); err != nil {
		t.Fatal(err)
	}
	hc := &http.Client{Transport: &http.Transport{DialContext: alice.Dial, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := hc.Get("http://insecure." + plain.Suffix() + ":443/api/v1/me")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s", res.Status)
	}
}

func person18(t *testing.T, r *testenv.Env, ctx context.Context) *testenv.Person {
	t.Helper()
	p, err := r.Person(ctx, "alice-watch", "alice@example.com")
	if err == nil {
		err = r.Net.WaitPeer(ctx, p.Node, "board-1")
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// without returns a settings file without one of the plane's settings.
func without(file []byte, setting string) string {
	var b strings.Builder
	for line := range strings.Lines(string(file)) {
		if !strings.HasPrefix(line, "  "+setting+": ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// away starts a plane that cannot reach its control server, with one more tailnet setting.
func away(t *testing.T, r *testenv.Env, ctx context.Context, name, more string) *testenv.Process {
	t.Helper()
	own, err := r.Settings("plane")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, "tailplane-plane", dir)
	if err != nil {
		t.Fatal(err)
	}
	const nobody = "http://127.0.0.1:1"
	text := strings.NewReplacer(filepath.Join(r.Dir, "plane")+"/", dir+"/", r.Net.ControlURL(), nobody).Replace(string(own))
	text = strings.Replace(text, "controlURL: ", more+"controlURL: ", 1)
	p, err := r.Try(name, "plane", nil, text, "--kubeconfig", kubeconfig, "--leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	})
	return p
}

// PLANE-16: a plane that does not join in time exits with an error. The error names the unreachable server and the
// things to check. The plane has never served.
func TestPLANE16_NeverJoined(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p := away(t, r, ctx, "never", "joinTimeout: 2s\n  ")
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Fatalf("it has not ended: %s", p.Output())
	}
	out := p.Output()
	for _, want := range []string{"the node did not join its tailnet in 2s", "the control server http://127.0.0.1:1 cannot be reached", "check tailnet.controlURL"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	if p.ExitCode() != 1 || strings.Contains(out, `"the plane is serving"`) {
		t.Errorf("exit %d: %s", p.ExitCode(), out)
	}
}

// PLANE-16: while the control server is unreachable the plane reports that, is not ready, and has no listener. There
// is no fallback to another listener.
func TestPLANE16_ControlAway(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p := away(t, r, ctx, "away", "")
	if err := p.WaitLog(ctx, "the control server cannot be reached yet"); err != nil {
		t.Fatal(err)
	}
	ports, told, err := testenv.Listening(p.PID())
	switch {
	case !told:
		t.Skip("SKIP sockets of a process: /proc does not show them here")
	case err != nil || len(ports) != 1:
		t.Fatalf("it listens on %v: %v", ports, err)
	}
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		t.Errorf("ready: %v", err)
	case res.StatusCode != http.StatusServiceUnavailable:
		t.Errorf("ready: res.StatusCode = %v, want %v", res.StatusCode, http.StatusServiceUnavailable)
	case !strings.Contains(string(b), "tailnet"):
		t.Errorf("ready: string(b) = %q does not contain %q", string(b), "tailnet")
	}
	if strings.Contains(p.Output(), `"the plane is serving"`) {
		t.Error("it serves")
	}
}
