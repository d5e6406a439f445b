// Package extensiontls maintains the certificates for mutual TLS between Envoy Gateway and the
// extension server. It follows law 9: the state of a rotation is in a Secret, so a new leader can
// continue it, and at no time does one side use a certificate that the other does not trust.
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

// Names of the Secrets. The server's Secret also contains the state of a rotation.
const (
	ServerSecret    = "tailplane-extension-server"
	AuthoritySecret = "tailplane-extension-ca"
	ClientSecret    = "tailplane-extension-client"
)

// Default times of a Keeper.
const (
	Life      = 90 * 24 * time.Hour
	publish   = 10 * time.Minute
	keep      = time.Hour
	look      = time.Minute // interval for detecting external changes of a Secret
	retryWait = 5 * time.Second
)

// A Keeper maintains the certificates. Fields are required unless documented otherwise.
type Keeper struct {
	Namespace string
	Names     []string // DNS names of the extension server for Envoy Gateway
	Client    string   // DNS name in Envoy Gateway's certificate
	Log       *slog.Logger
	Now       func() time.Time

	// Life, Publish and Keep are the times of a rotation. Look is the interval for checking the
	// Secrets. All are optional.
	Life, Publish, Keep, Look time.Duration

	client client.Client
}

// Add registers the Keeper to run on the manager's leader. The manager's client must read Secrets
// from the API server, not from a cache.
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

// once distributes the current stage from the server's Secret to both sides and then advances one
// step.
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
		return k.Now(), nil // distribute the new stage first
	}
	return wake, nil
}

// put creates or updates a Secret.
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

// write creates a Secret, or updates exactly the version that was read.
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
