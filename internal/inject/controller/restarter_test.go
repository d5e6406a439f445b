package controller

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// web creates a Deployment whose pods have an adapter with that hash, as the webhook would leave it, and
// waits until its rollout is complete.
func web(t *testing.T, client *kubernetes.Clientset, ns, name string, annotations map[string]string, hash string) {
	t.Helper()
	labels := map[string]string{"app": name}
	o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{inject.Status: fmt.Sprintf(`{"version":"v1","hash":%q}`, hash)}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		},
	}}
	if _, err := client.AppsV1().Deployments(ns).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSettled(t, client, ns, name)
}

// waitSettled reports the pods as ready in place of a kubelet, until the rollout of the Deployment is
// complete.
func waitSettled(t *testing.T, client *kubernetes.Clientset, ns, name string) {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		w, err := getWorkload(t.Context(), client, "deployments", ns, name)
		if err != nil {
			t.Fatal(err)
		}
		if !w.rollingOut {
			return
		}
		pods, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			// the pod may be deleted or changed; the next check shows it
			_, _ = client.CoreV1().Pods(ns).UpdateStatus(t.Context(), &p, metav1.UpdateOptions{})
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not settle: %d pods", name, len(pods.Items))
		}
	}
}

// TestRestarts checks section 11.4: workloads that request it are restarted one at a time, each once for one
// adapter. No other workload is restarted.
func TestRestarts(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	today, err := inject.Hash(nil, options())
	if err != nil {
		t.Fatal(err)
	}
	optedIn := map[string]string{inject.AutoRestart: "true"}
	web(t, client, ns, "a", optedIn, "sha256:old")
	web(t, client, ns, "b", optedIn, "sha256:old")
	web(t, client, ns, "current", optedIn, today)
	web(t, client, ns, "silent", nil, "sha256:old")
	web(t, client, ns, "says-no", map[string]string{inject.AutoRestart: "false"}, "sha256:old")

	r := &Restarter{Config: config, Namespace: ns, Lease: "restarts", Identity: "one", Options: options(), Interval: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	check := func(why, want string) {
		t.Helper()
		if want != "" {
			want = "deployments/" + ns + "/" + want
		}
		if got, err := r.restartOutdated(t.Context(), client); err != nil || got != want {
			t.Errorf("%s: restarted %q, want %q: %v", why, got, want, err)
		}
	}
	check("the first of those that ask", "a")
	check("it is under way", "")
	waitSettled(t, client, ns, "a")
	check("then the next", "b")
	waitSettled(t, client, ns, "b")
	check("each once", "")
	restarted := func(name string) string {
		t.Helper()
		o, err := client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.Spec.Template.Annotations[inject.RestartedFor]
	}
	for name, want := range map[string]string{"a": today, "b": today, "current": "", "silent": "", "says-no": ""} {
		if got := restarted(name); got != want {
			t.Errorf("%s was restarted for %q, want %q", name, got, want)
		}
	}

	// A new adapter version: the loop restarts workloads while it leads.
	if _, err := client.CoordinationV1().Leases(ns).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.Lease}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Options.Sidecar.Image = "registry.example/mca@sha256:1111111111111111111111111111111111111111111111111111111111111111"
	tomorrow, err := inject.Hash(nil, r.Options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for _, name := range []string{"a", "b", "current"} {
		for end := time.Now().Add(long); restarted(name) != tomorrow; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not restarted", name)
			}
		}
		waitSettled(t, client, ns, name)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
