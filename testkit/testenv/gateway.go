package testenv

import (
	"context"
	"os"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// Gateway is a `tailplaned gateway` process with the rights of an account, at its own loopback address.
type Gateway struct {
	*Process
	Extension string // address of the extension server for Envoy Gateway
	Probes    string // address of probes and metrics
}

// GatewayOptions configure a Gateway. Fields are required unless their comment says otherwise.
type GatewayOptions struct {
	Namespace, Account string   // namespace of the gateway, and an account in it
	IP                 string   // for example 127.77.0.1
	Settings           string   // path of the settings file
	TLSDir             string   // directory of the extension server's certificates
	Args               []string // optional; they override the default arguments
}

// StartGateway starts a gateway with its files in dir. It returns before the gateway is ready.
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
