package main

import (
	"cmp"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/server"
)

func command() *cobra.Command {
	var o server.Options
	root := &cobra.Command{
		Use: "tailplaned", Short: "Tailplane's server",
		Long:          "Tailplane's server. Each role is a command: run each with a separate ServiceAccount.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	p := root.PersistentFlags()
	p.StringVar(&o.Config, "config", "/etc/tailplane/config.yaml", "the settings file")
	p.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; default: the pod's ServiceAccount")
	p.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	p.BoolVar(&o.Check, "check", false, "check the settings and exit")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError("%w", err) })
	root.AddCommand(
		newCommand("access", "Serve the sign-in API on the tailnet",
			"Serves the sign-in API on the tailnet: it identifies callers, evaluates their grants, writes TkaSignin objects and returns kubeconfigs.",
			func(c *cobra.Command) error { return server.Run(c.Context(), o, "access") }),
		newCommand("operator", "Provision sign-ins in the cluster",
			"Watches TkaSignin objects, creates and deletes their ServiceAccounts and bindings, and ends expired sign-ins.",
			func(c *cobra.Command) error { return server.Run(c.Context(), o, "operator") }),
		newCommand("proxy", "Carry kubectl over the tailnet",
			"Serves the cluster's API on the tailnet, as a node of its own. It identifies each connection, sends the request with a token of\n"+
				"the caller's own live sign-in, and ends every stream when the sign-in ends. It has no right to impersonate anybody.",
			func(c *cobra.Command) error { return server.Run(c.Context(), o, "proxy") }),
		newCommand("recorder", "Store recordings of sessions through the access proxy",
			"Stores what access proxies send, as a node of the tailnet, and shows it to people whose role allows it. It speaks the protocol of Tailscale's recorder,\n"+
				"accepts only nodes with the tags of recorder.proxyTags, and calls no API server.",
			func(c *cobra.Command) error { return server.RunRecorder(c.Context(), o) }),
		newCommand("all", "Run access and operator, and the plane and the proxy if they are enabled, in one process",
			"Runs the roles access and operator in one process, for a small cluster, the role plane if plane.enabled is set, and the role proxy if proxy.enabled is set.\n"+
				"The roles still communicate only through objects of the cluster.",
			func(c *cobra.Command) error { return server.Run(c.Context(), o, "all") }),
		newCommand("config", "Print the effective settings",
			"Prints the settings file with all defaults, and warnings on standard error.",
			func(c *cobra.Command) error {
				return server.PrintConfig(o, c.OutOrStdout(), c.ErrOrStderr())
			}),
		planeCommand(&o), fleetCommand(&o), canaryCommand(), gatewayCommand(&o), relayCommand(&o), injectCommand(&o), readyCommand(),
	)
	return root
}

// newCommand returns a command without arguments.
func newCommand(use, short, long string, run func(*cobra.Command) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Long: long, Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return run(c) }}
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("unexpected argument %q", args[0])
	}
	return nil
}

func planeCommand(o *server.Options) *cobra.Command {
	c := newCommand("plane", "Serve the operator plane on the tailnet",
		"Serves the operator plane on the tailnet. It shows clusters, sign-ins, tailnets, gateways, adapters and CI runners, ends sign-ins and pauses"+
			" runners.\n"+
			"One of several replicas is the node; the others wait for the Lease "+server.PlaneLease+".",
		func(c *cobra.Command) error { return server.Run(c.Context(), *o, "plane") })
	c.Flags().BoolVar(&o.LeaderElect, "leader-elect", true,
		"only one replica is the node at a time; false: this is the only replica, and it continues while the API server is down")
	return c
}

func fleetCommand(o *server.Options) *cobra.Command {
	c := newCommand("fleet", "Manage CI runners for several organisations",
		"Creates, shares, holds and deletes the CI runners of organisations on GitHub and GitLab, according to RunnerForges, RunnerPools, RunnerEnrollments and RunnerHolds.\n"+
			"It starts after it has verified that the API server restricts its account to namespaces of runners.",
		func(c *cobra.Command) error { return server.RunFleet(c.Context(), *o) })
	c.Flags().BoolVar(&o.LeaderElect, "leader-elect", true, "only one replica is active at a time; the others wait")
	return c
}

func canaryCommand() *cobra.Command {
	var probe server.CanaryProbe
	var listen string
	c := newCommand("canary", "Check from the network of a job that the blocked addresses cannot be reached",
		"Tries to connect from the network of a job to addresses that no job may reach. The fleet starts it (fleet.canary). It exits with code 3 and prints the addresses\n"+
			"if one of them answers. It is ready while none of them answers and its forge does.",
		func(c *cobra.Command) error { return server.RunCanary(c.Context(), &probe, listen) })
	f := c.Flags()
	f.StringArrayVar(&probe.Forbidden, "never", nil, "host:port that must not answer; repeatable")
	f.StringArrayVar(&probe.Required, "always", nil, "host:port; at least one of these must answer; repeatable")
	f.DurationVar(&probe.Interval, "every", time.Minute, "time between two attempts")
	f.StringVar(&listen, "listen", ":9094", "address of its readiness probe")
	return c
}

func gatewayCommand(o *server.Options) *cobra.Command {
	g := server.GatewayOptions{
		// The names are those of Tailscale's proxy image and of its operator.
		ClientIDFile: cmp.Or(os.Getenv("CLIENT_ID_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_ID_FILE")),
		SecretFile:   cmp.Or(os.Getenv("CLIENT_SECRET_FILE"), os.Getenv("TAILSCALE_OAUTH_CLIENT_SECRET_FILE")),
	}
	c := newCommand("gateway", "Connect several tailnets to the cluster",
		"Verifies the credentials of tailnets, discovers their services, runs relays to them, and adds routes to the output of Envoy Gateway.\n"+
			"Every replica answers Envoy Gateway; one replica writes the objects.\n"+
			"An OAuth client can be mounted as files: set CLIENT_ID_FILE and CLIENT_SECRET_FILE.",
		func(c *cobra.Command) error { return server.RunGateway(c.Context(), *o, g) })
	p := c.Flags()
	p.StringVar(&g.Health, "metrics-addr", ":9091", "address of probes and metrics")
	p.StringVar(&g.Namespace, "namespace", "tailscale-gateway-system", "namespace of the operator")
	p.StringVar(&g.Release, "release", "tailplane", "name of this installation; other operators use it if the settings have no operatorID")
	p.StringVar(&g.Extension, "extension-addr", cmp.Or(os.Getenv("EXTENSION_SERVER_ADDR"), ":5005"), "address for Envoy Gateway: host:port, or unix:///path")
	p.StringVar(&g.TLSDir, "extension-tls-dir", "", "directory with tls.crt, tls.key and ca.crt for that address; required unless the address is local to this machine")
	p.BoolVar(&g.Certify, "extension-certificates", false, "create and renew the certificates for that address, in the Secrets tailplane-extension-{server,ca,client}")
	p.BoolVar(&g.Reflection, "grpc-reflection", false, "serve gRPC reflection for tools such as grpcurl")
	p.BoolVar(&g.Controllers, "controllers", true, "run the controllers too; if false, only answer Envoy Gateway, as in a sidecar")
	p.BoolVar(&o.LeaderElect, "leader-elect", true, "only one replica writes the objects at a time; the others wait")
	c.AddCommand(envoyCommand())
	return c
}

func envoyCommand() *cobra.Command {
	var address string
	o := server.EnvoyOptions{Provider: "kubernetes"}
	c := newCommand("envoy-config", "Print the configuration for Envoy Gateway",
		"Prints the configuration that makes Envoy Gateway call the extension server: the value envoy-gateway.yaml of its ConfigMap envoy-gateway-config,\n"+
			"or config.envoyGateway of its chart. With --provider file, the output is a complete file for `envoy-gateway server`.",
		func(c *cobra.Command) error { return server.PrintEnvoyConfig(c.OutOrStdout(), address, o) })
	p := c.Flags()
	p.StringVar((*string)(&o.Provider), "provider", string(o.Provider), "source of Envoy Gateway's resources: kubernetes or file")
	p.StringVar(&address, "server", "tailscale-extension-server.tailscale-gateway-system.svc.cluster.local:5005", "address of the extension server: host:port, or unix:///path for the sidecar")
	p.StringVar(&o.Namespace, "namespace", "tailscale-gateway-system", "namespace of the Secrets with the certificates")
	p.IntVar(&o.MaxMessage, "max-message", 64<<20, "maximum size of a message, in bytes")
	p.BoolVar(&o.Plain, "plain", false, "connect without TLS; only for an address that is local to this machine")
	p.BoolVar(&o.Lean, "lean", false, "do not call for each virtual host; for very many hosts")
	p.StringVar(&o.Resources, "resources", "", "provider file: directory of the resources")
	p.StringVar(&o.Home, "home", "", "provider file: directory of Envoy Gateway's files")
	return c
}

func relayCommand(o *server.Options) *cobra.Command {
	var stateDir string
	var profiles bool
	c := newCommand("relay", "Relay connections between the cluster and one tailnet",
		"A pod of a proxy group: a node of one tailnet that relays connections between the cluster and the tailnet, according to the group's\n"+
			"ConfigMap. It reads the environment variables of Tailscale's proxy image. It needs no settings file.",
		func(c *cobra.Command) error { return server.RunRelay(c.Context(), *o, stateDir, profiles) })
	c.Flags().StringVar(&stateDir, "state-dir", "/var/run/tailplane", "directory for data that the node may lose, such as a cache; its keys are in the state Secret")
	c.Flags().BoolVar(&profiles, "pprof", false, "serve profiles of the process at TS_DEBUG_ADDR_PORT, which must be a loopback address")
	return c
}

func injectCommand(o *server.Options) *cobra.Command {
	i := server.DefaultInjectOptions()
	c := newCommand("inject", "Serve the webhook that injects the adapter into pods",
		"Answers the API server's admission reviews: it injects the adapter mca into pods that request it, or refuses with a reason.\n"+
			"It manages its certificate and the CA bundle that the API server trusts. It needs no settings file.",
		func(c *cobra.Command) error { return server.RunInject(c.Context(), *o, i) })
	p := c.Flags()
	p.StringVar(&i.Listen, "listen", ":8443", "address of the webhook")
	p.StringVar(&i.Health, "health", ":8080", "address of probes and metrics")
	p.StringVar(&i.Sidecar, "sidecar", "/etc/tailplane/sidecar.yaml", "sidecar file: image, resources, log level and port of the injected adapter")
	p.StringVar(&i.ClientCA, "client-ca", "", "CA bundle file; clients must present a certificate signed by one of these CAs")
	p.StringVar(&i.Namespace, "namespace", "tailplane-system", "namespace of the Secret and the Lease")
	p.StringVar(&i.Secret, "tls-secret", "tailplane-inject-tls", "Secret that stores the webhook's certificate")
	p.StringVar(&i.Lease, "lease", "tailplane-inject", "Lease of the replica that renews the certificate")
	p.StringVar(&i.Webhook, "webhook", "tailplane-inject", "MutatingWebhookConfiguration and ValidatingWebhookConfiguration that get the CA bundle")
	p.StringSliceVar(&i.Names, "name", []string{"tailplane-inject.tailplane-system.svc"}, "a name or address at which the API server calls the webhook")
	p.BoolVar(&i.External, "external-certificates", false, "another program, such as cert-manager, manages the Secret and the CA bundle that the API server trusts")
	p.DurationVar(&i.Drain, "drain", 5*time.Second, "how long to continue to answer after the stop signal")
	p.DurationVar(&i.Lifetime, "certificate-life", i.Lifetime, "validity of a certificate; it is renewed after two thirds of this time")
	p.DurationVar(&i.Publish, "publish-wait", i.Publish, "maximum time until every API server uses a new CA bundle")
	p.DurationVar(&i.Retain, "keep-wait", i.Retain, "how long the previous CA stays trusted")
	p.DurationVar(&i.Poll, "poll", i.Poll, "how often to read the Secret")
	p.DurationVar(&i.CountEvery, "count-outdated", 0, "how often to count pods with an outdated adapter; requires the right to list pods; 0: never")
	p.DurationVar(&i.RestartEvery, "auto-restart", 0, "how often to restart at most one workload that requests it and has pods with an outdated adapter; requires the rights to list pods and to patch workloads; 0: never")
	c.AddCommand(injectStatusCommand(o))
	return c
}

func injectStatusCommand(o *server.Options) *cobra.Command {
	var sidecar, output string
	c := newCommand("status", "List pods with an outdated adapter",
		"Compares the adapter of every pod with the one that the sidecar file injects now. It never changes running pods: recreate outdated ones.\n"+
			"It needs the right to list pods, and reads only their metadata.",
		func(c *cobra.Command) error {
			return server.PrintOutdated(c.Context(), *o, sidecar, output, c.OutOrStdout())
		})
	c.Flags().StringVar(&sidecar, "sidecar", "/etc/tailplane/sidecar.yaml", "sidecar file: the settings of the injected adapter")
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

func readyCommand() *cobra.Command {
	var limit time.Duration
	c := &cobra.Command{
		Use: "ready URL…", Short: "Wait until servers are ready, or print why they are not",
		Long: "Requests each URL, such as http://tailplane-access.tailplane-system.svc:8080/readyz?verbose, until all are ready, and prints their\n" +
			"responses. If one is not ready in time, the command prints the reason and exits with code 1.",
		Args: func(_ *cobra.Command, urls []string) error {
			if len(urls) == 0 {
				return usageError("at least one URL is required")
			}
			return nil
		},
		RunE: func(c *cobra.Command, urls []string) error {
			return server.WaitReady(c.Context(), urls, limit, c.OutOrStdout())
		},
	}
	c.Flags().DurationVar(&limit, "timeout", time.Minute, "how long to wait for all of them")
	return c
}
