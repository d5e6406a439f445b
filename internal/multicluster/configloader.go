package multicluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// ConfigLoader maintains the runtime configuration and reloads it when its files change. Fields without a remark
// are required.
type ConfigLoader struct {
	File        string // the configuration; without this file the home cluster serves everything
	Credentials string // directory with one directory for each mounted Secret
	Audiences   string // directory with <cluster>/token, for clusters other than home
	// Home has the servers, CA and token file of the pod's own cluster.
	Home apiproxy.UpstreamConfig
	// Scope is optional. It returns the scope of resources that are not built into Kubernetes.
	Scope func(group, resource string) config.Scope
	// CheckUpdate returns an error if a configuration may not replace another while clients hold resource
	// versions of the old one.
	CheckUpdate func(old, next *config.Config) error
	// OnChange is optional. It is called with each new runtime configuration before it serves, and with the
	// previous one, which is nil at first. After an error the new one does not serve.
	OnChange func(old, next *RuntimeConfig) error
	// OnLoad is optional. It is called with the result of each attempt to load.
	OnLoad func(error)
	// Dial and OnProbe are optional. They observe connections to clusters and health probes.
	Dial     func(cluster string, dial apiproxy.Dialer) apiproxy.Dialer
	OnProbe  func(cluster string, took time.Duration)
	Interval time.Duration // the interval between checks of the files
	Log      *slog.Logger
	Now      func() time.Time

	current    atomic.Pointer[RuntimeConfig]
	err        atomic.Pointer[error] // of the last attempt
	fileStates map[string]string     // the state of the files that were read
}

// Current returns the current runtime configuration. It is nil before the first Load.
func (k *ConfigLoader) Current() *RuntimeConfig { return k.current.Load() }

// Err returns why the newest files do not serve, or nil if they do.
func (k *ConfigLoader) Err() error {
	if err := k.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Load reads the files now. After an error the last good configuration remains. The first Load must succeed,
// because there is no earlier one. Callers must not call Load while Run runs.
func (k *ConfigLoader) Load() error {
	if k.File == "" || len(k.Home.Servers) == 0 || k.CheckUpdate == nil || k.Log == nil || k.Now == nil || k.Interval <= 0 {
		panic("multicluster.ConfigLoader: a required field is missing")
	}
	old := k.current.Load()
	k.fileStates = map[string]string{}
	err := k.replace(old)
	k.err.Store(&err)
	if k.OnLoad != nil {
		k.OnLoad(err)
	}
	return err
}

func (k *ConfigLoader) replace(old *RuntimeConfig) error {
	next, warnings, err := k.load(old)
	if err != nil {
		return err
	}
	if old != nil {
		if err := k.CheckUpdate(old.Config(), next.Config()); err != nil {
			return fmt.Errorf("the configuration %s cannot replace the active one: %w", k.File, err)
		}
	}
	for _, w := range warnings {
		k.Log.Warn("the configuration: "+w.Message, "file", k.File, "line", w.Line)
	}
	if k.OnChange != nil {
		if err := k.OnChange(old, next); err != nil {
			return err
		}
	}
	k.current.Store(next)
	if old == nil {
		return nil
	}
	old.closeUnused(next)
	return nil
}

// Run reloads the files when they change, until ctx ends. After a failure it retries, because a Secret may be
// mounted later than the configuration that names it.
func (k *ConfigLoader) Run(ctx context.Context) error {
	tick := time.NewTicker(k.Interval)
	defer tick.Stop()
	reported := ""
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
			reported = ""
			k.Log.Info("the configuration is active", "epoch", k.Current().Config().Epoch, "clusters", len(k.Current().upstreams))
		case err.Error() != reported:
			reported = err.Error()
			k.Log.Error("the configuration is rejected; the last good one stays active", "err", err)
		}
	}
}

// probeTick is how often Probe checks which clusters are due.
const probeTick = time.Second

// RunProbes sends health probes to the clusters that are due, until ctx ends.
func (k *ConfigLoader) RunProbes(ctx context.Context) error {
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	var probes sync.WaitGroup
	defer probes.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, c := range k.Current().Upstreams() {
			if c.ProbeDue() {
				probes.Go(func() { c.RunProbe(ctx) })
			}
		}
	}
}

// recordFile records the state of a path before it is read, so that the next check detects a change meanwhile.
func (k *ConfigLoader) recordFile(path string) { k.fileStates[path] = fileStateOf(path) }

func (k *ConfigLoader) unchanged() bool {
	for path, was := range k.fileStates {
		if fileStateOf(path) != was {
			return false
		}
	}
	return true
}

// fileStateOf returns the state of a file or directory. When the kubelet writes a new version of a ConfigMap or Secret,
// it replaces the link ..data next to the files.
func fileStateOf(path string) string {
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
