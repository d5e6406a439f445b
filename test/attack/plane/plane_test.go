package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

var shared struct {
	once sync.Once
	env  *attacktest.PlaneEnv
	err  error
}

// organisations configures two organisations, one of which has a whole domain as members.
const organisations = `
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec: {forge: github, configURL: "https://github.com/acme", groupID: 1, pools: [{name: linux, allowPublic: false}], credentials: {secretName: acme}, owners: [amy@corp.example], members: ["*@corp.example"]}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: globex}
spec: {forge: github, configURL: "https://github.com/globex", groupID: 1, pools: [{name: linux, allowPublic: false}], credentials: {secretName: globex}, owners: [gil@globex.example]}
`

// start returns the plane's program, which all of these tests share.
func start(t *testing.T) *attacktest.PlaneEnv {
	t.Helper()
	s := attacktest.Start(t)
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), attacktest.Long)
		defer cancel()
		shared.env, shared.err = startPlane(ctx, s)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out := s.Plane.Output()
			t.Logf("the end of the plane's log:\n%s", out[max(0, len(out)-3000):])
		}
	})
	return shared.env
}

func startPlane(ctx context.Context, s *attacktest.Env) (*attacktest.PlaneEnv, error) {
	o := &attacktest.PlaneEnv{Env: s}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.Mu.Lock()
		o.Asked = append(o.Asked, r.Clone(context.Background()))
		o.Mu.Unlock()
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		}
	}))
	at, err := url.Parse(up.URL)
	if err != nil {
		return nil, err
	}
	if o.Issuer, err = testenv.NewIssuer(); err != nil {
		return nil, err
	}
	s.Set("plane.identity", "{oidc: "+o.Issuer.Settings()+"}")
	s.Set("plane.emailDomains", "[corp.example]")
	s.Set("plane.roles", "[{login: pat@platform.example, userID: '"+tailnettest.UserID("pat@platform.example")+"', role: platform-admin}]")
	if o.Unnamed = testenv.CanName(ctx); o.Unnamed == nil {
		s.Set("plane.exposures", fmt.Sprintf(`[{name: grafana, upstream: "http://grafana.monitoring.svc:%s", access: observe.read, userHeader: X-WEBAUTH-USER, roleHeader: X-WEBAUTH-ROLE}]`, at.Port()))
		s.Know(map[string]string{"grafana.monitoring.svc": "127.0.0.1"})
	}
	if err := s.Cluster.Apply(ctx, []byte(organisations)); err != nil {
		return nil, err
	}
	return o, s.StartPlane(ctx)
}

// PL-01. A caller that is not on a list, that has a similar spelling to a listed login, or that comes from another
// tailnet has no role. No page, asset, list, stream or tool gives this caller any data.
//
// Guard: access.(PlanePolicy).rolesOf (complete logins, plainMail), access.ParseLogin, and httpapi.(*request).process, which
// decides before any handler runs.
func TestPL01_NoCallerBecomesAnother(t *testing.T) {
	o := start(t)
	o.SetPolicy(t, attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule))
	alice := o.Visitor(t, "alice-laptop", "alice@example.com")
	o.Allowed(t, alice, true)
	o.Login(t, alice, signin.LoginRequest{})
	t.Cleanup(func() { o.Logout(t, alice) })
	for _, real := range []struct{ host, login, role string }{
		{"amy-laptop", "amy@corp.example", `"org-admin"`}, {"mel-laptop", "MEL@Corp.Example", `"operator"`},
	} {
		p := o.Visitor(t, real.host, real.login)
		attacktest.Eventually(t, attacktest.Long, real.login+" is known by the organisation's lists", func() bool {
			return strings.Contains(o.Request(t, p, "GET", "/api/v1/me", "").Body, real.role)
		})
	}
	guest := o.Visitor(t, "guest-laptop", "amy@corp.example")
	if id, err := o.Net.ID(guest.Node); err != nil || !o.Net.Share(id) {
		t.Fatal("share", err)
	}
	o.Allowed(t, guest, false)
	strangers := map[string]*testenv.Person{
		"an unknown user":            o.Visitor(t, "eve-laptop", "eve@example.com"),
		"a domain that ends alike":   o.Visitor(t, "nel-laptop", "nel@notcorp.example"),
		"a domain below":             o.Visitor(t, "sub-laptop", "amy@corp.example.evil.example"),
		"two @":                      o.Visitor(t, "two-laptop", "amy@corp.example@evil.example"),
		"letters that look alike":    o.Visitor(t, "cyr-laptop", "аmy@corp.example"), // the first letter is Cyrillic
		"no domain":                  o.Visitor(t, "git-laptop", "amy@github"),
		"the owner's login, a guest": guest,
		"a tagged node":              o.Visitor(t, "ci-node", "", "tag:ci"),
	}
	m := o.Mark(t)
	for why, p := range strangers {
		for _, path := range []string{"/", "/text", "/api/v1/me", "/api/v1/overview", "/api/v1/sources", "/api/v1/clusters", "/api/v1/signins", "/api/v1/audit", "/api/v1/events", "/api/v1/openapi.json",
			"/api/health", "/assets/index.js", "/nothing"} {
			for _, accept := range []string{"text/html", "application/json"} {
				a := o.Request(t, p, "GET", path, "", "Accept", accept)
				if a.Status != http.StatusForbidden && a.Status != http.StatusUnauthorized && !(path == "/nothing" && a.Status == http.StatusNotFound) {
					t.Errorf("%s: GET %s: %d %s", why, path, a.Status, a.Body)
				}
				for _, word := range []string{"acme", "globex", "alice", "east", "kubernetes", "<script", "/assets/"} {
					if strings.Contains(strings.ReplaceAll(a.Body, "TAG OF THIS SERVER", ""), word) {
						t.Errorf("%s: GET %s contains %s:\n%s", why, path, word, a.Body)
					}
				}
			}
		}
		if a := o.Request(t, p, "POST", "/mcp", hello); a.Status != http.StatusForbidden && a.Status != http.StatusUnauthorized {
			t.Errorf("%s: tools: %d %s", why, a.Status, a.Body)
		}
	}
	o.Untouched(t, m, "strangers")
	if e := o.RecordedBy(t, "eve@example.com"); len(e) == 0 || e[0].Code != problem.NotAuthorized {
		t.Errorf("the record has %+v", e)
	}
}

// PL-02. A token next to the tailnet identity that is invalid, from another issuer, or not the caller's makes the
// server refuse the request. A valid token gives no additional rights.
//
// Guard: identity.Whois (the same login), identity.(*verifier).callerOf, and jose, which accepts only RS256 in claims.
func TestPL02_TokensGrantNothing(t *testing.T) {
	o := start(t)
	o.SetPolicy(t, attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule))
	alice, eve := o.Visitor(t, "alice-laptop", "alice@example.com"), o.Visitor(t, "eve-laptop", "eve@example.com")
	o.Allowed(t, alice, true)
	now := time.Now().Unix()
	token := func(login string, changes map[string]any) string {
		text, err := o.Issuer.Token(login, changes)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + text
	}
	claim := func(name string, value any) string { return token("alice@example.com", map[string]any{name: value}) }
	for _, x := range []struct {
		why, header string
		code        problem.Code
	}{
		{"her own", token("alice@example.com", nil), ""},
		{"another's", token("pat@platform.example", nil), problem.IdentityMismatch},
		{"another issuer", claim("iss", "https://idp.evil.example"), problem.InvalidToken},
		{"another client's", claim("aud", "grafana"), problem.InvalidToken},
		{"another client's as well", claim("aud", []string{"tailplane", "grafana"}), problem.InvalidToken},
		{"over", claim("exp", now-31), problem.InvalidToken},
		{"not yet", claim("nbf", now+90), problem.InvalidToken},
		{"alg none", claim("alg", "none"), problem.InvalidToken},
		{"HS256 with the public key", claim("alg", "HS256"), problem.InvalidToken},
		{"an unverified address", claim("email_verified", false), problem.InvalidToken},
		{"verified, as text", claim("email_verified", "true"), problem.InvalidToken},
		{"no address", claim("email", ""), problem.InvalidToken},
		{"another tailnet's", claim("tailnet", "evil.ts.net"), problem.InvalidToken},
		{"opaque", "Bearer 5f3a9c1e7b2d4860a1b2c3d4e5f60718", problem.InvalidToken},
		{"another scheme", "Basic YWxpY2U6YWxpY2U=", problem.InvalidToken},
	} {
		a := o.Request(t, alice, "GET", "/api/v1/me", "", "Authorization", x.header)
		if want := max(x.code.Status(), http.StatusOK); x.code == "" && a.Status != http.StatusOK || x.code != "" && (a.Status != want || a.Err.Code != x.code) {
			t.Errorf("%s: %d %s, want %s", x.why, a.Status, a.Body, x.code)
		}
	}
	if a := o.Request(t, eve, "GET", "/api/v1/clusters", "", "Authorization", token("alice@example.com", nil)); a.Err.Code != problem.IdentityMismatch {
		t.Errorf("alice's token on eve's device: %d %s", a.Status, a.Body)
	}
	if a := o.Request(t, eve, "GET", "/api/v1/clusters", "", "Authorization", token("eve@example.com", nil)); a.Err.Code != problem.NotAuthorized {
		t.Errorf("eve's own token: %d %s", a.Status, a.Body)
	}
	if a := o.Request(t, eve, "GET", "/api/v1/me?access_token="+strings.TrimPrefix(token("alice@example.com", nil), "Bearer "), ""); a.Status != http.StatusForbidden {
		t.Errorf("a token in the address: %d %s", a.Status, a.Body)
	}
	for _, e := range o.RecordedBy(t, "eve@example.com") {
		if strings.Contains(fmt.Sprint(e.Args), "eyJ") {
			t.Errorf("the audit log contains a token: %v", e.Args)
		}
	}
}

// PL-03. Another site's page cannot open a stream. An open stream ends when the caller's role is removed. A thousand
// streams that are opened and abandoned leave nothing behind.
//
// Guard: httpapi.checkSameSite, httpapi.(*Stream).Renew and streamLife, and plane.(*Service).streamEvents, which stops when its client
// disconnects.
func TestPL03_Streams(t *testing.T) {
	o := start(t)
	logins := []string{"eve@example.com", "ann@example.com", "ben@example.com", "cat@example.com"}
	var grants []string
	for _, l := range logins {
		grants = append(grants, attacktest.PlaneGrant(l, attacktest.ViewerRule))
	}
	o.SetPolicy(t, grants...)
	var people []*testenv.Person
	for _, l := range logins {
		name, _, _ := strings.Cut(l, "@")
		p := o.Visitor(t, name+"-laptop", l)
		o.Allowed(t, p, true)
		people = append(people, p)
	}
	for _, origin := range []string{"https://evil.example", "null", "http://" + strings.TrimPrefix(o.Dashboard(), "https://") + ".evil.example"} {
		if a := o.Request(t, people[0], "GET", "/api/v1/events", "", "Origin", origin); a.Status != http.StatusForbidden || a.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("from %s: %d %s", origin, a.Status, a.Body)
		}
	}
	before := o.Metrics(t, o.Plane)["go_goroutines"]
	const each = 250
	failed := make(chan error, len(people))
	began := time.Now()
	for _, p := range people {
		go func() {
			hc := p.HTTP()
			defer hc.CloseIdleConnections()
			var err error
			for range each {
				if err = openAndLeave(t.Context(), hc, o.Dashboard()); err != nil {
					break
				}
			}
			failed <- err
		}()
	}
	for range people {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d streams opened and left in %v", each*len(people), time.Since(began).Round(time.Millisecond))
	var after float64
	if !attacktest.Within(attacktest.Long, func() bool { after = o.Metrics(t, o.Plane)["go_goroutines"]; return after <= before+30 }) {
		t.Errorf("%v goroutines before, %v after", before, after)
	}

	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	res, err := stream(ctx, people[0].HTTP(), o.Dashboard())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && lines.Text() != "event: hello" {
	}
	o.SetPolicy(t, grants[1:]...)
	taken := time.Now()
	said := false
	for lines.Scan() {
		said = said || lines.Text() == "event: bye"
	}
	if !said || ctx.Err() != nil {
		t.Errorf("the stream has not ended with bye: %v", errors.Join(lines.Err(), ctx.Err()))
	}
	t.Logf("it ended %v after the role was taken away", time.Since(taken).Round(time.Millisecond))
}

// stream opens the plane's event stream.
func stream(ctx context.Context, hc *http.Client, dashboard string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", dashboard+"/api/v1/events?topics=sources", nil)
	if err != nil {
		return nil, err
	}
	hc.Timeout = 0
	return hc.Do(req)
}

// openAndLeave opens a stream, reads its beginning and disconnects. It tries again when a limit refuses it.
func openAndLeave(ctx context.Context, hc *http.Client, dashboard string) error {
	ctx, cancel := context.WithTimeout(ctx, attacktest.Long)
	defer cancel()
	for {
		res, err := stream(ctx, hc, dashboard)
		if err != nil {
			return err
		}
		text := make([]byte, 64)
		_, err = io.ReadAtLeast(res.Body, text, 16)
		res.Body.Close()
		switch {
		case err != nil:
			return err
		case res.StatusCode == http.StatusOK && strings.Contains(string(text), "retry: 2000"):
			return nil
		case res.StatusCode != http.StatusTooManyRequests:
			return fmt.Errorf("%s: %s", res.Status, text)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// evil is text that contains a script, moves a cursor, or reverses the reading direction.
const evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;owned\x07\u202e javascript:alert(3)"

// PL-04. Text of other users stays text: in JSON that no browser treats as a page, in terminal output without control
// characters, and in a refusal page that runs no script.
//
// Guard: web.oneLine and html.EscapeString in web.(Site).refusalPage, nosniff of httpapi.(*request).reply, and the policies of
// web (default-src 'none').
func TestPL04_StoredScript(t *testing.T) {
	o := start(t)
	hostile := `"><img/src=x/onerror=alert(1)>@evil.example`
	o.SetPolicy(t, attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule))
	alice, mallory := o.Visitor(t, "alice-laptop", "alice@example.com"), o.Visitor(t, "mal-laptop", hostile)
	o.Allowed(t, alice, true)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "hostile", Namespace: "shop", Labels: map[string]string{"mca.tailplane.dev/inject": "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "registry.invalid/x"}}, AutomountServiceAccountToken: new(false)}}
	pods := o.Clientset.CoreV1().Pods("shop")
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.WithoutCancel(t.Context()), "hostile", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	})
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "mca", Image: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: evil}}}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var list attacktest.PlaneReply
	attacktest.Eventually(t, attacktest.Long, "the plane shows it", func() bool {
		list = o.Request(t, alice, "GET", "/api/v1/adapters", "", "Accept", "text/html")
		return strings.Contains(list.Body, "owned")
	})
	var adapters []plane.Adapter
	if err := json.Unmarshal(list.Data, &adapters); err != nil || !strings.Contains(adapters[0].Message, "<script>") {
		t.Errorf("%v: the text is changed: %s", err, list.Data)
	}
	switch {
	case list.Header.Get("Content-Type") != "application/json":
		t.Errorf(`the list: list.Header.Get("Content-Type") != "application/json"; %v, %q`, list.Header, list.Body)
	case list.Header.Get("X-Content-Type-Options") != "nosniff":
		t.Errorf(`the list: list.Header.Get("X-Content-Type-Options") != "nosniff"; %v, %q`, list.Header, list.Body)
	case strings.ContainsAny(list.Body, "\x1b\x07"):
		t.Errorf(`the list: strings.ContainsAny(list.Body, "\x1b\x07") is true; %v, %q`, list.Header, list.Body)
	}
	text := o.Request(t, alice, "GET", "/text", "")
	switch {
	case !strings.Contains(text.Body, "shop/hostile"):
		t.Errorf("as text: text.Body = %q does not contain %q", text.Body, "shop/hostile")
	case strings.Contains(text.Body, "<script"):
		t.Errorf("as text: text.Body = %q contains %q", text.Body, "<script")
	case strings.ContainsAny(text.Body, "\x1b\x07\u202e"):
		t.Errorf(`as text: strings.ContainsAny(text.Body, "\x1b\x07\u202e") is true; %v, %q`, text.Header, text.Body)
	case !strings.HasPrefix(text.Header.Get("Content-Type"), "text/plain"):
		t.Errorf(`as text: strings.HasPrefix(text.Header.Get("Content-Type"), "text/plain") is false; %v, %q`, text.Header, text.Body)
	case text.Header.Get("X-Content-Type-Options") != "nosniff":
		t.Errorf(`as text: text.Header.Get("X-Content-Type-Options") != "nosniff"; %v, %q`, text.Header, text.Body)
	}
	refused := o.Request(t, mallory, "GET", "/", "", "Accept", "text/html")
	switch {
	case refused.Status != http.StatusForbidden:
		t.Errorf("the page for a caller without a role: refused.Status = %v, want %v", refused.Status, http.StatusForbidden)
	case strings.Contains(refused.Body, "<img"):
		t.Errorf("the page for a caller without a role: refused.Body = %q contains %q", refused.Body, "<img")
	case !strings.Contains(refused.Body, "&lt;img/src=x/onerror=alert(1)&gt;@evil.example"):
		t.Errorf("the page for a caller without a role: refused.Body = %q does not contain %q",
			refused.Body, "&lt;img/src=x/onerror=alert(1)&gt;@evil.example")
	}
	for what, h := range map[string]http.Header{"the refusal": refused.Header, "the dashboard": o.Request(t, alice, "GET", "/", "").Header, "the text": text.Header} {
		switch csp := h.Get("Content-Security-Policy"); {
		case !strings.HasPrefix(csp, "default-src 'none'"):
			t.Errorf("%s: csp = %q does not start with %q", what, csp, "default-src 'none'")
		case strings.Contains(csp, "unsafe"):
			t.Errorf("%s: csp = %q contains %q", what, csp, "unsafe")
		case strings.Contains(csp, "http"):
			t.Errorf("%s: csp = %q contains %q", what, csp, "http")
		}
	}
}

// PL-05. Objects of another organisation or another person do not exist for a caller: not in a list, a total, the
// audit log or an event, and not when requested by name. No response may be cached.
//
// Guard: plane.Viewer, which filters every list, total and event, and plane.(*Service).revokeSignin, which treats another
// person's sign-in as missing.
func TestPL05_OthersThings(t *testing.T) {
	o := start(t)
	o.SetPolicy(t, attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule), attacktest.Grant("bob@example.com", `{"role": "view", "period": "1h"}`))
	alice, bob, amy := o.Visitor(t, "alice-laptop", "alice@example.com"), o.Visitor(t, "bob-laptop", "bob@example.com"), o.Visitor(t, "amy-laptop", "amy@corp.example")
	o.Allowed(t, alice, true)
	o.Allowed(t, amy, true)
	name := o.Login(t, bob, signin.LoginRequest{}).Name
	t.Cleanup(func() { o.Logout(t, bob) })
	attacktest.Eventually(t, attacktest.Long, "the plane shows it to who may see it", func() bool {
		return strings.Contains(o.Request(t, alice, "GET", "/api/v1/signins?limit=500", "").Body, name)
	})
	m := o.Mark(t)
	for _, path := range []string{"/api/v1/signins", "/api/v1/signins?q=bob", "/api/v1/overview", "/text", "/api/v1/audit", "/api/v1/audit?actor=bob@example.com", "/api/v1/audit?org=globex", "/api/v1/enrollments", "/api/v1/enrollments/globex"} {
		a := o.Request(t, amy, "GET", path, "")
		for _, word := range []string{name, "bob@", "globex", "alice@"} {
			if strings.Contains(a.Body, word) && !(strings.Contains(path, word) && a.Status >= 400) {
				t.Errorf("GET %s shows amy %s: %d %s", path, word, a.Status, a.Body)
			}
		}
		if total := a.Meta.Page.Total; total != nil && *total > 0 && strings.Contains(path, "signins") {
			t.Errorf("GET %s: a total of %d", path, *total)
		}
		if a.Header.Get("Cache-Control") != "no-store" && path != "/text" || a.Header.Get("ETag") != "" {
			t.Errorf("GET %s may be kept: %v", path, a.Header)
		}
	}
	real := o.Request(t, amy, "DELETE", "/api/v1/signins/"+testenv.SigninNamespace+"/"+name, `{"reason":"mine"}`)
	none := o.Request(t, amy, "DELETE", "/api/v1/signins/"+testenv.SigninNamespace+"/nobodys", `{"reason":"mine"}`)
	switch {
	case real.Status != http.StatusNotFound:
		t.Errorf("bob's: real.Status = %v, want %v", real.Status, http.StatusNotFound)
	case none.Status != http.StatusNotFound:
		t.Errorf("bob's: none.Status = %v, want %v", none.Status, http.StatusNotFound)
	case len(real.Body)-len(name) != len(none.Body)-len("nobodys") && strings.Contains(real.Body, name):
		t.Errorf(`bob's: len(real.Body)-len(name) != len(none.Body)-len("nobodys") && strings.Contains(real.Body, name); %d, %s, %d, %s`,
			real.Status, real.Body, none.Status, none.Body)
	}
	o.Untouched(t, m, "amy")
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", o.Dashboard()+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := o.HTTPClient(amy).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for snapshot := false; lines.Scan(); {
		if strings.Contains(lines.Text(), name) || strings.Contains(lines.Text(), "globex") {
			t.Errorf("the stream shows amy: %.300s", lines.Text())
		}
		if snapshot = snapshot || lines.Text() == "event: snapshot"; snapshot && strings.HasPrefix(lines.Text(), "data: ") {
			break
		}
	}
	if lines.Err() != nil {
		t.Error(lines.Err())
	}
}

// PL-08. If a handler forgot its access check, the API server would still refuse. The plane's account can read the
// data that it shows and end sign-ins, and nothing else. The program's own requests during these tests needed no
// more.
//
// Guard: charts/tailplane/templates/rbac-plane.yaml.
func TestPL08_TheAccountCannotMore(t *testing.T) {
	o := start(t)
	k, err := kubernetes.NewForConfig(o.AccountConfig(t, "tailplane-plane"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, list := t.Context(), metav1.ListOptions{}
	as := o.ClientFor(t, o.AccountConfig(t, "tailplane-plane"))
	for what, err := range map[string]error{
		"lists Secrets":        attacktest.ErrorOf(k.CoreV1().Secrets("").List(ctx, list)),
		"reads another Secret": attacktest.ErrorOf(k.CoreV1().Secrets(testenv.SystemNamespace).Get(ctx, "tailplane-cluster-key", metav1.GetOptions{})),
		"makes a sign-in":      as.Create(ctx, attacktest.ForgedSignIn("pat@platform.example", "laptop", "edit")),
		"runs a command":       k.CoreV1().RESTClient().Post().Namespace("shop").Resource("pods").Name("x").SubResource("exec").Param("command", "id").Do(ctx).Error(),
		"reads a log":          k.CoreV1().Pods("shop").GetLogs("x", &corev1.PodLogOptions{}).Do(ctx).Error(),
		"makes a pod":          attacktest.ErrorOf(k.CoreV1().Pods("shop").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}, metav1.CreateOptions{})),
		"lists accounts":       attacktest.ErrorOf(k.CoreV1().ServiceAccounts(testenv.SigninNamespace).List(ctx, list)),
		"lists roles":          attacktest.ErrorOf(k.RbacV1().RoleBindings("").List(ctx, list)),
		"lists namespaces":     attacktest.ErrorOf(k.CoreV1().Namespaces().List(ctx, list)),
		"reads other places":   attacktest.ErrorOf(k.CoordinationV1().Leases("default").List(ctx, list)),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("it %s: %v, want Forbidden", what, err)
		}
	}
	if _, err := k.CoreV1().Pods("").List(ctx, list); err != nil {
		t.Errorf("it cannot read what it shows: %v", err)
	}
	for _, r := range (attacktest.LogMark{Env: o.Env}).Requests(t, attacktest.PlaneAccount) {
		secret := r.ObjectRef.Resource == "secrets" && (r.ObjectRef.Namespace != testenv.SystemNamespace || !strings.HasPrefix(r.ObjectRef.Name, "tailplane-plane"))
		if agent := r.UserAgent; strings.Contains(agent, "plane.test") {
			continue // requests of this test itself
		}
		switch {
		case secret:
			t.Errorf("the program requested: secret is true; %v", r)
		case r.ImpersonatedUser != nil:
			t.Errorf("the program requested: r.ImpersonatedUser = %v, want nil", r.ImpersonatedUser)
		case r.ObjectRef.Subresource == "exec":
			t.Errorf("the program requested: r.ObjectRef.Subresource = %q", r.ObjectRef.Subresource)
		case r.ObjectRef.Subresource == "token":
			t.Errorf("the program requested: r.ObjectRef.Subresource = %q", r.ObjectRef.Subresource)
		case r.Writes() && !slices.Contains([]string{"tkasignins", "runnerholds", "secrets", "events"}, r.ObjectRef.Resource):
			t.Errorf(`the program requested: r.Writes() && !slices.Contains([]string{"tkasignins", "runnerholds", "secrets", "events"}, r.ObjectRef.Resource); %v`,
				r)
		}
	}
}

// PL-10. The exposed service receives the login that the tailnet authenticates, whatever identity headers the client
// sends. Administration requests are refused before the proxy dials. A redirect is passed on to the client. Services
// that must never be exposed are not exposed.
//
// Guard: exposure.(*proxy).rewrite and administers, exposure.(Upstream).Decide, and secluded, by way of checkPlane at the
// start.
func TestPL10_ExposedServices(t *testing.T) {
	o := start(t)
	if o.Unnamed != nil {
		t.Skip("SKIP names of Services: ", o.Unnamed)
	}
	o.SetPolicy(t, attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule), attacktest.PlaneGrant("eve@example.com", attacktest.ViewerRule))
	alice, eve, amy := o.Visitor(t, "alice-laptop", "alice@example.com"), o.Visitor(t, "eve-laptop", "eve@example.com"), o.Visitor(t, "amy-laptop", "amy@corp.example")
	for _, p := range []*testenv.Person{alice, eve, amy} {
		o.WaitPeer(t, p, "grafana")
		o.Allowed(t, p, true)
	}
	host := "grafana." + o.Net.Suffix()
	look := func(p *testenv.Person, method, path string, headers ...string) attacktest.Answer {
		req := o.NewRequest(t, method, path, "", headers...)
		req.URL.Host, req.Host = host, host
		return attacktest.Do(t, o.HTTPClient(p), req)
	}
	attacktest.Eventually(t, attacktest.Long, "it is on the tailnet", func() bool { return look(eve, "GET", "/graph").Status == http.StatusOK })
	o.Took()
	for why, headers := range map[string][]string{
		"nothing":         nil,
		"the header":      {"X-Webauth-User", "root"},
		"twice":           {"X-Webauth-User", "root", "X-Webauth-User", "admin"},
		"other letters":   {"x-WEBAUTH-user", "root", "X-WEBAUTH-USER", "root"},
		"underscores":     {"X_Webauth_User", "root", "X_WEBAUTH_ROLE", "Admin"},
		"a role":          {"X-Webauth-Role", "Admin"},
		"to be taken off": {"Connection", "X-Webauth-User, X-WEBAUTH-ROLE", "X-Webauth-User", "root"},
		"a password":      {"Authorization", "Basic cm9vdDpyb290"},
		"other proxies'":  {"X-Remote-User", "root", "Tailscale-User-Login", "root", "X-Tailscale-User", "root", "Impersonate-User", "root", "Forwarded", "for=root", "X-Forwarded-For", "100.64.0.1"},
	} {
		a := look(eve, "GET", "/graph", headers...)
		got := o.Took()
		if a.Status != http.StatusOK || len(got) != 1 {
			t.Fatalf("%s: %v, %d requests", why, a, len(got))
		}
		h := got[0].Header
		if !slices.Equal(h.Values("X-Webauth-User"), []string{"eve@example.com"}) || !slices.Equal(h.Values("X-Webauth-Role"), []string{"Viewer"}) {
			t.Errorf("%s: the service hears %v %v", why, h.Values("X-Webauth-User"), h.Values("X-Webauth-Role"))
		}
		if text := fmt.Sprint(h); strings.Contains(text, "root") || strings.Contains(text, "cm9vd") {
			t.Errorf("%s: the service hears %v", why, h)
		}
	}
	for _, x := range []struct {
		why          string
		p            *testenv.Person
		method, path string
		status       int
	}{
		{"a role for one organisation", amy, "GET", "/graph", 403},
		{"administration", alice, "POST", "/api/v1/admin/tsdb/delete_series", 403},
		{"in capitals", alice, "POST", "/API/V1/ADMIN/tsdb/delete_series", 404},
		{"spelt with a dot", alice, "POST", "/api/v1/./admin/tsdb/delete_series", 404},
		{"spelt with two", alice, "POST", "/x/../api/v1/admin/tsdb/delete_series", 404},
		{"encoded", alice, "POST", "/api/v1/%61dmin/tsdb/delete_series", 404},
		{"with an encoded slash", alice, "POST", "/api/v1%2Fadmin/tsdb/delete_series", 404},
		{"the end of it", alice, "PUT", "/-/quit", 403},
		{"another name", alice, "GET", "/graph", 421},
	} {
		var headers []string
		if x.status == http.StatusMisdirectedRequest {
			headers = []string{"Host", "grafana.monitoring.svc"}
		}
		req := o.NewRequest(t, x.method, x.path, "", headers...)
		req.URL.Host = host
		if headers == nil {
			req.Host = host
		}
		if a := attacktest.Do(t, o.HTTPClient(x.p), req); a.Status != x.status {
			t.Errorf("%s: %v, want %d", x.why, a, x.status)
		}
		if got := o.Took(); len(got) > 0 {
			t.Errorf("%s: the service got a request for %s", x.why, got[0].URL)
		}
	}
	if a := look(eve, "GET", "/away"); a.Status != http.StatusFound || len(o.Took()) != 1 {
		t.Errorf("a redirect is followed: %v", a)
	}
	own, err := o.Settings("plane")
	if err != nil {
		t.Fatal(err)
	}
	for _, upstream := range []string{"http://arc-controller.arc-systems.svc", "http://runner-1.runners.svc", "http://acme-rw.db.svc:5432", "http://rustfs.cache.svc:9000", "https://kubernetes.default.svc",
		"http://tailplane-plane." + testenv.SystemNamespace + ".svc:9091", "http://127.0.0.1:9090", "http://169.254.169.254", "http://user:pass@grafana.monitoring.svc", "file:///etc/passwd"} {
		var text strings.Builder
		for line := range strings.Lines(string(own)) {
			if strings.HasPrefix(line, "  exposures: ") {
				line = fmt.Sprintf("  exposures: [{name: x, upstream: %q, access: identified}]\n", upstream)
			}
			text.WriteString(line)
		}
		p, err := o.Try("exposes", "plane", nil, text.String(), "--check")
		if err != nil {
			t.Fatal(err)
		}
		if p.ExitCode() != 2 {
			t.Errorf("%s may be exposed: exit %d", upstream, p.ExitCode())
		}
	}
}
