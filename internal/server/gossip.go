package server

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	signincontroller "github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// discovery connects this access server to those of other clusters.
type discovery struct {
	*process
	node   *tailnet.Node
	keys   *keyring
	secret *signincontroller.ClusterKey
	server httpapi.Server // HTTP server for members; the API's server has another port
	// proxies returns the access proxies that people are told of.
	proxies func() []signin.ProxyServer

	netmap atomic.Pointer[gossip.Netmap]
	member atomic.Pointer[gossip.Node] // nil until the cluster's key is loaded

	handover atomic.Pointer[handover] // nil: the key did not change
	events   chan gossip.Event        // to be recorded
	lost     atomic.Uint64            // events dropped for lack of room since the last report
}

// A handover is the signature of the cluster's previous key for the present one.
type handover struct {
	from httpapi.PublicKey
	sig  []byte
}

// members returns the current members. While this server does not gossip, that is this server alone.
func (d *discovery) members() *gossip.Members {
	if n := d.member.Load(); n != nil {
		if m := n.Members(); len(m.List) > 0 {
			return m
		}
	}
	key, _ := d.keys.current()
	return gossip.NewStandaloneMembers(d.facts(key.Public()), time.Now())
}

// servers returns the base URLs of this cluster's access servers. The list holds only servers that this server has verified itself and that
// have the cluster's key.
func (d *discovery) servers() []string {
	key, ok := d.keys.current()
	if !ok {
		return nil
	}
	return gossip.ServersOf(d.members(), d.cluster.ID, key.Public())
}

// facts returns what this server announces about itself. It uses only the cluster's settings and the tailnet.
func (d *discovery) facts(key httpapi.PublicKey) gossip.Facts {
	st, set := d.node.Status(), d.set
	f := gossip.Facts{ClusterID: d.cluster.ID, ClusterName: d.cluster.Name, Node: st.ID, Port: set.Gossip.Port, APIEndpoint: d.cluster.ServerURL,
		APIPort: portOf(d.cluster.ServerURL), CAHash: d.cluster.CAHash, Labels: d.cluster.Labels, Key: key, Software: software(d.cluster.Version)}
	f.Audit = d.witness.statements()
	if all := d.proxies(); len(all) > 0 {
		f.Proxy = strings.TrimSuffix(all[0].URL, "/")
	}
	if h := d.handover.Load(); h != nil {
		f.PrevKey, f.PrevSig = h.from, h.sig
	}
	for _, name := range st.Names {
		if ip, err := netip.ParseAddr(name); err == nil {
			f.IPs = append(f.IPs, ip)
		}
	}
	if len(st.Names) > 0 {
		f.Host = st.Names[0]
		scheme, usual := "https", uint16(443)
		if st.CertDomain == "" {
			scheme, usual = "http", 80
		}
		f.URL = scheme + "://" + f.Host
		if port := set.Tailnet.Port; port != usual {
			f.URL += ":" + strconv.Itoa(int(port))
		}
	}
	return f
}

// portOf returns the port of an https URL. The settings have validated the URL.
func portOf(server string) uint16 {
	if u, err := url.Parse(server); err == nil {
		if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
			return uint16(port)
		}
	}
	return 443
}

// software returns a version with only the characters that records allow.
func software(version string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".+_-", r)) {
			return r
		}
		return -1
	}, version)
}

// gossipSettings converts the settings for package gossip.
func gossipSettings(g settings.Gossip) (gossip.Settings, error) {
	s := gossip.Settings{Network: g.Network, Interval: time.Duration(g.Interval), Fanout: g.Fanout, PinnedOnly: g.Trust == settings.PinnedOnly,
		MaxMembers: g.MaxMembers, MaxMessageBytes: g.MaxMessageBytes, ForgetAfter: time.Duration(g.ForgetAfter)}
	for _, name := range g.Peers {
		s.Seeds = append(s.Seeds, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	for i, p := range g.Pins {
		key, err := httpapi.ParsePublicKey(p.Key)
		if err != nil {
			return s, fmt.Errorf("gossip.pins: entry %d needs the id and the key that tka cluster-info shows: %w", i+1, err)
		}
		s.Pins = append(s.Pins, gossip.Pin{Cluster: p.ID, Key: key})
	}
	var err error
	if s.AllowedEndpoints, err = gossip.ParseAllowedEndpoints(g.AllowEndpoints); err != nil {
		return s, fmt.Errorf("gossip.%w", err)
	}
	if s, err = s.WithDefaults(); err != nil {
		return s, fmt.Errorf("gossip.%w", err)
	}
	return s, nil
}

// Limits of the HTTP server. The limits per peer are twice what package gossip grants a member. Package gossip counts requests and backs
// off; these limits are for callers that are no members.
const (
	exchangesPerMinute  = 2 * 20 * 60
	exchangesAtOnce     = 2 * 40
	exchangesOfEveryone = 1000 * 60
	connectionsOfAll    = 2048
	connectionAge       = time.Minute // so that a withdrawn grant ends existing connections
)

// configureServer configures the HTTP server for members. It starts as a copy of the API's server and gets other limits. It has neither proofs nor
// required audit entries, which are for people.
func (d *discovery) configureServer() {
	measured := d.metrics.MeasureServer("gossip")
	d.server.Key, d.server.MustRecord, d.server.HTTP2 = nil, nil, true
	d.server.Measure = func() func(httpapi.Outcome) {
		ended := measured()
		return func(o httpapi.Outcome) {
			if n := d.member.Load(); n != nil && isNonMember(o.Code) {
				n.CountRejected(gossip.Tag)
			}
			ended(o)
		}
	}
	d.server.Limits = httpapi.Limits{Verbs: map[access.Verb]httpapi.Rate{access.GossipExchange: {PerMinute: exchangesPerMinute, Burst: exchangesAtOnce}},
		Other: limits(d.set.API.Limits).Other, All: httpapi.Rate{PerMinute: exchangesOfEveryone, Burst: exchangesOfEveryone / 60},
		Connections: gossip.ConnectionsPerPeer, AllConnections: connectionsOfAll, Age: connectionAge}
}

// isNonMember reports whether c is a code with which the server refuses a caller that is no member.
func isNonMember(c problem.Code) bool {
	return slices.Contains([]problem.Code{problem.NotAMember, problem.TaggedNode, problem.ForeignNode, problem.NodeExpired, problem.IdentityAmbiguous,
		problem.FunnelRefused, problem.NoIdentity}, c)
}

// run gossips until ctx ends, and then announces that this server leaves. The tailnet's node must be up.
func (d *discovery) run(ctx context.Context) error {
	g := d.set.Gossip
	set, err := gossipSettings(g)
	if err != nil {
		return err
	}
	ln, err := d.node.ListenPlain(ctx, g.Port)
	if err != nil {
		return err
	}
	defer ln.Close()
	key, err := d.keys.wait(ctx)
	if err != nil {
		return nil // ctx has ended
	}
	switch before, ok, err := d.loadPreviousKey(ctx); {
	case err != nil:
		return nil // ctx has ended
	case ok:
		d.handover.Store(&handover{before.Public(), before.Sign(gossip.RekeyMessage(d.cluster.ID, key.Public()))})
		d.log.Info("the cluster's key was changed; the previous key signed the new one", "before", before.Public().String(), "key", key.Public().String())
	}
	self := d.node.Status().ID
	pins, err := controller.NewPins(d.config, d.set.Signin.SystemNamespace, self)
	if err != nil {
		return err
	}
	meter := new(gossiphttp.Meter)
	client := gossiphttp.NewClient(gossiphttp.ClientConfig{Dial: d.node.Dial, WhoIs: d.whoIs, Netmap: d.netmap.Load, Port: g.Port, Meter: meter})
	defer client.Close()
	var seed [32]byte
	rand.Read(seed[:]) // never fails
	member, err := gossip.New(gossip.Config{
		Settings: set, ID: self, Key: key.Public(), Sign: key.Sign, Netmap: d.netmap.Load, Exchange: client.Exchange, Load: pins.Load, Save: pins.Save,
		Facts:  func() (gossip.Facts, bool) { return d.facts(key.Public()), d.node.Status().Running() },
		Report: d.queueEvent, Log: d.log, Now: time.Now, Rand: mathrand.NewChaCha8(seed), Merged: d.metrics.ObserveMerge,
		Recalled: d.witness.recall,
	})
	if err != nil {
		return err
	}
	d.member.Store(member)
	d.metrics.AddGossip(member.Stats, member.Members, meter)
	d.log.Info("searching for other clusters", "port", g.Port, "network", g.Network, "tags", g.Tags)
	if gossip.IsPrivateEndpoint(d.cluster.ServerURL) && len(d.set.AnnouncedProxies()) == 0 {
		d.log.Warn("cluster.server is a private address, and access.modes does not have proxy: servers of other clusters list this cluster only if their gossip.allowEndpoints includes it", "server", d.cluster.ServerURL)
	}

	parts, running := newGroup(ctx)
	parts.run(func() error { return d.followNetmap(running) })
	parts.run(func() error { return d.recordEvents(running) })
	parts.run(func() error { return member.Run(running) })
	parts.run(func() error {
		return d.server.Run(running, meter.Listener(ln), d.node.ConnContext, gossiphttp.ServeExchange(member.Handle, time.Now), gossiphttp.ServeCA(d.cluster.CAData, time.Now))
	})
	parts.run(func() error { return d.publisher(member, client).Run(running) })
	<-running.Done()
	d.witness.seal(context.WithoutCancel(ctx))
	if err := member.Leave(context.WithoutCancel(ctx)); err != nil {
		d.log.Info("no other server received the message that this server leaves", "err", err)
	}
	return parts.wait()
}

// loadPreviousKey loads the cluster's previous key and retries until it succeeds. Without the previous key's signature, all other servers distrust
// a changed key.
func (d *discovery) loadPreviousKey(ctx context.Context) (key httpapi.Key, ok bool, err error) {
	report := func(err error) {
		d.log.Warn("reading the previous key of the cluster failed; trying again", "err", err)
	}
	err = retryUntil(ctx, report, func() (err error) {
		key, ok, err = d.secret.Previous(ctx)
		return err
	})
	return key, ok, err
}

// publisher returns the publisher that shows this cluster what is known of the others.
func (d *discovery) publisher(member *gossip.Node, client *gossiphttp.Client) *controller.Publisher {
	forgotten := time.Now().Add(time.Duration(d.set.Gossip.ForgetAfter)) // by then, a server that was not heard is forgotten
	p := &controller.Publisher{Config: d.config, Namespace: d.set.Signin.SystemNamespace, Log: d.log, Now: time.Now,
		Clusters: func() []gossip.Cluster {
			all, _ := member.Members().Clusters(true)
			for i := range all {
				if !all[i].Self {
					continue
				}
				for _, p := range d.proxies() {
					all[i].Proxies = append(all[i].Proxies, gossip.Proxy{URL: p.URL, CAData: p.CAData})
				}
			}
			return all
		},
		Ready: func() bool {
			seen := d.netmap.Load()
			return seen != nil && seen.Len() <= 1 || member.Stats().MessagesIn > 0 || time.Now().After(forgotten)
		}}
	if set := d.set.Gossip.ClusterProfiles; set.Enabled {
		p.Profiles = &controller.Profiles{Namespace: set.Namespace, ForgetAfter: time.Duration(d.set.Gossip.ForgetAfter),
			CA: func(ctx context.Context, c gossip.Cluster) ([]byte, error) {
				if c.Self {
					return d.cluster.CAData, nil
				}
				err := fmt.Errorf("no access server of %s is available", c.Name)
				for _, m := range c.Members {
					if p, ok := d.netmap.Load().Find(m.Node); ok && m.State == gossip.Alive {
						var pem []byte
						if pem, err = client.FetchCA(ctx, p); err == nil {
							return pem, nil
						}
					}
				}
				return nil, err
			}}
	}
	return p
}

// whoIs returns the id of the member at an address.
func (d *discovery) whoIs(ctx context.Context, at netip.AddrPort) (string, error) {
	c, err := d.node.WhoIs(ctx, at)
	if p := problem.From(err); err != nil && p.Cause() != nil {
		return "", fmt.Errorf("%w (%w)", err, p.Cause()) // for this server's log
	}
	if err != nil {
		return "", err
	}
	if _, err := d.server.Decide(c, access.GossipExchange, time.Now()); err != nil {
		return "", err
	}
	return c.Device.ID, nil
}

// Intervals for reading the tailnet's nodes.
const (
	netmapRetry = time.Second
	netmapCheck = 30 * time.Second
)

// followNetmap keeps the netmap current: the nodes of the tailnet with a required tag.
func (d *discovery) followNetmap(ctx context.Context) error {
	for ctx.Err() == nil {
		changed, again := d.node.Changed(), netmapCheck
		if all, err := d.node.Peers(ctx); err == nil {
			d.netmap.Store(gossip.NewNetmap(d.gossipPeers(all)))
		} else {
			again = netmapRetry // keep the netmap: a failed read is no evidence of change
		}
		_ = retry.SleepOrWake(ctx, again, changed) // the loop checks ctx itself
	}
	return nil
}

// gossipPeers returns the peers that may be members, and this server.
func (d *discovery) gossipPeers(all []tailnet.Peer) []gossip.Peer {
	var servers []gossip.Peer
	for _, p := range all {
		if !p.Shared && slices.ContainsFunc(p.Tags, func(t access.Tag) bool { return slices.Contains(d.set.Gossip.Tags, string(t)) }) {
			servers = append(servers, gossip.Peer{ID: p.ID, Name: p.Name, Addrs: p.Addrs})
		}
	}
	if f := d.facts(httpapi.PublicKey{}); f.Host != "" {
		servers = append(servers, gossip.Peer{ID: f.Node, Name: f.Host, Addrs: f.IPs})
	}
	return servers
}

// maxEvents is how many events may wait to be recorded.
const maxEvents = 4096

// queueEvent queues ev for the audit log. It does not block: gossip must continue while a disk is slow.
func (d *discovery) queueEvent(ev gossip.Event) {
	select {
	case d.events <- ev:
	default:
		d.lost.Add(1)
	}
}

// recordEvents records events until ctx ends and the queue is empty.
func (d *discovery) recordEvents(ctx context.Context) error {
	for {
		select {
		case ev := <-d.events:
			d.recordEvent(ev)
			continue
		default:
		}
		select {
		case ev := <-d.events:
			d.recordEvent(ev)
		case <-ctx.Done():
			return nil
		}
	}
}

// recordEvent writes an event of the members to the audit log.
func (d *discovery) recordEvent(ev gossip.Event) {
	if n := d.lost.Swap(0); n > 0 {
		d.log.Error("the audit log lacks some membership events: too many happened at once", "events", n)
	}
	args := map[string]string{"node": ev.Node}
	if ev.Cluster != "" {
		args["cluster"] = ev.Cluster
	}
	if ev.Count > 0 {
		args["count"] = strconv.FormatUint(ev.Count, 10)
	}
	d.log.Info("discovery", "event", ev.Kind, "node", ev.Node, "cluster", ev.Cluster, "detail", ev.Detail, "count", ev.Count)
	d.recordAction(audit.Entry{Verb: access.Gossip(string(ev.Kind)), Object: ev.Node, Reason: ev.Detail, Args: args, Actor: selfActor(d.node.Status())})
}
