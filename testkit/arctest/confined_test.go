//go:build unix

package arctest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/dynamic"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// arcManager returns the chart's ClusterRole for ARC in a namespace of runners, under another name.
func arcManager(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../charts/tailplane/templates/rbac-fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(b), "---\n") {
		if !strings.Contains(doc, "name: tailplane-arc-manager\n") {
			continue
		}
		_, rules, ok := strings.Cut(doc, "\nrules:\n")
		if !ok || strings.Contains(rules, "{{") {
			t.Fatalf("the chart's rules for ARC cannot be parsed: %s", doc)
		}
		return fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s}\nrules:\n%s", name, rules)
	}
	t.Fatal("the chart has no ClusterRole for ARC")
	return ""
}

// FLEET-01: the rights that the fleet gives ARC in a namespace of runners are sufficient and necessary. ARC runs as
// the account of its Deployment, with the rights of its own chart.
func TestFLEET01_ARCsRights(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	client, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	b := &env{t: t, client: client, github: &arctest.ScaleSetFake{}, ns: c.Namespace(t), arc: c.Namespace(t), version: "0.14.2"}
	b.ARC = arctest.Start(t, arctest.Options{Cluster: c, Namespace: b.arc, Watch: b.ns, Version: b.version, GitHub: b.github, Confined: true})
	b.apply("v1", "secrets", secret("one"))
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 2))
	b.said("is forbidden")
	if len(b.github.ScaleSets()) != 0 {
		t.Error("it could read the credential")
	}
	role := "arc-manager-" + b.ns
	if err := c.Apply(t.Context(), []byte(arcManager(t, role)), fmt.Appendf(nil, `apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: arc-manager, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}
subjects: [{kind: ServiceAccount, name: arc-gha-rs-controller, namespace: %s}]
`, b.ns, role, b.arc)); err != nil {
		t.Fatal(err)
	}
	b.until("registered", "nix", registered)
	b.Assign(b.ns, "nix", arctest.Job{ID: "a"})
	b.start("a")
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 0))
	b.until("stopped", "nix", func(_ arc.Objects, s arc.State) bool { return s.Stopped == fleet.Yes && s.Registered == fleet.Yes })
	b.finish("a")
	b.delete("nix")
	b.until("gone", "nix", gone)
	if sets := b.github.ScaleSets(); len(sets) != 0 {
		t.Errorf("at GitHub: %v", sets)
	}
	for _, plural := range []string{"roles", "rolebindings"} {
		left, err := b.list(t.Context(), b.ns, "rbac.authorization.k8s.io/v1", plural)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range left {
			if o.GetName() != "arc-manager" {
				t.Errorf("%s %s is left", plural, o.GetName())
			}
		}
	}
}
