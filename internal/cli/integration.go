package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

func (t *tka) integration() *cobra.Command {
	return shellCommand(&cobra.Command{
		Use:   "integration SHELL",
		Short: "Print a shell function that makes login change only that shell",
		Long: `Print a function for bash, zsh, fish or powershell. With it, "tka login" makes the cluster
the current one in that shell only: it puts a kubeconfig with only this cluster before the
files in $KUBECONFIG. "tka logout" removes it again. Other terminals, and the current context
in your own kubeconfig, do not change.

The function runs this program with the same arguments and returns its exit code.`,
		Example: `  eval "$(tka integration bash)"
  tka integration fish | source
  tka integration powershell | Out-String | Invoke-Expression`,
	}, func(_ *cobra.Command, shell shellsession.Shell) error {
		text, err := shell.IntegrationScript(t.pluginCommand())
		if err == nil {
			_, err = fmt.Fprint(t.Out, text)
		}
		return err
	})
}

// generate is an alternative name for the command integration.
func (t *tka) generate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "generate",
		Short:   "Print a script for another program",
		Long:    `Print a script for another program, as "tka integration" does.`,
		Example: "  tka generate integration zsh",
	}
	cmd.AddCommand(t.integration())
	return cmd
}

// contextsDir is the directory of the kubeconfig files that set the current context of one shell. Each file is named by the shell's
// process.
const contextsDir = "contexts"

// isShellContext reports whether tka wrote the file at path to set a shell's current context.
func (t *tka) isShellContext(path string) bool {
	return slices.ContainsFunc(t.runtimeDirs(), func(dir string) bool {
		return filepath.Dir(filepath.Clean(path)) == filepath.Join(dir, contextsDir)
	})
}

// enterShell makes entry the cluster of the calling shell, if tka runs from the shell's function.
func (t *tka) enterShell(entry kubeconfig.Entry) {
	if t.Getenv(shellsession.EvalFileEnv) == "" {
		return
	}
	paths, err := kubeconfig.Paths("", t.kubeconfigList(), t.homeDir)
	if err == nil && t.kubeconfig != "" {
		var path string
		if path, err = filepath.Abs(t.kubeconfig); err == nil && !slices.Contains(paths, path) {
			paths = append([]string{path}, paths...)
		}
	}
	var own string
	if err == nil {
		own, err = t.writeContext(entry.Name)
	}
	if err == nil {
		list := strings.Join(append([]string{own}, paths...), string(filepath.ListSeparator))
		err = t.writeShellChanges([]shellsession.EnvChange{{Name: "KUBECONFIG", Value: list}, {Name: clusterEnv, Value: entry.Cluster}, {Name: sessionEnv, Value: entry.Session}})
	}
	if err != nil {
		t.warn("this shell is unchanged: %v", err)
	}
}

// leaveShell removes a sign-in from the calling shell, if tka put it there. It also removes the files of shells that have ended.
func (t *tka) leaveShell(of kubeconfig.Signin) {
	for _, run := range t.runtimeDirs() {
		removeStaleContexts(filepath.Join(run, contextsDir))
	}
	if t.Getenv(shellsession.EvalFileEnv) == "" || t.Getenv(clusterEnv) != of.Cluster || t.Getenv(sessionEnv) != of.Session {
		return
	}
	list := filepath.SplitList(t.Getenv("KUBECONFIG"))
	i := slices.IndexFunc(list, t.isShellContext)
	if i < 0 {
		return
	}
	rest := t.kubeconfigList()
	if home, err := t.homeDir(); err == nil && rest == filepath.Join(home, ".kube", "config") {
		rest = "" // kubectl reads that file anyway
	}
	err := t.writeShellChanges([]shellsession.EnvChange{{Name: "KUBECONFIG", Value: rest}, {Name: clusterEnv}, {Name: sessionEnv}})
	if err == nil {
		err = os.Remove(list[i])
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.warn("this shell is unchanged: %v", err)
	}
}

// kubeconfigList returns $KUBECONFIG without the file that the shell's function added.
func (t *tka) kubeconfigList() string {
	list := filepath.SplitList(t.Getenv("KUBECONFIG"))
	return strings.Join(slices.DeleteFunc(list, t.isShellContext), string(filepath.ListSeparator))
}

// writeContext writes the file that makes name the current context of the calling shell. It also removes the files of shells that have
// ended.
func (t *tka) writeContext(name string) (path string, err error) {
	err = errors.New("no directory for the shell's kubeconfig")
	for _, run := range t.runtimeDirs() {
		dir := filepath.Join(run, contextsDir)
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = safefile.EnsurePrivateDir(dir)
		}
		if err != nil {
			continue
		}
		removeStaleContexts(dir)
		path = filepath.Join(dir, shellsession.ProcessID(os.Getppid()))
		var text []byte
		if text, err = kubeconfig.ContextOnly(name); err == nil {
			err = safefile.Write(path, text)
		}
		if err == nil {
			return path, nil
		}
	}
	return "", err
}

// removeStaleContexts removes the files of shells that have ended from a directory of contexts.
func removeStaleContexts(dir string) {
	left, err := os.ReadDir(dir)
	if err != nil || safefile.EnsurePrivateDir(dir) != nil {
		return // nothing that tka wrote
	}
	for _, e := range left {
		if !shellsession.ProcessExists(e.Name()) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// writeShellChanges writes assignments to the file that the shell's function reads. The file must be new and in a private directory. Its name
// is the name of the shell.
func (t *tka) writeShellChanges(changes []shellsession.EnvChange) error {
	path := t.Getenv(shellsession.EvalFileEnv)
	name := filepath.Base(path)
	if !filepath.IsAbs(path) || !slices.Contains(shellsession.Shells(), name) {
		return fmt.Errorf("$%s is not the path of a shell's kubeconfig", shellsession.EvalFileEnv)
	}
	text, err := shellsession.Shell(name).AssignEnv(changes)
	if err != nil {
		return err
	}
	return safefile.Create(path, []byte(text))
}
