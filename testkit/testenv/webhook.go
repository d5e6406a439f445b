package testenv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// SidecarImage is the image that a Webhook injects.
const SidecarImage = "registry.invalid/mca@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// Webhook is a replica of `tailplaned inject`, with exactly the rights of its account.
type Webhook struct {
	*Process
	Address string // host:port that the API server calls
	Probes  string // host:port
}

// StartWebhook starts a replica with its files in dir, and returns when it listens. The manifests of WebhookManifests
// must be in the cluster. args override the default flags.
func StartWebhook(ctx context.Context, dir string, c *kubetest.Cluster, listen string, args ...string) (*Webhook, error) {
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, SystemNamespace, "tailplane-inject", dir)
	if err != nil {
		return nil, err
	}
	sidecar := filepath.Join(dir, "sidecar.yaml")
	if err := os.WriteFile(sidecar, []byte("image: "+SidecarImage+"\n"), 0o600); err != nil {
		return nil, err
	}
	all := append([]string{program, "inject", "--kubeconfig=" + kubeconfig, "--listen=" + listen, "--health=127.0.0.1:0", "--sidecar=" + sidecar,
		"--name=127.0.0.1", "--poll=200ms", "--drain=1s"}, args...)
	p, err := startProcess(dir, []string{"HOME=" + dir, "TMPDIR=" + os.TempDir()}, all...)
	if err != nil {
		return nil, err
	}
	w := &Webhook{Process: p}
	for _, wait := range []struct {
		message string
		address *string
	}{{"the webhook is served", &w.Address}, {"health is served", &w.Probes}} {
		if err := p.WaitLog(ctx, `"`+wait.message+`"`); err != nil {
			p.Kill()
			return nil, err
		}
		*wait.address = said(p.Output(), wait.message)
	}
	return w, nil
}

// said returns the address in the last line of a log with this message.
func said(log, message string) (address string) {
	for lines := bufio.NewScanner(strings.NewReader(log)); lines.Scan(); {
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == message {
			address = l.Address
		}
	}
	return address
}

// End stops the replica in an orderly way.
func (w *Webhook) End() error { return w.Stop(time.Minute) }

// service matches the part of the webhook configuration that names the Service to call.
var service = regexp.MustCompile(`service: \{name: tailplane-inject, namespace: ` + SystemNamespace + `, path: (/[a-z-]+), port: 443\}`)

// WebhookManifests returns the manifests of an installation, with address on this machine instead of the Service.
func WebhookManifests(address string) ([][]byte, error) {
	root, err := sourceTree()
	if err != nil {
		return nil, err
	}
	all := [][]byte{[]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + SystemNamespace + "}\n")}
	for _, name := range []string{"inject", "rbac-inject", "webhook", "policy-adapter"} {
		b, err := os.ReadFile(filepath.Join(root, "deploy", "inject", name+".yaml"))
		if err != nil {
			return nil, err
		}
		text := service.ReplaceAll(b, []byte("url: https://"+address+"$1"))
		if name == "webhook" && bytes.Equal(text, b) {
			return nil, fmt.Errorf("deploy/inject/%s.yaml does not have the expected Service", name)
		}
		all = append(all, text)
	}
	return all, nil
}
