package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// settings reads the settings file once. An invalid file is a usage error: exit code 2.
func (t *tka) settings() (*config.Settings, error) {
	if t.cachedSettings != nil {
		return t.cachedSettings, nil
	}
	path, err := t.configFile()
	if err != nil {
		return nil, err
	}
	text, err := readSettings(path)
	if errors.Is(err, fs.ErrNotExist) && t.config != "" {
		return nil, output.UsageErrorf("the settings file %s does not exist", path).Because(err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, output.UsageErrorf("the settings cannot be read: %v", err).Because(err)
	}
	set, err := config.Parse(text)
	if err != nil {
		return nil, output.UsageErrorf("%s %v", path, err).Try("See the keys: tka config --help").Because(err)
	}
	t.cachedSettings = &set
	return t.cachedSettings, nil
}

func readSettings(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return safefile.ReadAll(f, path)
}

// state reads what this machine stores about servers.
func (t *tka) state() (config.State, error) {
	path, err := t.stateFile()
	if err != nil {
		return config.State{}, err
	}
	return config.ReadState(path)
}

// settingsAndState reads both of tka's files.
func (t *tka) settingsAndState() (*config.Settings, config.State, error) {
	set, err := t.settings()
	if err != nil {
		return nil, config.State{}, err
	}
	state, err := t.state()
	return set, state, err
}

// updateServer stores facts about the server at base.
func (t *tka) updateServer(ctx context.Context, base string, set func(*config.ServerRecord)) error {
	return t.editState(ctx, func(k *config.State) { k.Update(base, set) })
}

func (t *tka) editState(ctx context.Context, edit func(*config.State)) error {
	path, err := t.stateFile()
	if err != nil {
		return err
	}
	return config.EditState(ctx, path, edit)
}

// serverNames and knownClusterNames return completions of flags, from this machine's files.
func (t *tka) serverNames(context.Context) []string {
	set, err := t.settings()
	if err != nil {
		return nil
	}
	return mapped(set.Servers, func(e config.ServerSettings) string { return e.Name })
}

func (t *tka) knownClusterNames(context.Context) []string {
	k, err := t.state()
	if err != nil {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(mapped(k.Servers, func(s config.ServerRecord) string { return s.Cluster }))))
}

// configFile returns the path of the settings file. --config overrides it. It is config.yaml, unless settings.yaml exists or config.yaml belongs
// to the tka of SpechtLabs, which uses the same directory: then it is settings.yaml.
func (t *tka) configFile() (string, error) {
	if t.config != "" {
		return t.config, nil
	}
	path, err := t.xdgPath("XDG_CONFIG_HOME", ".config", "AppData", "config.yaml")
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(path), "settings.yaml")
	if _, err := os.Lstat(beside); err == nil {
		return beside, nil
	}
	if text, err := readSettings(path); err == nil {
		if _, err := config.Parse(text); errors.Is(err, config.ErrUpstream) {
			return beside, nil
		}
	}
	return path, nil
}

// stateFile returns the path of the file in which tka stores which server serves which cluster.
func (t *tka) stateFile() (string, error) {
	return t.xdgPath("XDG_STATE_HOME", filepath.Join(".local", "state"), "LocalAppData", "servers.yaml")
}

// runtimeDirs returns the directories for data that lasts no longer than the login to this machine. The first is in memory if the system has
// such a directory; the last is on disk.
func (t *tka) runtimeDirs() (dirs []string) {
	if dir := t.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "tka"))
	}
	if dir, err := t.cacheDir(); err == nil {
		dirs = append(dirs, dir)
	}
	return dirs
}

// cacheDir returns the directory for data that can be fetched again.
func (t *tka) cacheDir() (string, error) {
	path, err := t.xdgPath("XDG_CACHE_HOME", ".cache", "LocalAppData", "cache")
	if err != nil || filepath.IsAbs(t.Getenv("XDG_CACHE_HOME")) || runtime.GOOS != "darwin" && runtime.GOOS != "windows" {
		return filepath.Dir(path), err
	}
	return path, nil // on these systems the cache is in the directory of the state
}

// xdgPath returns the path of one of tka's files: in the XDG directory if it is set, and otherwise in the system's usual directory. It ignores a
// relative XDG directory, because tka must not read its files from the working directory.
func (t *tka) xdgPath(xdg, unix, windows, file string) (string, error) {
	if dir := t.Getenv(xdg); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tka", file), nil
	}
	if runtime.GOOS == "windows" {
		if dir := t.Getenv(windows); filepath.IsAbs(dir) {
			return filepath.Join(dir, "tka", file), nil
		}
	}
	home, err := t.homeDir()
	if err != nil {
		return "", err
	}
	if runtime.GOOS == "darwin" {
		unix = filepath.Join("Library", "Application Support")
	}
	return filepath.Join(home, unix, "tka", file), nil
}

func (t *tka) homeDir() (string, error) {
	name := "HOME"
	if runtime.GOOS == "windows" {
		name = "USERPROFILE"
	}
	home := t.Getenv(name)
	if !filepath.IsAbs(home) {
		return "", output.UsageErrorf("$%s is not the path of your home directory", name).Try("Set $%s, or give the files with --config and --kubeconfig.", name)
	}
	return home, nil
}

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
