package cli

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/kubefile"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) credential() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:   "credential --cluster NAME",
		Short: "Print a token for kubectl (run by kubectl itself)",
		Long: `Print the token of the sign-in of this device in the form that kubectl expects of a
plugin for credentials. login writes this command into the kubeconfig; there is no need
to run it by hand. It never signs in by itself: not signed in is exit 3.`,
		Example: "  tka credential --cluster prod-eu",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cluster == "" {
				return usage("tka credential needs --cluster NAME")
			}
			return t.doCredential(cmd.Context(), cluster)
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "cluster to print a token for")
	t.complete(cmd, "cluster", t.clusterNames)
	return cmd
}

// execCredential is kubectl's form of a credential.
type execCredential struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Status     execStatus `json:"status"`
}

type execStatus struct {
	ExpirationTimestamp *time.Time `json:"expirationTimestamp,omitempty"`
	Token               string     `json:"token"`
}

// A credential is a token and its end.
type credential struct {
	token   signin.Token
	expires time.Time // zero: not known
}

func (t *tka) doCredential(ctx context.Context, cluster string) error {
	version, err := execInfo(t.Getenv("KUBERNETES_EXEC_INFO"))
	if err != nil {
		return err
	}
	c, err := t.fetch(ctx, cluster)
	if err != nil {
		return err
	}
	out := execCredential{APIVersion: version, Kind: "ExecCredential", Status: execStatus{Token: c.token.Reveal()}}
	if !c.expires.IsZero() {
		out.Status.ExpirationTimestamp = new(c.expires.UTC())
	}
	return json.NewEncoder(t.Out).Encode(out)
}

// execInfo is the version in which kubectl wants the credential.
func execInfo(env string) (string, error) {
	if env == "" {
		return kubefile.ExecVersion, nil
	}
	var info struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal([]byte(env), &info); err != nil {
		return "", fail(exitFailed, "KUBERNETES_EXEC_INFO is not what kubectl sets: %v", err).because(err).try("Run kubectl, which sets it; by hand, leave it unset.")
	}
	switch info.APIVersion {
	case kubefile.ExecVersion, "client.authentication.k8s.io/v1beta1":
		return info.APIVersion, nil
	}
	return "", fail(exitFailed, "kubectl asks for a credential of the version %.60q; tka has client.authentication.k8s.io/v1 and v1beta1", info.APIVersion).
		try("Use another kubectl.")
}

// fetch gets a fresh token for a cluster from its server.
func (t *tka) fetch(ctx context.Context, cluster string) (credential, error) {
	l, err := t.connect(cluster)
	if err != nil {
		return credential{}, err
	}
	g, err := l.kubeconfigOf(ctx)
	if p, ok := errors.AsType[*problem.Error](err); ok && p.Code == problem.NotSignedIn {
		return credential{}, fail(exitRefused, "Not signed in to %s: %s", cluster, p.Message).because(err).try("run: tka login --cluster %s", word(cluster))
	}
	if err != nil {
		return credential{}, err
	}
	if g.Cluster != cluster {
		return credential{}, wrongCluster(l, g.Cluster, cluster)
	}
	return credential{token: g.Token, expires: g.until}, nil
}
