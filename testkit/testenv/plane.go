package testenv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// planeHost is the plane's hostname on the tailnet.
const planeHost = "dashboard"

// StartPlane applies the plane's manifests, starts `tailplaned plane` with exactly the rights of its account, and
// waits until it serves on the tailnet.
func (r *Env) StartPlane(ctx context.Context) error {
	if err := r.applyFolder(ctx, "plane"); err != nil {
		return err
	}
	// An auth key admits one node, and the access server may have used this one already.
	if err := os.Remove(r.AuthKeyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.writeAuthKey(); err != nil {
		return err
	}
	var err error
	if r.Plane, err = r.tailplaned(ctx, "plane", "tailplane-plane", append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...)); err != nil {
		return err
	}
	return r.Plane.WaitLog(ctx, `"the plane is serving"`)
}

// Dashboard returns the URL of the plane.
func (r *Env) Dashboard() string { return "https://" + planeHost + "." + r.Net.Suffix() }

// PlaneAuditFile returns the path of the plane's audit log.
func (r *Env) PlaneAuditFile() string { return filepath.Join(r.Dir, "plane", "audit.jsonl") }
