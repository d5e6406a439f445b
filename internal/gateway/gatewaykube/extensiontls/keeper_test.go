//go:build unix

package extensiontls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"os"
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
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// trusts returns an error unless a certificate is valid for a name and signed by a CA in the
// bundle.
func trusts(bundle, certificate []byte, name string, usage x509.ExtKeyUsage, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	leaf, err := leafOf(certificate)
	if err != nil {
		return err
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func leafOf(certificate []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errors.New("there is no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// GW-08: at each step of a rotation, each side trusts the certificate of the other. This holds for
// the files of this step and of the step before, in any combination.
func TestStages(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := waits{Life, publish, keep}
	fresh := func(now time.Time) (set, error) {
		return issue([]string{"server.example"}, "client.example", now, w.life)
	}
	var s stage
	issued := map[string]bool{}
	for range 60 {
		again, err := readStage(s.data())
		if err != nil {
			t.Fatal(err)
		}
		next, wake, err := again.step(now, w, fresh)
		if err != nil {
			t.Fatal(err)
		}
		if s.serving.server != nil {
			for _, have := range []stage{s, next} {
				for _, trusting := range []stage{s, next} {
					for _, c := range []struct {
						certificate []byte
						name        string
						usage       x509.ExtKeyUsage
					}{{have.serving.server, "server.example", x509.ExtKeyUsageServerAuth}, {have.serving.client, "client.example", x509.ExtKeyUsageClientAuth}} {
						if err := trusts(trusting.bundle(), c.certificate, c.name, c.usage, now); err != nil {
							t.Fatalf("at %v: %s: %v", now, c.name, err)
						}
					}
				}
			}
		}
		s = next
		issued[string(s.serving.server)] = true
		if wake.After(now) {
			now = wake
		}
	}
	if len(issued) < 3 {
		t.Errorf("%d certificates in all that time", len(issued))
	}
	touched := s
	touched.serving.client = []byte("somebody's")
	if next, _, err := touched.step(now, w, fresh); err != nil || bytes.Equal(next.serving.server, s.serving.server) {
		t.Errorf("what is broken stays: %v", err)
	}
	if _, err := readStage(map[string][]byte{"published": []byte("soon")}); err == nil {
		t.Error("a time that is none")
	}
}

// The Keeper on a real API server: three Secrets, a rotation, and the repair of manual damage.
func TestKeeper(t *testing.T) {
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
	k := &Keeper{Namespace: ns, Names: []string{"server.example"}, Client: "client.example", Log: slog.New(slog.DiscardHandler), Look: 50 * time.Millisecond,
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
	sound := func() bool {
		bundle, server, own := read(AuthoritySecret)["tls.crt"], read(ServerSecret)["tls.crt"], read(ClientSecret)["tls.crt"]
		_, err := tls.X509KeyPair(own, read(ClientSecret)["tls.key"])
		return err == nil && trusts(bundle, server, "server.example", x509.ExtKeyUsageServerAuth, k.Now()) == nil &&
			trusts(bundle, own, "client.example", x509.ExtKeyUsageClientAuth, k.Now()) == nil
	}
	until("three Secrets", sound)
	first := read(ServerSecret)["tls.crt"]
	ahead.Store(int64(Life * 2 / 3))
	until("an authority besides", func() bool { return read(ServerSecret)["published"] != nil && sound() })
	if !bytes.Equal(read(ServerSecret)["tls.crt"], first) {
		t.Error("the server changed before the other side could know")
	}
	ahead.Add(int64(publish))
	until("another certificate", func() bool { return !bytes.Equal(read(ServerSecret)["tls.crt"], first) && sound() })
	ahead.Add(int64(keep))
	until("the old authority is gone", func() bool {
		return read(ServerSecret)["previous-ca.crt"] == nil && bytes.Count(read(AuthoritySecret)["tls.crt"], []byte("BEGIN CERTIFICATE")) == 1 && sound()
	})
	for _, name := range []string{ClientSecret, AuthoritySecret, ServerSecret} {
		s := &corev1.Secret{}
		s.Namespace, s.Name = ns, name
		if err := k.client.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		until(name+" is made again", sound)
	}
}
