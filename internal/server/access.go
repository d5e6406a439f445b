package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// startLimit is how long the API server may be unreachable at the start. Later it may be away for any time.
const startLimit = 30 * time.Second

// apiServer returns the client configuration of the API server, once the server has responded.
func apiServer(ctx context.Context, kubeconfig string) (*rest.Config, error) {
	config, err := kube.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	return config, kube.WaitReady(ctx, config, startLimit)
}

// runAccess wires and runs the sign-in API: tailnet -> HTTP server -> service -> store.
func runAccess(ctx context.Context, p *process, working func()) error {
	config, err := apiServer(ctx, p.kubeconfig)
	if err != nil {
		return err
	}
	store, err := controller.NewStore(config, p.set.Signin.Namespace, p.set.Signin.TokenAudiences)
	if err != nil {
		return err
	}
	secret, err := controller.NewClusterKey(config, p.set.Signin.SystemNamespace)
	if err != nil {
		return err
	}
	node, err := newNode(p.set, p.log)
	if err != nil {
		return err
	}
	info, err := clusterInfo(ctx, config, p)
	if err != nil {
		return err
	}
	record, closeRecord, err := p.auditLog.get(ctx, config, p, info)
	if err != nil {
		return err
	}
	keys, policy := newKeyring(), p.set.AccessPolicy()
	server := &httpapi.Server{
		Names: node.Names, Record: record.Write, Limits: limits(p.set.API.Limits), Log: p.log, Now: time.Now,
		Key: keys.current, Measure: p.metrics.MeasureServer("tailnet"),
		Identify: func(r *http.Request) (access.Caller, error) {
			defer func(began time.Time) { p.metrics.ObserveWhoIs(time.Since(began)) }(time.Now())
			return node.Identify(r)
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
	}
	if p.set.Audit.Required {
		server.MustRecord = []access.Verb{access.SigninLogin, access.SigninKubeconfig}
	}
	service := &signin.Service{
		Store: p.metrics.CountingStore(store), Cluster: info, Key: keys.current, Prefix: p.set.Names.Prefix, MaxPerLogin: p.set.Signin.MaxPerLogin,
		RetryAfter: time.Duration(p.set.API.RetryAfter), MaxWait: time.Duration(p.set.API.MaxWait), Now: time.Now,
		Ended: func(_ signin.Signin, why signin.Cause) { p.metrics.CountEnded(why) },
	}
	guard := &signin.Guard{
		Store: store, Devices: node.Devices, Changed: node.Changed, Tailnet: func() string { return node.Status().Tailnet },
		Policy: policy, Interval: time.Duration(p.set.Signin.GrantCheckInterval), Log: p.log, Now: time.Now,
		Report: func(s signin.Signin, f signin.CheckResult) { recordSigninChange(p, node.Status(), record.Write, s, f) },
	}
	others := &discovery{p: p, config: config, node: node, keys: keys, secret: secret, info: info, write: record.Write, server: *server, events: make(chan gossip.Event, maxEvents)}
	others.configureServer()
	addAccessChecks(p, config, node, store, keys)

	// Shutdown order: the HTTP server finishes its requests, then the audit log writes their entries, and the node stops last, because it
	// carries the connections.
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg, atNode sync.WaitGroup
	var nodeErr, storeErr, guardErr, othersErr error
	atNode.Go(func() { defer cancel(); nodeErr = node.Run(nodeCtx) })
	wg.Go(func() { defer cancel(); storeErr = store.Run(ctx) })
	wg.Go(func() { keys.load(ctx, secret, p.log) })
	ln, err := node.Listen(ctx)
	if err == nil {
		p.log.Info("access is serving", "names", node.Names(), "cluster", info.Name, "id", info.ID, "version", info.Version)
		working()
		wg.Go(func() { defer cancel(); guardErr = guard.Run(ctx) })
		if p.set.Gossip.Enabled {
			wg.Go(func() { defer cancel(); othersErr = others.run(ctx) })
		}
		err = server.Run(ctx, ln, node.ConnContext, append(service.Routes(), gossip.ServeClusters(others.members, time.Now, gossiphttp.RenderClusters))...)
	} else if ctx.Err() != nil {
		err = nil // ctx ended; the part that ended it reports why
	}
	cancel()
	wg.Wait()
	err = errors.Join(err, closeRecord())
	leave()
	atNode.Wait()
	return errors.Join(nodeErr, storeErr, guardErr, othersErr, err)
}

// clusterInfo returns the description of the cluster that people see.
func clusterInfo(ctx context.Context, config *rest.Config, p *process) (signin.ClusterInfo, error) {
	c := p.set.Cluster
	ca, err := c.CA()
	if err != nil {
		return signin.ClusterInfo{}, err
	}
	hash, err := signin.CAHash(ca)
	if err != nil {
		return signin.ClusterInfo{}, fmt.Errorf("cluster.caFile: %w", err)
	}
	id, err := clusterID(ctx, config, c.ID, hash, p.log)
	return signin.ClusterInfo{Name: c.Name, ID: id, ServerURL: c.Server, CAData: ca, CAHash: hash,
		InsecureSkipTLSVerify: c.InsecureSkipTLSVerify, Labels: c.Labels, Version: version()}, err
}
