package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/exposure"
	planekube "github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/plane/mcp"
	"github.com/tailplane/tailplane/internal/plane/metrics"
	"github.com/tailplane/tailplane/internal/plane/web"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// planeServer is the process of the plane.
type planeServer struct {
	*process
	store          *plane.Store
	service        *plane.Service
	fleet          *plane.FleetService
	jobs           *plane.RunnerService
	metricsService *plane.MetricsService

	changes     *plane.ChangeService
	changeWatch *plane.ChangePoller
	drift       *plane.DriftCheck // nil: no repository
	enroll      *plane.EnrollmentService

	orgs    func() []access.Org
	proxies proxyDialer

	mu      sync.Mutex
	exposed map[string]string // by exposure: the name on the tailnet, for exposures that are up
}

// tailnetSource is the source that shows the state of the plane's own node.
const tailnetSource = "tailnet"

// PlaneLease names the replica that is the plane's node.
const PlaneLease = planekube.LeaseName

// noNode is the message of a replica that waits for the Lease.
const noNode = "This replica is not the plane's node."

// runPlane wires and runs the operator plane. Every replica fills the store from the start; only the elected one serves it. In the role all
// there is one replica.
func runPlane(ctx context.Context, p *process, working func()) error {
	s := &planeServer{process: p, store: plane.NewStore(time.Now), exposed: map[string]string{}}
	watch, err := s.newServices()
	if err != nil {
		return err
	}
	return s.run(ctx, watch, working)
}

// newServices creates the services of the plane. It returns the watcher that fills the store.
func (s *planeServer) newServices() (*planekube.Watcher, error) {
	set := s.set
	api, err := planekube.Connect(s.config, time.Now)
	if err != nil {
		return nil, err
	}
	holds, ignores := api.Holds(), api.DriftIgnores(set.Signin.SystemNamespace, s.store)
	if set.Plane.Identity.Mode == settings.Whois {
		s.store.Expect(tailnetSource)
	}
	for _, e := range set.Plane.Exposures {
		s.store.Expect(exposureSource(e.Name))
	}
	s.service = &plane.Service{Store: s.store, Now: time.Now, Version: version(), Commit: commit(), RevokeSignin: api.Signins(set.Signin.Namespace).Revoke, AuditEntries: s.auditEntries, RecentAudit: s.record.Recent(), Exposures: s.exposures,
		Ready: func() bool { return s.health.Ready(context.Background()) }, Capability: set.Plane.Capability}
	s.proxies.own = set.Plane.Identity.Mode == settings.Whois
	proxies := &knownProxies{dialer: &s.proxies, configured: set.Plane.AccessProxies, log: s.log}
	proxies.find(nil)
	s.service.AccessProxies = proxies.list
	s.service.Recorder = s.proxies.recorder(set.Plane.Recorder, s.log)
	if set.Plane.Identity.Mode == settings.Whois { // else the node is another program's
		s.service.Tags = set.Tailnet.Tags
	}
	s.fleet = &plane.FleetService{Plane: s.service, CreateHold: holds.Create, LiftHold: holds.Lift, RescheduleHold: holds.Reschedule, IgnoreDrift: ignores.Set, RefreshDrift: s.triggerDriftChecks}
	s.jobs = &plane.RunnerService{Plane: s.service, ReadEvents: api.Events().List}
	if set.Plane.Logs.Enabled {
		s.jobs.OpenLog = api.Logs().Open
	}
	s.metricsService = &plane.MetricsService{Plane: s.service}
	if url := set.Plane.Prometheus.URL; url != "" {
		s.metricsService.Query = (&metrics.Client{URL: url, HTTP: metrics.HTTPClient(), Log: s.log, Now: time.Now}).Query
	}
	watch := &planekube.Watcher{Config: s.config, Store: s.store, SigninNamespace: set.Signin.Namespace, SystemNamespace: set.Signin.SystemNamespace, FleetNamespace: set.Fleet.Namespace, Changes: set.Plane.GitOps.Set(), DriftIgnores: ignores,
		Version: version(), Proxies: proxies.find, Log: s.log, Now: time.Now}
	s.orgs = watch.Orgs
	return watch, s.newChanges(api)
}

// run fills the store and serves it, in one term or in each term that this replica wins.
func (s *planeServer) run(ctx context.Context, watch *planekube.Watcher, working func()) error {
	parts, ctx := newGroup(ctx)
	if s.role == settings.PlaneRole && s.LeaderElect {
		working() // a replica that waits for the election is ready
		turn := &planekube.Election{Config: s.config, Namespace: s.set.Signin.SystemNamespace, Log: s.log, Overdue: func() {
			s.log.Error("the node did not stop in time, and another replica starts now: this process exits")
			os.Exit(1)
		}}
		s.health.AddCheck("lease", func(context.Context) error { return turn.Err() })
		parts.run(func() error {
			return turn.Run(ctx, func(ctx context.Context) error { return s.serve(ctx, func() {}) })
		})
	} else {
		parts.run(func() error { return s.serve(ctx, working) })
	}
	parts.run(func() error { return watch.Run(ctx) })
	return parts.wait()
}

// serve runs one term as the plane, either as a tailnet node or with a listener on this machine.
func (s *planeServer) serve(ctx context.Context, working func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	for _, u := range planeUpstreams(s.set, s.log) {
		beside.Go(func() {
			s.exposure(u).Run(ctx)
			s.onTailnet(u.Name, nil)
			s.store.Report(plane.Source{Name: exposureSource(u.Name), Status: plane.StatusDown, Message: noNode})
		})
	}
	beside.Go(func() { s.changeWatch.Run(ctx) })
	if s.drift != nil {
		beside.Go(func() { s.drift.Run(ctx) })
	}
	if s.set.Plane.Identity.Mode != settings.Whois {
		return s.serveLocal(ctx, working)
	}
	return s.serveNode(ctx, working)
}

// newServer returns the plane's HTTP server for the callers that identify authenticates.
func (s *planeServer) newServer(names func() []string, identify identity.Identifier) *httpapi.Server {
	policy := s.set.PlanePolicy()
	return &httpapi.Server{
		Names: names, Record: s.record.Write, Limits: planeLimits(), Log: s.log, Now: time.Now, Encoder: s.site().Form(plane.EnvelopeForm()), Measure: s.metrics.MeasureServer("plane"),
		Identify: s.measureIdentifier(identify),
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			policy := policy // a copy for this decision
			policy.Orgs = s.orgs()
			return access.DecidePlane(c, v, policy, now)
		},
		// Pausing must work even when the audit log is down; the hold object is itself the record.
		MustRecord: append(slices.DeleteFunc(writes(), func(v access.Verb) bool { return v == access.HoldsCreate }), access.RecordingsRead),
	}
}

func (s *planeServer) site() web.Site {
	p := s.set.PlanePolicy()
	return web.Site{Overview: s.service.GetOverview, Now: time.Now, Capability: p.Capability, Contact: p.Contact, Tag: p.Tag}
}

// routes returns all routes that server serves.
func (s *planeServer) routes(server *httpapi.Server) []httpapi.Route {
	api := slices.Concat(s.service.Routes(), s.fleet.Routes(), s.jobs.Routes(), s.metricsService.Routes(), s.changes.Routes(), s.enroll.Routes())
	return append(slices.Concat(api, s.site().Routes()), mcp.Route(server, api, mcp.Options{Version: version()}))
}

// serveLocal serves on a listener of this machine, where a trusted peer reports the caller.
func (s *planeServer) serveLocal(ctx context.Context, working func()) error {
	i := s.set.Plane.Identity
	mode, err := planeMode(s.set)
	if err != nil {
		return err
	}
	ln, err := listenLocal(ctx, i)
	if err != nil {
		return err
	}
	identify, err := mode.Identifier(ln.Addr())
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	server := s.newServer(hostNames(i), identify)
	server.Limits.Connections = 0 // all connections come from one address
	s.log.Info("the plane is serving", "mode", string(i.Mode), "at", i.Listen, "names", i.Names, "version", version())
	working()
	return server.Run(ctx, ln, identity.ConnContext, s.routes(server)...)
}

// serveNode serves as a node of the tailnet, which authenticates the callers.
func (s *planeServer) serveNode(ctx context.Context, working func()) error {
	node, err := s.node(ctx, s.set.Plane.Identity.Hostname, s.storage())
	if err != nil {
		return err
	}
	who := identity.Whois{WhoIs: node.Identify}
	if o := s.set.Plane.Identity.OIDC; o != (settings.PlaneOIDC{}) {
		who.Bearer = new(issuer(o, node))
	}
	identify, err := who.Identifier(nil)
	if err != nil {
		return err
	}
	server := s.newServer(node.Names, identify)
	s.changes.StillAllowed = s.approverCheck(node)
	s.changes.Link = func(id string) string { return "https://" + node.Names()[0] + "/changes/" + id }
	err = runNode(ctx, node, func(ctx context.Context) error {
		parts, ctx := newGroup(ctx)
		parts.run(func() error { return s.followNode(ctx, node) })
		s.proxies.node.Store(new(node.DialHost))
		defer s.proxies.node.Store(nil)
		ln, err := node.Listen(ctx)
		if err != nil {
			if node.Status().Running() && node.Status().CertDomain == "" {
				err = errors.New("the tailnet gives the plane's node no certificate: enable HTTPS (and MagicDNS) in the tailnet's DNS settings, " +
					"or set plane.identity.insecureHTTP: true to listen without TLS (WireGuard still encrypts)")
			}
			return parts.stop(ctx, err)
		}
		s.log.Info("the plane is serving", "names", node.Names(), "version", version())
		working()
		parts.run(func() error { return server.Run(ctx, ln, node.ConnContext, s.routes(server)...) })
		return parts.wait()
	})
	s.store.Report(plane.Source{Name: tailnetSource, Status: plane.StatusDown, Message: noNode})
	return err
}

// A nodeStorage is where a node stores its keys.
type nodeStorage struct{ dir, secret string }

// storage returns where the plane's own node stores its keys. In the role all, the tailnet settings are those of the access server.
func (s *planeServer) storage() nodeStorage {
	own := nodeStorage{s.set.Tailnet.StateDir, s.set.Tailnet.StateSecret}
	if s.role == settings.AllRoles {
		return own.forNode("plane")
	}
	return own
}

// forNode returns the place of an additional node.
func (p nodeStorage) forNode(name string) nodeStorage {
	p.dir = filepath.Join(p.dir, name)
	if p.secret != "" {
		p.secret += "-" + name
	}
	return p
}

// node returns a node of the plane. Its keys are in its Secret if the settings name one. Only the replica that holds the Lease may open
// that Secret.
func (s *planeServer) node(ctx context.Context, hostname string, at nodeStorage) (*tailnet.Node, error) {
	c := tailnet.Config{Hostname: hostname, StateDir: at.dir, InsecureHTTP: s.set.Plane.Identity.InsecureHTTP, Capability: s.set.Plane.Capability,
		Log: s.log.With("node", hostname)}
	if at.secret != "" {
		state, err := kube.OpenStateSecret(ctx, s.config, s.set.Signin.SystemNamespace, at.secret)
		if err != nil {
			return nil, err
		}
		c.State = state
	}
	return newNode(s.process, c)
}

// exposure returns the server of one exposed service, which has a separate node on the tailnet.
func (s *planeServer) exposure(u exposure.Upstream) exposure.Server {
	source := exposureSource(u.Name)
	server := s.newServer(nil, nil)
	server.Measure, server.MustRecord = s.metrics.MeasureServer("exposure"), nil
	return exposure.Server{Upstream: u, Common: *server, RetryAfter: exposurePause,
		OpenNode: func(ctx context.Context) (exposure.Node, func(*http.Request) (access.Caller, error), error) {
			node, err := s.node(ctx, u.Name, s.storage().forNode("exposure-"+u.Name))
			if err != nil {
				return nil, nil, err
			}
			identify, err := identity.Whois{WhoIs: node.Identify}.Identifier(nil)
			return node, identify, err
		},
		Report: func(names []string, err error) {
			s.onTailnet(u.Name, names)
			out := plane.Source{Name: source, Status: plane.StatusOK}
			switch {
			case err != nil:
				out.Status, out.Message = plane.StatusDown, "It is not on the tailnet: "+err.Error()
			case len(names) > 1 && net.ParseIP(names[1]) == nil && names[1] != u.Name:
				out.Status, out.Message = plane.StatusDegraded, fmt.Sprintf("NameTaken: another node of the tailnet has the name %s; this node is %s.", u.Name, names[0])
			}
			s.store.Report(out)
			if err == nil {
				s.log.Info("an exposed service is available on the tailnet", "exposure", u.Name, "names", names)
			}
		},
	}
}

// onTailnet stores the name of an exposure on the tailnet; no names: it is down.
func (s *planeServer) onTailnet(exposure string, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.exposed, exposure); len(names) > 0 {
		s.exposed[exposure] = names[0]
	}
}

// exposures returns the configured exposures with their addresses.
func (s *planeServer) exposures() (all []plane.Exposure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	scheme := "https://"
	if s.set.Plane.Identity.InsecureHTTP {
		scheme = "http://"
	}
	for _, e := range s.set.Plane.Exposures {
		out := plane.Exposure{Name: e.Name, Access: e.Access, Source: exposureSource(e.Name)}
		if name, there := s.exposed[e.Name]; there {
			out.Address = new(scheme + name)
		}
		all = append(all, out)
	}
	return all
}

// exposurePause is how long an exposure waits before its node tries to join again.
const exposurePause = 15 * time.Second

func exposureSource(name string) string { return "exposure:" + name }

// followNode reports the state of the node until ctx ends.
func (s *planeServer) followNode(ctx context.Context, node *tailnet.Node) error {
	check := "tailnet"
	if s.role == settings.AllRoles { // there, "tailnet" is the access server's check
		check = "plane-tailnet"
	}
	s.health.AddCheck(check, nodeCheck(node))
	for {
		changed := node.Changed()
		s.store.Report(nodeSource(node.Status(), s.set.Plane.Identity.Hostname))
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// nodeSource returns the state of the node, for people. NameTaken is a term that they can look up.
func nodeSource(st tailnet.Status, desired string) plane.Source {
	out := plane.Source{Name: tailnetSource, Status: plane.StatusOK}
	switch {
	case !st.Running():
		out.Status, out.Message = plane.StatusDown, fmt.Sprintf("The node is %s.", st.State)
	case len(st.Names) > 1 && net.ParseIP(st.Names[1]) == nil && st.Names[1] != strings.ToLower(desired):
		out.Status, out.Message = plane.StatusDegraded, fmt.Sprintf("NameTaken: another node of the tailnet has the name %s; this server is %s.", desired, st.Names[0])
	}
	return out
}

// auditEntries reads the audit log of this replica.
func (s *planeServer) auditEntries(ctx context.Context, yield func(plane.AuditEntry) bool) (int, error) {
	if s.set.Audit.File == "-" {
		return 0, problem.New(problem.Unavailable, "The audit log goes to standard output, and the plane cannot read it.",
			"Read it in the log collection of the cluster, or set audit.file.").WithRetryAfter(time.Minute)
	}
	return plane.AuditLog{Path: s.set.Audit.File}.ReadNewest(ctx, yield)
}

// writes returns the verbs of operations that change something.
func writes() []access.Verb {
	return []access.Verb{access.SigninsRevoke, access.ConnectionsCut, access.HoldsCreate, access.HoldsLift, access.ConfigPropose, access.ConfigApprove,
		access.EnrollmentRequest, access.EnrollmentApprove, access.EnrollmentDecline, access.OffboardRequest, access.RotateRequest}
}

// planeLimits returns the limits of one login and device, which are in the contract, and the limits for all callers together.
func planeLimits() httpapi.Limits {
	verbs := map[access.Verb]httpapi.Rate{}
	for _, v := range writes() {
		verbs[v] = httpapi.Rate{PerMinute: 5 * 60, Burst: 20}
	}
	verbs[access.LogsRead] = httpapi.Rate{PerMinute: 60, Burst: 20}
	return httpapi.Limits{
		Verbs: verbs,
		Other: httpapi.Rate{PerMinute: 50 * 60, Burst: 100}, All: httpapi.Rate{PerMinute: 1000 * 60, Burst: 2000},
		WaitersPerCaller: 16, Waiters: 4000, Connections: 256, AllConnections: 8192,
	}
}
