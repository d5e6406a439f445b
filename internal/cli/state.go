package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/tailplane/tailplane/internal/cli/config"
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

// serverNames and knownNames return completions of flags, from this machine's files.
func (t *tka) serverNames(context.Context) []string {
	var names []string
	if set, err := t.settings(); err == nil {
		for _, e := range set.Servers {
			names = append(names, e.Name)
		}
	}
	return names
}

func (t *tka) knownClusterNames(context.Context) []string {
	var names []string
	if k, err := t.state(); err == nil {
		for _, s := range k.Servers {
			names = append(names, s.Cluster)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
