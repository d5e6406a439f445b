package testenv

import (
	"context"
	"os"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// A Gateway is `tailplaned gateway` with an account's rights, at an address of
// loopback of its own.
type Gateway struct {
	*Process
	Extension string // where Envoy Gateway asks
	Probes    string // where probes and metrics are
}

// GatewayOptions say which one it is. Fields without a remark are required.
type GatewayOptions struct {
	Namespace, Account string   // its own namespace, and an account there
	IP                 string   // such as 127.77.0.1
	Settings           string   // path of its file
	TLSDir             string   // the folder of the extension server's certificates
	Args               []string // optional; later ones win
}

// StartGateway starts one whose files lie in dir. It is not ready yet.
func StartGateway(ctx context.Context, dir string, c *kubetest.Cluster, o GatewayOptions) (*Gateway, error) {
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, o.Namespace, o.Account, dir)
	if err != nil {
		return nil, err
	}
	g := &Gateway{Extension: o.IP + ":5005", Probes: o.IP + ":9091"}
	args := []string{program, "gateway", "--config", o.Settings, "--kubeconfig", kubeconfig, "--namespace", o.Namespace, "--metrics-addr", g.Probes,
		"--extension-addr", g.Extension, "--extension-tls-dir", o.TLSDir, "--log-level", "debug"}
	g.Process, err = startProcess(dir, append(tailnettest.ChildEnv(), "HOME="+dir, "TMPDIR="+os.TempDir()), append(args, o.Args...)...)
	if err != nil {
		return nil, err
	}
	return g, nil
}
