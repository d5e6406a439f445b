package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// Replica starts another access server of the cluster, with the host name, and its own node, state and audit log. kubeconfig is the file
// of its account; if it is empty, the replica has the account of the first server. Replica returns when the server serves. The caller must
// stop the process.
func (r *Env) Replica(ctx context.Context, hostname, kubeconfig string) (*Process, error) {
	dir := filepath.Join(r.Dir, hostname)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if kubeconfig == "" {
		if kubeconfig, err = r.Cluster.ServiceAccountKubeconfig(ctx, SystemNamespace, "tailplane-access", dir); err != nil {
			return nil, fmt.Errorf("tailplane-access: %w", err)
		}
	}
	text, err := r.Settings("access")
	if err != nil {
		return nil, err
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})+"\n"), 0o600); err != nil {
		return nil, err
	}
	settings := strings.NewReplacer(filepath.Join(r.Dir, "access", "state"), filepath.Join(dir, "state"), r.AuthKeyFile(), key,
		"hostname: "+r.hostname+"\n", "hostname: "+hostname+"\n", r.AuditFile(), filepath.Join(dir, "audit.jsonl")).Replace(string(text))
	p, err := r.Try(hostname, "access", nil, settings, "--kubeconfig", kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := p.WaitLog(ctx, `"access is serving"`); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}
