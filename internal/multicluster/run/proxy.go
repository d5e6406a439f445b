package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster"
	"github.com/tailplane/tailplane/internal/multicluster/config"
	"github.com/tailplane/tailplane/internal/podcreds"
)

// configInterval is the interval between two checks of the configuration.
const configInterval = 2 * time.Second

// upgradeGrace is how long upgraded connections, such as exec, may continue after SIGTERM. It is the pod's
// grace period less five seconds.
const upgradeGrace = 25 * time.Second

// proxyFlags are the flags of the proxy command. Every path is a flag, so that tests can run several adapters
// on one machine.
type proxyFlags struct {
	listen, admin, metrics, config, credentials, audiences, account, share, state, audit, logLevel, logFormat string

	check, pprof bool
}

func proxyCommand() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use: "proxy", Short: "Serve the Kubernetes API to the containers of this pod",
		Long: "Serves the Kubernetes API on a loopback address to the containers of its pod, with a certificate and a token that it creates for them, " +
			"and sends requests to the clusters with the pod's own credentials.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.check {
				return checkReady(c.Context(), f)
			}
			return runProxy(c.Context(), f)
		},
	}
	p := cmd.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:6443", "address of the API for the applications of the pod; a loopback address")
	p.StringVar(&f.admin, "admin", "127.0.0.1:9006", "address of the admin port, with health; a loopback address")
	p.StringVar(&f.metrics, "metrics", "", "additional address for metrics, such as :9007; the admin port always has them")
	p.StringVar(
		&f.config,
		"config",
		"/etc/mca/config/config.yaml",
		"the configuration; without the file, there is one cluster, the pod's own",
	)
	credentialFlags(p, &f)
	p.StringVar(
		&f.share,
		"share-dir",
		"/var/run/secrets/kubernetes.io/mca-serviceaccount",
		"directory for the files that the other containers read",
	)
	p.StringVar(
		&f.state,
		"state-dir",
		"/var/run/mca",
		"directory for state that survives a restart of the container, which the other containers cannot read",
	)
	p.StringVar(&f.audit, "audit", "", "the audit log: a file, or - for standard output")
	p.BoolVar(&f.pprof, "pprof", false, "serve profiles of the process on the admin port")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug also logs each read")
	p.StringVar(&f.logFormat, "log-format", "json", "json or text")
	p.BoolVar(&f.check, "check", false, "query the admin port for readiness, and exit with 0 (ready) or 4")
	return cmd
}

// runProxy serves until ctx ends. It loads the state, binds its addresses, writes the shared files and becomes
// ready. None of this needs a response from a cluster; otherwise the outage of one cluster would keep every
// pod from starting.
func runProxy(ctx context.Context, f proxyFlags) error {
	log, err := logger(f)
	if err != nil {
		return usageError(err)
	}
	limitMemory(memoryFiles)
	home, namespace, err := homeUpstream(f)
	if err != nil {
		return err
	}
	router := &multicluster.Router{Log: log, Now: time.Now}
	tel, loader, err := loadConfig(f, router, home, namespace, log)
	if err != nil {
		return err
	}
	creds, err := podcreds.Open(f.state, time.Now)
	if err != nil {
		return err
	}
	tel.requests.Metrics.RegisterSources(tel.metricSources(loader, router, creds.Expires))
	api, err := listen(f.listen)
	if err != nil {
		return err
	}
	defer api.Close()
	admin, err := listen(f.admin)
	if err != nil {
		return err
	}
	defer admin.Close()
	health := tel.adminHandler(loader, router, creds.ValidToken, func() error {
		if ctx.Err() != nil {
			return errors.New("starting or stopping")
		}
		return nil
	}, f.pprof)
	// They run until the server has drained, which is after ctx ends.
	drained := []func(context.Context) error{tel.run, func(ctx context.Context) error { return serveHTTP(ctx, admin, health, log) }}
	if f.metrics != "" {
		scraped, err := net.Listen("tcp", f.metrics)
		if err != nil {
			return err
		}
		defer scraped.Close()
		handler := MetricsHandler(tel.requests.Metrics, log)
		drained = append(drained, func(ctx context.Context) error { return serveHTTP(ctx, scraped, handler, log) })
	}
	if err := writeAddresses(f.state, boundAddresses{Listen: api.Addr().String(), Admin: admin.Addr().String()}); err != nil {
		return err
	}
	if err := creds.WriteFiles(f.share, namespace); err != nil {
		return err
	}
	server := &apiproxy.Server{
		Hosts: podcreds.Hosts(), ValidToken: creds.ValidToken, Telemetry: tel.requests, Log: log, Now: time.Now, Grace: upgradeGrace, Handle: router.Handle,
		Permissions: func() apiproxy.Permissions {
			d := loader.Current().Config()
			return apiproxy.Permissions{Impersonation: d.Impersonation, TokenRequests: d.AllowTokenRequest}
		},
	}
	log.Info(
		"serving",
		"version",
		programVersion(),
		"listen",
		api.Addr().String(),
		"admin",
		admin.Addr().String(),
		"clusters",
		len(loader.Current().Upstreams()),
		"home",
		home.Servers[0],
	)
	serve := func(ctx context.Context) error { return server.Run(ctx, api, creds.TLSConfig()) }
	return runParts(ctx, serve, drained, []func(context.Context) error{loader.Run, loader.RunProbes, router.Survey})
}

// loadConfig loads the configuration into router. The returned loader reloads it.
func loadConfig(
	f proxyFlags,
	router *multicluster.Router,
	home apiproxy.UpstreamConfig,
	namespace string,
	log *slog.Logger,
) (*telemetry, *multicluster.ConfigLoader, error) {
	builtin := apiproxy.BuiltinResources()
	tel, err := newTelemetry(f.audit, namespace, func(group, resource, subresource string) bool {
		return builtin(group, resource, subresource) || subresource == "" && router.Scope(group, resource) != config.ScopeUnknown
	}, log)
	if err != nil {
		return nil, nil, err
	}
	metrics := tel.requests.Metrics
	router.Metrics = metrics
	history, err := multicluster.OpenConfigHistory(filepath.Join(f.state, "past"), router.Scope)
	if err != nil {
		return nil, nil, err
	}
	loader := &multicluster.ConfigLoader{
		File: f.config, Credentials: f.credentials, Audiences: f.audiences, Home: home, Scope: router.Scope,
		CheckUpdate: multicluster.CheckEpoch, OnLoad: metrics.ConfigReloaded, Dial: metrics.Dial, OnProbe: metrics.Probed, Interval: configInterval, Log: log, Now: time.Now,
		OnChange: func(_, next *multicluster.RuntimeConfig) (err error) {
			if history, err = history.Add(next); err == nil {
				err = tel.setConfig(next.Config())
			}
			if err == nil {
				router.SetConfig(next, history)
			}
			return err
		},
	}
	return tel, loader, loader.Load()
}

// runParts runs serve and the other parts until ctx ends or one of them fails. It ends the drained ones last.
func runParts(ctx context.Context, serve func(context.Context) error, drained, running []func(context.Context) error) error {
	drainCtx, endDrain := context.WithCancel(context.WithoutCancel(ctx))
	runCtx, cancelRun := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer endDrain()
	defer cancelRun()
	failed := make(chan error, len(drained)+len(running))
	start := func(ctx context.Context, all []func(context.Context) error) {
		for _, run := range all {
			parts.Go(func() {
				if err := run(ctx); err != nil {
					failed <- err
					cancelRun()
				}
			})
		}
	}
	start(drainCtx, drained)
	start(runCtx, running)
	err := serve(runCtx)
	select {
	case first := <-failed:
		return errors.Join(first, err)
	default:
		return err
	}
}

// homeUpstream finds the pod's own cluster by the standard in-cluster environment variables and files.
func homeUpstream(f proxyFlags) (home apiproxy.UpstreamConfig, namespace string, _ error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return home, "", errors.New(
			"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod, or its variables were changed",
		)
	}
	if at, err := netip.ParseAddrPort(f.listen); err == nil && net.JoinHostPort(host, port) == at.String() && at.Port() != 0 {
		return home, "", fmt.Errorf("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are %s, which is the adapter itself", at)
	}
	in := func(name string) string { return filepath.Join(f.account, name) }
	b, err := os.ReadFile(in("namespace"))
	if err != nil {
		return home, "", fmt.Errorf("the pod's ServiceAccount: %w", err)
	}
	home = apiproxy.UpstreamConfig{Servers: []string{net.JoinHostPort(host, port)}, CAFile: in("ca.crt"), TokenFile: in("token")}
	for _, path := range []string{home.CAFile, home.TokenFile} {
		if b, err := os.ReadFile(path); err != nil {
			return home, "", fmt.Errorf("the pod's ServiceAccount: %w", err)
		} else if len(b) == 0 {
			return home, "", fmt.Errorf("the pod's ServiceAccount: %s is empty", path)
		}
	}
	return home, strings.TrimSpace(string(b)), nil
}

// listen binds a loopback address, because these servers are only for this pod.
func listen(addr string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, usageError(fmt.Errorf("%q is not a loopback address and port, such as 127.0.0.1:6443", addr))
	}
	return net.Listen("tcp", addr)
}

// boundAddresses records the bound addresses, for callers that chose port 0.
type boundAddresses struct {
	Listen string `json:"listen"`
	Admin  string `json:"admin"`
}

func writeAddresses(dir string, a boundAddresses) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "address"), append(b, '\n'), 0o600)
}

func logger(f proxyFlags) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: must be debug, info, warn or error", f.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	}
	return nil, fmt.Errorf("--log-format %q: must be json or text", f.logFormat)
}
