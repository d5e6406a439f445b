package kubeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

func writeFiles(t *testing.T, texts ...string) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		path := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return append(paths, filepath.Join(dir, "missing"))
}

const (
	tkaKubeconfig = `apiVersion: v1
kind: Config
current-context: tka-c
clusters:
- name: tka-c
  cluster: {server: "https://k8s.example:6443", certificate-authority-data: Q0E=}
users:
- name: tka-c
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /opt/bin/tka, args: [credential, --cluster, c, --config, x]}}
contexts:
- name: tka-c
  context: {cluster: tka-c, user: tka-c, namespace: shop}
- name: mine
  context: {cluster: tka-c, user: other}
`
	foreignKubeconfig = `current-context: mine
users:
- name: tka-c
  user: {token: later}
- name: other
  user: {token: abc}
contexts:
- name: tka-c
  context: {cluster: elsewhere, user: other}
- name: second
  context: {cluster: tka-c, user: tka-c}
`
)

// Load merges a list of files like clientcmd's own loading rules.
func TestLoadMergesAsKubectl(t *testing.T) {
	for why, texts := range map[string][]string{
		"one file":                {tkaKubeconfig},
		"the first name wins":     {tkaKubeconfig, foreignKubeconfig},
		"the other order":         {foreignKubeconfig, tkaKubeconfig},
		"only the second sets it": {"apiVersion: v1\nkind: Config\n", foreignKubeconfig},
		"only a comment":          {"# nothing yet\n", tkaKubeconfig},
		"null":                    {"null\n", tkaKubeconfig},
		"an empty file":           {"", tkaKubeconfig},
		"lists that are null":     {"users: null\nclusters: []\ncontexts:\n"},
		"an unknown field":        {tkaKubeconfig + "future: {x: y}\n"},
	} {
		paths := writeFiles(t, texts...)
		got, err := LoadView(paths)
		if err != nil {
			t.Errorf("%s: %v", why, err)
			continue
		}
		want, err := (&clientcmd.ClientConfigLoadingRules{Precedence: paths, DoNotResolvePaths: true}).Load()
		if err != nil {
			t.Fatalf("%s: %v", why, err)
		}
		for _, c := range want.Clusters {
			c.LocationOfOrigin = ""
		}
		for _, u := range want.AuthInfos {
			u.LocationOfOrigin = ""
		}
		for _, c := range want.Contexts {
			c.LocationOfOrigin = ""
		}
		want.Preferences, want.Extensions = got.config.Preferences, got.config.Extensions // tka does not read them
		if diff := cmp.Diff(want, got.config); diff != "" {
			t.Errorf("%s (-kubectl +tka):\n%s", why, diff)
		}
	}
}

func TestView(t *testing.T) {
	v, err := LoadView(writeFiles(t, tkaKubeconfig, foreignKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Current(); got != "tka-c" {
		t.Errorf("the current context is %q", got)
	}
	for context, want := range map[string]string{"tka-c": "c", "second": "c", "mine": "", "nothing": ""} {
		if got, byTka := v.SigninOf(context); got.Cluster != want || byTka != (want != "") {
			t.Errorf("SigninOf(%q) = %q, %v, want %q", context, got, byTka, want)
		}
	}
	want := Entry{Signin: Signin{Cluster: "c"}, Name: "tka-c", Server: "https://k8s.example:6443", CA: []byte("CA"), Command: "/opt/bin/tka",
		Args: []string{"credential", "--cluster", "c", "--config", "x"}}
	got, found := v.Entry("tka-c")
	if !found {
		t.Error("the entry is not found")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	for _, name := range []string{"other", "nothing"} {
		if e, found := v.Entry(name); found {
			t.Errorf("%s is %+v", name, e)
		}
	}
	for name, same := range map[string]bool{"tka-c": true, "nothing": true} {
		if got := v.SameCA(name, []byte("CA")); got != same {
			t.Errorf("SameCA(%q) = %v", name, got)
		}
	}
	if v.SameCA("tka-c", []byte("another")) {
		t.Error("another certificate authority counts as the same")
	}
}

// Load rejects a file that tka does not follow or that kubectl cannot read, and names its path.
func TestLoadRefuses(t *testing.T) {
	for why, text := range map[string]string{
		"another kind":        "apiVersion: v1\nkind: Deployment\n",
		"no YAML":             "users: [",
		"a list":              "- a\n",
		"a name twice":        "contexts:\n- {name: a, context: {user: u}}\n- {name: a, context: {user: v}}\n",
		"a name of a number":  "users: [{name: 1}]\n",
		"an unending alias":   "a: &a [*a]\n",
		"more than 8 MiB":     "# " + strings.Repeat("x", 8<<20) + "\n",
		"an authority's form": "clusters: [{name: a, cluster: {certificate-authority-data: '%'}}]\n",
	} {
		paths := writeFiles(t, text)
		if _, err := LoadView(paths); err == nil || !strings.Contains(err.Error(), paths[0]) {
			t.Errorf("%s: %v", why, err)
		}
	}
	paths := writeFiles(t, tkaKubeconfig)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(paths[0], link); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadView([]string{link}); err == nil {
		t.Error("a symbolic link is followed")
	}
}
