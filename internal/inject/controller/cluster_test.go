//go:build unix

package controller

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const (
	systems = "tailplane-system"
	long    = 120 * time.Second // for steps that take a second on an idle machine
	image   = "registry.invalid/mca@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// env is a cluster with the manifests of the webhook. Its API server calls the webhook at an address of
// this machine instead of a Service.
type env struct {
	*kubetest.Cluster
	t     *testing.T
	admin *kubernetes.Clientset
}

func newEnv(t *testing.T, address string) *env {
	t.Helper()
	c := kubetest.New(t, kubetest.Options{Name: "inject"})
	p := &env{c, t, kubernetes.NewForConfigOrDie(c.AdminConfig())}
	p.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + systems + "}\n")
	p.manifests(address, "inject", "rbac-inject", "webhook", "policy-adapter")
	return p
}

// service matches the reference to the Service in the webhook configuration.
var service = regexp.MustCompile(`service: \{name: tailplane-inject, namespace: tailplane-system, path: (/[a-z-]+), port: 443\}`)

// manifests applies the manifests of an installation.
func (p *env) manifests(address string, names ...string) {
	p.t.Helper()
	for _, name := range names {
		b, err := os.ReadFile("../../../deploy/inject/" + name + ".yaml")
		if err != nil {
			p.t.Fatal(err)
		}
		text := service.ReplaceAllString(string(b), "url: https://"+address+"$1")
		if name == "webhook" && strings.Count(text, "url: ") != 3 {
			p.t.Fatal("the manifest of the webhook changed")
		}
		p.apply(text)
	}
}

func (p *env) apply(text string) {
	p.t.Helper()
	if err := p.Apply(p.t.Context(), []byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

// listen binds a port of this machine.
func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func options() inject.Options {
	s := inject.DefaultSidecar()
	s.Image = image
	return inject.Options{Sidecar: s, Version: "v1.2.3", Kubernetes: inject.KubeVersion{Major: 1, Minor: 37}}
}

// replica is one replica of the webhook, within the test process.
type replica struct {
	*Certificates
	end   func()
	ended chan error
}

// replica starts a replica with exactly the rights of its ServiceAccount.
func (p *env) replica(ln net.Listener, change func(*Certificates)) *replica {
	p.t.Helper()
	path, err := p.ServiceAccountKubeconfig(p.t.Context(), systems, "tailplane-inject", p.t.TempDir())
	if err != nil {
		p.t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	c := &Certificates{
		Config: config, Namespace: systems, Secret: "tailplane-inject-tls", Lease: "tailplane-inject", Webhook: "tailplane-inject",
		Identity: ln.Addr().String(), Hosts: []string{"127.0.0.1", "localhost"}, Log: log, Now: time.Now,
		Lifetime: DefaultLifetime, PublishTime: DefaultPublishTime, KeepCA: DefaultKeepCA, PollInterval: 200 * time.Millisecond,
	}
	if change != nil {
		change(c)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	w := &inject.Webhook{Options: options(), Log: log, Measure: func(string, time.Duration) {}, Config: func(doc, previous []byte) (wrong, warnings []string) {
		if string(doc) == "bad" {
			wrong = []string{"line 1: bad"}
		}
		return wrong, nil
	}}
	r := &replica{Certificates: c, ended: make(chan error, 2)}
	go func() { r.ended <- c.Run(ctx) }()
	go func() {
		r.ended <- w.Serve(ctx, ln, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.GetCertificate})
	}()
	stopped := false
	r.end = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 2 {
			select {
			case err := <-r.ended:
				if err != nil {
					p.t.Error(err)
				}
			case <-time.After(long):
				p.t.Error("the replica does not stop")
			}
		}
	}
	p.t.Cleanup(r.end)
	return r
}

// waitUntil waits until check returns nil. The error describes what is missing.
func (p *env) waitUntil(check func() error) {
	p.t.Helper()
	deadline := time.Now().Add(long)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // between two checks of a real server
	}
}

// pod creates a pod from a manifest and returns it as admitted.
func (p *env) pod(ns, text string) (*corev1.Pod, error) {
	p.t.Helper()
	b, err := k8syaml.YAMLToJSON([]byte(text))
	if err != nil {
		p.t.Fatal(err)
	}
	var pod corev1.Pod
	if err := json.Unmarshal(b, &pod); err != nil {
		p.t.Fatal(err)
	}
	if pod.Name == "" {
		pod.GenerateName = "p-"
	}
	return p.admin.CoreV1().Pods(ns).Create(p.t.Context(), &pod, metav1.CreateOptions{})
}

// waitServing waits until the webhook answers the API server.
func (p *env) waitServing() {
	p.t.Helper()
	ns := p.Namespace(p.t)
	p.waitUntil(func() error {
		_, err := p.pod(ns, optedInAnnotation)
		return err
	})
}

const optedInAnnotation = `
metadata: {labels: {mca.tailplane.dev/inject: "true"}}
spec: {containers: [{name: application, image: app}]}
`

// namespace creates a namespace with these labels.
func (p *env) namespace(labels map[string]string) string {
	p.t.Helper()
	name := p.Namespace(p.t)
	ns, err := p.admin.CoreV1().Namespaces().Get(p.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	for k, v := range labels {
		ns.Labels[k] = v
	}
	if _, err := p.admin.CoreV1().Namespaces().Update(p.t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	return name
}

// injected returns an error that describes what a pod lacks of the adapter, or nil.
func injected(pod *corev1.Pod) error {
	if len(pod.Spec.InitContainers) == 0 || pod.Spec.InitContainers[0].Name != "mca" || pod.Spec.InitContainers[0].Image != image ||
		pod.Spec.InitContainers[0].RestartPolicy == nil || *pod.Spec.InitContainers[0].RestartPolicy != corev1.ContainerRestartPolicyAlways {
		return fmt.Errorf("the adapter is not the first of %d init containers", len(pod.Spec.InitContainers))
	}
	if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken || pod.Spec.Volumes[0].Name != "kube-api-access-sa" {
		return fmt.Errorf("automount %v, first volume %s", pod.Spec.AutomountServiceAccountToken, pod.Spec.Volumes[0].Name)
	}
	for i, c := range append(pod.Spec.InitContainers[1:len(pod.Spec.InitContainers):len(pod.Spec.InitContainers)], pod.Spec.Containers...) {
		var at []string
		for _, m := range c.VolumeMounts {
			if strings.HasPrefix(m.Name, "kube-api-access") || m.Name == "mca-state" {
				return fmt.Errorf("container %d mounts %s", i, m.Name)
			}
			if strings.Contains(m.MountPath, "serviceaccount") {
				at = append(at, m.Name)
			}
		}
		if len(at) != 1 || at[0] != "mca-access" || len(c.Env) < 8 || c.Env[0].Name != "KUBERNETES_SERVICE_HOST" || c.Env[0].Value != "127.0.0.1" {
			return fmt.Errorf("container %s has %v at the credentials' path and the variables %v", c.Name, at, c.Env)
		}
	}
	b, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	o := options()
	o.Unlabelled = inject.InjectUnlabelled
	if v := inject.Pod(b, o); v.Outcome != inject.Unchanged {
		return fmt.Errorf("injected again: %s %s %v", v.Outcome, v.Message, v.Patch)
	}
	return nil
}
