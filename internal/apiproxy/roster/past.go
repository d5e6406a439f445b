package roster

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
	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

// maxPast limits the stored configurations. If there are more, every collection counts as moved.
const maxPast = 16

// Past holds the configurations that this pod's adapter has used. Clients may hold resource versions from
// each of them. The state folder therefore keeps them for the life of the pod, across restarts of the
// container.
type Past struct {
	// Tables are the routing tables of the configurations, in no particular order.
	Tables []*apiproxy.Table
	// Lost means that there were more, or that one cannot be read.
	Lost bool

	dir   string
	names []string
}

// Files of a Past: one for each configuration, named by its hash, and one that marks that there were more.
const (
	pastSuffix = ".yaml"
	pastLost   = "more"
)

// OpenPast reads the state folder, which may not exist yet.
func OpenPast(dir string, scope func(group, resource string) document.Scope) (*Past, error) {
	p := &Past{dir: dir}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("past configurations: %w", err)
	}
	for _, e := range entries {
		if e.Name() == pastLost {
			p.Lost = true
		}
		name, ok := strings.CutSuffix(e.Name(), pastSuffix)
		if !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("past configurations: %w", err)
		}
		doc := document.Default()
		if len(b) > 0 {
			if doc, _, err = document.Parse(b); err != nil { // an earlier version of this program accepted it
				p.Lost = true
				continue
			}
		}
		p.names, p.Tables = append(p.names, name), append(p.Tables, apiproxy.NewTable(doc, scope))
	}
	return p, nil
}

// With returns a Past that also has the configuration of r, and writes it to the folder.
func (p *Past) With(r *Roster) (*Past, error) {
	sum := sha256.Sum256(r.text)
	name := hex.EncodeToString(sum[:16])
	if slices.Contains(p.names, name) {
		return p, nil
	}
	next := &Past{Tables: p.Tables, Lost: p.Lost, dir: p.dir, names: p.names}
	file := name + pastSuffix
	if len(p.Tables) >= maxPast {
		next.Lost, file = true, pastLost
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
func (p *Past) Moved(t *apiproxy.Table, r *apiproxy.Request, beside apiproxy.Beside) bool {
	return p.Lost || t.Retargeted(p.Tables, r, beside)
}
