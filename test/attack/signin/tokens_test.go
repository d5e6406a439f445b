package signin

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/oidctest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A tokenEnv has two replicas that accept the tokens of one issuer, and runners whose jobs need one.
type tokenEnv struct {
	*attacktest.Env
	issuer   *oidctest.Issuer
	replicas [2]*attacktest.Server
	mu       sync.Mutex
	sent     []string // tokens of the current test, for the search in all output
}

const jobClaims = `"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/*"`

// tokens is the environment of all tests about tokens.
var tokens = testenv.Shared(func(ctx context.Context) (*tokenEnv, error) {
	issuer, err := oidctest.Start()
	if err != nil {
		return nil, err
	}
	s, err := attacktest.Run(ctx, testenv.Options{Policy: attacktest.Policy(), ClusterName: "east", Settings: map[string]string{"api.limits": testenv.NoLimits,
		"signin.keepExpired": "3s", "signin.oidc": fmt.Sprintf("{issuers: [{url: %q, keysURL: %q}]}", issuer.URL, issuer.KeysURL())}})
	if err != nil {
		issuer.Close()
		return nil, err
	}
	return &tokenEnv{Env: s, issuer: issuer}, s.StartOperator(ctx)
}, func(e *tokenEnv) error {
	e.issuer.Close()
	return e.Close()
})

// startTokens returns the environment with a second replica. A rule of tag:ci requires jobClaims. At the end of the test, no token that it
// sent may be anywhere.
func startTokens(t *testing.T) *tokenEnv {
	t.Helper()
	e, err := tokens()
	if err != nil {
		t.Fatal(err)
	}
	e.sent = nil
	e.SetPolicy(t, attacktest.Grant("tag:ci", fmt.Sprintf(`{"role": "edit", "period": "1h", "allowTagged": true, "oidc": {"issuer": %q, "claims": {%s}}}`, e.issuer.URL, jobClaims)))
	e.replicas[0] = &attacktest.Server{Process: e.Access, SystemEnv: e.Env, Dir: e.Dir, Name: attacktest.ServingNames(t, e.Access)[0], Record: e.AuditFile()}
	e.replicas[1] = e.StartServer(t, "tka-second", attacktest.ServerOptions{Replace: []string{"hostname: tka\n", "hostname: tka-second\n"}})
	t.Cleanup(func() { e.noTokenAnywhere(t) })
	return e
}

// runner returns a runner that reaches both replicas.
func (e *tokenEnv) runner(t *testing.T, host string) *testenv.Person {
	t.Helper()
	p := e.Person(t, host, "", "tag:ci")
	e.WaitGranted(t, p)
	for _, x := range e.replicas {
		e.WaitPeer(t, p, strings.SplitN(x.Name, ".", 2)[0])
	}
	return p
}

// claims returns the claims of a job that fits the rule, with changes; nil removes one.
func (e *tokenEnv) claims(changes map[string]any) map[string]any {
	all := map[string]any{"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/main"}
	maps.Copy(all, changes)
	return e.issuer.Claims("repo:acme/shop:deploy", "east", all)
}

var tokenHeader = map[string]any{"alg": "ES256", "kid": "1", "typ": "JWT"}

func (e *tokenEnv) token(t *testing.T, changes map[string]any) string {
	t.Helper()
	return e.issuer.Sign(t, tokenHeader, e.claims(changes))
}

// ask sends a request with a token to a replica.
func (e *tokenEnv) ask(t *testing.T, replica int, p *testenv.Person, method, path, body, token string) attacktest.Answer {
	t.Helper()
	e.mu.Lock()
	e.sent = append(e.sent, token)
	e.mu.Unlock()
	return e.replicas[replica].Ask(t, p, method, attacktest.API+path, body, signin.TokenHeader, token)
}

// refused checks that a replica refuses the request with the code. The refusal has one audit entry and changes nothing in the cluster.
func (e *tokenEnv) refused(t *testing.T, what string, code problem.Code, replica int, p *testenv.Person, method, path, body, token string) attacktest.Answer {
	t.Helper()
	m := e.replicas[replica].Mark(t)
	a := e.ask(t, replica, p, method, path, body, token)
	m.Refusal(t, what, code, a)
	if wrote := m.Writes(t, attacktest.AccessAccount); len(wrote) > 0 {
		t.Errorf("%s: writes in the cluster: %v", what, wrote)
	}
	return a
}

// signIn signs a job in and returns its sign-in. The job is signed out at the end of the test.
func (e *tokenEnv) signIn(t *testing.T, p *testenv.Person, token string) v1alpha1.TkaSignin {
	t.Helper()
	if a := e.ask(t, 0, p, "POST", "/login", "{}", token); a.Status != http.StatusAccepted {
		t.Fatalf("control: login: %v", a)
	}
	t.Cleanup(func() {
		c := httpapi.Client{HTTP: e.HTTPClient(p), Base: "https://" + e.replicas[0].Name}
		request := signin.LogoutRequest{RequestToken: signin.RequestToken{Token: signin.NewIDToken(token)}, Wait: httpapi.Duration(20 * time.Second)}
		if _, err := signin.Logout.Call(context.WithoutCancel(t.Context()), c, request); err != nil {
			t.Errorf("logout: %v", err)
		}
	})
	attacktest.Eventually(t, attacktest.Long, "a kubeconfig for the job", func() bool {
		return e.ask(t, 0, p, "GET", "/kubeconfig?wait=20s", "", token).Status == http.StatusOK
	})
	return e.only(t)
}

// only returns the only sign-in of the runners.
func (e *tokenEnv) only(t *testing.T) v1alpha1.TkaSignin {
	t.Helper()
	all := e.jobs(t)
	if len(all) != 1 {
		t.Fatalf("%d sign-ins of runners, want 1", len(all))
	}
	return all[0]
}

// jobs returns the sign-ins of all runners.
func (e *tokenEnv) jobs(t *testing.T) []v1alpha1.TkaSignin {
	t.Helper()
	return slices.DeleteFunc(e.SignIns(t, ""), func(o v1alpha1.TkaSignin) bool { return !strings.HasPrefix(o.Spec.User.Login, "node:") })
}

// noTokenAnywhere searches for the tokens that the test sent, their claims and their signatures: in logs, audit logs, metrics, objects and Events.
func (e *tokenEnv) noTokenAnywhere(t *testing.T) {
	t.Helper()
	c := &attacktest.Canary{T: t, Secrets: map[string]string{}, Out: map[string]string{}, Expect: map[string]string{}}
	for i, token := range e.sent {
		parts := strings.Split(token, ".")
		if len(parts) != 3 || len(token) > 8<<10 {
			continue // searched for below, by its form
		}
		c.Secret(fmt.Sprint("token ", i), token)
		c.Secret(fmt.Sprint("the claims of token ", i), parts[1])
		if parts[2] != "" {
			c.Secret(fmt.Sprint("the signature of token ", i), parts[2])
		}
	}
	for _, x := range e.replicas {
		record, err := os.ReadFile(x.Record)
		if err != nil {
			t.Fatal(err)
		}
		c.Put("log of "+x.Name, x.Output(), "access is serving")
		c.Put("audit log of "+x.Name, string(record), `"ts"`)
		c.Put("metrics of "+x.Name, fmt.Sprint(e.Samples(t, x.Process)), "tailplane_")
	}
	for _, list := range []client.ObjectList{&v1alpha1.TkaSigninList{}, &corev1.ConfigMapList{}, &eventsv1.EventList{}} {
		if err := e.KubeClient.List(context.WithoutCancel(t.Context()), list); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		c.Put(fmt.Sprintf("%T", list), string(b), "")
	}
	for where, text := range c.Out {
		if want := c.Expect[where]; !strings.Contains(text, want) {
			t.Errorf("the %s has no %q", where, want)
		}
		for _, found := range c.Scan(where, text) {
			t.Error(found)
		}
	}
}

// A trap is a server of the attacker that counts the connections to it.
func trap(t *testing.T) (address string, connections *atomic.Int32) {
	t.Helper()
	connections = new(atomic.Int32)
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL, connections
}

// forgeries returns tokens that the issuer did not issue for this server and this time, by what is wrong with them.
func (e *tokenEnv) forgeries(t *testing.T, attacker string) map[string]string {
	t.Helper()
	now, foreign := time.Now().Unix(), oidctest.New(t)
	head := func(changes map[string]any) map[string]any {
		all := maps.Clone(tokenHeader)
		maps.Copy(all, changes)
		maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
		return all
	}
	with := func(name string, value any) string { return e.token(t, map[string]any{name: value}) }
	signed := func(header map[string]any) string { return e.issuer.Sign(t, header, e.claims(nil)) }
	hmacOf := func(key []byte) string {
		text := oidctest.Unsigned(t, head(map[string]any{"alg": "HS256"}), e.claims(nil))
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(foreign.Keys, &set); err != nil {
		t.Fatal(err)
	}
	good := strings.Split(e.token(t, nil), ".")
	other := strings.Split(e.token(t, map[string]any{"actor": "mallory"}), ".")
	raw := func(text string) string {
		return e.issuer.Sign(t, tokenHeader, json.RawMessage(strings.Replace(text, "{", fmt.Sprintf(`{"iss":%q,"sub":"x","aud":"east","exp":%d,"iat":%d,"jti":"raw",`, e.issuer.URL, now+300, now), 1)))
	}
	return map[string]string{
		"of a foreign issuer":               foreign.Token(t, "repo:acme/shop:deploy", "east", map[string]any{"repository": "acme/shop"}),
		"of the attacker's issuer":          with("iss", attacker),
		"an issuer with a slash more":       with("iss", e.issuer.URL+"/"),
		"an issuer in other letters":        with("iss", strings.Replace(e.issuer.URL, "http", "HTTP", 1)),
		"a list of issuers":                 with("iss", []string{e.issuer.URL, attacker}),
		"no issuer":                         with("iss", nil),
		"another key under the same ID":     foreign.Sign(t, tokenHeader, e.claims(nil)),
		"keys of the attacker in the token": foreign.Sign(t, head(map[string]any{"jku": attacker, "x5u": attacker, "jwk": set.Keys[0]}), e.claims(nil)),
		"an ID of a key that is a path":     signed(head(map[string]any{"kid": "../../keys"})),
		"no ID of a key":                    signed(head(map[string]any{"kid": nil})),
		"alg none":                          oidctest.Unsigned(t, head(map[string]any{"alg": "none"}), e.claims(nil)) + ".",
		"alg None":                          oidctest.Unsigned(t, head(map[string]any{"alg": "None"}), e.claims(nil)) + ".",
		"alg none with a signature":         signed(head(map[string]any{"alg": "none"})),
		"HS256 with the public key set":     hmacOf(e.issuer.Keys),
		"HS256 with an empty key":           hmacOf(nil),
		"RS256 with a key for ES256":        signed(head(map[string]any{"alg": "RS256"})),
		"an unknown critical header":        signed(head(map[string]any{"crit": []string{"exp"}, "exp": now})),
		"no signature":                      good[0] + "." + good[1] + ".",
		"the signature of another token":    good[0] + "." + other[1] + "." + good[2],
		"two tokens in one":                 strings.Join(good, ".") + "." + strings.Join(good, "."),
		"an encrypted token":                strings.Join(good, ".") + ".." + good[2],
		"an access token":                   signed(head(map[string]any{"typ": "at+jwt"})),
		"another audience":                  with("aud", "west"),
		"an audience that begins so":        with("aud", "east-2"),
		"an audience in other letters":      with("aud", "East"),
		"two audiences":                     with("aud", []string{"east", "west"}),
		"no audience":                       with("aud", nil),
		"expired":                           with("exp", now-3600),
		"expired a minute ago":              with("exp", now-60),
		"no end":                            with("exp", nil),
		"an end in a year":                  with("exp", now+365*24*3600),
		"an end that is text":               with("exp", "tomorrow"),
		"not valid yet":                     with("nbf", now+120),
		"issued tomorrow":                   with("iat", now+24*3600),
		"no ID":                             with("jti", nil),
		"no subject":                        with("sub", nil),
		"a claim twice":                     raw(`{"repository":"acme/evil","repository":"acme/shop","environment":"prod","ref":"refs/heads/main"}`),
		"an issuer twice":                   raw(`{"iss":"https://evil.example","repository":"acme/shop","environment":"prod","ref":"refs/heads/main"}`),
		"no token":                          "hunter2",
	}
}

// SI-17. A job presents a token that the configured issuer did not issue for this server and this time. Each operation refuses it. No
// refusal writes to the cluster, and the server connects to no address of a token. A storm of unknown key IDs does not reach the issuer.
//
// Guard: identity.(*TokenVerifier).Verify; identity.(*keys).find; signin.(*Service).withToken.
func TestSI17_ForgedTokens(t *testing.T) {
	e := startTokens(t)
	p := e.runner(t, "runner-17")
	before := e.signIn(t, p, e.token(t, nil)) // control
	attacker, connections := trap(t)
	for what, token := range e.forgeries(t, attacker) {
		for _, op := range [][3]string{{"POST", "/login", "{}"}, {"GET", "/kubeconfig", ""}, {"POST", "/logout", "{}"}, {"GET", "/login", ""}} {
			e.refused(t, what+", "+op[0]+" "+op[1], problem.TokenRefused, 0, p, op[0], op[1], op[2], token)
		}
	}
	e.refused(t, "no token", problem.TokenRequired, 0, p, "POST", "/login", "{}", "")
	if n := connections.Load(); n > 0 {
		t.Errorf("the server connected %d times to the attacker's issuer", n)
	}
	if diff := cmp.Diff(before.Spec, e.only(t).Spec); diff != "" {
		t.Errorf("the sign-in of the job (-before +after):\n%s", diff)
	}

	t.Run("huge", func(t *testing.T) {
		memory := attacktest.ResidentMemory(t, e.replicas[0].PID())
		sized := func(size int) string { return e.token(t, map[string]any{"actor": strings.Repeat("x", size)}) }
		e.refused(t, "12 KB", problem.BadRequest, 0, p, "POST", "/login", "{}", sized(9<<10))
		for _, size := range []int{30 << 10, 3 << 20} { // the limit of all headers
			if a := e.ask(t, 0, p, "POST", "/login", "{}", sized(size)); a.Status != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("a claim of %d bytes: %.200v, want %d", size, a, http.StatusRequestHeaderFieldsTooLarge)
			}
		}
		if after := attacktest.ResidentMemory(t, e.replicas[0].PID()); after > memory+100<<20 {
			t.Errorf("the server grew from %d to %d MB", memory>>20, after>>20)
		}
	})

	t.Run("unknown keys", func(t *testing.T) {
		began, asked := time.Now(), e.issuer.Asked()
		var wg sync.WaitGroup
		for worker := range 10 {
			wg.Go(func() {
				for n := range 100 {
					header := map[string]any{"alg": "ES256", "kid": fmt.Sprintf("k%d-%d", worker, n), "typ": "JWT"}
					if a := e.ask(t, 0, p, "GET", "/login", "", e.issuer.Sign(t, header, e.claims(nil))); a.Code() != problem.TokenRefused {
						t.Errorf("an unknown key: %v", a)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		if more, most := e.issuer.Asked()-asked, 1+int(took/time.Minute); more > most {
			t.Errorf("1,000 unknown key IDs in %v: %d requests to the issuer, want at most %d", took, more, most)
		}
		if a := e.ask(t, 0, p, "GET", "/login", "", e.token(t, nil)); a.Status != http.StatusOK {
			t.Errorf("a good token after the storm: %v", a)
		}
	})
}

// SI-18. A job of another repository, branch or environment presents a valid token whose claims are near those of the rule. The texts
// must be equal, byte for byte.
//
// Guard: access.TokenRule.mismatch; access.decodeClaims.
func TestSI18_ClaimsThatNearlyFit(t *testing.T) {
	e := startTokens(t)
	p := e.runner(t, "runner-18")
	for what, changes := range map[string]map[string]any{
		"a suffix":                {"repository": "acme/shop-evil"},
		"a prefix":                {"repository": "evil-acme/shop"},
		"a part":                  {"repository": "acme/sho"},
		"other letters":           {"repository": "Acme/Shop"},
		"a space":                 {"repository": "acme/shop "},
		"a line break":            {"repository": "acme/shop\n"},
		"a NUL":                   {"repository": "acme/shop\x00"},
		"letters of other script": {"repository": "\u0430cme/shop"},
		"an escaped path":         {"repository": "acme%2Fshop"},
		"a pattern":               {"repository": "*"},
		"a list":                  {"repository": []string{"acme/shop"}},
		"a list with another":     {"repository": []string{"acme/evil", "acme/shop"}},
		"an object":               {"repository": map[string]string{"name": "acme/shop"}},
		"a truth":                 {"repository": true},
		"null":                    {"repository": json.RawMessage("null")},
		"empty":                   {"repository": ""},
		"none":                    {"repository": nil},
		"a name in other letters": {"repository": nil, "Repository": "acme/shop"},
		"another environment":     {"environment": "production"},
		"a pull request":          {"ref": "refs/pull/7/merge"},
		"a tag named as a branch": {"ref": "refs/tags/refs/heads/main"},
		"a branch within a path":  {"ref": "x/refs/heads/main"},
		"heads in other letters":  {"ref": "refs/Heads/main"},
		"a list of branches":      {"ref": []string{"refs/heads/main"}},
		"a branch without end":    {"ref": "refs/heads/" + strings.Repeat("x", 1100)},
	} {
		a := e.refused(t, what, problem.TokenRefused, 0, p, "POST", "/login", "{}", e.token(t, changes))
		if !strings.Contains(a.Problem.Message, "claim") || strings.Contains(a.Body, "evil") {
			t.Errorf("%s: %s; want the claim of the rule, and no text of the token", what, a.Problem.Message)
		}
	}
	if left := e.jobs(t); len(left) > 0 {
		t.Errorf("refused logins left %d sign-ins", len(left))
	}
	control := e.signIn(t, p, e.token(t, map[string]any{"ref": "refs/heads/other"}))
	want := map[string]v1alpha1.SigninClaim{"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/other"}
	if diff := cmp.Diff(want, control.Spec.OIDC.Claims); diff != "" {
		t.Errorf("stored claims (-want +got):\n%s", diff)
	}
	// A job whose claims do not fit, with the subject of this sign-in, gets nothing from it.
	evil := e.token(t, map[string]any{"environment": "test"})
	e.refused(t, "a kubeconfig for the same subject", problem.TokenRefused, 0, p, "GET", "/kubeconfig", "", evil)
}

// SI-19. A token that leaked from a job is presented by another device with the same grant: after the job, at the same time, and at another
// replica. Only one device can sign in with it. A sign-in of one device is never reached from another one.
//
// Guard: controller.(*UsedTokens).Use; signin.(*Service).useToken; signin.Owner.Name.
func TestSI19_TokenOfAnotherDevice(t *testing.T) {
	e := startTokens(t)
	job, thief := e.runner(t, "runner-19"), e.runner(t, "thief-19")
	claims := e.claims(nil)
	token := e.issuer.Sign(t, tokenHeader, claims)
	before := e.signIn(t, job, token)
	if before.Spec.Device.Name != "runner-19" && !strings.HasPrefix(before.Spec.Device.Name, "runner-19.") {
		t.Fatalf("the sign-in is one of the device %q", before.Spec.Device.Name)
	}
	for i := range e.replicas {
		for what, stolen := range map[string]string{"the token": token, "the token, signed again": e.issuer.Sign(t, tokenHeader, claims)} {
			what = fmt.Sprintf("%s at replica %d", what, i)
			e.refused(t, what, problem.TokenRefused, i, thief, "POST", "/login", "{}", stolen)
			e.refused(t, what, problem.NotSignedIn, i, thief, "GET", "/kubeconfig", "", stolen)
			e.refused(t, what, problem.NotSignedIn, i, thief, "POST", "/logout", "{}", stolen)
		}
		if a := e.ask(t, i, job, "GET", "/login", "", token); a.Status != http.StatusOK {
			t.Errorf("control: the job at replica %d: %v", i, a)
		}
	}
	if a := e.ask(t, 1, job, "POST", "/login", "{}", token); a.Status != http.StatusAccepted {
		t.Errorf("control: the same device extends with the same token at the other replica: %v", a)
	}

	t.Run("at once", func(t *testing.T) {
		for round := range 5 {
			token := e.issuer.Token(t, fmt.Sprint("round-", round), "east", map[string]any{"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/main"})
			var answers [2][2]attacktest.Answer
			var wg sync.WaitGroup
			for d, device := range []*testenv.Person{job, thief} {
				for i := range e.replicas {
					wg.Go(func() { answers[d][i] = e.ask(t, i, device, "POST", "/login", "{}", token) })
				}
			}
			wg.Wait()
			var won []string
			for d, name := range []string{"job", "thief"} {
				for i, a := range answers[d] {
					switch {
					case a.Status == http.StatusAccepted:
						won = append(won, name)
					case a.Code() != problem.TokenRefused:
						t.Errorf("round %d, %s at replica %d: %v", round, name, i, a)
					}
				}
			}
			if won = slices.Compact(won); len(won) != 1 {
				t.Errorf("round %d: %v signed in with one token", round, won)
			}
			for d, device := range []*testenv.Person{job, thief} {
				if answers[d][0].Status == http.StatusAccepted || answers[d][1].Status == http.StatusAccepted {
					e.ask(t, 0, device, "POST", "/logout?wait=20s", "{}", token)
				}
			}
		}
	})
	e.Settles(t, "after the last round")
	if left := e.only(t); left.UID != before.UID {
		t.Errorf("the job's sign-in %s was replaced by %s", before.UID, left.UID)
	}
}

// SI-20. A valid token comes from a device to which the tailnet grants nothing, or only a rule without a token. The token gives nothing
// beyond the grant of the device, and does not make the server ask the issuer.
//
// Guard: access.Decide, which decides before a token is read; signin.(*Service).withToken.
func TestSI20_TokenWithoutGrant(t *testing.T) {
	e := startTokens(t)
	bob := e.Bob(t)
	robot := e.Person(t, "robot-20", "", "tag:robot")
	for _, p := range []*testenv.Person{bob, robot} {
		for _, x := range e.replicas {
			e.WaitPeer(t, p, strings.SplitN(x.Name, ".", 2)[0])
		}
	}
	token, asked := e.token(t, nil), e.issuer.Asked()
	for i := range e.replicas {
		for _, op := range [][3]string{{"POST", "/login", "{}"}, {"GET", "/login", ""}, {"GET", "/kubeconfig", ""}, {"POST", "/logout", "{}"}, {"GET", "/sessions", ""}} {
			what := fmt.Sprintf("%s %s at replica %d", op[0], op[1], i)
			e.refused(t, "a person, "+what, problem.NoCapability, i, bob, op[0], op[1], op[2], token)
			e.refused(t, "a robot, "+what, problem.TaggedNode, i, robot, op[0], op[1], op[2], token)
		}
	}
	if n := e.issuer.Asked() - asked; n > 0 {
		t.Errorf("%d requests to the issuer", n)
	}
	// A person with a rule of her own gets that rule and not the job's.
	alice := e.Alice(t)
	for _, x := range e.replicas {
		e.WaitPeer(t, alice, strings.SplitN(x.Name, ".", 2)[0])
	}
	e.refused(t, "the role of the job", problem.RoleNotGranted, 0, alice, "POST", "/login", `{"role": "edit"}`, token)
	// Control: the device of the job has the grant.
	e.signIn(t, e.runner(t, "runner-20"), token)
}
