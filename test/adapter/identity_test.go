package adapter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const fromKey = "mca.tailplane.dev/from-cluster"

// If the configuration enables it, merged lists, watches and tables annotate each object with its cluster, whatever
// the object contains. An answer of a single cluster is not changed.
func TestSeveral_Annotate(t *testing.T) {
	shared := three(t)
	shared.clean(t)
	s := shared.beside(t, severalConfig+"annotate: true\n")
	for _, cluster := range []string{"east", "west"} {
		cm := configMap("shop", "in-"+cluster, nil)
		cm.Annotations = map[string]string{fromKey: "the moon", "mine": cluster}
		if _, err := s.admin[cluster].CoreV1().ConfigMaps("shop").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, m metav1.ObjectMeta) {
		t.Helper()
		cluster, ours := strings.CutPrefix(m.Name, "in-")
		if ours && (m.Annotations[fromKey] != cluster || m.Annotations["mine"] != cluster) {
			t.Errorf("%s: %s has %v", what, m.Name, m.Annotations)
		}
	}
	proto := rest.CopyConfig(config(t, s.adapter))
	proto.ContentType = "application/vnd.kubernetes.protobuf"
	k, err := kubernetes.NewForConfig(proto)
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"shop", ""} {
		list, err := k.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, cm := range list.Items {
			if strings.HasPrefix(cm.Name, "in-") {
				n++
				check(fmt.Sprintf("list of namespace %q", namespace), cm.ObjectMeta)
			}
		}
		if n != 2 {
			t.Errorf("list of namespace %q has %d of 2", namespace, n)
		}
	}
	watch, err := k.CoreV1().ConfigMaps("shop").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	seen := map[string]bool{}
	for deadline := time.After(limit); len(seen) < 2; {
		select {
		case ev, open := <-watch.ResultChan():
			if !open {
				t.Fatal("the watch ended")
			}
			if cm, ok := ev.Object.(*corev1.ConfigMap); ok && strings.HasPrefix(cm.Name, "in-") {
				seen[cm.Name] = true
				check("watch", cm.ObjectMeta)
			}
		case <-deadline:
			t.Fatalf("the watch reports only %v", seen)
		}
	}
	for _, query := range []string{"", "?watch=true&timeoutSeconds=2", "?limit=1"} {
		s.tables(t, "/api/v1/namespaces/shop/configmaps"+query, func(m metav1.ObjectMeta) { check("table "+query, m) })
	}
	got, err := k.CoreV1().ConfigMaps("shop").Get(t.Context(), "in-east", metav1.GetOptions{})
	if err != nil || got.Annotations[fromKey] != "the moon" {
		t.Errorf("one object has %v (%v)", got.Annotations, err)
	}
}

// ADP-18: a cluster whose identity differs from the configuration receives no requests, and the adapter reports that.
// The correct cluster is used.
func TestSeveral_AnotherCluster(t *testing.T) {
	shared := three(t)
	shared.clean(t)
	ns, err := shared.admin["east"].CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const east, west = "- {name: east, slot: 1,", "- {name: west, slot: 2,"
	text := strings.Replace(severalConfig, east, east+" uid: "+string(ns.UID)+",", 1)
	text = strings.Replace(text, west, west+" uid: 00000000-0000-4000-8000-000000000001,", 1)
	s := shared.beside(t, text)
	k := s.client(t)
	if _, err := k.CoreV1().ConfigMaps("production").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("east is the expected cluster: %v", err)
	}
	c := k.CoreV1().RESTClient() // clients repeat answers with a Retry-After
	for says, req := range map[string]*rest.Request{
		"another cluster answers": c.Get().MaxRetries(0),
		"did not answer":          c.Post().MaxRetries(0).Body(configMap("shop", "astray", map[string]string{pinKey: "west"})),
	} {
		err := req.Namespace("shop").Resource("configmaps").Do(t.Context()).Error()
		switch {
		case !apierrors.IsServiceUnavailable(err):
			t.Errorf("apierrors.IsServiceUnavailable(err) is false; %v, says = %s", err, says)
		case !strings.Contains(err.Error(), "west"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "west")
		case !strings.Contains(err.Error(), says):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), says)
		}
	}
	if in := s.has(t, "shop", "astray"); in != "" {
		t.Errorf("made in %s", in)
	}
	for path, says := range map[string][]string{
		"/readyz?verbose": {"west: unhealthy", "another cluster answers"},
		"/debug/clusters": {"another cluster answers"},
		"/metrics":        {`mca_cluster_healthy{cluster="west"} 0`, `mca_cluster_healthy{cluster="east"} 1`},
	} {
		body := s.adminPortAs(t, config(t, s.adapter).BearerToken, path)
		for _, say := range says {
			if !strings.Contains(body, say) {
				t.Errorf("%s does not contain %q:\n%s", path, say, body)
			}
		}
	}
}
