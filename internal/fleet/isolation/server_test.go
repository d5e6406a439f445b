//go:build unix

package isolation_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// FLEET-01: a real API server takes everything that is rendered, and its own admission
// (pod security, quota, limits) takes the pods: what a job's pod would be is made as
// one. A pod that reaches for the host is refused in each of the namespaces, but where
// a pool has Docker.
func TestFLEET01_Admitted(t *testing.T) {
	c := kubetest.Start(t)
	classes := "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: runsc\n"
	for _, name := range []string{isolation.JobPriority, isolation.ManagerPriority} { // the chart's
		classes += fmt.Sprintf("---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: 100\n", name)
	}
	if err := c.Apply(t.Context(), []byte(classes)); err != nil {
		t.Fatal(err)
	}
	org := 0
	each(t, func(t *testing.T, s isolation.Settings, u isolation.Unit, _ []isolation.Object) {
		if u.Use.Type != v1alpha1.UseShared {
			return // what differs is a label of the scale set's, and nothing that is applied here
		}
		// A namespace of its own for each case, which all are for one organisation.
		org++
		s.Shared = fmt.Sprintf("tailplane-runners-%d", org)
		u.Enrollment.Name, u.Pool.Spec.DedicatedTo = fmt.Sprintf("acme-%d", org), ""
		objects, err := render(s, u)
		if err != nil {
			t.Fatal(err)
		}
		var docs [][]byte
		namespace, enforce := "", ""
		for _, o := range objects {
			switch o := o.(type) {
			case *corev1.Namespace:
				namespace, enforce = o.Name, o.Labels["pod-security.kubernetes.io/enforce"]
			case *unstructured.Unstructured:
				continue // ARC is not here
			}
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			docs = append(docs, b)
		}
		if err := c.Apply(t.Context(), docs...); err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if template := podOf(t, o); template != nil {
				pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
				pod.APIVersion, pod.Kind, pod.Name, pod.Namespace = "v1", "Pod", "job", namespace
				b, err := yaml.Marshal(pod)
				if err != nil {
					t.Fatal(err)
				}
				if o.GetObjectKind().GroupVersionKind().Kind == "Deployment" { // its pods are started by nobody's hand
					b = []byte(strings.ReplaceAll(string(b), "restartPolicy: Never", ""))
				}
				if err := c.Apply(t.Context(), b); err != nil {
					t.Errorf("the pod of %s: %v", o.GetName(), err)
				}
			}
		}
		hostile := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hostile", "namespace": %q}, "spec": {"hostPID": true, "serviceAccountName": %q,
			"containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "root", "mountPath": "/host"}]}], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}`, namespace, isolation.RunnerAccount)
		if err := c.Apply(t.Context(), hostile); (err == nil) != (enforce == "privileged") || err != nil && !strings.Contains(err.Error(), "PodSecurity") {
			t.Errorf("in a namespace that is %s, a pod on the host: %v", enforce, err)
		}
		// The most that a container may use is bounded.
		large := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": %q}, "spec": {"serviceAccountName": %q, "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
			"containers": [{"name": "a", "image": "a", "resources": {"limits": {"cpu": "100"}}, "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`, namespace, isolation.RunnerAccount)
		if err := c.Apply(t.Context(), large); err == nil || !strings.Contains(err.Error(), "maximum cpu usage per Container") {
			t.Errorf("100 CPUs: %v", err)
		}
	})
}
