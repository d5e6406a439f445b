package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// here starts a plane that listens on this machine, in an identity mode in which a proxy authenticates the caller.
func here(t *testing.T, r *testenv.Env, name, identity string, env ...string) *testenv.Process {
	t.Helper()
	return hereAs(t, r, name, "tailplane-plane", "identity: {"+identity+"}", env...)
}

// hereAs is here with another account and additional settings of the plane.
func hereAs(t *testing.T, r *testenv.Env, name, account, settings string, env ...string) *testenv.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	own, err := r.Settings("plane")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, account, dir)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(filepath.Join(r.Dir, "plane")+"/", dir+"/", "\nplane:\n", "\nplane:\n  "+settings+"\n").
		Replace(without([]byte(without(own, "exposures")), "identity"))
	if strings.Contains(settings, "mode: ") && !strings.Contains(settings, "mode: whois") { // no node of its own, and no user IDs
		text = regexp.MustCompile(`(?m)^  controlURL: .*\n`).ReplaceAllString(text, "")
		text = regexp.MustCompile(`userID: "\d+", `).ReplaceAllString(text, "")
	}
	p, err := r.Try(name, "plane", env, text, "--kubeconfig", kubeconfig, "--leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.Output())
		}
	})
	return p
}

// raw sends lines unchanged, which Go's client would not do, and returns the answer.
func raw(t *testing.T, network, address, path string, lines ...string) answer {
	t.Helper()
	c, err := net.DialTimeout(network, address, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(deadline))
	host := "Host: dashboard.example.ts.net"
	for _, l := range lines {
		if strings.HasPrefix(l, "Host: ") {
			host = ""
		}
	}
	if host != "" {
		lines = append([]string{host}, lines...)
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\n%s\r\nConnection: close\r\n\r\n", path, strings.Join(lines, "\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

// me returns the identity that the plane saw for a request, and its source.
func (a answer) me() string {
	var me struct{ Login, Via string }
	_ = json.Unmarshal(a.Data, &me)
	if me.Login == "" {
		return fmt.Sprintf("%d %s", a.status, a.code())
	}
	return me.Login + " via " + me.Via
}

// PLANE-05, ID-07, ID-08: every identity mode, with the program itself. Only the configured peer is trusted. Its
// headers have no effect in any other mode, and an ambiguous header is refused. PLANE-02: the only other listener is
// that of the probes.
func TestPLANE05_Modes(t *testing.T) {
	r := start(t)
	const secret = "0123456789abcdef0123456789abcdef"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "modes") // the path of a socket is limited in length
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port := func() string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		return ln.Addr().String()
	}
	const names = ", names: [dashboard.example.ts.net]"
	const (
		serve    = "Tailscale-User-Login: pat@platform.dev"
		rules    = `Tailscale-App-Capabilities: {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"]}]}`
		proxy    = "X-Tailscale-User: pat@platform.dev"
		tailnet  = "X-Tailscale-Tailnet: example.ts.net"
		proof    = "X-Tailplane-Proxy-Secret: " + secret
		nobody   = "401 no_identity"
		twoWays  = "400 bad_request"
		byServe  = "pat@platform.dev via serve"
		byProxy  = "pat@platform.dev via proxy"
		noTokens = "401 invalid_token"
	)
	good := "Authorization: Bearer " + token(t, "pat@platform.dev", nil)
	stranger := "Authorization: Bearer " + token(t, "pat@platform.dev", map[string]any{"aud": "grafana"})
	proxyAt, oidcAt, devAt := port(), port(), port()
	modes := []struct {
		name, identity, network, address string
		asks                             []struct{ why, lines, want string }
	}{
		{"serve", fmt.Sprintf("mode: serve, listen: %q", "unix:"+dir+"/serve"), "unix", dir + "/serve", []struct{ why, lines, want string }{
			{"the headers of tailscaled", serve + "\n" + rules, byServe},
			{"a login without a rule, of an unknown device", serve, "403 not_authorized_user"},
			{"nobody", rules, nobody},
			{"the proxy's headers", proxy + "\n" + tailnet + "\n" + proof, nobody},
			{"a token", good, nobody},
			{"two logins", serve + "\n" + serve + "\n" + rules, twoWays},
			{"with _", serve + "\nTailscale_User_Login: eve@example.com\n" + rules, twoWays},
			{"to be removed", serve + "\n" + rules + "\nConnection: Tailscale-User-Login", twoWays},
			{"from the public internet", serve + "\n" + rules + "\nTailscale-Funnel-Request: ?1", "403 funnel_refused"},
			{"another name", "Host: evil.example\n" + serve + "\n" + rules, "421 wrong_host"},
		}},
		{"proxy", fmt.Sprintf("mode: proxy, listen: %q, tailnet: example.ts.net, trustedProxies: [127.0.0.1/32], secretFile: %s", proxyAt, file), "tcp", proxyAt, []struct{ why, lines, want string }{
			{"the headers of Caddy", proxy + "\n" + tailnet + "\n" + proof, byProxy},
			{"without its secret", proxy + "\n" + tailnet, nobody},
			{"with another secret", proxy + "\n" + tailnet + "\n" + proof + "0", nobody},
			{"of another tailnet: the lists do not count", proxy + "\n" + proof, "403 not_authorized_user"},
			{"serve's headers", serve + "\n" + rules + "\n" + proof, nobody},
			{"a token", good + "\n" + proof, nobody},
			{"two users", proxy + "\n" + proxy + "\n" + tailnet + "\n" + proof, twoWays},
			{"with _", proxy + "\nX_Tailscale_User: eve@example.com\n" + tailnet + "\n" + proof, twoWays},
			{"another name", "Host: evil.example\n" + proxy + "\n" + tailnet + "\n" + proof, "421 wrong_host"},
		}},
		{"oidc", fmt.Sprintf("mode: oidc, listen: %q, oidc: %s", oidcAt, system.issuer.Settings()), "tcp", oidcAt, []struct{ why, lines, want string }{
			{"a token", good, "pat@platform.dev via oidc"},
			{"none", "Accept: */*", nobody},
			{"of another client", stranger, noTokens},
			{"headers of the others", serve + "\n" + rules + "\n" + proxy + "\n" + tailnet + "\n" + proof, nobody},
		}},
		{"dev", fmt.Sprintf("mode: dev, listen: %q, login: pat@platform.dev", devAt), "tcp", devAt, []struct{ why, lines, want string }{
			{"anybody", "Accept: */*", "pat@platform.dev via dev"},
			{"a caller with another name in a header", strings.ReplaceAll(serve+"\n"+rules+"\n"+proxy, "pat@platform.dev", "eve@example.com") + "\n" + tailnet + "\n" + proof, "pat@platform.dev via dev"},
			{"another name", "Host: evil.example", "421 wrong_host"},
			{"another site's page", "Origin: https://evil.example", "403 cross_origin"},
		}},
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	started := make([]*testenv.Process, len(modes))
	for i, m := range modes {
		started[i] = here(t, r, m.name, m.identity+names)
	}
	for i, m := range modes {
		if err := started[i].WaitLog(ctx, `"the plane is serving"`); err != nil {
			t.Fatal(err)
		}
		for _, x := range m.asks {
			if got := raw(t, m.network, m.address, "/api/v1/me", strings.Split(x.lines, "\n")...).me(); got != x.want {
				t.Errorf("%s: %s: %s, want %s", m.name, x.why, got, x.want)
			}
		}
		ports, told, err := testenv.Listening(started[i].PID())
		if err != nil {
			t.Error(err)
		}
		want := 1 // probes
		if m.network == "tcp" {
			want++
		}
		if told && len(ports) != want {
			t.Errorf("%s: it listens on %v", m.name, ports)
		}
	}
	if info, err := os.Stat(dir + "/serve"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}

	// A configuration that would trust any caller does not start.
	for _, x := range []struct{ why, identity, says string }{
		{"serve on any address", `mode: serve, listen: "0.0.0.0:0"` + names, "neither a Unix socket nor a loopback address"},
		{"a loopback port without user ids", `mode: serve, listen: "127.0.0.1:0"` + names, "needs the user ids"},
		{"an address alone", `mode: proxy, listen: "127.0.0.1:0", tailnet: example.ts.net, trustedProxies: [127.0.0.1/32]` + names, "an address alone is not a proof"},
		{"every address is a proxy", `mode: proxy, listen: "127.0.0.1:0", tailnet: example.ts.net, trustedProxies: [0.0.0.0/0], secretFile: ` + file + names, "is too large for a proxy"},
		{"development on all addresses", `mode: dev, listen: "0.0.0.0:0", login: pat@platform.dev` + names, "not a loopback address"},
		{"keys that could be replaced", `mode: oidc, listen: "127.0.0.1:0", oidc: {issuer: "http://idp.example", audience: a, tailnet: b}` + names, "use https"},
	} {
		refused(t, here(t, r, "unsafe", x.identity), x.why, x.says)
	}
	refused(t, here(t, r, "unsafe", `mode: dev, listen: "127.0.0.1:0", login: pat@platform.dev`+names, "KUBERNETES_SERVICE_HOST=10.96.0.1"), "development in a cluster", "KUBERNETES_SERVICE_HOST is set")
}

// refused waits until a program that must not start has exited and has logged the reason.
func refused(t *testing.T, p *testenv.Process, why, says string) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(deadline):
		t.Fatalf("%s: it has not ended", why)
	}
	if out := p.Output(); p.ExitCode() != 2 || !strings.Contains(out, says) {
		t.Errorf("%s: exit %d: %s", why, p.ExitCode(), out)
	}
}
