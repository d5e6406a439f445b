package settings

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// ProxyAccess names the access servers that the access proxy asks to begin sign-ins on first use.
type ProxyAccess struct {
	Servers []string `yaml:"servers,omitempty"` // https://HOST, or the name of a node in the proxy's tailnet; empty: no sign-in begins on first use
	Key     string   `yaml:"key,omitempty"`     // the cluster's key, "ed25519:…", as tka cluster-info shows it; required with servers
}

// proxyTags returns the tags of the cluster's access proxies.
func (a Access) proxyTags() (tags []access.Tag) {
	for _, t := range a.ProxyTags {
		tags = append(tags, access.Tag(t))
	}
	return tags
}

// validateProxyTags reports tags that nodes besides the cluster's proxies have: each of them could begin sign-ins.
func (f File) validateProxyTags(v *validation) {
	for _, t := range f.Access.ProxyTags {
		v.failIf(!strings.HasPrefix(t, "tag:"), "access.proxyTags: %q does not begin with tag:", t)
		v.failIf(f.Gossip.Enabled && slices.Contains(f.Gossip.Tags, t), "access.proxyTags: %q is in gossip.tags, so the servers of other clusters could begin sign-ins", t)
		v.failIf(slices.Contains(f.Tailnet.Tags, t), "access.proxyTags: %q is in tailnet.tags; give the proxies a tag of their own", t)
	}
}

// URL returns the URL of a server for a proxy whose node has the full name node. It returns "" if the server is the name of a
// node and node has no domain.
func (a ProxyAccess) URL(server, node string, port uint16, plain bool) string {
	if strings.Contains(server, "://") {
		return server
	}
	at := AnnouncedProxy{Hostname: server}.At(node, port)
	if plain && at != "" {
		at = "http" + strings.TrimPrefix(at, "https")
		if port == 443 {
			at += ":443"
		}
	}
	return at
}

func (a ProxyAccess) validate(v *validation) {
	for _, s := range a.Servers {
		u, err := url.Parse(s)
		isURL := err == nil && u.Host != "" && *u == url.URL{Scheme: "https", Host: u.Host}
		v.failIf(!label.MatchString(s) && !isURL, "proxy.access.servers: %q is neither the name of a node nor https://HOST", s)
	}
	digits, ok := strings.CutPrefix(a.Key, "ed25519:")
	b, err := base64.RawURLEncoding.DecodeString(digits)
	v.failIf(a.Key != "" && (!ok || err != nil || len(b) != 32), "proxy.access.key: %q is not a key as tka cluster-info shows it", a.Key)
	v.failIf(len(a.Servers) > 0 && a.Key == "", "proxy.access.key is missing: without the cluster's key, any node could answer as the access server")
}
