package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// kubeconfigPaths returns the kubeconfig files that kubectl would use, except the one that the shell's function added.
func (t *tka) kubeconfigPaths() ([]string, error) {
	return kubeconfig.Paths(t.kubeconfig, t.kubeconfigList(), t.homeDir)
}

// onKubeconfig calls do with the kubeconfig files.
func onKubeconfig[T any](t *tka, do func(paths []string) (T, error)) (done T, err error) {
	paths, err := t.kubeconfigPaths()
	if err == nil {
		done, err = do(paths)
	}
	return done, kubeconfigError(err)
}

// loadKubeconfig reads and merges the kubeconfig files, as kubectl does.
func (t *tka) loadKubeconfig() (kubeconfig.View, error) { return onKubeconfig(t, kubeconfig.LoadView) }

// readKubeconfigFiles reads the kubeconfig files for editing. It fails if an edit could not preserve the form of a file.
func (t *tka) readKubeconfigFiles() (kubeconfig.Files, error) {
	return onKubeconfig(t, kubeconfig.ReadFiles)
}

// editKubeconfig changes the kubeconfig files with edit and returns the changed files. It may call edit more than once.
func (t *tka) editKubeconfig(ctx context.Context, edit func(kubeconfig.Files) error) ([]string, error) {
	return onKubeconfig(t, func(paths []string) ([]string, error) { return kubeconfig.Edit(ctx, paths, edit) })
}

// kubeconfigError explains why tka did not change a kubeconfig.
func kubeconfigError(err error) error {
	if _, ok := errors.AsType[*output.Error](err); ok || err == nil {
		return err
	}
	f := output.Errorf(output.ExitFailed, "the kubeconfig is unchanged: %v", err).Because(err)
	if _, ok := errors.AsType[*kubeconfig.ContentError](err); ok {
		return f.Try("Correct it, or use another file: --kubeconfig FILE")
	}
	return f.Try("%s", lockAdvice(err, "Use another file: --kubeconfig FILE"))
}

// lockAdvice returns what to do about an error of a file: about its lock, or else the advice.
func lockAdvice(err error, advice string) string {
	if ff, ok := errors.AsType[*safefile.Error](err); ok && ff.IsLock() {
		return fmt.Sprintf("If no kubectl and no tka is running, remove %s", ff.Path)
	}
	return advice
}
