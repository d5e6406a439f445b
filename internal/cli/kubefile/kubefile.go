// Package kubefile reads and edits kubeconfig files. It reads them with clientcmd, as kubectl does. It edits them as YAML trees, because
// clientcmd would drop comments, order and unknown fields. An edit preserves other tools' entries or fails. A file of another user, or of a
// form that an edit cannot preserve, stays unchanged.
package kubefile

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/yamltree"
)

// An Entry is what tka writes into a kubeconfig for one cluster: a cluster, a user and a context with the same name. It holds no token.
type Entry struct {
	Cluster    string   // the name that its server reports
	Name       string   // of the three entries
	Server     string   // URL of the API server
	CA         []byte   // PEM
	Namespaces []string // where the role holds, the default first; empty: all
	Command    string   // the plugin that fetches tokens
	Args       []string // starting with PluginArgs
}

const (
	// ExecVersion is the API version of the exec plugin in entries.
	ExecVersion = "client.authentication.k8s.io/v1"
	installHint = "tka is missing from PATH: it fetches the tokens for this cluster. See https://github.com/tailplane/tailplane"
)

// PluginArgs returns the arguments with which kubectl runs the plugin for a cluster. They also identify the entries that tka wrote.
func PluginArgs(cluster string) []string { return []string{"credential", "--cluster", cluster} }

// pluginOf returns the cluster that a user entry fetches tokens for, if tka wrote the entry.
func pluginOf(user *yaml.Node) (cluster string, ours bool) {
	exec := yamltree.Child(user, "exec")
	command, list := yamltree.Child(exec, "command"), yamltree.Child(exec, "args")
	if command == nil || list == nil || list.Kind != yaml.SequenceNode {
		return "", false
	}
	var args []string
	for _, arg := range list.Content {
		args = append(args, arg.Value)
	}
	return clusterOfPlugin(command.Value, args)
}

// clusterOfPlugin returns the cluster that an exec plugin fetches tokens for, if the plugin is tka.
func clusterOfPlugin(command string, args []string) (cluster string, ours bool) {
	if name := ProgramName(command); name != "tka" && name != "kubectl-tka" {
		return "", false
	}
	if len(args) < 3 || args[0] != "credential" || args[1] != "--cluster" {
		return "", false
	}
	return args[2], true
}

// ProgramName returns the name of a program file without folder and extension.
func ProgramName(path string) string {
	return strings.TrimSuffix(filepath.Base(filepath.FromSlash(strings.ReplaceAll(path, `\`, "/"))), ".exe")
}

// A section is a list of a kubeconfig, with the key of an entry's content.
type section struct{ list, key string }

var (
	clustersList = section{"clusters", "cluster"}
	usersList    = section{"users", "user"}
	contextsList = section{"contexts", "context"}
)

func sections() []section { return []section{clustersList, usersList, contextsList} }

// A file is one kubeconfig file as a tree. Everything that tka did not write keeps its place, its form and its comments.
type file struct {
	path    string
	there   bool // the file exists
	doc     *yaml.Node
	compact bool // lists are not indented, as kubectl writes them
	changed bool
}

// A Fault reports a kubeconfig that tka does not change because of its content.
type Fault struct {
	Path string
	Line int // 0: unknown
	What string
}

func (e *Fault) Error() string {
	if e.Line == 0 {
		return e.Path + ": " + e.What
	}
	return fmt.Sprintf("%s: line %d: %s", e.Path, e.Line, e.What)
}

// parse parses a kubeconfig. A nil text is a file that does not exist.
func parse(path string, text []byte) (*file, error) {
	f := &file{path: path, there: text != nil, compact: true}
	if !utf8.Valid(text) {
		return nil, &Fault{path, 0, "it is not UTF-8"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // empty, or only comments, which are preserved
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: strings.TrimSpace(string(text)), Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	case err != nil:
		return nil, &Fault{path, 0, "it is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	default:
		if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
			return nil, &Fault{path, 0, "it holds more than one YAML document"}
		}
	}
	var plain any
	if err := doc.Decode(&plain); err != nil { // detects duplicate keys and recursive aliases
		return nil, &Fault{path, 0, "it is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	f.doc = &doc
	if yamltree.IsNull(f.top()) {
		*f.top() = yaml.Node{Kind: yaml.MappingNode, HeadComment: f.top().HeadComment, FootComment: f.top().FootComment}
	}
	return f, f.check()
}

func (f *file) top() *yaml.Node { return f.doc.Content[0] }

// check rejects text that is not a kubeconfig, and forms in which a change to one entry would change another.
func (f *file) check() error {
	top := f.top()
	if top.Kind != yaml.MappingNode {
		return &Fault{f.path, top.Line, "it is not a kubeconfig"}
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		if key := top.Content[i]; key.Kind != yaml.ScalarNode || key.Value == "<<" {
			return &Fault{f.path, key.Line, "a key of the kubeconfig is not a plain name"}
		}
	}
	for key, want := range map[string]string{"kind": "Config", "apiVersion": "v1"} {
		if n := yamltree.Child(top, key); n != nil && !yamltree.IsNull(n) && n.Value != want {
			return &Fault{f.path, n.Line, fmt.Sprintf("%s is %.40q, so it is not a kubeconfig", key, n.Value)}
		}
	}
	if n := yamltree.Child(top, "current-context"); n != nil && n.Kind != yaml.ScalarNode {
		return &Fault{f.path, n.Line, "current-context is not a name"}
	}
	for _, s := range sections() {
		list := yamltree.Child(top, s.list)
		if list == nil || yamltree.IsNull(list) {
			continue
		}
		switch {
		case list.Kind != yaml.SequenceNode:
			return &Fault{f.path, list.Line, s.list + " is not a list"}
		case list.Anchor != "":
			return &Fault{f.path, list.Line, s.list + " has a YAML anchor, so a change here could change something elsewhere"}
		}
		if key := yamltree.Key(top, s.list); list.Style&yaml.FlowStyle == 0 && len(list.Content) > 0 {
			f.compact = list.Column <= key.Column
		}
		seen := map[string]bool{}
		for _, item := range list.Content {
			name, body := yamltree.Child(item, "name"), yamltree.Child(item, s.key)
			switch {
			case item.Kind != yaml.MappingNode || name == nil || name.Kind != yaml.ScalarNode:
				return &Fault{f.path, item.Line, fmt.Sprintf("an entry of %s has no name", s.list)}
			case body != nil && body.Kind != yaml.MappingNode && !yamltree.IsNull(body):
				return &Fault{f.path, body.Line, fmt.Sprintf("the %s of %.60q is not a mapping", s.key, name.Value)}
			case item.Anchor != "":
				return &Fault{f.path, item.Line, fmt.Sprintf("the entry %.60q has a YAML anchor, so a change here could change something elsewhere", name.Value)}
			case seen[name.Value]:
				return &Fault{f.path, name.Line, fmt.Sprintf("there are two entries %.60q in %s", name.Value, s.list)}
			}
			seen[name.Value] = true
		}
	}
	return nil
}

// find returns the content of an entry: nil if there is no entry, and a null node if it has no content.
func (f *file) find(s section, name string) *yaml.Node {
	for _, item := range f.items(s) {
		if yamltree.Child(item, "name").Value == name {
			if body := yamltree.Child(item, s.key); body != nil {
				return body
			}
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		}
	}
	return nil
}

func (f *file) items(s section) []*yaml.Node {
	if list := yamltree.Child(f.top(), s.list); list != nil && list.Kind == yaml.SequenceNode {
		return list.Content
	}
	return nil
}

// put sets the content of an entry. It appends the entry to its list if it does not exist.
func (f *file) put(s section, name string, body *yaml.Node) {
	for _, item := range f.items(s) {
		if yamltree.Child(item, "name").Value == name {
			if have := yamltree.Child(item, s.key); have == nil || !yamltree.Same(have, body) {
				yamltree.Set(item, s.key, body)
				f.changed = true
			}
			return
		}
	}
	f.head()
	list := yamltree.Child(f.top(), s.list)
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		yamltree.Set(f.top(), s.list, list)
	}
	if len(list.Content) == 0 {
		list.Style = 0 // write "[]" in block style from now on
	}
	list.Content = append(list.Content, yamltree.Mapping(s.key, body, "name", yamltree.Scalar(name)))
	f.changed = true
}

// head initialises an empty kubeconfig.
func (f *file) head() {
	if len(f.top().Content) == 0 {
		f.top().Style = 0
		f.top().Content = yamltree.Mapping("apiVersion", yamltree.Scalar("v1"), "kind", yamltree.Scalar("Config")).Content
	}
}

// drop removes an entry. It keeps comments after the entry.
func (f *file) drop(s section, name string) {
	list := yamltree.Child(f.top(), s.list)
	i := slices.IndexFunc(f.items(s), func(item *yaml.Node) bool { return yamltree.Child(item, "name").Value == name })
	if i < 0 {
		return
	}
	foot := feet(list.Content[i])
	list.Content = slices.Delete(list.Content, i, i+1)
	f.changed = true
	switch {
	case foot == "":
	case i < len(list.Content):
		list.Content[i].HeadComment = join(foot, list.Content[i].HeadComment)
	case i > 0:
		list.Content[i-1].FootComment = join(list.Content[i-1].FootComment, foot)
	default:
		key := yamltree.Key(f.top(), s.list)
		key.FootComment = join(key.FootComment, foot)
	}
	if len(list.Content) == 0 {
		list.Style = yaml.FlowStyle // "[]": some programs read an empty block list as null
	}
}

// feet collects the comments after the parts of an entry.
func feet(n *yaml.Node) string {
	foot := n.FootComment
	for _, c := range n.Content {
		foot = join(feet(c), foot)
	}
	return foot
}

func join(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	}
	return a + "\n" + b
}

// current returns the current context, or "" if none is set.
func (f *file) current() string {
	if n := yamltree.Child(f.top(), "current-context"); n != nil && !yamltree.IsNull(n) {
		return n.Value
	}
	return ""
}

func (f *file) setCurrent(name string) {
	if f.current() == name {
		return
	}
	f.head()
	yamltree.Set(f.top(), "current-context", yamltree.Scalar(name))
	f.changed = true
}

// text encodes the file.
func (f *file) text() ([]byte, error) {
	text, err := yamltree.Encode(f.doc, f.compact)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", f.path, err)
	}
	return text, nil
}

// user returns the content of our user entry, with which kubectl gets a token.
func (a Entry) user() *yaml.Node {
	return yamltree.Mapping("exec", yamltree.Mapping(
		"apiVersion", yamltree.Scalar(ExecVersion),
		"command", yamltree.Scalar(a.Command),
		"args", yamltree.Sequence(a.Args...),
		"interactiveMode", yamltree.Scalar("Never"),
		"provideClusterInfo", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"},
		"installHint", yamltree.Scalar(installHint),
	))
}

// clusterOver returns the content of our cluster entry, based on the existing one. It sets the address and the authority of the cluster and
// keeps other settings.
func (a Entry) clusterOver(have *yaml.Node) *yaml.Node {
	n := yamltree.Copy(have)
	yamltree.Set(n, "server", yamltree.Scalar(a.Server))
	yamltree.Set(n, "certificate-authority-data", yamltree.Scalar(base64.StdEncoding.EncodeToString(a.CA)))
	yamltree.Drop(n, "certificate-authority")
	yamltree.Drop(n, "insecure-skip-tls-verify")
	return n
}

// contextOver returns the content of our context entry, based on the existing one. It keeps a namespace that the person chose, if the role
// holds there.
func (a Entry) contextOver(have *yaml.Node) *yaml.Node {
	n := yamltree.Copy(have)
	yamltree.Set(n, "cluster", yamltree.Scalar(a.Name))
	yamltree.Set(n, "user", yamltree.Scalar(a.Name))
	if ns := yamltree.Child(n, "namespace"); len(a.Namespaces) > 0 && (ns == nil || !slices.Contains(a.Namespaces, ns.Value)) {
		yamltree.Set(n, "namespace", yamltree.Scalar(a.Namespaces[0]))
	}
	return n
}

// Document returns a complete kubeconfig that holds only a.
func (a Entry) Document() ([]byte, error) {
	f := &file{compact: true, doc: &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}}
	f.put(clustersList, a.Name, a.clusterOver(nil))
	f.put(usersList, a.Name, a.user())
	f.put(contextsList, a.Name, a.contextOver(nil))
	f.setCurrent(a.Name)
	return f.text()
}

// Current returns a kubeconfig that only sets the current context. As the first file in a KUBECONFIG list, it takes precedence over the
// others.
func Current(context string) ([]byte, error) {
	f := &file{compact: true, doc: &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}}
	f.setCurrent(context)
	return f.text()
}
