//go:build unix

package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/inject"
)

// ADP-27: Acceptance 27, IN-04, IN-05, IN-06: the webhook on a real API server, with the manifests of an
// installation and exactly the rights of its ServiceAccount.
func TestWebhookOnAPIServer(t *testing.T) {
	ln := listen(t)
	p := newEnv(t, ln.Addr().String())
	p.replica(ln, nil)
	p.waitServing()
	plain := p.Namespace(t)

	t.Run("labelled and not", func(t *testing.T) {
		for why, text := range map[string]string{
			"as people write it":  optedInAnnotation,
			"automount true":      strings.Replace(optedInAnnotation, "spec: {", "spec: {automountServiceAccountToken: true, ", 1),
			"automount false":     strings.Replace(optedInAnnotation, "spec: {", "spec: {automountServiceAccountToken: false, ", 1),
			"init containers":     strings.Replace(optedInAnnotation, "spec: {", "spec: {initContainers: [{name: a, image: a}, {name: b, image: b, restartPolicy: Always}], ", 1),
			"account of its own":  strings.Replace(optedInAnnotation, "spec: {", "spec: {serviceAccountName: quiet, ", 1),
			"account, and a word": strings.Replace(optedInAnnotation, "spec: {", "spec: {automountServiceAccountToken: true, serviceAccountName: quiet, ", 1),
		} {
			if strings.Contains(text, "quiet") {
				quiet := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}, AutomountServiceAccountToken: new(false)}
				if _, err := p.admin.CoreV1().ServiceAccounts(plain).Create(t.Context(), quiet, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
					t.Fatal(err)
				}
			}
			pod, err := p.pod(plain, text)
			if err == nil {
				err = injected(pod)
			}
			if err != nil {
				t.Errorf("%s: %v", why, err)
			}
		}
		for why, text := range map[string]string{
			"no label": strings.Replace(optedInAnnotation, `mca.tailplane.dev/inject: "true"`, "", 1), "opted out": strings.Replace(optedInAnnotation, `"true"`, `"false"`, 1),
		} {
			pod, err := p.pod(plain, text)
			switch {
			case err != nil:
				t.Errorf("%s: %v", why, err)
			case len(pod.Spec.InitContainers) > 0:
				t.Errorf("%s: len(pod.Spec.InitContainers) = %v, want at most 0", why, len(pod.Spec.InitContainers))
			case pod.Annotations[inject.Status] != "":
				t.Errorf("%s: pod.Annotations[inject.Status] = %q, want none", why, pod.Annotations[inject.Status])
			}
		}
	})

	t.Run("namespaces", func(t *testing.T) {
		unlabelled := strings.Replace(optedInAnnotation, `mca.tailplane.dev/inject: "true"`, "", 1)
		for _, tt := range []struct {
			why, label, pod string
			has             bool
		}{
			{"the namespace asks", "true", unlabelled, true},
			{"both ask", "true", optedInAnnotation, true},
			{"the pod opts out", "true", strings.Replace(optedInAnnotation, `"true"`, `"false"`, 1), false},
			{"it cannot, and did not ask", "true", strings.Replace(unlabelled, "spec: {", "spec: {hostNetwork: true, ", 1), false},
			{"the namespace keeps it out", "false", optedInAnnotation, false},
		} {
			pod, err := p.pod(p.namespace(map[string]string{inject.Label: tt.label}), tt.pod)
			if err != nil {
				t.Errorf("%s: %v", tt.why, err)
			} else if err := injected(pod); (err == nil) != tt.has {
				t.Errorf("%s: %v", tt.why, err)
			}
		}
	})

	t.Run("refused", func(t *testing.T) {
		_, err := p.pod(plain, strings.Replace(optedInAnnotation, "spec: {", "spec: {hostNetwork: true, ", 1))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "host_network") {
			t.Error(err)
		}
	})

	t.Run("IN-06 restricted", func(t *testing.T) {
		ns := p.namespace(map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		pod, err := p.pod(ns, `
metadata: {labels: {mca.tailplane.dev/inject: "true"}}
spec:
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers: [{name: application, image: app, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}}]
`)
		if err == nil {
			err = injected(pod)
		}
		if err != nil {
			t.Error(err)
		}
	})

	t.Run("IN-06 quota and class", func(t *testing.T) {
		ns := p.Namespace(t)
		p.apply(fmt.Sprintf(`
apiVersion: v1
kind: ResourceQuota
metadata: {name: all, namespace: %s}
spec: {hard: {requests.cpu: "4", requests.memory: 4Gi, limits.cpu: "4", limits.memory: 4Gi}}
`, ns))
		// No controller computes quotas here; admission uses the status.
		q, err := p.admin.CoreV1().ResourceQuotas(ns).Get(t.Context(), "all", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{}
		for name := range q.Spec.Hard {
			q.Status.Used[name] = resource.Quantity{}
		}
		if _, err := p.admin.CoreV1().ResourceQuotas(ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.waitUntil(func() error { // admission must see the quota: it then refuses pods without resources
			if _, err := p.pod(ns, strings.Replace(optedInAnnotation, `"true"`, `"false"`, 1)); !apierrors.IsForbidden(err) {
				return fmt.Errorf("the quota is not in force yet: %v", err)
			}
			return nil
		})
		for resources, class := range map[string]corev1.PodQOSClass{
			`{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1", memory: 128Mi}}`: corev1.PodQOSBurstable,
			`{limits: {cpu: "1", memory: 128Mi}}`:                                      corev1.PodQOSGuaranteed,
		} {
			pod, err := p.pod(ns, strings.Replace(optedInAnnotation, "image: app", "image: app, resources: "+resources, 1))
			if err == nil {
				err = injected(pod)
			}
			if err != nil || pod.Status.QOSClass != class {
				t.Errorf("%s: %v, class %s, want %s", resources, err, pod.Status.QOSClass, class)
			}
		}
	})

	t.Run("IN-06 limit range", func(t *testing.T) {
		ns := p.Namespace(t)
		p.apply(fmt.Sprintf(`
apiVersion: v1
kind: LimitRange
metadata: {name: all, namespace: %s}
spec: {limits: [{type: Container, default: {cpu: 500m, memory: 256Mi}, defaultRequest: {cpu: 100m, memory: 128Mi}}]}
`, ns))
		p.waitUntil(func() error { // the API server's admission must see it
			pod, err := p.pod(ns, strings.Replace(optedInAnnotation, `"true"`, `"false"`, 1))
			if err == nil && pod.Spec.Containers[0].Resources.Limits == nil {
				err = fmt.Errorf("the limits are not in force yet")
			}
			return err
		})
		pod, err := p.pod(ns, optedInAnnotation)
		if err == nil {
			err = injected(pod)
		}
		if err != nil || pod.Status.QOSClass != corev1.PodQOSBurstable {
			t.Errorf("%v, class %s", err, pod.Status.QOSClass)
		}
	})

	t.Run("ephemeral container", func(t *testing.T) {
		pod, err := p.pod(plain, strings.Replace(optedInAnnotation, "metadata: {", "metadata: {name: debugged, ", 1))
		if err != nil {
			t.Fatal(err)
		}
		debug := func(name, more string) (*corev1.Pod, error) {
			patch := fmt.Sprintf(`{"spec":{"ephemeralContainers":[{"name":%q,"image":"busybox","targetContainerName":"application"%s}]}}`, name, more)
			return p.admin.CoreV1().Pods(plain).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "ephemeralcontainers")
		}
		for _, name := range []string{"first", "second"} {
			got, err := debug(name, "")
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(got.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
			c := got.Spec.EphemeralContainers[i]
			switch {
			case len(c.Env) != 8:
				t.Errorf("len(c.Env) = %v, want 8", len(c.Env))
			case len(c.VolumeMounts) != 1:
				t.Errorf("len(c.VolumeMounts) = %v, want 1", len(c.VolumeMounts))
			case c.VolumeMounts[0].Name != "mca-access":
				t.Errorf("c.VolumeMounts[0].Name = %q, want %q", c.VolumeMounts[0].Name, "mca-access")
			}
		}
		if _, err := debug("third", `,"volumeMounts":[{"name":"kube-api-access-sa","mountPath":"/x"}]`); !apierrors.IsForbidden(err) {
			t.Errorf("AD-03: with the real credential: %v", err)
		}
		if _, err := debug("third", `,"targetContainerName":"mca"`); !apierrors.IsForbidden(err) {
			t.Errorf("AD-03: with the adapter's processes: %v", err)
		}
	})

	t.Run("Deployment", func(t *testing.T) {
		p.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, mca.tailplane.dev/inject: "true"}}
    spec: {containers: [{name: application, image: app}]}
`, plain))
		p.waitUntil(func() error {
			pods, err := p.admin.CoreV1().Pods(plain).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
			if err == nil && len(pods.Items) < 2 {
				err = fmt.Errorf("%d pods", len(pods.Items))
			}
			if err != nil {
				return err
			}
			for _, pod := range pods.Items {
				if err := injected(&pod); err != nil {
					t.Fatal(err)
				}
			}
			return nil
		})
	})

	t.Run("documents", func(t *testing.T) {
		create := func(doc, label string) error {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-", Labels: map[string]string{"mca.tailplane.dev/config": label}}, Data: map[string]string{"config.yaml": doc}}
			_, err := p.admin.CoreV1().ConfigMaps(plain).Create(t.Context(), c, metav1.CreateOptions{})
			return err
		}
		p.waitUntil(func() error { // it is accepted until the API server trusts the webhook
			if err := create("bad", "true"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "line 1: bad") {
				return fmt.Errorf("a bad document: %v", err)
			}
			return nil
		})
		if err := create("good", "true"); err != nil {
			t.Error(err)
		}
		if err := create("bad", "other"); err != nil {
			t.Errorf("an unrelated ConfigMap: %v", err)
		}
	})

	t.Run("drift", func(t *testing.T) {
		ns := p.Namespace(t)
		pod, err := p.pod(ns, optedInAnnotation)
		if err != nil {
			t.Fatal(err)
		}
		found := func(o inject.Options) (here []OutdatedPod, injected int) {
			d, err := FindOutdated(t.Context(), p.AdminConfig(), o)
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(d.Pods, func(x OutdatedPod) bool { return x.Namespace != ns }), d.Injected
		}
		if here, injected := found(options()); len(here) > 0 || injected == 0 {
			t.Errorf("a pod with the current adapter: %v of %d", here, injected)
		}
		newer := options()
		newer.Sidecar.Image = strings.ReplaceAll(image, "a", "b")
		if here, _ := found(newer); len(here) != 1 || here[0] != (OutdatedPod{ns, pod.Name, "", "v1.2.3"}) {
			t.Errorf("a pod with an outdated adapter: %+v", here)
		}
	})

	t.Run("required", func(t *testing.T) {
		ns := p.namespace(map[string]string{"mca.tailplane.dev/require": "true"})
		bare := strings.Replace(optedInAnnotation, `mca.tailplane.dev/inject: "true"`, "", 1)
		p.waitUntil(func() error { // admission must see the policy
			if _, err := p.pod(ns, bare); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				return fmt.Errorf("a pod without the adapter: %v", err)
			}
			return nil
		})
		pod, err := p.pod(ns, optedInAnnotation)
		if err == nil {
			err = injected(pod)
		}
		if err != nil {
			t.Error(err)
		}
		// From a manifest, to which a mount of the real credential in another container was added by hand.
		b, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		forged := new(corev1.Pod)
		if err := json.Unmarshal(b, forged); err != nil {
			t.Fatal(err)
		}
		forged.ObjectMeta = metav1.ObjectMeta{GenerateName: "p-", Annotations: pod.Annotations}
		forged.Spec.Containers[0].VolumeMounts[0].Name = "kube-api-access-sa"
		if _, err := p.admin.CoreV1().Pods(ns).Create(t.Context(), forged, metav1.CreateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("a pod with the real credential and the adapter: %v", err)
		}
		forged.Spec.Containers[0].VolumeMounts[0].Name = "mca-access"
		if _, err := p.admin.CoreV1().Pods(ns).Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
			t.Errorf("the same without that: %v", err)
		}
	})
}
