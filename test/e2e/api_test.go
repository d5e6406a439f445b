package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// An answer is a response, byte for byte.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code() problem.Code {
	var p problem.Error
	_ = json.Unmarshal(a.body, &p) // the body may be no problem document: then there is no code
	return p.Code
}

// ask sends one request as p to a server. headers have the form "Name: value".
func ask(t *testing.T, p *testenv.Person, method, url, body string, headers ...string) answer {
	t.Helper()
	a, err := tryAsk(t.Context(), p, method, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// tryAsk is ask for other goroutines: it returns errors instead of failing the test.
func tryAsk(ctx context.Context, p *testenv.Person, method, url, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	c := p.HTTP()
	defer c.CloseIdleConnections()
	res, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b}, err
}

// Section 3.5: every caller that the tailnet authenticates may use whoami.
func TestWhoami(t *testing.T) {
	r := start(t)
	alice := person(t, r, "who-alice", "alice@example.com")
	tell := func(p *testenv.Person) (w signin.Whoami) {
		t.Helper()
		a := ask(t, p, "GET", r.Server()+signin.Base+"/whoami", "")
		d := json.NewDecoder(bytes.NewReader(a.body))
		d.DisallowUnknownFields()
		if err := d.Decode(&w); a.status != http.StatusOK || err != nil {
			t.Fatalf("%d %v %s", a.status, err, a.body)
		}
		e := entries(t, r)[w.AuditID]
		switch {
		case w.AuditID == "":
			t.Errorf("audit id: w.AuditID is empty; %q, %+v", w.AuditID, e)
		case w.AuditID != a.header.Get("X-Request-Id"):
			t.Errorf(`audit id: w.AuditID = %q, want a.header.Get("X-Request-Id")`, w.AuditID)
		case len(e) != 1:
			t.Errorf("audit id: len(e) = %v, want 1", len(e))
		case e[0].Verb != access.Whoami:
			t.Errorf("audit id: e[0].Verb = %q, want %q", e[0].Verb, access.Whoami)
		case e[0].Code != "":
			t.Errorf("audit id: e[0].Code = %q, want none", e[0].Code)
		}
		return w
	}
	w := tell(alice)
	switch {
	case w.Caller.Login != "alice@example.com":
		t.Errorf("w.Caller.Login = %q, want %q", w.Caller.Login, "alice@example.com")
	case !strings.HasPrefix(w.Caller.Node, "who-alice."):
		t.Errorf("w.Caller.Node = %q does not start with %q", w.Caller.Node, "who-alice.")
	case w.Caller.Tailnet != "example.com":
		t.Errorf("w.Caller.Tailnet = %q, want %q", w.Caller.Tailnet, "example.com")
	case w.Caller.Via != access.ViaTailnet:
		t.Errorf("w.Caller.Via = %q, want %q", w.Caller.Via, access.ViaTailnet)
	case w.Signin != nil:
		t.Errorf("w.Signin = %v, want nil", w.Signin)
	}
	switch {
	case len(w.Rules) != 2:
		t.Errorf("len(w.Rules) = %v, want 2", len(w.Rules))
	case !w.Decision.Allowed:
		t.Errorf("w.Decision.Allowed is false; %+v, %+v", w.Rules, w.Decision)
	case !strings.Contains(w.Decision.Message, `"view" for 8h`):
		t.Errorf("w.Decision.Message = %q does not contain %q", w.Decision.Message, `"view" for 8h`)
	}
	for _, rule := range w.Rules {
		if rule.Chosen != (rule.Role == "view") || rule.Problem != "" {
			t.Errorf("%+v", rule)
		}
	}
	if _, err := signin.Login.Call(t.Context(), alice.Client(), signin.LoginRequest{}); err != nil {
		t.Fatal(err)
	}
	switch w = tell(alice); {
	case w.Signin == nil:
		t.Error("signed: w.Signin is nil")
	case w.Signin.Username != "alice@example.com":
		t.Errorf("signed: w.Signin.Username = %q, want %q", w.Signin.Username, "alice@example.com")
	case w.Signin.Role != "view":
		t.Errorf("signed: w.Signin.Role = %q, want %q", w.Signin.Role, "view")
	}
	if _, err := signin.Logout.Call(t.Context(), alice.Client(), signin.LogoutRequest{}); err != nil {
		t.Error(err)
	}

	for _, tt := range []struct {
		host, login string
		tags        []string
		rules       int
		code        problem.Code
		problem     string // the problem of the first rule
	}{
		{"who-bob", "bob@example.com", nil, 0, problem.NoCapability, ""},
		{"who-erin", "erin@example.com", nil, 2, problem.AmbiguousRole, ""},
		{"who-mallory", "mallory@example.com", nil, 1, problem.BadCapability, `"namespace" is not a field`},
		{"who-ci", "", []string{"tag:ci"}, 1, problem.TaggedNode, "does not admit tagged nodes"},
		{"who-robot", "", []string{"tag:robot"}, 1, "", ""},
	} {
		before := writes(t, r)
		w := tell(person(t, r, tt.host, tt.login, tt.tags...))
		switch {
		case len(w.Rules) != tt.rules:
			t.Errorf("len(w.Rules) = %v, want %v; %s", len(w.Rules), tt.rules, tt.host)
		case w.Decision.Code != tt.code:
			t.Errorf("w.Decision.Code = %q, want %q; %s", w.Decision.Code, tt.code, tt.host)
		case w.Decision.Allowed != (tt.code == ""):
			t.Errorf("w.Decision.Allowed = %v, want %v; %s", w.Decision.Allowed, (tt.code == ""), tt.host)
		case w.Signin != nil:
			t.Errorf("w.Signin = %v, want nil; %s", w.Signin, tt.host)
		}
		if tt.problem != "" && !strings.Contains(w.Rules[0].Problem, tt.problem) {
			t.Errorf("%s: rule %+v", tt.host, w.Rules[0])
		}
		if tt.code != "" && (w.Decision.Message == "" || len(w.Decision.Advice) == 0) {
			t.Errorf("%s: %+v", tt.host, w.Decision)
		}
		if tt.login == "" && (w.Caller.Login != "" || !slices.Equal(w.Caller.Tags, tt.tags)) {
			t.Errorf("%s: caller %+v", tt.host, w.Caller)
		}
		if after := writes(t, r); after != before {
			t.Errorf("%s: wrote %s, then %s", tt.host, before, after)
		}
	}
}

// SGN-24 in part: the server proves which cluster it serves, on every operation and also after a restart. It gives no
// proof for a name that is not its own.
func TestServerProof(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "proof-alice", "alice@example.com"), person(t, r, "proof-bob", "bob@example.com")
	host := strings.TrimPrefix(r.Server(), "https://")
	info := func() (i signin.ClusterInfo) {
		t.Helper()
		nonce := httpapi.NewNonce()
		a := ask(t, alice, "GET", r.Server()+signin.Base+"/cluster-info", "", httpapi.NonceHeader+": "+nonce)
		if err := json.Unmarshal(a.body, &i); err != nil || a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if err := i.Key.Check(nonce, host, a.body, a.header.Get(httpapi.ProofHeader)); err != nil {
			t.Errorf("the key it names does not sign: %v", err)
		}
		return i
	}
	i := info()
	hash, err := signin.CAHash(i.CAData)
	switch {
	case err != nil:
		t.Error(err)
	case hash != i.CAHash:
		t.Errorf("hash = %q, want %q", hash, i.CAHash)
	case i.ID == "":
		t.Errorf("i.ID is empty; %+v, hash = %s, %v", i, hash, err)
	case i.Name != "east":
		t.Errorf("i.Name = %q, want %q", i.Name, "east")
	case i.Key.IsZero():
		t.Errorf("i.Key.IsZero() is true; %+v, hash = %s, %v", i, hash, err)
	}
	for _, op := range signin.Operations() {
		method, path, _ := strings.Cut(op.Pattern, " ")
		for _, p := range []*testenv.Person{alice, bob} {
			nonce := httpapi.NewNonce()
			a := ask(t, p, method, r.Server()+path, "", httpapi.NonceHeader+": "+nonce)
			if err := i.Key.Check(nonce, host, a.body, a.header.Get(httpapi.ProofHeader)); err != nil {
				t.Errorf("%s, %d: %v", op.Pattern, a.status, err)
			}
			if err := i.Key.Check(httpapi.NewNonce(), host, a.body, a.header.Get(httpapi.ProofHeader)); err == nil {
				t.Errorf("%s: the proof fits another nonce", op.Pattern)
			}
		}
	}
	a := ask(t, alice, "GET", r.Server()+signin.Base+"/cluster-info", "", httpapi.NonceHeader+": "+httpapi.NewNonce(), "Host: tka.evil.example")
	if a.status != http.StatusMisdirectedRequest || a.header.Get(httpapi.ProofHeader) != "" {
		t.Errorf("by a name that is not its own: %d %v", a.status, a.header)
	}
	if err := r.Access.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server is back", func() bool {
		_, err := signin.GetClusterInfo.Call(t.Context(), alice.Client(), signin.ClusterInfoRequest{})
		return err == nil
	})
	if again := info(); again.Key != i.Key || again.ID != i.ID {
		t.Errorf("after a restart the cluster is %s %s, before it was %s %s", again.ID, again.Key, i.ID, i.Key)
	}
	out, errs, exit := kubectlAdmin(t, r, "get", "secret", "-n", testenv.SystemNamespace, "tailplane-cluster-key", "-o", "jsonpath={.data.ed25519}")
	if exit != 0 || len(out) != 44 {
		t.Fatalf("the Secret has %d characters, %s", len(out), errs)
	}
	if strings.Contains(r.Access.Output(), out) || strings.Contains(r.Operator.Output(), out) {
		t.Error("SGN-25: the cluster's key lies in a log")
	}
}

// Conventions 9: the test calls every operation with the example from its reference. Each answer must match the
// reference.
func TestExamplesOfTheReference(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "ex-alice", "alice@example.com"), person(t, r, "ex-bob", "bob@example.com")
	call := func(p *testenv.Person, op httpapi.Declaration) answer {
		t.Helper()
		method, path, _ := strings.Cut(op.Pattern, " ")
		body, query := "", url.Values{}
		var headers []string
		for f := range op.Request.Fields() {
			if name := f.Tag.Get("query"); name != "" {
				text, err := reflect.ValueOf(op.Example).FieldByIndex(f.Index).Interface().(encoding.TextMarshaler).MarshalText()
				if err != nil {
					t.Fatal(err)
				}
				if len(text) > 0 {
					query.Set(name, string(text))
				}
			}
		}
		target := r.Server() + path
		if len(query) > 0 {
			target += "?" + query.Encode()
		}
		if method != http.MethodGet {
			b, err := json.Marshal(op.Example)
			if err != nil {
				t.Fatal(err)
			}
			body, headers = string(b), []string{"Content-Type: application/json"}
		}
		return ask(t, p, method, target, body, headers...)
	}
	check := func(op httpapi.Declaration, a answer) {
		t.Helper()
		if code := a.code(); code != "" && a.status != http.StatusOK {
			if !slices.Contains(slices.Concat(httpapi.CommonRefusals(), op.Refusals), code) || code.Status() != a.status {
				t.Errorf("%s: %d %s is not in its reference", op.Pattern, a.status, code)
			}
			return
		}
		var statuses []int
		for _, example := range op.Responses {
			shape := httpapi.Response{Status: http.StatusOK}
			if s, ok := example.(httpapi.Responder); ok {
				var err error
				if shape, err = s.EncodeResponse("application/json"); err != nil {
					t.Fatal(err)
				}
			}
			statuses = append(statuses, shape.Status)
		}
		if !slices.Contains(statuses, a.status) {
			t.Errorf("%s: %d, but its reference lists %v", op.Pattern, a.status, statuses)
		}
		into := reflect.New(op.Response).Interface()
		d := json.NewDecoder(bytes.NewReader(a.body))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Errorf("%s: %v", op.Pattern, err)
		}
		switch {
		case a.header.Get("Cache-Control") != "no-store":
			t.Errorf(`a.header.Get("Cache-Control") != "no-store"; %s, %v`, op.Pattern, a.header)
		case a.header.Get("X-Request-Id") == "":
			t.Errorf(`a.header.Get("X-Request-Id") == ""; %s, %v`, op.Pattern, a.header)
		case a.header.Get("Access-Control-Allow-Origin") != "":
			t.Errorf(`a.header.Get("Access-Control-Allow-Origin") != ""; %s, %v`, op.Pattern, a.header)
		}
	}
	done := map[access.Verb]bool{}
	for _, op := range signin.Operations() { // login comes first, so that the other operations have data to return
		if op.Verb == access.SigninLogout {
			continue
		}
		a := call(alice, op)
		check(op, a)
		ofProxies := op.Verb == access.SigninFirstUse || op.Verb == access.SigninUsage // a person is refused
		if a.status/100 != 2 && !ofProxies {
			t.Errorf("%s with its example: %d %s", op.Pattern, a.status, a.body)
		}
		check(op, call(bob, op))
		done[op.Verb] = true
	}
	a := call(alice, signin.Logout.Declare())
	check(signin.Logout.Declare(), a)
	if a.status != http.StatusOK {
		t.Errorf("logout: %d %s", a.status, a.body)
	}
	check(signin.Logout.Declare(), call(alice, signin.Logout.Declare())) // not signed in
	if len(done)+1 != len(signin.Operations()) {
		t.Errorf("called %v", done)
	}
}

// wire sends raw bytes on a new connection of p and reads the answer.
func wire(t *testing.T, p *testenv.Person, r *testenv.Env, text string) (status int, head, body string) {
	t.Helper()
	name := "tka." + r.Net.Suffix()
	raw, err := p.Node.Dial(t.Context(), "tcp", name+":443")
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, &tls.Config{RootCAs: r.Roots, ServerName: name})
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "HOST", name)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, fmt.Sprint(res.Header), strings.TrimSpace(string(b))
}

// SGN-04: the exact bytes that existing clients send, and the fields that they read from the answer.
func TestSGN04_ByteForByte(t *testing.T) {
	r := start(t)
	p := person(t, r, "old-bytes", "carol@example.com")
	get := func(path string) string {
		return "GET " + signin.Base + path + " HTTP/1.1\r\nHost: HOST\r\nUser-Agent: go-resty/2.16.5\r\nAccept-Encoding: gzip\r\n\r\n"
	}
	post := func(path string) string {
		return "POST " + signin.Base + path + " HTTP/1.1\r\nHost: HOST\r\nUser-Agent: go-resty/2.16.5\r\nContent-Length: 0\r\nAccept-Encoding: gzip\r\n\r\n"
	}
	three := regexp.MustCompile(`^\{"username":"carol@example\.com","role":"view","until":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",`)
	refusal := regexp.MustCompile(`^\{"code":"[a-z_]+","message":"[^"]+","advice":\["[^"]+"(,"[^"]+")*\],"auditId":"[0-9A-Z]{26}"[,}]`)
	want := func(what string, text string, status int, form *regexp.Regexp, header string) {
		t.Helper()
		got, head, body := wire(t, p, r, text)
		shown, _, _ := strings.Cut(body, `"token"`)
		switch {
		case got != status:
			t.Errorf("%s: status %d, want %d: %s\n%s", what, got, status, head, shown)
		case !form.MatchString(body):
			t.Errorf("%s: the body does not match %s:\n%s", what, form, shown)
		case !strings.Contains(head, header):
			t.Errorf("%s: no %q in %s", what, header, head)
		}
	}
	want("kubeconfig, signed out", get("/kubeconfig"), 404, refusal, "application/json")
	want("login, signed out", get("/login"), 404, refusal, "application/json")
	want("logout, signed out", post("/logout"), 404, refusal, "application/json")
	want("login", post("/login"), 202, three, "application/json")
	ready := func() {
		t.Helper()
		eventually(t, 20*time.Second, "the sign-in is ready", func() bool { status, _, _ := wire(t, p, r, get("/kubeconfig")); return status == 200 })
	}
	ready()
	want("kubeconfig", get("/kubeconfig"), 200, regexp.MustCompile(
		`^\{"kind":"Config","apiVersion":"v1","clusters":\{"east":\{"server":"https://[^"]+","certificate-authority-data":"[A-Za-z0-9+/=]+"\}\},`+
			`"users":\{"tka-east":\{"token":"[^"]+"\}\},"contexts":\{"tka-east":\{"cluster":"east","user":"tka-east"\}\},"current-context":"tka-east"\}$`), "Tailplane-Expires-At")
	want("login again", post("/login"), 202, three, "Retry-After")
	ready() // an extended sign-in is pending until the operator has processed it
	want("read", get("/login"), 200, three, "application/json")
	want("cluster-info", get("/cluster-info"), 200, regexp.MustCompile(
		`^\{"server_url":"https://[^"]+","insecure_skip_tls_verify":false,"ca_data":"[A-Za-z0-9+/=]+","labels":\{"env":"demo"\},`), "application/json")
	want("any content type, no body", "POST "+signin.Base+"/login HTTP/1.1\r\nHost: HOST\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n", 202, three, "")
	want("no length at all", "POST "+signin.Base+"/login HTTP/1.1\r\nHost: HOST\r\n\r\n", 202, three, "")
	want("logout", post("/logout"), 200, three, "application/json")

	// SGN-05: the list form, as kubectl requires it.
	if _, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{}); err != nil {
		t.Fatal(err)
	}
	a := ask(t, p, "GET", r.Server()+signin.Base+"/kubeconfig?wait=20s", "", "Accept: application/yaml")
	config, err := clientcmd.Load(a.body)
	switch {
	case err != nil:
		t.Errorf("list form: %v", err)
	case a.status != 200:
		t.Errorf("list form: a.status = %v, want 200", a.status)
	case a.header.Get("Content-Type") != "application/yaml":
		t.Errorf(`list form: a.header.Get("Content-Type") != "application/yaml"; %d, %v, %v`, a.status, a.header, err)
	case config.CurrentContext != "tka-east":
		t.Errorf("list form: config.CurrentContext = %q, want %q", config.CurrentContext, "tka-east")
	case config.AuthInfos["tka-east"].Token == "":
		t.Errorf(`list form: config.AuthInfos["tka-east"].Token is empty; %d, %v, %v`, a.status, a.header, err)
	}
	if _, err := signin.Logout.Call(t.Context(), p.Client(), signin.LogoutRequest{}); err != nil {
		t.Error(err)
	}
}
