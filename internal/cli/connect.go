package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
)

// clusterOfContext returns the cluster of a context that login wrote, for kubectl's --context flag.
func (t *tka) clusterOfContext() (string, error) {
	view, err := t.loadKubeconfig()
	if err != nil {
		return "", err
	}
	if cluster, own := view.ClusterOf(t.context); own {
		return cluster, nil
	}
	return "", output.UsageErrorf("the kubeconfig has no context %q from tka", t.context).Try("See the contexts: kubectl config get-contexts")
}

// newClient returns a client for the server at base. It opens no connection.
func (t *tka) newClient(base string) *client.Client {
	return client.New(base, t.timeout, t.userAgent())
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
	err := t.updateServer(ctx, l.Base, func(k *config.ServerRecord) {
		k.Cluster = l.Info.Name
		if !l.Pinned {
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
	l, err := t.locate(cluster)
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

// verifyAny calls verify. If the server is unreachable and --server does not name it, verifyAny tries the other servers that this machine
// knows with the same key. After a refusal it tries no other server.
func (t *tka) verifyAny(ctx context.Context, first *client.Client, cluster string) (*client.Client, error) {
	err := t.verify(ctx, first, cluster)
	if output.ExitCode(err) != output.ExitUnreachable || first.Last.Reached || first.Key.IsZero() || t.server != "" {
		return first, err
	}
	for _, base := range t.replicas(first) {
		l := t.newClient(base)
		l.Key, l.Pinned = first.Key, first.Pinned
		switch nerr := t.verify(ctx, l, cluster); {
		case nerr == nil, l.Denied != nil:
			t.hint("%s cannot be reached; %s serves the same cluster.", first.Base, base)
			return l, nerr
		case output.ExitCode(nerr) != output.ExitUnreachable || ctx.Err() != nil:
			return l, nerr
		}
	}
	return first, err
}

// replicas returns the other servers that this machine knows with the key of l.
func (t *tka) replicas(l *client.Client) (bases []string) {
	set, err := t.settings()
	if err != nil {
		return nil
	}
	for _, e := range set.Servers {
		if base, err := set.Address(e.Name); err == nil && e.Key == l.Key {
			bases = append(bases, base)
		}
	}
	if k, err := t.state(); err == nil {
		for _, s := range k.Servers {
			if s.Key == l.Key {
				bases = append(bases, s.URL)
			}
		}
	}
	slices.Sort(bases)
	return slices.DeleteFunc(slices.Compact(bases), func(b string) bool { return b == l.Base })
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

// locate returns a client for the server from the flags, the stored servers or the settings, in this order. It makes no request.
func (t *tka) locate(cluster string) (*client.Client, error) {
	set, k, err := t.settingsAndState()
	if err != nil {
		return nil, err
	}
	name := cmp.Or(t.server, set.Server)
	if t.server == "" && cluster != "" {
		if s, ok := k.ServerOf(cluster); ok {
			name = s.URL
		}
	}
	base, err := set.Address(name)
	if err != nil {
		f := output.UsageErrorf("The server %q is not usable: %v", dialpolicy.RedactURL(name), err).Because(err)
		if errors.Is(err, dialpolicy.ErrInsecure) {
			return nil, f.Try("Use https://, or list the server with insecureHTTP: true under servers in the settings.")
		}
		return nil, f.Try("Select the access server by its name in the tailnet: --server NAME")
	}
	l := t.newClient(base)
	have, _ := k.Server(base)
	l.Key = have.Key
	if key := set.KeyFor(base); !key.IsZero() {
		l.Key, l.Pinned = key, true
	}
	return l, nil
}

// describeNamespaces formats namespaces for people; none means the whole cluster.
func describeNamespaces(namespaces []string) string {
	if len(namespaces) == 0 {
		return "the whole cluster"
	}
	return strings.Join(slices.Sorted(slices.Values(namespaces)), ", ")
}
