//go:build unix

package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// noon is the start time of tests, unless time matters.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// An env is a namespace with the objects of the manifests, and an account with exactly the rights in the package comment.
type env struct {
	t      *testing.T
	c      *kubetest.Cluster
	ns     string
	admin  client.Client
	config *rest.Config // of the account
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := kubetest.Start(t)
	p := &env{t: t, c: c, ns: c.Namespace(t)}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.admin, err = client.New(c.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	name := func(n string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: p.ns, Name: n} }
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: name(MembersConfigMap)},
		&coordinationv1.Lease{ObjectMeta: name(LeaseName)},
		&corev1.ServiceAccount{ObjectMeta: name("access")},
		&rbacv1.Role{ObjectMeta: name("access"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{PinsConfigMap, MembersConfigMap}, Verbs: []string{"get", "update"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{LeaseName}, Verbs: []string{"get", "update"}},
			{APIGroups: []string{profileGroup}, Resources: []string{"clusterprofiles"}, Verbs: []string{"list", "create", "update", "delete"}},
			{APIGroups: []string{profileGroup}, Resources: []string{"clusterprofiles/status"}, Verbs: []string{"update"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: name("access"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "access"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.ns, Name: "access"}}},
	} {
		if err := p.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	path, err := c.ServiceAccountKubeconfig(t.Context(), p.ns, "access", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if p.config, err = kube.Config(path); err != nil {
		t.Fatal(err)
	}
	mine, err := newConfigMap(p.config, p.ns, MembersConfigMap)
	if err != nil {
		t.Fatal(err)
	}
	p.until("the account has its rights", func() bool {
		_, err := mine.get(t.Context())
		return err == nil
	})
	return p
}

// until waits for a condition.
func (p *env) until(what string, true func() bool) {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !true(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatal("it never came that", what)
		}
	}
}

func (p *env) configMap() *corev1.ConfigMap {
	p.t.Helper()
	cm := new(corev1.ConfigMap)
	if err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: MembersConfigMap}, cm); err != nil {
		p.t.Fatal(err)
	}
	return cm
}

// A recordingLog stores log lines.
type recordingLog struct{ kubetest.Log }

func (l *recordingLog) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count returns how many lines contain the text.
func (l *recordingLog) count(text string) int { return strings.Count(l.String(), text) }

func (l *recordingLog) reports() *errorLog {
	return &errorLog{log: l.logger(), byWhat: map[string]string{}}
}

// clusterNamed returns a verified cluster that is alive and was just seen.
func clusterNamed(name string) Cluster {
	return Cluster{
		APIEndpoint: "https://k8s." + name + ".example:6443", APIPort: 6443, Labels: map[string]string{"env": "prod"}, Name: name, ID: "id-of-" + name,
		URL: "https://tka." + name + ".ts.net", State: gossip.Alive, LastSeen: noon, Verified: true,
		Members: []Member{{Node: "n-" + name, Host: "tka." + name + ".ts.net", State: gossip.Alive, LastSeen: noon}},
	}
}

// authorityNamed creates a certificate authority and returns it with its hash.
func authorityNamed(t *testing.T, serial int64) ([]byte, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: noon, NotAfter: noon.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	_, hash, err := certificates(text)
	if err != nil {
		t.Fatal(err)
	}
	return text, hash
}

// background runs f until stop cancels its context; stop waits for f.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("it did not end")
		}
	})
	t.Cleanup(stop)
	return stop
}
