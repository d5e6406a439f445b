package client_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/signin"
)

// Of several access proxies, tka uses the first that answers. A refusal is an answer. Without an answer, it uses the first.
func TestProxyThatAnswers(t *testing.T) {
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer up.Close()
	gone := httptest.NewTLSServer(http.NotFoundHandler())
	gone.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw})
	for _, tt := range []struct {
		why     string
		proxies []string
		want    string
	}{
		{"one proxy, which is gone", []string{gone.URL}, gone.URL},
		{"the first is gone", []string{gone.URL, up.URL}, up.URL},
		{"the second is gone", []string{up.URL, gone.URL}, up.URL},
		{"both are gone", []string{gone.URL, gone.URL}, gone.URL},
	} {
		c := client.New("https://tka.example.ts.net", client.Options{})
		c.Info = signin.ClusterInfo{Name: "east"}
		for _, url := range tt.proxies {
			c.Info.Proxies = append(c.Info.Proxies, signin.ProxyServer{URL: url, CAData: ca})
		}
		g, err := c.ProxyKubeconfig("")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want+"/", g.Server); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
}

// PRX-02: the kubeconfig for the access proxy has the address that the server proved and the name of the session. tka refuses an address that
// is more than an https host, because kubectl would send its requests there.
func TestPRX02_ProxyKubeconfig(t *testing.T) {
	for _, tt := range []struct {
		proxy   signin.ProxyServer
		session signin.Session
		server  string
		says    string // part of the error; "": there is none
	}{
		{signin.ProxyServer{URL: "https://east-api.example.ts.net"}, "", "https://east-api.example.ts.net/", ""},
		{signin.ProxyServer{URL: "https://east-api.example.ts.net:8443/"}, "edit", "https://east-api.example.ts.net:8443/s/edit", ""},
		{signin.ProxyServer{URL: "http://east-api.example.ts.net"}, "", "", "is not https"},
		{signin.ProxyServer{URL: "https://east-api.example.ts.net/k8s"}, "", "", "has a path"},
		{signin.ProxyServer{URL: "https://alice:secret@east-api.example.ts.net"}, "", "", "more than a host and a path"},
		{signin.ProxyServer{URL: "https://east-api.example.ts.net?x=y"}, "", "", "more than a host and a path"},
		{signin.ProxyServer{URL: "https://east-api\x1b[2J.example.ts.net"}, "", "", "not valid"},
		{signin.ProxyServer{URL: "https://169.254.169.254"}, "", "", "169.254.169.254"},
		{signin.ProxyServer{}, "", "", "is not https"},
		{signin.ProxyServer{URL: "https://east-api.example.ts.net", CAData: []byte("junk")}, "", "", "not PEM"},
	} {
		c := client.New("https://tka.example.ts.net", client.Options{})
		c.Info = signin.ClusterInfo{Name: "east", Proxies: []signin.ProxyServer{tt.proxy}}
		g, err := c.ProxyKubeconfig(tt.session)
		switch {
		case tt.says == "" && err != nil:
			t.Errorf("%s: %v", tt.proxy.URL, err)
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want %q", tt.proxy.URL, err, tt.says)
		}
		if tt.says != "" {
			continue
		}
		if g.Server != tt.server {
			t.Errorf("%s: the server is %s, want %s", tt.proxy.URL, g.Server, tt.server)
		}
		if got, want := g.Token.Reveal(), signin.SessionToken(tt.session); got != want {
			t.Errorf("%s: the token is %s, want %s", tt.proxy.URL, got, want)
		}
	}
}
