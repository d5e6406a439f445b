package cli

import (
	"path/filepath"
	"runtime"

	"github.com/tailplane/tailplane/internal/cli/output"
)

// configFile returns the path of the settings file. --config overrides it.
func (t *tka) configFile() (string, error) {
	if t.config != "" {
		return t.config, nil
	}
	return t.xdgPath("XDG_CONFIG_HOME", ".config", "AppData", "config.yaml")
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
