package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/plane/planejobs"
	"github.com/tailplane/tailplane/test/rig"
)

const jobsOrg = `
apiVersion: v1
kind: Namespace
metadata: {name: runner-logs}
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: initech}
spec:
  forge: gitlab
  configURL: https://gitlab.example/initech
  groupID: 1
  pools: [{name: linux, allowPublic: false}]
  credentials: {secretName: initech}
`

// PLANE-09, FLEET-02: the log of a job's pod that really runs comes through a real API
// server and kubelet: as it was written, followed while it is written, in one piece, and
// only with the right to read it. What is of no organisation's workload is not there.
func TestPLANE09_Logs(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := everything(ctx, r); err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	well(t, err)
	objects, err := dynamic.NewForConfig(r.Cluster.AdminConfig())
	well(t, err)
	node, err := rig.StartNode(ctx, r.Cluster, t.TempDir(), rig.NodeOptions{Name: "logs", Shared: true, Images: map[string]string{"testbed.invalid/machine": "/"}})
	well(t, err)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(node.Log); t.Failed() {
			t.Logf("the node (%v):\n%s", err, b)
		}
	})
	well(t, r.Cluster.Apply(ctx, []byte(jobsOrg)))
	_, err = objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerenrollments"}).Patch(ctx, "initech", types.MergePatchType,
		[]byte(`{"status": {"phase": "Active", "pools": [{"name": "linux", "type": "Shared", "namespace": "runner-logs", "workload": "initech-linux"}]}}`), metav1.PatchOptions{}, "status")
	well(t, err)
	for name, org := range map[string]string{"job-1": "initech", "job-2": "nobody"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tailplane.dev/org": org, "tailplane.dev/pool": "linux", "app.kubernetes.io/managed-by": "tailplane", "app.kubernetes.io/component": "runner"},
			Annotations: map[string]string{"job.runner.gitlab.com/id": "77", "job.runner.gitlab.com/name": "test", "job.runner.gitlab.com/url": "https://gitlab.example/initech/shop/-/jobs/77"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "build", Image: "testbed.invalid/machine",
				Command: []string{"/bin/sh", "-c", "echo first; printf '\\033[31mred\\n'; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"}}}}}
		_, err := k.CoreV1().Pods("runner-logs").Create(ctx, pod, metav1.CreateOptions{})
		well(t, err)
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	well(t, err)
	at := ln.Addr().String()
	ln.Close()
	p := hereAs(t, r, "logs", "tailplane", fmt.Sprintf("identity: {mode: dev, listen: %q, login: pat@platform.dev, names: [127.0.0.1]}\n  logs: {enabled: true}", at))
	well(t, p.WaitLog(ctx, `"the plane is serving"`))
	get := func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/api/v1"+path, nil)
		if err != nil {
			return nil, err
		}
		return http.DefaultClient.Do(req)
	}
	until := func(what string, path string, is func(status int, body string) bool) (body string) {
		t.Helper()
		for {
			res, err := get(path)
			if err == nil {
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if body = string(b); is(res.StatusCode, body) {
					return body
				}
			}
			select {
			case <-ctx.Done():
				t.Fatalf("it never came that %s: %v %s", what, err, body)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	const job = "/runners/runner-logs/job-1"
	var one struct{ Data planejobs.Runner }
	body := until("the job runs", job, func(_ int, body string) bool {
		return json.Unmarshal([]byte(body), &one) == nil && one.Data.State == planejobs.Busy && one.Data.Pod.Node == "logs"
	})
	if o := one.Data; o.Pool != "gitlab/initech/linux" || o.Job == nil || o.Job.Name != "test" || o.Job.URL != "https://gitlab.example/initech/shop/-/jobs/77" || !o.Actions.Log.Allowed {
		t.Errorf("%s", body)
	}
	for _, path := range []string{"/runners/runner-logs/job-2", "/runners/runner-logs/job-2/log", "/runners/runner-logs/job-2/log/lines", "/runners/" + rig.SystemNamespace + "/tailplane/log"} {
		until("it is not there: "+path, path, func(status int, _ string) bool { return status == http.StatusNotFound })
	}
	until("the account may not", job+"/log", func(status int, body string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(body, "may not read logs")
	})
	everywhere := metav1.ObjectMeta{Name: "plane-logs"}
	_, err = k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	well(t, err)
	_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "plane-logs"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "tailplane", Namespace: rig.SystemNamespace}}}, metav1.CreateOptions{})
	well(t, err)

	until("the log is told as it was written", job+"/log?tail=5000", func(status int, body string) bool {
		return status == http.StatusOK && strings.HasPrefix(body, "first\n\x1b[31mred\nline 1\n")
	})
	var piece struct{ Data planejobs.Log }
	until("its end is told", job+"/log/lines?tail=2", func(_ int, body string) bool {
		return json.Unmarshal([]byte(body), &piece) == nil && len(piece.Data.Lines) == 2 && strings.HasPrefix(piece.Data.Lines[1], "line ") && piece.Data.Container == "build"
	})
	res, err := get(job + "/log?tail=1&follow=true")
	well(t, err)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for range 4 {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "line ") {
			t.Fatalf("%q %v", lines.Text(), lines.Err())
		}
	}
	well(t, k.CoreV1().Pods("runner-logs").Delete(ctx, "job-1", metav1.DeleteOptions{}))
	for lines.Scan() { // it ends with the pod
	}
	well(t, lines.Err())
	until("it is gone", job+"/log", func(status int, _ string) bool { return status == http.StatusNotFound })
}

func well(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
