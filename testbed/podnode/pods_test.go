//go:build linux

package podnode_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// shell returns a container that runs a script with the machine's own tools.
func shell(name, script string) corev1.Container {
	return corev1.Container{Name: name, Image: toolsImage, Command: []string{"/bin/sh", "-c", script}}
}

func pod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(60)), Containers: containers}}
}

func succeeded(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded }
func failed(p *corev1.Pod) bool    { return p.Status.Phase == corev1.PodFailed }

// TB-08: a pod with an unsupported field fails, and the message names the field. A pod with an unknown image waits or
// stays pending.
func TestNotOnTestbed(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	for i, tt := range []struct {
		change func(*corev1.PodSpec)
		path   string
	}{
		{func(s *corev1.PodSpec) { s.HostNetwork = true }, "spec.hostNetwork"},
		{func(s *corev1.PodSpec) { s.ShareProcessNamespace = new(true) }, "spec.shareProcessNamespace"},
		{func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}, "spec.containers[0].securityContext.privileged"},
		{func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		}, "spec.volumes[0].hostPath.path"},
		{func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "a"}}
		}, "spec.containers[0].volumeMounts[0].subPath"},
		{func(s *corev1.PodSpec) {
			s.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		}, "spec.containers[0].lifecycle.postStart.exec.command[0]"},
	} {
		p := pod("refused-"+string(rune('a'+i)), shell("app", "true"))
		tt.change(&p.Spec)
		b.create(t, p)
		p = b.wait(t, p.Name, "failed", failed)
		if p.Status.Reason != "NotOnTestbed" || !strings.Contains(p.Status.Message, tt.path+" is not on the testbed") {
			t.Errorf("%s: %s: %s", tt.path, p.Status.Reason, p.Status.Message)
		}
	}

	p := pod("unknown", corev1.Container{Name: "app", Image: "example.com/unknown:v1"})
	b.create(t, p)
	b.wait(t, p.Name, "waiting for its image", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImageNeverPull"
	})

	p = pod("foreign", corev1.Container{Name: "app", Image: "example.com/unknown:v1"})
	p.Spec.NodeSelector = map[string]string{}
	made := b.create(t, p)
	for end := time.Now().Add(limit); ; {
		out, _ := b.kubectl(t, "get", "events", "--field-selector", "involvedObject.uid="+string(made.UID), "-o", "jsonpath={.items[*].message}")
		if strings.Contains(out, `image "example.com/unknown:v1" is not a program of this testbed`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no event has the reason for a pending pod: %s", out)
		}
	}
	if p := b.wait(t, "foreign", "there", func(*corev1.Pod) bool { return true }); p.Spec.NodeName != "" {
		t.Error("it was bound all the same")
	}
}

// Init containers run one after the other. Containers after a sidecar wait for its startup probe, and the sidecar
// ends last.
func TestOrder(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	shared := []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	sidecar := shell("sidecar", `echo sidecar >>/shared/order; trap 'echo sidecar ends >>/shared/order; cat /shared/order; exit 0' TERM; sleep 1; touch /shared/up; while :; do sleep 0.1; done`)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	sidecar.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/shared/up"}}}}
	p := pod("order", shell("app", `test -e /shared/up || exit 9; echo app >>/shared/order; exit 0`))
	p.Spec.InitContainers = []corev1.Container{shell("first", `echo first >>/shared/order`), sidecar, shell("second", `test -e /shared/up || exit 9; echo second >>/shared/order`)}
	p.Spec.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = shared
		}
	}
	b.create(t, p)
	b.wait(t, "order", "succeeded", succeeded)
	out, _ := b.kubectl(t, "logs", "order", "-c", "sidecar")
	if want := "first\nsidecar\nsecond\napp\nsidecar ends"; out != want {
		t.Errorf("the order was\n%s\nwant\n%s", out, want)
	}
	bad := pod("bad", shell("app", "true"))
	bad.Spec.InitContainers = []corev1.Container{shell("first", `echo why >/dev/termination-log; exit 3`)}
	b.create(t, bad)
	bad = b.wait(t, "bad", "failed", failed)
	switch s := bad.Status.InitContainerStatuses[0].State.Terminated; {
	case s == nil:
		t.Error("after a failed init container: s is nil")
	case s.ExitCode != 3:
		t.Errorf("after a failed init container: s.ExitCode = %v, want 3", s.ExitCode)
	case s.Message != "why\n":
		t.Errorf("after a failed init container: s.Message = %q, want %q", s.Message, "why\n")
	case bad.Status.ContainerStatuses[0].State.Waiting == nil:
		t.Error("after a failed init container: bad.Status.ContainerStatuses[0].State.Waiting is nil")
	}
}

// The inputs of a pod: variables, ConfigMaps, Secrets, fields, and a token bound to the pod. The pod sees changes.
func TestGiven(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	ctx := t.Context()
	if _, err := b.client.CoreV1().ConfigMaps(b.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "map"}, Data: map[string]string{"key": "of the map", "other": "2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := pod("given", shell("app", `
echo "$ONE|$TWO|$THREE|$NAME|$PRE_key|$GONE|$KUBERNETES_SERVICE_HOST"
echo "$(cat /map/k)|$(cat /secret/s)|$(stat -L -c %a /secret/s)|$(cat /facts/labels)"
cat /tokens/t; echo
until test "$(cat /whole/key)" = changed; do sleep 0.1; done
echo seen`))
	c := &p.Spec.Containers[0]
	p.Labels = map[string]string{"a": "b"}
	from := func(key string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}, Key: key}}
	}
	c.Env = []corev1.EnvVar{{Name: "ONE", Value: "1"}, {Name: "TWO", Value: "$(ONE)2"}, {Name: "THREE", ValueFrom: from("s")},
		{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: "GONE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "x", Optional: new(true)}}}}
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "PRE_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}}}}
	for _, name := range []string{"map", "whole", "secret", "facts", "tokens"} {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name, ReadOnly: true})
	}
	ref := corev1.LocalObjectReference{Name: "map"}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "map", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, Items: []corev1.KeyToPath{{Key: "key", Path: "k"}}}}},
		{Name: "whole", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret", DefaultMode: new(int32(0o400))}}},
		{Name: "facts", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
		{Name: "tokens", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t", Audience: "elsewhere", ExpirationSeconds: new(int64(600))}}}}}},
	}
	made := b.create(t, p)
	// The Secret does not exist yet, and the pod waits for it.
	b.wait(t, "given", "pending", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending })
	if _, err := b.client.CoreV1().Secrets(b.namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"s": "of the secret"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "given", "running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if _, err := b.client.CoreV1().ConfigMaps(b.namespace).Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "map"}, Data: map[string]string{"key": "changed"}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "given", "succeeded", succeeded)
	out, _ := b.kubectl(t, "logs", "given")
	lines := strings.Split(out, "\n")
	switch {
	case len(lines) != 4:
		t.Fatalf("it was given: len(lines) = %v, want 4; out = %s", len(lines), out)
	case lines[0] != "1|12|of the secret|given|of the map||10.96.0.1":
		t.Fatalf("it was given: lines[0] = %q, want %q; out = %s", lines[0], "1|12|of the secret|given|of the map||10.96.0.1", out)
	case lines[1] != `of the map|of the secret|400|a="b"`:
		t.Fatalf("it was given: lines[1] = %q, want %q; out = %s", lines[1], `of the map|of the secret|400|a="b"`, out)
	case lines[3] != "seen":
		t.Fatalf("it was given: lines[3] = %q, want %q; out = %s", lines[3], "seen", out)
	}
	who, err := review(t, b, lines[2])
	switch {
	case err != nil:
		t.Errorf("the token is bound: %v", err)
	case who["authentication.kubernetes.io/pod-name"] != "given":
		t.Errorf("the token is bound: got %q, want %q", who["authentication.kubernetes.io/pod-name"], "given")
	case who["authentication.kubernetes.io/pod-uid"] != string(made.UID):
		t.Errorf("the token is bound: got %q, want %q", who["authentication.kubernetes.io/pod-uid"], string(made.UID))
	}
}

// Probes take effect: a failing readiness probe makes the pod unready, and a failing liveness probe restarts it.
func TestProbes(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	exec := func(script string) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", script}}}}
	}
	c := shell("app", `trap 'exit 5' TERM; touch /tmp/alive; while :; do sleep 0.1; done`)
	c.LivenessProbe, c.ReadinessProbe = exec("test -e /tmp/alive"), exec("test -e /tmp/ready")
	c.StartupProbe = exec("test -e /tmp/alive")
	c.StartupProbe.FailureThreshold = 60
	p := pod("probes", c)
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	b.create(t, p)
	p = b.wait(t, "probes", "started", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && *p.Status.ContainerStatuses[0].Started
	})
	if ready(p) {
		t.Error("it is ready before its probe succeeds")
	}
	if out, code := b.kubectl(t, "exec", "probes", "--", "touch", "/tmp/ready"); code != 0 {
		t.Fatal(out)
	}
	b.wait(t, "probes", "ready", ready)
	if out, code := b.kubectl(t, "exec", "probes", "--", "rm", "/tmp/alive"); code != 0 {
		t.Fatal(out)
	}
	p = b.wait(t, "probes", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 })
	if l := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; l == nil || l.ExitCode != 5 {
		t.Errorf("it got no stop signal: %+v", l)
	}
}

// Deletion: preStop first, then SIGTERM, and SIGKILL after the grace period.
func TestGrace(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	c := shell("app", `trap 'echo asked to end; touch /tmp/asked' TERM; while :; do sleep 0.1; done`)
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "test ! -e /tmp/asked && echo before >/dev/termination-log"}}}}
	p := pod("stubborn", c)
	p.Spec.TerminationGracePeriodSeconds = new(int64(3))
	b.create(t, p)
	b.wait(t, "stubborn", "ready", ready)
	w, err := b.client.CoreV1().Pods(b.namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=stubborn"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began := time.Now()
	if err := b.client.CoreV1().Pods(b.namespace).Delete(t.Context(), "stubborn", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var last corev1.PodStatus
	for gone := false; !gone; {
		select {
		case e := <-w.ResultChan():
			if p, ok := e.Object.(*corev1.Pod); ok {
				last, gone = p.Status, e.Type == "DELETED"
			}
		case <-time.After(limit):
			t.Fatal("it is still there")
		}
	}
	s := last.ContainerStatuses[0].State.Terminated
	switch took := time.Since(began); {
	case took < 3*time.Second:
		t.Errorf("took = %v, want at least %v", took, 3*time.Second)
	case s == nil:
		t.Error("s is nil")
	case s.ExitCode != 137:
		t.Errorf("s.ExitCode = %v, want 137", s.ExitCode)
	case s.Message != "before\n":
		t.Errorf("s.Message = %q, want %q", s.Message, "before\n")
	}
}

// exec, attach, port-forward, cp and logs with the real kubectl over both protocols.
func TestStreams(t *testing.T) {
	b := start(t, testenv.NodeOptions{})
	b.isolated(t)
	c := shell("app", `while read -r line; do echo "heard $line"; done; echo over`)
	c.Stdin, c.StdinOnce = true, true
	b.create(t, pod("streams", c))
	b.allow(t)
	web := application(b.namespace)
	web.Name = "web"
	b.create(t, web)
	b.wait(t, "streams", "ready", ready)
	b.wait(t, "web", "ready", ready)
	for _, protocol := range []string{"true", "false"} { // WebSocket, SPDY
		env := []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + protocol, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + protocol}
		out, code := b.run(t, env, "", "exec", "streams", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
		switch {
		case code != 7:
			t.Errorf("exec: code = %v, want 7", code)
		case !strings.Contains(out, "out\n"):
			t.Errorf("exec: out = %q does not contain %q", out, "out\n")
		case !strings.Contains(out, "err\n"):
			t.Errorf("exec: out = %q does not contain %q", out, "err\n")
		}
		if out, code := b.run(t, env, "", "exec", "streams", "--", "no-such-command"); code != 127 {
			t.Errorf("a command that is not there: %d, %q", code, out)
		}
		big := strings.Repeat("0123456789abcde\n", 1<<16)
		if out, code := b.run(t, env, big, "exec", "-i", "streams", "--", "cat"); code != 0 || out != big {
			t.Errorf("a megabyte there and back: %d, %d bytes", code, len(out))
		}
		if out, code := b.run(t, env, "", "exec", "streams", "--", "cat", "/no/such/file"); code != 1 {
			t.Errorf("cat: %d, %q", code, out)
		}
		res, err := http.Get("http://" + b.forward(t, env, "web", 8080) + "/readyz")
		if err != nil {
			t.Errorf("port-forward: %v", err)
			continue
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			t.Errorf("port-forward: %s", res.Status)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := b.kubectl(t, "cp", file, "streams:/tmp/file"); code != 0 {
		t.Errorf("cp: %s", out)
	}
	if out, _ := b.kubectl(t, "exec", "streams", "--", "cat", "/tmp/file"); out != "copied" {
		t.Errorf("copied is %q", out)
	}
	if out, code := b.kubectl(t, "logs", "streams", "-c", "none"); code == 0 {
		t.Errorf("a log of an unknown container: %s", out)
	}
	// An attached container receives the input. Its standard input ends with the first attached client.
	switch out, code := b.run(t, nil, "hello\n", "attach", "-i", "streams"); {
	case code != 0:
		t.Errorf("attach: code = %v, want 0", code)
	case !strings.Contains(out, "heard hello"):
		t.Errorf("attach: out = %q does not contain %q", out, "heard hello")
	case !strings.Contains(out, "over"):
		t.Errorf("attach: out = %q does not contain %q", out, "over")
	}
	b.wait(t, "streams", "over", succeeded)
	if out, _ := b.kubectl(t, "logs", "streams", "--tail=1"); out != "over" {
		t.Errorf("the last line is %q", out)
	}
}

// On a machine without namespaces, pods are ordinary processes. Features that need isolation are rejected by name.
func TestSharedMode(t *testing.T) {
	b := start(t, testenv.NodeOptions{Shared: true})
	p := pod("plain", shell("app", "echo hello; exit 4"))
	p.Spec.AutomountServiceAccountToken = new(false)
	b.create(t, p)
	p = b.wait(t, "plain", "failed", failed)
	if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 4 {
		t.Errorf("it ended with %+v", s)
	}
	if out, _ := b.kubectl(t, "logs", "plain"); out != "hello" {
		t.Errorf("its output is %q", out)
	}
	b.create(t, pod("mounts", shell("app", "true")))
	p = b.wait(t, "mounts", "failed", failed)
	switch {
	case p.Status.Reason != "NotOnTestbed":
		t.Errorf("p.Status.Reason = %q, want %q", p.Status.Reason, "NotOnTestbed")
	case !strings.Contains(p.Status.Message, "volumeMounts[0]"):
		t.Errorf("p.Status.Message = %q does not contain %q", p.Status.Message, "volumeMounts[0]")
	case !strings.Contains(p.Status.Message, "without isolation"):
		t.Errorf("p.Status.Message = %q does not contain %q", p.Status.Message, "without isolation")
	}
}

// review sends a TokenReview to the API server and returns the extra fields besides the name.
func review(t *testing.T, b *bench, token string) (map[string]string, error) {
	r, err := b.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"elsewhere"}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if !r.Status.Authenticated {
		return nil, errors.New(r.Status.Error)
	}
	extra := map[string]string{}
	for k, v := range r.Status.User.Extra {
		extra[k] = strings.Join(v, ",")
	}
	return extra, nil
}
