package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// secretWatches watch the Secrets of tailnets individually by name. The operator therefore needs
// no right to list Secrets or to read other Secrets.
type secretWatches struct {
	secrets  corev1client.SecretsGetter
	log      *slog.Logger
	changed  chan event.GenericEvent // sends a tailnet when its Secret changes
	lifetime context.Context
	running  sync.WaitGroup

	mu        sync.Mutex
	byTailnet map[string]secretWatch
}

type secretWatch struct {
	secret types.NamespacedName
	stop   context.CancelFunc
}

func newSecretWatches(life context.Context, secrets corev1client.SecretsGetter, log *slog.Logger) *secretWatches {
	return &secretWatches{secrets: secrets, log: log, changed: make(chan event.GenericEvent), lifetime: life, byTailnet: map[string]secretWatch{}}
}

// follow watches the given Secret for the tailnet and stops the previous watch for it. The zero
// name only stops it.
func (s *secretWatches) follow(tailnet string, secret types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.byTailnet[tailnet]
	if ok && old.secret == secret || s.lifetime.Err() != nil {
		return
	}
	if ok {
		old.stop()
		delete(s.byTailnet, tailnet)
	}
	if secret.Name == "" {
		return
	}
	ctx, stop := context.WithCancel(s.lifetime)
	s.byTailnet[tailnet] = secretWatch{secret, stop}
	s.running.Go(func() { s.watch(ctx, tailnet, secret) })
}

func (s *secretWatches) watch(ctx context.Context, tailnet string, secret types.NamespacedName) {
	const first, last = time.Second, 30 * time.Second
	pause, seen := first, ""
	for {
		// Without a resourceVersion the watch starts with the current Secret.
		w, err := s.secrets.Secrets(secret.Namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", secret.Name).String(), TimeoutSeconds: new(int64(600))})
		if err == nil {
			pause = first
			for e := range w.ResultChan() {
				switch o, _ := e.Object.(metav1.Object); {
				case o == nil || e.Type == watch.Bookmark:
				case e.Type == watch.Deleted:
					seen = ""
					s.notify(ctx, tailnet)
				case o.GetResourceVersion() != seen:
					seen = o.GetResourceVersion()
					s.notify(ctx, tailnet)
				}
			}
			w.Stop()
		} else if ctx.Err() == nil {
			s.log.Warn("watch the Secret of a tailnet", "tailnet", tailnet, "err", err)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, last)
		s.notify(ctx, tailnet) // the Secret may have been deleted between two watches
	}
}

func (s *secretWatches) notify(ctx context.Context, tailnet string) {
	e := event.GenericEvent{Object: &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: tailnet}}}
	select {
	case s.changed <- e:
	case <-ctx.Done():
	}
}
