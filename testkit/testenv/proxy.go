package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// StartProxy applies the manifests of the access proxy, starts `tailplaned proxy` with exactly the rights of its account,
// and waits until it serves on the tailnet.
func (r *Env) StartProxy(ctx context.Context) (err error) {
	r.Proxy, err = r.startPart(ctx, "proxy", `"the access proxy is serving"`)
	return err
}

// ProxyReplica starts another replica of the access proxy, with the host name, and its own node, state and audit log. The caller
// must wait until it serves, and stop it.
func (r *Env) ProxyReplica(ctx context.Context, hostname string) (*Process, error) {
	if err := r.applyFolder(ctx, "proxy"); err != nil {
		return nil, err
	}
	dir := filepath.Join(r.Dir, hostname)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, SystemNamespace, "tailplane-proxy", dir)
	if err != nil {
		return nil, err
	}
	text, err := r.Settings("proxy")
	if err != nil {
		return nil, err
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})+"\n"), 0o600); err != nil {
		return nil, err
	}
	settings := strings.NewReplacer(filepath.Join(r.Dir, "proxy", "state"), filepath.Join(dir, "state"), r.AuthKeyFile(), key,
		r.ProxyAuditFile(), filepath.Join(dir, "audit.jsonl"), "\nproxy:\n", "\nproxy:\n  hostname: "+hostname+"\n").Replace(string(text))
	return r.Try(hostname, "proxy", nil, settings, "--kubeconfig", kubeconfig)
}

// applyFolder applies two files of a folder in deploy: the objects of a part and its rights.
func (r *Env) applyFolder(ctx context.Context, part string) error {
	root, err := sourceTree()
	if err != nil {
		return err
	}
	var manifests [][]byte
	for _, name := range []string{part, "rbac-" + part} {
		b, err := os.ReadFile(filepath.Join(root, "deploy", part, name+".yaml"))
		if err != nil {
			return err
		}
		manifests = append(manifests, b)
	}
	if err := r.Cluster.Apply(ctx, manifests...); err != nil {
		return fmt.Errorf("the manifests of %s: %w", part, err)
	}
	return nil
}

// ProxyServer returns the URL of the access proxy, which never serves plain HTTP.
func (r *Env) ProxyServer() string { return "https://" + r.name + "-api." + r.Net.Suffix() }

// ProxyAuditFile returns the path of the access proxy's audit log.
func (r *Env) ProxyAuditFile() string { return filepath.Join(r.Dir, "proxy", "audit.jsonl") }

var (
	probeAddress = regexp.MustCompile(`"health is served".*"address":"([^"]+)"`)
	openStreams  = regexp.MustCompile(`(?m)^tailplane_proxy_streams\{.*\} (\d+)$`)
)

// ProxyStreams returns the number of open streams that the proxy's metrics show. It returns 0 while they cannot be read.
func (r *Env) ProxyStreams() int { return r.StreamsOf(r.Proxy) }

// StreamsOf is ProxyStreams for another replica.
func (r *Env) StreamsOf(replica *Process) (n int) {
	at := probeAddress.FindStringSubmatch(replica.OwnOutput())
	if at == nil {
		return 0
	}
	res, err := http.Get("http://" + at[1] + "/metrics")
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0
	}
	for _, open := range openStreams.FindAllSubmatch(b, -1) {
		k, _ := strconv.Atoi(string(open[1])) // the pattern has digits only
		n += k
	}
	return n
}

// StartRecorder starts `tailplaned recorder` in the directory name as a node with tag:recorder and that host name, and waits until it serves.
// It has no account of the cluster. more are additional lines of its section of the settings, such as "  maxLive: 2\n". The caller must stop
// it. A recorder that starts again in the same directory is the same node.
func (r *Env) StartRecorder(ctx context.Context, name, more string) (*Process, error) {
	dir := filepath.Join(r.Dir, name)
	for _, d := range []string{"state", "recordings"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:recorder"}})), 0o600); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("tailnet: {tags: [tag:recorder], controlURL: %q, authKeyFile: %q, stateDir: %q}\nhealth: 127.0.0.1:0\naudit: {file: %q}\n"+
		"recorder:\n  hostname: %s\n  proxyTags: [tag:tailplane]\n  dir: %q\n%s",
		r.Net.ControlURL(), key, filepath.Join(dir, "state"), filepath.Join(dir, "audit.jsonl"), name, r.RecordingsDir(name), more)
	p, err := r.Try(name, "recorder", nil, text)
	if err != nil {
		return nil, err
	}
	return p, p.WaitLog(ctx, `"the recorder is serving"`)
}

// RecordingsDir returns the directory of a recorder's recordings.
func (r *Env) RecordingsDir(name string) string { return filepath.Join(r.Dir, name, "recordings") }
