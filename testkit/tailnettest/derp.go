package tailnettest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"time"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stun"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// relay is the tailnet's only DERP region: a relay and a STUN server on 127.0.0.1.
type relay struct {
	server  *derpserver.Server
	derpMap *tailcfg.DERPMap
	stops   []func()
}

func startRelay(logf func(string, ...any)) (_ *relay, err error) {
	d := &relay{server: derpserver.New(key.NewNode(), logf)}
	d.stops = append(d.stops, func() { d.server.Close() })
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	cert, err := selfSigned(net.IPv4(127, 0, 0, 1))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/derp", derpserver.Handler(d.server))
	mux.HandleFunc("/derp/probe", derpserver.ProbeHandler)
	mux.HandleFunc("/derp/latency-check", derpserver.ProbeHandler)
	mux.HandleFunc("/generate_204", derpserver.ServeNoContent)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{
		Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13},
		// The relay takes the connection over, which HTTP/2 does not allow.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	go srv.ServeTLS(ln, "", "")
	d.stops = append(d.stops, func() { srv.Close() })

	stunConn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	go serveSTUN(stunConn)
	d.stops = append(d.stops, func() { stunConn.Close() })

	d.derpMap = &tailcfg.DERPMap{OmitDefaultRegions: true, Regions: map[int]*tailcfg.DERPRegion{
		1: {RegionID: 1, RegionCode: "loop", RegionName: "Loopback", Nodes: []*tailcfg.DERPNode{{
			Name: "1a", RegionID: 1, HostName: "127.0.0.1", IPv4: "127.0.0.1", IPv6: "none",
			STUNPort: stunConn.LocalAddr().(*net.UDPAddr).Port, STUNTestIP: "127.0.0.1",
			DERPPort: ln.Addr().(*net.TCPAddr).Port,
			CertName: fmt.Sprintf("sha256-raw:%x", sha256.Sum256(cert.Certificate[0])),
		}}},
	}}
	return d, nil
}

// serveSTUN returns to each client its own address until the socket closes. It replaces Tailscale's own server, which
// writes to the log of the process.
func serveSTUN(c *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if id, err := stun.ParseBindingRequest(buf[:n]); err == nil {
			c.WriteToUDPAddrPort(stun.Response(id, from), from)
		}
	}
}

// connected reports whether the node is connected to the relay, so that the relay can deliver packets to it.
func (d *relay) connected(k key.NodePublic) bool { return d.server.IsClientConnectedForTest(k) }

func (d *relay) close() {
	for i := len(d.stops) - 1; i >= 0; i-- {
		d.stops[i]()
	}
}

func selfSigned(ip net.IP) (*tls.Certificate, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: ip.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IPAddresses: []net.IP{ip},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &k.PublicKey, k)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}, nil
}
