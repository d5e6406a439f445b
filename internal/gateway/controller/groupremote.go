package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (

	// retiredField contained the configuration and key of the former runtime Containerboot.
	retiredField = "cap-106.hujson"

	// noKey is the value of the ID annotation after a begun key turned out not to exist. It keeps
	// the pause before the next key.
	noKey = "none"

	concurrentRequests = 4                // concurrent API requests for one group
	keyCleanupTimeout  = 10 * time.Second // for a deletion, even if the context of the reconcile has ended

	refusedPause = 5 * time.Minute // before a refused request is repeated if nothing changes
)

// An issuedKey is a key that was created in this reconcile.
type issuedKey struct {
	ordinal  int
	id       string
	reissued bool // the relay requested a new key
}

// authKeyOf reads the key state from a config Secret. An expiry without an ID means that a creation
// began: a key may exist that was not recorded.
func authKeyOf(s *corev1.Secret) gateway.AuthKeyState {
	k := gateway.AuthKeyState{ID: s.Annotations[v1alpha1.AuthKeyIDAnnotation], Stored: len(s.Data[config.AuthKeyField]) > 0}
	until, err := time.Parse(time.RFC3339, s.Annotations[v1alpha1.AuthKeyExpiresAnnotation])
	if err == nil {
		k.Until = until
	}
	k.Pending = k.ID == "" && err == nil && !k.Stored
	if k.ID == noKey {
		k.ID = ""
	}
	return k
}

// writeKey writes the key state to the config Secret of an ordinal, with optimistic locking.
func (l *groupReconciliation) writeKey(ctx context.Context, ordinal int, k gateway.AuthKeyState, secret string) error {
	l.mu.Lock()
	s := l.config[ordinal]
	l.mu.Unlock()
	if s == nil && secret == "" && l.group.DeletionTimestamp != nil {
		return nil // the Secret must not be created again
	}
	if s == nil {
		return fmt.Errorf("the config Secret of relay %d does not exist any more", ordinal)
	}
	want := s.DeepCopy()
	delete(want.Annotations, v1alpha1.AuthKeyIDAnnotation)
	delete(want.Annotations, v1alpha1.AuthKeyExpiresAnnotation)
	id := k.ID
	if !k.Until.IsZero() {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, v1alpha1.AuthKeyExpiresAnnotation, k.Until.UTC().Format(time.RFC3339))
		if !k.Pending {
			id = cmp.Or(id, noKey)
		}
	}
	if id != "" {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, v1alpha1.AuthKeyIDAnnotation, id)
	}
	if want.Data == nil {
		want.Data = map[string][]byte{}
	}
	delete(want.Data, config.AuthKeyField)
	delete(want.Data, retiredField)
	if secret != "" {
		want.Data[config.AuthKeyField] = []byte(secret)
	}
	if err := l.direct.Patch(ctx, want, lockedPatch(s)); err != nil {
		return fmt.Errorf("write the key of %s: %w", s.Name, err)
	}
	l.mu.Lock()
	l.config[ordinal] = want
	l.mu.Unlock()
	return nil
}

// hostname returns the hostname that the device of an ordinal requests.
func (l *groupReconciliation) hostname(ordinal int) string {
	return fmt.Sprintf("%s-%d", l.hostnamePrefix(), ordinal)
}

func (l *groupReconciliation) hostnamePrefix() string {
	return cmp.Or(l.group.Spec.HostnamePrefix, l.group.Name)
}

// tags returns the tags of the group's devices.
func (l *groupReconciliation) tags() []string {
	if len(l.group.Spec.Tags) > 0 || l.tailnet == nil {
		return l.group.Spec.Tags
	}
	return l.tailnet.Spec.Tags
}

// description returns a description that identifies a key in a list. Tailscale allows 50
// letters, digits, hyphens and spaces.
func (l *groupReconciliation) description(ordinal int) string {
	return l.descriptions() + strconv.Itoa(ordinal)
}

// descriptions returns the common prefix of the descriptions of all ordinals.
func (l *groupReconciliation) descriptions() string {
	return fmt.Sprintf("tailplane-relay-%.8s-", l.group.UID)
}

// forEach calls do for every element, some of them concurrently, and returns the Kubernetes errors.
// An API error affects only its element and is recorded.
func forEach[T any](l *groupReconciliation, of []T, do func(T) error) error {
	errs := make([]error, len(of))
	slots := make(chan struct{}, concurrentRequests)
	var wg sync.WaitGroup
	for i, one := range of {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = do(one)
		})
	}
	wg.Wait()
	return errors.Join(slices.DeleteFunc(errs, l.recordFailure)...)
}

// recordFailure records an error if it comes from Tailscale's API.
func (l *groupReconciliation) recordFailure(err error) bool {
	failure, ok := errors.AsType[*tsapi.Error](err)
	if !ok {
		return false
	}
	l.failure = failure
	wait := refusedPause
	switch failure.Class {
	case tsapi.RateLimited, tsapi.Unavailable, tsapi.CircuitOpen:
		wait = max(failure.RetryAfter, 100*time.Millisecond)
	case tsapi.Dropped:
		wait = 100 * time.Millisecond // a newer client exists
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pauses[l.group.UID] = apiPause{until: l.Now().Add(wait), generation: l.group.Generation, version: l.version}
	return true
}

// pausedUntil returns the time until which the API must not be called for this group.
func (l *groupReconciliation) pausedUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pauses[l.group.UID]
	if !ok || p.generation != l.group.Generation || p.version != l.version {
		return time.Time{}
	}
	return p.until
}

func (c *groupReconciler) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pauses, uid)
}

func (c *groupReconciler) countKey(op string) {
	if c.OnKey != nil {
		c.OnKey(op)
	}
}

// issueKeys creates a key for each ordinal. It records the beginning before it calls the API. If it
// cannot record the key, it deletes the key immediately.
func (l *groupReconciliation) issueKeys(ctx context.Context, ordinals []int) error {
	return forEach(l, ordinals, func(i int) error {
		r := l.facts.Ordinals[i]
		if r.Key.Stored && r.Key.ID != "" { // this key did not let the relay in
			if err := l.deleteKey(ctx, r.Key.ID); err != nil {
				return err
			}
		}
		if r.DeviceGone {
			if err := l.clearDevice(ctx, i); err != nil {
				return err
			}
		}
		begun := gateway.AuthKeyState{Pending: true, Until: l.Now().Add(gateway.AuthKeyLifetime)}
		if err := l.writeKey(ctx, i, begun, ""); err != nil {
			return err
		}
		key, err := l.api.CreateKey(ctx, tsapi.KeyRequest{Tags: l.tags(), Life: gateway.AuthKeyLifetime, Description: l.description(i)})
		if err != nil {
			if failure, ok := errors.AsType[*tsapi.Error](err); ok && failure.Class != tsapi.Unavailable { // no key was created
				return errors.Join(err, l.writeKey(context.WithoutCancel(ctx), i, gateway.AuthKeyState{}, ""))
			}
			return err
		}
		if err := l.writeKey(ctx, i, gateway.AuthKeyState{ID: key.ID, Until: begun.Until}, key.Secret.Reveal()); err != nil {
			return errors.Join(err, l.deleteKey(ctx, key.ID))
		}
		op := "minted"
		if r.Reissue != "" {
			op = "reissued"
		}
		l.countKey(op)
		l.Log.Info("auth key created", "group", l.group.Namespace+"/"+l.group.Name, "ordinal", i, "key", key.ID)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.issuedKeys = append(l.issuedKeys, issuedKey{i, key.ID, r.Reissue != ""})
		return nil
	})
}

// deleteKey deletes a key. It does not stop with ctx, so that a canceled reconcile leaves no key
// behind.
func (l *groupReconciliation) deleteKey(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyCleanupTimeout)
	defer cancel()
	if err := l.api.DeleteKey(ctx, id); err != nil {
		return err
	}
	l.countKey("deleted")
	l.Log.Info("auth key deleted", "group", l.group.Namespace+"/"+l.group.Name, "key", id)
	return nil
}

// deletePendingKeys deletes keys whose creation began but was not recorded. For a group that is being deleted,
// it deletes all keys. The pause before the next key stays only if a key existed.
func (l *groupReconciliation) deletePendingKeys(ctx context.Context, ordinals []int) error {
	ids, err := l.api.Keys(ctx)
	if l.recordFailure(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, i := range ordinals {
		found[l.description(i)] = false
	}
	err = forEach(l, ids, func(id string) error {
		k, err := l.api.Key(ctx, id)
		if isNotFound(err) {
			return nil
		}
		l.mu.Lock()
		_, pending := found[k.Description]
		l.mu.Unlock()
		pending = pending || l.group.DeletionTimestamp != nil && strings.HasPrefix(k.Description, l.descriptions())
		if err != nil || !pending {
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
		k := gateway.AuthKeyState{}
		if found[l.description(i)] {
			k.Until = l.facts.Ordinals[i].Key.Until
		}
		if err := l.writeKey(ctx, i, k, ""); err != nil {
			return err
		}
	}
	l.keysDeleted = true
	return nil
}

// isNotFound reports whether the API answered that the object does not exist.
func isNotFound(err error) bool {
	failure, ok := errors.AsType[*tsapi.Error](err)
	return ok && failure.Class == tsapi.NotFound && !failure.AtToken
}

// deleteKeys deletes keys that are no longer needed.
func (l *groupReconciliation) deleteKeys(ctx context.Context, ordinals []int) error {
	return forEach(l, ordinals, func(i int) error {
		k := l.facts.Ordinals[i].Key
		if err := l.deleteKey(ctx, k.ID); err != nil {
			return err
		}
		return l.writeKey(ctx, i, gateway.AuthKeyState{ID: k.ID, Until: k.Until}, "")
	})
}

// clearDevice removes a deleted device from the state Secret. The other fields stay, and the relay
// logs in with its existing machine key.
func (l *groupReconciliation) clearDevice(ctx context.Context, ordinal int) error {
	s := l.state[ordinal]
	want := s.DeepCopy()
	for _, field := range []string{config.DeviceID, config.DeviceFQDN, config.DeviceIPs} {
		delete(want.Data, field)
	}
	return wrapError(l.direct.Patch(ctx, want, lockedPatch(s)), "clear the device of %s", s.Name)
}

// checkDevices queries the API for devices that relays report as lost.
func (l *groupReconciliation) checkDevices(ctx context.Context, ordinals []int) error {
	return forEach(l, ordinals, func(i int) error {
		id := l.facts.Ordinals[i].Node
		_, err := l.api.Device(ctx, id)
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.existing[id] = true
		case isNotFound(err):
			l.gone[id] = true
		default:
			return err
		}
		return nil
	})
}

// deleteDevices deletes devices in the status. It checks each device first, because relays wrote
// their IDs and must not be able to name other devices.
func (l *groupReconciliation) deleteDevices(ctx context.Context, devices []gateway.RecordedDevice) error {
	return forEach(l, devices, func(d gateway.RecordedDevice) error {
		device, err := l.api.Device(ctx, d.Node)
		switch {
		case isNotFound(err):
		case err != nil:
			return err
		case !l.ownsDevice(d, device):
			l.Log.Warn(
				"not deleting a device that does not belong to the group",
				"group",
				l.group.Namespace+"/"+l.group.Name,
				"device",
				d.Node,
			)
		default:
			if err := l.api.DeleteDevice(ctx, d.Node); err != nil {
				return err
			}
			l.Log.Info("device deleted", "group", l.group.Namespace+"/"+l.group.Name, "device", d.Node)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.deletedDevices[d.Node] = true
		l.deleted = append(l.deleted, d.Node)
		return nil
	})
}

// ownsDevice reports whether a device can belong to the group: it has the requested hostname and is not
// older than the group.
func (l *groupReconciliation) ownsDevice(d gateway.RecordedDevice, device tsapi.Device) bool {
	hostname := l.hostname(d.Ordinal)
	for _, previous := range l.group.Status.Devices {
		if previous.NodeID == d.Node && previous.Hostname != "" {
			hostname = previous.Hostname
		}
	}
	const skew = 5 * time.Minute // tolerance between the local clock and Tailscale's
	return !device.External && strings.EqualFold(device.Hostname, hostname) &&
		(device.Created.IsZero() || !device.Created.Before(l.group.CreationTimestamp.Add(-skew)))
}
