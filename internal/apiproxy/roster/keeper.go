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

// A Keeper keeps the roster in step with its files. Fields without a remark are required.
type Keeper struct {
	File        string // of the document; when it is not there the home cluster serves all
	Credentials string // folder with a folder for each mounted Secret
	Audiences   string // folder with <cluster>/token, for clusters other than home
	// Home has the servers, authority and token file of the pod's own cluster.
	Home upstream.Config
	// Scope is optional: the scope of resources that are not Kubernetes' own.
	Scope func(group, resource string) document.Scope
	// Follows says whether a document may follow another while clients stand
	// somewhere in what the other showed them.
	Follows func(old, next *document.Document) error
	// Changed, optional, is told of each roster before it serves, with the one
	// before it, nil at first. By an error it does not serve.
	Changed func(old, next *Roster) error
	// Loaded, optional, is told how each attempt to load ended.
	Loaded func(error)
	// Dial and Probed, optional, are told of connections to clusters, and of
	// questions whether they are there.
	Dial   func(cluster string, dial upstream.Dialer) upstream.Dialer
	Probed func(cluster string, took time.Duration)
	Every  time.Duration // how often the files are looked at
	Log    *slog.Logger
	Now    func() time.Time

	now  atomic.Pointer[Roster]
	err  atomic.Pointer[error] // of the last attempt
	seen map[string]string     // what the files that it read were like
}

// Roster returns the one that serves. It is nil before the first Load.
func (k *Keeper) Roster() *Roster { return k.now.Load() }

// Err is why the newest files are not what serves; nil if they are.
func (k *Keeper) Err() error {
	if err := k.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Load reads the files now. An error leaves the last good roster; the first must
// succeed, for there is nothing to fall back to. Load is for before Run.
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

// Run follows the files until ctx ends. What could not be taken is tried again,
// as a Secret may be mounted later than the document that names it.
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

// probeTick is how often it is seen which clusters are to be asked.
const probeTick = time.Second

// Probe asks clusters whether they are there, when they are due, until ctx ends.
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

// note remembers what a path is like, before it is read: what changes meanwhile
// is seen the next time.
func (k *Keeper) note(path string) { k.seen[path] = look(path) }

func (k *Keeper) unchanged() bool {
	for path, was := range k.seen {
		if look(path) != was {
			return false
		}
	}
	return true
}

// look says what a file or folder is like. The kubelet exchanges the link ..data
// beside the files of a ConfigMap or Secret when it writes another version.
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
