package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/reach"
)

// clusterOfContext returns the cluster of a context that login wrote, for kubectl's --context flag.
func (t *tka) clusterOfContext() (string, error) {
	view, err := t.readKube()
	if err != nil {
		return "", err
	}
	if cluster, ours := view.ClusterOf(t.context); ours {
		return cluster, nil
	}
	return "", fault.Usage("the kubeconfig has no context %q that tka made", t.context).Try("See the contexts: kubectl config get-contexts")
}

// link returns a client for the server at base. It opens no connection.
func (t *tka) link(base string) *link.Link { return link.New(base, t.timeout, t.agent()) }

// agent returns the User-Agent header of tka.
func (t *tka) agent() string { return "tka/" + t.Build.Version }

// prove calls Prove and stores the cluster and the key of the server.
func (t *tka) prove(ctx context.Context, l *link.Link, cluster string) error {
	if err := l.Prove(ctx, cluster); err != nil || t.dry {
		return err
	}
	if l.First {
		t.hint("First contact with %s: it serves %s and has the key %v, which is remembered.", l.Base, l.Info.Name, l.Key)
	}
	err := t.remember(ctx, l.Base, func(k *memory.Known) {
		k.Cluster = l.Info.Name
		if !l.Listed {
			k.Key = l.Key
		}
	})
	if err != nil {
		t.warn("the server's key is not remembered: %v", err)
	}
	return nil
}

// connect locates the server and requires its proof. If this machine does not know the cluster, connect looks it up at the server of the
// settings. With --server, it uses that server only.
func (t *tka) connect(ctx context.Context, cluster string) (*link.Link, error) {
	l, err := t.locate(cluster)
	if err != nil {
		return nil, err
	}
	if t.server == "" && cluster != "" {
		k, err := t.known()
		if err != nil {
			return nil, err
		}
		if _, ok := k.Serving(cluster); !ok {
			return t.discover(ctx, l, cluster)
		}
	}
	return t.proveAny(ctx, l, cluster)
}

// proveAny calls prove. If the server is unreachable and --server does not name it, proveAny tries the other servers that this machine
// knows with the same key. After a refusal it tries no other server.
func (t *tka) proveAny(ctx context.Context, first *link.Link, cluster string) (*link.Link, error) {
	err := t.prove(ctx, first, cluster)
	if fault.CodeOf(err) != fault.Unreachable || first.Last.Reached || first.Key.IsZero() || t.server != "" {
		return first, err
	}
	for _, base := range t.replicas(first) {
		l := t.link(base)
		l.Key, l.Listed = first.Key, first.Listed
		switch nerr := t.prove(ctx, l, cluster); {
		case nerr == nil, l.Denied != nil:
			t.hint("%s cannot be reached; %s serves the same cluster.", first.Base, base)
			return l, nerr
		case fault.CodeOf(nerr) != fault.Unreachable || ctx.Err() != nil:
			return l, nerr
		}
	}
	return first, err
}

// replicas returns the other servers that this machine knows with the key of l.
func (t *tka) replicas(l *link.Link) (bases []string) {
	set, err := t.settings()
	if err != nil {
		return nil
	}
	for _, e := range set.Servers {
		if base, err := set.Address(e.Name); err == nil && e.Key == l.Key {
			bases = append(bases, base)
		}
	}
	if k, err := t.known(); err == nil {
		for _, s := range k.Servers {
			if s.Key == l.Key {
				bases = append(bases, s.URL)
			}
		}
	}
	slices.Sort(bases)
	return slices.DeleteFunc(slices.Compact(bases), func(b string) bool { return b == l.Base })
}

// approach is connect, but returns a refusal as denied and not as an error. The refusal comes from the intended server if its key is known.
func (t *tka) approach(ctx context.Context, cluster string) (l *link.Link, denied *fault.Fault, err error) {
	l, err = t.connect(ctx, cluster)
	if l != nil && l.Denied != nil {
		return l, l.Denied, nil
	}
	return l, nil, err
}

// locate returns a client for the server from the flags, the stored servers or the settings, in this order. It makes no request.
func (t *tka) locate(cluster string) (*link.Link, error) {
	set, err := t.settings()
	if err != nil {
		return nil, err
	}
	k, err := t.known()
	if err != nil {
		return nil, err
	}
	name := cmp.Or(t.server, set.Server)
	if t.server == "" && cluster != "" {
		if s, ok := k.Serving(cluster); ok {
			name = s.URL
		}
	}
	base, err := set.Address(name)
	if err != nil {
		f := fault.Usage("The server %q is not used: %v", reach.Redacted(name), err).Because(err)
		if errors.Is(err, reach.ErrInsecure) {
			return nil, f.Try("Use https://, or list the server with insecureHTTP: true under servers in the settings.")
		}
		return nil, f.Try("Name the access server by its name in the tailnet: --server NAME")
	}
	l := t.link(base)
	have, _ := k.At(base)
	l.Key = have.Key
	if key := set.KeyOf(base); !key.IsZero() {
		l.Key, l.Listed = key, true
	}
	return l, nil
}

// whole formats namespaces for people; none means the whole cluster.
func whole(namespaces []string) string {
	if len(namespaces) == 0 {
		return "the whole cluster"
	}
	return strings.Join(slices.Sorted(slices.Values(namespaces)), ", ")
}
