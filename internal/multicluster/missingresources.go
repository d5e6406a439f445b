package multicluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// surveyRetry is the delay before another survey, if some clusters did not answer the last one.
const surveyRetry = time.Minute

// Survey finds, for each configuration that serves, the members of spreads that lack a spread resource. It
// runs until ctx ends. Nothing waits for it, because a cluster may be down. SetConfig must be called first.
func (s *Router) Survey(ctx context.Context) error {
	for {
		v := s.state.Load()
		missing, known := s.survey(ctx, v)
		v.missing.Store(&missing)
		var again <-chan time.Time
		if !known {
			again = time.After(surveyRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.replaced:
		case <-again:
		}
	}
}

// survey queries all members. known is false if a member did not answer.
func (s *Router) survey(ctx context.Context, v *routerState) (missing []string, known bool) {
	known = true
	reported := *v.missing.Load()
	fetched := map[string]bool{}
	for _, rule := range v.Config().Rules {
		if rule.Target.Spread == nil || rule.Match.APIGroups == nil {
			continue
		}
		for _, member := range rule.Target.Spread.Members {
			for _, group := range rule.Match.APIGroups {
				if page := fmt.Sprint(member, group == ""); !fetched[page] {
					fetched[page] = true
					v.discovery.RefreshCluster(ctx, member, group) // the failure has been logged; HasResource then reports it as unknown
				}
			}
			for _, res := range rule.Match.Resources {
				lacks := true
				for _, group := range rule.Match.APIGroups {
					has, ok := v.discovery.HasResource(member, group, "", res.Name)
					known = known && (has || ok)
					lacks = lacks && !has && ok
				}
				if !lacks {
					continue
				}
				name := strings.TrimSuffix(res.Name+"."+rule.Match.APIGroups[0], ".")
				line := fmt.Sprintf(
					"cluster %s has no %s, which rule %s spreads: the adapter refuses lists of them",
					member,
					name,
					rule.Name,
				)
				if missing = append(missing, line); !slices.Contains(reported, line) {
					s.Log.Warn("the configuration: "+line, "cluster", member, "resource", name, "rule", rule.Name)
				}
			}
		}
	}
	return missing, known
}

// MissingResources returns one sentence for each member of a spread that lacks a spread resource, as of the last
// survey.
func (s *Router) MissingResources() []string {
	if v := s.state.Load(); v != nil {
		return *v.missing.Load()
	}
	return nil
}

// reportMissingResource converts a member's "not found" for a collection to "unavailable" if only some members lack the
// resource. Clients take "not found" for the whole collection and would drop the objects that they know. If
// all members lack the resource, it keeps "not found".
func (v *request) reportMissingResource(err error) error {
	status, ok := errors.AsType[*codec.Status](err)
	if !ok || status.Code != http.StatusNotFound || status.From == "" || v.discovery == nil {
		return err
	}
	r := v.Request
	lacks := inParallel(v.decision.Members, func(m Member) bool {
		if v.discovery.RefreshCluster(v.Out.Context(), m.Cluster, r.Group) != nil {
			return false
		}
		has, known := v.discovery.HasResource(m.Cluster, r.Group, r.Version, r.Resource)
		return known && !has
	})
	var lack []string
	for i, m := range v.decision.Members {
		if lacks[i] {
			lack = append(lack, m.Cluster)
		}
	}
	if len(lack) == 0 || len(lack) == len(lacks) {
		return err
	}
	return &codec.Status{Code: http.StatusServiceUnavailable, Reason: codec.ReasonUnavailable, From: status.From,
		Message: fmt.Sprintf("mca: cluster %s has no %s, although a rule spreads them to it", strings.Join(lack, ", "), resourceName(r))}
}

// resourceName returns a resource with its group and version.
func resourceName(r *apiproxy.Request) string {
	return strings.TrimPrefix(r.Group+"/", "/") + r.Version + " " + r.Resource
}
