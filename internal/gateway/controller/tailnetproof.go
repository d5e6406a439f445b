package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// proveCredential creates a key and deletes it immediately. It records each step before the next one, so
// that a process that continues after a crash can find the key.
func (l *tailnetReconciliation) proveCredential(ctx context.Context) error {
	nonce := make([]byte, 4)
	rand.Read(nonce) // never fails
	p := &l.facts.Proof
	*p = gateway.CredentialProof{
		Phase:      v1alpha1.ValidationInProgress,
		Credential: l.facts.Credential,
		Generation: l.facts.Generation,
		Nonce:      hex.EncodeToString(nonce),
		At:         l.Now(),
	}
	if err := l.writeProof(ctx, client.MergeFromWithOptimisticLock{}); err != nil {
		return err // nothing was created: the object has changed
	}
	key, err := l.client.CreateKey(
		ctx,
		tsapi.KeyRequest{Tags: l.object.Spec.Tags, Ephemeral: true, Life: gateway.ValidationKeyLifetime, Description: l.description()},
	)
	if err != nil {
		l.recordFailure(err)
		if f := l.facts.Failure; f.Class != tsapi.Unavailable {
			p.Phase, p.Nonce, p.At = v1alpha1.ValidationPending, "", l.Now() // these failures mean that no key was created
		}
		return nil
	}
	l.Log.Info("validation key created", "tailnet", l.object.Name, "key", key.ID)
	p.Phase, p.KeyID = v1alpha1.ValidationCleanupPending, key.ID
	written := l.writeProof(context.WithoutCancel(ctx))
	if l.deleteKey(ctx, key.ID) {
		p.Phase, p.At = v1alpha1.ValidationDone, l.Now()
	}
	return written
}

// description returns a description that identifies the key in a list. Tailscale allows 50
// letters, digits and hyphens.
func (l *tailnetReconciliation) description() string {
	return "tailplane-validate-" + fmt.Sprintf("%.8s", l.object.UID) + "-" + l.facts.Proof.Nonce
}

// deleteKey deletes a key. It does not stop with ctx, so that a canceled reconcile leaves no key
// behind.
func (l *tailnetReconciliation) deleteKey(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tailnetCleanupTimeout)
	defer cancel()
	if err := l.client.DeleteKey(ctx, id); err != nil {
		l.recordFailure(err)
		return false
	}
	l.Log.Info("validation key deleted", "tailnet", l.object.Name, "key", id)
	return true
}

// deleteLeftoverKey deletes the key that an earlier proof left behind. If a key existed and that proof was for
// the current credential and spec, the proof succeeded.
func (l *tailnetReconciliation) deleteLeftoverKey(ctx context.Context) error {
	p := &l.facts.Proof
	found := p.KeyID
	if p.Phase == v1alpha1.ValidationInProgress {
		var err error
		if found, err = l.findKey(ctx); err != nil {
			l.recordFailure(err)
			return nil
		}
	}
	if found != "" && !l.deleteKey(ctx, found) {
		return nil
	}
	if found != "" && p.Credential == l.facts.Credential && p.Generation == l.facts.Generation {
		p.Phase, p.KeyID, p.At = v1alpha1.ValidationDone, found, l.Now()
	} else {
		*p = gateway.CredentialProof{Phase: v1alpha1.ValidationPending}
	}
	return nil
}

// findKey returns the ID of the key with the proof's nonce, or "" if there is none.
func (l *tailnetReconciliation) findKey(ctx context.Context) (string, error) {
	ids, err := l.client.Keys(ctx)
	if err != nil {
		return "", err
	}
	for _, id := range ids {
		k, err := l.client.Key(ctx, id)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if k.Description == l.description() {
			return id, nil
		}
	}
	return "", nil
}
