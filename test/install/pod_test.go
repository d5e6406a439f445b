//go:build unix

package install

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// podOf returns the pod that an object makes.
func podOf(t *testing.T, u *unstructured.Unstructured) (corev1.PodSpec, bool) {
	t.Helper()
	switch u.GetKind() {
	case "StatefulSet":
		return as[appsv1.StatefulSet](t, u).Spec.Template.Spec, true
	case "Deployment":
		return as[appsv1.Deployment](t, u).Spec.Template.Spec, true
	}
	return corev1.PodSpec{}, false
}

// DS-05: the API server admits every pod of every profile to a namespace that
// enforces the restricted Pod Security Standard, and would refuse a pod that does
// what ours do not.
func TestDS05_PodsAreAdmitted(t *testing.T) {
	c := place(t)
	k := clientsOf(t, c.AdminConfig())
	accounts := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: " + systems + "}\n"
	for _, a := range []string{"tailplane", "tailplane-access", "tailplane-operator"} {
		if err := c.Apply(t.Context(), fmt.Appendf(nil, accounts, a)); err != nil {
			t.Fatal(err)
		}
	}
	try := func(spec corev1.PodSpec) error {
		_, err := k.CoreV1().Pods(systems).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "candidate"}, Spec: spec},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		return err
	}
	seen := 0
	for _, p := range profiles(t) {
		for _, u := range objects(t, render(t, p.values)) {
			spec, ok := podOf(t, u)
			if !ok {
				continue
			}
			seen++
			who := fmt.Sprintf("%s: %s %s", p.name, u.GetKind(), u.GetName())
			if err := try(spec); err != nil {
				t.Errorf("%s: %v", who, err)
			}
			for why, change := range map[string]func(*corev1.PodSpec){
				"root":         func(s *corev1.PodSpec) { s.SecurityContext.RunAsUser = new(int64(0)) },
				"a shell's up": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true) },
				"capabilities": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Capabilities.Drop = nil },
				"no seccomp":   func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil },
				"the host's files": func(s *corev1.PodSpec) {
					s.Volumes = append(s.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
				},
				"the host's network": func(s *corev1.PodSpec) { s.HostNetwork = true; s.Containers[0].Ports = nil },
			} {
				worse := *spec.DeepCopy()
				change(&worse)
				if err := try(worse); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PodSecurity") {
					t.Errorf("%s with %s: %v, want it refused by Pod Security", who, why, err)
				}
			}
			// What the standard does not ask for, and we do.
			for _, container := range spec.Containers {
				s := container.SecurityContext
				if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s can write its root", who)
				}
				for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
					least, most := container.Resources.Requests[r], container.Resources.Limits[r]
					if least.IsZero() || most.IsZero() {
						t.Errorf("%s asks for no %s, or has no bound", who, r)
					}
				}
				if container.LivenessProbe == nil || container.ReadinessProbe == nil {
					t.Errorf("%s has no probes", who)
				}
			}
			if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks || spec.ServiceAccountName == "" || spec.ServiceAccountName == "default" {
				t.Errorf("%s: service links %v, account %q", who, spec.EnableServiceLinks, spec.ServiceAccountName)
			}
		}
	}
	if seen < 6 {
		t.Errorf("looked at %d pods only", seen)
	}
}
