package cli

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// signinOfContext returns the sign-in of the context that --context names. login must have written it.
func (t *tka) signinOfContext() (kubeconfig.Signin, error) {
	view, err := t.loadKubeconfig()
	if err != nil {
		return kubeconfig.Signin{}, err
	}
	if s, own := view.SigninOf(t.context); own {
		return s, nil
	}
	return kubeconfig.Signin{}, output.UsageErrorf("the kubeconfig has no context %q from tka", t.context).Try("See the contexts: kubectl config get-contexts")
}

// newClient returns a client for the server at base. It opens no connection.
func (t *tka) newClient(base string) *client.Client {
	return client.New(base, t.clientOptions())
}

// clientOptions returns what all clients of this command share.
func (t *tka) clientOptions() client.Options {
	return client.Options{Limit: t.timeout, Agent: t.userAgent(), Tailscale: t.tailscale, IDTokens: t.idTokens}
}

// userAgent returns the User-Agent header of tka.
func (t *tka) userAgent() string { return "tka/" + t.Build.Version }

// verify calls Verify of the client and stores the cluster and the key of the server.
func (t *tka) verify(ctx context.Context, l *client.Client, cluster string) error {
	if err := l.Verify(ctx, cluster); err != nil || t.dryRun {
		return err
	}
	if l.FirstContact {
		t.hint("First contact with %s: it serves %s and has the key %v. tka remembers this key.", l.Base, l.Info.Name, l.Key)
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	replicas := l.Replicas(set.AddressOfPinned)
	err = t.updateServer(ctx, l.Base, func(k *config.ServerRecord) {
		k.Cluster, k.Replicas, k.OIDC = l.Info.Name, replicas, len(l.Info.OIDC) > 0
		if set.KeyFor(l.Base).IsZero() { // the settings may have the key for a bare name only
			k.Key = l.Key
		}
	})
	if err != nil {
		t.warn("tka could not save the server's key: %v", err)
	}
	return nil
}

// connect locates the server and requires its proof. If this machine does not know the cluster, connect looks it up at the server of the
// settings. With --server, it uses that server only.
func (t *tka) connect(ctx context.Context, cluster string) (*client.Client, error) {
	t.explainSelection(ctx)
	l, err := t.locate(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if t.server == "" && cluster != "" {
		k, err := t.state()
		if err != nil {
			return nil, err
		}
		if _, ok := k.ServerOf(cluster); !ok {
			return t.connectDiscovered(ctx, l, cluster)
		}
	}
	return t.verifyAny(ctx, l, cluster)
}

// verifyAny calls verify. If the server is unreachable and --server does not name it, verifyAny tries the other servers of the cluster that
// this machine knows: those with the same key, and those that a server has listed. Each must prove the key. After a refusal it tries no other
// server; a listed address where another server answers is no refusal of the cluster.
func (t *tka) verifyAny(ctx context.Context, first *client.Client, cluster string) (*client.Client, error) {
	var others []replica
	if !first.Key.IsZero() && t.server == "" {
		others = t.replicas(first)
	}
	err := t.verifyWithin(ctx, first, cluster, len(others))
	if output.ExitCode(err) != output.ExitUnreachable || first.Last.Reached {
		return first, err
	}
	var foreign *client.Client
	var foreignErr error
	for i, r := range others {
		l := t.replicaClient(r, first)
		switch nerr := t.verifyWithin(ctx, l, cluster, len(others)-i-1); {
		case nerr == nil, l.Denied != nil:
			t.hint("%s cannot be reached; %s serves the same cluster.", first.Base, r.base)
			return l, nerr
		case ctx.Err() != nil:
			return l, nerr
		case r.listed && l.Foreign:
			foreign, foreignErr = l, nerr
		case output.ExitCode(nerr) != output.ExitUnreachable:
			return l, nerr
		}
	}
	if foreign != nil {
		return foreign, foreignErr
	}
	return first, err
}

// replicaClient returns a client for another server of the cluster of first. The server must prove the same key.
func (t *tka) replicaClient(r replica, first *client.Client) *client.Client {
	l := t.newClient(r.base)
	if r.listed {
		l = client.NewDiscovered(r.base, first.Key, first.Base, t.clientOptions())
	}
	l.Key, l.Pinned, l.KeyFrom = first.Key, first.Pinned, first.KeyFrom
	return l
}

// attemptTimeout bounds the attempt to reach one of several servers of a cluster.
const attemptTimeout = 5 * time.Second

// verifyWithin calls verify. If other servers remain to be tried, it leaves time for them: a dead host answers nothing, not even an error.
func (t *tka) verifyWithin(ctx context.Context, l *client.Client, cluster string, others int) error {
	if deadline, ok := ctx.Deadline(); ok && others > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(attemptTimeout, time.Until(deadline)/time.Duration(others+1)))
		defer cancel()
	}
	return t.verify(ctx, l, cluster)
}

// A replica is another server of a cluster.
type replica struct {
	base   string
	listed bool // only a server's list names it
}

// replicas returns the other servers that this machine knows with the key of l, and then those that a server with that key has listed.
func (t *tka) replicas(l *client.Client) (found []replica) {
	set, k, err := t.settingsAndState()
	if err != nil {
		return nil
	}
	add := func(base string, listed bool) {
		if base != l.Base && !slices.ContainsFunc(found, func(r replica) bool { return r.base == base }) {
			found = append(found, replica{base, listed})
		}
	}
	for _, e := range set.Servers {
		if base, err := set.Address(e.Name); err == nil && e.Key == l.Key {
			add(base, false)
		}
	}
	for _, s := range k.Servers {
		if s.Key == l.Key {
			add(s.URL, false)
		}
	}
	slices.SortFunc(found, func(a, b replica) int { return cmp.Compare(a.base, b.base) })
	for _, s := range k.Servers {
		if s.Key != l.Key && set.KeyFor(s.URL) != l.Key {
			continue
		}
		for _, r := range s.Replicas {
			if base, err := set.AddressOfPinned(r); err == nil {
				add(base, true)
			}
		}
	}
	return found
}

// connectOrDenied is connect, but returns a refusal as denied and not as an error. The refusal comes from the intended server if its key is
// known.
func (t *tka) connectOrDenied(ctx context.Context, cluster string) (l *client.Client, denied *output.Error, err error) {
	l, err = t.connect(ctx, cluster)
	if l != nil && l.Denied != nil {
		return l, l.Denied, nil
	}
	return l, nil, err
}

// locate returns a client for the server from the flags, the stored servers or the settings, in this order. It makes no request to a server.
func (t *tka) locate(ctx context.Context, cluster string) (*client.Client, error) {
	set, k, err := t.settingsAndState()
	if err != nil {
		return nil, err
	}
	given, err := t.givenKey()
	if err != nil {
		return nil, err
	}
	configuredServer := cmp.Or(t.Getenv(serverEnv), set.Server)
	name := cmp.Or(t.server, configuredServer)
	if t.server == "" && cluster != "" {
		if s, ok := k.ServerOf(cluster); ok && name != s.URL {
			name = s.URL
			if configured, err := set.AddressOfPinned(configuredServer); err != nil || !isNamedBy(s.URL, configured) {
				given = givenKey{} // it is the key of another server
			}
		}
	}
	address, unlisted := set.Address, false
	if stored, ok := k.Server(name); ok && !stored.Key.IsZero() || !given.key.IsZero() {
		address = set.AddressOfPinned
	}
	base, err := address(name)
	if errors.Is(err, dialpolicy.ErrInsecure) {
		base, err = set.AddressOfPinned(name)
		unlisted = true
	}
	if err != nil {
		f := output.UsageErrorf("The server %q is not usable: %v", dialpolicy.RedactURL(name), err).Because(err)
		return nil, f.Try("Select the access server by its name in the tailnet: --server NAME")
	}
	known := func(base string) (httpapi.PublicKey, bool) {
		if key := set.KeyFor(base); !key.IsZero() {
			return key, true
		}
		have, _ := k.Server(base)
		return have.Key, false
	}
	if key, _ := known(base); key.IsZero() && !set.Lists(name) && !strings.Contains(name, "://") {
		if plain := t.plainURL(ctx, base); plain != "" {
			base, unlisted = plain, true
		}
	}
	if full := t.knownFullName(ctx, base, known); full != "" {
		base, unlisted = full, false
	}
	l := t.newClient(base)
	l.Known, l.HTTPUnlisted = known, unlisted
	if l.Key, l.Pinned = known(base); !given.key.IsZero() {
		l.Key, l.Pinned, l.KeyFrom = given.key, false, given.from
	}
	return l, nil
}

// plainURL returns the http:// URL of a server that a person named without a scheme, if the tailnet has no certificates,
// as with Headscale; "" otherwise. The connection is inside the tailnet's encryption. As for each server over plain HTTP, Tailscale must confirm the address, or
// the server must prove a known key.
func (t *tka) plainURL(ctx context.Context, base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	if s, err := t.tailscale.Status(ctx); err != nil || !s.Running() || s.HTTPS {
		return ""
	}
	if t.tailscale.FullName(ctx, u.Hostname()) == "" {
		return "" // it is not in the tailnet
	}
	u.Scheme, u.Host = "http", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	return u.String()
}

// knownFullName returns the URL with the full MagicDNS name of a server whose URL has a bare host name, if this machine knows the key of that
// server; "" otherwise. The server must prove the key, so it needs no other confirmation.
func (t *tka) knownFullName(ctx context.Context, base string, known func(string) (httpapi.PublicKey, bool)) string {
	if key, _ := known(base); !key.IsZero() {
		return ""
	}
	full := t.newClient(base).FullNameURL(ctx)
	if key, _ := known(full); full == "" || key.IsZero() {
		return ""
	}
	return full
}

// A givenKey is a key that a person gave for the server of a command.
type givenKey struct {
	key  httpapi.PublicKey // zero: none
	from string            // the flag or the variable
}

// givenKey returns the key of --server-key, or else of $TKA_SERVER_KEY.
func (t *tka) givenKey() (givenKey, error) {
	text, from := t.serverKey, "--server-key"
	if text == "" {
		text, from = t.Getenv(serverKeyEnv), "$"+serverKeyEnv
	}
	if text == "" {
		return givenKey{}, nil
	}
	key, err := httpapi.ParsePublicKey(text)
	if err != nil {
		return givenKey{}, output.UsageErrorf("%s is not a key: %v", from, err).Because(err).
			Try("See the key on a machine that knows the cluster: tka cluster-info -o yaml")
	}
	return givenKey{key, from}, nil
}

// isNamedBy reports whether the server at base is the one that configured names, which may have a bare host name.
func isNamedBy(base, configured string) bool {
	if base == configured {
		return true
	}
	b, err := url.Parse(base)
	c, cerr := url.Parse(configured)
	return err == nil && cerr == nil && b.Scheme == c.Scheme && b.Port() == c.Port() && !strings.ContainsAny(c.Hostname(), ".:") &&
		strings.HasPrefix(b.Hostname(), c.Hostname()+".")
}

// describeNamespaces formats namespaces for people; none means the whole cluster.
func describeNamespaces(namespaces []string) string {
	if len(namespaces) == 0 {
		return "the whole cluster"
	}
	return strings.Join(slices.Sorted(slices.Values(namespaces)), ", ")
}

// fetchDirectory fetches the list of clusters from a server that has proved its identity. It requests all clusters and counts hidden ones
// locally, because the proof does not cover headers.
func (t *tka) fetchDirectory(ctx context.Context, l *client.Client) (client.Directory, error) {
	set, err := t.settings()
	if err != nil {
		return client.Directory{}, err
	}
	list, err := client.Call(ctx, l, gossip.ListClusters, gossip.ClusterListRequest{State: "all"})
	old := problem.CodeOf(err) == problem.NotFound // a version without discovery knows only its own cluster
	switch {
	case old:
		list = gossip.ClusterList{Clusters: []gossip.Cluster{ownCluster(l)}}
	case err != nil:
		return client.Directory{}, err
	}
	d := client.NewDirectory(l.Base, l.Info.Name, list.Clusters, set.AddressOfPinned) // it excludes entries without a verified key
	d.Unsupported, d.Isolated = old, l.Last.Header.Get(gossip.IsolatedHeader) == "true"
	d.Refused = l.Last.Header.Values(gossip.RefusedHeader)
	return d, nil
}

// ownCluster returns the entry of a server's cluster, from the information that the server proved.
func ownCluster(l *client.Client) gossip.Cluster {
	i := l.Info
	return gossip.Cluster{APIEndpoint: i.ServerURL, Labels: i.Labels, Name: i.Name, ID: i.ID, URL: l.Base, State: gossip.Alive, Verified: true, Self: true,
		CAHash: i.CAHash, Key: l.Key, Software: i.Version}
}

// connectDiscovered returns a client for the server of a cluster that this machine does not know. It finds the cluster in the list of the
// first server. The key comes from the verified record, so connectDiscovered never trusts a key at first contact.
func (t *tka) connectDiscovered(ctx context.Context, first *client.Client, cluster string) (*client.Client, error) {
	d := t.cachedDirectory
	if d == nil {
		l, err := t.verifyAny(ctx, first, "")
		if err != nil || l.Info.Name == cluster || l.Info.ID == cluster {
			return l, err
		}
		reported, err := t.fetchDirectory(ctx, l)
		if err != nil {
			return l, err
		}
		d = &reported
	}
	e, err := d.Resolve(cluster)
	if err != nil {
		return nil, err
	}
	if e.Self {
		return t.verifyAny(ctx, first, e.Name)
	}
	if d.HasConflict(e) {
		t.warn("another server claims to serve %s; tka does not contact it", e.Name)
	}
	return t.connectEntry(ctx, d.Server, e)
}

// connectEntry returns a client for the cluster of an entry that is not excluded. It uses the first of its servers that is reachable. After
// a refusal it tries no other server.
func (t *tka) connectEntry(ctx context.Context, source string, e client.DirectoryEntry) (l *client.Client, err error) {
	set, k, err := t.settingsAndState()
	if err != nil {
		return nil, err
	}
	for i, base := range e.ServerURLs {
		l = client.NewDiscovered(base, e.Key, source, t.clientOptions())
		have, _ := k.Server(base)
		listed := set.KeyFor(base)
		for _, key := range []httpapi.PublicKey{listed, have.Key} { // the list does not override what a person or this machine knows
			if !key.IsZero() && key != e.Key {
				return l, output.Errorf(output.ExitRefused, "The server %s has the key %v according to %s, and the key %v according to this machine", base, e.Key, source, key).
					Try("Ask an administrator which key is correct: another machine may have taken the name.").
					Try("If you know that the key changed: tka config --forget-server %s", output.ShellQuote(base))
			}
		}
		l.Pinned = !listed.IsZero()
		err = t.verify(ctx, l, e.Name)
		if err == nil {
			t.hint("Found %s at %s, with the key %v, through the server %s.", e.Name, base, l.Key, source)
			return l, nil
		}
		if output.ExitCode(err) != output.ExitUnreachable || l.Last.Reached || ctx.Err() != nil || i == len(e.ServerURLs)-1 {
			return l, err
		}
		t.hint("%s cannot be reached; trying the next server of %s.", base, e.Name)
	}
	return l, err
}

// allTargets returns the clusters that this machine signed in to, and those that the server of the settings knows. It caches the server's
// list for finding them.
func (t *tka) allTargets(ctx context.Context) ([]target, error) {
	targets, err := t.signedInTargets()
	if err != nil {
		return nil, err
	}
	first, err := t.locate(ctx, "")
	if err != nil {
		return nil, err
	}
	l, err := t.verifyAny(ctx, first, "")
	var d client.Directory
	if err == nil {
		d, err = t.fetchDirectory(ctx, l)
	}
	if err != nil {
		if len(targets) == 0 {
			return nil, err
		}
		t.warn("clusters that this machine does not know yet are not listed: %s", errorMessage(err))
		if !slices.ContainsFunc(targets, func(p target) bool { return p.server == first.Base }) {
			targets = append(targets, target{"", first.Base}) // its row in the output shows the error
		}
		return targets, nil
	}
	add := func(p target) {
		if !slices.ContainsFunc(targets, func(known target) bool { return known.cluster == p.cluster }) {
			targets = append(targets, p)
		}
	}
	add(target{l.Info.Name, l.Base}) // a server that has just started does not list its own cluster yet
	for _, e := range d.Entries {
		if e.Available() {
			add(target{e.Name, e.URL})
		}
	}
	t.cachedDirectory = &d
	return targets, nil
}

// completionTimeout bounds the request to a server during completion.
const completionTimeout = time.Second

// clusterNames returns the completions of a flag: the clusters that this machine knows, and those of the configured server if it responds
// at once and its key is known. It stores nothing and ignores errors.
func (t *tka) clusterNames(ctx context.Context) []string {
	names := t.knownClusterNames(ctx)
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	l, err := t.locate(ctx, "")
	if err != nil || l.Key.IsZero() || l.Verify(ctx, "") != nil {
		return names
	}
	if d, err := t.fetchDirectory(ctx, l); err == nil {
		names = append(names, d.Names()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
