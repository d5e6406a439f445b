//go:build linux

package gateway

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// An installed is a cluster with our operator, a runner for the pods that the operator creates, and a tailnet that
// they may join. It has no Envoy.
type installed struct {
	*kubetest.Cluster
	services *serviceProxy
	net      *tailnettest.Net
	api      *tsapi.API
	pods     *testenv.Pods
}

// install starts the environment. Its pods get addresses from first on, and the given variables in addition to their
// own.
func install(t *testing.T, name string, first netip.Addr, options ...func(*tailnettest.Net) (env []string)) *installed {
	t.Helper()
	c := defined(t, name)
	for _, ns := range []string{"infra", ourNamespace, egNamespace} {
		kubectl(t, c, "create", "namespace", ns)
	}
	i := &installed{Cluster: c, services: startServiceProxy(t, c), net: tailnettest.Start(t, wholePolicy)}
	var env []string
	for _, o := range options {
		env = append(env, o(i.net)...)
	}
	var err error
	if i.api, err = i.net.API(); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf("tailnet: {apiBaseURLs: [%q], requestsPerSecond: 100, burst: 100}\nproxy: {image: \"tailplaned:test\"}\nclusterDomain: cluster.local\nconsumerNamespaces: [infra]\n", i.api.URL())
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, tailnettest.ChildEnv(), "tailplaned", "gateway", "--config", settings, "--kubeconfig", c.Kubeconfig, "--namespace", ourNamespace, "--metrics-addr", wholeMetrics,
		"--extension-addr", "unix://"+filepath.Join(t.TempDir(), "x.sock"), "--leader-elect=false")
	if i.pods, err = testenv.RunPods(c, t.TempDir(), testenv.PodsOptions{Namespace: ourNamespace, First: first, Env: env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for name, p := range i.pods.Running() {
				t.Logf("%s: %s", name, p.Output()[max(0, len(p.Output())-3000):])
			}
			t.Log(kubectl(t, c, "get", "tspg,tssvc,pods,endpointslices", "-A", "-o", "wide"), kubectl(t, c, "get", "tspg,tssvc", "-A", "-o", "yaml"))
		}
		if err := i.pods.Stop(); err != nil {
			t.Error(err)
		}
	})
	own := i.api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	i.apply(t, strings.Replace(corp(own.ID, own.Secret, i.api.URL()), "spec: {", fmt.Sprintf("spec: {controlURL: %q, tags: [\"tag:relay\"], ", i.net.ControlURL()), 1))
	return i
}

// apply creates objects. It replaces SUFFIX with the domain of the tailnet.
func (i *installed) apply(t testing.TB, objects string) {
	t.Helper()
	apply(t, i.Cluster, strings.ReplaceAll(objects, "SUFFIX", i.net.Suffix()))
}
