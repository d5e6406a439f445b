package cli_test

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailscaledtest"
)

// The bare name of the servers in these tests is localhost, which every machine resolves.
const (
	fullName  = "localhost.tail1234.ts.net"
	otherName = "localhost.tail9999.ts.net"
)

// newTLSServer starts an access server whose certificate is for one name, on a machine that trusts the certificate. It returns the server,
// the machine and the port.
func newTLSServer(t *testing.T, name string) (*accessServer, *machine, string) {
	t.Helper()
	der, key, err := certificate("main", name)
	if err != nil {
		t.Fatal(err)
	}
	access, _ := newAccessServer(t, "prod-eu")
	access.mu.Lock()
	access.names = []string{fullName, otherName}
	access.start()
	access.mu.Unlock()
	srv := httptest.NewUnstartedServer(access)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, "http://127.0.0.1:1")
	m.write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	m.env["SSL_CERT_FILE"] = m.path("ca.pem")
	return access, m, port
}

// SGN-24, CL-01: a bare name is completed from the certificate only if this machine's Tailscale confirms that the dialled address is the
// peer of its tailnet with the completed name. Otherwise tka sends nothing, pins nothing and names what to type.
func TestSGN24_a_bare_name(t *testing.T) {
	for _, tt := range []struct {
		why  string
		cert string
		set  func(d *tailscaledtest.Daemon) // nil: no Tailscale
		code int
		word string // on standard error, with PORT for the port
	}{
		{"confirmed", fullName, func(d *tailscaledtest.Daemon) { d.AddPeer(fullName, "127.0.0.1") }, 0, "First contact with https://" + fullName + ":PORT"},
		{"no Tailscale", fullName, nil, 3, "--server " + fullName + ":PORT"},
		{"Tailscale is stopped", fullName, func(d *tailscaledtest.Daemon) { d.AddPeer(fullName, "127.0.0.1"); d.SetState("Stopped") }, 3, "--server " + fullName + ":PORT"},
		{"the address of a hotel", fullName, func(d *tailscaledtest.Daemon) { d.AddPeer(fullName, "100.64.0.7") }, 3, "does not confirm that this host is " + fullName},
		{"another peer", fullName, func(d *tailscaledtest.Daemon) { d.AddPeer("laptop2.tail1234.ts.net", "127.0.0.1") }, 3, "--server " + fullName + ":PORT"},
		{"an impostor with a certificate for its own name", "localhost.evil.example", func(d *tailscaledtest.Daemon) { d.AddPeer(fullName, "100.64.0.7") }, 3, "--server " + fullName + ":PORT"},
		{"an impostor that is a peer", "localhost.evil.example", func(d *tailscaledtest.Daemon) { d.AddPeer("localhost.evil.example", "127.0.0.1") }, 3, "--server " + fullName + ":PORT"},
		{"a server shared in from another tailnet", otherName, func(d *tailscaledtest.Daemon) { d.AddPeer(otherName, "127.0.0.1") }, 3, "--server " + fullName + ":PORT"},
		{"the other tailnet, after tailscale switch", otherName, func(d *tailscaledtest.Daemon) {
			d.Switch("nOther", "tail9999.ts.net")
			d.AddPeer(otherName, "127.0.0.1")
		}, 0, "First contact with https://" + otherName + ":PORT"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			access, m, port := newTLSServer(t, tt.cert)
			if tt.set != nil {
				d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
				tt.set(d)
				m.env["TS_SOCKET"] = d.Socket
			}
			r := m.spawn(t, nil, "login", "--server", "localhost:"+port)
			if word := strings.ReplaceAll(tt.word, "PORT", port); r.code != tt.code || !strings.Contains(r.err, word) {
				t.Errorf("code %d, want %d with %q: %s", r.code, tt.code, word, r.err)
			}
			if tt.code == 0 {
				return
			}
			if strings.Contains(r.err, "--server localhost.evil.example") {
				t.Errorf("tka tells the person to type an impostor's name: %s", r.err)
			}
			if got := access.received(); len(got) > 0 {
				t.Errorf("the server received %v, want nothing", got)
			}
			if files := m.files(t); len(files) != 2 { // settings, authority
				t.Errorf("files: %v", files)
			}
		})
	}
}

// On a tailnet without certificates, a bare name or the default name needs no scheme. The same confirmation applies, and a tailnet with
// certificates never gets a request in the clear.
func TestSGN24_a_bare_name_without_certificates(t *testing.T) {
	for _, tt := range []struct {
		why  string
		name string
		set  func(d *tailscaledtest.Daemon)
		code int
		word string
	}{
		{"confirmed", "localhost", func(d *tailscaledtest.Daemon) { d.NoCertificates(); d.AddPeer(fullName, "127.0.0.1") }, 0, "First contact with http://" + fullName + ":PORT"},
		{"a hotel", "localhost", func(d *tailscaledtest.Daemon) { d.NoCertificates(); d.AddPeer(fullName, "100.64.0.7") }, 2, "does not confirm that it is " + fullName},
		{"stopped", "localhost", func(d *tailscaledtest.Daemon) {
			d.NoCertificates()
			d.AddPeer(fullName, "127.0.0.1")
			d.SetState("Stopped")
		}, 3, "https://localhost:PORT did not prove its identity"},
		{"a tailnet with certificates", "localhost", func(d *tailscaledtest.Daemon) { d.AddPeer(fullName, "127.0.0.1") }, 3, "https://localhost:PORT did not prove its identity"},
		{"a person wants TLS", "https://localhost", func(d *tailscaledtest.Daemon) { d.NoCertificates(); d.AddPeer(fullName, "127.0.0.1") }, 3, "https://localhost:PORT did not prove its identity"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			access, srv := newAccessServer(t, "prod-eu")
			access.names = []string{fullName}
			_, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
			m := newMachine(t, srv.URL)
			m.write(t, "config/tka/config.yaml", "server: "+tt.name+":"+port+"\n")
			d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
			tt.set(d)
			m.env["TS_SOCKET"] = d.Socket
			r := m.run("login")
			if word := strings.ReplaceAll(tt.word, "PORT", port); r.code != tt.code || !strings.Contains(r.err, word) {
				t.Errorf("code %d, want %d with %q: %s", r.code, tt.code, word, r.err)
			}
			if got := access.received(); tt.code != 0 && len(got) > 0 {
				t.Errorf("the server received %v, want nothing", got)
			}
		})
	}
}

// SGN-24, CL-01: a server without TLS is pinned under the same condition, whatever its address looks like. tka sends nothing before.
func TestSGN24_a_server_without_certificate(t *testing.T) {
	type daemon = tailscaledtest.Daemon
	for _, tt := range []struct {
		why      string
		listed   bool // with insecureHTTP: true
		host     string
		set      func(d *daemon)
		code     int
		word     string
		received bool
	}{
		{"confirmed", false, "localhost", func(d *daemon) { d.AddPeer(fullName, "127.0.0.1") }, 0, "First contact with http://" + fullName + ":PORT", true},
		{"a peer's address", false, "127.0.0.1", func(d *daemon) { d.AddPeer(fullName, "127.0.0.1") }, 0, "First contact with http://127.0.0.1:PORT", true},
		{"no Tailscale", false, "localhost", nil, 2, "insecureHTTP: true", false},
		{"stopped", false, "localhost", func(d *daemon) { d.AddPeer(fullName, "127.0.0.1"); d.SetState("Stopped") }, 2, "insecureHTTP: true", false},
		{"a hotel", false, "localhost", func(d *daemon) { d.AddPeer(fullName, "100.64.0.7") }, 2, "does not confirm that it is " + fullName, false},
		{"a peer of another name", false, "localhost", func(d *daemon) { d.AddPeer("evil.tail1234.ts.net", "127.0.0.1") }, 2, "--server-key KEY", false},
		{"listed, a hotel's address", true, "100.64.0.9", func(d *daemon) { d.AddPeer(fullName, "100.64.0.7") }, 3, "Tailscale does not confirm its address", false},
		{"listed, no Tailscale", true, "100.64.0.9", nil, 3, "--server-key KEY", false},
		{"listed, on this machine", true, "127.0.0.1", nil, 0, "First contact with http://127.0.0.1:PORT", true},
	} {
		t.Run(tt.why, func(t *testing.T) {
			access, srv := newAccessServer(t, "prod-eu")
			access.mu.Lock()
			access.names = []string{fullName}
			access.start()
			access.mu.Unlock()
			u, err := url.Parse(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			base := "http://" + tt.host + ":" + u.Port()
			m := newMachine(t, base)
			args := []string{"login"}
			if !tt.listed {
				m.write(t, "config/tka/config.yaml", "server: "+base+"\n")
			}
			if tt.set != nil {
				d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
				tt.set(d)
				m.env["TS_SOCKET"] = d.Socket
			}
			r := m.run(args...)
			if word := strings.ReplaceAll(tt.word, "PORT", u.Port()); r.code != tt.code || !strings.Contains(r.err, word) {
				t.Errorf("code %d, want %d with %q: %s", r.code, tt.code, word, r.err)
			}
			if got := len(access.received()) > 0; got != tt.received {
				t.Errorf("the server received something: %v, want %v", got, tt.received)
			}
			if pinned := len(m.files(t)) > 1; pinned != tt.received {
				t.Errorf("something was stored: %v, want %v: %v", pinned, tt.received, m.files(t))
			}
		})
	}
}

// A machine with two tailnets: the bare name means the server of the tailnet that the machine is in, and each has a pin of its own.
func TestSGN24_two_tailnets(t *testing.T) {
	one, m, port := newTLSServer(t, fullName)
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	d.AddPeer(fullName, "127.0.0.1")
	m.env["TS_SOCKET"] = d.Socket
	if r := m.spawn(t, nil, "cluster-info", "--server", "localhost:"+port); r.code != 0 {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	two, other, port2 := newTLSServer(t, otherName)
	two.mu.Lock()
	two.key = keyFor("another")
	two.start()
	two.mu.Unlock()
	m.env["SSL_CERT_FILE"] = other.path("ca.pem")
	d.Switch("nOther", "tail9999.ts.net")
	d.AddPeer(otherName, "127.0.0.1")
	if r := m.spawn(t, nil, "cluster-info", "--server", "localhost:"+port2); r.code != 0 {
		t.Errorf("in the second tailnet: code %d: %s", r.code, r.err)
	}
	if r := m.spawn(t, nil, "config", "--forget-server", "localhost:"+port); r.code != 1 {
		t.Errorf("the bare name of the second tailnet forgets a server of the first: code %d: %s", r.code, r.err)
	}
	state := m.read(t, "state/tka/servers.yaml")
	for _, want := range []string{"url: https://" + fullName + ":" + port, "key: " + one.key.Public().String(), "url: https://" + otherName + ":" + port2, "key: " + two.key.Public().String()} {
		if !strings.Contains(state, want) {
			t.Errorf("%q is not in the state:\n%s", want, state)
		}
	}
	if r := m.spawn(t, nil, "config", "--forget-server", "localhost:"+port2); r.code != 0 || !strings.Contains(r.err, otherName) {
		t.Errorf("forget by the bare name: code %d: %s", r.code, r.err)
	}
}

// A machine that must not trust a key at first contact names the key: by the flag, the variable or the settings.
func TestSGN24_a_given_key(t *testing.T) {
	access, srv := newAccessServer(t, "prod-eu")
	good, wrong := access.key.Public().String(), keyFor("another").Public().String()
	for _, tt := range []struct {
		why  string
		env  string
		args []string
		code int
		word string
	}{
		{"the flag", "", []string{"--server-key", good}, 0, ""},
		{"the variable", good, nil, 0, ""},
		{"the flag wins", wrong, []string{"--server-key", good}, 0, ""},
		{"a wrong flag", "", []string{"--server-key", wrong}, 3, "is not the one that --server-key names, which has the key " + wrong + ": it has the key " + good},
		{"a wrong variable", wrong, nil, 3, "is not the one that $TKA_SERVER_KEY names"},
		{"no key", "", []string{"--server-key", "ed25519:short"}, 2, "--server-key is not a key"},
		{"no key in the variable", "x", nil, 2, "$TKA_SERVER_KEY is not a key"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			m := newMachine(t, srv.URL)
			m.env["TKA_SERVER_KEY"] = tt.env
			access.checkRequests(t, access.received()...) // forget the earlier ones
			r := m.run(append([]string{"login"}, tt.args...)...)
			if r.code != tt.code || !strings.Contains(r.err, tt.word) {
				t.Errorf("code %d, want %d with %q: %s", r.code, tt.code, tt.word, r.err)
			}
			if strings.Contains(r.err, "First contact") {
				t.Errorf("tka trusts a key at first contact: %s", r.err)
			}
			switch tt.code {
			case 3:
				access.checkRequests(t, requestInfo)
				if !strings.Contains(r.err, "tka cluster-info -o yaml") {
					t.Errorf("no advice: %s", r.err)
				}
			case 0:
				if got := m.read(t, "state/tka/servers.yaml"); !strings.Contains(got, good) {
					t.Errorf("the key is not stored:\n%s", got)
				}
			}
		})
	}
}

// With a key, a bare name needs no Tailscale to be completed, and a server needs no certificate and no setting.
func TestSGN24_a_given_key_instead_of_tailscale(t *testing.T) {
	access, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, "http://127.0.0.1:1")
	key := access.key.Public().String()
	if r := m.run("login", "--server", srv.URL, "--server-key", key); r.code != 0 {
		t.Errorf("http without a setting: code %d: %s", r.code, r.err)
	}
	m.write(t, "config/tka/config.yaml", "server: main\nservers: [{name: main, url: \""+srv.URL+"\", key: \""+key+"\"}]\n")
	if r := m.run("status"); r.code != 0 {
		t.Errorf("http with a key in the settings: code %d: %s", r.code, r.err)
	}
	_, tls, port := newTLSServer(t, fullName)
	r := tls.spawn(t, nil, "cluster-info", "--server", "localhost:"+port, "--server-key", key, "--timeout", "3s")
	if !strings.Contains(r.err, "https://"+fullName+":"+port) { // the tests have no DNS for the full name
		t.Errorf("the name was not completed: code %d: %s", r.code, r.err)
	}
}

// A given key is that of the server of the command. Another cluster that this machine knows keeps its own.
func TestSGN24_a_given_key_of_one_of_two(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	_, usURL := newAccessServer(t, "prod-us")
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	for _, server := range []string{"main", usURL.URL} {
		if r := m.run("login", "--server", server); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	m.env["TKA_SERVER_KEY"] = eu.key.Public().String()
	for _, cluster := range []string{"prod-eu", "prod-us"} {
		if r := m.run("status", "--cluster", cluster); r.code != 0 {
			t.Errorf("%s: code %d: %s", cluster, r.code, r.err)
		}
	}
	m.env["TKA_SERVER_KEY"] = keyFor("another").Public().String()
	if r := m.run("status", "--cluster", "prod-eu"); r.code != 3 || !strings.Contains(r.err, "$TKA_SERVER_KEY") {
		t.Errorf("a wrong key and an earlier pin: code %d: %s", r.code, r.err)
	}
}

// A key that the settings have for a bare name also counts for the full name, under which tka stores the server.
func TestSGN24_a_key_of_a_bare_name(t *testing.T) {
	access, m, port := newTLSServer(t, fullName)
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	d.AddPeer(fullName, "127.0.0.1")
	m.env["TS_SOCKET"] = d.Socket
	key := access.key.Public().String()
	m.write(t, "config/tka/config.yaml", "server: localhost\nport: "+port+"\nservers: [{name: localhost, key: \""+key+"\"}]\n")
	if r := m.spawn(t, nil, "login"); r.code != 0 || strings.Contains(r.err, "First contact") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	state := m.read(t, "state/tka/servers.yaml")
	for _, want := range []string{"url: https://" + fullName + ":" + port, "key: " + key} {
		if !strings.Contains(state, want) {
			t.Errorf("%q is not in the state:\n%s", want, state)
		}
	}
}
