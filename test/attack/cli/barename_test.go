package cli

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/tailscaledtest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// forward makes a port of this machine lead to an address in the tailnet, as alice's device sees it. It stands for whoever answers under a
// bare name: the network of a hotel decides that. It returns the port.
func forward(t *testing.T, alice *testenv.Person, to string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() { ln.Close(); open.Wait() })
	open.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer conn.Close()
				far, err := alice.Node.Dial(t.Context(), "tcp", to)
				if err != nil {
					return
				}
				defer far.Close()
				open.Go(func() { io.Copy(far, conn); far.Close() })
				io.Copy(conn, far)
			})
		}
	})
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// CL-01. A bare name means what the network says it means, and an address in 100.64.0.0/10 proves nothing. The client completes a bare name,
// or pins a server without TLS, only if this machine's Tailscale confirms that the dialled address is the peer with the completed name. An
// impostor with a valid certificate for its own name gets no request, and the client does not tell a person to type that name.
//
// Guard: client.(*Client).completeName, client.(*Client).confirmHTTP, tailscaled.(*Client).PeerName.
func bareNameIsAnImpostors(t *testing.T) {
	s := attacktest.Start(t)
	alice, node := s.Alice(t), s.Person(t, "localhost", "", "tag:other").Node
	info, err := signin.GetClusterInfo.Call(t.Context(), s.APIClient(alice), signin.ClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	impostor := newWrongAt(t, s, node.Hostname, info)
	ln, err := node.ListenTLS("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	impostor.listen(t, ln)
	plain, err := node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	impostor.listen(t, plain)
	s.WaitPeer(t, alice, node.Hostname)
	secure, clear := forward(t, alice, impostor.name+":443"), forward(t, alice, impostor.name+":80")
	suffix := s.Net.Suffix()
	own := "localhost." + suffix
	for _, tt := range []struct {
		why string
		set func(d *tailscaledtest.Daemon) // nil: no Tailscale
	}{
		{"no Tailscale", nil},
		{"Tailscale is stopped", func(d *tailscaledtest.Daemon) { d.AddPeer(own, "127.0.0.1"); d.SetState("Stopped") }},
		{"an address of the hotel", func(d *tailscaledtest.Daemon) { d.AddPeer(own, "100.64.0.7") }},
		{"a peer of another name", func(d *tailscaledtest.Daemon) { d.AddPeer("wrong."+suffix, "127.0.0.1") }},
		{"shared in from another tailnet", func(d *tailscaledtest.Daemon) { d.Switch("nAlice", "elsewhere.ts.net"); d.AddPeer(own, "127.0.0.1") }},
	} {
		m := s.NewMachine(t, alice)
		vars := []string{"TS_SOCKET=" + m.Path("no-tailscale")}
		if tt.set != nil {
			d := tailscaledtest.Start(t, "nAlice", suffix)
			tt.set(d)
			vars = []string{"TS_SOCKET=" + d.Socket}
		}
		before := len(m.Files())
		for _, server := range []string{"localhost:" + secure, "http://localhost:" + clear} {
			impostor.answers(impostor.honest)
			r := m.StartProgram(vars, nil, "tka", "login", "--server", server).End()
			switch asked := impostor.asked(); {
			case r.Exit != 3 && r.Exit != 2:
				t.Errorf("%s, %s: exit %d: %s", tt.why, server, r.Exit, r.Stderr)
			case r.Stdout != "":
				t.Errorf("%s, %s: %s", tt.why, server, r.Stdout)
			case len(asked) > 0:
				t.Errorf("%s, %s: the impostor received %v", tt.why, server, asked)
			case len(m.Files()) != before:
				t.Errorf("%s, %s: files %v", tt.why, server, m.Files())
			}
		}
	}
	// The control: with the confirmation, the name is completed and the first contact is with that peer.
	for _, server := range []string{"localhost:" + secure, "http://localhost:" + clear} {
		m := s.NewMachine(t, alice)
		d := tailscaledtest.Start(t, "nAlice", suffix)
		d.AddPeer(own, "127.0.0.1")
		r := m.StartProgram([]string{"TS_SOCKET=" + d.Socket}, nil, "tka", "cluster-info", "--server", server).End()
		if r.Exit != 0 || !strings.Contains(r.Stderr, own) {
			t.Errorf("the control, %s: exit %d: %s", server, r.Exit, r.Stderr)
		}
		// A given key ends the trust at first contact: the impostor gets the request for its proof and no other.
		impostor.answers(http.HandlerFunc(impostor.honest))
		r = s.NewMachine(t, alice).StartProgram([]string{"TS_SOCKET=" + d.Socket}, nil, "tka", "login", "--server", server, "--server-key", info.Key.String()).End()
		if asked := impostor.asked(); r.Exit != 3 || len(asked) > 1 {
			t.Errorf("a given key, %s: exit %d, asked %v: %s", server, r.Exit, asked, r.Stderr)
		}
	}
}
