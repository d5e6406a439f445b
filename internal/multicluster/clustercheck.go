package multicluster

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

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// ClusterCheck is the result of checking whether an adapter could use a cluster.
type ClusterCheck struct {
	Cluster string `json:"cluster"`
	Version string `json:"version,omitempty"` // as the cluster reports it
	// Error is why the cluster cannot be used; "" if it can.
	Error string `json:"error,omitempty"`
	// Missing lists resources that rules send there and that the cluster lacks, such as "jobs.batch".
	Missing []string `json:"missing,omitempty"`
}

// CheckClusters checks each cluster of a configuration with the credential that an adapter would use. It skips the
// pod's own cluster if Home is not set.
func (k *ConfigLoader) CheckClusters(ctx context.Context, conf *config.Config) []ClusterCheck {
	k.fileStates = map[string]string{}
	var all []ClusterCheck
	for _, c := range conf.Clusters {
		if !c.InCluster || len(k.Home.Servers) > 0 {
			all = append(all, ClusterCheck{Cluster: c.Name})
		}
	}
	var wg sync.WaitGroup
	for i := range all {
		d := conf.Cluster(all[i].Cluster)
		p, err := k.settingsFor(d)
		if err != nil {
			all[i].Error = err.Error()
			continue
		}
		wg.Go(func() {
			c := k.newUpstream(p)
			defer c.Close()
			if err := all[i].run(ctx, c, conf); err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return all
}

// run queries readiness, version, and the resources of the rules.
func (r *ClusterCheck) run(ctx context.Context, c *apiproxy.Upstream, conf *config.Config) error {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		max(c.Probe.Timeout, minCheckTimeout),
		fmt.Errorf("no answer in %v", max(c.Probe.Timeout, minCheckTimeout)),
	)
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
		return fmt.Errorf("it answers %d to GET /version without a version, so it is not an API server", res.StatusCode)
	}
	r.Version = is.GitVersion
	discovery := &mergedDiscovery{OnError: func(string, error) {}, Sources: []*discoverySource{{Name: c.Name, Fetch: c.Get}}}
	if err := discovery.Refresh(ctx); err != nil {
		return err
	}
	for _, rule := range conf.Rules {
		if !slices.Contains(targetClusters(&rule.Target), c.Name) || rule.Match.APIGroups == nil {
			continue
		}
		for _, res := range rule.Match.Resources {
			has := func(group string) bool { return discovery.Scope(group, res.Name).Known }
			if !slices.ContainsFunc(rule.Match.APIGroups, has) {
				r.Missing = append(r.Missing, strings.TrimSuffix(res.Name+"."+rule.Match.APIGroups[0], "."))
			}
		}
	}
	slices.Sort(r.Missing)
	r.Missing = slices.Compact(r.Missing)
	return nil
}

// Limits of a check.
const (
	minCheckTimeout = 30 * time.Second // discovery is large
	maxVersion      = 64 << 10
)
