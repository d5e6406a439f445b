package attacktest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// ReleaseLease deletes the Lease of a killed operator. Otherwise the next operator would wait until the Lease
// expires.
func (s *Env) ReleaseLease(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SystemNamespace, Name: "tailplane-operator"}}
	if err := s.KubeClient.Delete(context.WithoutCancel(t.Context()), lease); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

func (s *Env) ClientFor(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: s.KubeClient.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ForgedSignIn returns a sign-in that only the access server is allowed to write.
func ForgedSignIn(login, device, role string) *v1alpha1.TkaSignin {
	o := signin.Owner{Login: login, DeviceID: device, DeviceName: "d", Tailnet: "example.com"}
	return &v1alpha1.TkaSignin{
		ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: o.Name(), Finalizers: []string{v1alpha1.SigninFinalizer}},
		Spec: v1alpha1.TkaSigninSpec{User: v1alpha1.SigninUser{Login: login}, Device: v1alpha1.SigninDevice{ID: device, Name: "d", Tailnet: "example.com"},
			Role: role, Period: metav1.Duration{Duration: time.Hour}, AskedAt: metav1.NewTime(time.Now())},
	}
}

// Gate is a proxy between one program and the API server, and its only way there. It counts the successful writes and
// kills the program after one of them.
type Gate struct {
	*httptest.Server

	mu     sync.Mutex
	armed  bool
	after  int    // kill after this many writes; 0: never
	only   string // count only writes whose path contains this text
	wrote  []string
	strike func()
	struck chan struct{}
}

func (s *Env) NewGate(t *testing.T) *Gate {
	t.Helper()
	target, err := url.Parse(s.Cluster.Server)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Cluster.CA)
	g := &Gate{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 100},
		FlushInterval: -1,
		ErrorLog:      log.New(quiet{}, "", 0),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(res *http.Response) error {
			path := res.Request.URL.Path
			if res.Request.Method == http.MethodGet || res.StatusCode >= 300 || res.Request.URL.Query().Has("dryRun") || strings.Contains(path, "/leases") || strings.Contains(path, "/configmaps/") || strings.Contains(path, "/events") || strings.HasSuffix(path, "reviews") {
				return nil
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if !g.armed || !strings.Contains(path, g.only) {
				return nil
			}
			g.wrote = append(g.wrote, res.Request.Method+" "+path[strings.LastIndex(path[:strings.LastIndexByte(path, '/')], "/")+1:])
			if len(g.wrote) != g.after {
				return nil
			}
			g.strike() // the program never receives the response
			close(g.struck)
			return http.ErrAbortHandler
		},
	}
	g.Server = httptest.NewUnstartedServer(proxy)
	g.Config.ErrorLog = log.New(quiet{}, "", 0)
	g.StartTLS()
	t.Cleanup(g.Close)
	return g
}

type quiet struct{}

func (quiet) Write(p []byte) (int, error) { return len(p), nil }

// Arm starts the count of writes, and kills p after the given number of writes.
func (g *Gate) Arm(after int, p *testenv.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.after, g.wrote, g.strike, g.struck = true, after, nil, p.Kill, make(chan struct{})
}

// About limits the count to writes whose path contains text.
func (g *Gate) About(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.only = text
}

// Strikes waits until the gate has killed the program. It returns false if the operation ended long ago without
// enough writes.
func (g *Gate) Strikes(begun <-chan struct{}) bool {
	select {
	case <-g.struck:
		return true
	case <-begun:
	case <-time.After(Long):
		return false
	}
	select {
	case <-g.struck:
		return true
	case <-time.After(10 * time.Second):
		return false
	}
}

func (g *Gate) Disarm() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = false
	return slices.Clone(g.wrote)
}

// KubeconfigThrough returns the path of a kubeconfig with which an account reaches the API server only through g.
func (s *Env) KubeconfigThrough(t *testing.T, g *Gate, namespace, account string) (path string) {
	t.Helper()
	path, err := s.Cluster.ServiceAccountKubeconfig(context.WithoutCancel(t.Context()), namespace, account, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server, c.CertificateAuthorityData = g.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
