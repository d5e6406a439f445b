package tailnet

import (
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailscale.com/kube/kubeclient"

	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// asPod sets up this process as a pod of the cluster with the given account, for the state store.
func asPod(t *testing.T, c *kubetest.Cluster, namespace, account string) {
	t.Helper()
	token, stderr, code := kubetest.Kubectl(within(t), c.Kubeconfig, "create", "token", account, "--namespace", namespace)
	if code != 0 {
		t.Fatal(stderr)
	}
	root := t.TempDir()
	dir := filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"namespace": namespace, "token": strings.TrimSpace(token), "ca.crt": string(c.CA)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(c.Server)
	if err != nil {
		t.Fatal(err)
	}
	kubeclient.SetRootPathForTesting(root)
	t.Cleanup(func() { kubeclient.SetRootPathForTesting("/") })
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT_HTTPS", u.Port())
	t.Setenv("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "true")
}

// The state in a Secret, with the permissions of the access server's Role: get, update and patch of
// this one Secret by name.
func TestStateSecret(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{NoControllers: true})
	const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: tailplane-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: access, namespace: tailplane-system}
---
apiVersion: v1
kind: Secret
metadata: {name: node-state, namespace: tailplane-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: access, namespace: tailplane-system}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [node-state, not-made], verbs: [get, update, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: access, namespace: tailplane-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: access}
subjects: [{kind: ServiceAccount, name: access, namespace: tailplane-system}]
`
	if err := c.Apply(within(t), []byte(objects)); err != nil {
		t.Fatal(err)
	}
	asPod(t, c, "tailplane-system", "access")
	tn := tailnettest.Start(t, policy)
	cfg, book := serverConfig(t, tn)
	cfg.StateSecret, cfg.Log = "node-state", book.logger(slog.LevelInfo)
	n := run(t, cfg)
	n.up(t)
	id := n.Status().ID
	if err := n.end(t); err != nil {
		t.Fatal(err)
	}
	cfg.AuthKey, cfg.StateDir = secret.Text{}, t.TempDir() // another pod: only the Secret remains
	n = run(t, cfg)
	n.up(t)
	if got := n.Status().ID; got != id {
		t.Errorf("another machine: %s, was %s", got, id)
	}
	if err := n.end(t); err != nil {
		t.Fatal(err)
	}
	keys, stderr, code := kubetest.Kubectl(within(t), c.Kubeconfig, "get", "secret", "node-state", "-n", "tailplane-system", "-o", "jsonpath={.data}")
	switch {
	case code != 0:
		t.Errorf("the Secret: code = %v, want 0; stderr = %s", code, stderr)
	case !strings.Contains(keys, "_machinekey"):
		t.Errorf("the Secret: keys = %q does not contain %q; stderr = %s", keys, "_machinekey", stderr)
	case strings.Contains(keys, string(probeKey)):
		t.Errorf("the Secret: keys = %q contains %q; stderr = %s", keys, string(probeKey), stderr)
	}
	for _, name := range []string{"not-made", "not-ours"} {
		cfg.StateSecret, cfg.StateDir = name, t.TempDir()
		err := run(t, cfg).refused(t)
		if !strings.Contains(err.Error(), "the Secret "+name+" cannot store the node's state") {
			t.Errorf("%s: %v", name, err)
		}
		t.Log(err)
	}
}
