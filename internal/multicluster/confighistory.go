package multicluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// maxHistory limits the stored configurations. If there are more, every collection counts as moved.
const maxHistory = 16

// ConfigHistory holds the configurations that this pod's adapter has used. Clients may hold resource versions from
// each of them. The state directory therefore keeps them for the life of the pod, across restarts of the
// container.
type ConfigHistory struct {
	// Tables are the routing tables of the configurations, in no particular order.
	Tables []*Table
	// Incomplete means that there were more, or that one cannot be read.
	Incomplete bool

	dir   string
	names []string
}

// Files of a ConfigHistory: one for each configuration, named by its hash, and one that marks that there were more.
const (
	historySuffix     = ".yaml"
	historyIncomplete = "more"
)

// OpenConfigHistory reads the state directory, which may not exist yet.
func OpenConfigHistory(dir string, scope func(group, resource string) config.Scope) (*ConfigHistory, error) {
	p := &ConfigHistory{dir: dir}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("past configurations: %w", err)
	}
	for _, e := range entries {
		if e.Name() == historyIncomplete {
			p.Incomplete = true
		}
		name, ok := strings.CutSuffix(e.Name(), historySuffix)
		if !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("past configurations: %w", err)
		}
		conf := config.Default()
		if len(b) > 0 {
			if conf, _, err = config.Parse(b); err != nil { // an earlier version of this program accepted it
				p.Incomplete = true
				continue
			}
		}
		p.names, p.Tables = append(p.names, name), append(p.Tables, NewTable(conf, scope))
	}
	return p, nil
}

// Add returns a ConfigHistory that also has the configuration of r, and writes it to the directory.
func (p *ConfigHistory) Add(r *RuntimeConfig) (*ConfigHistory, error) {
	sum := sha256.Sum256(r.text)
	name := hex.EncodeToString(sum[:16])
	if slices.Contains(p.names, name) {
		return p, nil
	}
	next := &ConfigHistory{Tables: p.Tables, Incomplete: p.Incomplete, dir: p.dir, names: p.names}
	file := name + historySuffix
	if len(p.Tables) >= maxHistory {
		next.Incomplete, file = true, historyIncomplete
	} else {
		next.names, next.Tables = append(slices.Clip(p.names), name), append(slices.Clip(p.Tables), r.Table)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return next, fmt.Errorf("past configurations: %w", err)
	}
	at := filepath.Join(p.dir, file)
	if err := os.WriteFile(at+".new", r.text, 0o600); err != nil {
		return next, fmt.Errorf("past configurations: %w", err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		return next, fmt.Errorf("past configurations: %w", err)
	}
	return next, nil
}

// Moved reports whether another cluster may have served a collection that one cluster serves now, so that
// clients may hold its resource versions.
func (p *ConfigHistory) Moved(t *Table, r *apiproxy.Request, input RouteInput) bool {
	return p.Incomplete || t.movedSince(p.Tables, r, input)
}
