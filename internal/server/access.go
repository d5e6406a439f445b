package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/secret"
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

// apiServerCheck returns the readiness check of every part that needs the API server.
func apiServerCheck(config *rest.Config) func(context.Context) error {
	return func(ctx context.Context) error { return kube.WaitReady(ctx, config, startLimit) }
}

// runAccess wires and runs the sign-in API: tailnet -> HTTP server -> service -> store.
func runAccess(ctx context.Context, p *process, working func()) error {
	store, err := controller.NewStore(p.config, p.set.Signin.Namespace, tokenRules(p.set.Signin), time.Now)
	if err != nil {
		return err
	}
	secret, err := controller.NewClusterKey(p.config, p.set.Signin.SystemNamespace)
	if err != nil {
		return err
	}
	t := p.set.Tailnet
	node, err := newNode(p, tailnet.Config{Hostname: t.Hostname, StateDir: t.StateDir, StateSecret: t.StateSecret,
		InsecureHTTP: t.InsecureHTTP, Capability: p.set.Signin.Capability, RequestCapability: p.set.RequestCapability(), Log: p.log})
	if err != nil {
		return err
	}
	keys, policy := newKeyring(), p.set.AccessPolicy()
	server := &httpapi.Server{
		Names: node.Names, Record: p.record.Write, Limits: limits(p.set.API.Limits), Log: p.log, Now: time.Now,
		Key: keys.current, Measure: p.metrics.MeasureServer("tailnet"), Identify: p.measureIdentifier(node.Identify),
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
	}
	if p.set.Audit.Required {
		server.MustRecord = []access.Verb{access.SigninLogin, access.SigninKubeconfig, access.SigninFirstUse,
			access.RequestCreate, access.RequestApprove, access.RequestDeny, access.RequestCancel, access.RequestRevoke}
	}
	guard := &signin.Guard{
		Store: store, Devices: node.Devices, Changed: node.Changed, Tailnet: func() string { return node.Status().Tailnet },
		Policy: policy, Tokens: slices.Contains(p.set.Access.Modes, settings.TokenMode), Interval: time.Duration(p.set.Signin.GrantCheckInterval), Log: p.log, Now: time.Now,
		Report: func(s signin.Signin, f signin.CheckResult) { p.recordSigninChange(node.Status(), s, f) },
	}
	proxies, err := newProxyAuthority(p, node)
	if err != nil {
		return err
	}
	service, err := signinService(p, store, keys, node, proxies)
	if err != nil {
		return err
	}
	service.Devices, service.All, service.Admit = node.Devices, store.All, server.Admitter(access.SigninLogin)
	service.Idled = func(s signin.Signin) {
		p.recordSigninChange(node.Status(), s, signin.CheckResult{End: true, Cause: signin.CauseIdle, Reason: "It began on first use and was not used for " + s.Idle.String() + "."})
	}
	asked, err := newRequests(ctx, p, node, store, service, policy)
	if err != nil {
		return err
	}
	others := &discovery{process: p, node: node, keys: keys, secret: secret, server: *server, proxies: service.Proxies, events: make(chan gossip.Event, maxEvents)}
	others.configureServer()
	addAccessChecks(p, node, store, keys)
	if len(p.set.AnnouncedProxies()) > 0 {
		p.health.AddCheck("proxyCertificates", proxies.check)
	}
	return runNode(ctx, node, func(ctx context.Context) error {
		parts, ctx := newGroup(ctx)
		parts.run(func() error { return store.Run(ctx) })
		if asked.store != nil {
			parts.run(func() error { return asked.store.Run(ctx) })
		}
		parts.parts.Go(func() { keys.load(ctx, secret, p.log) })
		ln, err := node.Listen(ctx)
		if err != nil {
			return parts.stop(ctx, err)
		}
		proxies.step(ctx) // before people ask for the proxies; run reports and repeats what fails
		parts.run(func() error { return proxies.run(ctx) })
		p.log.Info("access is serving", "names", node.Names(), "cluster", p.cluster.Name, "id", p.cluster.ID, "version", p.cluster.Version)
		working()
		parts.run(func() error { return guard.Run(ctx) })
		if p.set.Gossip.Enabled {
			parts.run(func() error { return others.run(ctx) })
		}
		service.Servers = others.servers
		routes := append(append(service.Routes(), asked.service.Routes()...), gossip.ServeClusters(others.members, time.Now, gossiphttp.RenderClusters))
		parts.run(func() error { return server.Run(ctx, ln, node.ConnContext, routes...) })
		return parts.wait()
	})
}

// tokenRules returns the limits of the tokens that the access server requests.
func tokenRules(s settings.Signin) signin.TokenRules {
	return signin.TokenRules{Max: time.Duration(s.Period.Max), MaxLife: time.Duration(s.MaxLife), Audiences: s.TokenAudiences, RequireAdmissionPolicy: s.RequireAdmissionPolicy}
}

// clusterWide returns the roles that may be bound in the whole cluster; nil if the setting is absent.
func clusterWide(s settings.Signin) signin.ClusterWide {
	if s.ClusterWide == nil {
		return nil
	}
	list := signin.ClusterWide{}
	for _, r := range s.ClusterWide {
		list = append(list, signin.ClusterWideRole{Role: access.Role(r.Role), ByRequest: r.By != ""})
	}
	return list
}

func signinService(p *process, store *controller.Store, keys *keyring, node *tailnet.Node, proxies *proxyAuthority) (*signin.Service, error) {
	s := &signin.Service{
		Store: p.metrics.CountingStore(store), Cluster: p.cluster, Key: keys.current,
		Prefix: p.set.Names.Prefix, MaxPerLogin: p.set.Signin.MaxPerLogin, MaxLife: time.Duration(p.set.Signin.MaxLife),
		RetryAfter: time.Duration(p.set.API.RetryAfter), MaxWait: time.Duration(p.set.API.MaxWait), Now: time.Now,
		RoleRules: store.RoleRules, Tags: p.set.Tailnet.Tags, ClusterWide: clusterWide(p.set.Signin),
		Proxies: announcedProxies(p.set, node, proxies),
		Ended:   func(_ signin.Signin, why signin.Cause) { p.metrics.CountEnded(why) },
	}
	marks, err := controller.NewFirstUseMarks(p.config, p.set.Signin.SystemNamespace, time.Now)
	if err != nil {
		return nil, err
	}
	s.FirstUseOff = marks
	return s, acceptTokens(p, s)
}

// acceptTokens lets the service accept the OIDC tokens of the issuers in the settings, if there are any.
func acceptTokens(p *process, s *signin.Service) error {
	var issuers []identity.TokenIssuer
	audiences := p.set.AccessPolicy().Issuers
	for _, i := range p.set.Signin.OIDC.Issuers {
		issuers = append(issuers, i.Token())
		s.Cluster.OIDC = append(s.Cluster.OIDC, signin.AcceptedIssuer{Issuer: i.URL, Audience: audiences[i.URL]})
	}
	if len(issuers) == 0 {
		return nil
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute}
	verifier, err := identity.NewTokenVerifier(issuers, &http.Client{Transport: transport}, time.Now)
	if err != nil {
		return fmt.Errorf("signin.oidc: %w", err)
	}
	used, err := controller.NewUsedTokens(p.config, p.set.Signin.SystemNamespace, time.Now)
	if err != nil {
		return err
	}
	s.Tokens, s.UsedTokens = verifier, used
	return nil
}

// runNode runs a node and serve until either of them ends. The node stops last, because it carries the connections.
func runNode(ctx context.Context, node *tailnet.Node, serve func(context.Context) error) error {
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- node.Run(nodeCtx)
	}()
	err := serve(ctx)
	leave()
	return errors.Join(<-ended, err)
}

// measureIdentifier returns identify with a metric of its time.
func (p *process) measureIdentifier(identify identity.Identifier) identity.Identifier {
	return func(r *http.Request) (access.Caller, error) {
		defer func(began time.Time) { p.metrics.ObserveWhoIs(time.Since(began)) }(time.Now())
		return identify(r)
	}
}

// clusterInfo returns the description of the cluster that people see. The settings of the roles operator and plane need not name the
// cluster: their audit logs then have its id as its name.
func (p *process) clusterInfo(ctx context.Context) (info signin.ClusterInfo, err error) {
	c := p.set.Cluster
	if p.role == settings.OperatorRole || p.role == settings.PlaneRole {
		if c.ID == "" {
			if c.ID, err = kube.ClusterUID(ctx, p.config); err != nil {
				return info, fmt.Errorf("find the cluster's id for the audit log: %w; alternatively set cluster.id", err)
			}
		}
		return signin.ClusterInfo{Name: cmp.Or(c.Name, c.ID), ID: c.ID, Version: version()}, nil
	}
	ca, err := c.CA()
	if err != nil {
		return info, err
	}
	hash := "" // of a public certificate
	if ca == nil {
		ca = []byte{} // clients read a string
	} else if hash, err = signin.CAHash(ca); err != nil {
		return info, fmt.Errorf("cluster.caFile: %w", err)
	}
	if err := checkServer(ctx, c, ca, p.log); err != nil {
		return info, err
	}
	id, err := clusterID(ctx, p.config, c.ID, hash, p.log)
	return signin.ClusterInfo{Name: c.Name, ID: id, ServerURL: c.Server, CAData: ca, CAHash: hash,
		InsecureSkipTLSVerify: c.InsecureSkipTLSVerify, Labels: c.Labels, Version: version(), Modes: announcedModes(p.set.Access)}, err
}

// announcedModes returns the modes of the settings. It returns none for the mode that every client expects of a server without modes.
func announcedModes(a settings.Access) (modes []signin.Mode) {
	if slices.Equal(a.Modes, settings.Default().Access.Modes) {
		return nil
	}
	for _, m := range a.Modes {
		modes = append(modes, signin.Mode(m))
	}
	return modes
}

// announcedProxies returns the function that lists the access proxies for people. A proxy that has only the name of its node is in the
// tailnet of the access server, whose node knows the domain. One whose certificate nobody has issued yet is missing.
func announcedProxies(set settings.File, node *tailnet.Node, authority *proxyAuthority) func() []signin.ProxyServer {
	return func() (all []signin.ProxyServer) {
		st := node.Status()
		var self string
		if len(st.Names) > 0 {
			self = st.Names[0]
		}
		for _, p := range set.AnnouncedProxies() {
			ca, at := []byte(p.CAData), p.At(self, set.Tailnet.Port)
			if needsAuthority(p, st) {
				if ca = authority.bundle(p.Hostname); len(ca) == 0 {
					continue
				}
			}
			if at != "" {
				all = append(all, signin.ProxyServer{URL: at, CAData: ca})
			}
		}
		return all
	}
}

// newNode returns a node with the settings that all nodes of the process share.
// tags are those of the node; none: those of the settings.
func newNode(p *process, c tailnet.Config, tags ...string) (*tailnet.Node, error) {
	t := p.set.Tailnet
	var err error
	if c.AuthKey, err = authKey(t.AuthKeyFile, p.log); err != nil {
		return nil, err
	}
	if c.Tags = t.Tags; len(tags) > 0 {
		c.Tags = tags
	}
	c.ControlURL, c.Port, c.JoinTimeout = t.ControlURL, t.Port, time.Duration(t.JoinTimeout)
	return tailnet.New(c)
}

// authKey reads the key with which a node joins without a person. A node that has joined before needs none.
func authKey(path string, log *slog.Logger) (secret.Text, error) {
	if path == "" {
		return secret.Text{}, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		log.Warn("the auth key file does not exist; continuing without a key", "path", path)
	} else if err != nil {
		return secret.Text{}, fmt.Errorf("tailnet.authKeyFile: %w", err)
	}
	return secret.New(strings.TrimSpace(string(b))), nil
}

// proxyRate limits the requests of one access proxy, which acts for many devices. Each device has its own limit besides.
var proxyRate = httpapi.Rate{PerMinute: 60 * 60, Burst: 120}

func limits(l settings.Limits) httpapi.Limits {
	return httpapi.Limits{
		Verbs: map[access.Verb]httpapi.Rate{access.SigninLogin: httpapi.Rate(l.Login), access.SigninKubeconfig: httpapi.Rate(l.Kubeconfig),
			access.SigninFirstUse: proxyRate, access.SigninUsage: proxyRate},
		Other: httpapi.Rate(l.Others), All: httpapi.Rate(l.All), WaitersPerCaller: 4, Waiters: 1000, Connections: l.Connections,
	}
}

// addAccessChecks registers the health checks and metrics of the access server.
func addAccessChecks(p *process, node *tailnet.Node, store *controller.Store, keys *keyring) {
	p.health.AddCheck("tailnet", nodeCheck(node))
	p.health.AddCheck("signins", func(context.Context) error {
		if !store.Synced() {
			return errors.New("the cache of sign-ins is not synchronized yet")
		}
		return nil
	})
	p.health.AddCheck("clusterKey", keys.check)
	p.metrics.AddSignins(store.All)
	p.metrics.AddNode(node.Status)
}

// nodeCheck returns the readiness check of a node.
func nodeCheck(node *tailnet.Node) func(context.Context) error {
	return func(context.Context) error {
		if st := node.Status(); !st.Running() {
			return fmt.Errorf("the node is %s", st.State)
		}
		return nil
	}
}

// recordSigninChange records that a sign-in ended or was shortened without a request.
func (p *process) recordSigninChange(self tailnet.Status, s signin.Signin, f signin.CheckResult) {
	e := signinEntry(s, f.Reason)
	e.Actor = selfActor(self)
	if f.Record != nil {
		e.Verb, e.Args["record"] = access.SigninRecord, strings.Join(f.Record, ",")
	}
	if f.Period > 0 {
		e.Verb, e.Args["period"] = access.SigninShorten, f.Period.String()
	}
	if f.End {
		cause := cmp.Or(f.Cause, signin.CauseGrant)
		if e.Args["cause"] = string(cause); cause == signin.CauseGrant { // the service counts the others
			p.metrics.CountEnded(cause)
		}
	}
	p.log.Info("ended or changed a sign-in without a request of its owner", "signin", s.Name, "login", s.Owner.Login, "reason", f.Reason)
	p.recordAction(e)
}

// selfActor returns this server as the actor of actions without a request.
func selfActor(self tailnet.Status) audit.Actor {
	a := audit.Actor{NodeID: self.ID, Via: access.ViaTailnet}
	if len(self.Names) > 0 {
		a.Node = self.Names[0]
	}
	return a
}
