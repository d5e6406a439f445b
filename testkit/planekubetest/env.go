//go:build unix

// Package planekubetest is the test environment for the Kubernetes part of the plane: a namespace on a real API
// server, and an account with rights. The account has only the rights that the test names, so a passing test proves
// that these rights are sufficient.
package planekubetest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// deadline bounds waits for conditions. On an idle machine they become true at once.
const deadline = 2 * time.Minute

// Definitions returns the CRDs of the kinds that the plane shows and writes, as documents to apply.
var Definitions = sync.OnceValues(func() (docs [][]byte, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tailplane/tailplane", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return nil, err
	}
	ours, routes, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	crds, api := filepath.Join(ours, "deploy", "crds"), filepath.Join(routes, "config", "crd", "standard")
	for _, pattern := range []string{filepath.Join(crds, "gateway.tailscale.com_*.yaml"), filepath.Join(crds, "tailplane.dev_*.yaml"),
		filepath.Join(api, "gateway.networking.k8s.io_gateways.yaml"), filepath.Join(api, "gateway.networking.k8s.io_httproutes.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, errors.Join(err, errors.New("no definitions: "+pattern))
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			docs = append(docs, b)
		}
	}
	return docs, nil
})

// quiet discards the log of controller-runtime code that has no logger.
var quiet = sync.OnceFunc(func() { ctrllog.SetLogger(logr.Discard()) })

// installed is the shared cluster with the definitions installed.
var installed = sync.OnceValues(func() (*kubetest.Cluster, error) {
	c, err := kubetest.Run(context.Background(), kubetest.Options{Name: "shared"})
	if err != nil {
		return nil, err
	}
	docs, err := Definitions()
	if err != nil {
		return nil, err
	}
	return c, c.Apply(context.Background(), docs...)
})

// Env is a cluster with a separate namespace for the test, and an account that has only the given rights.
type Env struct {
	*testing.T
	Cluster   *kubetest.Cluster
	Admin     client.Client
	Namespace string
	Config    *rest.Config // of the account
	Log       kubetest.Log // output of Logger
}

// Rights are the rights of a Place's account: in its namespace (Here) and cluster-wide (Everywhere).
type Rights struct{ Here, Everywhere []rbacv1.PolicyRule }

// New returns a Place on c. If c is nil, it uses the cluster with the definitions that all tests of the binary share.
// The test runs in parallel with others.
func New(t *testing.T, c *kubetest.Cluster, may Rights) *Env {
	t.Helper()
	t.Parallel()
	kubetest.SkipIfShort(t)
	quiet()
	if c == nil {
		var err error
		if c, err = installed(); err != nil {
			t.Fatal(err)
		}
	}
	p := &Env{T: t, Cluster: c, Namespace: c.Namespace(t)}
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, gatewayv1alpha1.AddToScheme, gatewayapi.Install} {
		p.Must(add(all))
	}
	var err error
	p.Admin, err = client.New(c.AdminConfig(), client.Options{Scheme: all})
	p.Must(err)
	p.Must(p.Admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: account}}))
	p.allow(may)
	path, err := c.ServiceAccountKubeconfig(t.Context(), p.Namespace, account, t.TempDir())
	p.Must(err)
	p.Config, err = kube.Config(path)
	p.Must(err)
	return p
}

const account = "plane"

// allow grants the rights to the account.
func (p *Env) allow(may Rights) {
	p.Helper()
	here, everywhere := metav1.ObjectMeta{Namespace: p.Namespace, Name: account}, metav1.ObjectMeta{Name: p.Namespace}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.Namespace, Name: account}}
	for _, o := range []client.Object{
		&rbacv1.Role{ObjectMeta: here, Rules: may.Here},
		&rbacv1.RoleBinding{ObjectMeta: here, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: here.Name}, Subjects: subject},
		&rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: may.Everywhere},
		&rbacv1.ClusterRoleBinding{ObjectMeta: everywhere, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name}, Subjects: subject},
	} {
		p.Must(p.Admin.Create(p.Context(), o))
	}
}

// Must ends the test if err is not nil.
func (p *Env) Must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// Logger returns a logger that writes to Log.
func (p *Env) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(&p.Log, nil)) }

// Until waits for a condition.
func (p *Env) Until(what string, true func() bool) {
	p.Helper()
	for end := time.Now().Add(deadline); !true(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("timed out waiting for: %s\n%s", what, p.Log.Tail())
		}
	}
}

// Create creates an object, and its status if it has one.
func (p *Env) Create(o client.Object) {
	p.Helper()
	with := o.DeepCopyObject().(client.Object)
	p.Must(p.Admin.Create(p.Context(), o))
	with.SetResourceVersion(o.GetResourceVersion())
	p.Must(p.Admin.Status().Update(p.Context(), with))
	p.Must(p.Admin.Get(p.Context(), client.ObjectKeyFromObject(o), o))
}

// Step runs f as a subtest. In f, methods of p fail the subtest.
func (p *Env) Step(name string, f func()) {
	p.Run(name, func(t *testing.T) {
		was := p.T
		p.T = t
		defer func() { p.T = was }()
		f()
	})
}

// Permit returns the permit that the plane issues to a caller with one rule.
func (p *Env) Permit(login, rule string, v access.Verb) access.Permit {
	p.Helper()
	permit, err := access.DecidePlane(access.Caller{Login: access.Login(login), Device: access.Device{ID: "n", Name: "n"}, Via: access.ViaTailnet, Rules: []json.RawMessage{[]byte(rule)}},
		v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, time.Now())
	p.Must(err)
	return permit
}

// Signin returns a sign-in in the namespace. It is not created yet.
func (p *Env) Signin(name, login string) *v1alpha1.TkaSignin {
	return &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name},
		Spec: v1alpha1.TkaSigninSpec{User: v1alpha1.SigninUser{Login: login}, Device: v1alpha1.SigninDevice{ID: "n1", Name: "laptop"}, Role: "view",
			Period: metav1.Duration{Duration: time.Hour}, AskedAt: metav1.Now()}}
}
