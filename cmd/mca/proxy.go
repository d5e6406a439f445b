package main

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
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/fanout"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/adminport"
	"github.com/tailplane/tailplane/internal/apiproxy/podface"
	"github.com/tailplane/tailplane/internal/apiproxy/roster"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// configEvery is the interval between two checks of the configuration.
const configEvery = 2 * time.Second

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
		Long: "Serves the Kubernetes API on a loopback address to the containers of its pod, with a certificate and a token that it makes for them, " +
			"and asks the clusters with the pod's own credentials.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.check {
				return check(c.Context(), f)
			}
			return proxy(c.Context(), f)
		},
	}
	p := cmd.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:6443", "where applications of the pod reach the API; a loopback address")
	p.StringVar(&f.admin, "admin", "127.0.0.1:9006", "where health is served; a loopback address")
	p.StringVar(&f.metrics, "metrics", "", "where else metrics are served, such as :9007; they are on the admin port in any case")
	p.StringVar(&f.config, "config", "/etc/mca/config/config.yaml", "the configuration; without the file there is one cluster, the pod's own")
	folders(p, &f)
	p.StringVar(&f.share, "share-dir", "/var/run/secrets/kubernetes.io/mca-serviceaccount", "where the files for the other containers are written")
	p.StringVar(&f.state, "state-dir", "/var/run/mca", "what survives a restart of the container, unseen by the others")
	p.StringVar(&f.audit, "audit", "", "the audit record: a file, or - for standard output")
	p.BoolVar(&f.pprof, "pprof", false, "serve profiles of the process on the admin port")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug has a line for each read too")
	p.StringVar(&f.logFormat, "log-format", "json", "json or text")
	p.BoolVar(&f.check, "check", false, "ask the admin port whether the adapter is ready, and exit with 0 or 4")
	return cmd
}

// proxy serves until ctx ends. It loads the state, binds its addresses, writes the shared files and becomes
// ready. None of this needs a response from a cluster; otherwise the outage of one cluster would keep every
// pod from starting.
func proxy(ctx context.Context, f proxyFlags) error {
	log, err := logger(f)
	if err != nil {
		return usage(err)
	}
	limitMemory(memoryFiles)
	own, namespace, err := ownCluster(f)
	if err != nil {
		return err
	}
	fan := &fanout.Server{Stopping: ctx.Done(), Log: log, Now: time.Now}
	builtin := observe.Builtin()
	shown, err := newSight(f.audit, namespace, func(group, resource, subresource string) bool {
		return builtin(group, resource, subresource) || subresource == "" && fan.Scope(group, resource) != document.Unknown
	}, log)
	if err != nil {
		return err
	}
	metrics := shown.observer.Metrics
	fan.Metrics = metrics
	past, err := roster.OpenPast(filepath.Join(f.state, "past"), fan.Scope)
	if err != nil {
		return err
	}
	keeper := &roster.Keeper{
		File: f.config, Credentials: f.credentials, Audiences: f.audiences, Home: own, Scope: fan.Scope,
		Follows: apiproxy.CheckEpoch, Loaded: metrics.Reloaded, Dial: metrics.Dial, Probed: metrics.Probed, Every: configEvery, Log: log, Now: time.Now,
		Changed: func(_, next *roster.Roster) (err error) {
			if past, err = past.With(next); err == nil {
				err = shown.take(next.Document())
			}
			if err == nil {
				fan.Take(next, past)
			}
			return err
		},
	}
	if err := keeper.Load(); err != nil {
		return err
	}
	face, err := podface.Open(f.state, time.Now)
	if err != nil {
		return err
	}
	metrics.Ask(shown.sources(keeper, fan, face.Expires))
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
	scraped, err := listenMetrics(f.metrics)
	if err != nil {
		return err
	}
	if scraped != nil {
		defer scraped.Close()
	}
	if err := writeAddress(f.state, address{Listen: api.Addr().String(), Admin: admin.Addr().String()}); err != nil {
		return err
	}
	if err := face.Show(f.share, namespace); err != nil {
		return err
	}
	server := &serving.Server{
		Names: podface.Names(), Opens: face.Opens, Observe: shown.observer, Log: log, Now: time.Now, Grace: upgradeGrace, Route: fan.Route,
		Allows: func() serving.Allowed {
			d := keeper.Roster().Document()
			return serving.Allowed{Impersonation: d.Impersonation, TokenRequests: d.AllowTokenRequest}
		},
	}
	var ready atomic.Bool
	health := shown.adminPort(keeper, fan, face.Opens, func() error {
		if !ready.Load() {
			return errors.New("starting or stopping")
		}
		return nil
	}, f.pprof)
	context.AfterFunc(ctx, func() { ready.Store(false) })
	ready.Store(ctx.Err() == nil)
	log.Info("serving", "version", ownVersion(), "listen", api.Addr().String(), "admin", admin.Addr().String(), "clusters", len(keeper.Roster().Clusters()), "home", own.Servers[0])

	// Telemetry runs until the server has drained, which is after ctx ends.
	late, endLate := context.WithCancel(context.WithoutCancel(ctx))
	soon, endSoon := context.WithCancel(ctx)
	defer endSoon()
	var parts sync.WaitGroup
	defer parts.Wait()
	defer endLate()
	failed := make(chan error, 6)
	part := func(run func() error) {
		parts.Go(func() {
			if err := run(); err != nil {
				failed <- err
				endSoon()
			}
		})
	}
	part(func() error { shown.run(late); return nil })
	part(func() error { return serve(late, admin, health, log) })
	if scraped != nil {
		part(func() error { return serve(late, scraped, adminport.Metrics(metrics, log), log) })
	}
	part(func() error { return keeper.Run(soon) })
	part(func() error { return keeper.Probe(soon) })
	part(func() error { return fan.Survey(soon) })
	err = server.Run(soon, api, face.TLS())
	select {
	case first := <-failed:
		return errors.Join(first, err)
	default:
		return err
	}
}

// ownCluster finds the pod's own cluster by the standard in-cluster environment variables and files.
func ownCluster(f proxyFlags) (own upstream.Config, namespace string, _ error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return own, "", errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod, or its variables were replaced")
	}
	if at, err := netip.ParseAddrPort(f.listen); err == nil && net.JoinHostPort(host, port) == at.String() && at.Port() != 0 {
		return own, "", fmt.Errorf("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are %s, which is this adapter itself", at)
	}
	in := func(name string) string { return filepath.Join(f.account, name) }
	b, err := os.ReadFile(in("namespace"))
	if err != nil {
		return own, "", fmt.Errorf("the pod's ServiceAccount: %w", err)
	}
	own = upstream.Config{Servers: []string{net.JoinHostPort(host, port)}, CAFile: in("ca.crt"), TokenFile: in("token")}
	for _, path := range []string{own.CAFile, own.TokenFile} {
		if b, err := os.ReadFile(path); err != nil {
			return own, "", fmt.Errorf("the pod's ServiceAccount: %w", err)
		} else if len(b) == 0 {
			return own, "", fmt.Errorf("the pod's ServiceAccount: %s is empty", path)
		}
	}
	return own, strings.TrimSpace(string(b)), nil
}

// listen binds a loopback address, because these servers are only for this pod.
func listen(addr string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, usage(fmt.Errorf("%q is not a loopback address and port, such as 127.0.0.1:6443", addr))
	}
	return net.Listen("tcp", addr)
}

// address records the bound addresses, for callers that chose port 0.
type address struct {
	Listen string `json:"listen"`
	Admin  string `json:"admin"`
}

func writeAddress(dir string, a address) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "address"), append(b, '\n'), 0o600)
}

func logger(f proxyFlags) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: it is debug, info, warn or error", f.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	}
	return nil, fmt.Errorf("--log-format %q: it is json or text", f.logFormat)
}
