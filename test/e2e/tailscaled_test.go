package e2e

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/tailscaled"
	"github.com/tailplane/tailplane/internal/signin"
)

// What tka reads from the LocalAPI of a machine is what Tailscale's own code answers.
func TestTkaReadsTheLocalAPI(t *testing.T) {
	r := start(t)
	alice := person(t, r, "local-alice", "alice@example.com")
	local, err := alice.Node.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ts") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		out := req.Clone(req.Context())
		out.RequestURI = ""
		out.URL.Scheme, out.URL.Host = "http", "local-tailscaled.sock"
		res, err := local.DoLocalRequest(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
		io.Copy(w, res.Body)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close(); <-ended })

	c := tailscaled.New(func(name string) string { return map[string]string{tailscaled.SocketEnv: socket}[name] })
	got, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	who, err := signin.GetWhoami.Call(t.Context(), alice.Client(), signin.WhoamiRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := tailscaled.Status{State: "Running", NodeID: who.Caller.NodeID, Name: "local-alice." + r.Net.Suffix(), Suffix: r.Net.Suffix(), Userspace: true, HTTPS: true, KeyExpiry: got.KeyExpiry}
	if got != want {
		t.Errorf("status %+v, want %+v", got, want)
	}
	full := "tka." + r.Net.Suffix()
	if name := c.FullName(t.Context(), "tka"); name != full {
		t.Errorf("the full name is %q, want %q", name, full)
	}
	found := false
	for _, n := range r.Net.Nodes() {
		if n.Name != full+"." {
			continue
		}
		for _, p := range n.Addresses {
			found = true
			if name := c.PeerName(t.Context(), p.Addr()); name != full {
				t.Errorf("the node at %v is %q, want %q", p.Addr(), name, full)
			}
		}
	}
	if !found {
		t.Error("the access server has no address")
	}
	if name := c.PeerName(t.Context(), netip.MustParseAddr("100.127.9.9")); name != "" {
		t.Errorf("an address of no node is %q", name)
	}
}
