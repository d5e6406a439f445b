package roster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/catalog"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// A Reached is what came of asking a cluster whether an adapter could serve it.
type Reached struct {
	Cluster string `json:"cluster"`
	Version string `json:"version,omitempty"` // as it says itself
	// Error says why it cannot be asked; "" if it can.
	Error string `json:"error,omitempty"`
	// Missing are resources that rules send there and that it does not have, such
	// as "jobs.batch".
	Missing []string `json:"missing,omitempty"`
}

// Ask asks each cluster of a document, with the credential that an adapter would
// use, what it is. The pod's own is left out when the Keeper does not know it.
func (k *Keeper) Ask(ctx context.Context, doc *document.Document) []Reached {
	k.seen = map[string]string{}
	var all []Reached
	for _, c := range doc.Clusters {
		if !c.InCluster || len(k.Home.Servers) > 0 {
			all = append(all, Reached{Cluster: c.Name})
		}
	}
	var wg sync.WaitGroup
	for i := range all {
		d := doc.Cluster(all[i].Cluster)
		p, err := k.plan(d)
		if err != nil {
			all[i].Error = err.Error()
			continue
		}
		wg.Go(func() {
			c := k.cluster(d.Name, p)
			defer c.Close()
			if err := all[i].ask(ctx, c, doc); err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return all
}

// ask asks whether it is ready, its version, and for the resources of rules.
func (r *Reached) ask(ctx context.Context, c *upstream.Cluster, doc *document.Document) error {
	ctx, cancel := context.WithTimeoutCause(ctx, max(c.Probe.Timeout, minAsked), fmt.Errorf("no answer in %v", max(c.Probe.Timeout, minAsked)))
	defer cancel()
	res, err := c.Get(ctx, c.Probe.Path, http.Header{})
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("it answers %d to GET %s", res.StatusCode, c.Probe.Path)
	}
	if res, err = c.Get(ctx, "/version", http.Header{}); err != nil {
		return err
	}
	defer res.Body.Close()
	var is struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxVersion)).Decode(&is); err != nil || is.GitVersion == "" {
		return fmt.Errorf("it answers %d to GET /version, and with no version: it is no API server", res.StatusCode)
	}
	r.Version = is.GitVersion
	kinds := &catalog.Catalog{Failed: func(string, error) {}, Sources: []catalog.Source{{Name: c.Name, Fetch: c.Get}}}
	if err := kinds.Learn(ctx); err != nil {
		return err
	}
	for _, rule := range doc.Rules {
		to := rule.Target.Cluster == c.Name || rule.Target.Spread != nil && slices.Contains(rule.Target.Spread.Members, c.Name)
		if !to || rule.Match.APIGroups == nil {
			continue
		}
		for _, res := range rule.Match.Resources {
			has := func(group string) bool { return kinds.Scope(group, res.Name).Known }
			if !slices.ContainsFunc(rule.Match.APIGroups, has) {
				r.Missing = append(r.Missing, strings.TrimSuffix(res.Name+"."+rule.Match.APIGroups[0], "."))
			}
		}
	}
	slices.Sort(r.Missing)
	r.Missing = slices.Compact(r.Missing)
	return nil
}

// Bounds of a question.
const (
	minAsked   = 30 * time.Second // discovery is large
	maxVersion = 64 << 10
)
