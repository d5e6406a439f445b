package accessproxy

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

type wrongPair struct {
	server tls.Certificate
	roots  *x509.CertPool
}

func wrongCertificates(t *testing.T) map[string]wrongPair {
	hour := time.Now().Add(time.Hour)
	good, _ := proxytest.Certificate(t, hour, "127.0.0.1")
	_, others := proxytest.Certificate(t, hour, "127.0.0.1")
	expired, expiredRoots := proxytest.Certificate(t, time.Now().Add(-time.Minute), "127.0.0.1")
	named, namedRoots := proxytest.Certificate(t, hour, "127.0.0.2")
	return map[string]wrongPair{"another authority": {good, others}, "expired": {expired, expiredRoots}, "another name": {named, namedRoots}}
}

func attackImpersonation(t *testing.T) { t.Skip("TODO") }
