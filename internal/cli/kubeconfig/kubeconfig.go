// Package kubeconfig reads and edits kubeconfig files. It reads them with clientcmd, as kubectl does. It edits them as YAML trees, because
// clientcmd would drop comments, order and unknown fields. An edit preserves other tools' entries or fails. A file of another user, or of a
// form that an edit cannot preserve, stays unchanged.
package kubeconfig

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// An Entry is what tka writes into a kubeconfig for one cluster: a cluster, a user and a context with the same name. It holds no token.
type Entry struct {
	Signin
	Name       string   // of the three entries
	Server     string   // URL of the API server
	CA         []byte   // PEM
	Namespaces []string // where the role holds, the default first; empty: all
	Command    string   // the plugin that fetches tokens; "" if Proxy is set
	Args       []string // starting with PluginArgs; nil if Proxy is set
	Proxy      bool     // Server is the access proxy, which needs the name of the session only
}

// extensionName is the name of the extension with which tka recognises its user entries for the access proxy. Its content is the name of
// the cluster; the token of the entry names the session.
const extensionName = "tailplane.dev/signin"

const (
	// ExecVersion is the API version of the exec plugin in entries.
	ExecVersion = "client.authentication.k8s.io/v1"
	installHint = "tka is missing from PATH: it fetches the tokens for this cluster. See https://github.com/tailplane/tailplane"
)

// A Signin identifies one sign-in of this device.
type Signin struct {
	Cluster string // the name that its server reports
	Session string // "": the default session
}

// sessionFlag names the session in the arguments of the plugin.
const sessionFlag = "--session"

// PluginArgs returns the arguments with which kubectl runs the plugin for a sign-in. They also identify the entries that tka wrote.
func PluginArgs(s Signin) []string {
	args := []string{"credential", "--cluster", s.Cluster}
	if s.Session != "" {
		args = append(args, sessionFlag, s.Session)
	}
	return args
}

// signinOf returns the sign-in of a user entry, if tka wrote the entry.
func signinOf(user *yaml.Node) (s Signin, byTka bool) {
	exec := yamledit.Child(user, "exec")
	if list := yamledit.Child(user, "extensions"); exec == nil && list != nil && list.Kind == yaml.SequenceNode {
		for _, item := range list.Content {
			name, cluster := yamledit.Child(item, "name"), yamledit.Child(yamledit.Child(item, "extension"), "cluster")
			if token := yamledit.Child(user, "token"); token != nil && name != nil && cluster != nil && name.Value == extensionName {
				return parseProxyUser(token.Value, cluster.Value)
			}
		}
	}
	command, list := yamledit.Child(exec, "command"), yamledit.Child(exec, "args")
	if command == nil || list == nil || list.Kind != yaml.SequenceNode {
		return Signin{}, false
	}
	var args []string
	for _, arg := range list.Content {
		args = append(args, arg.Value)
	}
	return parsePlugin(command.Value, args)
}

// parseProxyUser returns the sign-in of a user entry for the access proxy, with the content of its extension.
func parseProxyUser(token, cluster string) (s Signin, byTka bool) {
	session, err := signin.ParseSessionToken(token)
	if err != nil || cluster == "" {
		return Signin{}, false
	}
	return Signin{cluster, string(session)}, true
}

// parsePlugin returns the sign-in that an exec plugin fetches tokens for, if the plugin is tka.
func parsePlugin(command string, args []string) (s Signin, byTka bool) {
	name := ProgramName(command)
	if name != "tka" && name != "kubectl-tka" || len(args) < 3 || args[0] != "credential" || args[1] != "--cluster" {
		return Signin{}, false
	}
	s.Cluster = args[2]
	if len(args) >= 5 && args[3] == sessionFlag {
		s.Session = args[4]
	}
	return s, true
}

// ProgramName returns the name of a program file without directory and extension.
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
	exists  bool // the file exists
	doc     *yaml.Node
	compact bool // lists are not indented, as kubectl writes them
	changed bool
}

// A ContentError reports a kubeconfig that tka does not change because of its content.
type ContentError struct {
	Path   string
	Line   int // 0: unknown
	Reason string
}

func (e *ContentError) Error() string {
	if e.Line == 0 {
		return e.Path + ": " + e.Reason
	}
	return fmt.Sprintf("%s: line %d: %s", e.Path, e.Line, e.Reason)
}

// parse parses a kubeconfig. A nil text is a file that does not exist.
func parse(path string, text []byte) (*file, error) {
	f := &file{path: path, exists: text != nil, compact: true}
	if !utf8.Valid(text) {
		return nil, &ContentError{path, 0, "it is not UTF-8"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	f.doc = &doc
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // empty, or only comments, which are preserved
		f.doc = emptyDocument(strings.TrimSpace(string(text)))
	case err != nil:
		return nil, &ContentError{path, 0, "it is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	default:
		if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
			return nil, &ContentError{path, 0, "it contains more than one YAML document"}
		}
	}
	var plain any
	if err := f.doc.Decode(&plain); err != nil { // detects duplicate keys and recursive aliases
		return nil, &ContentError{path, 0, "it is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if yamledit.IsNull(f.top()) {
		*f.top() = yaml.Node{Kind: yaml.MappingNode, HeadComment: f.top().HeadComment, FootComment: f.top().FootComment}
	}
	return f, f.check()
}

// emptyDocument returns a document with an empty mapping.
func emptyDocument(comment string) *yaml.Node {
	return &yaml.Node{Kind: yaml.DocumentNode, HeadComment: comment, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
}

func (f *file) top() *yaml.Node { return f.doc.Content[0] }

// check rejects text that is not a kubeconfig, and forms in which a change to one entry would change another.
func (f *file) check() error {
	top := f.top()
	if top.Kind != yaml.MappingNode {
		return &ContentError{f.path, top.Line, "it is not a kubeconfig"}
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		if key := top.Content[i]; key.Kind != yaml.ScalarNode || key.Value == "<<" {
			return &ContentError{f.path, key.Line, "a key of the kubeconfig is not a plain name"}
		}
	}
	for key, want := range map[string]string{"kind": "Config", "apiVersion": "v1"} {
		if n := yamledit.Child(top, key); n != nil && !yamledit.IsNull(n) && n.Value != want {
			return &ContentError{f.path, n.Line, fmt.Sprintf("%s is %.40q, so it is not a kubeconfig", key, n.Value)}
		}
	}
	if n := yamledit.Child(top, "current-context"); n != nil && n.Kind != yaml.ScalarNode {
		return &ContentError{f.path, n.Line, "current-context is not a name"}
	}
	for _, s := range sections() {
		list := yamledit.Child(top, s.list)
		if list == nil || yamledit.IsNull(list) {
			continue
		}
		switch {
		case list.Kind != yaml.SequenceNode:
			return &ContentError{f.path, list.Line, s.list + " is not a list"}
		case list.Anchor != "":
			return &ContentError{f.path, list.Line, s.list + " has a YAML anchor, so a change here could change something elsewhere"}
		}
		if key := yamledit.KeyNode(top, s.list); list.Style&yaml.FlowStyle == 0 && len(list.Content) > 0 {
			f.compact = list.Column <= key.Column
		}
		seen := map[string]bool{}
		for _, item := range list.Content {
			name, body := yamledit.Child(item, "name"), yamledit.Child(item, s.key)
			switch {
			case item.Kind != yaml.MappingNode || name == nil || name.Kind != yaml.ScalarNode:
				return &ContentError{f.path, item.Line, fmt.Sprintf("an entry of %s has no name", s.list)}
			case body != nil && body.Kind != yaml.MappingNode && !yamledit.IsNull(body):
				return &ContentError{f.path, body.Line, fmt.Sprintf("the %s of %.60q is not a mapping", s.key, name.Value)}
			case item.Anchor != "":
				return &ContentError{f.path, item.Line, fmt.Sprintf("the entry %.60q has a YAML anchor, so a change here could change something elsewhere", name.Value)}
			case seen[name.Value]:
				return &ContentError{f.path, name.Line, fmt.Sprintf("two entries %.60q in %s", name.Value, s.list)}
			}
			seen[name.Value] = true
		}
	}
	return nil
}

// find returns the content of an entry: nil if there is no entry, and a null node if it has no content.
func (f *file) find(s section, name string) *yaml.Node {
	i := f.index(s, name)
	if i < 0 {
		return nil
	}
	return cmp.Or(yamledit.Child(f.items(s)[i], s.key), &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"})
}

// index returns the index of an entry in its list, or -1.
func (f *file) index(s section, name string) int {
	return slices.IndexFunc(f.items(s), func(item *yaml.Node) bool { return yamledit.Child(item, "name").Value == name })
}

func (f *file) items(s section) []*yaml.Node {
	if list := yamledit.Child(f.top(), s.list); list != nil && list.Kind == yaml.SequenceNode {
		return list.Content
	}
	return nil
}

// set sets the content of an entry. It appends the entry to its list if it does not exist.
func (f *file) set(s section, name string, body *yaml.Node) {
	if i := f.index(s, name); i >= 0 {
		item := f.items(s)[i]
		if have := yamledit.Child(item, s.key); have == nil || !yamledit.Equal(have, body) {
			yamledit.Set(item, s.key, body)
			f.changed = true
		}
		return
	}
	f.initialize()
	list := yamledit.Child(f.top(), s.list)
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		yamledit.Set(f.top(), s.list, list)
	}
	if len(list.Content) == 0 {
		list.Style = 0 // write "[]" in block style from now on
	}
	list.Content = append(list.Content, yamledit.Mapping(s.key, body, "name", yamledit.Scalar(name)))
	f.changed = true
}

// initialize initialises an empty kubeconfig.
func (f *file) initialize() {
	if len(f.top().Content) == 0 {
		f.top().Style = 0
		f.top().Content = yamledit.Mapping("apiVersion", yamledit.Scalar("v1"), "kind", yamledit.Scalar("Config")).Content
	}
}

// delete removes an entry. It keeps comments after the entry.
func (f *file) delete(s section, name string) {
	list := yamledit.Child(f.top(), s.list)
	i := f.index(s, name)
	if i < 0 {
		return
	}
	foot := footComments(list.Content[i])
	list.Content = slices.Delete(list.Content, i, i+1)
	f.changed = true
	switch {
	case foot == "":
	case i < len(list.Content):
		list.Content[i].HeadComment = joinComments(foot, list.Content[i].HeadComment)
	case i > 0:
		list.Content[i-1].FootComment = joinComments(list.Content[i-1].FootComment, foot)
	default:
		key := yamledit.KeyNode(f.top(), s.list)
		key.FootComment = joinComments(key.FootComment, foot)
	}
	if len(list.Content) == 0 {
		list.Style = yaml.FlowStyle // "[]": some programs read an empty block list as null
	}
}

// footComments collects the comments after the parts of an entry.
func footComments(n *yaml.Node) string {
	foot := n.FootComment
	for _, c := range n.Content {
		foot = joinComments(footComments(c), foot)
	}
	return foot
}

func joinComments(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

// current returns the current context, or "" if none is set.
func (f *file) current() string {
	if n := yamledit.Child(f.top(), "current-context"); n != nil && !yamledit.IsNull(n) {
		return n.Value
	}
	return ""
}

func (f *file) setCurrent(name string) {
	if f.current() == name {
		return
	}
	f.initialize()
	yamledit.Set(f.top(), "current-context", yamledit.Scalar(name))
	f.changed = true
}

// text encodes the file.
func (f *file) text() ([]byte, error) {
	text, err := yamledit.Encode(f.doc, f.compact)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", f.path, err)
	}
	return text, nil
}

// userNode returns the content of the user entry, with which kubectl gets a token, or names a session to the access proxy.
func (a Entry) userNode() *yaml.Node {
	if a.Proxy {
		extension := yamledit.Mapping("name", yamledit.Scalar(extensionName), "extension", yamledit.Mapping("cluster", yamledit.Scalar(a.Cluster)))
		return yamledit.Mapping("token", yamledit.Scalar(signin.SessionToken(signin.Session(a.Session))),
			"extensions", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{extension}})
	}
	return yamledit.Mapping("exec", yamledit.Mapping(
		"apiVersion", yamledit.Scalar(ExecVersion),
		"command", yamledit.Scalar(a.Command),
		"args", yamledit.Sequence(a.Args...),
		"interactiveMode", yamledit.Scalar("Never"),
		"provideClusterInfo", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"},
		"installHint", yamledit.Scalar(installHint),
	))
}

// clusterNode returns the content of the cluster entry, based on the existing one. It sets the address and the authority of the cluster and
// keeps other settings. For a public certificate it sets no authority.
func (a Entry) clusterNode(have *yaml.Node) *yaml.Node {
	n := yamledit.ShallowCopy(have)
	yamledit.Set(n, "server", yamledit.Scalar(a.Server))
	if len(a.CA) > 0 {
		yamledit.Set(n, "certificate-authority-data", yamledit.Scalar(base64.StdEncoding.EncodeToString(a.CA)))
	} else {
		yamledit.Delete(n, "certificate-authority-data")
	}
	if a.Proxy {
		yamledit.Delete(n, "tls-server-name") // it names the API server
	}
	yamledit.Delete(n, "certificate-authority")
	yamledit.Delete(n, "insecure-skip-tls-verify")
	return n
}

// contextNode returns the content of the context entry, based on the existing one. It keeps a namespace that the person chose, if the role
// holds there.
func (a Entry) contextNode(have *yaml.Node) *yaml.Node {
	n := yamledit.ShallowCopy(have)
	yamledit.Set(n, "cluster", yamledit.Scalar(a.Name))
	yamledit.Set(n, "user", yamledit.Scalar(a.Name))
	if ns := yamledit.Child(n, "namespace"); len(a.Namespaces) > 0 && (ns == nil || !slices.Contains(a.Namespaces, ns.Value)) {
		yamledit.Set(n, "namespace", yamledit.Scalar(a.Namespaces[0]))
	}
	return n
}

// Document returns a complete kubeconfig that holds only these entries. The first one is the current context.
func Document(entries ...Entry) ([]byte, error) {
	f := &file{compact: true, doc: emptyDocument("")}
	for _, a := range entries {
		f.set(clustersList, a.Name, a.clusterNode(nil))
		f.set(usersList, a.Name, a.userNode())
		f.set(contextsList, a.Name, a.contextNode(nil))
	}
	f.setCurrent(entries[0].Name)
	return f.text()
}

// ContextOnly returns a kubeconfig that only sets the current context. As the first file in a KUBECONFIG list, it takes precedence over the
// others.
func ContextOnly(context string) ([]byte, error) {
	f := &file{compact: true, doc: emptyDocument("")}
	f.setCurrent(context)
	return f.text()
}
