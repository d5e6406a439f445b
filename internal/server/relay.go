package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/relay"
	relayconfig "github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/util/profile"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// completeTime is how long a relay waits at its end until its state is completely stored.
const completeTime = 10 * time.Second

// A relayProcess is the state that the parts of a relay share.
type relayProcess struct {
	relay.Environment
	stateDir string
	log      *slog.Logger
	client   *relay.KubeClient
	state    *kube.StateSecret
	config   chan relayconfig.Config // the first configuration, which identifies the node
	relay    *relay.Relay
	life     *relayNode
}

// RunRelay runs a pod of a proxy group, according to the variables of Tailscale's proxy image. stateDir is for data that the node may lose.
func RunRelay(ctx context.Context, o Options, stateDir string, profiles bool) error {
	var contract relay.Environment
	log, err := o.start(func(*slog.Logger) (err error) {
		contract, err = relay.ParseEnvironment(os.Getenv)
		return err
	})
	if log == nil {
		return err
	}
	config, err := kube.Config(o.Kubeconfig)
	if err != nil {
		return err
	}
	namespace, err := kube.Namespace(o.Kubeconfig)
	if err != nil {
		return err
	}
	p := &relayProcess{Environment: contract, stateDir: stateDir, log: log, config: make(chan relayconfig.Config, 1)}
	if p.client, err = relay.NewKubeClient(config, namespace); err != nil {
		return err
	}
	if p.state, err = kube.OpenStateSecret(ctx, config, namespace, contract.Secret); err != nil {
		return err
	}
	if err := p.reset(ctx); err != nil {
		return err
	}
	metrics := health.NewRelayMetrics(version(), commit())
	p.life = &relayNode{p: p}
	p.relay = &relay.Relay{
		PodIPs: contract.IPs, Meter: metrics, Log: log, Now: time.Now, Ping: relay.PingHTTP,
		ListenPod: func(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", at.String())
		},
		ListenPodPacket: func(ctx context.Context, at netip.AddrPort) (net.PacketConn, error) {
			return new(net.ListenConfig).ListenPacket(ctx, "udp", at.String())
		},
		DialCluster:         new(net.Dialer).DialContext,
		DialTailnet:         p.life.dial,
		Netmap:              p.life.netmap,
		Lookup:              p.life.lookup,
		ListenTailnet:       p.life.listen,
		ListenTailnetPacket: p.life.listenPacket,
		ReadCertificate:     p.client.Certificate,
		WriteCertificate:    p.client.SetCertificate,
	}
	if contract.Ordinal == "0" { // the authority's rate limits count for all replicas together
		p.relay.IssueCertificate = p.life.issueCertificate
	}
	probes := &health.Listener{Address: contract.Health, Gatherer: metrics, Log: log, Handlers: p.relay.Handlers(p.life.checkAlive)}
	probes.AddCheck("tailnet", func(context.Context) error { return p.life.checkAlive() })
	probes.AddCheck("state", func(context.Context) error { return p.checkStored() })
	probes.AddCheck("mappings", func(context.Context) error { return p.relay.Ready() })
	metrics.AddReadiness(probes)
	metrics.AddRelay(func() bool { return p.relay.Ready() == nil })
	var also []func(context.Context) error
	if profiles && contract.Debug != "" {
		debug := &health.Listener{Address: contract.Debug, Gatherer: metrics, Log: log, Handlers: map[string]http.Handler{profile.Path: http.HandlerFunc(profile.Serve)}}
		also = append(also, debug.Run)
	}
	return p.run(ctx, probes, also...)
}

// reset removes what an earlier pod of this name reported: the relay has bound no port yet.
func (p *relayProcess) reset(ctx context.Context) error {
	return p.state.Set(ctx, map[string]string{
		relayconfig.PodUID: p.UID, relayconfig.CapVersion: capVersion, relayconfig.EgressKey: "", relayconfig.Reissue: "",
	})
}

// checkStored returns an error while the state Secret does not yet show the operator what this relay does.
func (p *relayProcess) checkStored() error {
	if !p.state.Joined() || p.state.Field(relayconfig.DeviceID) == "" {
		return errors.New("the node's state is not stored yet")
	}
	if st, ok := p.relay.Status(); !ok || p.state.Field(relayconfig.EgressKey) != string(st.JSON()) {
		return errors.New("the applied status is not stored yet")
	}
	return nil
}

// run runs the parts. At the end it drains connections first and stops the node last, because the node carries them.
func (p *relayProcess) run(ctx context.Context, probes *health.Listener, also ...func(context.Context) error) error {
	drain := func(after context.Context) {
		if err := p.relay.Drain(after); err != nil {
			p.log.Warn("the relay stops while connections are open", "open", p.relay.Open(), "err", err)
		}
		p.waitStored(after)
	}
	return runTogether(ctx, drain, append(also, probes.Run, p.relay.Run, p.life.run, p.report, func(ctx context.Context) error {
		return p.client.Watch(ctx, p.ConfigMap(), p.Mount, p.log, p.applyConfig)
	})...)
}

// waitStored waits until the node's state is completely stored.
func (p *relayProcess) waitStored(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	for !p.state.Complete() {
		if retry.Sleep(ctx, 50*time.Millisecond) != nil {
			p.log.Error("the node's state is not completely stored: the next pod may become a new node", "secret", p.Secret)
			return
		}
	}
}

// applyConfig applies a configuration. It ignores one that it cannot parse.
func (p *relayProcess) applyConfig(data map[string]string) {
	c, err := relayconfig.Parse(data)
	if err != nil {
		p.log.Error("parsing the group's ConfigMap failed; the previous configuration stays in effect", "err", err)
		return
	}
	select {
	case p.config <- c:
	default: // the node has its configuration
	}
	p.relay.Configure(c)
}

// report keeps the applied mappings and the node's identity in the state Secret current.
func (p *relayProcess) report(ctx context.Context) error {
	in := false
	for {
		changed := p.relay.Changed()
		moved, other := p.life.changed()
		fields := p.life.fields()
		if is := len(fields) > 0; is != in {
			in = is
			p.relay.Wake() // listeners on the tailnet can be bound now
		}
		if st, ok := p.relay.Status(); ok {
			fields[relayconfig.EgressKey] = string(st.JSON())
		} else { // before routing works, report only the node's identity
			delete(fields, relayconfig.DeviceFQDN)
			delete(fields, relayconfig.DeviceIPs)
		}
		var again <-chan time.Time
		if err := p.state.Set(ctx, fields); err != nil && ctx.Err() == nil {
			p.log.Warn("writing the state Secret failed; trying again", "err", err)
			again = time.After(2 * time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-moved:
		case <-other:
		case <-again:
		}
	}
}
