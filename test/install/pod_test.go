//go:build unix

package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/settings"
)

// podOf returns the pod that an object creates.
func podOf(t *testing.T, u *unstructured.Unstructured) (corev1.PodSpec, bool) {
	t.Helper()
	switch u.GetKind() {
	case "StatefulSet":
		set := as[appsv1.StatefulSet](t, u).Spec
		for _, claim := range set.VolumeClaimTemplates { // its controller creates one for each pod
			set.Template.Spec.Volumes = append(set.Template.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + u.GetName() + "-0"}}})
		}
		return set.Template.Spec, true
	case "Deployment":
		return as[appsv1.Deployment](t, u).Spec.Template.Spec, true
	}
	return corev1.PodSpec{}, false
}

// Every pod finds its settings. Every tailnet node finds its Secret, which its account may write.
func TestPodsFindTheirOwn(t *testing.T) {
	for _, p := range profiles(t) {
		all := objects(t, render(t, p.values))
		find := func(kind, ns, name string) *unstructured.Unstructured {
			t.Helper()
			i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool {
				return u.GetKind() == kind && u.GetNamespace() == ns && u.GetName() == name
			})
			if i < 0 {
				t.Fatalf("%s: %s %s does not exist", p.name, kind, name)
			}
			return all[i]
		}
		seen := 0
		for _, u := range all {
			spec, ok := podOf(t, u)
			if !ok {
				continue
			}
			seen++
			find("ServiceAccount", u.GetNamespace(), spec.ServiceAccountName)
			if u.GetName() == "tailplane-gateway" || u.GetName() == "tailplane-fleet" {
				continue // a role with its own settings and namespace: TestGatewaySettingsInStep and TestFleetSettingsInStep cover it
			}
			replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
			config := spec.Containers[0].Args[1]
			for i := range replicas {
				if u.GetKind() == "StatefulSet" {
					env := spec.Containers[0].Env[0]
					if env.Name != "POD_NAME" || env.ValueFrom.FieldRef.FieldPath != "metadata.name" {
						t.Fatalf("%s: env %+v", p.name, env)
					}
					config = strings.ReplaceAll(spec.Containers[0].Args[1], "$(POD_NAME)", fmt.Sprintf("%s-%d", u.GetName(), i))
				}
				file, ok := strings.CutPrefix(config, "--config="+spec.Containers[0].VolumeMounts[0].MountPath+"/")
				text, found, _ := unstructured.NestedString(find("ConfigMap", systems, spec.Volumes[0].ConfigMap.Name).Object, "data", file)
				if !ok || !found {
					t.Errorf("%s: %s %s runs with %s, which is not there", p.name, u.GetKind(), u.GetName(), config)
					continue
				}
				f, err := settings.Parse([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if f.Signin.SystemNamespace != systems || f.Signin.Namespace == "" {
					t.Errorf("%s: namespaces %s, %s", p.name, f.Signin.SystemNamespace, f.Signin.Namespace)
				}
				// The key of an audit log is in a Secret that only its own account may write.
				holder, own := "tailplane-operator", "tailplane-operator-audit-key"
				if u.GetKind() == "StatefulSet" {
					holder, own = "tailplane-access", "tailplane-audit-key"
				}
				find("Secret", systems, own)
				if f.Audit.KeySecret != own {
					t.Errorf("%s: %s signs its record by %s", p.name, u.GetName(), f.Audit.KeySecret)
				}
				for _, name := range []string{"tailplane-access", "tailplane-operator"} {
					may := false
					for _, o := range all {
						if o.GetKind() == "Role" && o.GetNamespace() == systems && o.GetName() == name {
							may = slices.ContainsFunc(as[rbacv1.Role](t, o).Rules, func(r rbacv1.PolicyRule) bool {
								return slices.Contains(r.Resources, "secrets") && slices.Contains(r.ResourceNames, own)
							})
						}
					}
					if may != (name == holder) {
						t.Errorf("%s: the Role %s may write %s: %v", p.name, name, own, may)
					}
				}
				secret := f.Tailnet.StateSecret
				if u.GetKind() != "StatefulSet" {
					if secret != "" {
						t.Errorf("%s: %s has the state %s", p.name, u.GetName(), secret)
					}
					continue
				}
				find("Secret", systems, secret)
				role := as[rbacv1.Role](t, find("Role", systems, "tailplane-access"))
				if !slices.Contains(role.Rules[0].ResourceNames, secret) {
					t.Errorf("%s: %s may not write %s", p.name, spec.ServiceAccountName, secret)
				}
			}
		}
		if seen == 0 {
			t.Errorf("%s: no pods", p.name)
		}
	}
}

// DS-05: the API server admits every pod of every profile to a namespace that enforces the restricted Pod Security
// Standard. It would refuse pods without the settings of these pods.
func TestDS05_PodsAreAdmitted(t *testing.T) {
	c := place(t)
	k := clientsOf(t, c.AdminConfig())
	accounts := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: " + systems + "}\n"
	for _, a := range []string{"tailplane", "tailplane-access", "tailplane-operator", "tailplane-inject", "tailplane-gateway", "tailplane-plane", "tailplane-fleet", "tailplane-proxy", "tailplane-recorder"} {
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
			// Requirements of the product beyond the standard.
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
			switch {
			case spec.EnableServiceLinks == nil:
				t.Errorf("%s: service links: spec.EnableServiceLinks is nil", who)
			case *spec.EnableServiceLinks:
				t.Errorf("%s: service links: *spec.EnableServiceLinks is true, %v, %q",
					who, spec.EnableServiceLinks, spec.ServiceAccountName)
			case spec.ServiceAccountName == "":
				t.Errorf("%s: service links: spec.ServiceAccountName is empty, %v, %q",
					who, spec.EnableServiceLinks, spec.ServiceAccountName)
			case spec.ServiceAccountName == "default":
				t.Errorf("%s: service links: spec.ServiceAccountName = %q", who, spec.ServiceAccountName)
			}
		}
	}
	if seen < 6 {
		t.Errorf("looked at %d pods only", seen)
	}
}
