package testenv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// planeHost is the plane's hostname on the tailnet.
const planeHost = "dashboard"

// StartPlane applies the plane's manifests, starts `tailplaned plane` with exactly the rights of its account, and
// waits until it serves on the tailnet.
func (r *Env) StartPlane(ctx context.Context) (err error) {
	r.Plane, err = r.startPart(ctx, "plane", `"the plane is serving"`)
	return err
}

// startPart applies the manifests of an optional part, starts its role with exactly the rights of its account, and waits
// until the role logs that it serves on the tailnet. The process is also returned with an error of the wait.
func (r *Env) startPart(ctx context.Context, part, serving string) (*Process, error) {
	if err := r.applyFolder(ctx, part); err != nil {
		return nil, err
	}
	// An auth key admits one node, and the access server may have used this one already.
	if err := os.Remove(r.AuthKeyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var tags []string
	if own := r.settings["proxy.tags"]; part == "proxy" && own != "" {
		tags = []string{strings.Trim(own, "[]")}
	}
	if err := r.writeAuthKey(tags...); err != nil {
		return nil, err
	}
	env := append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...)
	if part == "proxy" || strings.Contains(r.settings["access.modes"], "proxy") || r.settings["plane.recorder"] != "" { // they verify the certificates of the test tailnet
		env = append(env, "SSL_CERT_FILE="+r.rootsFile())
	}
	p, err := r.tailplaned(ctx, part, "tailplane-"+part, env)
	if err != nil {
		return nil, err
	}
	return p, p.WaitLog(ctx, serving)
}

// Dashboard returns the URL of the plane.
func (r *Env) Dashboard() string { return "https://" + planeHost + "." + r.Net.Suffix() }

// PlaneAuditFile returns the path of the plane's audit log.
func (r *Env) PlaneAuditFile() string { return filepath.Join(r.Dir, "plane", "audit.jsonl") }
