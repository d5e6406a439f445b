//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// asProgram makes the test binary run as tailplaned.
const asProgram = "TAILPLANED_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// TestGatewayRole runs the role as in production: settings, credential files, election, metrics.
func TestGatewayRole(t *testing.T) {
	tailnettest.Quiet()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := kubetest.Start(t)
	if err := c.ApplyFiles(ctx, "../../deploy/crds/gateway.tailscale.com_*.yaml"); err != nil {
		t.Fatal(err)
	}
	api, err := tailnettest.Start(t, `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"]}}`).API()
	if err != nil {
		t.Fatal(err)
	}
	own, dir, ns := api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator"), t.TempDir(), c.Namespace(t)
	for name, text := range map[string]string{"id": own.ID, "secret": own.Secret + "\n", "gateway.yaml": fmt.Sprintf("tailnet: {apiBaseURLs: [%q]}", api.URL())} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TAILSCALE_OAUTH_CLIENT_ID_FILE", filepath.Join(dir, "id"))
	t.Setenv("TAILSCALE_OAUTH_CLIENT_SECRET_FILE", filepath.Join(dir, "secret"))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()

	socket := filepath.Join(dir, "extension.sock")

	// A separate process, because a role sets the loggers of libraries, which the test uses too.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	running := exec.CommandContext(ctx, self, "gateway", "--config", filepath.Join(dir, "gateway.yaml"), "--kubeconfig", c.Kubeconfig, "--namespace", ns, "--metrics-addr", address, "--log-level", "error", "--extension-addr", "unix://"+socket)
	running.Env = append(os.Environ(), asProgram+"=true")
	running.Stderr = t.Output()
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- running.Wait() }()
	stop := func() { running.Process.Signal(syscall.SIGTERM) }

	object := fmt.Sprintf("apiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleTailnet\nmetadata: {name: role-test}\nspec: {apiBaseURL: %q}\n", api.URL())
	if err := c.Apply(ctx, []byte(object)); err != nil {
		t.Fatal(err)
	}
	out, errs, code := kubetest.Kubectl(ctx, c.Kubeconfig, "wait", "--for=condition=Ready", "--timeout=120s", "tstn/role-test")
	if code != 0 {
		select {
		case err := <-ended:
			t.Fatalf("the role ended: %v", err)
		default:
		}
		t.Fatalf("%s%s", out, errs)
	}
	text := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(text, `tailplane_tailnet_api_requests_total{class="OK",op="create a key"} 1`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("metrics: %s", text)
		}
		if r, err := http.Get("http://" + address + "/metrics"); err == nil {
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			text = string(b)
		}
	}
	if _, errs, code := kubetest.Kubectl(ctx, c.Kubeconfig, "delete", "--timeout=60s", "tstn/role-test"); code != 0 {
		t.Error(errs)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("the role does not end")
	}
}

func TestGatewayRoleRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(bad, []byte("tailnet: {apiBaseURLs: []}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command()
	cmd.SetArgs([]string{"gateway", "--config", bad})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "apiBaseURLs is empty") {
		t.Errorf("bad settings: %v", err)
	}
}
