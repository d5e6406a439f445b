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
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/fanout"
	"github.com/tailplane/tailplane/internal/apiproxy/podface"
	"github.com/tailplane/tailplane/internal/apiproxy/roster"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// configEvery is how often the configuration is looked at.
const configEvery = 2 * time.Second

// upgradeGrace is how long exec and the like may go on after SIGTERM: the pod's
// grace period less five seconds.
const upgradeGrace = 25 * time.Second

// proxyFlags say where things are. Every path is one, so that tests run several
// adapters on one machine.
type proxyFlags struct {
	listen, admin, config, credentials, audiences, account, share, state, logLevel, logFormat string
	check                                                                                     bool
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
	p.StringVar(&f.config, "config", "/etc/mca/config/config.yaml", "the configuration; without the file there is one cluster, the pod's own")
	p.StringVar(&f.credentials, "credentials-dir", "/etc/mca/credentials", "where the Secrets of other clusters are mounted, each in a folder of its name")
	p.StringVar(&f.audiences, "audience-dir", "/var/run/secrets/mca.tailplane.dev", "where tokens for other clusters lie, as <cluster>/token")
	p.StringVar(&f.account, "serviceaccount-dir", "/var/run/secrets/kubernetes.io/serviceaccount", "where the pod's real token, ca.crt and namespace lie")
	p.StringVar(&f.share, "share-dir", "/var/run/secrets/kubernetes.io/mca-serviceaccount", "where the files for the other containers are written")
	p.StringVar(&f.state, "state-dir", "/var/run/mca", "what survives a restart of the container, unseen by the others")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug has a line for each read too")
	p.StringVar(&f.logFormat, "log-format", "json", "json or text")
	p.BoolVar(&f.check, "check", false, "ask the admin port whether the adapter is ready, and exit with 0 or 4")
	return cmd
}

// proxy serves until ctx ends. Load state, bind, show the files, be ready: a
// cluster need not answer for that, or its outage would keep every pod from starting.
func proxy(ctx context.Context, f proxyFlags) error {
	log, err := logger(f)
	if err != nil {
		return usage(err)
	}
	own, namespace, err := ownCluster(f)
	if err != nil {
		return err
	}
	fan := &fanout.Server{Stopping: ctx.Done(), Log: log, Now: time.Now}
	keeper := &roster.Keeper{
		File: f.config, Credentials: f.credentials, Audiences: f.audiences, Home: own, Scope: fan.Scope,
		Follows: apiproxy.CheckEpoch, Every: configEvery, Log: log, Now: time.Now,
	}
	past, err := roster.OpenPast(filepath.Join(f.state, "past"), fan.Scope)
	if err != nil {
		return err
	}
	keeper.Changed = func(_, next *roster.Roster) (err error) {
		if past, err = past.With(next); err == nil {
			fan.Take(next, past)
		}
		return err
	}
	if err := keeper.Load(); err != nil {
		return err
	}
	face, err := podface.Open(f.state, time.Now)
	if err != nil {
		return err
	}
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
	if err := writeAddress(f.state, address{Listen: api.Addr().String(), Admin: admin.Addr().String()}); err != nil {
		return err
	}
	if err := face.Show(f.share, namespace); err != nil {
		return err
	}
	server := &serving.Server{
		Names: podface.Names(), Opens: face.Opens, Log: log, Now: time.Now, Grace: upgradeGrace, Route: fan.Route,
		Allows: func() serving.Allowed {
			d := keeper.Roster().Document()
			return serving.Allowed{Impersonation: d.Impersonation, TokenRequests: d.AllowTokenRequest}
		},
	}
	var ready atomic.Bool
	health := &serving.Admin{Opens: face.Opens, Clusters: func() []*upstream.Cluster { return keeper.Roster().Clusters() }, Configured: keeper.Err, Log: log, Ready: func() error {
		if !ready.Load() {
			return errors.New("starting or stopping")
		}
		return nil
	}}
	// The admin port outlives the other by the time that takes to drain.
	adminCtx, endAdmin := context.WithCancel(context.WithoutCancel(ctx))
	defer endAdmin()
	adminDone := make(chan error, 1)
	go func() { adminDone <- health.Run(adminCtx, admin) }()
	context.AfterFunc(ctx, func() { ready.Store(false) })
	ready.Store(ctx.Err() == nil)
	log.Info("serving", "version", ownVersion(), "listen", api.Addr().String(), "admin", admin.Addr().String(), "clusters", len(keeper.Roster().Clusters()), "home", own.Servers[0])
	keepCtx, endKeep := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- keeper.Run(keepCtx) }()
	defer func() { endKeep(); <-kept }()
	served := make(chan error, 1)
	serveCtx, endServe := context.WithCancel(ctx)
	defer endServe()
	go func() { served <- server.Run(serveCtx, api, face.TLS()) }()
	select {
	case err := <-served:
		return err
	case err := <-adminDone:
		endServe()
		return errors.Join(err, <-served)
	}
}

// ownCluster finds the pod's cluster as every client in a cluster does.
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

// listen binds a loopback address: what is served here is for this pod alone.
func listen(addr string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, usage(fmt.Errorf("%q is not a loopback address and port, such as 127.0.0.1:6443", addr))
	}
	return net.Listen("tcp", addr)
}

// address is what was bound, for who asked for port 0.
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
