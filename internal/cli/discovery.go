package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/cli/directory"
	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/gossip/memberlist"
	"github.com/tailplane/tailplane/internal/problem"
)

// directory fetches the list of clusters from a server that has proved its identity. It requests all clusters and counts hidden ones
// locally, because the proof does not cover headers.
func (t *tka) directory(ctx context.Context, l *link.Link) (directory.Directory, error) {
	set, err := t.settings()
	if err != nil {
		return directory.Directory{}, err
	}
	list, err := link.Call(ctx, l, memberlist.Get, memberlist.Request{State: "all"})
	p, refused := errors.AsType[*problem.Error](err)
	old := refused && p.Code == problem.NotFound // a version without discovery knows only its own cluster
	switch {
	case old:
		list = memberlist.List{Clusters: []gossip.Cluster{own(l)}}
	case err != nil:
		return directory.Directory{}, err
	}
	d := directory.New(l.Base, l.Info.Name, list.Clusters, set.Address)
	d.Old, d.Isolated = old, l.Last.Header.Get(memberlist.IsolatedHeader) == "true"
	d.Refused = l.Last.Header.Values(memberlist.RefusedHeader)
	return d, nil
}

// own returns the entry of a server's cluster, from the information that the server proved.
func own(l *link.Link) gossip.Cluster {
	i := l.Info
	return gossip.Cluster{APIEndpoint: i.ServerURL, Labels: i.Labels, Name: i.Name, ID: i.ID, URL: l.Base, State: gossip.Alive, Verified: true, Self: true,
		CAHash: i.CAHash, Key: l.Key, Software: i.Version}
}

// discover returns a client for the server of a cluster that this machine does not know. It finds the cluster in the list of the first
// server. The key comes from the verified record, so discover never trusts a key at first contact.
func (t *tka) discover(ctx context.Context, first *link.Link, cluster string) (*link.Link, error) {
	d := t.listed
	if d == nil {
		l, err := t.proveAny(ctx, first, "")
		if err != nil || l.Info.Name == cluster || l.Info.ID == cluster {
			return l, err
		}
		told, err := t.directory(ctx, l)
		if err != nil {
			return l, err
		}
		d = &told
	}
	e, err := d.Choose(cluster)
	if err != nil {
		return nil, err
	}
	if e.Self {
		return t.proveAny(ctx, first, e.Name)
	}
	if d.Contested(e) {
		t.warn("another server says that it is %s; it is not asked", e.Name)
	}
	return t.meet(ctx, d.Server, e)
}

// meet returns a client for the cluster of an entry without a doubt. It uses the first of its servers that is reachable. After a refusal it
// tries no other server.
func (t *tka) meet(ctx context.Context, source string, e directory.Entry) (l *link.Link, err error) {
	set, err := t.settings()
	if err != nil {
		return nil, err
	}
	k, err := t.known()
	if err != nil {
		return nil, err
	}
	for i, base := range e.Bases {
		l = link.Named(base, e.Key, source, t.timeout, t.agent())
		have, _ := k.At(base)
		listed := set.KeyOf(base)
		for _, key := range []door.PublicKey{listed, have.Key} { // the list does not override what a person or this machine knows
			if !key.IsZero() && key != e.Key {
				return l, fault.New(fault.Refused, "The server %s has the key %v as %s knows it, and %v as this machine does", base, e.Key, source, key).
					Try("Ask an administrator which one is right: another machine may have taken the name.").
					Try("If the key is known to have changed: tka config --forget-server %s", screen.Word(base))
			}
		}
		l.Listed = !listed.IsZero()
		err = t.prove(ctx, l, e.Name)
		if err == nil {
			t.hint("Found %s at %s, with the key %v, by the server %s.", e.Name, base, l.Key, source)
			return l, nil
		}
		if fault.CodeOf(err) != fault.Unreachable || l.Last.Reached || ctx.Err() != nil || i == len(e.Bases)-1 {
			return l, err
		}
		t.hint("%s cannot be reached; trying the next server of %s.", base, e.Name)
	}
	return l, err
}

// everywhere returns the clusters that this machine signed in to, and those that the server of the settings knows. It caches the server's
// list for finding them.
func (t *tka) everywhere(ctx context.Context) ([]place, error) {
	places, err := t.signedIn()
	if err != nil {
		return nil, err
	}
	first, err := t.locate("")
	if err != nil {
		return nil, err
	}
	l, err := t.proveAny(ctx, first, "")
	var d directory.Directory
	if err == nil {
		d, err = t.directory(ctx, l)
	}
	if err != nil {
		if len(places) == 0 {
			return nil, err
		}
		t.warn("clusters that this machine does not know yet are left out: %s", sentence(err))
		if !slices.ContainsFunc(places, func(p place) bool { return p.server == first.Base }) {
			places = append(places, place{"", first.Base}) // its row in the output shows the error
		}
		return places, nil
	}
	known := map[string]bool{}
	add := func(p place) {
		if !known[p.cluster] {
			places = append(places, p)
		}
		known[p.cluster] = true
	}
	for _, p := range places {
		known[p.cluster] = true
	}
	add(place{l.Info.Name, l.Base}) // a server that has just started does not list its own cluster yet
	for _, e := range d.Entries {
		if e.Available() {
			add(place{e.Name, e.URL})
		}
	}
	t.listed = &d
	return places, nil
}

// completionTime bounds the request to a server during completion.
const completionTime = time.Second

// clusterNames returns the completions of a flag: the clusters that this machine knows, and those of the configured server if it responds
// at once and its key is known. It stores nothing and ignores errors.
func (t *tka) clusterNames(ctx context.Context) []string {
	names := t.knownNames(ctx)
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	l, err := t.locate("")
	if err != nil || l.Key.IsZero() || l.Prove(ctx, "") != nil {
		return names
	}
	if d, err := t.directory(ctx, l); err == nil {
		names = append(names, d.Names()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
