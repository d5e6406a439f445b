package testenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// planeHost is the plane's name on the tailnet.
const planeHost = "dashboard"

// StartPlane puts the plane's manifests into the cluster, starts `tailplaned plane`
// with exactly the rights of its account, and waits until the tailnet reaches it.
func (r *Env) StartPlane(ctx context.Context) error {
	root, err := sourceTree()
	if err != nil {
		return err
	}
	var manifests [][]byte
	for _, name := range []string{"plane", "rbac-plane"} {
		b, err := os.ReadFile(filepath.Join(root, "deploy", "plane", name+".yaml"))
		if err != nil {
			return err
		}
		manifests = append(manifests, b)
	}
	if err := r.Cluster.Apply(ctx, manifests...); err != nil {
		return fmt.Errorf("the plane's manifests: %w", err)
	}
	// A key lets one node in: the access server's may be used by now.
	if err := os.Remove(r.AuthKeyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.writeAuthKey(); err != nil {
		return err
	}
	if r.Plane, err = r.tailplaned(ctx, "plane", "tailplane-plane", append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...)); err != nil {
		return err
	}
	return r.Plane.WaitLog(ctx, `"the plane is serving"`)
}

// Dashboard is the plane's URL.
func (r *Env) Dashboard() string { return "https://" + planeHost + "." + r.Net.Suffix() }

// PlaneAuditFile is where the plane writes its record.
func (r *Env) PlaneAuditFile() string { return filepath.Join(r.Dir, "plane", "audit.jsonl") }
