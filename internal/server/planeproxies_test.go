package server

import (
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/plane"
)

// The plane asks the access proxies that the access server publishes, with the authority that it names, and those of the settings.
func TestKnownProxies(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"cluster":"east","streams":[],"leftOff":0,"idle":7}`)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail
	srv.StartTLS()
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	k := &knownProxies{dialer: new(proxyDialer), configured: []string{"https://west-api.example.ts.net", srv.URL}, log: slog.New(slog.DiscardHandler)}
	names := func() (all []string) {
		for _, p := range k.list() {
			all = append(all, p.Name)
		}
		return all
	}
	ask := func() (connections.List, error) {
		i := slices.IndexFunc(k.list(), func(p plane.AccessProxy) bool { return p.Name == "127.0.0.1" })
		return k.list()[i].List(t.Context(), connections.ListRequest{})
	}
	k.find(nil)
	if diff := cmp.Diff([]string{"west-api.example.ts.net", "127.0.0.1"}, names()); diff != "" {
		t.Errorf("of the settings (-want +got):\n%s", diff)
	}
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a private certificate without its authority: %v", err)
	}
	k.find([]gossip.Proxy{{URL: srv.URL, CAData: ca}, {URL: "http://east-api.example.ts.net"}})
	if diff := cmp.Diff([]string{"127.0.0.1", "west-api.example.ts.net"}, names()); diff != "" {
		t.Errorf("found and of the settings (-want +got):\n%s", diff)
	}
	if got, err := ask(); err != nil || got.Idle != 7 {
		t.Errorf("with the authority that the access server names: %+v, %v", got, err)
	}
	k.find([]gossip.Proxy{{URL: srv.URL, CAData: []byte("none")}})
	if _, err := ask(); err == nil {
		t.Error("an authority without a certificate trusts every proxy")
	}
}
