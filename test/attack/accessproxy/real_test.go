package accessproxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

var proxyStarted struct {
	once sync.Once
	err  error
}

// startReal returns the environment of all tests of this package, with the access proxy.
func startReal(t *testing.T) *attacktest.Env {
	t.Helper()
	s := attacktest.Start(t)
	proxyStarted.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), attacktest.Long)
		defer cancel()
		proxyStarted.err = s.StartProxy(ctx)
	})
	if proxyStarted.err != nil {
		t.Fatal(proxyStarted.err)
	}
	return s
}

// A realClient sends requests of a person through the real proxy.
type realClient struct {
	*http.Client
	server string
}

func clientOf(t *testing.T, s *attacktest.Env, p *testenv.Person, http2 bool) *realClient {
	t.Helper()
	s.WaitPeer(t, p, "east-api")
	tr := &http.Transport{DialContext: p.Node.Dial, TLSClientConfig: &tls.Config{RootCAs: s.Roots}, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &realClient{&http.Client{Transport: tr, Timeout: attacktest.Long}, s.ProxyServer()}
}

// do sends a request and returns its status and body. pairs are names and values of fields.
func (c *realClient) do(ctx context.Context, method, path, session, body string, pairs ...string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.server+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer session."+session)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "Host" {
			r.Host = pairs[i+1]
		} else {
			r.Header[pairs[i]] = append(r.Header[pairs[i]], pairs[i+1])
		}
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// whoami returns the user as which the API server sees a request.
func (c *realClient) whoami(ctx context.Context, session string, pairs ...string) (authenticationv1.UserInfo, error) {
	status, body, err := c.do(ctx, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", session, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, pairs...)
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	var review authenticationv1.SelfSubjectReview
	if err == nil {
		err = json.Unmarshal([]byte(body), &review)
	}
	return review.Status.UserInfo, err
}

func accountOf(name string) string {
	return "system:serviceaccount:" + testenv.SigninNamespace + ":" + name
}

// waitSignedIn waits until the proxy serves a session.
func (c *realClient) waitSignedIn(t *testing.T, session string) {
	t.Helper()
	var err error
	attacktest.Eventually(t, attacktest.Long, "the proxy serves the session "+session, func() bool { _, err = c.whoami(t.Context(), session); return err == nil })
}

// attackImpersonation sends impersonation that alice's role does not allow.
func attackImpersonation(t *testing.T) {
	s := startReal(t)
	alice := s.Alice(t)
	st := s.Login(t, alice, signin.LoginRequest{})
	for _, http2 := range []bool{false, true} {
		c := clientOf(t, s, alice, http2)
		c.waitSignedIn(t, "default")
		if user, err := c.whoami(t.Context(), "default"); err != nil || user.Username != accountOf(st.Name) {
			t.Errorf("http2 %v: the API server sees %q, %v, want %q", http2, user.Username, err, accountOf(st.Name))
		}
		for _, x := range wellFormed {
			_, err := c.whoami(t.Context(), "default", x.pairs...)
			if text := fmt.Sprint(err); !strings.Contains(text, "status 403") || !strings.Contains(text, "impersonate") {
				t.Errorf("http2 %v, %s: %v, want the API server's 403", http2, x.name, err)
			}
		}
		for _, user := range protected {
			if _, err := c.whoami(t.Context(), "default", "Impersonate-User", user); err == nil || !strings.Contains(err.Error(), "No caller may act as a ServiceAccount") {
				t.Errorf("http2 %v, %s: %v, want the proxy's 403", http2, user, err)
			}
		}
	}
}

// attackNested gives alice's account the right to act as one user. Everything else stays refused.
func attackNested(t *testing.T) {
	s := startReal(t)
	alice := s.Alice(t)
	st := s.Login(t, alice, signin.LoginRequest{})
	c := clientOf(t, s, alice, true)
	c.waitSignedIn(t, "default")
	meta := metav1.ObjectMeta{Name: "may-act-as-tester"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"tester"}, Verbs: []string{"impersonate"}}}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: testenv.SigninNamespace, Name: st.Name}}}
	for _, o := range []client.Object{role, binding} {
		if err := s.KubeClient.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.KubeClient.Delete(context.WithoutCancel(t.Context()), o); err != nil {
				t.Error(err)
			}
		})
	}
	attacktest.Eventually(t, attacktest.Soon, "alice acts as tester", func() bool {
		user, err := c.whoami(t.Context(), "default", "Impersonate-User", "tester")
		return err == nil && user.Username == "tester"
	})
	for name, pairs := range map[string][]string{
		"a group":      {"Impersonate-User", "tester", "Impersonate-Group", "system:masters"},
		"a UID":        {"Impersonate-User", "tester", "Impersonate-Uid", "0"},
		"an extra":     {"Impersonate-User", "tester", "Impersonate-Extra-Scopes", "all"},
		"another user": {"Impersonate-User", "tester2"},
	} {
		if user, err := c.whoami(t.Context(), "default", pairs...); err == nil || !strings.Contains(err.Error(), "status 403") {
			t.Errorf("%s: the API server sees %+v, %v, want its 403", name, user, err)
		}
	}
}

// attackForgedStatus writes statuses with the operator's account while the operator is down.
func attackForgedStatus(t *testing.T) {
	s := startReal(t)
	bob := s.Person(t, "frank-laptop", "frank@example.com")
	s.SetPolicy(t, attacktest.Grant("frank@example.com", `{"role": "view", "period": "1h"}`))
	s.WaitGranted(t, bob)
	st := s.Login(t, bob, signin.LoginRequest{})
	c := clientOf(t, s, bob, true)
	c.waitSignedIn(t, "default")
	before := s.SignIns(t, "frank@example.com")[0]
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.RestartOperator(t) })
	operator, err := client.New(s.AccountConfig(t, "tailplane-operator"), client.Options{Scheme: s.KubeClient.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(status map[string]any) {
		t.Helper()
		b, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: st.Name}}
		if err := operator.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, b)); err != nil {
			t.Fatal(err)
		}
	}
	for name, forged := range map[string]map[string]any{
		"another account": {"serviceAccount": map[string]any{"name": "default", "uid": "00000000-0000-0000-0000-000000000000"}},
		"a later end":     {"validUntil": metav1.NewTime(before.Status.ValidUntil.Add(90 * 24 * time.Hour))},
		"another role":    {"role": "edit"},
	} {
		patch(forged)
		took := attacktest.Eventually(t, attacktest.Soon, name+" is refused", func() bool {
			_, err := c.whoami(t.Context(), "default")
			return err != nil && strings.Contains(err.Error(), "status 403")
		})
		t.Logf("%s: refused after %v", name, took.Round(time.Millisecond))
		if !strings.Contains(s.Proxy.Output(), `"a stored sign-in cannot be trusted","signin":"`+st.Name) {
			t.Errorf("%s: the proxy's log has no alert", name)
		}
		patch(map[string]any{"serviceAccount": before.Status.ServiceAccount, "validUntil": before.Status.ValidUntil, "role": before.Status.Role})
		c.waitSignedIn(t, "default")
	}
}

// attackSessions uses two sessions in one HTTP/2 connection of the real proxy.
func attackSessions(t *testing.T) {
	s := startReal(t)
	alice := s.Alice(t)
	want := map[string]string{"default": s.Login(t, alice, signin.LoginRequest{}).Name}
	if _, err := signin.Login.Call(t.Context(), s.APIClient(alice), signin.LoginRequest{Session: "deploy"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := signin.Logout.Call(context.WithoutCancel(t.Context()), s.APIClient(alice), signin.LogoutRequest{Session: "deploy"}); err != nil {
			t.Error(err)
		}
	})
	for _, o := range s.SignIns(t, "alice@example.com") {
		if o.Name != want["default"] {
			want["deploy"] = o.Name
		}
	}
	c := clientOf(t, s, alice, true)
	c.waitSignedIn(t, "default")
	c.waitSignedIn(t, "deploy")
	var wrong collector
	var wg sync.WaitGroup
	for i := range 200 {
		session := []string{"default", "deploy"}[i%2]
		wg.Go(func() {
			if user, err := c.whoami(t.Context(), session); err != nil || user.Username != accountOf(want[session]) {
				wrong.add("session %s: the API server sees %q, %v, want %q", session, user.Username, err, accountOf(want[session]))
			}
		})
	}
	wg.Wait()
	wrong.report(t)
}

// attackPages sends what a browser would send for the page of another site, and under a rebound name.
func attackPages(t *testing.T) {
	s := startReal(t)
	alice := s.Alice(t)
	s.Login(t, alice, signin.LoginRequest{})
	c := clientOf(t, s, alice, true)
	c.waitSignedIn(t, "default")
	for _, page := range pages[:5] {
		status, body, err := c.do(t.Context(), "GET", "/api/v1/namespaces", "default", "", page.fields...)
		if err != nil {
			t.Fatal(err)
		}
		if status != http.StatusForbidden || !strings.Contains(body, "tailplane: ") {
			t.Errorf("%s: status %d: %s, want the proxy's 403", page.name, status, body)
		}
	}
	for _, host := range []string{"evil.example", "localhost", "tka." + s.Net.Suffix()} {
		if status, body, err := c.do(t.Context(), "GET", "/api/v1/namespaces", "default", "", "Host", host); err != nil || status != http.StatusMisdirectedRequest {
			t.Errorf("for the host %s: status %d, %v: %s, want 421", host, status, err, body)
		}
	}
}

// attackHands removes a grant while a real connection and a real watch are open.
func attackHands(t *testing.T) {
	s := startReal(t)
	p := s.Person(t, "grace-laptop", "grace@example.com")
	s.SetPolicy(t, attacktest.Grant("grace@example.com", `{"role": "view", "period": "1h"}`))
	s.WaitGranted(t, p)
	s.Login(t, p, signin.LoginRequest{})
	c := clientOf(t, s, p, true)
	c.waitSignedIn(t, "default")
	ended := make(chan string, 1)
	opened := make(chan struct{})
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), "GET", c.server+"/api/v1/namespaces?watch=1", nil)
		if err != nil {
			panic(err)
		}
		r.Header.Set("Authorization", "Bearer session.default")
		res, err := c.Do(r)
		if err != nil {
			ended <- err.Error()
			return
		}
		defer res.Body.Close()
		close(opened)
		b, _ := io.ReadAll(res.Body)
		ended <- string(b)
	}()
	<-opened
	began := time.Now()
	s.SetPolicy(t) // grace's grant goes; a device that leaves could not receive the end of its watch
	select {
	case rest := <-ended:
		took := time.Since(began)
		t.Logf("the watch was cut after %v", took.Round(time.Millisecond))
		if took > attacktest.Soon || !strings.Contains(rest, `"code":403`) {
			t.Errorf("the watch was cut after %v with %q, want an ERROR event with 403", took, rest)
		}
	case <-time.After(attacktest.Soon):
		t.Error("the watch is still open")
	}
	if status, body, err := c.do(t.Context(), "GET", "/version", "default", ""); err != nil || status != http.StatusForbidden {
		t.Errorf("a new request: status %d, %v: %s, want 403", status, err, body)
	}
}
