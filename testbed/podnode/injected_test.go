//go:build linux

package podnode_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const injectedManifest = `apiVersion: v1
kind: Pod
metadata:
  name: injected
  namespace: %s
  labels: {mca.tailplane.dev/inject: "true"}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: app
    image: testbed.invalid/podclient
    args: [-namespace, $(NAMESPACE)]
    env: [{name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
    ports: [{name: health, containerPort: 8080}]
    readinessProbe: {periodSeconds: 1, httpGet: {path: /readyz, port: health}}
`

// TB-08, AD-03, ADP-03: a pod with the injected adapter starts as a real pair of processes. The application does not
// know of the adapter. It lists, watches, creates and takes a lease through the adapter. The pod's real token is not
// in the application's files, environment or memory, and not in any log.
func TestInjected(t *testing.T) {
	b := start(t, testenv.NodeOptions{Images: map[string]string{mcaImage: "mca"}})
	b.isolated(t)
	b.allow(t)
	sidecar := inject.DefaultSidecar()
	sidecar.Image, sidecar.LogLevel = mcaImage+":v1", "debug"
	out, found, err := inject.Files([]inject.Source{{Name: "pod.yaml", Text: fmt.Appendf(nil, injectedManifest, b.namespace, b.node.Name)}}, inject.Options{Sidecar: sidecar, Version: "v1"}, nil)
	if err != nil {
		t.Fatal(err, found)
	}
	if err := b.Apply(t.Context(), out[0].Text); err != nil {
		t.Fatal(err)
	}
	p := b.wait(t, "injected", "ready", ready)
	switch {
	case len(p.Status.InitContainerStatuses) != 1:
		t.Errorf("the adapter is no sidecar that started first: got %v, want 1", len(p.Status.InitContainerStatuses))
	case p.Status.InitContainerStatuses[0].State.Running == nil:
		t.Error("the adapter is no sidecar that started first: p.Status.InitContainerStatuses[0].State.Running is nil")
	case p.Status.InitContainerStatuses[0].State.Running.StartedAt.After(p.Status.ContainerStatuses[0].State.Running.StartedAt.Time):
		t.Errorf("the adapter is no sidecar that started first: p.Status.InitContainerStatuses[0].State.Running.StartedAt.After(p.Status.ContainerStatuses[0].State.Running.StartedAt.Time) is true; %+v",
			p.Status.InitContainerStatuses)
	}
	said, _ := b.kubectl(t, "logs", "injected", "-c", "app")
	for _, says := range []string{"server https://127.0.0.1:6443", "listed 1", "created podclient-", "watched podclient-", "leads podclient"} {
		if !strings.Contains(said, says) {
			t.Errorf("the output of the application lacks %q:\n%s", says, said)
		}
	}
	inspected, _ := b.kubectl(t, "logs", "injected", "-c", "mca")
	if !strings.Contains(inspected, "leases") {
		t.Errorf("the adapter has not seen the lease:\n%s", inspected)
	}

	adapter, app := process(t, "/mca", "injected"), process(t, "/podclient", "injected")
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	genuine, err := os.ReadFile(adapter + "/root" + account)
	if err != nil {
		t.Fatal(err)
	}
	local, err := os.ReadFile(app + "/root" + account)
	if err != nil {
		t.Fatal(err)
	}
	// Only the signature makes the token valid; the other parts are useless without it.
	parts := strings.Split(string(genuine), ".")
	if len(parts) != 3 || len(parts[2]) < 40 {
		t.Fatal("the adapter's token is no ServiceAccount token")
	}
	secret := []byte(parts[2])
	for _, tt := range []struct {
		process string
		secret  []byte
		found   bool
		why     string
	}{
		{adapter, secret, true, "the adapter has the real token: the search finds existing data"},
		{app, local, true, "the application has the local token: the search covers its files and memory"},
		{app, secret, false, "the application never sees the real one"},
	} {
		places, err := search(tt.process, tt.secret)
		if err != nil {
			t.Fatal(err)
		}
		inMemory, inFiles := strings.Contains(strings.Join(places, " "), "memory"), strings.Contains(strings.Join(places, " "), "/root/")
		if tt.found && (!inMemory || !inFiles) || !tt.found && len(places) > 0 {
			t.Errorf("%s: found in %v", tt.why, places)
		}
	}
	for name, log := range map[string]string{"application": said, "adapter": inspected} {
		if strings.Contains(log, string(secret)) || strings.Contains(log, string(local)) {
			t.Errorf("the log of the %s contains a token", name)
		}
	}
	node, err := os.ReadFile(b.node.Log)
	if err != nil || bytes.Contains(node, secret) {
		t.Errorf("the node's log contains the token, or cannot be read: %v", err)
	}

	// A crash of the adapter does not affect the application: it restarts with the same certificate and token.
	if out, code := b.kubectl(t, "exec", "injected", "-c", "mca", "--", "/mca", "proxy", "--check"); code != 0 {
		t.Errorf("the adapter's check: %d %s", code, out)
	}
	kill(t, adapter)
	p = b.wait(t, "injected", "ready with a new adapter", func(p *corev1.Pod) bool {
		return p.Status.InitContainerStatuses[0].RestartCount == 1 && ready(p)
	})
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the application was restarted %d times", n)
	}
	if again, err := os.ReadFile(app + "/root" + account); err != nil || !bytes.Equal(again, local) {
		t.Errorf("the local token changed: %v", err)
	}

	// Sidecars end last: the application releases its lease through the adapter.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, errs, code := kubetest.Kubectl(ctx, b.Kubeconfig, "-n", b.namespace, "delete", "pod", "injected"); code != 0 {
		t.Error(errs)
	}
	b.gone(t, "injected")
	if holder, _ := b.kubectl(t, "get", "lease", "podclient", "-o", "jsonpath={.spec.holderIdentity}"); holder != "" {
		t.Errorf("the lease is still held by %q", holder)
	}
}

// process returns the /proc directory of the only process of a program in a pod.
func process(t *testing.T, program, pod string) string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range all {
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		host, _ := os.ReadFile(dir + "/root/etc/hostname")
		if name, _, _ := bytes.Cut(cmdline, []byte{0}); string(name) == program && string(host) == pod+"\n" {
			found = append(found, dir)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d processes of %s in pod %s: %v", len(found), program, pod, found)
	}
	return found[0]
}

func kill(t *testing.T, dir string) {
	t.Helper()
	pid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// search returns the places of the secret in a process's files, environment, arguments and memory.
func search(dir string, secret []byte) ([]string, error) {
	var places []string
	look := func(name string, b []byte) {
		if bytes.Contains(b, secret) {
			places = append(places, name)
		}
	}
	for _, name := range []string{"environ", "cmdline"} {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return nil, err
		}
		look(name, b)
	}
	root := dir + "/root/"
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == root+"proc" || path == root+"dev") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		look(path, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	maps, err := os.Open(dir + "/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	read := 0
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		from, to, _ := strings.Cut(f[0], "-")
		first, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if f[1][0] != 'r' || strings.HasPrefix(f[len(f)-1], "[v") { // the kernel's own pages cannot be read this way
			continue
		}
		// Read piece by piece, with an overlap of the secret's length.
		const piece = 1 << 20
		for at := first; at < end; at += piece {
			b := make([]byte, min(end-at, piece+uint64(len(secret))))
			n, _ := mem.ReadAt(b, int64(at)) // pages may have disappeared
			read += n
			look("memory", b[:n])
		}
	}
	if read < 1<<20 {
		return nil, fmt.Errorf("only %d bytes of memory could be read", read)
	}
	return places, nil
}
