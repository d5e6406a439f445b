package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/kubefile"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
)

// kubePaths returns the kubeconfig files that kubectl would use, except the one that the shell's function added.
func (t *tka) kubePaths() ([]string, error) {
	return kubefile.Paths(t.kubeconfig, t.kubeconfigList(), t.home)
}

// readKube reads and merges the kubeconfig files, as kubectl does.
func (t *tka) readKube() (kubefile.View, error) {
	paths, err := t.kubePaths()
	if err != nil {
		return kubefile.View{}, err
	}
	view, err := kubefile.Load(paths)
	if err != nil {
		return kubefile.View{}, kubeError(err)
	}
	return view, nil
}

// editableKube reads the kubeconfig files for editing. It fails if an edit could not preserve the form of a file.
func (t *tka) editableKube() (kubefile.Files, error) {
	paths, err := t.kubePaths()
	if err != nil {
		return nil, err
	}
	files, err := kubefile.Read(paths)
	if err != nil {
		return nil, kubeError(err)
	}
	return files, nil
}

// editKube changes the kubeconfig files with edit and returns the changed files. It may call edit more than once.
func (t *tka) editKube(ctx context.Context, edit func(kubefile.Files) error) ([]string, error) {
	paths, err := t.kubePaths()
	if err != nil {
		return nil, err
	}
	changed, err := kubefile.Edit(ctx, paths, edit)
	if err != nil {
		return nil, kubeError(err)
	}
	return changed, nil
}

// kubeError explains why tka did not change a kubeconfig.
func kubeError(err error) error {
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		return f
	}
	f := fault.New(fault.Failed, "the kubeconfig is left alone: %v", err).Because(err)
	if ff, ok := errors.AsType[*ownfile.Fault](err); ok {
		return f.Try("%s", fileAdvice(ff))
	}
	if _, ok := errors.AsType[*kubefile.Fault](err); ok {
		return f.Try("Mend it, or use another file: --kubeconfig FILE")
	}
	return f.Try("Use another file: --kubeconfig FILE")
}

func fileAdvice(ff *ownfile.Fault) string {
	if ff.IsLock() {
		return fmt.Sprintf("If no kubectl and no tka is running, remove %s", ff.Path)
	}
	return "Use another file: --kubeconfig FILE"
}
