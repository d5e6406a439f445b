package cli

import (
	"context"
	"errors"
	"io/fs"
	"reflect"
	"slices"

	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"go.yaml.in/yaml/v3"
)

// known is what this machine remembers of the servers it signed in to: by it
// the plugin that kubectl runs finds the server of a cluster. It holds no secret.
type known struct {
	Servers []knownServer `yaml:"servers"`
}

type knownServer struct {
	URL        string   `yaml:"url"`
	Cluster    string   `yaml:"cluster"`
	CASHA256   string   `yaml:"caSHA256,omitempty"` // of the cluster's authority
	Login      string   `yaml:"login,omitempty"`    // of the last sign-in from here
	Role       string   `yaml:"role,omitempty"`
	Namespaces []string `yaml:"namespaces,omitempty"`
}

// at is what is known of the server at base.
func (k known) at(base string) (knownServer, bool) {
	i := slices.IndexFunc(k.Servers, func(s knownServer) bool { return s.URL == base })
	if i < 0 {
		return knownServer{}, false
	}
	return k.Servers[i], true
}

// serving is the server that was last signed in to for a cluster.
func (k known) serving(cluster string) (knownServer, bool) {
	i := slices.IndexFunc(k.Servers, func(s knownServer) bool { return s.Cluster == cluster })
	if i < 0 {
		return knownServer{}, false
	}
	return k.Servers[i], true
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
		return k, fail(exitFailed, "what tka knows of servers cannot be read: %v", err).because(err).try("Remove %s; signing in writes it anew.", path)
	}
	for _, s := range k.Servers {
		if _, err := parseURL(s.URL, true); err != nil || !clusterForm.MatchString(s.Cluster) {
			return known{}, fail(exitFailed, "what tka knows of servers is damaged: %q for %q", s.URL, s.Cluster).try("Remove %s; signing in writes it anew.", path)
		}
	}
	return k, nil
}

// remember notes what a server serves; set changes what is noted beside.
func (t *tka) remember(ctx context.Context, base, cluster string, set func(*knownServer)) error {
	path, err := t.knownFile()
	if err != nil {
		return err
	}
	note := func(k known) (known, bool) {
		have, _ := k.at(base)
		now := have
		now.URL, now.Cluster = base, cluster
		set(&now)
		if s, ok := k.serving(cluster); ok && s.URL == base && reflect.DeepEqual(have, now) {
			return k, false
		}
		k.Servers = slices.DeleteFunc(k.Servers, func(s knownServer) bool { return s.Cluster == cluster || s.URL == base })
		k.Servers = append(k.Servers, now)
		return k, true
	}
	if k, err := readKnown(path); err == nil {
		if _, changed := note(k); !changed {
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
	k, _ = note(k)
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
	return names
}
