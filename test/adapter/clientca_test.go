package adapter

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// clientCertificate creates a certificate authority and a client certificate with which an API server authenticates
// to a webhook. The files are PEM.
func clientCertificate(t *testing.T) (ca, cert, key []byte) {
	t.Helper()
	make := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = k
		}
		raw, err := x509.CreateCertificate(rand.Reader, template, parent, &k.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return k, raw
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook clients"}, IsCA: true, BasicConstraintsValid: true, NotBefore: from, NotAfter: to, KeyUsage: x509.KeyUsageCertSign}
	signer, rawCA := make(authority, authority, nil)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: from, NotAfter: to, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	own, rawLeaf := make(leaf, authority, signer)
	rawKey, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	return encode("CERTIFICATE", rawCA), encode("CERTIFICATE", rawLeaf), encode("PRIVATE KEY", rawKey)
}

// Section 11.2: with --client-ca the webhook answers an API server with a certificate of that authority, and refuses
// every other client.
func TestWebhookVerifiesItsCaller(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ca, cert, key := clientCertificate(t)
	write(t, at("ca.crt"), string(ca))
	write(t, at("tls.crt"), string(cert))
	write(t, at("tls.key"), string(key))
	write(t, at("kubeconfig"), fmt.Sprintf("apiVersion: v1\nkind: Config\nusers: [{name: '*', user: {client-certificate: %q, client-key: %q}}]\n", at("tls.crt"), at("tls.key")))
	plugin := "- name: %sAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %q}\n"
	write(t, at("admission.yaml"), "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+
		fmt.Sprintf(plugin, "Mutating", at("kubeconfig"))+fmt.Sprintf(plugin, "Validating", at("kubeconfig")))
	c := kubetest.New(t, kubetest.Options{Name: "known", Args: []string{"--admission-control-config-file=" + at("admission.yaml")}})
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	w := webhook(t, c, admin, "--client-ca="+at("ca.crt"))
	ns := c.Namespace(t)
	eventually(t, "the API server is answered", func() bool {
		pod, err := admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try", Labels: map[string]string{"mca.tailplane.dev/inject": "true"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(pod.Spec.InitContainers) == 1
	})
	_, strangeCert, strangeKey := clientCertificate(t)
	for why, tt := range map[string]struct {
		cert, key []byte
		answered  bool
	}{"the right one": {cert, key, true}, "none": {nil, nil, false}, "another authority's": {strangeCert, strangeKey, false}} {
		conf := &tls.Config{InsecureSkipVerify: true} // this test is about the client's identity
		if tt.cert != nil {
			pair, err := tls.X509KeyPair(tt.cert, tt.key)
			if err != nil {
				t.Fatal(err)
			}
			conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		hc := &http.Client{Timeout: limit, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		res, err := hc.Post("https://"+w.Address+"/mutate", "application/json", bytes.NewReader([]byte("{}")))
		if err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if !tt.answered {
				t.Errorf("%s: it is answered: %s %.200s", why, res.Status, b)
			} else if res.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %s %.200s", why, res.Status, b)
			}
		} else if tt.answered {
			t.Errorf("%s: %v", why, err)
		}
	}
}
