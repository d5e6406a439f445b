package cli

import (
	"context"
	"errors"
	"io/fs"
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
	URL     string `yaml:"url"`
	Cluster string `yaml:"cluster"`
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
	if i := slices.IndexFunc(k.Servers, func(s knownServer) bool { return s.URL == base }); i >= 0 {
		return k.Servers[i].Cluster
	}
	return ""
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

// remember notes that the server at base serves cluster.
func (t *tka) remember(ctx context.Context, base, cluster string) error {
	path, err := t.knownFile()
	if err != nil {
		return err
	}
	if k, err := readKnown(path); err == nil {
		if s, ok := k.serving(cluster); ok && s.URL == base {
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
	k.Servers = slices.DeleteFunc(k.Servers, func(s knownServer) bool { return s.Cluster == cluster || s.URL == base })
	k.Servers = append(k.Servers, knownServer{URL: base, Cluster: cluster})
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
