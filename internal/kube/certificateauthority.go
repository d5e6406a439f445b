package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// clockSkewMargin is the maximum clock difference.
const clockSkewMargin = 5 * time.Minute

// A CertificateAuthority can sign certificates as long as it is in memory.
type CertificateAuthority struct {
	name string
	root *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

// NewCertificateAuthority creates an authority. Its certificate, and every certificate that it signs, is valid from
// five minutes before now until life after now. Its subject is the name and the date. With DNS names in only, clients
// accept no certificate of the authority for any other name or address, and none of a client.
func NewCertificateAuthority(name string, now time.Time, life time.Duration, only ...string) (*CertificateAuthority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: name + " " + now.UTC().Format(time.DateOnly)},
		NotBefore: now.Add(-clockSkewMargin), NotAfter: now.Add(life), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	if len(only) > 0 { // RFC 5280, section 4.2.1.10: kinds of names without a constraint are all permitted
		root.PermittedDNSDomainsCritical, root.PermittedDNSDomains = true, only
		root.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
		root.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &CertificateAuthority{name, root, der, key}, nil
}

// PEM returns the certificate of the authority, for clients that must trust it.
func (a *CertificateAuthority) PEM() []byte { return encodePEM("CERTIFICATE", a.der) }

// Sign creates a certificate and its key, both in PEM. The names are DNS names or IP addresses.
func (a *CertificateAuthority) Sign(use x509.ExtKeyUsage, names ...string) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: a.name}, NotBefore: a.root.NotBefore, NotAfter: a.root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.root, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", keyDER), nil
}

func newSerial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return new(big.Int).SetBytes(b)
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
