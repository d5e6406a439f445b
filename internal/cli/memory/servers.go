package memory

import (
	"context"
	"errors"
	"io/fs"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/door"
)

// Servers are what this machine remembers of servers: the key by which each proved
// itself the first time, and which one serves a cluster, by which the plugin
// that kubectl runs finds it. It holds no secret.
type Servers struct {
	Servers []Known `yaml:"servers"`
}

// A Known is one server.
type Known struct {
	URL        string         `yaml:"url"`
	Cluster    string         `yaml:"cluster"`
	Key        door.PublicKey `yaml:"key,omitempty"`
	Chosen     bool           `yaml:"chosen,omitempty"`   // of several servers of the cluster, the one last signed in to
	CASHA256   string         `yaml:"caSHA256,omitempty"` // of the cluster's authority
	Login      string         `yaml:"login,omitempty"`    // of the last sign-in from here
	Role       string         `yaml:"role,omitempty"`
	Namespaces []string       `yaml:"namespaces,omitempty"`
}

// At is what is known of the server at base.
func (k Servers) At(base string) (Known, bool) {
	i := slices.IndexFunc(k.Servers, func(s Known) bool { return s.URL == base })
	if i < 0 {
		return Known{}, false
	}
	return k.Servers[i], true
}

// Serving is the server that was last signed in to for a cluster, else one that
// is known to serve it.
func (k Servers) Serving(cluster string) (found Known, ok bool) {
	for _, s := range k.Servers {
		if s.Cluster == cluster && (!ok || s.Chosen) {
			found, ok = s, true
		}
	}
	return found, ok
}

// ClusterOf is the cluster of a server, "" if it is not known.
func (k Servers) ClusterOf(base string) string {
	s, _ := k.At(base)
	return s.Cluster
}

// Note notes what is known of the server at base. A server that is chosen takes
// the place of others of its cluster.
func (k *Servers) Note(base string, set func(*Known)) {
	i := slices.IndexFunc(k.Servers, func(s Known) bool { return s.URL == base })
	if i < 0 {
		i = len(k.Servers)
		k.Servers = append(k.Servers, Known{URL: base})
	}
	set(&k.Servers[i])
	for j := range k.Servers {
		if other := &k.Servers[j]; j != i && other.Cluster == k.Servers[i].Cluster && k.Servers[i].Chosen {
			other.Chosen = false
		}
	}
}

// ReadServers reads servers.yaml, which need not be there.
func ReadServers(path string) (Servers, error) {
	var k Servers
	text, err := ownfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil {
		return k, fault.New(fault.Failed, "what tka knows of servers cannot be read: %v", err).Because(err).Try("Remove %s; signing in writes it anew.", path)
	}
	for _, s := range k.Servers {
		if _, err := reach.ParseURL(s.URL, true); err != nil || !reach.IsCluster(s.Cluster) {
			return Servers{}, fault.New(fault.Failed, "what tka knows of servers is damaged: %q for %q", reach.Redacted(s.URL), s.Cluster).Try("Remove %s; signing in writes it anew.", path)
		}
	}
	return k, nil
}

// EditServers changes servers.yaml by edit, which is called once more on what is
// there under the lock.
func EditServers(ctx context.Context, path string, edit func(*Servers)) error {
	if k, err := ReadServers(path); err == nil {
		changed := Servers{slices.Clone(k.Servers)}
		if edit(&changed); reflect.DeepEqual(k, changed) {
			return nil // nothing to write, and no lock to wait for
		}
	}
	l, err := ownfile.LockAll(ctx, []string{path})
	if err != nil {
		return err
	}
	defer l.Release()
	k, err := ReadServers(path)
	if err != nil {
		return err
	}
	edit(&k)
	text, err := yaml.Marshal(k)
	if err != nil {
		return err
	}
	return ownfile.Write(path, text)
}
