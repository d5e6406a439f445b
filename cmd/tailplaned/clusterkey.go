package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/signin/signinkube"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A keyring holds the cluster's key as soon as it is loaded.
type keyring struct {
	key    atomic.Pointer[door.Key]
	filled chan struct{} // closed when key is set
}

func newKeyring() *keyring { return &keyring{filled: make(chan struct{})} }

// wait blocks until the key is loaded or ctx ends.
func (k *keyring) wait(ctx context.Context) (door.Key, error) {
	select {
	case <-k.filled:
		return *k.key.Load(), nil
	case <-ctx.Done():
		return door.Key{}, context.Cause(ctx)
	}
}

func (k *keyring) get() (door.Key, bool) {
	if key := k.key.Load(); key != nil {
		return *key, true
	}
	return door.Key{}, false
}

// check is the readiness check.
func (k *keyring) check(context.Context) error {
	if _, ok := k.get(); !ok {
		return errors.New("the cluster's key is not at hand; whoever asks for a proof is turned away")
	}
	return nil
}

// Pauses between two attempts to load the key.
const (
	firstKeyTry = 250 * time.Millisecond
	lastKeyTry  = 15 * time.Second
)

// fill loads the key and retries until it succeeds or ctx ends.
func (k *keyring) fill(ctx context.Context, secret *signinkube.ClusterKey, log *slog.Logger) {
	err := insist(ctx, func(err error) { log.Error("the cluster's key cannot be had; trying again", "err", err) }, func() error {
		key, err := secret.Load(ctx)
		if err == nil {
			k.key.Store(&key)
		}
		return err
	})
	if err == nil {
		close(k.filled)
		log.Info("the cluster's key is at hand", "key", k.key.Load().Public().String())
	}
}

// insist calls ask until it succeeds, with increasing pauses. It calls tell for each failure that differs from the one before. It returns
// an error only when ctx has ended.
func insist(ctx context.Context, tell func(error), ask func() error) error {
	said := ""
	for wait := firstKeyTry; ; wait = min(2*wait, lastKeyTry) {
		err := ask()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			tell(err)
		}
		if retry.Sleep(ctx, wait) != nil {
			return context.Cause(ctx)
		}
	}
}

// clusterID returns the stable identity of the cluster, independent of its name. It is the setting, else the UID of kube-system. If this
// account may not read kube-system, it is derived from the certificate authority.
func clusterID(ctx context.Context, config *rest.Config, set, caHash string, log *slog.Logger) (string, error) {
	if set != "" {
		return set, nil
	}
	uid, err := signinkube.ClusterUID(ctx, config)
	if !errors.Is(err, signinkube.ErrForbidden) {
		return uid, err
	}
	_, digits, _ := strings.Cut(caHash, ":")
	id := "ca-" + digits[:32]
	log.Info("cluster.id is not set and the namespace kube-system may not be read; the id is derived from the certificate authority", "id", id)
	return id, nil
}
