package kube

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
)

// The origins of a setting that are not objects.
const (
	fromDefault = "default"
	fromFleet   = "fleet"
)

// settingsOf returns the effective settings of an organisation in a pool, with their origins. in holds the names of the active holds. The
// result is nil if the pool is unknown.
func settingsOf(e *v1alpha1.RunnerEnrollment, pool *v1alpha1.RunnerPool, s *v1alpha1.EnrolledPoolStatus, in []string) (all []plane.Setting) {
	if pool == nil {
		return nil
	}
	org, own := "RunnerEnrollment "+e.Name, "RunnerPool "+pool.Name
	add := func(name, value, from string, over ...plane.Origin) {
		all = append(all, plane.Setting{Name: name, Value: value, From: from, Over: append([]plane.Origin{}, over...)})
	}
	var use v1alpha1.EnrolledPool
	for _, p := range e.Spec.Pools {
		if p.Name == pool.Name {
			use = p
		}
	}
	add("forge", e.Spec.Forge, org)
	add("configURL", e.Spec.ConfigURL, org)
	add("type", string(use.Type), org)
	add("isolation", string(e.Spec.Isolation), org)
	labels := []plane.Origin{}
	if raw := strings.Join(pool.Spec.RunsOn, ", "); strings.Contains(raw, "{org}") {
		labels = append(labels, plane.Origin{Value: raw, From: own})
	}
	add("runsOn", strings.Join(fleet.RunsOn(pool, e.Name), ", "), own, labels...)
	scale := pool.Spec.Scaling
	add("scaling.min", fmt.Sprint(scale.Min), own)
	limit := plane.Origin{Value: fmt.Sprint(scale.Max), From: own}
	if use.Max != nil && *use.Max < scale.Max {
		add("scaling.max", fmt.Sprint(*use.Max), org, limit)
		limit = plane.Origin{Value: fmt.Sprint(*use.Max), From: org}
	} else {
		add("scaling.max", limit.Value, own)
	}
	add("scaling.budget", fmt.Sprint(scale.Budget), own)
	add("scaling.guarantee", fmt.Sprint(scale.Guarantee), own)
	if s != nil && s.Allocated != nil {
		add("allocated", fmt.Sprint(*s.Allocated), fromFleet, limit)
		limit = plane.Origin{Value: fmt.Sprint(*s.Allocated), From: fromFleet}
	}
	if s != nil && s.EffectiveMax != nil {
		from := fromFleet
		if len(in) > 0 {
			from = "RunnerHold " + cmp.Or(s.Hold, in[0])
		}
		add("effectiveMax", fmt.Sprint(*s.EffectiveMax), from, limit)
	}
	add("containerMode", string(cmp.Or(pool.Spec.ContainerMode, v1alpha1.ModeDefault)), own)
	switch {
	case pool.Spec.Template != nil:
		add("image", "image of its template", own)
	case pool.Spec.Image != "":
		add("image", pool.Spec.Image, own)
	default:
		add("image", "the fleet's default image", fromDefault)
	}
	if pool.Spec.DedicatedTo != "" {
		add("dedicatedTo", pool.Spec.DedicatedTo, own)
	}
	if pool.Spec.Adopt != nil {
		add("adopt", pool.Spec.Adopt.Namespace+"/"+pool.Spec.Adopt.Name, own)
	}
	if g := pool.Spec.GitLab; g != nil {
		add("gitlab.concurrent", fmt.Sprint(g.Concurrent), own)
		add("gitlab.replicas", fmt.Sprint(g.Replicas), own)
		add("gitlab.runUntagged", fmt.Sprint(g.RunUntagged), own)
		add("gitlab.protected", fmt.Sprint(g.Protected), own)
		add("gitlab.maximumTimeout", g.MaximumTimeout.Duration.String(), own)
	}
	if len(use.Repositories) > 0 {
		add("repositories", strings.Join(use.Repositories, ", "), org)
	}
	if use.RunnerGroup != "" {
		add("runnerGroup", use.RunnerGroup, org)
	}
	if use.AllowPublic {
		add("allowPublic", "true", org)
	}
	return all
}
