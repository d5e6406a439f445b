package load

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/inject"
)

// BenchmarkInject measures the injection webhook with requests like those of an API server: over TLS and HTTP/2, 200
// times a second, for pods with five containers.
func BenchmarkInject(b *testing.B) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		b.Fatal(err)
	}
	roots.AddCert(leaf)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	o := inject.Options{Sidecar: inject.DefaultSidecar(), Version: "v1", Kubernetes: inject.KubeVersion{Major: 1, Minor: 37}}
	o.Sidecar.Image = "registry.invalid/mca@sha256:" + strings.Repeat("a", 64)
	w := &inject.Webhook{Options: o, Log: slog.New(slog.DiscardHandler), Measure: func(string, time.Duration) {}, Config: func(_, _ []byte) (_, _ []string) { return nil, nil }}
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- w.Serve(ctx, ln, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	}()
	defer func() {
		end()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()

	var containers []string
	for i := range 5 {
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":"app:v%d","env":[{"name":"A","value":"b"}],"volumeMounts":[{"name":"data","mountPath":"/data"},{"name":"kube-api-access-abcde","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","readOnly":true}]}`, i, i))
	}
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","object":{"metadata":{"labels":{"mca.tailplane.dev/inject":"true"},"managedFields":[` +
		strings.Repeat(`{"manager":"kubectl","fieldsV1":{"f:spec":{"f:containers":{}}}},`, 50) + `{}]},"spec":{"containers":[` + strings.Join(containers, ",") +
		`],"volumes":[{"name":"data","emptyDir":{}},{"name":"kube-api-access-abcde","projected":{"sources":[{"serviceAccountToken":{"path":"token"}}]}}]}}}}`
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer hc.CloseIdleConnections()
	ask := func() (time.Duration, error) {
		began := time.Now()
		res, err := hc.Post("https://"+ln.Addr().String()+"/mutate", "application/json", strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		said, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusOK || res.ProtoMajor != 2 || !strings.Contains(string(said), "JSONPatch")) {
			err = fmt.Errorf("%s %s: %.200s", res.Proto, res.Status, said)
		}
		return time.Since(began), err
	}

	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var asking sync.WaitGroup
	tick := time.NewTicker(time.Second / 200)
	defer tick.Stop()
	for b.Loop() {
		<-tick.C
		asking.Go(func() {
			d, err := ask()
			mu.Lock()
			defer mu.Unlock()
			took = append(took, d)
			if err != nil {
				failed = err
			}
		})
	}
	asking.Wait()
	if failed != nil {
		b.Fatal(failed)
	}
	_, at := spread(took)
	b.Logf("webhook: %d questions of %d bytes at 200/s; p50 %v, p99 %v, worst %v", len(took), len(body), at(.50), at(.99), at(1))
	budget("inject-webhook-p99", at(.99), 20*time.Millisecond)
}
