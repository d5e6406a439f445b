// Package roster manages the adapter's runtime configuration: the parsed configuration and clients for its
// clusters. It replaces the runtime configuration while requests continue. It keeps law 7: a configuration
// that cannot serve is reported and not used, and the last good one remains.
package roster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// Roster is a configuration with the clients of its clusters. It is immutable.
type Roster struct {
	Table    *apiproxy.Table
	clusters map[string]*upstream.Cluster
	plans    map[string]plan // the settings that each cluster was created from
	text     []byte          // of the configuration; nil: there was no file
}

// Document returns the configuration. Callers must not change it.
func (r *Roster) Document() *document.Document { return r.Table.Document() }

// Cluster returns the cluster with that name, or nil.
func (r *Roster) Cluster(name string) *upstream.Cluster { return r.clusters[name] }

// Clusters returns all clusters in the order of the configuration.
func (r *Roster) Clusters() []*upstream.Cluster {
	all := make([]*upstream.Cluster, 0, len(r.clusters))
	for _, c := range r.Document().Clusters {
		all = append(all, r.clusters[c.Name])
	}
	return all
}

// leave closes the idle connections of the clusters that next does not reuse.
func (r *Roster) leave(next *Roster) {
	for name, c := range r.clusters {
		if next == nil || next.clusters[name] != c {
			c.Close()
		}
	}
}

// plan holds the settings of a cluster. While they stay the same, the client of the cluster is reused, with
// its connections and health.
type plan struct {
	servers               []string // host:port
	serverName            string
	ca, token, folder     string // paths
	limits                upstream.Limits
	probe                 upstream.Probe
	uid                   string
	allowLoopback, inside bool
	audience              bool // the token must not be valid for home
}

// load reads the configuration and the files that it names. The findings are warnings.
func (k *Keeper) load(last *Roster) (*Roster, []document.Finding, error) {
	doc := document.Default()
	var warnings []document.Finding
	k.note(k.File)
	b, err := os.ReadFile(k.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, nil, fmt.Errorf("the configuration: %w", err)
	default:
		if doc, warnings, err = document.Parse(b); err != nil {
			return nil, nil, fmt.Errorf("the configuration %s: %w", k.File, err)
		}
	}
	r := &Roster{text: b, Table: apiproxy.NewTable(doc, k.Scope), clusters: map[string]*upstream.Cluster{}, plans: map[string]plan{}}
	for i := range doc.Clusters {
		d := &doc.Clusters[i]
		p, err := k.plan(d)
		if err != nil {
			return nil, nil, fmt.Errorf("cluster %s: %w", d.Name, err)
		}
		r.plans[d.Name] = p
		if last != nil && last.clusters[d.Name] != nil && reflect.DeepEqual(last.plans[d.Name], p) {
			r.clusters[d.Name] = last.clusters[d.Name]
			continue
		}
		r.clusters[d.Name] = k.cluster(d.Name, p)
	}
	return r, warnings, nil
}

// plan returns the settings of a cluster.
func (k *Keeper) plan(d *document.Cluster) (plan, error) {
	p := plan{limits: upstream.Limits(d.Limits), probe: upstream.Probe(d.Health), uid: d.UID, allowLoopback: d.AllowLoopback}
	switch {
	case d.InCluster:
		p.servers, p.ca, p.token, p.inside = k.Home.Servers, k.Home.CAFile, k.Home.TokenFile, true
	case d.Secret != "":
		p.folder = filepath.Join(k.Credentials, d.Secret)
		k.note(p.folder)
		files, err := upstream.ReadFolder(p.folder)
		if err != nil {
			return plan{}, err
		}
		c, err := document.ReadCredential(files, d.AllowLoopback)
		if err != nil {
			return plan{}, err
		}
		p.servers, p.serverName = hosts(c.Servers), c.TLSServerName
	default:
		var urls []*url.URL
		for _, s := range d.Servers {
			u, err := document.CheckServer(s, d.AllowLoopback)
			if err != nil {
				return plan{}, err
			}
			urls = append(urls, u)
		}
		p.servers, p.ca = hosts(urls), filepath.Join(k.Credentials, d.CAFile)
		p.token, p.audience = filepath.Join(k.Audiences, d.Name, "token"), true
	}
	return p, nil
}

// hosts returns the host:port of URLs.
func hosts(urls []*url.URL) (all []string) {
	for _, u := range urls {
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "443")
		}
		all = append(all, host)
	}
	return all
}

// cluster creates the client of a cluster.
func (k *Keeper) cluster(name string, p plan) *upstream.Cluster {
	c := upstream.Config{Name: name, Servers: p.servers, ServerName: p.serverName, CAFile: p.ca, TokenFile: p.token, Folder: p.folder,
		Limits: p.limits, Probe: p.probe, UID: p.uid, Log: k.Log, Now: k.Now}
	if k.Dial != nil {
		c.Dial = func(dial upstream.Dialer) upstream.Dialer { return k.Dial(name, dial) }
	}
	if k.Probed != nil {
		c.Probed = func(took time.Duration) { k.Probed(name, took) }
	}
	if !p.inside {
		c.Reaches = func(a netip.Addr) error { return document.CheckAddr(a, p.allowLoopback) }
	}
	if p.audience {
		c.Vet = func(token []byte) error {
			home, err := os.ReadFile(k.Home.TokenFile)
			if err != nil {
				return fmt.Errorf("the home token, to compare: %w", err)
			}
			return document.OwnAudience(document.Secret(token), document.Secret(home))
		}
	}
	if p.folder != "" {
		c.Read = func(files map[string][]byte) (upstream.Material, error) {
			cred, err := document.ReadCredential(files, p.allowLoopback)
			if err != nil {
				return upstream.Material{}, err
			}
			// Another server means another cluster, which needs a reload.
			if !slices.Equal(hosts(cred.Servers), p.servers) || cred.TLSServerName != p.serverName {
				return upstream.Material{}, errors.New("the Secret names another server than when it was loaded")
			}
			return upstream.Material{CA: cred.CA, Token: []byte(cred.Token), Cert: cred.Certificate, Key: []byte(cred.Key)}, nil
		}
	}
	return upstream.New(c)
}
