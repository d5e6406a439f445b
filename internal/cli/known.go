package cli

import (
	"context"
	"errors"
	"io/fs"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"github.com/tailplane/tailplane/internal/door"
)

// known is what this machine remembers of servers: the key by which each proved
// itself the first time, and which one serves a cluster, by which the plugin
// that kubectl runs finds it. It holds no secret.
type known struct {
	Servers []knownServer `yaml:"servers"`
}

type knownServer struct {
	URL        string         `yaml:"url"`
	Cluster    string         `yaml:"cluster"`
	Key        door.PublicKey `yaml:"key,omitempty"`
	Chosen     bool           `yaml:"chosen,omitempty"`   // of several servers of the cluster, the one last signed in to
	CASHA256   string         `yaml:"caSHA256,omitempty"` // of the cluster's authority
	Login      string         `yaml:"login,omitempty"`    // of the last sign-in from here
	Role       string         `yaml:"role,omitempty"`
	Namespaces []string       `yaml:"namespaces,omitempty"`
}

// at is what is known of the server at base.
func (k known) at(base string) (knownServer, bool) {
	i := slices.IndexFunc(k.Servers, func(s knownServer) bool { return s.URL == base })
	if i < 0 {
		return knownServer{}, false
	}
	return k.Servers[i], true
}

// serving is the server that was last signed in to for a cluster, else one that
// is known to serve it.
func (k known) serving(cluster string) (found knownServer, ok bool) {
	for _, s := range k.Servers {
		if s.Cluster == cluster && (!ok || s.Chosen) {
			found, ok = s, true
		}
	}
	return found, ok
}

// clusterOf is the cluster of a server, "" if it is not known.
func (k known) clusterOf(base string) string {
	s, _ := k.at(base)
	return s.Cluster
}

// known reads what this machine remembers.
func (t *tka) known() (known, error) {
	path, err := t.knownFile()
	if err != nil {
		return known{}, err
	}
	return readKnown(path)
}

func readKnown(path string) (known, error) {
	var k known
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
		if _, err := parseURL(s.URL, true); err != nil || !clusterForm.MatchString(s.Cluster) {
			return known{}, fault.New(fault.Failed, "what tka knows of servers is damaged: %q for %q", s.URL, s.Cluster).Try("Remove %s; signing in writes it anew.", path)
		}
	}
	return k, nil
}

// remember notes what is known of the server at base. A server that is chosen
// takes the place of others of its cluster.
func (t *tka) remember(ctx context.Context, base string, set func(*knownServer)) error {
	return t.editKnown(ctx, func(k *known) {
		i := slices.IndexFunc(k.Servers, func(s knownServer) bool { return s.URL == base })
		if i < 0 {
			i = len(k.Servers)
			k.Servers = append(k.Servers, knownServer{URL: base})
		}
		set(&k.Servers[i])
		for j := range k.Servers {
			if other := &k.Servers[j]; j != i && other.Cluster == k.Servers[i].Cluster && k.Servers[i].Chosen {
				other.Chosen = false
			}
		}
	})
}

// editKnown changes what this machine remembers by edit, which is called once
// more on what is there under the lock.
func (t *tka) editKnown(ctx context.Context, edit func(*known)) error {
	path, err := t.knownFile()
	if err != nil {
		return err
	}
	if k, err := readKnown(path); err == nil {
		changed := known{slices.Clone(k.Servers)}
		if edit(&changed); reflect.DeepEqual(k, changed) {
			return nil // nothing to write, and no lock to wait for
		}
	}
	l, err := ownfile.LockAll(ctx, []string{path})
	if err != nil {
		return err
	}
	defer l.Release()
	k, err := readKnown(path)
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

// serverNames and clusterNames complete flags.
func (t *tka) serverNames() []string {
	var names []string
	if set, err := t.settings(); err == nil {
		for _, e := range set.Servers {
			names = append(names, e.Name)
		}
	}
	return names
}

func (t *tka) clusterNames() []string {
	var names []string
	if k, err := t.known(); err == nil {
		for _, s := range k.Servers {
			names = append(names, s.Cluster)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
