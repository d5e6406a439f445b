package controller

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
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A forbiddenTracker records which lists and watches the API server forbids for this ServiceAccount. Without
// them, one group namespace without a RoleBinding would block every controller, because the
// manager waits for all caches.
//
// The caches of such a namespace start empty. Readers must call Namespaces before they treat missing
// objects as deleted. A cache that was synced keeps its contents. Each cache retries by itself
// after at most about a minute.
type forbiddenTracker struct {
	Optional []string // namespaces that must not block the others; may be empty
	Log      *slog.Logger

	// Direct is used to test access to Kinds in these namespaces. Caches learn about lost rights
	// only when a watch ends, which can take minutes. If Kinds is empty, there is no test.
	Direct client.Reader
	Kinds  []schema.GroupVersionKind
	// Changed is called when the result of Namespaces changes. Optional.
	Changed func()

	mu        sync.Mutex
	forbidden map[string]map[string]bool // forbidden resources by namespace; "" means the whole cluster
}

// forbiddenMessage returns a message that explains the missing access to a namespace.
func forbiddenMessage(namespace string) string {
	return fmt.Sprintf("the operator's account may not read all it needs in the namespace %s: its RoleBinding there is missing", namespace)
}

// Options makes the caches use r. It modifies o and keeps its other settings.
func (r *forbiddenTracker) Options(config *rest.Config, o *cache.Options) error {
	own := rest.CopyConfig(config)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return forbiddenTransport{r, next} })
	c, err := rest.HTTPClientFor(own)
	if err != nil {
		return fmt.Errorf("create a client for the caches: %w", err)
	}
	o.HTTPClient, o.NewInformer, o.DefaultWatchErrorHandler = c, r.newInformer, logReflectorError
	return nil
}

// Namespaces returns the namespaces with unreadable resources, sorted.
func (r *forbiddenTracker) Namespaces() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for namespace, of := range r.forbidden {
		if namespace != "" && len(of) > 0 {
			names = append(names, namespace)
		}
	}
	slices.Sort(names)
	return names
}

// probePause is the interval of the access test.
const probePause = 20 * time.Second

// NeedLeaderElection implements [manager.LeaderElectionRunnable]. Every replica has caches.
func (r *forbiddenTracker) NeedLeaderElection() bool { return false }

// Start tests access until ctx ends, so that changes are found early and not only with the next
// request of a cache.
func (r *forbiddenTracker) Start(ctx context.Context) error {
	tick := time.NewTicker(probePause)
	defer tick.Stop()
	for {
		for _, namespace := range r.Optional {
			for _, kind := range r.Kinds {
				r.probe(ctx, namespace, kind)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// probe lists a kind in a namespace. It requests the metadata of at most one object.
func (r *forbiddenTracker) probe(ctx context.Context, namespace string, kind schema.GroupVersionKind) {
	ctx, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := r.Direct.List(ctx, l, client.InNamespace(namespace), client.Limit(1))
	if refused := apierrors.IsForbidden(err); err == nil || refused {
		r.record(namespace, kind.Kind+" (probe)", refused)
	}
}

// record records an answer and logs each change once.
func (r *forbiddenTracker) record(namespace, what string, refused bool) {
	was, is := r.update(namespace, what, refused)
	if was != is && r.Changed != nil {
		r.Changed()
	}
	switch {
	case was && !is:
		r.Log.Info("this account may read again", "namespace", namespace)
	case was == is:
	case namespace == "":
		r.Log.Error("forbidden: this account may not read what it needs in the whole cluster; trying again", "first", what)
	case slices.Contains(r.Optional, namespace):
		r.Log.Warn(
			"forbidden: a namespace is skipped, because this account may not read there; trying again",
			"namespace",
			namespace,
			"first",
			what,
		)
	default:
		r.Log.Error(
			"forbidden: this account may not read in a namespace that it needs; trying again",
			"namespace",
			namespace,
			"first",
			what,
		)
	}
}

// update records an answer. It reports whether any resource of the namespace was forbidden before
// and after it.
func (r *forbiddenTracker) update(namespace, what string, refused bool) (was, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = len(r.forbidden[namespace]) > 0
	switch {
	case !refused:
		delete(r.forbidden[namespace], what)
	case was:
		r.forbidden[namespace][what] = true
	default:
		if r.forbidden == nil {
			r.forbidden = map[string]map[string]bool{}
		}
		r.forbidden[namespace] = map[string]bool{what: true}
	}
	return was, len(r.forbidden[namespace]) > 0
}

// A forbiddenError is a response with status 403 and its place.
type forbiddenError struct{ namespace, what string }

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("this account may not read %s in the namespace %q", e.what, e.namespace)
}

// forbiddenTransport converts status 403 into an error with the namespace, which the caches' own error
// does not contain.
type forbiddenTransport struct {
	of   *forbiddenTracker
	next http.RoundTripper
}

func (t forbiddenTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := t.next.RoundTrip(q)
	if err != nil || q.Method != http.MethodGet {
		return a, err
	}
	namespace, what := requestedResource(q)
	switch {
	case a.StatusCode == http.StatusForbidden:
		t.of.record(namespace, what, true)
		return nil, errors.Join(&forbiddenError{namespace, what}, a.Body.Close())
	case a.StatusCode < http.StatusMultipleChoices:
		t.of.record(namespace, what, false)
	}
	return a, nil
}

// requestedResource returns the namespace and resource of a list or watch request. Full objects and their
// metadata have separate caches, so they are recorded separately.
func requestedResource(q *http.Request) (namespace, what string) {
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

// newInformer creates an informer whose cache also counts as synced if access is forbidden in an
// optional namespace.
func (r *forbiddenTracker) newInformer(
	lw toolscache.ListerWatcher,
	kind runtime.Object,
	resync time.Duration,
	by toolscache.Indexers,
) toolscache.SharedIndexInformer {
	inner := toolscache.ToListerWatcherWithContext(lw)
	var informer toolscache.SharedIndexInformer
	informer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := inner.ListWithContext(ctx, o)
			if no, ok := errors.AsType[*forbiddenError](err); ok && slices.Contains(r.Optional, no.namespace) && !informer.HasSynced() {
				return &metav1.List{}, nil // only before the first sync; later failures keep the cached objects
			}
			return l, err
		},
		WatchFuncWithContext: inner.WatchWithContext,
	}, kind, resync, by)
	return informer
}

// logReflectorError logs errors of lists and watches except refusals, which were logged when they began.
func logReflectorError(ctx context.Context, r *toolscache.Reflector, err error) {
	if _, refused := errors.AsType[*forbiddenError](err); !refused {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}
