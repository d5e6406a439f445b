package install

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// FL-05: a pod with the network position of an organisation's jobs tests whether the network enforces the policies.
// It uses the chart's rights and image, and its namespace enforces PSA's restricted level. If the pod reaches only
// its forge, enforcement is proved. If it reaches more, the status names these targets. Without the pod the result is
// unknown.
//
// The network is the testbed's. It enforces no policy and carries what the test configures.
func TestFL05_Canary(t *testing.T) {
	forge := forgetest.NewGitLab(t)
	at, err := url.Parse(forge.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := installFleetIn(t, prepared(t, kubetest.New(t, kubetest.Options{Name: "canary"})))
	// The test runs the fleet itself, with one setting after the other.
	must(t, c, "kubectl -n tailplane-fleet scale deployment tailplane-fleet --replicas=0")
	node, err := testenv.StartNode(t.Context(), c, t.TempDir(), testenv.NodeOptions{Images: map[string]string{"registry.invalid/team/tailplaned": "tailplaned"}, Carry: map[string]string{at.Host: at.Host}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(node.Log); t.Failed() {
			t.Logf("the node (%v):\n%s", err, b)
		}
	})
	if !node.Isolated {
		t.Skipf("SKIP separate pods: %s", node.Reason)
	}
	settings, _, _ := unstructured.NestedString(rendered(t, render(t, profileValues(t, "fleet")), "ConfigMap", "tailplane-fleet").Object, "data", "fleet.yaml")
	settings = strings.Replace(settings, "health: :9091", "health: 127.0.0.1:0", 1)
	if !strings.Contains(settings, "10.0.7.7:9091") {
		t.Fatalf("no canary is set:\n%s", settings)
	}

	writer := somebody(t, c, "system:serviceaccount:argocd:argocd-application-controller")
	forge.AddGroup("omega")
	token := forge.AddToken(forgetest.GitLabToken{User: "bot", Level: 50, Scopes: []string{"create_runner", "manage_runner", "read_api"}})
	for _, doc := range []string{
		fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: omega, namespace: tailplane-fleet, labels: {tailplane.dev/org: omega}}, stringData: {access_token: %q}}", token),
		fmt.Sprintf("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerForge, metadata: {name: lab}, spec: {type: gitlab, url: %q}}", forge.URL),
		"{apiVersion: tailplane.dev/v1alpha1, kind: RunnerPool, metadata: {name: docker}, spec: {forge: lab, runsOn: [docker], scaling: {max: 2, budget: 4}}}",
		fmt.Sprintf("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerEnrollment, metadata: {name: omega}, spec: {forge: lab, configURL: %q, isolation: Namespace, pools: [{name: docker, type: Shared}], credentials: {secretName: omega}}}", forge.URL+"/omega"),
	} {
		if err := writer.store(doc); err != nil {
			t.Fatal(err)
		}
	}
	says := func() string {
		return must(t, c, `kubectl get runnerenrollment omega -o jsonpath={.status.conditions[?(@.type=="PolicyEnforced")].status}:{.status.conditions[?(@.type=="PolicyEnforced")].message}`)
	}
	for i, x := range []struct{ why, settings, status, message string }{
		{"nothing but the forge answers", settings, "True", "reaches its forge"},
		{"the API server answers", strings.Replace(settings, "10.0.7.7:9091", "10.96.0.1:443", 1), "False", "reached: 10.96.0.1:443"},
		{"no canary", strings.Replace(settings, "registry.invalid/team/tailplaned:v1.0.0", "", 1), "Unknown", "fleet.canary"},
	} {
		p, err := testenv.StartFleet(t.Context(), filepath.Join(t.TempDir(), fmt.Sprint("fleet-", i)), c, "tailplane-fleet", "tailplane-fleet", x.settings, "--leader-elect=false")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the fleet, %s:\n%s", x.why, p.Output())
			}
			p.Kill()
		})
		until(t, x.why, func() bool { s := says(); return strings.HasPrefix(s, x.status+":") && strings.Contains(s, x.message) })
		p.Kill()
	}
	if left := must(t, c, "kubectl get deployments -A -o name -l app.kubernetes.io/component=canary"); left != "" {
		t.Errorf("left: %s", left)
	}
}
