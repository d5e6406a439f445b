package gather

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Refusals are what this account may not list or watch now, as the API server says
// when the caches ask. A namespace of groups that has no RoleBinding would otherwise
// keep every controller from beginning: the manager waits for all caches.
//
// The caches of such a namespace begin empty, and whoever reads them must ask Refused
// before taking that for what is so. A cache that was filled keeps what it had. Each
// asks again by itself, at most about a minute later.
type Refusals struct {
	Optional []string // namespaces without which the others go on; none is fine
	Log      *slog.Logger

	// Direct asks the API server for Kinds, those that this account needs in these
	// namespaces. Caches learn that rights are gone only when a watch ends, which may be
	// minutes later. No Kinds: nobody asks.
	Direct client.Reader
	Kinds  []schema.GroupVersionKind
	// Changed, optional, hears of each change of what Namespaces returns.
	Changed func()

	mu  sync.Mutex
	now map[string]map[string]bool // by namespace, "" for the whole cluster: what of it
}

// Forbidden says of a namespace what is to be done about it.
func Forbidden(namespace string) string {
	return fmt.Sprintf("the operator's account may not read in the namespace %s, or not everything: its RoleBinding there is missing", namespace)
}

// Options have caches ask by way of r. It changes o, whose other settings stay.
func (r *Refusals) Options(config *rest.Config, o *cache.Options) error {
	own := rest.CopyConfig(config)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusalTrip{r, next} })
	c, err := rest.HTTPClientFor(own)
	if err != nil {
		return fmt.Errorf("a client for the caches: %w", err)
	}
	o.HTTPClient, o.NewInformer, o.DefaultWatchErrorHandler = c, r.informer, said
	return nil
}

// Refused says whether anything of a namespace cannot be read now, so that its caches
// may lack what is there.
func (r *Refusals) Refused(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.now[namespace]) > 0
}

// Namespaces are those that are left out now, in whole or in part, by name.
func (r *Refusals) Namespaces() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for namespace, of := range r.now {
		if namespace != "" && len(of) > 0 {
			names = append(names, namespace)
		}
	}
	slices.Sort(names)
	return names
}

// askPause is how often it is asked what this account may read.
const askPause = 20 * time.Second

// NeedLeaderElection implements [manager.LeaderElectionRunnable]: every replica has caches.
func (r *Refusals) NeedLeaderElection() bool { return false }

// Start asks until ctx ends, so that everybody knows soon what only whoever reads next
// would find out.
func (r *Refusals) Start(ctx context.Context) error {
	tick := time.NewTicker(askPause)
	defer tick.Stop()
	for {
		for _, namespace := range r.Optional {
			for _, kind := range r.Kinds {
				r.ask(ctx, namespace, kind)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ask lists a kind in a namespace: not more of it than a name.
func (r *Refusals) ask(ctx context.Context, namespace string, kind schema.GroupVersionKind) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := r.Direct.List(ctx, l, client.InNamespace(namespace), client.Limit(1))
	if refused := apierrors.IsForbidden(err); err == nil || refused {
		r.note(namespace, kind.Kind+" (asked)", refused)
	}
}

// note takes note of an answer, and says once what changed by it.
func (r *Refusals) note(namespace, what string, refused bool) {
	was, is := r.noted(namespace, what, refused)
	if was != is && r.Changed != nil {
		r.Changed()
	}
	switch {
	case was && !is:
		r.Log.Info("this account may read again", "namespace", namespace)
	case was == is:
	case namespace == "":
		r.Log.Error("forbidden: this account may not read what it needs of the whole cluster; it asks again", "first", what)
	case slices.Contains(r.Optional, namespace):
		r.Log.Warn("forbidden: a namespace is left out, because this account may not read there; it asks again", "namespace", namespace, "first", what)
	default:
		r.Log.Error("forbidden: this account may not read in a namespace that it needs; it asks again", "namespace", namespace, "first", what)
	}
}

// noted says whether anything of a namespace was refused before the answer, and is now.
func (r *Refusals) noted(namespace, what string, refused bool) (was, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = len(r.now[namespace]) > 0
	switch {
	case !refused:
		delete(r.now[namespace], what)
	case was:
		r.now[namespace][what] = true
	default:
		if r.now == nil {
			r.now = map[string]map[string]bool{}
		}
		r.now[namespace] = map[string]bool{what: true}
	}
	return was, len(r.now[namespace]) > 0
}

// A refusal is an answer 403, with where it was.
type refusal struct{ namespace, what string }

func (e *refusal) Error() string {
	return fmt.Sprintf("this account may not read %s in the namespace %q", e.what, e.namespace)
}

// refusalTrip turns the answer 403 into an error that knows the namespace, which
// the caches' own error does not say.
type refusalTrip struct {
	of   *Refusals
	next http.RoundTripper
}

func (t refusalTrip) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := t.next.RoundTrip(q)
	if err != nil || q.Method != http.MethodGet {
		return a, err
	}
	namespace, what := asked(q)
	switch {
	case a.StatusCode == http.StatusForbidden:
		t.of.note(namespace, what, true)
		return nil, errors.Join(&refusal{namespace, what}, a.Body.Close())
	case a.StatusCode < http.StatusMultipleChoices:
		t.of.note(namespace, what, false)
	}
	return a, nil
}

// asked is what a list or watch is of. Whole objects and their metadata are cached
// apart, and one may be known while the other is not.
func asked(q *http.Request) (namespace, what string) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	what = parts[len(parts)-1]
	if n := len(parts); n >= 3 && parts[n-3] == "namespaces" {
		namespace = parts[n-2]
	}
	if strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadata") {
		what += " (metadata)"
	}
	return namespace, what
}

// informer is one whose cache counts as filled if it may not be, in a namespace
// without which the others go on.
func (r *Refusals) informer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
	inner := toolscache.ToListerWatcherWithContext(lw)
	var informer toolscache.SharedIndexInformer
	informer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := inner.ListWithContext(ctx, o)
			if no, ok := errors.AsType[*refusal](err); ok && slices.Contains(r.Optional, no.namespace) && !informer.HasSynced() {
				return &metav1.List{}, nil // later ones fail: what was known stays
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return inner.WatchWithContext(ctx, o)
		},
	}, kind, resync, by)
	return informer
}

// said logs why a list or watch failed, but for refusals: those were said when they
// began.
func said(ctx context.Context, r *toolscache.Reflector, err error) {
	if _, refused := errors.AsType[*refusal](err); !refused {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}
