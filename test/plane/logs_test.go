package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const jobsOrgs = `
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
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: hooli}
spec:
  forge: gitlab
  configURL: https://gitlab.example/hooli
  groupID: 2
  pools: [{name: linux, allowPublic: false}]
  credentials: {secretName: hooli}
`

// PLANE-09, PLANE-07, FLEET-02: the log of a running job's pod is read through a real tailnet, API server and
// kubelet. It arrives unchanged and complete, and can be followed while it is written. Reading needs the right to
// read it, and an operator role of that organisation for the whole time. For a workload without an organisation, or
// of another one, there is no log.
func TestPLANE09_Logs(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	well(t, err)
	objects, err := dynamic.NewForConfig(r.Cluster.AdminConfig())
	well(t, err)
	node, err := testenv.StartNode(ctx, r.Cluster, t.TempDir(), testenv.NodeOptions{Name: "logs", Shared: true, Images: map[string]string{"testbed.invalid/machine": "/"}})
	well(t, err)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(node.Log); t.Failed() {
			t.Logf("the node (%v):\n%s", err, b)
		}
	})
	well(t, r.Cluster.Apply(ctx, []byte(jobsOrgs)))
	for _, org := range []string{"initech", "hooli"} {
		_, err = objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerenrollments"}).Patch(ctx, org, types.MergePatchType,
			[]byte(`{"status": {"phase": "Active", "pools": [{"name": "linux", "type": "Shared", "namespace": "runner-logs", "workload": "`+org+`-linux"}]}}`), metav1.PatchOptions{}, "status")
		well(t, err)
	}
	for name, org := range map[string]string{"job-1": "initech", "job-2": "nobody", "job-3": "hooli"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tailplane.dev/org": org, "tailplane.dev/pool": "linux", "app.kubernetes.io/managed-by": "tailplane", "app.kubernetes.io/component": "runner"},
			Annotations: map[string]string{"job.runner.gitlab.com/id": "77", "job.runner.gitlab.com/name": "test", "job.runner.gitlab.com/url": "https://gitlab.example/" + org + "/shop/-/jobs/77"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "build", Image: "testbed.invalid/machine",
				Command: []string{"/bin/sh", "-c", "echo first; printf '\\033[31mred\\n'; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"}}}}}
		_, err := k.CoreV1().Pods("runner-logs").Create(ctx, pod, metav1.CreateOptions{})
		well(t, err)
	}

	// An operator and a viewer of initech.
	ola, val := person(t, r, "ola-logs", "ola@example.com"), person(t, r, "val-logs", "val@example.com")
	alice := person(t, r, "alice-logs", "alice@example.com")
	await := func(what string, who *testenv.Person, path string, is func(status int, body string) bool) (body string) {
		t.Helper()
		until(t, what, func() bool {
			a, err := ask(t, r, who, http.MethodGet, "/api/v1"+path, "")
			body = a.body
			return err == nil && is(a.status, a.body)
		})
		return body
	}
	const job, others = "/runners/runner-logs/job-1", "/runners/runner-logs/job-3"
	var one struct{ Data plane.Runner }
	body := await("the job runs", ola, job, func(_ int, body string) bool {
		return json.Unmarshal([]byte(body), &one) == nil && one.Data.State == plane.RunnerBusy && one.Data.Pod.Node == "logs"
	})
	switch o := one.Data; {
	case o.Pool != "gitlab/initech/linux":
		t.Errorf("o.Pool = %q, want %q; body = %s", o.Pool, "gitlab/initech/linux", body)
	case o.Job == nil:
		t.Errorf("o.Job is nil; body = %s", body)
	case o.Job.Name != "test":
		t.Errorf("o.Job.Name = %q, want %q; body = %s", o.Job.Name, "test", body)
	case o.Job.URL != "https://gitlab.example/initech/shop/-/jobs/77":
		t.Errorf("o.Job.URL = %q, want %q; body = %s", o.Job.URL, "https://gitlab.example/initech/shop/-/jobs/77", body)
	case !o.Actions.Log.Allowed:
		t.Errorf("o.Actions.Log.Allowed is false; body = %s", body)
	}
	await("the account may not", ola, job+"/log", func(status int, body string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(body, "may not read logs")
	})
	everywhere := metav1.ObjectMeta{Name: "plane-logs"}
	_, err = k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	well(t, err)
	_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "plane-logs"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "tailplane-plane", Namespace: testenv.SystemNamespace}}}, metav1.CreateOptions{})
	well(t, err)
	t.Cleanup(func() {
		if err := k.RbacV1().ClusterRoleBindings().Delete(context.Background(), "plane-logs", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	await("the log is unchanged", ola, job+"/log?tail=5000", func(status int, body string) bool {
		return status == http.StatusOK && strings.HasPrefix(body, "first\n\x1b[31mred\nline 1\n")
	})
	var piece struct{ Data plane.Log }
	await("its end is shown", ola, job+"/log/lines?tail=2", func(_ int, body string) bool {
		return json.Unmarshal([]byte(body), &piece) == nil && len(piece.Data.Lines) == 2 && strings.HasPrefix(piece.Data.Lines[1], "line ") && piece.Data.Container == "build"
	})

	// An operator of all organisations can read the other organisation's log. For all other callers it does not
	// exist, and neither do logs without an organisation. A viewer can read none.
	await("a permitted caller reads the other job's log", alice, others+"/log?tail=1", func(status int, _ string) bool { return status == http.StatusOK })
	for _, x := range []struct {
		who    *testenv.Person
		path   string
		status int
	}{
		{ola, others, 404}, {ola, others + "/log", 404}, {ola, others + "/log/lines", 404}, {ola, others + "/log?follow=true", 404}, {val, others + "/log", 403}, {val, others, 404},
		{val, job, 200}, {val, job + "/log", 403}, {val, job + "/log/lines", 403}, {val, job + "/log?follow=true", 403},
		{alice, "/runners/runner-logs/job-2", 404}, {alice, "/runners/runner-logs/job-2/log", 404}, {alice, "/runners/" + testenv.SystemNamespace + "/tailplane/log", 404},
	} {
		if a, err := ask(t, r, x.who, http.MethodGet, "/api/v1"+x.path, ""); must(t, a, err).status != x.status || x.status != 200 && strings.Contains(a.body, "line ") {
			t.Errorf("%s: %d %s, want %d", x.path, a.status, a.body, x.status)
		}
	}
	logged := map[string]bool{}
	_, err = plane.AuditLog{Path: r.PlaneAuditFile()}.ReadNewest(ctx, func(e plane.AuditEntry) bool {
		if e.Verb == "logs.read" {
			logged[e.Actor.Login+" "+e.Org+" "+e.Args["runner"]+" "+string(e.Result)] = true
		}
		return true
	})
	well(t, err)
	for _, want := range []string{"ola@example.com initech runner-logs/job-1 " + string(audit.Done), "ola@example.com  runner-logs/job-3 " + string(audit.Refused)} {
		if !logged[want] {
			t.Errorf("the record has %v, and not %s", logged, want)
		}
	}

	// A followed log ends with the role, and with the pod.
	follow := func(who *testenv.Person) *bufio.Scanner {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Dashboard()+"/api/v1"+job+"/log?tail=1&follow=true", nil)
		well(t, err)
		hc := who.HTTP()
		hc.Timeout = 0
		t.Cleanup(hc.CloseIdleConnections)
		res, err := hc.Do(req)
		well(t, err)
		t.Cleanup(func() { res.Body.Close() })
		lines := bufio.NewScanner(res.Body)
		for range 4 {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), "line ") {
				t.Fatalf("%s %q %v", res.Status, lines.Text(), lines.Err())
			}
		}
		return lines
	}
	cut, whole := follow(ola), follow(alice)
	ungrant(t, r, "ola@")
	for cut.Scan() {
	}
	well(t, ctx.Err()) // the stream ended before the test's timeout
	await("nothing is left to her", ola, job+"/log", func(status int, _ string) bool { return status == http.StatusForbidden })
	if !whole.Scan() || !strings.HasPrefix(whole.Text(), "line ") {
		t.Errorf("a caller that still has the role is cut off: %q %v", whole.Text(), whole.Err())
	}
	well(t, k.CoreV1().Pods("runner-logs").Delete(ctx, "job-1", metav1.DeleteOptions{}))
	for whole.Scan() {
	}
	well(t, whole.Err())
	await("it is gone", alice, job+"/log", func(status int, _ string) bool { return status == http.StatusNotFound })
}

func well(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
