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

// FLEET-01: a real API server accepts all rendered objects, and its admission (pod security, quota,
// limits) accepts the pods: the test creates a job's pod directly. A pod that accesses the host is
// refused in each namespace, except where a pool has Docker.
func TestFLEET01_Admitted(t *testing.T) {
	c := kubetest.Start(t)
	classes := "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: runsc\n"
	for _, name := range []string{isolation.JobPriority, isolation.ManagerPriority} { // part of the chart
		classes += fmt.Sprintf("---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: 100\n", name)
	}
	if err := c.Apply(t.Context(), []byte(classes)); err != nil {
		t.Fatal(err)
	}
	org := 0
	each(t, func(t *testing.T, s isolation.Settings, u isolation.WorkloadSpec, _ []isolation.Object) {
		if u.Use.Type != v1alpha1.UseShared {
			return // only a label of the scale set differs, which is not applied here
		}
		// Each case gets its own namespace, because all are for one organisation.
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
				continue // ARC is not installed here
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
				if o.GetObjectKind().GroupVersionKind().Kind == "Deployment" { // no controller creates its pods here
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
		// The resources of a container are limited.
		large := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": %q}, "spec": {"serviceAccountName": %q, "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
			"containers": [{"name": "a", "image": "a", "resources": {"limits": {"cpu": "100"}}, "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`, namespace, isolation.RunnerAccount)
		if err := c.Apply(t.Context(), large); err == nil || !strings.Contains(err.Error(), "maximum cpu usage per Container") {
			t.Errorf("100 CPUs: %v", err)
		}
	})
}
