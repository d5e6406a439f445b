package server

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/gateway/xds"
)

// envoyConfig prints Envoy Gateway's configuration. Tailplane never writes it into a cluster, because Envoy Gateway owns that configuration
// and it may contain other settings.
func envoyConfig() *cobra.Command {
	var provider, server string
	o := xds.ConfigOptions{}
	c := &cobra.Command{
		Use: "envoy-config", Short: "Print the configuration for Envoy Gateway",
		Long: "Prints the configuration that makes Envoy Gateway call the extension server: the value envoy-gateway.yaml of its ConfigMap envoy-gateway-config,\n" +
			"or config.envoyGateway of its chart. With --provider file, the output is a complete file for `envoy-gateway server`.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := xds.ParseAddress(server)
			if err != nil {
				return usageError{fmt.Errorf("--server: %w", err)}
			}
			o.Provider, o.Server = xds.Provider(provider), at
			b, err := xds.Config(o)
			if err != nil {
				return usageError{err}
			}
			_, err = c.OutOrStdout().Write(b)
			return err
		},
	}
	p := c.Flags()
	p.StringVar(&provider, "provider", string(xds.Kubernetes), "source of Envoy Gateway's resources: kubernetes or file")
	p.StringVar(&server, "server", "tailscale-extension-server.tailscale-gateway-system.svc.cluster.local:5005", "address of the extension server: host:port, or unix:///path for the sidecar")
	p.StringVar(&o.Namespace, "namespace", "tailscale-gateway-system", "namespace of the Secrets with the certificates")
	p.IntVar(&o.MaxMessage, "max-message", 64<<20, "maximum size of a message, in bytes")
	p.BoolVar(&o.Plain, "plain", false, "connect without TLS; only for an address that is local to this machine")
	p.BoolVar(&o.Lean, "lean", false, "do not call for each virtual host; for very many hosts")
	p.StringVar(&o.Resources, "resources", "", "provider file: directory of the resources")
	p.StringVar(&o.Home, "home", "", "provider file: directory of Envoy Gateway's files")
	return c
}
