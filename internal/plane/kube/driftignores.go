package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientretry "k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// ignoresConfigMap stores which drift is ignored, in the plane's namespace, under ignoredKey.
const (
	ignoresConfigMap = "tailplane-ignored-drift"
	ignoredKey       = "ignored.json"
)

// maxIgnores is the maximum number of ignored drifts. They share one ConfigMap, which holds at most 1 MiB.
const maxIgnores = 300

// DriftIgnores stores which drift is ignored, and marks it in the plane's store. It needs get, update, list and watch on the one ConfigMap, and
// create if it does not exist.
type DriftIgnores struct {
	client    client.Client
	namespace string
	store     *plane.Store
	now       func() time.Time

	mu      sync.Mutex
	entries []ignoreEntry // as last read
	problem string        // why it could not be read, a sentence
	wake    time.Time     // when the next entry expires; zero: never
}

// ignoreEntry is one stored entry. For a difference between repository and cluster it covers only the value in Have. A new value is shown
// again.
type ignoreEntry struct {
	fleet.FindingIgnore
	Have *string `json:"have,omitempty"`
}

// DriftIgnores returns the store of ignored drift in a namespace, which marks ignored drift in the plane's store.
func (c *Connection) DriftIgnores(namespace string, store *plane.Store) *DriftIgnores {
	return &DriftIgnores{client: c.client, namespace: namespace, store: store, now: c.now}
}

// Set stores that a drift is ignored, or no longer ignored. It also removes expired entries.
func (s *DriftIgnores) Set(ctx context.Context, p access.Permit, o plane.Drift, i plane.DriftIgnore, dryRun bool) error {
	now := s.now().UTC()
	if err := p.Require(access.ConfigPropose, now); err != nil {
		return err
	}
	if p.Org() != o.OrgName || !p.CanSee(o.OrgName) {
		return problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("a permit of %q was used for drift of %q", p.Org(), o.OrgName))
	}
	is := ignoreEntry{FindingIgnore: fleet.FindingIgnore{ID: o.ID}}
	if !i.Until.IsZero() {
		var err error
		if is.FindingIgnore, err = fleet.NewFindingIgnore(o.ID, fleet.Severity(o.Severity), i.By, i.Reason, i.Until.UTC(), now); err != nil {
			return problem.New(problem.Validation, "The drift cannot be ignored: "+err.Error()+".", "Check the reason and the time.")
		}
		if o.Kind == plane.DriftGit {
			is.Have = o.Have
		}
	}
	another := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) } // a concurrent write
	err := clientretry.OnError(wait.Backoff{Steps: 4}, another, func() error { return s.write(ctx, is, now, dryRun) })
	switch _, own := errors.AsType[*problem.Error](err); {
	case err == nil, own:
		return err
	case apierrors.IsForbidden(err):
		return problem.New(problem.Unavailable, "This server's account may not store ignored drift.", "Allow it to update the ConfigMap "+ignoresConfigMap+".").WithRetryAfter(time.Minute).WithCause(err)
	}
	return problem.New(problem.Unavailable, "The API server did not confirm the write.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(err)
}

// write replaces the entry of a drift in the ConfigMap.
func (s *DriftIgnores) write(ctx context.Context, is ignoreEntry, now time.Time, dryRun bool) error {
	m := &corev1.ConfigMap{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: ignoresConfigMap}, m)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the ignored drift: %w", err)
	}
	all, err := parseIgnores(m)
	if err != nil {
		return problem.New(problem.Unavailable, "The stored list of ignored drift cannot be read.", "Correct or empty the ConfigMap "+ignoresConfigMap+".").WithRetryAfter(time.Minute).WithCause(err)
	}
	all = slices.DeleteFunc(all, func(k ignoreEntry) bool { return k.ID == is.ID || !now.Before(k.Until) })
	if !is.Until.IsZero() {
		if len(all) >= maxIgnores {
			return problem.New(problem.Conflict, fmt.Sprintf("%d drifts are ignored already, which is the maximum.", maxIgnores), "Resolve some of them, or stop ignoring them.")
		}
		all = append(all, is)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	m.Data = map[string]string{ignoredKey: string(text)}
	save := dryRunClient(s.client, dryRun)
	if m.ResourceVersion == "" { // it does not exist
		m.ObjectMeta = metav1.ObjectMeta{Namespace: s.namespace, Name: ignoresConfigMap}
		err = save.Create(ctx, m)
	} else {
		err = save.Update(ctx, m)
	}
	if err == nil && !dryRun {
		s.set(m)
	}
	return err
}

// parseIgnores returns the entries of a ConfigMap.
func parseIgnores(m *corev1.ConfigMap) (all []ignoreEntry, err error) {
	text := m.Data[ignoredKey]
	if text == "" {
		return nil, nil
	}
	return all, json.Unmarshal([]byte(text), &all)
}

// set, remove and replace implement [objectSink].
func (s *DriftIgnores) set(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return
	}
	s.problem = ""
	all, err := parseIgnores(m)
	if err != nil { // nothing is ignored then
		all, s.problem = nil, fmt.Sprintf("The ConfigMap %s cannot be read, so all drift is reported.", ignoresConfigMap)
	}
	s.entries = all
	s.apply()
}

func (s *DriftIgnores) remove(client.Object) { s.replace(nil) }

func (s *DriftIgnores) replace(all []client.Object) {
	if len(all) > 0 {
		s.set(all[0])
		return
	}
	s.set(&corev1.ConfigMap{})
}

// stale returns why the ignored drift is unknown, or "".
func (s *DriftIgnores) stale(time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// tick updates the plane's store when an entry has expired.
func (s *DriftIgnores) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wake.IsZero() && !s.now().Before(s.wake) {
		s.apply()
	}
}

// apply marks the ignored drift in the plane's store. Callers must hold mu.
func (s *DriftIgnores) apply() {
	now := s.now().UTC()
	by := map[string]ignoreEntry{}
	s.wake = time.Time{}
	for _, i := range s.entries {
		if now.Before(i.Until) {
			by[i.ID], s.wake = i, retry.Earliest(s.wake, i.Until)
		}
	}
	s.store.Overlay(plane.KindDrift, func(o plane.Object) plane.Object {
		d, ok := o.(plane.Drift)
		if !ok {
			return o
		}
		i := by[d.ID]
		if !i.Hides(d.ID, fleet.Severity(d.Severity), s.now()) || i.Have != nil && (d.Have == nil || *d.Have != *i.Have) {
			return d.WithIgnore(plane.DriftIgnore{})
		}
		return d.WithIgnore(plane.DriftIgnore{By: i.By, Reason: i.Reason, Until: i.Until.UTC()})
	})
}
