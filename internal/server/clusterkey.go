package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A keyring holds the cluster's key as soon as it is loaded.
type keyring struct {
	key    atomic.Pointer[httpapi.Key]
	loaded chan struct{} // closed when key is set
}

func newKeyring() *keyring { return &keyring{loaded: make(chan struct{})} }

// wait blocks until the key is loaded or ctx ends.
func (k *keyring) wait(ctx context.Context) (httpapi.Key, error) {
	select {
	case <-k.loaded:
		return *k.key.Load(), nil
	case <-ctx.Done():
		return httpapi.Key{}, context.Cause(ctx)
	}
}

func (k *keyring) current() (httpapi.Key, bool) {
	if key := k.key.Load(); key != nil {
		return *key, true
	}
	return httpapi.Key{}, false
}

// check is the readiness check.
func (k *keyring) check(context.Context) error {
	if _, ok := k.current(); !ok {
		return errors.New("the cluster's key is not loaded; the server refuses requests for a proof")
	}
	return nil
}

// Pauses between two attempts to load the key.
const (
	firstKeyTry = 250 * time.Millisecond
	lastKeyTry  = 15 * time.Second
)

// load loads the key and retries until it succeeds or ctx ends.
func (k *keyring) load(ctx context.Context, secret *controller.ClusterKey, log *slog.Logger) {
	err := retryUntil(ctx, func(err error) { log.Error("loading the cluster's key failed; trying again", "err", err) }, func() error {
		key, err := secret.Load(ctx)
		if err == nil {
			k.key.Store(&key)
		}
		return err
	})
	if err == nil {
		close(k.loaded)
		log.Info("the cluster's key is loaded", "key", k.key.Load().Public().String())
	}
}

// retryUntil calls ask until it succeeds, with increasing pauses. It calls tell for each failure that differs from the one before. It returns
// an error only when ctx has ended.
func retryUntil(ctx context.Context, report func(error), call func() error) error {
	logged := ""
	for wait := firstKeyTry; ; wait = min(2*wait, lastKeyTry) {
		err := call()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			report(err)
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
	uid, err := kube.ClusterUID(ctx, config)
	if !errors.Is(err, kube.ErrForbidden) {
		return uid, err
	}
	_, digits, ok := strings.Cut(caHash, ":")
	if !ok {
		return "", errors.New("cluster.id is missing: this account may not read the namespace kube-system, and cluster.caData is system, so no id can be derived")
	}
	id := "ca-" + digits[:32]
	log.Info("cluster.id is not set and this account may not read the namespace kube-system; the id is derived from the CA certificates", "id", id)
	return id, nil
}
