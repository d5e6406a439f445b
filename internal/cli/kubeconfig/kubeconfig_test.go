package kubeconfig

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func testEntry(cluster string) Entry {
	return Entry{Signin: Signin{Cluster: cluster}, Name: "tka-" + cluster, Server: "https://k8s.example:6443", CA: []byte("CA"), Namespaces: []string{"shop"},
		Command: "tka", Args: PluginArgs(Signin{Cluster: cluster})}
}

// foreignEntries returns the entries of a kubeconfig that do not have the name, and its other content. An encoder that does not use trees
// encodes each.
func foreignEntries(t *testing.T, text []byte, name string) []string {
	t.Helper()
	var top map[string]any
	if err := yaml.Unmarshal(text, &top); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, text)
	}
	var out []string
	add := func(where string, v any) {
		b, err := yaml.Marshal(v)
		if err != nil {
			b = fmt.Appendf(nil, "%#v", v)
		}
		out = append(out, where+": "+string(b))
	}
	for _, s := range sections() {
		list, _ := top[s.list].([]any)
		for _, item := range list {
			if m, ok := item.(map[string]any); !ok || fmt.Sprint(m["name"]) != name {
				add(s.list, item)
			}
		}
		delete(top, s.list)
	}
	delete(top, "current-context")
	delete(top, "apiVersion")
	delete(top, "kind")
	add("rest", top)
	return out
}

// SGN-19: for any file, editing never panics. It either preserves the entries of other programs in their order, or fails.
func FuzzKubeconfigEditing(f *testing.F) {
	for _, seed := range []string{
		"",
		"# only a comment\n",
		"null",
		"{}",
		"apiVersion: v1\nkind: Config\nclusters: []\nusers: null\ncontexts:\n",
		"users:\n- name: mine\n  user: {token: abc}\n# after\n",
		"users:\n  - name: mine\n    user:\n      token: |\n        a\n        b\n      exec: {command: tka, args: [credential, --cluster, c]}\n",
		"users:\n- name: tka-c\n  user: {exec: {command: /usr/bin/tka, args: [credential, --cluster, c, --config, x]}}\ncurrent-context: tka-c\n",
		"users:\n- {name: tka-c, user: {token: x}}\n",
		"contexts:\n- {name: tka-c, context: {cluster: tka-c, user: tka-c, namespace: shop}}\n",
		"clusters:\n- &a {name: x, cluster: &b {server: s}}\n- {name: y, cluster: *b}\n",
		"users: &u\n- {name: a, user: {}}\nx: *u\n",
		"{\"users\": [{\"name\": \"a\", \"user\": {\"token\": \"t\"}}], \"current-context\": \"a\"}",
		"users:\n- name: 1\n  user: {a: 0x10, b: 1e3, c: ~, d: 2001-01-01, e: !!binary aGk=, f: .nan, g: \"\\u202e\"}\n",
		"---\n# head\nusers: # line\n# item\n- name: a # name\n  user: {} # user\n  # foot\n\n# later\n- name: b\n...\n",
		"a: &a [*a]\n",
		"<<: {users: []}\n",
		"users:\n- <<: {name: a}\n",
		"? [a]\n: b\n",
		"kind: Config\r\nusers:\r\n- name: a\r\n  user: {}\r\n",
		"users:\n- name: a\n  user: !custom {x: y}\n",
		"- a\n", "x", "\xff", "users: [", "kind: Deployment", "a: b\n---\nc: d\n", "\ufeffkind: Config\n", "users:\n-\tname: a\n",
		"users: []\n#c\n\n#d\n", "preferences: {colors: true}\nextensions:\n- name: e\n  extension: {a: b}\n",
		"users:\n- name: tka-c\n  user:\n    exec:\n      command: tka\n      args: [credential, --cluster, c]\n  # foot of ours\n\n# head of next\n- name: z\n  user: {}\n",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, use bool) {
		const name = "tka-c"
		file, err := parse("config", text)
		if err != nil {
			return
		}
		before := foreignEntries(t, text, name)
		files := Files{file}
		if err := files.Merge(testEntry("c"), use); err != nil {
			if file.changed {
				t.Errorf("changed despite %v", err)
			}
			return
		}
		merged, err := file.text()
		if err != nil || file.verify(merged) != nil {
			return // refused, and the file is unchanged
		}
		if after := foreignEntries(t, merged, name); !equal(before, after) {
			t.Errorf("others' entries changed\nbefore: %q\nafter: %q\n%s", before, after, merged)
		}
		reparsed, err := parse("config", merged)
		if err != nil {
			t.Fatalf("the written file cannot be read: %v\n%s", err, merged)
		}
		if c, byTka := signinOf(reparsed.find(usersList, name)); !byTka || c != (Signin{Cluster: "c"}) {
			t.Errorf("our entry is not recognised:\n%s", merged)
		}
		if use && reparsed.current() != name {
			t.Errorf("current context %q", reparsed.current())
		}
		if err := (Files{reparsed}).Merge(testEntry("c"), use); err != nil || reparsed.changed {
			t.Errorf("the second merge changes the file again (%v, %v)\n%s", err, reparsed.changed, merged)
		}
		removed := Files{reparsed}.Remove(Signin{Cluster: "c"})
		if len(removed) == 0 {
			t.Errorf("nothing was removed:\n%s", merged)
		}
		out, err := reparsed.text()
		if err != nil || reparsed.verify(out) != nil {
			return
		}
		for _, s := range before { // entries of tka for this cluster under other names are removed too
			if strings.Contains(s, "credential") {
				return
			}
		}
		if after := foreignEntries(t, out, name); !equal(before, after) {
			t.Errorf("others' entries changed by the removal\nbefore: %q\nafter: %q\n%s", before, after, out)
		}
	})
}

func equal(a, b []string) bool { return strings.Join(a, "\x00") == strings.Join(b, "\x00") }

// Comments of other entries stay in place when tka adds and removes its entries.
func TestCommentsArePreserved(t *testing.T) {
	text := []byte(`# top
users: # of all
# about a
- name: a # a's name
  user: {token: x} # a's token
# about us
- name: tka-c
  user:
    exec:
      command: tka
      args: [credential, --cluster, c]

# about b
- name: b
  user: {token: y}
# end of users
current-context: b # b it is
# bottom
`)
	f, err := parse("config", text)
	if err != nil {
		t.Fatal(err)
	}
	if got := (Files{f}).Remove(Signin{Cluster: "c"}); len(got) != 1 || got[0] != "tka-c" {
		t.Errorf("removed %v", got)
	}
	out, err := f.text()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"# top", "# of all", "# about a", "# a's name", "# a's token", "# about b", "# end of users", "# b it is", "# bottom"} {
		if !bytes.Contains(out, []byte(c)) {
			t.Errorf("%q is gone:\n%s", c, out)
		}
	}
	if bytes.Contains(out, []byte("tka-c")) {
		t.Errorf("our entry still exists:\n%s", out)
	}
}

// tka recognises its entries by the command that they run, wherever tka is installed and whatever arguments follow.
func TestPluginSignin(t *testing.T) {
	for text, want := range map[string]string{
		`{exec: {command: tka, args: [credential, --cluster, c]}}`:                        "c",
		`{exec: {command: /opt/bin/tka, args: [credential, --cluster, c, --config, /x]}}`: "c",
		`{exec: {command: 'C:\bin\tka.exe', args: [credential, --cluster, c]}}`:           "c",
		`{exec: {command: kubectl-tka, args: [credential, --cluster, c]}}`:                "c",
		`{exec: {command: tka, args: [credential, --cluster, c, --session, s, -q]}}`:      "c/s",
		`{exec: {command: tka, args: [credential, --cluster, c, --session]}}`:             "c",
		`{exec: {command: nottka, args: [credential, --cluster, c]}}`:                     "",
		`{exec: {command: tka, args: [login, --cluster, c]}}`:                             "",
		`{exec: {command: tka, args: [credential]}}`:                                      "",
		`{exec: {command: tka, args: {credential: x}}}`:                                   "",
		`{exec: {command: tka}}`: "", `{exec: []}`: "", `{token: x}`: "", `null`: "", `[]`: "",
	} {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		s, byTka := signinOf(doc.Content[0])
		got := s.Cluster
		if s.Session != "" {
			got += "/" + s.Session
		}
		if got != want || byTka != (want != "") {
			t.Errorf("signinOf(%s) = %q, %v", text, got, byTka)
		}
	}
}
