package forgetest_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

// plainClient is a client of a GitHub that uses no code of the product.
type plainClient struct {
	t     *testing.T
	g     *forgetest.GitHubFake
	shown string // the Authorization header
	etag  string
}

type response struct {
	status int
	header http.Header
	body   string
}

func (g response) json(t *testing.T) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(g.body), &out); err != nil {
		t.Fatalf("%s: %v", g.body, err)
	}
	return out
}

func (v plainClient) ask(method, path, body string) response {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), method, v.g.URL+"/api/v3"+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	if v.shown != "" {
		req.Header.Set("Authorization", v.shown)
	}
	if v.etag != "" {
		req.Header.Set("If-None-Match", v.etag)
	}
	client := &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(b)}
}

func (v plainClient) want(why, method, path, body string, status int) response {
	v.t.Helper()
	a := v.ask(method, path, body)
	if a.status != status {
		v.t.Errorf("%s: %s %s answers %d, want %d: %s", why, method, path, a.status, status, a.body)
	}
	return a
}

func parseKey(t *testing.T, text []byte) *rsa.PrivateKey {
	t.Helper()
	block, _ := pem.Decode(text)
	k, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func jwt(t *testing.T, k *rsa.PrivateKey, alg string, claims map[string]any) string {
	t.Helper()
	head, err1 := json.Marshal(map[string]string{"alg": alg, "typ": "JWT"})
	body, err2 := json.Marshal(claims)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(body)
	var sig []byte
	switch alg {
	case "RS256":
		sum := sha256.Sum256([]byte(text))
		var err error
		if sig, err = rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, sum[:]); err != nil {
			t.Fatal(err)
		}
	case "HS256": // signed with the public key, which is not secret
		m := hmac.New(sha256.New, x509.MarshalPKCS1PublicKey(&k.PublicKey))
		m.Write([]byte(text))
		sig = m.Sum(nil)
	}
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

// The contract of authentication: "Generating a JSON Web Token (JWT) for a GitHub App", "Authenticating as a GitHub
// App installation", "Troubleshooting the REST API".
func TestGitHubIdentityContract(t *testing.T) {
	g := forgetest.NewGitHub(t)
	g.AddAccount("acme", "")
	g.AddAccount("other", "")
	app, pemKey := g.AddApp(t)
	k := parseKey(t, pemKey)
	at := g.Install(app, "acme", forgetest.Enough())
	now := time.Now().Unix()
	claims := func(iat, exp int64, iss any) map[string]any {
		return map[string]any{"iat": now + iat, "exp": now + exp, "iss": iss}
	}
	good := jwt(t, k, "RS256", claims(-60, 540, fmt.Sprint(app)))
	for why, c := range map[string]struct {
		shown  string
		status int
	}{
		"as documented":                  {good, 200},
		"with a number for an issuer":    {jwt(t, k, "RS256", claims(-60, 540, app)), 200},
		"valid for more than 10 minutes": {jwt(t, k, "RS256", claims(-60, 700, app)), 401},
		"from the future":                {jwt(t, k, "RS256", claims(120, 540, app)), 401},
		"at its end":                     {jwt(t, k, "RS256", claims(-600, -5, app)), 401},
		"of another App":                 {jwt(t, k, "RS256", claims(-60, 540, app+100)), 401},
		"without a signature":            {jwt(t, k, "none", claims(-60, 540, app)), 401},
		"signed with what is public":     {jwt(t, k, "HS256", claims(-60, 540, app)), 401},
		"without a time":                 {jwt(t, k, "RS256", map[string]any{"exp": now + 100, "iss": app}), 401},
		"no JWT":                         {"Bearer a.b.c", 401},
		"an invalid token":               {"Bearer ghs_x", 401},
		"nothing":                        {"", 401},
	} {
		plainClient{t: t, g: g, shown: c.shown}.want(why, "GET", "/orgs/acme/installation", "", c.status)
	}
	v := plainClient{t: t, g: g, shown: good}
	v.want("where it is not installed", "GET", "/orgs/other/installation", "", 404)
	v.want("a JWT is not a token", "GET", "/orgs/acme/actions/runners", "", 401)
	tokens := fmt.Sprintf("/app/installations/%d/access_tokens", at)
	a := v.want("a token", "POST", tokens, "", 201).json(t)
	until, err := time.Parse(time.RFC3339, a["expires_at"].(string))
	switch left := time.Until(until); {
	case err != nil:
		t.Errorf("it lives until: %v; %v", err, a["expires_at"])
	case left > time.Hour+time.Minute:
		t.Errorf("it lives until: left = %v, want at most %v; %v", left, time.Hour+time.Minute, a["expires_at"])
	case left < 50*time.Minute:
		t.Errorf("it lives until: left = %v, want at least %v; %v", left, 50*time.Minute, a["expires_at"])
	}
	in := plainClient{t: t, g: g, shown: "Bearer " + a["token"].(string)}
	in.want("its permissions", "GET", "/orgs/acme/actions/runners", "", 200)
	in.want("another organisation is hidden", "GET", "/orgs/other/actions/runners", "", 404)
	in.want("a token is not a JWT", "POST", tokens, "", 401)
	g.ChangeInstallation(at, func(in *forgetest.GitHubInstallation) {
		in.Permissions["organization_self_hosted_runners"] = "read"
	})
	in.want("it may read", "GET", "/orgs/acme/actions/runners", "", 200)
	in.want("but not write", "DELETE", "/orgs/acme/actions/runners/1", "", 403)
	in.want("but not write", "POST", "/orgs/acme/actions/runner-groups", `{"name":"x"}`, 403)
	g.ChangeInstallation(at, func(in *forgetest.GitHubInstallation) { in.Suspended = true })
	in.want("while it is suspended", "GET", "/orgs/acme/actions/runners", "", 401)
	v.want("while it is suspended", "POST", tokens, "", 403)
	g.Uninstall(at)
	v.want("when it is deleted", "POST", tokens, "", 404)
	own := plainClient{t: t, g: g, shown: "Bearer " + g.AddToken("repo")}
	if a := own.want("a token without the scope", "GET", "/orgs/acme/actions/runners", "", 403); a.header.Get("X-OAuth-Scopes") != "repo" {
		t.Errorf("%v", a.header)
	}
}

// The contract of lists, limits and objects: "Using pagination in the REST API", "Best practices for using the REST
// API", "Rate limits for the REST API", and the pages about runners, runner groups and workflow runs.
func TestGitHubRunnersContract(t *testing.T) {
	g := forgetest.NewGitHub(t)
	g.AddAccount("acme", "")
	v := plainClient{t: t, g: g, shown: "Bearer " + g.AddToken("admin:org", "repo")}
	for i := range 70 {
		g.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: fmt.Sprint(i), Busy: i == 0})
	}
	first := v.want("a page of 30", "GET", "/orgs/acme/actions/runners", "", 200)
	switch n := len(first.json(t)["runners"].([]any)); {
	case n != 30:
		t.Errorf("n = %v, want 30", n)
	case first.json(t)["total_count"] != 70.0:
		t.Errorf(`first.json(t)["total_count"] != 70.0; %d, %v`, n, first.header)
	case !strings.Contains(first.header.Get("Link"), `page=2>; rel="next"`):
		t.Errorf("strings.Contains(first.header.Get(\"Link\"), `page=2>; rel=\"next\"`) is false; %d, %v", n, first.header)
	}
	last := v.want("the last page", "GET", "/orgs/acme/actions/runners?page=3", "", 200)
	if n := len(last.json(t)["runners"].([]any)); n != 10 || last.header.Get("Link") != "" {
		t.Errorf("%d on the last page, %v", n, last.header)
	}
	left := last.header.Get("X-RateLimit-Remaining")
	cond := v
	cond.etag = last.header.Get("ETag")
	if a := cond.want("unchanged content", "GET", "/orgs/acme/actions/runners?page=3", "", 304); a.body != "" || a.header.Get("X-RateLimit-Remaining") != left {
		t.Errorf("it costs: %v", a.header)
	}
	ids := g.Runners()
	v.want("a busy runner", "DELETE", fmt.Sprintf("/orgs/acme/actions/runners/%d", ids[0].ID), "", 422)
	v.want("an idle one", "DELETE", fmt.Sprintf("/orgs/acme/actions/runners/%d", ids[1].ID), "", 204)
	v.want("a deleted runner", "DELETE", fmt.Sprintf("/orgs/acme/actions/runners/%d", ids[1].ID), "", 404)
	v.want("changed content", "GET", "/orgs/acme/actions/runners?page=3", "", 200)

	made := v.want("a group", "POST", "/orgs/acme/actions/runner-groups", `{"name":"x"}`, 201).json(t)
	if made["visibility"] != "all" || made["allows_public_repositories"] != false {
		t.Errorf("a group is for all repositories by default: %v", made)
	}
	group := int64(made["id"].(float64))
	path := fmt.Sprintf("/orgs/acme/actions/runner-groups/%d", group)
	v.want("repositories of one for all", "PUT", path+"/repositories", `{"selected_repository_ids":[]}`, 422)
	v.want("a change", "PATCH", path, `{"name":"x","visibility":"selected"}`, 200)
	v.want("repositories", "PUT", path+"/repositories", `{"selected_repository_ids":[]}`, 204)
	inside := g.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "inside", Group: group})
	v.want("a group with a runner", "DELETE", path, "", 204)
	for _, r := range g.Runners() {
		if r.ID == inside && r.Group != g.Groups("acme")[0].ID {
			t.Errorf("its runner is in group %d, not in the default one", r.Group)
		}
	}

	id := g.AddRepository("acme/app", false)
	run := g.AddRun(forgetest.GitHubRun{Repository: "acme/app"})
	cancel := fmt.Sprintf("/repos/acme/app/actions/runs/%d/cancel", run)
	v.want("a run", "POST", cancel, "", 202)
	v.want("a run that has ended", "POST", cancel, "", 409)
	g.RenameRepository(id, "acme/new")
	if a := v.want("a repository of before", "GET", "/repos/acme/app", "", 301); !strings.HasSuffix(a.header.Get("Location"), fmt.Sprintf("/repositories/%d", id)) {
		t.Errorf("%v", a.header)
	}

	g.Slow(time.Minute, true)
	if a := v.want("the secondary limit", "GET", "/orgs/acme/actions/runners", "", 403); a.header.Get("Retry-After") != "60" {
		t.Errorf("%v", a.header)
	}
	g.Slow(0, false)
	g.Limit(1)
	v.want("the last one", "GET", "/orgs/acme/actions/runners", "", 200)
	if a := v.want("the primary limit", "GET", "/orgs/acme/actions/runners", "", 403); a.header.Get("X-RateLimit-Remaining") != "0" || a.header.Get("X-RateLimit-Reset") == "" {
		t.Errorf("%v", a.header)
	}

	// ARC's controller: create or reuse by name.
	one, again, other := g.EnsureScaleSet("acme", "Default", "a"), g.EnsureScaleSet("Acme", "Default", "a"), g.EnsureScaleSet("acme", "x", "a")
	switch {
	case one != again:
		t.Errorf("scale sets: one = %v, want %v", one, again)
	case one == other:
		t.Errorf("scale sets: one = %v, the same as other", one)
	case len(g.ScaleSets()) != 2:
		t.Errorf("scale sets: len(g.ScaleSets()) = %v, want 2", len(g.ScaleSets()))
	case !g.DeleteScaleSet(one):
		t.Errorf("scale sets: g.DeleteScaleSet(one) is false; %d, again = %d, other = %d", one, again, other)
	case g.DeleteScaleSet(one):
		t.Errorf("scale sets: g.DeleteScaleSet(one) is true; %d, again = %d, other = %d", one, again, other)
	}
}

// The contract of files and pull requests: "REST API endpoints for repository contents", "… Git references", "… pull
// requests".
func TestGitHubGitContract(t *testing.T) {
	g := forgetest.NewGitHub(t)
	g.AddAccount("acme", "")
	v := plainClient{t: t, g: g, shown: "Bearer " + g.AddToken("repo")}
	id := g.AddRepository("acme/app", false)
	main := g.Push(id, "main", forgetest.GitHubCommit{Message: "begin"}, map[string]*string{"a.yaml": new("hello\n")})
	a := v.want("a file", "GET", "/repos/acme/app/contents/a.yaml", "", 200).json(t)
	if a["sha"] != "ce013625030ba8dba906f756967f9e9ca394464a" { // output of git hash-object for "hello\n"
		t.Errorf("its blob is %v", a["sha"])
	}
	v.want("no file", "GET", "/repos/acme/app/contents/b.yaml", "", 404)
	ref := fmt.Sprintf(`{"ref":"refs/heads/x","sha":%q}`, main)
	v.want("a branch", "POST", "/repos/acme/app/git/refs", ref, 201)
	v.want("it is there", "POST", "/repos/acme/app/git/refs", ref, 422)
	v.want("from nowhere", "POST", "/repos/acme/app/git/refs", `{"ref":"refs/heads/y","sha":"`+strings.Repeat("a", 40)+`"}`, 422)
	v.want("nothing to merge", "POST", "/repos/acme/app/pulls", `{"title":"t","head":"x","base":"main"}`, 422)
	put := func(sha string) string {
		return fmt.Sprintf(`{"message":"m","branch":"x","content":"Ynll","sha":%q,"author":{"name":"amy","email":"amy@acme.dev"}}`, sha)
	}
	v.want("without the previous SHA", "PUT", "/repos/acme/app/contents/a.yaml", strings.Replace(put(""), `"sha":"",`, "", 1), 422)
	v.want("with another SHA", "PUT", "/repos/acme/app/contents/a.yaml", put(strings.Repeat("a", 40)), 409)
	v.want("with the previous SHA", "PUT", "/repos/acme/app/contents/a.yaml", put(a["sha"].(string)), 200)
	switch c := g.Commit(id, "x"); {
	case c.AuthorEmail != "amy@acme.dev":
		t.Errorf("c.AuthorEmail = %q, want %q", c.AuthorEmail, "amy@acme.dev")
	case c.CommitterName != forgetest.Bot:
		t.Errorf("c.CommitterName = %q, want %q", c.CommitterName, forgetest.Bot)
	case c.Parent != main:
		t.Errorf("c.Parent = %q, want %q", c.Parent, main)
	case c.Files["a.yaml"] != "bye":
		t.Errorf(`c.Files["a.yaml"] = %q, want %q`, c.Files["a.yaml"], "bye")
	}
	v.want("a pull request", "POST", "/repos/acme/app/pulls", `{"title":"t","head":"x","base":"main"}`, 201)
	v.want("it is there", "POST", "/repos/acme/app/pulls", `{"title":"t","head":"x","base":"main"}`, 422)
	v.want("another commit than it has", "PUT", "/repos/acme/app/pulls/1/merge", `{"sha":"`+main+`"}`, 409)
	g.Protect(id, "main", 1)
	v.want("without a review", "PUT", "/repos/acme/app/pulls/1/merge", `{}`, 405)
	g.Review(id, 1, "pat", "APPROVED")
	v.want("with one", "PUT", "/repos/acme/app/pulls/1/merge", fmt.Sprintf(`{"sha":%q}`, g.Commit(id, "x").SHA), 200)
	v.want("again", "PUT", "/repos/acme/app/pulls/1/merge", `{}`, 405)
	if c := g.Commit(id, "main"); c.Files["a.yaml"] != "bye" {
		t.Errorf("%+v", c)
	}
	v.want("a branch goes", "DELETE", "/repos/acme/app/git/refs/heads/x", "", 204)
	v.want("it is deleted", "DELETE", "/repos/acme/app/git/refs/heads/x", "", 422)
	plainClient{t: t, g: g}.want("a stranger", "GET", "/repos/acme/app/contents/a.yaml", "", 401)
}
