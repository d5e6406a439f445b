// Package authority makes certificate authorities that sign a few certificates at
// once and no more. It keeps law 1: an authority's own key is in no file, object or
// field, and what is not there cannot be stolen.
package authority

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

// early is how far clocks may be apart.
const early = 5 * time.Minute

// An Authority signs until it is forgotten.
type Authority struct {
	name string
	root *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

// New makes an authority that, with all that it signs, is good for life from now
// on, and for five minutes before it. Its subject is the name and the day.
func New(name string, now time.Time, life time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name + " " + now.UTC().Format(time.DateOnly)},
		NotBefore: now.Add(-early), NotAfter: now.Add(life), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Authority{name, root, der, key}, nil
}

// PEM is its certificate, which others trust.
func (a *Authority) PEM() []byte { return text("CERTIFICATE", a.der) }

// Sign makes a certificate for a use and these names, of which some may be
// addresses, and its key. Both are PEM.
func (a *Authority) Sign(use x509.ExtKeyUsage, names ...string) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: a.name}, NotBefore: a.root.NotBefore, NotAfter: a.root.NotAfter,
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
	return text("CERTIFICATE", der), text("PRIVATE KEY", keyDER), nil
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return new(big.Int).SetBytes(b)
}

func text(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
