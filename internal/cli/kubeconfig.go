package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// kubeconfigFlags are the flags of the kubeconfig command.
type kubeconfigFlags struct {
	cluster string
	token   bool
	out     string
	yes     bool
}

func (t *tka) kubeconfigCommand(use string) *cobra.Command {
	var kf kubeconfigFlags
	cmd := &cobra.Command{
		Use:   use,
		Short: "Print a kubeconfig for the sign-in of this device",
		Long: `Print a separate kubeconfig file for the sign-in of this device. It contains no token:
kubectl runs "tka credential" to get one. With --token, it contains a token, for programs
that cannot run a plugin. Any program that can read such a file has your access until the
token ends.`,
		Example: "  tka kubeconfig --out prod.yaml\n  tka kubeconfig --token --out /run/user/1000/kubeconfig",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doKubeconfig(cmd.Context(), kf) },
	}
	f := cmd.Flags()
	f.BoolVar(&kf.token, "token", false, "include the token in the kubeconfig")
	f.StringVar(&kf.out, "out", "", "write to this file instead of printing; only you can read it")
	f.BoolVar(&kf.yes, "yes", false, "replace the file if it exists")
	return t.clusterFlag(cmd, &kf.cluster, "cluster; this machine or its server must know it", t.clusterNames)
}

func (t *tka) doKubeconfig(ctx context.Context, kf kubeconfigFlags) error {
	set, err := t.settings()
	if err != nil {
		return err
	}
	format, err := t.outputFormat()
	if err != nil {
		return err
	}
	if kf.out != "" {
		if err := t.confirmReplace(ctx, kf.out, kf.yes); err != nil {
			return err
		}
	}
	l, err := t.connect(ctx, kf.cluster)
	if err != nil {
		return err
	}
	g, err := l.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	entry := t.kubeconfigEntry(set, g.Kubeconfig, nil)
	var text []byte
	if kf.token {
		g.Prefix = set.Prefix
		text, err = g.YAML()
		t.warn("this kubeconfig contains a token: any program that can read it has your access to %s until the token ends", g.Cluster)
	} else {
		text, err = entry.Document()
		if revokeErr := t.updateServer(ctx, l.Base, func(k *config.ServerRecord) { k.Chosen, k.CASHA256 = true, fingerprint(g.CA) }); revokeErr != nil {
			t.warn("kubectl will look for %s at the server of the settings, because %v", g.Cluster, revokeErr)
		}
	}
	if err != nil {
		return err
	}
	switch format {
	case output.JSON:
		if text, err = yamlToJSON(text); err != nil {
			return err
		}
	case output.Name:
		text = []byte(entry.Name + "\n")
	}
	if kf.out == "" {
		_, err = t.Out.Write(text)
		return err
	}
	if err := safefile.Write(kf.out, text); err != nil {
		return outFileError(kf.out, err)
	}
	t.hint("Use it: kubectl --kubeconfig %s get pods", output.ShellQuote(kf.out))
	return nil
}

// confirmReplace asks the person before a file is replaced, and refuses files of other users.
func (t *tka) confirmReplace(ctx context.Context, path string, yes bool) error {
	if err := safefile.Check(path); err != nil {
		return outFileError(path, err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || yes {
		return nil
	}
	return t.confirm(ctx, fmt.Sprintf("%s exists; replace it?", path), "--yes")
}

func outFileError(path string, err error) error {
	return output.Errorf(output.ExitFailed, "%s was not written: %v", path, err).Because(err).Try("Write another file: --out FILE")
}

// yamlToJSON converts YAML to JSON.
func yamlToJSON(text []byte) ([]byte, error) {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(v, "", "  ")
	return append(out, '\n'), err
}
