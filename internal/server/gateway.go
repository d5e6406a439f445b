package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/gateway/controller"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// gatewayFlags are the addresses, names and options of the gateway.
type gatewayFlags struct {
	health, namespace, release   string
	extension, tlsDir            string
	elect, controllers, reflects bool
	certify                      bool
}

func gatewayCommand(f *flags) *cobra.Command {
	var g gatewayFlags
	c := &cobra.Command{
		Use: "gateway", Short: "Connect several tailnets to the cluster",
		Long: "Verifies the credentials of tailnets, discovers their services, runs relays to them, and adds routes to the output of Envoy Gateway.\n" +
			"Every replica answers Envoy Gateway; one replica writes the objects.\n" +
			"An OAuth client can be mounted as files: set CLIENT_ID_FILE and CLIENT_SECRET_FILE.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return runGateway(c.Context(), *f, g) },
	}
	p := c.Flags()
	p.StringVar(&g.health, "metrics-addr", ":9091", "address of probes and metrics")
	p.StringVar(&g.namespace, "namespace", "tailscale-gateway-system", "namespace of the operator")
	p.StringVar(&g.release, "release", "tailplane", "name of this installation; other operators use it if the settings have no operatorID")
	p.StringVar(&g.extension, "extension-addr", cmp.Or(os.Getenv("EXTENSION_SERVER_ADDR"), ":5005"), "address for Envoy Gateway: host:port, or unix:///path")
	p.StringVar(&g.tlsDir, "extension-tls-dir", "", "directory with tls.crt, tls.key and ca.crt for that address; required unless the address is local to this machine")
	p.BoolVar(&g.certify, "extension-certificates", false, "create and renew the certificates for that address, in the Secrets tailplane-extension-{server,ca,client}")
	p.BoolVar(&g.reflects, "grpc-reflection", false, "serve gRPC reflection for tools such as grpcurl")
	p.BoolVar(&g.controllers, "controllers", true, "run the controllers too; if false, only answer Envoy Gateway, as in a sidecar")
	p.BoolVar(&g.elect, "leader-elect", true, "only one replica writes the objects at a time; the others wait")
	c.AddCommand(envoyConfig())
	return c
}

func runGateway(ctx context.Context, f flags, g gatewayFlags) error {
	log, quieten, err := newLogger(f)
	if err != nil {
		return err
	}
	s, err := settings.LoadGateway(f.config)
	if err != nil {
		return usageError{err}
	}
	for _, w := range s.Warnings() {
		log.Warn(w)
	}
	at, err := xds.ParseAddress(g.extension)
	if err != nil {
		return usageError{fmt.Errorf("--extension-addr: %w", err)}
	}
	if g.tlsDir == "" && !at.Private() {
		return usageError{fmt.Errorf("--extension-addr %s can be reached from other machines: set --extension-tls-dir", g.extension)}
	}
	// The names are those of Tailscale's proxy image and of its operator.
	id := cmp.Or(os.Getenv("CLIENT_ID_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_ID_FILE"))
	secret := cmp.Or(os.Getenv("CLIENT_SECRET_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_SECRET_FILE"))
	if (id == "") != (secret == "") {
		return usageError{fmt.Errorf("CLIENT_ID_FILE and CLIENT_SECRET_FILE belong together: one is set, the other is not")}
	}
	relays, err := relaySettings(s)
	if err != nil {
		return usageError{err}
	}
	if f.check {
		return nil
	}
	quieten()
	config, err := apiServer(ctx, f.kubeconfig)
	if err != nil {
		return err
	}
	clients := new(tsapi.Clients)
	metrics := gatewayMetrics(clients)
	answers := &controller.TranslationReports{Log: log}
	server := extensionServer(s.Extension, g.reflects, log, metrics, answers)
	controllers := &controller.Runner{
		Config: config, Namespace: g.namespace, CredentialNamespaces: s.CredentialNamespaces, BaseURLs: s.Tailnet.APIBaseURLs,
		ClientIDFile: id, ClientSecretFile: secret, Clients: clients, UserAgent: "tailplane-gateway/" + version(),
		PerSecond: s.Tailnet.RequestsPerSecond, Burst: s.Tailnet.Burst, Log: log, Now: time.Now,
		Observe: func(op tsapi.Op, class tsapi.Class, took time.Duration) {
			metrics.ObserveRequest(string(op), string(class), took)
		},
		ClusterDomain: cmp.Or(s.ClusterDomain, searchedDomain(log)), Controller: s.Envoy.Controller, EnvoyNamespace: s.Envoy.Namespace,
		ProxyNamespaces: s.ProxyNamespaces, Addresses: s.Envoy.Discovery == settings.DiscoveryEndpoints,
		GatherOnly: !g.controllers, Publisher: new(controller.Publisher), Publish: publish(server, metrics), OnBuild: metrics.ObserveBuild, Reports: answers, OnRestore: metrics.CountRestored,
		Relays: relays, OnKey: metrics.CountKey, OperatorID: s.OperatorID, Release: g.release, ConsumerNamespaces: s.ConsumerNamespaces,
	}
	if g.certify {
		controllers.Certificates = extensionCertificates(g.namespace, controllers.ClusterDomain, log)
	}
	if g.elect {
		controllers.LeaseNamespace = g.namespace
	}
	countTailnets(metrics, controllers)
	probes := &health.Listener{Address: g.health, Gatherer: metrics, Log: log}
	probes.AddCheck("extension server", func(context.Context) error {
		if !server.Open() {
			return errors.New("not open: the state is not complete yet, or there is no certificate")
		}
		return nil
	})
	metrics.AddReadiness(probes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, probes.Stop)()
	return runTogether(cancel,
		func() error { return controllers.Run(ctx) },
		func() error { return serveExtension(ctx, server, at, g.tlsDir, log) },
		func() error { return probes.Run(ctx) },
	)
}

// searchedDomain returns the cluster's domain according to the pod's resolver.
func searchedDomain(log *slog.Logger) string {
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		log.Warn("reading the cluster's domain from resolv.conf failed", "err", err)
	}
	return settings.SearchedDomain(string(b))
}
