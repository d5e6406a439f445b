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
		Use: "envoy-config", Short: "Print the configuration that Envoy Gateway needs",
		Long: "Prints what makes Envoy Gateway ask the extension server: the value envoy-gateway.yaml of its ConfigMap envoy-gateway-config,\n" +
			"or config.envoyGateway of its chart. With the provider file it is a whole file for `envoy-gateway server`.",
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
	p.StringVar(&provider, "provider", string(xds.Kubernetes), "where Envoy Gateway reads its resources: kubernetes or file")
	p.StringVar(&server, "server", "tailscale-extension-server.tailscale-gateway-system.svc.cluster.local:5005", "where Envoy Gateway finds the extension server: host:port, or unix:///path for the sidecar")
	p.StringVar(&o.Namespace, "namespace", "tailscale-gateway-system", "the namespace of the Secrets with the certificates")
	p.IntVar(&o.MaxMessage, "max-message", 64<<20, "how large a message may be, in bytes")
	p.BoolVar(&o.Plain, "plain", false, "without TLS, for an address that only this machine reaches")
	p.BoolVar(&o.Lean, "lean", false, "without a call for each virtual host, for very many hosts")
	p.StringVar(&o.Resources, "resources", "", "provider file: the folder of the resources")
	p.StringVar(&o.Home, "home", "", "provider file: the folder of Envoy Gateway's own files")
	return c
}
