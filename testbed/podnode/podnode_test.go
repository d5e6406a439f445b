//go:build linux

package podnode_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// limit bounds every wait. It is long because the machine may be busy.
const limit = 2 * time.Minute

// Images of the tests.
const (
	clientImage = "testbed.invalid/podclient"
	toolsImage  = "testbed.invalid/tools"
	mcaImage    = "testbed.invalid/mca"
)

type bench struct {
	*kubetest.Cluster
	node      *testenv.Node
	client    *kubernetes.Clientset
	namespace string
}

// start starts a cluster's node for the test. Its pods are isolated, unless the machine does not support that.
func start(t *testing.T, o testenv.NodeOptions) *bench {
	t.Helper()
	c := kubetest.Start(t)
	o.Name = strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	if o.Images == nil {
		o.Images = map[string]string{}
	}
	o.Images[clientImage], o.Images[toolsImage] = "podclient", "/"
	n, err := testenv.StartNode(t.Context(), c, t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			b, err := os.ReadFile(n.Log)
			t.Logf("the node's log (%v):\n%s", err, b)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
		defer cancel()
		if err := client.CoreV1().Nodes().Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return &bench{Cluster: c, node: n, client: client, namespace: c.Namespace(t)}
}

// isolated skips a test that needs isolated pods.
func (b *bench) isolated(t *testing.T) {
	t.Helper()
	if !b.node.Isolated {
		t.Skipf("SKIP namespaces: %s", b.node.Reason)
	}
}

// create creates a pod on this test's node.
func (b *bench) create(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	if p.Spec.NodeSelector == nil {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: b.node.Name}
	}
	made, err := b.client.CoreV1().Pods(b.namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// wait waits until good returns true for the pod, and returns the pod.
func (b *bench) wait(t *testing.T, name, what string, good func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		p, err := b.client.CoreV1().Pods(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && good(p) {
			return p
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pod %s is not %s: %v: %+v", name, what, err, p.Status)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// gone waits until the pod's object is deleted.
func (b *bench) gone(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		_, err := b.client.CoreV1().Pods(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pod %s is still there: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kubectl runs the real kubectl as the admin.
func (b *bench) kubectl(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, errs, code := kubetest.Kubectl(ctx, b.Kubeconfig, append([]string{"-n", b.namespace}, args...)...)
	return strings.TrimSpace(out + errs), code
}

// run runs kubectl with additional environment variables and standard input, and returns all its output.
func (b *bench) run(t *testing.T, env []string, stdin string, args ...string) (string, int) {
	t.Helper()
	bin, err := buildcache.Lookup("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append([]string{"--kubeconfig", b.Kubeconfig, "-n", b.namespace}, args...)...)
	cmd.Env = append([]string{"KUBECACHEDIR=" + t.TempDir(), "KUBERC=off"}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// allow grants the namespace's default account the rights that podclient needs.
func (b *bench) allow(t *testing.T) {
	t.Helper()
	_, err := b.client.RbacV1().Roles(b.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "client"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch", "create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = b.client.RbacV1().RoleBindings(b.namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "client"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default"}}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "client"}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// application returns a pod that runs podclient with an HTTP probe.
func application(namespace string) *corev1.Pod {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}}}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "app", Image: clientImage, Args: []string{"-namespace", "$(NAMESPACE)"}, ReadinessProbe: probe("/readyz"),
		Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 8080}},
		Env:   []corev1.EnvVar{{Name: "NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}},
	}}}}
}

// TB-08: an ordinary in-cluster program starts, gets its token, becomes ready, restarts after a crash and drains on
// deletion.
func TestLife(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	b.allow(t)
	b.create(t, application(b.namespace))
	p := b.wait(t, "app", "ready", ready)
	switch {
	case p.Status.Phase != corev1.PodRunning:
		t.Errorf("phase: p.Status.Phase = %q, want %q", p.Status.Phase, corev1.PodRunning)
	case p.Status.PodIP == "":
		t.Errorf("phase: p.Status.PodIP is empty; %s, %q, %q", p.Status.Phase, p.Status.PodIP, p.Spec.NodeName)
	case p.Spec.NodeName != b.node.Name:
		t.Errorf("phase: p.Spec.NodeName = %q, want %q", p.Spec.NodeName, b.node.Name)
	}
	out, code := b.kubectl(t, "logs", "app")
	for _, says := range []string{"server https://10.96.0.1:443", "listed 1", "created podclient-", "watched podclient-", "leads podclient"} {
		if !strings.Contains(out, says) || code != 0 {
			t.Errorf("the output lacks %q (%d):\n%s", says, code, out)
		}
	}

	began := time.Now()
	b.crash(t, "app")
	p = b.wait(t, "app", "restarted", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p)
	})
	switch l := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; {
	case l == nil:
		t.Error("l is nil")
	case l.ExitCode != 42:
		t.Errorf("l.ExitCode = %v, want 42", l.ExitCode)
	case l.Reason != "Error":
		t.Errorf("l.Reason = %q, want %q", l.Reason, "Error")
	}
	t.Logf("ready again %v after the crash", time.Since(began).Round(time.Millisecond))
	if out, _ := b.kubectl(t, "logs", "--previous", "app"); !strings.Contains(out, "leads podclient") {
		t.Errorf("the log of the run before: %s", out)
	}

	said, begun := b.follow(t, "app")
	<-begun
	if err := b.client.CoreV1().Pods(b.namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.gone(t, "app")
	select {
	case out := <-said:
		if !strings.HasSuffix(out, "\nstopped normally\n") {
			t.Errorf("who followed the log did not see the end:\n%s", out)
		}
	case <-time.After(limit):
		t.Error("the follower of the log did not see the end")
	}
	lease, err := b.client.CoordinationV1().Leases(b.namespace).Get(t.Context(), "podclient", metav1.GetOptions{})
	switch {
	case err != nil:
		t.Errorf("it did not release its lease, so it did not stop normally: %v", err)
	case lease.Spec.HolderIdentity == nil:
		t.Error("it did not release its lease, so it did not stop normally: lease.Spec.HolderIdentity is nil")
	case *lease.Spec.HolderIdentity != "":
		t.Errorf("it did not release its lease, so it did not stop normally: got %q, want none", *lease.Spec.HolderIdentity)
	}
}

// follow follows a pod's log with the real kubectl. begun is closed when the first output has arrived. all receives
// the whole output at the end.
func (b *bench) follow(t *testing.T, name string) (all <-chan string, begun <-chan struct{}) {
	t.Helper()
	bin, err := buildcache.Lookup("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	cmd := exec.CommandContext(ctx, bin, "--kubeconfig", b.Kubeconfig, "-n", b.namespace, "logs", "-f", name)
	cmd.Env = []string{"KUBECACHEDIR=" + t.TempDir(), "KUBERC=off"}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended, first := make(chan string, 1), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		close(first)
		rest, _ := io.ReadAll(r)
		_ = cmd.Wait()
		ended <- line + string(rest)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return ended, first
}

// forward forwards a local port to a pod with the real kubectl, and returns its address.
func (b *bench) forward(t *testing.T, env []string, name string, port int) string {
	t.Helper()
	bin, err := buildcache.Lookup("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, bin, "--kubeconfig", b.Kubeconfig, "-n", b.namespace, "port-forward", name, fmt.Sprintf(":%d", port))
	cmd.Env = append([]string{"KUBECACHEDIR=" + t.TempDir(), "KUBERC=off"}, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	line := make(chan string, 1)
	go func() {
		l, _ := bufio.NewReader(out).ReadString('\n')
		line <- l
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case l := <-line:
		if f := strings.Fields(l); len(f) > 2 && f[0] == "Forwarding" {
			return f[2]
		}
		t.Fatalf("output of port-forward: %q", l)
	case <-time.After(limit):
		t.Fatal("port-forward did not begin")
	}
	return ""
}

// crash makes podclient exit.
func (b *bench) crash(t *testing.T, name string) {
	t.Helper()
	res, err := http.Post("http://"+b.forward(t, nil, name, 8080)+"/crash", "", nil)
	if err == nil {
		res.Body.Close()
		t.Fatalf("it answered %s instead of crashing", res.Status)
	}
}

// No process of a pod survives when its node is killed.
func TestKilled(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	b.create(t, pod("orphan", shell("app", "exec sleep 1234")))
	b.wait(t, "orphan", "ready", ready)
	left := process(t, "sleep", "orphan")
	if err := syscall.Kill(b.node.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(left); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s is still there", left)
		}
	}
	if err := b.client.CoreV1().Pods(b.namespace).Delete(t.Context(), "orphan", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Error(err)
	}
}
