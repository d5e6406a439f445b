package run

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tailplane/tailplane/internal/multicluster"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// clusterCheckFlags are the flags that make a command query the clusters of a configuration.
type clusterCheckFlags struct {
	enabled bool
	paths   proxyFlags
}

func (f *clusterCheckFlags) register(p *pflag.FlagSet) {
	p.BoolVar(&f.enabled, "check-clusters", false, "check for each cluster whether an adapter could serve it")
	credentialFlags(p, &f.paths)
}

// credentialFlags registers the flags that locate credentials.
func credentialFlags(p *pflag.FlagSet, f *proxyFlags) {
	p.StringVar(
		&f.credentials,
		"credentials-dir",
		"/etc/mca/credentials",
		"directory with the mounted Secrets of other clusters, each in a subdirectory with the cluster's name",
	)
	p.StringVar(
		&f.audiences,
		"audience-dir",
		"/var/run/secrets/mca.tailplane.dev",
		"directory with the tokens for other clusters, as <cluster>/token",
	)
	p.StringVar(
		&f.account,
		"serviceaccount-dir",
		"/var/run/secrets/kubernetes.io/serviceaccount",
		"directory with the pod's real token, ca.crt and namespace",
	)
}

// checkClusters queries the clusters of a configuration. text must be valid.
func (f *clusterCheckFlags) checkClusters(ctx context.Context, text []byte) ([]multicluster.ClusterCheck, error) {
	doc, _, err := config.Parse(text)
	if err != nil {
		return nil, err
	}
	loader := &multicluster.ConfigLoader{Credentials: f.paths.credentials, Audiences: f.paths.audiences, Now: time.Now,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		if loader.Home, _, err = homeUpstream(f.paths); err != nil {
			return nil, err
		}
	}
	return loader.CheckClusters(ctx, doc), nil
}

// validateResult is the report on a configuration, and on its clusters if the command queried them.
type validateResult struct {
	multicluster.ValidationReport
	Clusters []multicluster.ClusterCheck `json:"clusters,omitempty"`
}

// print writes a line for each cluster. It quotes text that comes from a cluster, because that text is
// untrusted.
func (r validateResult) print(out io.Writer, name string) {
	for _, c := range r.Clusters {
		switch {
		case c.Error != "":
			fmt.Fprintf(out, "%s: cluster %s: %q\n", name, c.Cluster, c.Error)
		default:
			fmt.Fprintf(out, "%s: cluster %s: ready, %q\n", name, c.Cluster, c.Version)
		}
		if len(c.Missing) > 0 {
			fmt.Fprintf(out, "%s: cluster %s: has no %s (a warning)\n", name, c.Cluster, strings.Join(c.Missing, ", "))
		}
	}
}

// clusterError returns an error if a query to a cluster failed.
func (r validateResult) clusterError() error {
	n := 0
	for _, c := range r.Clusters {
		if c.Error != "" {
			n++
		}
	}
	if n > 0 {
		return exitCode{exitUnreached, fmt.Errorf("the check of %d of %d clusters failed", n, len(r.Clusters))}
	}
	return nil
}
