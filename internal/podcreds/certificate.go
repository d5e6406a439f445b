package podcreds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// dnsNames are the names of the API server that clients in the pod may use. The long ones are for pods that
// map them to the loopback address.
var dnsNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}

const ipAddresses = "127.0.0.1 ::1"

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 7 * 24 * time.Hour
	clockSkew    = 5 * time.Minute // the containers of a pod share one clock, but it may be set back
)

func loopbackIPs() (ips []net.IP) {
	for s := range strings.FieldsSeq(ipAddresses) {
		ips = append(ips, net.ParseIP(s))
	}
	return ips
}

// newCA returns a CA certificate that is constrained to the loopback addresses and the names of the
// API server. It is useful only to clients of this pod.
func newCA(key *ecdsa.PrivateKey, now time.Time) ([]byte, error) {
	id := make([]byte, 8)
	rand.Read(id)
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "mca " + hex.EncodeToString(id)},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(caLifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: dnsNames,
	}
	for _, ip := range loopbackIPs() {
		bits := 8 * len(ip)
		if v4 := ip.To4(); v4 != nil {
			ip, bits = v4, 32
		}
		t.PermittedIPRanges = append(t.PermittedIPRanges, &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)})
	}
	return x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
}

// serial returns 128 random bits.
func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] &= 0x7f // a serial number must be positive and have at most 20 bytes
	return new(big.Int).SetBytes(b)
}

// Certificate implements [tls.Config.GetCertificate]. The certificate exists only in memory. It is renewed
// after two thirds of its life.
func (f *Credentials) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.leaf != nil && now.Before(f.leaf.Leaf.NotBefore.Add(clockSkew+leafLifetime*2/3)) && now.After(f.leaf.Leaf.NotBefore) {
		return f.leaf, nil
	}
	leaf, err := f.issue(now)
	if err != nil {
		return nil, fmt.Errorf("certificate for the loopback address: %w", err)
	}
	f.leaf = leaf
	return leaf, nil
}

func (f *Credentials) issue(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "mca"},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: dnsNames, IPAddresses: loopbackIPs(),
	}, f.ca, &key.PublicKey, f.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Expires returns the expiry of the current certificate.
func (f *Credentials) Expires() time.Time {
	c, err := f.Certificate(nil)
	if err != nil || c.Leaf == nil {
		return time.Time{}
	}
	return c.Leaf.NotAfter
}

// TLSConfig returns the TLS configuration of the adapter's listener.
func (f *Credentials) TLSConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.Certificate, NextProtos: []string{"h2", "http/1.1"}}
}
