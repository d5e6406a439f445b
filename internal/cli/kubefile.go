package cli

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A kubeEntry is what tka writes into a kubeconfig for one cluster: a cluster, a
// user and a context, all of one name. It holds no token.
type kubeEntry struct {
	cluster    string // as its server calls it
	name       string // of the three entries
	server     string // URL of the API server
	ca         []byte // PEM
	namespaces []string
	command    string // the plugin that fetches tokens
	args       []string
}

const (
	execVersion = "client.authentication.k8s.io/v1"
	installHint = "tka is missing from PATH: it fetches the tokens for this cluster. See https://github.com/tailplane/tailplane"
)

// pluginArgs are the arguments by which the plugin is run for a cluster. An
// entry is recognised by them.
func pluginArgs(cluster string) []string { return []string{"credential", "--cluster", cluster} }

// pluginOf is the cluster that a user entry fetches tokens for, if the entry is
// one of ours.
func pluginOf(user *yaml.Node) (cluster string, ours bool) {
	exec := child(user, "exec")
	command, args := child(exec, "command"), child(exec, "args")
	if command == nil || args == nil || args.Kind != yaml.SequenceNode || len(args.Content) < 3 {
		return "", false
	}
	if name := programName(command.Value); name != "tka" && name != "kubectl-tka" {
		return "", false
	}
	if args.Content[0].Value != "credential" || args.Content[1].Value != "--cluster" {
		return "", false
	}
	return args.Content[2].Value, true
}

// The lists of a kubeconfig, with the key of an entry's content.
type section struct{ list, key string }

var (
	clustersList = section{"clusters", "cluster"}
	usersList    = section{"users", "user"}
	contextsList = section{"contexts", "context"}
)

func sections() []section { return []section{clustersList, usersList, contextsList} }

// A kubefile is one kubeconfig file as a tree, in which everything that is not
// ours keeps its place, its form and its comments.
type kubefile struct {
	path    string
	there   bool // the file exists
	doc     *yaml.Node
	compact bool // lists are not indented, as kubectl writes them
	changed bool
}

// A kubeFault is a kubeconfig that is not one.
type kubeFault struct {
	line int // 0: not known
	what string
}

func (e *kubeFault) Error() string {
	if e.line == 0 {
		return e.what
	}
	return fmt.Sprintf("line %d: %s", e.line, e.what)
}

// parseKubefile reads a kubeconfig. nil is a file that does not exist.
func parseKubefile(path string, text []byte) (*kubefile, error) {
	f := &kubefile{path: path, there: text != nil, compact: true}
	if !utf8.Valid(text) {
		return nil, &kubeFault{0, "it is not UTF-8"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // empty, or only comments, which stay
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: strings.TrimSpace(string(text)), Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	case err != nil:
		return nil, &kubeFault{0, "it is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	default:
		if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
			return nil, &kubeFault{0, "it holds more than one YAML document"}
		}
	}
	var plain any
	if err := doc.Decode(&plain); err != nil { // finds keys that are given twice, and aliases without end
		return nil, &kubeFault{0, "it is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	f.doc = &doc
	if isNull(f.top()) {
		*f.top() = yaml.Node{Kind: yaml.MappingNode, HeadComment: f.top().HeadComment, FootComment: f.top().FootComment}
	}
	return f, f.check()
}

func (f *kubefile) top() *yaml.Node { return f.doc.Content[0] }

// check refuses what is not a kubeconfig, and forms in which a change here would
// change something elsewhere.
func (f *kubefile) check() error {
	top := f.top()
	if top.Kind != yaml.MappingNode {
		return &kubeFault{top.Line, "it is not a kubeconfig"}
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		if key := top.Content[i]; key.Kind != yaml.ScalarNode || key.Value == "<<" {
			return &kubeFault{key.Line, "a key of the kubeconfig is not a plain name"}
		}
	}
	for key, want := range map[string]string{"kind": "Config", "apiVersion": "v1"} {
		if n := child(top, key); n != nil && !isNull(n) && n.Value != want {
			return &kubeFault{n.Line, fmt.Sprintf("%s is %.40q, so it is not a kubeconfig", key, n.Value)}
		}
	}
	if n := child(top, "current-context"); n != nil && n.Kind != yaml.ScalarNode {
		return &kubeFault{n.Line, "current-context is not a name"}
	}
	for _, s := range sections() {
		list := child(top, s.list)
		if list == nil || isNull(list) {
			continue
		}
		switch {
		case list.Kind != yaml.SequenceNode:
			return &kubeFault{list.Line, s.list + " is not a list"}
		case list.Anchor != "":
			return &kubeFault{list.Line, s.list + " has a YAML anchor, so a change here could change something elsewhere"}
		}
		if key := keyNode(top, s.list); list.Style&yaml.FlowStyle == 0 && len(list.Content) > 0 {
			f.compact = list.Column <= key.Column
		}
		seen := map[string]bool{}
		for _, item := range list.Content {
			name, body := child(item, "name"), child(item, s.key)
			switch {
			case item.Kind != yaml.MappingNode || name == nil || name.Kind != yaml.ScalarNode:
				return &kubeFault{item.Line, fmt.Sprintf("an entry of %s has no name", s.list)}
			case body != nil && body.Kind != yaml.MappingNode && !isNull(body):
				return &kubeFault{body.Line, fmt.Sprintf("the %s of %.60q is not a mapping", s.key, name.Value)}
			case item.Anchor != "":
				return &kubeFault{item.Line, fmt.Sprintf("the entry %.60q has a YAML anchor, so a change here could change something elsewhere", name.Value)}
			case seen[name.Value]:
				return &kubeFault{name.Line, fmt.Sprintf("there are two entries %.60q in %s", name.Value, s.list)}
			}
			seen[name.Value] = true
		}
	}
	return nil
}

// find is the content of an entry: nil without the entry, a null without content.
func (f *kubefile) find(s section, name string) *yaml.Node {
	for _, item := range f.items(s) {
		if child(item, "name").Value == name {
			if body := child(item, s.key); body != nil {
				return body
			}
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		}
	}
	return nil
}

func (f *kubefile) items(s section) []*yaml.Node {
	if list := child(f.top(), s.list); list != nil && list.Kind == yaml.SequenceNode {
		return list.Content
	}
	return nil
}

// put sets the content of an entry, which is made at the end of its list if it
// is not there.
func (f *kubefile) put(s section, name string, body *yaml.Node) {
	for _, item := range f.items(s) {
		if child(item, "name").Value == name {
			if have := child(item, s.key); have == nil || !sameNode(have, body) {
				setChild(item, s.key, body)
				f.changed = true
			}
			return
		}
	}
	f.head()
	list := child(f.top(), s.list)
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		setChild(f.top(), s.list, list)
	}
	if len(list.Content) == 0 {
		list.Style = 0 // "[]" is written as lines now
	}
	list.Content = append(list.Content, mapping(s.key, body, "name", scalar(name)))
	f.changed = true
}

// head begins an empty kubeconfig.
func (f *kubefile) head() {
	if len(f.top().Content) == 0 {
		f.top().Style = 0
		f.top().Content = mapping("apiVersion", scalar("v1"), "kind", scalar("Config")).Content
	}
}

// drop removes an entry. A comment that stood after it stays.
func (f *kubefile) drop(s section, name string) {
	list := child(f.top(), s.list)
	i := slices.IndexFunc(f.items(s), func(item *yaml.Node) bool { return child(item, "name").Value == name })
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
		key := keyNode(f.top(), s.list)
		key.FootComment = join(key.FootComment, foot)
	}
	if len(list.Content) == 0 {
		list.Style = yaml.FlowStyle // "[]": an empty list of lines is a null to some
	}
}

// feet collects the comments that stand after the parts of an entry.
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

// current is the current context, "" if none is set.
func (f *kubefile) current() string {
	if n := child(f.top(), "current-context"); n != nil && !isNull(n) {
		return n.Value
	}
	return ""
}

func (f *kubefile) setCurrent(name string) {
	if f.current() == name {
		return
	}
	f.head()
	setChild(f.top(), "current-context", scalar(name))
	f.changed = true
}

// text is the file as it is now.
func (f *kubefile) text() ([]byte, error) {
	text, err := encodeNode(f.doc, f.compact)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", f.path, err)
	}
	return text, nil
}

// child is the value of a key of a mapping, or nil.
func child(m *yaml.Node, key string) *yaml.Node {
	if m == nil || m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Kind == yaml.ScalarNode && m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

func keyNode(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Kind == yaml.ScalarNode && m.Content[i].Value == key {
			return m.Content[i]
		}
	}
	return nil
}

// setChild sets the value of a key of a mapping; a comment on the old value's
// line stays.
func setChild(m *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Kind == yaml.ScalarNode && m.Content[i].Value == key {
			old := m.Content[i+1]
			value.HeadComment, value.LineComment, value.FootComment = old.HeadComment, old.LineComment, old.FootComment
			m.Content[i+1] = value
			return
		}
	}
	m.Content = append(m.Content, scalar(key), value)
}

func dropChild(m *yaml.Node, key string) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Kind == yaml.ScalarNode && m.Content[i].Value == key {
			m.Content = slices.Delete(m.Content, i, i+2)
			return
		}
	}
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// mapping makes a mapping of keys, which are strings, and their nodes.
func mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		m.Content = append(m.Content, scalar(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return m
}

func sequence(items ...string) *yaml.Node {
	s := &yaml.Node{Kind: yaml.SequenceNode}
	for _, i := range items {
		s.Content = append(s.Content, scalar(i))
	}
	return s
}

// sameNode reports whether two trees mean the same, whatever their form.
func sameNode(a, b *yaml.Node) bool {
	if a.Kind == yaml.AliasNode && b.Kind == yaml.AliasNode {
		return a.Value == b.Value
	}
	if a.Kind != b.Kind || a.Kind == yaml.ScalarNode && (a.ShortTag() != b.ShortTag() || a.Value != b.Value) || a.Anchor != b.Anchor {
		return false
	}
	return slices.EqualFunc(a.Content, b.Content, sameNode)
}

// user is the content of our user entry: how kubectl gets a token.
func (a kubeEntry) user() *yaml.Node {
	return mapping("exec", mapping(
		"apiVersion", scalar(execVersion),
		"command", scalar(a.command),
		"args", sequence(a.args...),
		"interactiveMode", scalar("Never"),
		"provideClusterInfo", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"},
		"installHint", scalar(installHint),
	))
}

// clusterOver is the content of our cluster entry, over what is there: the way
// to the cluster is ours, what else somebody set on it stays.
func (a kubeEntry) clusterOver(have *yaml.Node) *yaml.Node {
	n := copyNode(have)
	setChild(n, "server", scalar(a.server))
	setChild(n, "certificate-authority-data", scalar(base64.StdEncoding.EncodeToString(a.ca)))
	dropChild(n, "certificate-authority")
	dropChild(n, "insecure-skip-tls-verify")
	return n
}

// contextOver is the content of our context entry, over what is there: a
// namespace that was chosen since stays, if the role holds there.
func (a kubeEntry) contextOver(have *yaml.Node) *yaml.Node {
	n := copyNode(have)
	setChild(n, "cluster", scalar(a.name))
	setChild(n, "user", scalar(a.name))
	if ns := child(n, "namespace"); len(a.namespaces) > 0 && (ns == nil || !slices.Contains(a.namespaces, ns.Value)) {
		setChild(n, "namespace", scalar(a.namespaces[0]))
	}
	return n
}

// copyNode copies a mapping one level deep; anything else becomes an empty one.
func copyNode(n *yaml.Node) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return &yaml.Node{Kind: yaml.MappingNode}
	}
	c := *n
	c.Content = slices.Clone(n.Content)
	c.Anchor = "" // an alias elsewhere means what was here
	return &c
}

// document is a whole kubeconfig that holds nothing but a.
func (a kubeEntry) document() *kubefile {
	f := &kubefile{compact: true, doc: &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}}
	f.put(clustersList, a.name, a.clusterOver(nil))
	f.put(usersList, a.name, a.user())
	f.put(contextsList, a.name, a.contextOver(nil))
	f.setCurrent(a.name)
	return f
}
