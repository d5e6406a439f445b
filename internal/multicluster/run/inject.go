package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/inject"
)

// injectFlags are the flags of the inject command.
type injectFlags struct {
	file, output, configMap, image, kube string
	credentials                          []string
	diff, check                          bool
}

func injectCommand() *cobra.Command {
	var f injectFlags
	c := &cobra.Command{
		Use: "inject", Short: "Add the adapter to manifests",
		Long: "Adds the adapter to every pod template of manifests, as the webhook does for pods. All other text stays the same, byte for\n" +
			"byte. If one template cannot have the adapter, the command writes nothing and exits with 3.",
		Example: "  mca inject -f deployment.yaml --image registry.example.com/mca@sha256:…\n  kustomize build . | mca inject --image … | kubectl apply -f -",
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return runInject(c, f) },
	}
	p := c.Flags()
	p.StringVarP(&f.file, "filename", "f", "-", "a file, a directory with .yaml, .yml and .json files, or - for standard input")
	p.StringVarP(
		&f.output,
		"output",
		"o",
		"",
		"output: a file, a directory if the input is a directory, or - for standard output; without it, standard output, or each file in place if the input is a directory",
	)
	p.StringVar(&f.configMap, "config-map", "", "the ConfigMap with the adapter's configuration")
	p.StringSliceVar(&f.credentials, "credentials", nil, "a Secret with the credential of another cluster; may be repeated")
	p.StringVar(&f.image, "image", "", "the adapter's image, by digest; required")
	p.StringVar(&f.kube, "kube-version", "", "the version of the API server, such as 1.37; versions without sidecar containers are refused")
	p.BoolVar(&f.diff, "diff", false, "show the changes and write nothing")
	p.BoolVar(&f.check, "check", false, "write nothing, and exit with 3 if a file would change")
	return c
}

func runInject(c *cobra.Command, f injectFlags) error {
	o := inject.Options{Sidecar: inject.DefaultSidecar(), Version: programVersion()}
	o.Sidecar.Image = f.image
	if f.kube != "" {
		var err error
		if o.Kubernetes, err = inject.ParseKubeVersion(f.kube); err != nil {
			return usageError(err)
		}
	}
	if err := o.Validate(); err != nil {
		return usageError(err)
	}
	annotations := map[string]string{}
	if f.configMap != "" {
		annotations["mca.tailplane.dev/config"] = f.configMap
	}
	if len(f.credentials) > 0 {
		annotations["mca.tailplane.dev/credentials"] = strings.Join(f.credentials, ",")
	}
	in, folder, err := readSources(f.file, c.InOrStdin())
	if err != nil {
		return err
	}
	out, results, err := inject.Files(in, o, annotations)
	for _, finding := range results {
		if finding.Message != "" {
			fmt.Fprintln(c.ErrOrStderr(), finding)
		}
		for _, w := range finding.Warnings {
			fmt.Fprintf(c.ErrOrStderr(), "%s:%d: warning: %s\n", finding.File, finding.Line, w)
		}
	}
	if errors.Is(err, inject.ErrRefused) {
		return exitCode{exitRefused, err}
	}
	if err != nil {
		return err
	}
	changed := 0
	for i := range in {
		if bytes.Equal(in[i].Text, out[i].Text) {
			continue
		}
		changed++
		if f.diff {
			io.WriteString(c.OutOrStdout(), inject.Diff(in[i].Name, in[i].Text, out[i].Text))
		}
	}
	switch {
	case f.check && changed > 0:
		return refusedError("%d of %d files would change", changed, len(in))
	case f.check || f.diff:
		return nil
	}
	return writeSources(c.OutOrStdout(), f, folder, in, out)
}

// readSources reads the files that -f names.
func readSources(name string, stdin io.Reader) (in []inject.Source, folder bool, err error) {
	if name == "-" {
		b, err := io.ReadAll(stdin)
		return []inject.Source{{Name: "standard input", Text: b}}, false, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		b, err := os.ReadFile(name)
		return []inject.Source{{Name: name, Text: b}}, false, err
	}
	err = filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		b, err := os.ReadFile(path)
		in = append(in, inject.Source{Name: path, Text: b})
		return err
	})
	return in, true, err
}

// writeSources writes the result. In a directory it writes only the files that changed, unless --output names
// another place.
func writeSources(stdout io.Writer, f injectFlags, folder bool, in, out []inject.Source) error {
	if !folder {
		if f.output == "" || f.output == "-" {
			_, err := stdout.Write(out[0].Text)
			return err
		}
		return replaceFile(f.output, out[0].Text)
	}
	for i, s := range out {
		to := s.Name
		switch {
		case f.output == "-":
			if _, err := fmt.Fprintf(stdout, "---\n%s", s.Text); err != nil {
				return err
			}
			continue
		case f.output != "":
			rel, err := filepath.Rel(f.file, s.Name)
			if err != nil {
				return err
			}
			to = filepath.Join(f.output, rel)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
		case bytes.Equal(in[i].Text, s.Text):
			continue
		}
		if err := replaceFile(to, s.Text); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile writes a file atomically and keeps the mode of an existing file.
func replaceFile(name string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	t, err := os.CreateTemp(filepath.Dir(name), ".mca-*")
	if err != nil {
		return err
	}
	_, err = t.Write(text)
	if err = errors.Join(err, t.Chmod(mode), t.Close()); err == nil {
		err = os.Rename(t.Name(), name)
	}
	if err != nil {
		os.Remove(t.Name())
	}
	return err
}
