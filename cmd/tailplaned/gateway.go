package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/gateway/gatewaykube"
	"github.com/tailplane/tailplane/internal/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet/tailnets"
)

// gatewayFlags say where the gateway and its things are.
type gatewayFlags struct {
	health, namespace string
	elect             bool
}

func gatewayCommand(f *flags) *cobra.Command {
	var g gatewayFlags
	c := &cobra.Command{
		Use: "gateway", Short: "Connect several tailnets to the cluster",
		Long: "Keeps TailscaleTailnet objects: proves their credentials once, looks at their tailnets, and says how they do.\n" +
			"An OAuth client may be mounted as files, named by CLIENT_ID_FILE and CLIENT_SECRET_FILE.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return runGateway(c.Context(), *f, g) },
	}
	p := c.Flags()
	p.StringVar(&g.health, "metrics-addr", ":9091", "where probes and metrics are served")
	p.StringVar(&g.namespace, "namespace", "tailscale-gateway-system", "the operator's own namespace")
	p.BoolVar(&g.elect, "leader-elect", true, "one replica at a time keeps the objects; the others wait")
	c.AddCommand(envoyConfig())
	return c
}

func runGateway(ctx context.Context, f flags, g gatewayFlags) error {
	log, quieten, err := logs(f)
	if err != nil {
		return err
	}
	s, err := settings.LoadGateway(f.config)
	if err != nil {
		return usageError{err}
	}
	// The names are containerboot's and the Tailscale operator's contract.
	id := cmp.Or(os.Getenv("CLIENT_ID_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_ID_FILE"))
	secret := cmp.Or(os.Getenv("CLIENT_SECRET_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_SECRET_FILE"))
	if (id == "") != (secret == "") {
		return usageError{fmt.Errorf("CLIENT_ID_FILE and CLIENT_SECRET_FILE belong together: one is set, the other is not")}
	}
	if f.check {
		return nil
	}
	quieten()
	config, err := apiServer(ctx, f.kubeconfig)
	if err != nil {
		return err
	}
	clients := new(tailnets.Clients)
	metrics := health.NewGateway(version(), commit(), clients.Unwell)
	controllers := &gatewaykube.Controllers{
		Config: config, Namespace: g.namespace, CredentialNamespaces: s.CredentialNamespaces, BaseURLs: s.Tailnet.APIBaseURLs,
		ClientIDFile: id, ClientSecretFile: secret, Clients: clients, UserAgent: "tailplane-gateway/" + version(),
		PerSecond: s.Tailnet.RequestsPerSecond, Burst: s.Tailnet.Burst, Log: log, Now: time.Now,
		Observe: func(op tailnets.Op, class tailnets.Class, took time.Duration) {
			metrics.Asked(string(op), string(class), took)
		},
	}
	if g.elect {
		controllers.LeaseNamespace = g.namespace
	}
	probes := &health.Listener{Address: g.health, Gatherer: metrics, Log: log}
	metrics.Readiness(probes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, probes.Stopping)()
	return together(cancel,
		func() error { return controllers.Run(ctx) },
		func() error { return probes.Run(ctx) },
	)
}
