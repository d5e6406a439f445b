//go:build unix

package kube

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// FLEET-04, PL-08: a hold is made once, changed and lifted at the version that was read. A dry run changes nothing, and neither does a
// permit for another organisation or action.
func TestFLEET04_Holds(t *testing.T) {
	p := newWriterEnv(t)
	org, pool := p.Namespace+"-o", p.Namespace+"-p"
	api, err := Connect(p.Config, time.Now)
	p.Must(err)
	holds := api.Holds()
	own := `{"role":"operator","orgs":["` + org + `"]}`
	in := func(v access.Verb) access.Permit {
		permit, err := p.Permit("mel@acme.dev", own, v).In(org)
		p.Must(err)
		return permit
	}
	draft := plane.HoldDraft{Name: p.Namespace + "-h", Scope: plane.Scope{Org: org, Pool: pool}, Mode: plane.ModePause, Reason: "test", Digest: "d1"}
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, true); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if err := p.Admin.Get(t.Context(), client.ObjectKey{Name: draft.Name}, new(v1alpha1.RunnerHold)); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run has made it: %v", err)
	}
	// PL-08: whatever the caller has checked before.
	for why, permit := range map[string]access.Permit{"no permit": {}, "one for something else": in(access.HoldsLift), "one that was not narrowed": p.Permit("mel@acme.dev", own, access.HoldsCreate)} {
		if _, _, err := holds.Create(t.Context(), permit, draft, false); problem.CodeOf(err) != problem.Internal {
			t.Errorf("%s: %v", why, err)
		}
	}
	wide := draft
	wide.Name, wide.Scope = p.Namespace+"-all", plane.Scope{All: true}
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), wide, false); problem.CodeOf(err) != problem.Internal {
		t.Errorf("everything, by a permit for one: %v", err)
	}
	h, created, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, false)
	switch {
	case err != nil:
		t.Fatal(err)
	case !created:
		t.Fatalf("created is false; %+v, created = %v, %v", h, created, err)
	case h.RequestedBy != "mel@acme.dev":
		t.Fatalf("h.RequestedBy = %q, want %q", h.RequestedBy, "mel@acme.dev")
	case h.UID == "":
		t.Fatalf("h.UID is empty; %+v, created = %v, %v", h, created, err)
	}
	switch again, created, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, false); {
	case err != nil:
		t.Errorf("once more: %v", err)
	case created:
		t.Errorf("once more: created is true; again = %+v, created = %v, %v", again, created, err)
	case again.UID != h.UID:
		t.Errorf("once more: again.UID = %q, want %q", again.UID, h.UID)
	}
	other := draft
	other.Digest = "d2"
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), other, false); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("something else of that name: %v", err)
	}
	stale := h
	stale.UID = "another"
	if err := holds.Lift(t.Context(), in(access.HoldsLift), stale, false); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("another one of its name: %v", err)
	}
	later := time.Now().Add(time.Hour).Truncate(time.Second)
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), stale, &later, false); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("the end of another one of its name: %v", err)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsCreate), h, &later, false); problem.CodeOf(err) != problem.Internal {
		t.Errorf("the end, by a permit for something else: %v", err)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, &later, true); err != nil {
		t.Errorf("dry run of a later expiry: %v", err)
	}
	moved, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, &later, false)
	switch {
	case err != nil:
		t.Error(err)
	case moved.ExpiresAt == nil:
		t.Error("moved.ExpiresAt is nil")
	case !moved.ExpiresAt.Equal(later):
		t.Errorf("moved.ExpiresAt = %v, want %v", moved.ExpiresAt, later)
	case moved.Version == h.Version:
		t.Errorf("moved.Version = %q, the same as h.Version", moved.Version)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, nil, false); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("the expiry of a hold that has changed: %v", err)
	}
	if moved, err = holds.Reschedule(t.Context(), in(access.HoldsLift), moved, nil, false); err != nil || moved.ExpiresAt != nil {
		t.Errorf("%+v, %v", moved, err)
	}
	if err := errors.Join(holds.Lift(t.Context(), in(access.HoldsLift), h, true), holds.Lift(t.Context(), in(access.HoldsLift), h, false)); err != nil {
		t.Error(err)
	}
	if err := p.Admin.Get(t.Context(), client.ObjectKey{Name: h.Name}, new(v1alpha1.RunnerHold)); !apierrors.IsNotFound(err) {
		t.Errorf("it was lifted: %v", err)
	}
}
