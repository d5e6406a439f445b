// Package extensiontls keeps the certificates by which Envoy Gateway and the
// extension server know each other. It keeps law 9: where a rotation stands is in a
// Secret, so another leader goes on with it, and at no moment one side has what the
// other does not trust.
package extensiontls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Names of the Secrets. The server's also says where a rotation stands.
const (
	ServerSecret    = "tailplane-extension-server"
	AuthoritySecret = "tailplane-extension-ca"
	ClientSecret    = "tailplane-extension-client"
)

// Times of a Keeper.
const (
	Life      = 90 * 24 * time.Hour
	publish   = 10 * time.Minute
	keep      = time.Hour
	look      = time.Minute // until somebody else's hand on a Secret is seen
	retryWait = 5 * time.Second
)

// A Keeper keeps the certificates. Fields without a remark are required.
type Keeper struct {
	Namespace string
	Names     []string // DNS names by which Envoy Gateway asks
	Client    string   // the DNS name that its own certificate carries
	Log       *slog.Logger
	Now       func() time.Time

	// Life, Publish and Keep, optional, are the times of a rotation; Look how often
	// the Secrets are looked at.
	Life, Publish, Keep, Look time.Duration

	client client.Client
}

// Add has the manager's leader keep them. Its client must read Secrets from the API
// server.
func (k *Keeper) Add(mgr manager.Manager) error {
	if k.Namespace == "" || len(k.Names) == 0 || k.Client == "" || k.Log == nil || k.Now == nil {
		return errors.New("the keeper of the extension server's certificates lacks a setting: namespace, names, client, log and clock are required")
	}
	for _, d := range []struct {
		of *time.Duration
		is time.Duration
	}{{&k.Life, Life}, {&k.Publish, publish}, {&k.Keep, keep}, {&k.Look, look}} {
		if *d.of == 0 {
			*d.of = d.is
		}
	}
	k.client = mgr.GetClient()
	return mgr.Add(manager.RunnableFunc(k.run))
}

func (k *Keeper) run(ctx context.Context) error {
	said := ""
	for {
		wake, err := k.once(ctx)
		wait := min(max(wake.Sub(k.Now()), time.Millisecond), k.Look)
		says := ""
		if err != nil {
			wait = min(retryWait, k.Look)
			if says = err.Error(); says != said && !kube.Stale(err) && ctx.Err() == nil {
				k.Log.Error("the extension server's certificates cannot be kept", "err", err)
			}
		}
		said = says
		if retry.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// once tells both sides what the server's Secret says, then goes one step on.
func (k *Keeper) once(ctx context.Context) (wake time.Time, err error) {
	var own corev1.Secret
	err = k.client.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: ServerSecret}, &own)
	if err != nil && !apierrors.IsNotFound(err) {
		return wake, fmt.Errorf("read the Secret %s: %w", ServerSecret, err)
	}
	was, err := readStage(own.Data)
	if err != nil {
		return wake, fmt.Errorf("the Secret %s: %w", ServerSecret, err)
	}
	if _, _, err := was.serving.validity(); err == nil {
		if err := errors.Join(
			k.put(ctx, AuthoritySecret, corev1.SecretTypeOpaque, map[string][]byte{"tls.crt": was.bundle()}),
			k.put(ctx, ClientSecret, corev1.SecretTypeTLS, map[string][]byte{"tls.crt": was.serving.client, "tls.key": was.serving.clientKey}),
		); err != nil {
			return wake, err
		}
	}
	next, wake, err := was.step(k.Now(), waits{k.Life, k.Publish, k.Keep}, func(now time.Time) (set, error) { return issue(k.Names, k.Client, now, k.Life) })
	if err != nil {
		return wake, err
	}
	if data := next.data(); !same(data, own.Data) {
		own.Data, own.Type = data, corev1.SecretTypeTLS
		if err := k.write(ctx, &own, ServerSecret); err != nil {
			return wake, err
		}
		k.Log.Info("a step of the extension server's certificates", "next", next.next.server != nil, "published", !next.published.IsZero(), "previous", next.previous != nil)
		return k.Now(), nil // what is new is told first
	}
	return wake, nil
}

// put keeps a Secret as it should be.
func (k *Keeper) put(ctx context.Context, name string, kind corev1.SecretType, data map[string][]byte) error {
	var s corev1.Secret
	err := k.client.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: name}, &s)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the Secret %s: %w", name, err)
	case same(data, s.Data):
		return nil
	}
	s.Data, s.Type = data, kind
	return k.write(ctx, &s, name)
}

// write makes a Secret, or changes exactly the one that was read.
func (k *Keeper) write(ctx context.Context, s *corev1.Secret, name string) error {
	var err error
	if s.ResourceVersion == "" {
		s.ObjectMeta = metav1.ObjectMeta{Namespace: k.Namespace, Name: name, Labels: map[string]string{v1alpha1.ManagedLabel: "true"}}
		err = k.client.Create(ctx, s)
	} else {
		err = k.client.Update(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("write the Secret %s: %w", name, err)
	}
	return nil
}

func same(a, b map[string][]byte) bool {
	return maps.EqualFunc(a, b, slices.Equal)
}
