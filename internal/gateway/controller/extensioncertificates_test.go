//go:build unix

package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// verifyCertificate returns an error unless a certificate is valid for a name and signed by a CA in the
// bundle.
func verifyCertificate(bundle, certificate []byte, name string, usage x509.ExtKeyUsage, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	leaf, err := parseLeaf(certificate)
	if err != nil {
		return err
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func parseLeaf(certificate []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errors.New("there is no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// The Keeper on a real API server: three Secrets, a rotation, and the repair of manual damage.
func TestExtensionCertificates(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.New(kube.Unthrottled(c.AdminConfig()), manager.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return kube.Mapper([]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")}, nil), nil
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64
	k := &ExtensionCertificates{Namespace: ns, Names: []string{"server.example"}, Client: "client.example", Log: slog.New(slog.DiscardHandler), CheckInterval: 50 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}
	if err := k.Add(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	read := func(name string) map[string][]byte {
		var s corev1.Secret
		if err := mgr.GetAPIReader().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &s); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return s.Data
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within two minutes: " + what)
			}
		}
	}
	consistent := func() bool {
		bundle, server, own := read(extensionAuthoritySecret)["tls.crt"], read(extensionServerSecret)["tls.crt"], read(ExtensionClientSecret)["tls.crt"]
		_, err := tls.X509KeyPair(own, read(ExtensionClientSecret)["tls.key"])
		return err == nil && verifyCertificate(bundle, server, "server.example", x509.ExtKeyUsageServerAuth, k.Now()) == nil &&
			verifyCertificate(bundle, own, "client.example", x509.ExtKeyUsageClientAuth, k.Now()) == nil
	}
	until("three Secrets", consistent)
	first := read(extensionServerSecret)["tls.crt"]
	ahead.Store(int64(extensionCertificateLifetime * 2 / 3))
	until("an authority besides", func() bool { return read(extensionServerSecret)["published"] != nil && consistent() })
	if !bytes.Equal(read(extensionServerSecret)["tls.crt"], first) {
		t.Error("the server changed before the client could trust it")
	}
	ahead.Add(int64(authorityPublishTime))
	until("another certificate", func() bool { return !bytes.Equal(read(extensionServerSecret)["tls.crt"], first) && consistent() })
	ahead.Add(int64(authorityRetainTime))
	until("the old CA is removed", func() bool {
		return read(extensionServerSecret)["previous-ca.crt"] == nil && bytes.Count(read(extensionAuthoritySecret)["tls.crt"], []byte("BEGIN CERTIFICATE")) == 1 && consistent()
	})
	for _, name := range []string{ExtensionClientSecret, extensionAuthoritySecret, extensionServerSecret} {
		s := &corev1.Secret{}
		s.Namespace, s.Name = ns, name
		if err := k.client.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		until(name+" is created again", consistent)
	}
}
