package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
)

func (t *tka) clusterInfo() *cobra.Command {
	var cluster string
	return t.clusterFlag(&cobra.Command{
		Use:   "cluster-info",
		Short: "Show how to reach the server's cluster",
		Long: `Show the name, address, certificate authority and labels of the access server's cluster.
With -o wide, also show the key with which the server proves its identity.`,
		Example: "  tka cluster-info\n  tka cluster-info --server tka-staging -o yaml",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doClusterInfo(cmd.Context(), cluster) },
	}, &cluster, "cluster to show; this machine or its server must know it", t.clusterNames)
}

// clusterItem is what a server reports about its cluster.
type clusterItem struct {
	meta
	Name      string            `json:"name"`
	Server    string            `json:"server"` // the access server's URL
	APIServer string            `json:"apiServer"`
	CASHA256  string            `json:"caSHA256"` // of the first certificate, in hexadecimal
	CAData    []byte            `json:"caData"`   // PEM, base64
	Labels    map[string]string `json:"labels"`
	Version   string            `json:"version"` // of the access server
	Insecure  bool              `json:"insecureSkipTLSVerify"`
	ID        string            `json:"id"`
	Key       string            `json:"key"` // with which the server proved its identity
}

func (t *tka) doClusterInfo(ctx context.Context, cluster string) error {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return err
	}
	info := l.Info
	item := clusterItem{newMeta("ClusterInfo"), info.Name, l.Base, info.ServerURL, fingerprint(info.CAData), info.CAData, info.Labels, info.Version, info.InsecureSkipTLSVerify,
		info.ID, l.Key.String()}
	if item.Labels == nil {
		item.Labels = map[string]string{}
	}
	return t.printResult(result{object: item, names: []string{"cluster/" + item.Name}, table: func(wide bool) {
		t.writeTable(wide, []string{"CLUSTER", "API SERVER", "VERSION", "LABELS"}, []string{"SERVER", "KEY", "CA SHA-256"}, [][]output.Cell{
			output.Row(item.Name, item.APIServer, item.Version, formatLabels(item.Labels), item.Server, item.Key, item.CASHA256)})
		if item.Insecure {
			t.warn("connections to this cluster do not verify its certificate; tka does not write such an entry")
		}
	}})
}

// formatLabels formats labels for people, sorted by key.
func formatLabels(labels map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}

// fingerprint returns the SHA-256 of the first PEM certificate in hexadecimal, or "" without one.
func fingerprint(ca []byte) string {
	block, _ := pem.Decode(ca)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}
