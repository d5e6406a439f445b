package multicluster

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
	"github.com/tailplane/tailplane/internal/multicluster/config"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// RuntimeConfig is a configuration with the clients of its clusters. It is immutable.
type RuntimeConfig struct {
	Table     *Table
	upstreams map[string]*apiproxy.Upstream
	settings  map[string]upstreamSettings // the settings that each cluster was created from
	text      []byte                      // of the configuration; nil: there was no file
}

// Config returns the configuration. Callers must not change it.
func (r *RuntimeConfig) Config() *config.Config { return r.Table.Config() }

// Upstream returns the cluster with that name, or nil.
func (r *RuntimeConfig) Upstream(name string) *apiproxy.Upstream { return r.upstreams[name] }

// Upstreams returns all clusters in the order of the configuration.
func (r *RuntimeConfig) Upstreams() []*apiproxy.Upstream {
	all := make([]*apiproxy.Upstream, 0, len(r.upstreams))
	for _, c := range r.Config().Clusters {
		all = append(all, r.upstreams[c.Name])
	}
	return all
}

// closeUnused closes the idle connections of the clusters that next does not reuse.
func (r *RuntimeConfig) closeUnused(next *RuntimeConfig) {
	for name, c := range r.upstreams {
		if next == nil || next.upstreams[name] != c {
			c.Close()
		}
	}
}

// upstreamSettings holds the settings of a cluster. While they stay the same, the client of the cluster is reused, with
// its connections and health.
type upstreamSettings struct {
	apiproxy.UpstreamConfig // without its functions
	allowLoopback, inside   bool
	audience                bool // the token must not be valid for home
}

// load reads the configuration and the files that it names. The findings are warnings.
func (k *ConfigLoader) load(last *RuntimeConfig) (*RuntimeConfig, []config.Diagnostic, error) {
	conf := config.Default()
	var warnings []config.Diagnostic
	k.recordFile(k.File)
	b, err := os.ReadFile(k.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, nil, fmt.Errorf("the configuration: %w", err)
	default:
		if conf, warnings, err = config.Parse(b); err != nil {
			return nil, nil, fmt.Errorf("the configuration %s: %w", k.File, err)
		}
	}
	r := &RuntimeConfig{
		text:      b,
		Table:     NewTable(conf, k.Scope),
		upstreams: map[string]*apiproxy.Upstream{},
		settings:  map[string]upstreamSettings{},
	}
	for i := range conf.Clusters {
		d := &conf.Clusters[i]
		p, err := k.settingsFor(d)
		if err != nil {
			return nil, nil, fmt.Errorf("cluster %s: %w", d.Name, err)
		}
		r.settings[d.Name] = p
		if last != nil && last.upstreams[d.Name] != nil && reflect.DeepEqual(last.settings[d.Name], p) {
			r.upstreams[d.Name] = last.upstreams[d.Name]
			continue
		}
		r.upstreams[d.Name] = k.newUpstream(p)
	}
	return r, warnings, nil
}

// settingsFor returns the settings of a cluster.
func (k *ConfigLoader) settingsFor(d *config.Cluster) (upstreamSettings, error) {
	p := upstreamSettings{allowLoopback: d.AllowLoopback,
		UpstreamConfig: apiproxy.UpstreamConfig{
			Name:   d.Name,
			Limits: apiproxy.Limits(d.Limits),
			Probe:  apiproxy.Probe(d.Health),
			UID:    d.UID,
		}}
	switch {
	case d.InCluster:
		p.Servers, p.CAFile, p.TokenFile, p.inside = k.Home.Servers, k.Home.CAFile, k.Home.TokenFile, true
	case d.Secret != "":
		p.SecretDir = filepath.Join(k.Credentials, d.Secret)
		k.recordFile(p.SecretDir)
		files, err := apiproxy.ReadSecretDir(p.SecretDir)
		if err != nil {
			return upstreamSettings{}, err
		}
		c, err := config.ReadCredential(files, d.AllowLoopback)
		if err != nil {
			return upstreamSettings{}, err
		}
		p.Servers, p.ServerName = hostPorts(c.Servers), c.TLSServerName
	default:
		var urls []*url.URL
		for _, s := range d.Servers {
			u, err := config.CheckServer(s, d.AllowLoopback)
			if err != nil {
				return upstreamSettings{}, err
			}
			urls = append(urls, u)
		}
		p.Servers, p.CAFile = hostPorts(urls), filepath.Join(k.Credentials, d.CAFile)
		p.TokenFile, p.audience = filepath.Join(k.Audiences, d.Name, "token"), true
	}
	return p, nil
}

// hostPorts returns the host:port of URLs.
func hostPorts(urls []*url.URL) (all []string) {
	for _, u := range urls {
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "443")
		}
		all = append(all, host)
	}
	return all
}

// newUpstream creates the client of a cluster.
func (k *ConfigLoader) newUpstream(p upstreamSettings) *apiproxy.Upstream {
	c := p.UpstreamConfig
	c.Log, c.Now = k.Log, k.Now
	if k.Dial != nil {
		c.Dial = func(dial apiproxy.Dialer) apiproxy.Dialer { return k.Dial(c.Name, dial) }
	}
	if k.OnProbe != nil {
		c.OnProbe = func(took time.Duration) { k.OnProbe(c.Name, took) }
	}
	if !p.inside {
		c.CheckAddress = func(a netip.Addr) error { return config.CheckAddress(a, p.allowLoopback) }
	}
	if p.audience {
		c.CheckToken = func(token secret.Text) error {
			home, err := os.ReadFile(k.Home.TokenFile)
			if err != nil {
				return fmt.Errorf("read the home token to compare audiences: %w", err)
			}
			return config.CheckAudience(token, secret.New(string(home)))
		}
	}
	if c.SecretDir != "" {
		c.ParseSecret = func(files map[string][]byte) (apiproxy.CredentialData, error) {
			cred, err := config.ReadCredential(files, p.allowLoopback)
			if err != nil {
				return apiproxy.CredentialData{}, err
			}
			// Another server means another cluster, which needs a reload.
			if !slices.Equal(hostPorts(cred.Servers), p.Servers) || cred.TLSServerName != p.ServerName {
				return apiproxy.CredentialData{}, errors.New("the server in the Secret changed since it was loaded")
			}
			return apiproxy.CredentialData{CA: cred.CA, Token: cred.Token, Cert: cred.Certificate, Key: cred.Key}, nil
		}
	}
	return apiproxy.NewUpstream(c)
}
