package attacktest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Location of the fleet, as in deploy/fleet.
const (
	FleetNamespace = "tailplane-fleet"
	FleetAccount   = "system:serviceaccount:" + FleetNamespace + ":tailplane-fleet"
	SharedRunners  = "tailplane-runners"
)

// basePolicy lets every node connect. Alice has the role view, bob has no grant. Tests add grants for other people.
const basePolicy = `{
  "groups": {"group:viewers": ["alice@example.com"]},
  "tagOwners": {"tag:tailplane": [], "tag:other": [], "tag:ci": [], "tag:robot": [], "tag:ingress": [], "tag:east-proxy": []},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane", "tag:other"], "ip": ["*"]},
    {"src": ["group:viewers"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}},
    %s
  ],
  "nodeAttrs": [{"target": ["tag:other"], "attr": ["funnel"]}],
}`

// Accounts of the product's programs, as the API server names them.
const (
	AccessAccount   = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-access"
	OperatorAccount = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-operator"
)

// auditPolicy makes the API server log every request of the product's accounts before it handles it. So tests see the
// product from the API server's side.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Request
  users: [` + AccessAccount + `, ` + OperatorAccount + `, ` + PlaneAccount + `, ` + FleetAccount + `]

- level: None
`

const (
	// Long is the limit for waits that take milliseconds on an idle machine. It is long because a busy machine can be
	// slow, and the limit costs nothing when tests pass.
	Long = 5 * time.Minute
	// Soon is the limit until a change of rights takes effect. The contract is 2 s. Tests print the measured time; a
	// shared machine gets more time before the test fails.
	Soon = time.Minute
	// TokenCache is the time for which an API server may accept a revoked token: its token cache lasts 10 s, and a
	// shared machine adds delay. Without revocation, a token is valid for 10 minutes.
	TokenCache = time.Minute
)

// Env is the whole product on a real tailnet and a real API server. It also contains clients and logs to inspect the
// side of the API server.
type Env struct {
	*testenv.Env
	KubeClient    client.WithWatch
	Clientset     *kubernetes.Clientset
	KubeAuditFile string // the API server's audit log of the requests of the product's accounts

	Mu       sync.Mutex
	People   map[string]*testenv.Person // by host
	uses     map[string]int             // number of running tests that use a device
	Clients  map[*testenv.Person]*http.Client
	policies int // number of policies that SetPolicy has set
}

func init() { ctrllog.SetLogger(logr.Discard()) } // the logs of clients add nothing to the tests' output

// shared is the environment for all tests of a package that leave it unchanged.
var shared = testenv.Shared(newEnv, (*Env).Close)

// Start returns the environment that all tests of a package share. The first call starts it.
func Start(t *testing.T) *Env {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() { // to find the reason
			for _, p := range []*testenv.Process{s.Access, s.Operator} {
				lines := strings.Split(p.Output(), "\n")
				t.Logf("end of the log of %v:\n%s", p.Args[1], strings.Join(lines[max(0, len(lines)-40):], "\n"))
			}
		}
	})
	return s
}

// New returns an environment for one test, which may destroy it. It ends with the test.
func New(t *testing.T) *Env {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Long)
	defer cancel()
	s, err := newEnv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newEnv(ctx context.Context) (_ *Env, err error) {
	s, err := Run(ctx, testenv.Options{Policy: Policy(), ClusterName: "east", Settings: map[string]string{
		"api.limits": testenv.NoLimits, "signin.roles": "[view, edit, ghost]", "signin.keepExpired": "3s", "access.proxyTags": "[tag:east-proxy]",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// The role "ghost" is on the server's list, but its ClusterRole does not exist. An administrator who lists a role
	// also allows the operator to read and bind it.
	var rights rbacv1.ClusterRole
	if err := s.KubeClient.Get(ctx, client.ObjectKey{Name: "tailplane-operator"}, &rights); err != nil {
		return nil, err
	}
	for i, rule := range rights.Rules {
		if slices.Contains(rule.Verbs, "bind") {
			rights.Rules[i].ResourceNames = append(rule.ResourceNames, "ghost")
		}
	}
	if err := s.KubeClient.Update(ctx, &rights); err != nil {
		return nil, err
	}
	if err := s.KubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		return nil, err
	}
	return s, s.StartOperator(ctx)
}

// Run starts a cluster that logs the requests of the product, and an access server.
func Run(ctx context.Context, o testenv.Options) (_ *Env, err error) {
	dir, err := os.MkdirTemp("", "at")
	if err != nil {
		return nil, err
	}
	s := &Env{KubeAuditFile: filepath.Join(dir, "kube-audit.jsonl"), People: map[string]*testenv.Person{}, uses: map[string]int{}, Clients: map[*testenv.Person]*http.Client{}}
	auditFile := filepath.Join(dir, "kube-audit.yaml")
	if err := os.WriteFile(auditFile, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	cluster, err := kubetest.Run(ctx, kubetest.Options{Name: o.ClusterName, Args: []string{
		"--audit-policy-file=" + auditFile, "--audit-log-path=" + s.KubeAuditFile, "--audit-log-mode=blocking-strict",
		// No token lives longer than an hour here, even if a request asks for more (SI-07).
		"--service-account-max-token-expiration=1h",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cluster.Close(), os.RemoveAll(dir))
		}
	}()
	o.Cluster, o.NoOperator = cluster, true
	if s.Env, err = testenv.Start(ctx, dir, o); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, admissionv1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.KubeClient, err = client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	s.Clientset, err = kubernetes.NewForConfig(cluster.AdminConfig())
	return s, err
}

func (s *Env) Close() error {
	return errors.Join(s.Env.Close(), s.Cluster.Close(), os.RemoveAll(s.Dir))
}

// Policy returns basePolicy with additional grants.
func Policy(grants ...string) string { return fmt.Sprintf(basePolicy, strings.Join(grants, ",\n    ")) }

// Grant returns a grant of the product's capability to one source.
func Grant(src, rules string) string {
	return fmt.Sprintf(`{"src": [%q], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [%s]}}`, src, rules)
}

// SetPolicy adds grants to the policy until the end of the test. Nodes receive it within milliseconds, but not at
// once: waitPolicy waits for that.
func (s *Env) SetPolicy(t *testing.T, grants ...string) {
	t.Helper()
	before := s.Net.Policy()
	s.Mu.Lock()
	s.policies++
	mark := fmt.Sprintf(`{"role": "view", "period": "%ds"}`, 3600+s.policies)
	s.Mu.Unlock()
	if err := s.Net.SetPolicy(Policy(append(grants, Grant(watchman, mark))...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Net.SetPolicy(before); err != nil {
			t.Error(err)
		}
	})
}
