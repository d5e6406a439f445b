package roster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// Keeper maintains the runtime configuration and reloads it when its files change. Fields without a remark
// are required.
type Keeper struct {
	File        string // the configuration; without this file the home cluster serves everything
	Credentials string // folder with one folder for each mounted Secret
	Audiences   string // folder with <cluster>/token, for clusters other than home
	// Home has the servers, CA and token file of the pod's own cluster.
	Home upstream.Config
	// Scope is optional. It returns the scope of resources that are not built into Kubernetes.
	Scope func(group, resource string) document.Scope
	// Follows returns an error if a configuration may not replace another while clients hold resource
	// versions of the old one.
	Follows func(old, next *document.Document) error
	// Changed is optional. It is called with each new runtime configuration before it serves, and with the
	// previous one, which is nil at first. After an error the new one does not serve.
	Changed func(old, next *Roster) error
	// Loaded is optional. It is called with the result of each attempt to load.
	Loaded func(error)
	// Dial and Probed are optional. They observe connections to clusters and health probes.
	Dial   func(cluster string, dial upstream.Dialer) upstream.Dialer
	Probed func(cluster string, took time.Duration)
	Every  time.Duration // the interval between checks of the files
	Log    *slog.Logger
	Now    func() time.Time

	now  atomic.Pointer[Roster]
	err  atomic.Pointer[error] // of the last attempt
	seen map[string]string     // the state of the files that were read
}

// Roster returns the current runtime configuration. It is nil before the first Load.
func (k *Keeper) Roster() *Roster { return k.now.Load() }

// Err returns why the newest files do not serve, or nil if they do.
func (k *Keeper) Err() error {
	if err := k.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Load reads the files now. After an error the last good configuration remains. The first Load must succeed,
// because there is no earlier one. Callers must not call Load while Run runs.
func (k *Keeper) Load() error {
	if k.File == "" || len(k.Home.Servers) == 0 || k.Follows == nil || k.Log == nil || k.Now == nil || k.Every <= 0 {
		panic("roster: a required field is missing")
	}
	old := k.now.Load()
	k.seen = map[string]string{}
	err := k.replace(old)
	k.err.Store(&err)
	if k.Loaded != nil {
		k.Loaded(err)
	}
	return err
}

func (k *Keeper) replace(old *Roster) error {
	next, warnings, err := k.load(old)
	if err != nil {
		return err
	}
	if old != nil {
		if err := k.Follows(old.Document(), next.Document()); err != nil {
			return fmt.Errorf("the configuration %s cannot follow the one that serves: %w", k.File, err)
		}
	}
	for _, w := range warnings {
		k.Log.Warn("the configuration: "+w.Message, "file", k.File, "line", w.Line)
	}
	if k.Changed != nil {
		if err := k.Changed(old, next); err != nil {
			return err
		}
	}
	k.now.Store(next)
	if old == nil {
		return nil
	}
	old.leave(next)
	return nil
}

// Run reloads the files when they change, until ctx ends. After a failure it retries, because a Secret may be
// mounted later than the configuration that names it.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.Every)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if k.Err() == nil && k.unchanged() {
			continue
		}
		switch err := k.Load(); {
		case err == nil:
			said = ""
			k.Log.Info("the configuration was taken", "epoch", k.Roster().Document().Epoch, "clusters", len(k.Roster().clusters))
		case err.Error() != said:
			said = err.Error()
			k.Log.Error("the configuration is not taken; the last good one serves on", "err", err)
		}
	}
}

// probeTick is how often Probe checks which clusters are due.
const probeTick = time.Second

// Probe sends health probes to the clusters that are due, until ctx ends.
func (k *Keeper) Probe(ctx context.Context) error {
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, c := range k.Roster().Clusters() {
			if c.Due() {
				asking.Go(func() { c.Look(ctx) })
			}
		}
	}
}

// note records the state of a path before it is read, so that the next check detects a change meanwhile.
func (k *Keeper) note(path string) { k.seen[path] = look(path) }

func (k *Keeper) unchanged() bool {
	for path, was := range k.seen {
		if look(path) != was {
			return false
		}
	}
	return true
}

// look returns the state of a file or folder. When the kubelet writes a new version of a ConfigMap or Secret,
// it replaces the link ..data next to the files.
func look(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	link, err := os.Readlink(filepath.Join(filepath.Dir(path), "..data"))
	if err != nil {
		link = ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size(), link)
}
