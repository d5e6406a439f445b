package cli

import (
	"path/filepath"
	"runtime"

	"github.com/tailplane/tailplane/internal/cli/fault"
)

// configFile returns the path of the settings file. --config overrides it.
func (t *tka) configFile() (string, error) {
	if t.config != "" {
		return t.config, nil
	}
	return t.folder("XDG_CONFIG_HOME", ".config", "AppData", "config.yaml")
}

// knownFile returns the path of the file in which tka stores which server serves which cluster.
func (t *tka) knownFile() (string, error) {
	return t.folder("XDG_STATE_HOME", filepath.Join(".local", "state"), "LocalAppData", "servers.yaml")
}

// runFolders returns the folders for data that lasts no longer than the login to this machine. The first is in memory if the system has
// such a folder; the last is on disk.
func (t *tka) runFolders() (dirs []string) {
	if dir := t.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "tka"))
	}
	if dir, err := t.cacheFolder(); err == nil {
		dirs = append(dirs, dir)
	}
	return dirs
}

// cacheFolder returns the folder for data that can be fetched again.
func (t *tka) cacheFolder() (string, error) {
	path, err := t.folder("XDG_CACHE_HOME", ".cache", "LocalAppData", "cache")
	if err != nil || filepath.IsAbs(t.Getenv("XDG_CACHE_HOME")) || runtime.GOOS != "darwin" && runtime.GOOS != "windows" {
		return filepath.Dir(path), err
	}
	return path, nil // on these systems the cache is in the folder of the state
}

// folder returns the path of one of tka's files: in the XDG folder if it is set, and otherwise in the system's usual folder. It ignores a
// relative XDG folder, because tka must not read its files from the working directory.
func (t *tka) folder(xdg, unix, windows, file string) (string, error) {
	if dir := t.Getenv(xdg); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tka", file), nil
	}
	if runtime.GOOS == "windows" {
		if dir := t.Getenv(windows); filepath.IsAbs(dir) {
			return filepath.Join(dir, "tka", file), nil
		}
	}
	home, err := t.home()
	if err != nil {
		return "", err
	}
	if runtime.GOOS == "darwin" {
		unix = filepath.Join("Library", "Application Support")
	}
	return filepath.Join(home, unix, "tka", file), nil
}

func (t *tka) home() (string, error) {
	name := "HOME"
	if runtime.GOOS == "windows" {
		name = "USERPROFILE"
	}
	home := t.Getenv(name)
	if !filepath.IsAbs(home) {
		return "", fault.Usage("$%s does not name your home folder", name).Try("Set $%s, or name the files with --config and --kubeconfig.", name)
	}
	return home, nil
}
