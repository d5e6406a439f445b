package cli

import (
	"path/filepath"
	"runtime"

	"github.com/tailplane/tailplane/internal/cli/fault"
)

// configFile is where the settings are; --config overrules it.
func (t *tka) configFile() (string, error) {
	if t.config != "" {
		return t.config, nil
	}
	return t.folder("XDG_CONFIG_HOME", ".config", "AppData", "config.yaml")
}

// knownFile is where tka keeps which server serves which cluster.
func (t *tka) knownFile() (string, error) {
	return t.folder("XDG_STATE_HOME", filepath.Join(".local", "state"), "LocalAppData", "servers.yaml")
}

// runFolders are where things may lie that end with the login to this machine or
// soon: in memory where the system has a place for that, else on disk.
func (t *tka) runFolders() (dirs []string) {
	if dir := t.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "tka"))
	}
	if dir, err := t.cacheFolder(); err == nil {
		dirs = append(dirs, dir)
	}
	return dirs
}

// cacheFolder is where tka keeps what can be had again.
func (t *tka) cacheFolder() (string, error) {
	path, err := t.folder("XDG_CACHE_HOME", ".cache", "LocalAppData", "cache")
	if err != nil || filepath.IsAbs(t.Getenv("XDG_CACHE_HOME")) || runtime.GOOS != "darwin" && runtime.GOOS != "windows" {
		return filepath.Dir(path), err
	}
	return path, nil // these systems keep it in the folder of the state
}

// folder is the path of a file of ours: in the XDG folder where that is set, in
// the system's own one otherwise. A relative XDG folder is ignored: nothing of
// ours is read from the working directory.
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
