package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
)

// settings reads the settings file once. An invalid file is a usage error: exit code 2.
func (t *tka) settings() (*memory.Settings, error) {
	if t.loaded != nil {
		return t.loaded, nil
	}
	path, err := t.configFile()
	if err != nil {
		return nil, err
	}
	text, err := readSettings(path)
	if errors.Is(err, fs.ErrNotExist) && t.config != "" {
		return nil, fault.Usage("there is no settings file %s", path).Because(err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Usage("the settings cannot be read: %v", err).Because(err)
	}
	set, err := memory.Parse(text)
	if err != nil {
		return nil, fault.Usage("%s %v", path, err).Try("See the keys: tka config --help").Because(err)
	}
	t.loaded = &set
	return t.loaded, nil
}

func readSettings(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ownfile.ReadAll(f, path)
}

// known reads what this machine stores about servers.
func (t *tka) known() (memory.Servers, error) {
	path, err := t.knownFile()
	if err != nil {
		return memory.Servers{}, err
	}
	return memory.ReadServers(path)
}

// remember stores facts about the server at base.
func (t *tka) remember(ctx context.Context, base string, set func(*memory.Known)) error {
	return t.editKnown(ctx, func(k *memory.Servers) { k.Note(base, set) })
}

func (t *tka) editKnown(ctx context.Context, edit func(*memory.Servers)) error {
	path, err := t.knownFile()
	if err != nil {
		return err
	}
	return memory.EditServers(ctx, path, edit)
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

func (t *tka) knownNames(context.Context) []string {
	var names []string
	if k, err := t.known(); err == nil {
		for _, s := range k.Servers {
			names = append(names, s.Cluster)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
