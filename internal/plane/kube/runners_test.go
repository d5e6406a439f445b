//go:build unix

package kube

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/arctest"
)

// set returns an ARC scale set as the fleet makes it.
func (p *env) set(name string, labels map[string]string) client.Object {
	u, given := unstructuredOf("AutoscalingRunnerSet"), map[string]any{}
	for k, v := range labels {
		given[k] = v
	}
	u.SetNamespace(p.Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{"app.kubernetes.io/version": "0.14.2"})
	u.Object["spec"] = map[string]any{"githubConfigUrl": "https://github.example/acme", "githubConfigSecret": "one", "runnerScaleSetName": name, "minRunners": int64(1), "maxRunners": int64(3),
		"template": map[string]any{"metadata": map[string]any{"labels": given}, "spec": map[string]any{"containers": []any{map[string]any{"name": "runner", "image": "runner:1"}}}}}
	return u
}

func (p *env) waitForRunners(b *plane.Store, state string) (all []plane.Runner) {
	for _, o := range b.List(plane.KindRunner).Objects {
		if r := o.(plane.Runner); r.Namespace == p.Namespace && (state == "" || r.State == state) {
			all = append(all, r)
		}
	}
	return all
}

// FLEET-02, PLANE-09: runners appear with their job and their pod, as in ARC and the API server. Only the enrollment decides a runner's
// organisation, and a runner of an unknown workload is hidden.
func TestFLEET02_Runners(t *testing.T) {
	p := newEnv(t, nil)
	arc := arctest.Start(t, arctest.Options{Cluster: p.Cluster, Namespace: p.Cluster.Namespace(t), Watch: p.Namespace, Version: "0.14.2", GitHub: &arctest.ScaleSetFake{}})
	store := p.startWatch(p.Config)
	org, pool, forge := p.Namespace+"-o", p.Namespace+"-p", p.Namespace+"-f"
	p.Must(p.Admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "one"}, StringData: map[string]string{"github_token": "a token"}}))
	for _, name := range []string{"mine", "other"} {
		p.Must(p.Admin.Create(t.Context(), p.set(name, p.pod("", org, pool).Labels)))
	}
	arc.Assign(p.Namespace, "mine", arctest.Job{ID: "j1", Repository: "acme/shop", Workflow: "acme/shop/.github/workflows/ci.yaml@refs/heads/main", Name: "build\x1b[31m", Run: 9001})
	p.Must(arc.Start(t.Context(), "j1"))
	if got := p.waitForRunners(store, ""); len(got) > 0 {
		t.Fatalf("no organisation has a workload, but the runners are %+v", got)
	}

	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: "https://github.example/acme",
		Pools: []v1alpha1.EnrolledPool{{Name: pool}}, Credentials: v1alpha1.EnrollmentCredentials{SecretName: "s"}},
		Status: v1alpha1.RunnerEnrollmentStatus{Phase: v1alpha1.PhaseActive, Pools: []v1alpha1.EnrolledPoolStatus{{Name: pool, Namespace: p.Namespace, Workload: "mine"}}}}
	p.Create(e)
	id := forge + "/" + org + "/" + pool
	var busy plane.Runner
	p.Until("the job is shown", func() bool {
		all := p.waitForRunners(store, plane.RunnerBusy)
		if len(all) != 1 {
			return false
		}
		busy = all[0]
		return busy.Job != nil && busy.Job.Started != nil
	})
	switch j := busy.Job; {
	case busy.Pool != id:
		t.Errorf("busy.Pool = %q, want %q", busy.Pool, id)
	case busy.OrgName != org:
		t.Errorf("busy.OrgName = %q, want %q", busy.OrgName, org)
	case busy.ForgeID == nil:
		t.Error("busy.ForgeID is nil")
	case j.Repository != "acme/shop":
		t.Errorf("j.Repository = %q, want %q", j.Repository, "acme/shop")
	case *j.Run != 9001:
		t.Errorf("*j.Run = %v, want 9001", *j.Run)
	case j.URL != "https://github.example/acme/shop/actions/runs/9001":
		t.Errorf("j.URL = %q, want %q", j.URL, "https://github.example/acme/shop/actions/runs/9001")
	}
	for _, r := range p.waitForRunners(store, "") {
		if strings.HasPrefix(r.Name, "other") {
			t.Errorf("%s has no organisation", r.ID)
		}
	}

	// A runner's pod is the one with the runner's UID as its owner.
	pod := p.pod(busy.Name, org, pool)
	waiting := pod.Status
	p.Must(p.Admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Status = waiting
	p.Must(p.Admin.Status().Update(t.Context(), pod))
	p.Until("the pod is shown", func() bool {
		o, _ := objectOf[plane.Runner](store, plane.KindRunner, busy.ID)
		return o.Pod != nil && len(o.Pod.Containers) == 1 && o.Pod.Containers[0].Reason == "ImagePullBackOff" && o.Job != nil
	})

	// A pod that names an organisation is its job only if the organisation has a workload there.
	elsewhere := p.Cluster.Namespace(t)
	for name, at := range map[string]string{"gl-job": p.Namespace, "gl-false": elsewhere} {
		o := p.pod(name, org, pool)
		o.Namespace, o.Annotations = at, map[string]string{gitlabJob: "77", gitlabName: "test", gitlabURL: "https://evil.example/x"}
		p.Create(o)
	}
	p.Create(p.pod("gl-unknown", "nobody", pool))
	p.Until("a job of GitLab's is shown", func() bool {
		o, ok := objectOf[plane.Runner](store, plane.KindRunner, p.Namespace+"/gl-job")
		return ok && o.Pool == id && o.Job.ID == "77" && o.Job.URL == "" && o.State == plane.RunnerPending
	})
	for _, key := range []string{elsewhere + "/gl-false", p.Namespace + "/gl-unknown"} {
		if o, shown := store.Get(plane.KindRunner, key); shown {
			t.Errorf("%+v", o)
		}
	}

	// A runner disappears when the enrollment no longer has its workload, or when it is deleted.
	p.Must(arc.Finish(t.Context(), "j1"))
	p.Until("the finished runner disappears", func() bool { _, found := store.Get(plane.KindRunner, busy.ID); return !found })
	e.Status.Pools[0].Workload = "another"
	p.Must(p.Admin.Status().Update(t.Context(), e))
	p.Until("runners of no workload go", func() bool {
		for _, r := range p.waitForRunners(store, "") {
			if r.Kind == "EphemeralRunner" {
				return false
			}
		}
		return true
	})
	p.Must(p.Admin.Delete(t.Context(), e))
	p.Until("nothing is left", func() bool { return len(p.waitForRunners(store, "")) == 0 })
}

// pod returns a pod that runs a job.
func (p *env) pod(name, org, pool string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{v1alpha1.OrgLabel: org, v1alpha1.PoolLabel: pool, v1alpha1.ManagedByLabel: v1alpha1.ManagedBy,
		"app.kubernetes.io/component": "runner"}}, Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "runner", Image: "runner:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "runner", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}}}
}

// The events are those of the namespace, of both APIs. Concurrent callers share one list.
func TestEvents(t *testing.T) {
	p := newEnv(t, nil)
	now := time.Now()
	api, err := Connect(p.Config, func() time.Time { return now })
	p.Must(err)
	events := api.Events()
	of := corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: "x"}
	at := metav1.NewTime(now.Add(-time.Minute))
	p.Must(p.Admin.Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "a"}, InvolvedObject: of, Type: "Warning", Reason: "FailedScheduling", Message: "no node", Count: 4, FirstTimestamp: at, LastTimestamp: at, Source: corev1.EventSource{Component: "scheduler"}}))
	got, err := events.List(t.Context(), p.Namespace)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(got) != 1:
		t.Fatalf("len(got) = %v, want 1", len(got))
	case got[0].Count != 4:
		t.Fatalf("got[0].Count = %v, want 4", got[0].Count)
	case got[0].Name != "x":
		t.Fatalf("got[0].Name = %q, want %q", got[0].Name, "x")
	case got[0].By != "scheduler":
		t.Fatalf("got[0].By = %q, want %q", got[0].By, "scheduler")
	case got[0].Last.Unix() != at.Unix():
		t.Fatalf("got[0].Last.Unix() = %v, want %v", got[0].Last.Unix(), at.Unix())
	}
	micro := metav1.NewMicroTime(now)
	p.Must(p.Admin.Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "b"}, InvolvedObject: of, Type: "Normal", Reason: "Pulled", Action: "Pull", EventTime: micro, ReportingController: "kubelet", ReportingInstance: "n1",
		Series: &corev1.EventSeries{Count: 7, LastObservedTime: micro}}))
	if again, err := events.List(t.Context(), p.Namespace); err != nil || len(again) != 1 {
		t.Errorf("a second request at once: %+v, %v", again, err)
	}
	now = now.Add(maxEventsAge)
	got, err = events.List(t.Context(), p.Namespace)
	switch {
	case err != nil:
		t.Error(err)
	case len(got) != 2:
		t.Errorf("len(got) = %v, want 2", len(got))
	case got[1].Count != 7:
		t.Errorf("got[1].Count = %v, want 7", got[1].Count)
	case got[1].By != "kubelet":
		t.Errorf("got[1].By = %q, want %q", got[1].By, "kubelet")
	}
	// An account without the right receives an error, and the events that others may see are not cached for it.
	config := *p.Config
	config.BearerToken, config.BearerTokenFile = "nobody", ""
	config.CertFile, config.KeyFile, config.CertData, config.KeyData = "", "", nil, nil
	stranger, err := Connect(&config, time.Now)
	p.Must(err)
	if got, err := stranger.Events().List(t.Context(), p.Namespace); err == nil || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
