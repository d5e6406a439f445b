//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// asRunner handles signals like GitLab's runner: SIGTERM aborts its jobs, and after SIGQUIT it ends
// when its last job has ended.
func asRunner() int {
	dir := os.Getenv("DIR")
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	defer log.Close()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGQUIT)
	fmt.Fprintln(log, "started")
	for quit := false; ; {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM {
				fmt.Fprintln(log, "aborted")
				return 9
			}
			fmt.Fprintln(log, "drains")
			quit = true
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := os.Stat(filepath.Join(dir, "job")); quit && os.IsNotExist(err) {
			fmt.Fprintln(log, "finished")
			return 0
		}
	}
}

// A machine runs the pods of managers like a kubelet: with their own command, ended by SIGTERM, and
// by SIGKILL after their grace period.
type machine struct {
	*env
	dir  string
	sh   string
	mu   sync.Mutex
	pods map[types.UID]*managerPod
}

type managerPod struct {
	name, dir string
	cmd       *exec.Cmd
	ended     chan struct{}
	told      bool // SIGTERM was sent
}

// machine starts a machine that runs until the test ends.
func (p *env) machine() *machine {
	p.t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		p.t.Skip("SKIP managers as processes: no sh in PATH")
	}
	m := &machine{env: p, dir: p.t.TempDir(), sh: sh, pods: map[types.UID]*managerPod{}}
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if err := m.reconcile(ctx); err != nil && ctx.Err() == nil && ignoreStale(client.IgnoreNotFound(err)) != nil {
				p.t.Errorf("the machine: %v", err)
			}
		}
	}()
	p.t.Cleanup(func() {
		cancel()
		<-ended
		for _, x := range m.pods {
			_ = syscall.Kill(-x.cmd.Process.Pid, syscall.SIGKILL) // the process group, which may be gone already
			<-x.ended
		}
	})
	return m
}

func (m *machine) reconcile(ctx context.Context) error {
	var list corev1.PodList
	if err := m.admin.List(ctx, &list, client.InNamespace(m.shared), client.MatchingLabels{"app.kubernetes.io/component": "runner-manager"}); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		pod := &list.Items[i]
		m.mu.Lock()
		x := m.pods[pod.UID]
		m.mu.Unlock()
		switch {
		case x == nil && pod.DeletionTimestamp == nil:
			errs = append(errs, m.run(ctx, pod))
		case x != nil && pod.DeletionTimestamp != nil:
			errs = append(errs, m.end(ctx, pod, x))
		}
	}
	return errors.Join(errs...)
}

func (m *machine) run(ctx context.Context, pod *corev1.Pod) error {
	config := &corev1.Secret{}
	if err := m.admin.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: isolation.ConfigName(pod.Labels["app.kubernetes.io/instance"])}, config); err != nil {
		return err
	}
	if err := m.admin.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "machine"}}); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	x := &managerPod{name: pod.Name, dir: filepath.Join(m.dir, pod.Name), ended: make(chan struct{})}
	for _, sub := range []string{"etc", "var", "bin"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(x.dir, sub), 0o700))
	}
	if err := errors.Join(err, os.WriteFile(filepath.Join(x.dir, "etc", "config.toml"), config.Data["config.toml"], 0o600), os.Symlink(self, filepath.Join(x.dir, "bin", "gitlab-runner"))); err != nil {
		return err
	}
	command := pod.Spec.Containers[0].Command
	script := strings.NewReplacer("/etc/gitlab-runner", filepath.Join(x.dir, "etc"), "/var/lib/gitlab-runner", filepath.Join(x.dir, "var")).Replace(command[2])
	x.cmd = exec.Command(m.sh, command[1], script)
	x.cmd.Env = []string{"PATH=" + filepath.Join(x.dir, "bin") + ":" + os.Getenv("PATH"), "DIR=" + x.dir}
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := x.cmd.Start(); err != nil {
		return err
	}
	go func() { _ = x.cmd.Wait(); close(x.ended) }()
	m.mu.Lock()
	m.pods[pod.UID] = x
	m.mu.Unlock()
	for range 200 { // an earlier signal would reach only the shell
		if strings.Contains(x.log(), "started") {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// end sends SIGTERM to a pod, and deletes the pod when it has ended.
func (m *machine) end(ctx context.Context, pod *corev1.Pod, x *managerPod) error {
	if !x.told {
		x.told = true
		return x.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-x.ended:
		return m.admin.Delete(ctx, pod, client.GracePeriodSeconds(0))
	default:
	}
	if time.Now().After(pod.DeletionTimestamp.Time) {
		return syscall.Kill(-x.cmd.Process.Pid, syscall.SIGKILL)
	}
	return nil
}

func (x *managerPod) log() string {
	b, _ := os.ReadFile(filepath.Join(x.dir, "log"))
	return string(b)
}

func (x *managerPod) busy(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(x.dir, "job"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// alive returns the running pods that are not about to end.
func (m *machine) alive() (all []*managerPod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.pods {
		select {
		case <-x.ended:
		default:
			if !strings.Contains(x.log(), "drains") {
				all = append(all, x)
			}
		}
	}
	return all
}

// finishes checks that an ending pod runs until its job has ended, and then ends.
func (m *machine) finishes(what string, x *managerPod) {
	m.t.Helper()
	m.waitFor(what+": it drains", func() bool { m.runManagers(); return strings.Contains(x.log(), "drains") })
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if log := x.log(); strings.Contains(log, "finished") || strings.Contains(log, "aborted") {
			m.t.Fatalf("%s: its job has not ended, but it has: %q", what, log)
		}
	}
	if err := os.Remove(filepath.Join(x.dir, "job")); err != nil {
		m.t.Fatal(err)
	}
	m.waitFor(what+": it has ended", func() bool {
		m.runManagers()
		return strings.Contains(x.log(), "finished") && !m.exists(m.shared, x.name, &corev1.Pod{})
	})
	if err := x.cmd.ProcessState; err == nil || !err.Success() {
		m.t.Errorf("%s: it ended with %v", what, err)
	}
}

// FLEET-18: a GitLab manager finishes its job during a rollout, a smaller allocation, a hold of
// mode Drain and a drain of its node. It gets no SIGTERM that aborts jobs.
func TestFLEET18_ManagersFinishTheirJobs(t *testing.T) {
	p := newEnv(t, "")
	pool := p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 4, Budget: 20}, func(o *v1alpha1.RunnerPool) {
		o.Spec.GitLab = &v1alpha1.PoolGitLab{Replicas: 2, Concurrent: 2, ShutdownTimeout: metav1.Duration{Duration: 10 * time.Minute}}
	})
	p.enrollGitLab("omega", []string{"docker"})
	m := p.machine()
	p.start()
	p.waitActive("omega")
	managers := func(n int) []*managerPod {
		t.Helper()
		p.waitFor(fmt.Sprintf("%d managers run", n), func() bool { p.runManagers(); return len(m.alive()) == n })
		return m.alive()
	}
	p.waitFor("it takes jobs", func() bool { p.runManagers(); return !p.gitlab.Runners()[0].Paused })

	first := managers(2)[0]
	first.busy(t)
	p.patch(pool, `{"spec":{"gitlab":{"shutdownTimeout":"20m"}}}`)
	m.finishes("rollout", first)
	managers(2)

	for _, x := range managers(2) {
		x.busy(t)
	}
	p.patch(p.get("omega"), `{"spec":{"pools":[{"name":"docker","type":"Shared","max":1}]}}`)
	left := managers(1)[0]
	m.mu.Lock()
	var smaller *managerPod
	for _, x := range m.pods {
		if log := x.log(); strings.Contains(log, "drains") && !strings.Contains(log, "finished") {
			smaller = x
		}
	}
	m.mu.Unlock()
	m.finishes("a smaller share", smaller)

	evict := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.shared, Name: left.name}}
	p.must(p.admin.SubResource("eviction").Create(t.Context(), evict, &policyv1.Eviction{}))
	m.finishes("its node is drained", left)

	last := managers(1)[0]
	last.busy(t)
	job := p.gitlab.StartJob(p.gitlab.Runners()[0].ID, 7)
	h := p.hold("drain", v1alpha1.HoldScope{Pool: "docker"}, v1alpha1.HoldDrain)
	p.waitHold("drain", "Applied", metav1.ConditionTrue)
	if !slices.Contains(m.alive(), last) {
		t.Errorf("%s must end, but its job has not ended: %q", last.name, last.log())
	}
	p.gitlab.EndJob(job, "success")
	m.finishes("a hold of mode Drain", last) // it continues a job that GitLab does not list any more
	p.waitHold("drain", "Drained", metav1.ConditionTrue)
	p.must(p.admin.Delete(t.Context(), h))
	managers(1)
	for _, x := range m.pods {
		if strings.Contains(x.log(), "aborted") {
			t.Errorf("%s was aborted: %q", x.name, x.log())
		}
	}
}
