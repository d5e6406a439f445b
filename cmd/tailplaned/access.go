package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/signinkube"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// startLimit is how long the API server may stay silent at the start. Later it
// may be away for as long as it likes.
const startLimit = 30 * time.Second

// runAccess wires the sign-in API: tailnet -> door -> desk -> store.
func runAccess(ctx context.Context, f flags, set settings.File, log *slog.Logger) error {
	record, closeRecord, err := openRecord(set.Audit.File)
	if err != nil {
		return err
	}
	defer closeRecord()
	config, err := kube.Config(f.kubeconfig)
	if err != nil {
		return err
	}
	if err := kube.Reach(ctx, config, startLimit); err != nil {
		return err
	}
	store, err := signinkube.NewStore(config, set.Signin.Namespace, nil)
	if err != nil {
		return err
	}
	node, err := newNode(set, log)
	if err != nil {
		return err
	}
	ca, err := set.Cluster.CA()
	if err != nil {
		return err
	}
	desk := &signin.Desk{
		Store: store,
		Cluster: signin.ClusterInfo{Name: set.Cluster.Name, ServerURL: set.Cluster.Server, CAData: ca,
			InsecureSkipTLSVerify: set.Cluster.InsecureSkipTLSVerify, Labels: set.Cluster.Labels, Version: version()},
		Prefix: set.Names.Prefix, MaxPerLogin: set.Signin.MaxPerLogin,
		RetryAfter: time.Duration(set.API.RetryAfter), MaxWait: time.Duration(set.API.MaxWait), Now: time.Now,
	}
	policy := set.AccessPolicy()
	way := &door.Door{
		Names: node.Names, Identify: node.Identify, Record: record.Write, Limits: limits(set.API.Limits), Log: log, Now: time.Now,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
	}

	// The node outlives the door: connections end with it.
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() { defer cancel(); errs[0] = node.Run(nodeCtx) })
	wg.Go(func() { defer cancel(); errs[1] = store.Run(ctx) })
	err = serve(ctx, way, node, desk, log)
	leave()
	cancel()
	wg.Wait()
	return errors.Join(append(errs, err)...)
}

func serve(ctx context.Context, way *door.Door, node *tailnet.Node, desk *signin.Desk, log *slog.Logger) error {
	ln, err := node.Listen(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop, or whoever ended it says why
		}
		return err
	}
	log.Info("access is serving", "names", node.Names(), "cluster", desk.Cluster.Name, "version", version())
	return way.Run(ctx, ln, node.ConnContext, desk.Routes()...)
}

func newNode(set settings.File, log *slog.Logger) (*tailnet.Node, error) {
	var key tailnet.Secret
	if path := set.Tailnet.AuthKeyFile; path != "" {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("tailnet.authKeyFile: %w", err)
		}
		if err != nil {
			log.Warn("the file of the auth key is not there; going on without a key", "path", path)
		}
		key = tailnet.NewSecret(strings.TrimSpace(string(b)))
	}
	t := set.Tailnet
	return tailnet.New(tailnet.Config{Hostname: t.Hostname, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: key, StateDir: t.StateDir,
		Port: t.Port, InsecureHTTP: t.InsecureHTTP, Capability: set.Signin.Capability, Log: log})
}

func openRecord(path string) (*audit.Log, func(), error) {
	if path == "-" {
		return audit.NewLog(os.Stdout), func() {}, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("audit.file: %w", err)
	}
	return audit.NewLog(file), func() { file.Close() }, nil
}

func limits(l settings.Limits) door.Limits {
	rate := func(r settings.Rate) door.Rate { return door.Rate{PerMinute: r.PerMinute, Burst: r.Burst} }
	return door.Limits{
		Verbs: map[access.Verb]door.Rate{access.SigninLogin: rate(l.Login), access.SigninKubeconfig: rate(l.Kubeconfig)},
		Other: rate(l.Others), All: rate(l.All), WaitersPerCaller: 4, Waiters: 1000,
	}
}

// version is the module's version as the build knows it.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "(devel)"
}
