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

// Refusals record which lists and watches the API server forbids for this ServiceAccount. Without
// them, one group namespace without a RoleBinding would block every controller, because the
// manager waits for all caches.
//
// The caches of such a namespace start empty. Readers must call Refused before they treat missing
// objects as deleted. A cache that was synced keeps its contents. Each cache retries by itself
// after at most about a minute.
type Refusals struct {
	Optional []string // namespaces that must not block the others; may be empty
	Log      *slog.Logger

	// Direct is used to test access to Kinds in these namespaces. Caches learn about lost rights
	// only when a watch ends, which can take minutes. If Kinds is empty, there is no test.
	Direct client.Reader
	Kinds  []schema.GroupVersionKind
	// Changed is called when the result of Namespaces changes. Optional.
	Changed func()

	mu  sync.Mutex
	now map[string]map[string]bool // forbidden resources by namespace; "" means the whole cluster
}

// Forbidden returns a message that explains the missing access to a namespace.
func Forbidden(namespace string) string {
	return fmt.Sprintf("the operator's account may not read in the namespace %s, or not everything: its RoleBinding there is missing", namespace)
}

// Options makes the caches use r. It modifies o and keeps its other settings.
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

// Refused reports whether a resource in a namespace cannot be read now. The caches may then be
// incomplete.
func (r *Refusals) Refused(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.now[namespace]) > 0
}

// Namespaces returns the namespaces with unreadable resources, sorted.
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

// askPause is the interval of the access test.
const askPause = 20 * time.Second

// NeedLeaderElection implements [manager.LeaderElectionRunnable]. Every replica has caches.
func (r *Refusals) NeedLeaderElection() bool { return false }

// Start tests access until ctx ends, so that changes are found early and not only with the next
// request of a cache.
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

// ask lists a kind in a namespace. It requests the metadata of at most one object.
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

// note records an answer and logs each change once.
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

// noted records an answer. It reports whether any resource of the namespace was forbidden before
// and after it.
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

// A refusal is a response with status 403 and its place.
type refusal struct{ namespace, what string }

func (e *refusal) Error() string {
	return fmt.Sprintf("this account may not read %s in the namespace %q", e.what, e.namespace)
}

// refusalTrip converts status 403 into an error with the namespace, which the caches' own error
// does not contain.
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

// asked returns the namespace and resource of a list or watch request. Full objects and their
// metadata have separate caches, so they are recorded separately.
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

// informer creates an informer whose cache also counts as synced if access is forbidden in an
// optional namespace.
func (r *Refusals) informer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
	inner := toolscache.ToListerWatcherWithContext(lw)
	var informer toolscache.SharedIndexInformer
	informer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := inner.ListWithContext(ctx, o)
			if no, ok := errors.AsType[*refusal](err); ok && slices.Contains(r.Optional, no.namespace) && !informer.HasSynced() {
				return &metav1.List{}, nil // only before the first sync; later failures keep the cached objects
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return inner.WatchWithContext(ctx, o)
		},
	}, kind, resync, by)
	return informer
}

// said logs errors of lists and watches except refusals, which were logged when they began.
func said(ctx context.Context, r *toolscache.Reflector, err error) {
	if _, refused := errors.AsType[*refusal](err); !refused {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}
