// Package adapter tests the adapter mca on a real API server. Applications in its pod (the real kubectl, the real
// client-go) must not be able to distinguish it from the API server itself.
package adapter

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// limit is the timeout for every wait.
const limit = 2 * time.Minute

// stand holds the environment that all tests of this binary share: a cluster, and a pod's adapter whose
// ServiceAccount has all rights in it.
var stand struct {
	once    sync.Once
	dir     string
	cluster *kubetest.Cluster
	adapter *testenv.Adapter
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if usedThree {
		if s, err := threeOnce(); err == nil {
			if err := s.close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	if stand.adapter != nil {
		if err := stand.adapter.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if stand.cluster != nil {
		if err := stand.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(stand.dir)
	os.Exit(code)
}

// shared returns the cluster and the adapter that all tests share.
func shared(t testing.TB) (*kubetest.Cluster, *testenv.Adapter) {
	t.Helper()
	stand.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		if stand.dir, stand.err = os.MkdirTemp("", "adapter"); stand.err != nil {
			return
		}
		if stand.cluster, stand.err = kubetest.Run(ctx, kubetest.Options{Name: "home", FakeNode: true}); stand.err != nil {
			return
		}
		var token string
		if token, stand.err = account(ctx, stand.cluster, "default", "app", "cluster-admin"); stand.err != nil {
			return
		}
		stand.adapter, stand.err = testenv.StartAdapter(ctx, filepath.Join(stand.dir, "pod"), testenv.AdapterOptions{
			Server: stand.cluster.Server, CA: stand.cluster.CA, Token: token, Namespace: "default"})
	})
	if stand.err != nil {
		t.Fatal(stand.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(stand.adapter.Output(), "\n")
			t.Logf("the adapter's last lines:\n%s", strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	return stand.cluster, stand.adapter
}

// account creates a ServiceAccount with a ClusterRole and returns its token.
func account(ctx context.Context, c *kubetest.Cluster, namespace, name, role string) (string, error) {
	k, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return "", err
	}
	if _, err := k.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	if role != "" {
		if _, err := k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}}, metav1.CreateOptions{}); err != nil {
			return "", err
		}
	}
	made, err := k.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, tokenRequest(), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}

func tokenRequest() *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(7200))}}
}

// listenTLS listens with a certificate for the loopback address, and returns the certificate authority to trust.
func listenTLS(t testing.TB) (net.Listener, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	raw, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	return ln, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// config returns the client configuration with which an application reaches the adapter.
func config(t testing.TB, a *testenv.Adapter) *rest.Config {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	return c
}

// kubectl runs the real kubectl through the adapter and fails the test if it fails.
func kubectl(t testing.TB, a *testenv.Adapter, args ...string) string {
	t.Helper()
	out, errs, exit := try(t, a, args...)
	if exit != 0 {
		t.Fatalf("kubectl %s: exit %d: %s%s", strings.Join(args, " "), exit, out, errs)
	}
	return out
}

func try(t testing.TB, a *testenv.Adapter, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return kubetest.Kubectl(ctx, a.Kubeconfig, args...)
}

// eventually polls until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
