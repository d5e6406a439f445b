package kubeconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func proxyEntry(cluster, session string) Entry {
	e := Entry{Signin: Signin{cluster, session}, Name: "tka-" + cluster, Server: "https://" + cluster + "-api.example.ts.net/", Proxy: true}
	if session != "" {
		e.Name, e.Server = e.Name+"-"+session, e.Server+"s/"+session
	}
	return e
}

const proxyKubeconfig = `apiVersion: v1
kind: Config
clusters:
- cluster:
    server: https://c-api.example.ts.net/
  name: tka-c
users:
- user:
    token: session.default
    extensions:
    - name: tailplane.dev/signin
      extension:
        cluster: c
  name: tka-c
contexts:
- context:
    cluster: tka-c
    user: tka-c
  name: tka-c
current-context: tka-c
`

// An entry for the access proxy holds the name of a session, no plugin, and no authority if the certificate is public.
func TestProxyEntry(t *testing.T) {
	text, err := Document(proxyEntry("c", ""))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(proxyKubeconfig, string(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	entries := []Entry{proxyEntry("c", ""), proxyEntry("c", "edit"), proxyEntry("d", "")}
	entries[2].CA = []byte("CA")
	if text, err = Document(entries...); err != nil {
		t.Fatal(err)
	}
	v, err := LoadView(writeFiles(t, string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range entries {
		got, byTka := v.Entry(want.Name)
		if !byTka {
			t.Errorf("%s is not recognised", want.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
		if context, found := v.ContextOf(want.Signin); context != want.Name || !found {
			t.Errorf("the context of %v is %q", want.Signin, context)
		}
	}
}

// A login in the other mode rewrites the entries of its own sign-in only. Another cluster and another session keep their mode.
func TestModeChange(t *testing.T) {
	plugin, proxy := testEntry("c"), proxyEntry("c", "")
	plugin.Namespaces = nil
	session := proxyEntry("c", "edit")
	other := testEntry("d")
	f, err := parse("config", []byte("# mine\nclusters:\n- name: mine\n  cluster: {server: \"https://mine\", proxy-url: \"http://p\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	files := Files{f}
	for _, e := range []Entry{plugin, session, other} {
		if err := files.Merge(e, false); err != nil {
			t.Fatal(err)
		}
	}
	before, err := f.text()
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Merge(proxy, false); err != nil {
		t.Fatal(err)
	}
	after, err := f.text()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(foreignEntries(t, before, "tka-c"), foreignEntries(t, after, "tka-c")); diff != "" {
		t.Errorf("other entries changed (-before +after):\n%s", diff)
	}
	for why, text := range map[string]string{"the plugin": "command: tka\n      args:\n      - credential\n      - --cluster\n      - c\n", "the authority": "server: https://c-api.example.ts.net/\n    certificate"} {
		if strings.Contains(string(after), text) {
			t.Errorf("%s is left:\n%s", why, after)
		}
	}
	if err := files.Merge(plugin, false); err != nil {
		t.Fatal(err)
	}
	if again, err := f.text(); err != nil || string(again) != string(before) {
		t.Errorf("%v; back in token mode (-want +got):\n%s", err, cmp.Diff(string(before), string(again)))
	}
	if removed := files.Remove(session.Signin); len(removed) != 1 || removed[0] != "tka-c-edit" {
		t.Errorf("removed %v", removed)
	}
}

// tka recognises its entries for the proxy by its extension together with the name of a session. All else belongs to other programs.
func TestProxySignin(t *testing.T) {
	const own = `extensions: [{name: tailplane.dev/signin, extension: {cluster: c}}]`
	for user, want := range map[string]Signin{
		`{token: session.default, ` + own + `}`:                                                 {Cluster: "c"},
		`{token: session.edit, ` + own + `}`:                                                    {Cluster: "c", Session: "edit"},
		`{token: session.default}`:                                                              {},
		`{token: session., ` + own + `}`:                                                        {},
		`{token: session.Edit, ` + own + `}`:                                                    {},
		`{token: eyJhbGciOi.e30.x, ` + own + `}`:                                                {},
		`{token: session.default, exec: {command: aws}, ` + own + `}`:                           {},
		`{` + own + `}`:                                                                         {},
		`{token: session.default, extensions: [{name: other, extension: {cluster: c}}]}`:        {},
		`{token: session.default, extensions: [{name: tailplane.dev/signin, extension: c}]}`:    {},
		`{token: session.default, extensions: [{name: tailplane.dev/signin, extension: null}]}`: {},
	} {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(user), &doc); err != nil {
			t.Fatal(err)
		}
		got, byTka := signinOf(doc.Content[0])
		if got != want || byTka != (want != Signin{}) {
			t.Errorf("%s is %v, %v, want %v", user, got, byTka, want)
		}
		v, err := LoadView(writeFiles(t, "users: [{name: u, user: "+user+"}]\ncontexts: [{name: x, context: {user: u}}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got, byTka := v.SigninOf("x"); got != want || byTka != (want != Signin{}) {
			t.Errorf("for kubectl, %s is %v, %v, want %v", user, got, byTka, want)
		}
	}
}
