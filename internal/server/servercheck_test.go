package server

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// A server does not start with a CA that does not fit the API server. An address that cannot be reached is only a warning.
func TestCheckServer(t *testing.T) {
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail
	srv.StartTLS()
	defer srv.Close()
	right := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	pair, _ := proxytest.Certificate(t, time.Now().Add(time.Hour), "127.0.0.1")
	wrong := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	gone := httptest.NewTLSServer(nil)
	gone.Close()
	for _, tt := range []struct {
		why      string
		cluster  settings.Cluster
		ca       []byte
		err, log string
	}{
		{"the right CA", settings.Cluster{Server: srv.URL}, right, "", ""},
		{"another CA", settings.Cluster{Server: srv.URL}, wrong, "does not verify with cluster.caData", ""},
		{"a public CA, which the system does not have", settings.Cluster{Server: srv.URL, CAData: settings.SystemCA}, nil, "does not verify with the roots of the system", ""},
		{"another name", settings.Cluster{Server: strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)}, right, "does not verify", ""},
		{"not verified by anybody", settings.Cluster{Server: srv.URL, InsecureSkipTLSVerify: true}, wrong, "", ""},
		{"not reachable", settings.Cluster{Server: gone.URL}, right, "", "cannot be reached from here"},
	} {
		var said bytes.Buffer
		err := checkServer(t.Context(), tt.cluster, tt.ca, slog.New(slog.NewTextHandler(&said, nil)))
		if got := fmt.Sprint(err); (err == nil) != (tt.err == "") || !strings.Contains(got, cmp.Or(tt.err, "<nil>")) {
			t.Errorf("%s: %v, want %q", tt.why, err, tt.err)
		}
		if !strings.Contains(said.String(), tt.log) {
			t.Errorf("%s: the log says %q, want %q", tt.why, said.String(), tt.log)
		}
	}
}
