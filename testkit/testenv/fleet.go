package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// FleetManifests applies the CRDs, RBAC and policies of the fleet to the cluster. The namespace arc-systems must
// exist.
func (r *Env) FleetManifests(ctx context.Context) error {
	root, err := sourceTree()
	if err != nil {
		return err
	}
	for _, pattern := range []string{"deploy/crds/tailplane.dev_runner*.yaml", "deploy/fleet/*fleet*.yaml"} {
		if err := r.Cluster.ApplyFiles(ctx, filepath.Join(root, pattern)); err != nil {
			return fmt.Errorf("the fleet's manifests: %w", err)
		}
	}
	return nil
}

// StartFleet starts `tailplaned fleet` with the rights of an account and with settings as the text of its settings
// file. Its files are in dir. It returns before the fleet is ready; the log contains the address of the probes.
func StartFleet(ctx context.Context, dir string, c *kubetest.Cluster, namespace, account, settings string, args ...string) (*Process, error) {
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, namespace, account, dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "fleet.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	return startProcess(dir, append(tailnettest.ChildEnv(), "HOME="+dir, "TMPDIR="+os.TempDir()),
		append([]string{program, "fleet", "--config", file, "--kubeconfig", kubeconfig}, args...)...)
}
