package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// lifetime is the lifetime of every certificate. An older state directory is rejected and not renewed.
const lifetime = 365 * 24 * time.Hour

// adminName is the common name of the admin's certificate. The admin's kubeconfig contains it, and the API server
// presents it to the node.
const adminName = "kubernetes-admin"

// pki names the files of one cluster's certificates and keys. It does not include the keys of the CAs: after the
// first start no certificate is issued again.
type pki struct {
	dir string
}

func (p pki) file(name string) string { return filepath.Join(p.dir, name) }

func (p pki) ca() string             { return p.file("ca.crt") }
func (p pki) serverCert() string     { return p.file("server.crt") }
func (p pki) serverKey() string      { return p.file("server.key") }
func (p pki) frontCA() string        { return p.file("front-proxy-ca.crt") }
func (p pki) frontCert() string      { return p.file("front-proxy-client.crt") }
func (p pki) frontKey() string       { return p.file("front-proxy-client.key") }
func (p pki) adminCert() string      { return p.file("admin.crt") }
func (p pki) adminKey() string       { return p.file("admin.key") }
func (p pki) serviceAccount() string { return p.file("service-account.key") }

// openPKI returns the certificates and keys stored in dir, or creates all of them. They appear in one rename, so a
// killed process leaves no partial set.
func openPKI(dir, name string) (pki, error) {
	p := pki{dir: filepath.Join(dir, "pki")}
	switch _, err := os.Stat(p.dir); {
	case err == nil:
		return p, p.check()
	case !errors.Is(err, os.ErrNotExist):
		return pki{}, err
	}
	making := pki{dir: p.dir + ".making"}
	if err := os.RemoveAll(making.dir); err != nil {
		return pki{}, err
	}
	if err := os.MkdirAll(making.dir, 0o700); err != nil {
		return pki{}, err
	}
	if err := making.make(name); err != nil {
		return pki{}, fmt.Errorf("certificates: %w", err)
	}
	return p, os.Rename(making.dir, p.dir)
}

func (p pki) check() error {
	b, err := os.ReadFile(p.serverCert())
	if err != nil {
		return fmt.Errorf("stored certificates: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return fmt.Errorf("stored certificates: no PEM in %s", p.serverCert())
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("stored certificates: %w", err)
	}
	if time.Now().After(c.NotAfter) {
		return fmt.Errorf("the stored certificates expired on %s: remove the state directory", c.NotAfter.Format(time.DateOnly))
	}
	return nil
}

func (p pki) make(name string) error {
	root, err := newAuthority("devcluster " + name)
	if err != nil {
		return err
	}
	front, err := newAuthority("devcluster front proxy " + name)
	if err != nil {
		return err
	}
	// Kubernetes reads an EC signing key in SEC 1 form only. It rejects PKCS#8 with "does not contain any valid RSA
	// or ECDSA public keys".
	signing, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	sec1, err := x509.MarshalECPrivateKey(signing)
	if err != nil {
		return err
	}
	return errors.Join(
		write(p.ca(), "CERTIFICATE", root.cert.Raw),
		write(p.frontCA(), "CERTIFICATE", front.cert.Raw),
		write(p.serviceAccount(), "EC PRIVATE KEY", sec1),
		root.issue(p.serverCert(), p.serverKey(), &x509.Certificate{
			Subject:     pkix.Name{CommonName: "kube-apiserver"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			// The second is the Service "kubernetes", which a client in a pod dials.
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
		}),
		front.issue(p.frontCert(), p.frontKey(), &x509.Certificate{
			Subject:     pkix.Name{CommonName: "front-proxy-client"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}),
		root.issue(p.adminCert(), p.adminKey(), &x509.Certificate{
			Subject:     pkix.Name{CommonName: adminName, Organization: []string{"system:masters"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}),
	)
}

// kubeconfig writes the admin's self-contained kubeconfig to path.
func (p pki) kubeconfig(path, name, server string) error {
	var pems [3][]byte
	for i, f := range []string{p.ca(), p.adminCert(), p.adminKey()} {
		b, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
		pems[i] = b
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: pems[0]}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: pems[1], ClientKeyData: pems[2]}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: "admin"}
	c.CurrentContext = name
	return clientcmd.WriteToFile(*c, path)
}

// authority is a certificate authority, which is discarded after it has issued all certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(cn string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: cn},
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		IsCA: true, BasicConstraintsValid: true,
	}
	if t.SerialNumber, err = serial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// issue completes t and writes the certificate and its new key.
func (a *authority) issue(certFile, keyFile string, t *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.NotBefore, t.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(lifetime)
	if t.SerialNumber, err = serial(); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(write(certFile, "CERTIFICATE", der), write(keyFile, "PRIVATE KEY", pkcs8))
}

func serial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
}

func write(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
