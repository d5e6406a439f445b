package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planekube"
	"github.com/tailplane/tailplane/internal/plane/planemcp"
	"github.com/tailplane/tailplane/internal/plane/web"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/relay/relaykube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
)

func planeCommand(f *flags) *cobra.Command {
	elect := true
	c := &cobra.Command{
		Use: "plane", Short: "Show the installation to operators, on the tailnet",
		Long: "Serves the operator plane on the tailnet: what is known of clusters, sign-ins, tailnets, gateways and adapters, and the ending of sign-ins.\n" +
			"Of several replicas one is the node; the others wait for the Lease " + planekube.LeaseName + ".",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return run(c.Context(), *f, settings.PlaneRole, part{"plane", func(ctx context.Context, p *process, working func()) error {
				return runPlane(ctx, p, elect, working)
			}})
		},
	}
	c.Flags().BoolVar(&elect, "leader-elect", true, "one replica at a time is the node; false: there is never another one, and this one goes on while the API server is away")
	return c
}

// planeServer is the plane's process.
type planeServer struct {
	*process
	config *rest.Config
	board  *plane.Board
	desk   *plane.Desk
	record *audit.Log
	orgs   func() []access.Org
}

// tailnetSource is where the plane's own node is shown.
const tailnetSource = "tailnet"

// runPlane wires the operator plane: what is watched is on the board from the
// start on, and whoever is elected serves it.
func runPlane(ctx context.Context, p *process, elect bool, working func()) (err error) {
	s := &planeServer{process: p, board: plane.NewBoard(time.Now)}
	if s.config, err = apiServer(ctx, p.kubeconfig); err != nil {
		return err
	}
	info, err := operatorInfo(ctx, s.config, p)
	if err != nil {
		return err
	}
	signins, err := planekube.NewSignins(s.config, p.set.Signin.Namespace, time.Now)
	if err != nil {
		return err
	}
	record, closeRecord, err := p.book.open(ctx, s.config, p, info)
	if err != nil {
		return err
	}
	s.record = record
	s.board.Expect(tailnetSource)
	s.desk = &plane.Desk{Board: s.board, Now: time.Now, Version: version(), Commit: commit(), Revoke: signins.Revoke, Entries: s.entries,
		Ready: func() bool { return p.health.Ready(context.Background()) }}
	watch := &planekube.Watch{Config: s.config, Board: s.board, SigninNamespace: p.set.Signin.Namespace, SystemNamespace: p.set.Signin.SystemNamespace,
		Version: version(), Log: p.log, Now: time.Now}
	s.orgs = watch.Orgs
	p.health.Check("kubernetes", reachable(s.config))

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var watchErr error
	wg.Go(func() { defer cancel(); watchErr = watch.Run(ctx) })
	if elect {
		working() // one that waits to be elected is as ready as it can be
		election := &planekube.Election{Config: s.config, Namespace: p.set.Signin.SystemNamespace, Log: p.log, Overdue: func() {
			p.log.Error("the node did not stop in time, and another replica begins now: this process ends")
			os.Exit(1)
		}}
		p.health.Check("lease", func(context.Context) error { return election.Trouble() })
		err = election.Run(ctx, func(ctx context.Context) error { return s.serve(ctx, func() {}) })
	} else {
		err = s.serve(ctx, working)
	}
	cancel()
	wg.Wait()
	return errors.Join(err, watchErr, closeRecord())
}

// serve is one term as the plane's node.
func (s *planeServer) serve(ctx context.Context, working func()) error {
	node, err := s.node(ctx)
	if err != nil {
		return err
	}
	identify, err := identity.Whois{Ask: node.Identify}.Identifier(nil)
	if err != nil {
		return err
	}
	policy := s.set.PlanePolicy()
	site := web.Site{Overview: s.desk.Overview, Now: time.Now, Capability: policy.Capability, Contact: policy.Contact}
	way := &door.Door{
		Names: node.Names, Record: s.record.Write, Limits: planeLimits(), Log: s.log, Now: time.Now, Form: site.Form(plane.Form()), Measure: s.metrics.Door("plane"),
		Identify: func(r *http.Request) (access.Caller, error) {
			defer func(began time.Time) { s.metrics.Identified(time.Since(began)) }(time.Now())
			return identify(r)
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			policy := policy // of this decision
			policy.Orgs = s.orgs()
			return access.DecidePlane(c, v, policy, now)
		},
		MustRecord: []access.Verb{access.SigninsRevoke},
	}
	// Who waits on whom at the end is as for the access server.
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg, atNode sync.WaitGroup
	var nodeErr error
	atNode.Go(func() { defer cancel(); nodeErr = node.Run(nodeCtx) })
	wg.Go(func() { s.follow(ctx, node) })
	ln, err := node.Listen(ctx)
	switch {
	case err == nil:
		s.log.Info("the plane is serving", "names", node.Names(), "version", version())
		working()
		api := s.desk.Routes()
		routes := append(slices.Concat(api, site.Routes()), planemcp.Route(way, api, planemcp.Options{Version: version()}))
		err = way.Run(ctx, ln, node.ConnContext, routes...)
	case ctx.Err() != nil:
		err = nil // asked to stop, or whoever ended it says why
	case node.Status().Running() && node.Status().CertDomain == "":
		err = errors.New("the tailnet gives the plane's node no certificate: enable HTTPS (and MagicDNS) in the tailnet's DNS settings, " +
			"or set plane.identity.insecureHTTP: true to listen without TLS (WireGuard still encrypts)")
	}
	cancel()
	wg.Wait()
	leave()
	atNode.Wait()
	s.board.Report(plane.Source{Name: tailnetSource, Status: plane.Down, Message: "This replica is not the plane's node."})
	return errors.Join(nodeErr, err)
}

// node is the plane's own, whose keys are in its Secret if one is named. Only who
// holds the Lease may open that.
func (s *planeServer) node(ctx context.Context) (*tailnet.Node, error) {
	set, t := s.set, &s.set.Tailnet
	key, err := authKey(set, s.log)
	if err != nil {
		return nil, err
	}
	c := tailnet.Config{Hostname: set.Plane.Identity.Hostname, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: key, StateDir: t.StateDir,
		Port: t.Port, InsecureHTTP: set.Plane.Identity.InsecureHTTP, Capability: set.Plane.Capability, Log: s.log}
	if t.StateSecret != "" {
		namespace := set.Signin.SystemNamespace
		client, err := relaykube.New(kube.Unthrottled(s.config), namespace)
		if err != nil {
			return nil, err
		}
		state, err := client.Open(ctx, t.StateSecret)
		if err != nil {
			return nil, err
		}
		c.State = nodeState{state}
	}
	return tailnet.New(c)
}

// follow shows how the node is, until ctx ends.
func (s *planeServer) follow(ctx context.Context, node *tailnet.Node) {
	s.health.Check("tailnet", func(context.Context) error {
		if st := node.Status(); !st.Running() {
			return fmt.Errorf("the node is %s", st.State)
		}
		return nil
	})
	for {
		changed := node.Changed()
		s.board.Report(standing(node.Status(), s.set.Plane.Identity.Hostname))
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// standing is how the node is, for people. NameTaken is a word that they can look up.
func standing(st tailnet.Status, wanted string) plane.Source {
	out := plane.Source{Name: tailnetSource, Status: plane.OK}
	switch {
	case !st.Running():
		out.Status, out.Message = plane.Down, fmt.Sprintf("The node is %s.", st.State)
	case len(st.Names) > 1 && net.ParseIP(st.Names[1]) == nil && st.Names[1] != strings.ToLower(wanted):
		out.Status, out.Message = plane.Degraded, fmt.Sprintf("NameTaken: another node of the tailnet is %s; this server is %s.", wanted, st.Names[0])
	}
	return out
}

// entries reads the audit record of this replica.
func (s *planeServer) entries(ctx context.Context, yield func(plane.Recorded) bool) (int, error) {
	if s.set.Audit.File == "-" {
		return 0, problem.New(problem.Unavailable, "The audit record goes to standard output, and cannot be read from here.",
			"Read it where the cluster collects logs, or set audit.file.").After(time.Minute)
	}
	return plane.Record{Path: s.set.Audit.File}.Newest(ctx, yield)
}

// Limits of one login and device, which stand in the contract, and of everybody.
func planeLimits() door.Limits {
	return door.Limits{
		Verbs: map[access.Verb]door.Rate{access.SigninsRevoke: {PerMinute: 5 * 60, Burst: 20}},
		Other: door.Rate{PerMinute: 50 * 60, Burst: 100}, All: door.Rate{PerMinute: 1000 * 60, Burst: 2000},
		WaitersPerCaller: 16, Waiters: 4000, Connections: 256, AllConnections: 8192,
	}
}
