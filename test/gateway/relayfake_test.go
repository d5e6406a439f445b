//go:build linux

package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A relayFake replaces a relay: it accepts connections on a pod's address, answers for the service, and reports on a
// separate port that it is ready. It is used to test Envoy's behaviour; other tests cover the relay's.
type relayFake struct {
	at     netip.AddrPort
	health uint16
	stop   func() // acts as if the pod were deleted; may be called again
}

// startRelay replaces a relay of a service, on free ports.
func startRelay(t testing.TB, address, service string) relayFake {
	t.Helper()
	return startRelayAt(t, address, service, service, 0, 0, nil)
}

// startRelayAt replaces a relay of a service and gives name in its answers. With a certificate it serves TLS.
func startRelayAt(t testing.TB, address, service, name string, port, health uint16, certificate *tls.Certificate) relayFake {
	t.Helper()
	var servers []*http.Server
	serve := func(port uint16, certificate *tls.Certificate, h http.HandlerFunc) netip.AddrPort {
		ln, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, port))
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(ln.Addr().String())
		if certificate != nil {
			ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{*certificate}})
		}
		// Refused handshakes are expected.
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
		go func() { _ = s.Serve(ln) }()
		servers = append(servers, s)
		return at
	}
	requests := serve(port, certificate, func(w http.ResponseWriter, r *http.Request) {
		for h := range r.Header {
			if strings.HasPrefix(h, "Tailscale-") {
				http.Error(w, "a header of the client's came through: "+h, http.StatusBadRequest)
				return
			}
		}
		fmt.Fprintf(w, "%s %s %s %s", name, r.Method, r.Host, r.URL.RequestURI())
	})
	ready := serve(health, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz/"+service {
			http.NotFound(w, r)
		}
	})
	stop := sync.OnceFunc(func() {
		for _, s := range servers {
			s.Close()
		}
	})
	t.Cleanup(stop)
	return relayFake{requests, ready.Port(), stop}
}

// certificateFor creates a certificate for a name, and returns it with the authority to trust.
func certificateFor(t testing.TB, name string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// resolve serves the names of the cluster as its DNS would, and makes this machine use that server. The suite's mount
// namespace has a separate resolv.conf.
func resolve(t testing.TB, names map[string][]string) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.CreateTemp(t.TempDir(), "resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString("nameserver 127.0.0.1\n")
	if err := errors.Join(err, file.Chmod(0o644), file.Close(), syscall.Mount(file.Name(), "/etc/resolv.conf", "", syscall.MS_BIND, "")); err != nil {
		t.Fatal("resolv.conf:", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			if answer, err := answerTo(b[:n], names); err == nil {
				_, _ = pc.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		pc.Close()
		<-done
		if err := syscall.Unmount("/etc/resolv.conf", syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// answerTo answers one DNS question. It returns IPv4 addresses for known names, and no records of other types.
func answerTo(question []byte, names map[string][]string) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	if len(m.Questions) != 1 {
		return nil, fmt.Errorf("%d questions", len(m.Questions))
	}
	q := m.Questions[0]
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true}, Questions: m.Questions}
	addresses, known := names[q.Name.String()]
	if !known {
		out.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addresses {
		if q.Type == dnsmessage.TypeA {
			out.Answers = append(out.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
			})
		}
	}
	return out.Pack()
}
