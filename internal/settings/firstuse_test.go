package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

// A node that is no proxy of this cluster must not have a tag of access.proxyTags, and the proxy trusts only the cluster's key.
func TestFirstUseSettings(t *testing.T) {
	key := "ed25519:" + strings.Repeat("A", 43)
	for _, x := range []struct {
		why    string
		change func(*settings.File)
		want   string
	}{
		{"no tag", func(f *settings.File) { f.Access.ProxyTags = []string{"proxy"} }, "does not begin with tag:"},
		{"a tag of gossip", func(f *settings.File) { f.Access.ProxyTags = f.Gossip.Tags }, "is in gossip.tags"},
		{"a tag of the access server", func(f *settings.File) { f.Access.ProxyTags, f.Tailnet.Tags = []string{"tag:x"}, []string{"tag:x"} }, "is in tailnet.tags"},
		{"no key", func(f *settings.File) { f.Proxy.Access.Servers = []string{"tka"} }, "proxy.access.key is missing"},
		{"a key of another form", func(f *settings.File) { f.Proxy.Access = settings.ProxyAccess{Servers: []string{"tka"}, Key: "x"} }, "is not a key"},
		{"plain HTTP", func(f *settings.File) {
			f.Proxy.Access = settings.ProxyAccess{Servers: []string{"http://tka"}, Key: key}
		}, "neither the name"},
		{"all good", func(f *settings.File) {
			f.Access.ProxyTags, f.Proxy.Access = []string{"tag:proxy"}, settings.ProxyAccess{Servers: []string{"tka", "https://tka.example"}, Key: key}
		}, ""},
	} {
		f := settings.Default()
		f.Proxy.Enabled = true
		x.change(&f)
		err := f.Validate(settings.AllRoles)
		text := ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case x.want != "" && !strings.Contains(text, x.want):
			t.Errorf("%s: %v, want %q", x.why, err, x.want)
		case x.want == "" && strings.Contains(text, "proxy.access"), x.want == "" && strings.Contains(text, "proxyTags"):
			t.Errorf("%s: %v", x.why, err)
		}
	}
}
