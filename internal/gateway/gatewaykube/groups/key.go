package groups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/upkeep"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	keyField = "authkey"

	// retiredField contained the configuration and key of the former runtime Containerboot.
	retiredField = "cap-106.hujson"

	// noKey is the value of the ID annotation after a begun key turned out not to exist. It keeps
	// the pause before the next key.
	noKey = "none"

	atOnce   = 4                // concurrent API requests for one group
	tidyTime = 10 * time.Second // for a deletion, even if the context of the reconcile has ended

	refusedAgain = 5 * time.Minute // before a refused request is repeated if nothing changes
)

// A mint is a key that was created in this reconcile.
type mint struct {
	ordinal int
	id      string
	again   bool // the relay requested a new key
}

// keyOf reads the key state from a config Secret. An expiry without an ID means that a creation
// began: a key may exist that was not recorded.
func keyOf(s *corev1.Secret) upkeep.Key {
	k := upkeep.Key{ID: s.Annotations[v1alpha1.AuthKeyIDAnnotation], AtHand: len(s.Data[keyField]) > 0}
	until, err := time.Parse(time.RFC3339, s.Annotations[v1alpha1.AuthKeyExpiresAnnotation])
	if err == nil {
		k.Until = until
	}
	k.Begun = k.ID == "" && err == nil && !k.AtHand
	if k.ID == noKey {
		k.ID = ""
	}
	return k
}

// writeKey writes the key state to the config Secret of an ordinal, with optimistic locking.
func (l *look) writeKey(ctx context.Context, ordinal int, k upkeep.Key, secret string) error {
	l.mu.Lock()
	s := l.config[ordinal]
	l.mu.Unlock()
	if s == nil && secret == "" && l.group.DeletionTimestamp != nil {
		return nil // the Secret must not be created again
	}
	if s == nil {
		return fmt.Errorf("the config Secret of %d is gone", ordinal)
	}
	want := s.DeepCopy()
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	delete(want.Annotations, v1alpha1.AuthKeyIDAnnotation)
	delete(want.Annotations, v1alpha1.AuthKeyExpiresAnnotation)
	if !k.Until.IsZero() {
		want.Annotations[v1alpha1.AuthKeyExpiresAnnotation] = k.Until.UTC().Format(time.RFC3339)
		if !k.Begun {
			want.Annotations[v1alpha1.AuthKeyIDAnnotation] = noKey
		}
	}
	if k.ID != "" {
		want.Annotations[v1alpha1.AuthKeyIDAnnotation] = k.ID
	}
	if want.Data == nil {
		want.Data = map[string][]byte{}
	}
	delete(want.Data, keyField)
	delete(want.Data, retiredField)
	if secret != "" {
		want.Data[keyField] = []byte(secret)
	}
	if err := l.direct.Patch(ctx, want, client.MergeFromWithOptions(s, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the key of %s: %w", s.Name, err)
	}
	l.mu.Lock()
	l.config[ordinal] = want
	l.mu.Unlock()
	return nil
}

// hostname returns the hostname that the device of an ordinal requests.
func (l *look) hostname(ordinal int) string { return fmt.Sprintf("%s-%d", l.hostnamePrefix(), ordinal) }

func (l *look) hostnamePrefix() string {
	if p := l.group.Spec.HostnamePrefix; p != "" {
		return p
	}
	return l.group.Name
}

func (l *look) controlURL() string {
	if l.tailnet == nil {
		return ""
	}
	return l.tailnet.Spec.ControlURL
}

// tags returns the tags of the group's devices.
func (l *look) tags() []string {
	if len(l.group.Spec.Tags) > 0 || l.tailnet == nil {
		return l.group.Spec.Tags
	}
	return l.tailnet.Spec.Tags
}

// description returns the description by which a key can be found again. Tailscale allows 50
// letters, digits, hyphens and spaces.
func (l *look) description(ordinal int) string {
	return l.descriptions() + strconv.Itoa(ordinal)
}

// descriptions returns the common prefix of the descriptions of all ordinals.
func (l *look) descriptions() string { return fmt.Sprintf("tailplane-relay-%.8s-", l.group.UID) }

// each calls do for every element, some of them concurrently, and returns the Kubernetes errors.
// An API error affects only its element and is recorded.
func each[T any](l *look, of []T, do func(T) error) error {
	errs := make([]error, len(of))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, one := range of {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = do(one)
		})
	}
	wg.Wait()
	return errors.Join(slices.DeleteFunc(errs, l.noted)...)
}

// noted records an error if it comes from Tailscale's API.
func (l *look) noted(err error) bool {
	failure, ok := errors.AsType[*tsapi.Error](err)
	if !ok {
		return false
	}
	l.failure = failure
	wait := refusedAgain
	switch failure.Class {
	case tsapi.RateLimited, tsapi.Unavailable, tsapi.CircuitOpen:
		wait = max(failure.RetryAfter, 100*time.Millisecond)
	case tsapi.Dropped:
		wait = 100 * time.Millisecond // a newer client exists
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after[l.group.UID] = pause{until: l.Now().Add(wait), generation: l.group.Generation, version: l.version}
	return true
}

// paused returns the time until which the API must not be called for this group.
func (l *look) paused() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.after[l.group.UID]
	if !ok || p.generation != l.group.Generation || p.version != l.version {
		return time.Time{}
	}
	return p.until
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.after, uid)
}

func (c *Controller) counted(op string) {
	if c.Keys != nil {
		c.Keys(op)
	}
}

// mint creates a key for each ordinal. It records the beginning before it calls the API. If it
// cannot record the key, it deletes the key immediately.
func (l *look) mint(ctx context.Context, ordinals []int) error {
	return each(l, ordinals, func(i int) error {
		r := l.facts.Ordinals[i]
		if r.Key.AtHand && r.Key.ID != "" { // this key did not let the relay in
			if err := l.deleteKey(ctx, r.Key.ID); err != nil {
				return err
			}
		}
		if r.Gone {
			if err := l.clearDevice(ctx, i); err != nil {
				return err
			}
		}
		begun := upkeep.Key{Begun: true, Until: l.Now().Add(upkeep.KeyLife)}
		if err := l.writeKey(ctx, i, begun, ""); err != nil {
			return err
		}
		key, err := l.api.CreateKey(ctx, tsapi.KeyRequest{Tags: l.tags(), Life: upkeep.KeyLife, Description: l.description(i)})
		if err != nil {
			if failure, ok := errors.AsType[*tsapi.Error](err); ok && failure.Class != tsapi.Unavailable { // no key was created
				return errors.Join(err, l.writeKey(context.WithoutCancel(ctx), i, upkeep.Key{}, ""))
			}
			return err
		}
		if err := l.writeKey(ctx, i, upkeep.Key{ID: key.ID, Until: begun.Until}, key.Secret.Reveal()); err != nil {
			return errors.Join(err, l.deleteKey(ctx, key.ID))
		}
		op := "minted"
		if r.Reissue != "" {
			op = "reissued"
		}
		l.counted(op)
		l.Log.Info("auth key made", "group", l.group.Namespace+"/"+l.group.Name, "ordinal", i, "key", key.ID)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.minted = append(l.minted, mint{i, key.ID, r.Reissue != ""})
		return nil
	})
}

// deleteKey deletes a key. It does not stop with ctx, so that a canceled reconcile leaves no key
// behind.
func (l *look) deleteKey(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	if err := l.api.DeleteKey(ctx, id); err != nil {
		return err
	}
	l.counted("deleted")
	l.Log.Info("auth key deleted", "group", l.group.Namespace+"/"+l.group.Name, "key", id)
	return nil
}

// tidy deletes keys whose creation began but was not recorded. For a group that is being deleted,
// it deletes all keys. The pause before the next key stays only if a key existed.
func (l *look) tidy(ctx context.Context, ordinals []int) error {
	ids, err := l.api.Keys(ctx)
	if l.noted(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, i := range ordinals {
		found[l.description(i)] = false
	}
	err = each(l, ids, func(id string) error {
		k, err := l.api.Key(ctx, id)
		if isGone(err) {
			return nil
		}
		l.mu.Lock()
		_, mine := found[k.Description]
		l.mu.Unlock()
		mine = mine || l.group.DeletionTimestamp != nil && strings.HasPrefix(k.Description, l.descriptions())
		if err != nil || !mine {
			return err
		}
		if err := l.deleteKey(ctx, id); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		found[k.Description] = true
		return nil
	})
	if err != nil || l.failure != nil {
		return err
	}
	for _, i := range ordinals {
		k := upkeep.Key{}
		if found[l.description(i)] {
			k.Until = l.facts.Ordinals[i].Key.Until
		}
		if err := l.writeKey(ctx, i, k, ""); err != nil {
			return err
		}
	}
	l.tidied = true
	return nil
}

// isGone reports whether the API answered that the object does not exist.
func isGone(err error) bool {
	failure, ok := errors.AsType[*tsapi.Error](err)
	return ok && failure.Class == tsapi.NotFound && !failure.AtToken
}

// dropKeys deletes keys that are no longer needed.
func (l *look) dropKeys(ctx context.Context, ordinals []int) error {
	return each(l, ordinals, func(i int) error {
		k := l.facts.Ordinals[i].Key
		if err := l.deleteKey(ctx, k.ID); err != nil {
			return err
		}
		return l.writeKey(ctx, i, upkeep.Key{ID: k.ID, Until: k.Until}, "")
	})
}
