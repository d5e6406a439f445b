package controller

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/fleet/arc"
)

const (
	manyFields = `"managedFields":[{"manager":"ghalistener","operation":"Update","apiVersion":"actions.github.com/v1alpha1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:jobId":{}}},"subresource":"status"}]`
	podOf      = `{"metadata":{"labels":{"tailplane.dev/org":"acme","tailplane.dev/pool":"nix"}},"spec":{"serviceAccountName":"tailplane-runner","automountServiceAccountToken":false,"restartPolicy":"Never",
		"securityContext":{"runAsNonRoot":true,"runAsUser":1001,"fsGroup":1001,"seccompProfile":{"type":"RuntimeDefault"}},
		"containers":[{"name":"runner","image":"registry.invalid/runner:1","command":["/home/runner/run.sh"],"env":[{"name":"HOME","value":"/home/runner"},{"name":"LANG","value":"C.UTF-8"}],
		"resources":{"requests":{"cpu":"100m","memory":"128Mi"},"limits":{"cpu":"4","memory":"8Gi"}},"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}},
		"volumeMounts":[{"name":"work","mountPath":"/home/runner/_work"}]}],"volumes":[{"name":"work","emptyDir":{}}]}}`
	labelsOf = `"labels":{"app.kubernetes.io/managed-by":"tailplane","app.kubernetes.io/version":"0.14.2","tailplane.dev/org":"acme","tailplane.dev/pool":"nix","actions.github.com/scale-set-name":"acme-nix","actions.github.com/scale-set-namespace":"runners"}`
)

// kinds returns one object of each watched kind, in ARC's form.
func kinds(n int) []string {
	meta := func(kind, more string) string {
		return fmt.Sprintf(`{"apiVersion":"actions.github.com/v1alpha1","kind":%q,"metadata":{"namespace":"runners","name":"acme-nix-%d","uid":"u-%d","resourceVersion":"%d","creationTimestamp":"2026-01-02T03:04:05Z",%s,%s},`, kind, n, n, n, labelsOf, manyFields) + more
	}
	return []string{
		meta(arc.SetKind, `"spec":{"githubConfigUrl":"https://github.com/acme","githubConfigSecret":"acme-1","runnerScaleSetName":"acme-nix","runnerScaleSetLabels":["self-hosted","nix"],"minRunners":0,"maxRunners":3,"template":`+podOf+`},"status":{"phase":"Running"}}`),
		meta(arc.ListenerKind, `"spec":{"autoscalingRunnerSetName":"acme-nix","autoscalingRunnerSetNamespace":"runners","githubConfigSecret":"acme-1","maxRunners":3,"template":`+podOf+`}}`),
		meta(arc.RunnerSetKind, `"spec":{"replicas":2,"ephemeralRunnerSpec":{"githubConfigSecret":"acme-1","spec":`+podOf+`}},"status":{"phase":"Running"}}`),
		meta(arc.RunnerKind, `"spec":{"githubConfigSecret":"acme-1","spec":`+podOf+`},"status":{"phase":"Running","ready":true,"runnerId":7,"jobId":"j1","jobRepositoryName":"acme/app","jobDisplayName":"build","workflowRunId":11}}`),
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return u
}

func mustCache(t *testing.T, o any) *cachedObject {
	t.Helper()
	m, err := toCached(o)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*cachedObject)
}

// The memo of an object contains all fields that are read, and the object of the fleet's own scale
// set is restored unchanged.
func TestToCached(t *testing.T) {
	reads := []func(u *unstructured.Unstructured) any{
		func(u *unstructured.Unstructured) any { return arc.ReadSet(u) },
		func(u *unstructured.Unstructured) any { return arc.ReadListener(u) },
		func(u *unstructured.Unstructured) any { return arc.ReadRunnerSet(u) },
		func(u *unstructured.Unstructured) any { return arc.ReadRunner(u) },
	}
	for i, text := range kinds(1) {
		m := mustCache(t, object(t, text))
		if want := reads[i](object(t, text)); !reflect.DeepEqual(m.value, want) {
			t.Errorf("%T: %+v is cached for %+v", want, m.value, want)
		}
		again, err := toCached(m)
		if err != nil || again != any(m) {
			t.Errorf("a cached object is cached as %v, %v", again, err)
		}
		switch {
		case m.Namespace != "runners":
			t.Errorf("m.Namespace = %q, want %q", m.Namespace, "runners")
		case m.Name != "acme-nix-1":
			t.Errorf("m.Name = %q, want %q", m.Name, "acme-nix-1")
		case m.ResourceVersion != "1":
			t.Errorf("m.ResourceVersion = %q, want %q", m.ResourceVersion, "1")
		case indexKey(m.set) == "/":
			t.Errorf(`indexKey(m.set) == "/"; %v, %s, %s, %v`, m.value, m.Namespace, m.Name, m.set)
		}
	}
	text := kinds(1)[0]
	set, err := mustCache(t, object(t, text)).unmarshal()
	if err != nil {
		t.Fatal(err)
	}
	want := object(t, text)
	want.SetManagedFields(nil)
	delete(want.Object, "status")
	if !reflect.DeepEqual(set, want) {
		t.Errorf("the scale set is given back as %v, not %v", set, want)
	}
	runner := mustCache(t, object(t, kinds(1)[3])).value.(arc.Runner)
	if runner.Job == nil || runner.Job.Started.IsZero() {
		t.Errorf("the start of the job is not cached: %+v", runner.Job)
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "controller", Labels: map[string]string{"app.kubernetes.io/version": "0.14.2"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if p, ok := mustCache(t, other.DeepCopy()).value.(*corev1.Pod); !ok || !reflect.DeepEqual(p, other) {
		t.Errorf("a pod without a listener is cached as %v", p)
	}
	if _, err := toCached("text"); err == nil {
		t.Error("a value that is not an object is cached")
	}
}

// FLEET-20: memos use a small part of the memory of whole objects, which consist mostly of pod
// templates.
func TestFLEET20_Remembered(t *testing.T) {
	const sets = 500
	held := func(keep func(*unstructured.Unstructured) any) (bytes uint64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var all []any
		for n := range sets {
			for _, text := range kinds(n) {
				all = append(all, keep(object(t, text)))
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(all)
		return after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)
	}
	objects := held(func(u *unstructured.Unstructured) any {
		u.SetManagedFields(nil)
		return u
	})
	memos := held(func(u *unstructured.Unstructured) any { return mustCache(t, u) })
	t.Logf("%d scale sets with a listener, a runner set and a runner each: %d bytes for each as objects, %d in the cache", sets, objects/sets, memos/sets)
	if memos*5 > objects {
		t.Errorf("the cache of %d scale sets takes %d bytes, and their objects %d", sets, memos, objects)
	}
}
