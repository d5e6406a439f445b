package config

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// State is what this machine stores about servers: the key that each one proved at first contact, and the server of each cluster, which
// kubectl's plugin looks up. It holds no secret.
type State struct {
	Servers []ServerRecord `yaml:"servers"`
}

// A ServerRecord is what is stored about one server.
type ServerRecord struct {
	URL      string            `yaml:"url"`
	Cluster  string            `yaml:"cluster"`
	Key      httpapi.PublicKey `yaml:"key,omitempty"`
	Chosen   bool              `yaml:"chosen,omitempty"`   // of several servers of the cluster, the one last signed in to
	CASHA256 string            `yaml:"caSHA256,omitempty"` // of the cluster's authority
	Login    string            `yaml:"login,omitempty"`    // of the last sign-in from this machine
	Replicas []string          `yaml:"replicas,omitempty"` // URLs of the cluster's other servers, as this server proved; each must prove the key itself

	OIDC bool `yaml:"oidc,omitempty"` // it accepts OIDC tokens of jobs and people

	Default  SessionRecord            `yaml:",inline"` // the default session
	Sessions map[string]SessionRecord `yaml:"sessions,omitempty"`
}

// A SessionRecord is what is stored about the last sign-in of a session.
type SessionRecord struct {
	Role       string    `yaml:"role,omitempty"`
	Namespaces []string  `yaml:"namespaces,omitempty"`
	Until      time.Time `yaml:"until,omitempty"` // zero if it was ended
}

// Session returns what is stored about a session; "" is the default one.
func (s ServerRecord) Session(name string) SessionRecord {
	if name == "" {
		return s.Default
	}
	return s.Sessions[name]
}

// SetSession stores what is known about a session. It forgets a session other than the default one when it has no end, and those that ended
// before now.
func (s *ServerRecord) SetSession(name string, to SessionRecord, now time.Time) {
	if name == "" {
		s.Default = to
		return
	}
	all := maps.Clone(s.Sessions)
	if all == nil {
		all = map[string]SessionRecord{}
	}
	all[name] = to
	maps.DeleteFunc(all, func(_ string, r SessionRecord) bool { return !r.Until.After(now) })
	s.Sessions = all
}

// Live returns the sessions of this machine at the server that have not ended at now, sorted. The default session is "".
func (s ServerRecord) Live(now time.Time) (names []string) {
	if s.Default.Until.After(now) {
		names = append(names, "")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Sessions)) {
		if s.Sessions[name].Until.After(now) {
			names = append(names, name)
		}
	}
	return names
}

// Server returns what is stored about the server at base.
func (k State) Server(base string) (ServerRecord, bool) {
	if i := k.index(base); i >= 0 {
		return k.Servers[i], true
	}
	return ServerRecord{}, false
}

// index returns the index of the server at base, or -1.
func (k State) index(base string) int {
	return slices.IndexFunc(k.Servers, func(s ServerRecord) bool { return s.URL == base })
}

// ServerOf returns the server through which this machine last signed in to a cluster, or else a server that is known to serve it.
func (k State) ServerOf(cluster string) (found ServerRecord, ok bool) {
	for _, s := range k.Servers {
		if s.Cluster == cluster && (!ok || s.Chosen) {
			found, ok = s, true
		}
	}
	return found, ok
}

// Update updates what is stored about the server at base. If the server is then chosen, Update clears Chosen of the other servers of its
// cluster.
func (k *State) Update(base string, set func(*ServerRecord)) {
	i := k.index(base)
	if i < 0 {
		i = len(k.Servers)
		k.Servers = append(k.Servers, ServerRecord{URL: base})
	}
	set(&k.Servers[i])
	for j := range k.Servers {
		if other := &k.Servers[j]; j != i && other.Cluster == k.Servers[i].Cluster && k.Servers[i].Chosen {
			other.Chosen = false
		}
	}
}

// ReadState reads servers.yaml. The file may be missing.
func ReadState(path string) (State, error) {
	var k State
	text, err := safefile.Read(path)
	if err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil {
		return k, output.Errorf(output.ExitFailed, "the file of known servers cannot be read: %v", err).Because(err).Try("Remove %s; the next sign-in writes it again.", path)
	}
	for _, s := range k.Servers {
		if _, err := dialpolicy.ParseURL(s.URL, true); err != nil || !dialpolicy.IsClusterName(s.Cluster) {
			return State{}, output.Errorf(output.ExitFailed, "the file of known servers is damaged: %q for %q", dialpolicy.RedactURL(s.URL), s.Cluster).Try("Remove %s; the next sign-in writes it again.", path)
		}
	}
	return k, nil
}

// EditState changes servers.yaml with edit. It may call edit twice: first to see whether anything changes, and then on the file's content
// under the lock.
func EditState(ctx context.Context, path string, edit func(*State)) error {
	if k, err := ReadState(path); err == nil {
		changed := State{slices.Clone(k.Servers)}
		if edit(&changed); reflect.DeepEqual(k, changed) {
			return nil // nothing to write, so no need to wait for the lock
		}
	}
	l, err := safefile.LockAll(ctx, []string{path})
	if err != nil {
		return err
	}
	defer l.Release()
	k, err := ReadState(path)
	if err != nil {
		return err
	}
	edit(&k)
	text, err := yaml.Marshal(k)
	if err != nil {
		return err
	}
	return safefile.Write(path, text)
}
