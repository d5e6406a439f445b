package fanout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// surveyAgain is the delay before another survey, if some clusters did not answer the last one.
const surveyAgain = time.Minute

// Survey finds, for each configuration that serves, the members of spreads that lack a spread resource. It
// runs until ctx ends. Nothing waits for it, because a cluster may be down. Take must be called first.
func (s *Server) Survey(ctx context.Context) error {
	for {
		v := s.view.Load()
		missing, known := s.survey(ctx, v)
		v.missing.Store(&missing)
		var again <-chan time.Time
		if !known {
			again = time.After(surveyAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.ended:
		case <-again:
		}
	}
}

// survey queries all members. known is false if a member did not answer.
func (s *Server) survey(ctx context.Context, v *view) (missing []string, known bool) {
	known = true
	said := map[string]bool{}
	if was := v.missing.Load(); was != nil {
		for _, line := range *was {
			said[line] = true
		}
	}
	asked := map[string]bool{}
	for _, rule := range v.Document().Rules {
		if rule.Target.Spread == nil || rule.Match.APIGroups == nil {
			continue
		}
		for _, member := range rule.Target.Spread.Members {
			for _, group := range rule.Match.APIGroups {
				if page := fmt.Sprint(member, group == ""); !asked[page] {
					asked[page] = true
					v.kinds.Ask(ctx, member, group) // the failure has been logged; Has then reports it as unknown
				}
			}
			for _, res := range rule.Match.Resources {
				lacks := true
				for _, group := range rule.Match.APIGroups {
					has, told := v.kinds.Has(member, group, "", res.Name)
					known = known && (has || told)
					lacks = lacks && !has && told
				}
				if !lacks {
					continue
				}
				name := strings.TrimSuffix(res.Name+"."+rule.Match.APIGroups[0], ".")
				line := fmt.Sprintf("cluster %s has no %s, which rule %s spreads: lists of them are refused", member, name, rule.Name)
				if missing = append(missing, line); !said[line] {
					s.Log.Warn("the configuration: "+line, "cluster", member, "resource", name, "rule", rule.Name)
				}
			}
		}
	}
	return missing, known
}

// Missing returns one sentence for each member of a spread that lacks a spread resource, as of the last
// survey.
func (s *Server) Missing() []string {
	if v := s.view.Load(); v != nil {
		if missing := v.missing.Load(); missing != nil {
			return *missing
		}
	}
	return nil
}

// lacking converts a member's "not found" for a collection to "unavailable" if only some members lack the
// resource. Clients take "not found" for the whole collection and would drop the objects that they know. If
// all members lack the resource, it keeps "not found".
func (v *Visit) lacking(err error) error {
	status, ok := errors.AsType[*wire.Status](err)
	if !ok || status.Code != http.StatusNotFound || status.From == "" || v.kinds == nil {
		return err
	}
	r := v.Request
	type told struct{ has, known bool }
	said := make([]told, len(v.Decision.Members))
	var wg sync.WaitGroup
	for i, m := range v.Decision.Members {
		wg.Go(func() {
			if v.kinds.Ask(v.Out.Context(), m.Cluster, r.Group) == nil {
				said[i].has, said[i].known = v.kinds.Has(m.Cluster, r.Group, r.Version, r.Resource)
			}
		})
	}
	wg.Wait()
	var lack []string
	all := true
	for i, m := range v.Decision.Members {
		if said[i].known && !said[i].has {
			lack = append(lack, m.Cluster)
		} else {
			all = false
		}
	}
	if len(lack) == 0 || all {
		return err
	}
	return &wire.Status{Code: http.StatusServiceUnavailable, Reason: wire.ReasonUnavailable, From: status.From,
		Message: fmt.Sprintf("mca: cluster %s has no %s, which is kept there, too", strings.Join(lack, ", "), resourceName(r))}
}

// resourceName returns a resource with its group and version.
func resourceName(r *apiproxy.Request) string {
	return strings.TrimPrefix(r.Group+"/", "/") + r.Version + " " + r.Resource
}
