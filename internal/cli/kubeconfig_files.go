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

// loadKubeconfig reads and merges the kubeconfig files, as kubectl does.
func (t *tka) loadKubeconfig() (kubeconfig.View, error) {
	paths, err := t.kubeconfigPaths()
	if err != nil {
		return kubeconfig.View{}, err
	}
	view, err := kubeconfig.LoadView(paths)
	if err != nil {
		return kubeconfig.View{}, kubeconfigError(err)
	}
	return view, nil
}

// readKubeconfigFiles reads the kubeconfig files for editing. It fails if an edit could not preserve the form of a file.
func (t *tka) readKubeconfigFiles() (kubeconfig.Files, error) {
	paths, err := t.kubeconfigPaths()
	if err != nil {
		return nil, err
	}
	files, err := kubeconfig.ReadFiles(paths)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	return files, nil
}

// editKubeconfig changes the kubeconfig files with edit and returns the changed files. It may call edit more than once.
func (t *tka) editKubeconfig(ctx context.Context, edit func(kubeconfig.Files) error) ([]string, error) {
	paths, err := t.kubeconfigPaths()
	if err != nil {
		return nil, err
	}
	changed, err := kubeconfig.Edit(ctx, paths, edit)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	return changed, nil
}

// kubeconfigError explains why tka did not change a kubeconfig.
func kubeconfigError(err error) error {
	if f, ok := errors.AsType[*output.Error](err); ok {
		return f
	}
	f := output.Errorf(output.ExitFailed, "the kubeconfig is unchanged: %v", err).Because(err)
	if ff, ok := errors.AsType[*safefile.Error](err); ok {
		return f.Try("%s", lockAdvice(ff))
	}
	if _, ok := errors.AsType[*kubeconfig.ContentError](err); ok {
		return f.Try("Correct it, or use another file: --kubeconfig FILE")
	}
	return f.Try("Use another file: --kubeconfig FILE")
}

func lockAdvice(ff *safefile.Error) string {
	if ff.IsLock() {
		return fmt.Sprintf("If no kubectl and no tka is running, remove %s", ff.Path)
	}
	return "Use another file: --kubeconfig FILE"
}
