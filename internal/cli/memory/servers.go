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

// Servers is what this machine stores about servers: the key that each one proved at first contact, and the server of each cluster, which
// kubectl's plugin looks up. It holds no secret.
type Servers struct {
	Servers []Known `yaml:"servers"`
}

// A Known is what is stored about one server.
type Known struct {
	URL        string         `yaml:"url"`
	Cluster    string         `yaml:"cluster"`
	Key        door.PublicKey `yaml:"key,omitempty"`
	Chosen     bool           `yaml:"chosen,omitempty"`   // of several servers of the cluster, the one last signed in to
	CASHA256   string         `yaml:"caSHA256,omitempty"` // of the cluster's authority
	Login      string         `yaml:"login,omitempty"`    // of the last sign-in from this machine
	Role       string         `yaml:"role,omitempty"`
	Namespaces []string       `yaml:"namespaces,omitempty"`
}

// At returns what is stored about the server at base.
func (k Servers) At(base string) (Known, bool) {
	i := slices.IndexFunc(k.Servers, func(s Known) bool { return s.URL == base })
	if i < 0 {
		return Known{}, false
	}
	return k.Servers[i], true
}

// Serving returns the server through which this machine last signed in to a cluster, or else a server that is known to serve it.
func (k Servers) Serving(cluster string) (found Known, ok bool) {
	for _, s := range k.Servers {
		if s.Cluster == cluster && (!ok || s.Chosen) {
			found, ok = s, true
		}
	}
	return found, ok
}

// ClusterOf returns the cluster of a server, or "" if it is unknown.
func (k Servers) ClusterOf(base string) string {
	s, _ := k.At(base)
	return s.Cluster
}

// Note updates what is stored about the server at base. If the server is then chosen, Note clears Chosen of the other servers of its
// cluster.
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

// ReadServers reads servers.yaml. The file may be missing.
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

// EditServers changes servers.yaml with edit. It may call edit twice: first to see whether anything changes, and then on the file's content
// under the lock.
func EditServers(ctx context.Context, path string, edit func(*Servers)) error {
	if k, err := ReadServers(path); err == nil {
		changed := Servers{slices.Clone(k.Servers)}
		if edit(&changed); reflect.DeepEqual(k, changed) {
			return nil // nothing to write, so no need to wait for the lock
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
