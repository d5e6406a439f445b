package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/cli/tokencache"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/signin"
)

// clusterOfContext is the cluster of a context that login wrote: kubectl's
// --context names clusters in this way.
func (t *tka) clusterOfContext() (string, error) {
	files, err := t.readKube()
	if err != nil {
		return "", err
	}
	if cluster, ours := files.ClusterOf(t.context); ours {
		return cluster, nil
	}
	return "", fault.Usage("the kubeconfig has no context %q that tka made", t.context).Try("See the contexts: kubectl config get-contexts")
}

// connect is locate, and prove: what it returns leads to the server that is
// meant.
func (t *tka) connect(ctx context.Context, cluster string) (*link, error) {
	l, err := t.locate(cluster)
	if err != nil {
		return nil, err
	}
	return t.proveAny(ctx, l, cluster)
}

// proveAny is prove; where the server cannot be reached, and was not asked for by
// name, another one takes its place that this machine knows by the same key. A
// refusal is never tried elsewhere.
func (t *tka) proveAny(ctx context.Context, first *link, cluster string) (*link, error) {
	err := t.prove(ctx, first, cluster)
	if fault.CodeOf(err) != fault.Unreachable || first.last.reached || first.key.IsZero() || t.server != "" {
		return first, err
	}
	for _, base := range t.replicas(first) {
		l := t.link(base)
		l.key, l.listed = first.key, first.listed
		switch nerr := t.prove(ctx, l, cluster); {
		case nerr == nil, l.denied != nil:
			t.hint("%s cannot be reached; %s serves the same cluster.", first.base, base)
			return l, nerr
		case fault.CodeOf(nerr) != fault.Unreachable || ctx.Err() != nil:
			return l, nerr
		}
	}
	return first, err
}

// replicas are the other servers that this machine knows by the key of one.
func (t *tka) replicas(l *link) (bases []string) {
	set, err := t.settings()
	if err != nil {
		return nil
	}
	for _, e := range set.Servers {
		if base, err := set.address(e.Name); err == nil && e.Key == l.key {
			bases = append(bases, base)
		}
	}
	if k, err := t.known(); err == nil {
		for _, s := range k.Servers {
			if s.Key == l.key {
				bases = append(bases, s.URL)
			}
		}
	}
	slices.Sort(bases)
	return slices.DeleteFunc(slices.Compact(bases), func(b string) bool { return b == l.base })
}

// approach is connect, and takes a refusal for an answer too, which it returns
// beside: of the server that is meant, if its key is known.
func (t *tka) approach(ctx context.Context, cluster string) (l *link, denied *fault.Fault, err error) {
	l, err = t.connect(ctx, cluster)
	if l != nil && l.denied != nil {
		return l, l.denied, nil
	}
	return l, nil, err
}

// locate makes the way to the server that the flags, this machine's memory of
// clusters and the settings name, in this order. It asks nothing yet.
func (t *tka) locate(cluster string) (*link, error) {
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
		if s, ok := k.serving(cluster); ok {
			name = s.URL
		}
	}
	base, err := set.address(name)
	if err != nil {
		f := fault.Usage("The server %q is not used: %v", name, err).Because(err)
		if errors.Is(err, errInsecure) {
			return nil, f.Try("Use https://, or list the server with insecureHTTP: true under servers in the settings.")
		}
		return nil, f.Try("Name the access server by its name in the tailnet: --server NAME")
	}
	l := t.link(base)
	have, _ := k.at(base)
	l.key = have.Key
	if key := set.keyOf(base); !key.IsZero() {
		l.key, l.listed = key, true
	}
	return l, nil
}

// longestWait is how long one request for a kubeconfig may wait; less than
// servers allow, so that the answer is theirs.
const longestWait = 25 * time.Second

// patiently asks until the server's answer is another than "not yet", or the
// time limit is near. A server that knows how to wait is asked to; another one
// is asked again when it says so.
func patiently[Req, Resp any](ctx context.Context, l *link, op door.Op[Req, Resp], req func(wait time.Duration) Req) (Resp, error) {
	deadline, _ := ctx.Deadline()
	for last := false; ; {
		left := time.Until(deadline)
		resp, err := call(ctx, l, op, req(max(0, min(longestWait, left-lastTry(left)).Truncate(time.Millisecond))))
		after, later := l.notYet(err)
		if !later {
			return resp, err
		}
		left = time.Until(deadline)
		if room := left - lastTry(left); after > room {
			if last || l.last.status != http.StatusAccepted || room <= 0 {
				return resp, l.tooLate(err)
			}
			after, last = room, true // one more time, just before the end
		}
		if err := pause(ctx, after); err != nil {
			return resp, l.explain(ctx, err)
		}
	}
}

// lastTry is what to leave of the time for the last request.
func lastTry(left time.Duration) time.Duration { return min(time.Second, left/4) }

// tooLate is the fault of an answer "not yet" that stays within the time limit.
func (l *link) tooLate(err error) *fault.Fault {
	if l.last.status != http.StatusAccepted {
		if f, ok := errors.AsType[*fault.Fault](err); ok {
			return f
		}
	}
	return fault.New(fault.NotReady, "The sign-in was not ready within %v", l.limit).Because(err).
		Try("It goes on without tka; look at it with: tka status").
		Try("Give it longer: tka login --timeout 2m")
}

// retryAfter is when a server wants to be asked again; a second if it does not say.
func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s <= 0 {
		return time.Second
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// A grant of access is a kubeconfig from the server that was checked.
type granted struct {
	signin.Kubeconfig
	until time.Time // true end of the token; zero if the server does not say
}

// kubeconfigOf waits for the sign-in and fetches its kubeconfig.
func (l *link) kubeconfigOf(ctx context.Context) (granted, error) {
	k, err := patiently(ctx, l, signin.GetKubeconfig, func(wait time.Duration) signin.KubeconfigRequest {
		return signin.KubeconfigRequest{Wait: door.Duration(wait)}
	})
	if err != nil {
		return granted{}, err
	}
	g := granted{Kubeconfig: k}
	if s := l.last.header.Get(signin.ExpiresHeader); s != "" {
		if g.until, err = time.Parse(time.RFC3339, s); err != nil {
			err = fmt.Errorf("the end of the token, %.60q, is not a time", s)
		}
	}
	if err == nil {
		err = checkKubeconfig(k)
	}
	if err != nil {
		return granted{}, l.badAnswer("kubeconfig", err)
	}
	if k.Cluster != l.info.Name || k.Server != l.info.ServerURL || !bytes.Equal(k.CA, l.info.CAData) {
		return granted{}, fault.New(fault.Refused, "The kubeconfig from %s is not used: it leads to another place than the server proved", l.base).
			Try("Ask whoever runs the server; nothing was changed on this machine.")
	}
	return g, nil
}

// badAnswer is the fault of an answer that is refused on this side.
func (l *link) badAnswer(what string, err error) *fault.Fault {
	return fault.New(fault.Failed, "The %s from %s is not used: %v", what, l.base, err).Because(err).
		Try("Ask whoever runs the server; nothing was changed on this machine.")
}

// Names that come from a server end up in arguments, file names and commands to
// copy, so they hold only what no shell and no terminal takes for something else.
var (
	clusterForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:@/-]{0,251}[A-Za-z0-9])?$`)
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// checkKubeconfig refuses what could make kubectl trust or run something that
// a sign-in has no need of. Fields that do not belong there were refused when
// it was decoded.
func checkKubeconfig(k signin.Kubeconfig) error {
	switch {
	case !clusterForm.MatchString(k.Cluster):
		return fmt.Errorf("%.60q is not the name of a cluster", k.Cluster)
	case k.InsecureSkipTLSVerify:
		return errors.New("insecure-skip-tls-verify is set, so anybody could pose as the cluster")
	case k.Namespace != "" && !namespaceForm.MatchString(k.Namespace):
		return fmt.Errorf("%.60q is not the name of a namespace", k.Namespace)
	}
	if err := checkAPIServer(k.Server); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if err := checkCA(k.CA); err != nil {
		return fmt.Errorf("certificate-authority-data: %w", err)
	}
	return tokencache.CheckToken(k.Token)
}

// checkAPIServer refuses addresses of a cluster that are not https or more than
// an address.
func checkAPIServer(s string) error {
	if i := strings.IndexFunc(s, screen.Unsafe); i >= 0 || strings.ContainsRune(s, ' ') {
		return fmt.Errorf("%.80q holds characters that no URL has", s)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%.80q is not a URL", s)
	case u.Scheme != "https" || u.Opaque != "":
		return fmt.Errorf("%.80q is not https", s)
	case u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%.80q names no host", s)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return fmt.Errorf("%.80q holds more than host and path", s)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return checkAddr(addr)
	}
	return checkHost(strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")))
}

// checkCA wants certificates in PEM, at least one, and nothing beside them.
func checkCA(ca []byte) error {
	if len(ca) == 0 {
		return errors.New("it is empty")
	}
	n := 0
	for rest := ca; len(strings.TrimSpace(string(rest))) > 0; n++ {
		var block *pem.Block
		before := rest
		if block, rest = pem.Decode(rest); block == nil {
			return errors.New("it holds something that is not PEM")
		}
		if lead, _, _ := strings.Cut(string(before), "-----BEGIN"); strings.TrimSpace(lead) != "" {
			return errors.New("it holds something that is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it holds a %.40q", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("certificate %d: %w", n+1, err)
		}
	}
	if n == 0 {
		return errors.New("it is empty")
	}
	return nil
}

// whole reads namespaces for people; none is the whole cluster.
func whole(namespaces []string) string {
	if len(namespaces) == 0 {
		return "the whole cluster"
	}
	return strings.Join(slices.Sorted(slices.Values(namespaces)), ", ")
}

// pause waits for d or for the end of ctx, which is the error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
