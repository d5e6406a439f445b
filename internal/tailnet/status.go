package tailnet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
)

// A Status is the state of a node at one moment. It must not be modified.
type Status struct {
	State string // Tailscale's state: "NoState", "NeedsLogin", "NeedsMachineAuth", "Stopped", "Starting", "Running"
	// Names are the names of the node as the control server assigned them: full name, short name,
	// addresses. Empty unless Running.
	Names     []string
	Addrs     []netip.Addr // the addresses in Names
	Tailnet   string       // name of the tailnet, such as "example.com"
	ID        string       // stable ID of the node
	KeyExpiry time.Time    // when a person must sign the node in again; zero: never
	LoginURL  string       // where a person signs the node in, while the node waits for that
	Health    []string     // problems that Tailscale reports, as sentences
	// CertDomain is the name that the node gets a certificate for, or "" if the tailnet has no
	// HTTPS.
	CertDomain string
}

// Running reports whether the node is reachable and can identify callers.
func (s Status) Running() bool { return s.State == ipn.Running.String() }

// LogValue implements [slog.LogValuer].
func (s Status) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("state", s.State), slog.Any("names", s.Names), slog.String("tailnet", s.Tailnet), slog.String("node", s.ID)}
	if !s.KeyExpiry.IsZero() {
		attrs = append(attrs, slog.Time("keyExpiry", s.KeyExpiry))
	}
	if len(s.Health) > 0 {
		attrs = append(attrs, slog.Any("health", s.Health))
	}
	return slog.GroupValue(attrs...)
}

// watch follows the backend until ctx ends or the node is refused. It stops limit when only a
// person's action is missing.
func (n *Node) watch(ctx context.Context, b *backend, limit *time.Timer) error {
	w := watcher{Node: n, b: b, limit: limit}
	for ctx.Err() == nil {
		if err := w.follow(ctx); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// A watcher updates the Status and the log from the backend's notifications.
type watcher struct {
	*Node
	b              *backend
	limit          *time.Timer
	in             bool   // the node has joined since the start
	state          string // last state
	loginRequested string // last request to a person
}

// follow reads notifications until the watch ends. The backend disconnects a reader that fell
// behind; its status then has the missed changes.
func (w *watcher) follow(ctx context.Context) error {
	bus, err := w.b.client.WatchIPNBus(ctx, ipn.NotifyInitialState|ipn.NotifyInitialHealthState|ipn.NotifyPeerPatches)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watch the tailnet node: %w", err)
	}
	defer bus.Close()
	for first := true; ; first = false {
		note, err := bus.Next()
		switch {
		case err != nil && first && ctx.Err() == nil:
			return fmt.Errorf("watch the tailnet node: %w", err)
		case err != nil:
			return nil // ctx ended, or the backend disconnected the reader
		}
		if note.ErrMessage != nil {
			if err := w.logProblem(*note.ErrMessage); err != nil {
				return err
			}
			continue
		}
		if note.State != nil || note.SelfChange != nil || note.Health != nil || note.BrowseToURL != nil {
			if err := w.check(ctx); err != nil {
				return err
			}
			continue
		}
		if len(note.PeersChanged) > 0 || len(note.PeersRemoved) > 0 || len(note.UserProfiles) > 0 {
			w.publish(w.status.Load())
		}
	}
}

// logProblem handles an error message of the backend. Before the node has joined, the message means
// that the control server refused it.
func (w *watcher) logProblem(message string) error {
	switch {
	case strings.HasPrefix(message, "IPN bus consumer fell behind"):
		return nil // watch calls follow again
	case w.in:
		w.cfg.Log.Error("the tailnet node reports an error", "err", message)
		return nil
	}
	todo := "check tailnet.authKeyFile: a key works until it expires or is revoked, a one-use key only once, and it must own " + strings.Join(w.cfg.Tags, ", ")
	switch {
	case w.cfg.AuthKey.IsZero():
		todo = "set an auth key for the node (tailnet.authKeyFile), or sign the node in again"
	case len(w.cfg.Tags) == 0:
		todo, _, _ = strings.Cut(todo, ", and it must own")
	}
	return fmt.Errorf("the control server %s %w: %s; %s", w.cfg.ControlURL, ErrRefused, message, todo)
}

// check reads the backend's status and publishes it.
func (w *watcher) check(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	raw, err := w.b.client.StatusWithoutPeers(asking)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("status of the tailnet node: %w", err)
	}
	st := statusOf(raw)
	w.hosts.setMappings(raw)
	w.publish(&st)
	if st.Running() && !w.in { // published before joined is closed, because Listen reads the status then
		// Up on a running node only removes settings that an earlier program left in the state:
		// serve and Funnel settings that the administrator may not expect.
		if _, err := w.b.server.Up(asking); err != nil {
			return fmt.Errorf("the tailnet node: %w", err)
		}
		if err := w.publishPeers(asking); err != nil {
			return err
		}
		w.in = true
		w.limit.Stop()
		close(w.joined)
	}
	w.update(st)
	return nil
}

// update logs changes and asks for actions that only a person can do.
func (w *watcher) update(st Status) {
	log := w.cfg.Log
	was := w.state
	w.state = st.State
	ask, attrs := "", []any(nil)
	switch {
	case st.Running():
		if was != st.State {
			log.Info("the node is in its tailnet", "status", st)
			if requested := strings.ToLower(w.cfg.Hostname); len(st.Names) > 1 && st.Names[1] != requested {
				log.Warn("the host name is already in use; the control server assigned another", "asked", requested, "assigned", st.Names[0])
			}
		}
		w.loginRequested = ""
		return
	case was == ipn.Running.String():
		log.Error("the node lost its connection to the tailnet and refuses every request until it is back. "+
			"If its key has expired or the node was removed, extend the key in the admin console or restart with a new auth key", "status", st)
		return
	case st.LoginURL != "":
		ask, attrs = "the node waits for a person to sign it in", []any{"open", st.LoginURL}
	case st.State == ipn.NeedsMachineAuth.String():
		ask = "the node waits for an administrator of the tailnet to approve it in the admin console"
	}
	if reported := fmt.Sprint(ask, attrs); ask != "" && reported != w.loginRequested && !w.in {
		w.loginRequested = reported
		w.limit.Stop()
		log.Warn(ask, attrs...)
	}
}

// statusOf copies the used part of the backend's status.
func statusOf(raw *ipnstate.Status) Status {
	st := Status{State: raw.BackendState, LoginURL: raw.AuthURL, Health: slices.Clone(raw.Health)}
	if len(raw.CertDomains) > 0 {
		st.CertDomain = raw.CertDomains[0]
	}
	if raw.CurrentTailnet != nil {
		st.Tailnet = raw.CurrentTailnet.Name
	}
	if raw.Self == nil {
		return st
	}
	st.ID = string(raw.Self.ID)
	if raw.Self.KeyExpiry != nil {
		st.KeyExpiry = *raw.Self.KeyExpiry
	}
	if !st.Running() {
		return st
	}
	if full := strings.ToLower(strings.TrimSuffix(raw.Self.DNSName, ".")); full != "" {
		st.Names = append(st.Names, full)
		if short, _, ok := strings.Cut(full, "."); ok {
			st.Names = append(st.Names, short)
		}
	}
	st.Addrs = slices.Clone(raw.TailscaleIPs)
	for _, ip := range raw.TailscaleIPs {
		st.Names = append(st.Names, ip.String())
	}
	return st
}
