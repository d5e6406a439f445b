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

// surveyAgain is when clusters are asked once more of which it is not known yet
// whether they have what is spread over them.
const surveyAgain = time.Minute

// Survey says, of each roster that serves, which members of a spread do not have
// what is spread, until ctx ends. Nothing waits for it: a cluster may be down. It
// is for after the first Take.
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

// survey asks who has what. known is false when somebody did not say.
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
					v.kinds.Ask(ctx, member, group) // its error has been told, and nothing is known then
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

// Missing says which members of a spread do not have what is spread, a sentence
// each, as it was when the roster began to serve.
func (s *Server) Missing() []string {
	if v := s.view.Load(); v != nil {
		if missing := v.missing.Load(); missing != nil {
			return *missing
		}
	}
	return nil
}

// lacking makes "not found" of one member, that of all is no less than that the
// resource does not exist, into what it is: a part of a collection that cannot be
// had. Clients take "not found" for the whole, and forget the objects that they know.
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

// resourceName is a resource with its group and version.
func resourceName(r *apiproxy.Request) string {
	return strings.TrimPrefix(r.Group+"/", "/") + r.Version + " " + r.Resource
}
