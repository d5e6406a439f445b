package inject

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/inject/linediff"
)

// A Source is a file or a stream of manifests, in YAML or JSON, with any number
// of documents.
type Source struct {
	Name string // for people
	Text []byte
}

// A Finding is what became of one pod template.
type Finding struct {
	File string
	Line int    // where its object begins, from 1
	Kind string // such as Deployment
	Name string // of the object, with its namespace if it says one
	Verdict
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s %s: %s", f.File, f.Line, f.Kind, f.Name, f.Message)
}

// ErrRefused is what Files returns when a template cannot have the adapter.
var ErrRefused = errors.New("some pod templates cannot have the adapter; nothing is written")

// Files puts the adapter into every pod template of the sources but those that
// opt out. What it does not have to change is kept byte for byte: comments,
// order, and objects of kinds that it does not know. Annotations, optional, are
// set on each template first.
//
// After an error there is nothing to write. With ErrRefused the findings say why.
func Files(in []Source, o Options, annotations map[string]string) (out []Source, found []Finding, err error) {
	o.Unlabelled = InjectUnlabelled
	refused := false
	for _, s := range in {
		text, findings, err := file(s, o, annotations)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range findings {
			refused = refused || f.Outcome == Refused
		}
		found = append(found, findings...)
		out = append(out, Source{s.Name, text})
	}
	if refused {
		return nil, found, ErrRefused
	}
	return out, found, nil
}

// Diff is a unified diff of a source, or "" if nothing changed.
func Diff(name string, old, updated []byte) string { return linediff.Unified(name, old, updated) }

// file is Files for one source.
func file(s Source, o Options, annotations map[string]string) (text []byte, found []Finding, err error) {
	for _, d := range documents(s.Text) {
		changed, findings, err := document(d.text, o, annotations)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s", s.Name, inFile(err, d.line))
		}
		for i := range findings {
			findings[i].File = s.Name
			findings[i].Line += d.line - 1
		}
		found = append(found, findings...)
		text = append(text, changed...)
	}
	return text, found, nil
}

var lineNumber = regexp.MustCompile(`\bline ([0-9]+)`)

// inFile says an error about a document with the lines of the file.
func inFile(err error, began int) string {
	if !lineNumber.MatchString(err.Error()) {
		return fmt.Sprintf("line %d: %v", began, err)
	}
	return lineNumber.ReplaceAllStringFunc(err.Error(), func(m string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(m, "line ")) // it has digits
		return fmt.Sprintf("line %d", n+began-1)
	})
}

// A part is one document of a stream, with the marker that begins it.
type part struct {
	text []byte
	line int
}

// documents splits a stream before each line that begins a document. Together
// they are the stream.
func documents(text []byte) (all []part) {
	line, began, at := 1, 1, 0
	for i := 0; i < len(text); {
		end := len(text)
		if n := bytes.IndexByte(text[i:], '\n'); n >= 0 {
			end = i + n + 1
		}
		l := text[i:end]
		rest, marker := bytes.CutPrefix(l, []byte("---"))
		if marker && i > at && (len(bytes.TrimSpace(rest)) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			all = append(all, part{text[at:i], began})
			at, began = i, line
		}
		i = end
		line++
		if string(bytes.TrimRight(l, "\r\n")) == "..." && i < len(text) {
			all = append(all, part{text[at:i], began})
			at, began = i, line
		}
	}
	return append(all, part{text[at:], began})
}

// templates says where the pod template of each kind that we know is.
var templates = map[string][]string{
	"v1 Pod": {}, "v1 PodTemplate": {"template"}, "v1 ReplicationController": {"spec", "template"},
	"apps Deployment": {"spec", "template"}, "apps ReplicaSet": {"spec", "template"}, "apps StatefulSet": {"spec", "template"}, "apps DaemonSet": {"spec", "template"},
	"batch Job": {"spec", "template"}, "batch CronJob": {"spec", "jobTemplate", "spec", "template"},
}

// document injects one document; it is text itself if nothing changes.
func document(text []byte, o Options, annotations map[string]string) ([]byte, []Finding, error) {
	root, asJSON, err := parse(text)
	if err != nil || root == nil {
		return text, nil, err
	}
	v, err := treeOf(root)
	if err != nil {
		// Of a kind that is none of ours, or of none: not ours to say what is wrong.
		if !mentions(root) {
			return text, nil, nil
		}
		return nil, nil, err
	}
	was, ok := v.(map[string]any)
	if !ok {
		return text, nil, nil
	}
	want := copyOf(was).(map[string]any)
	var found []Finding
	visit(root, want, "", func(line int, kind string, object, template map[string]any) {
		for k, v := range annotations {
			annotate(template, k, v)
		}
		verdict := decide(template, o)
		found = append(found, Finding{Line: line, Kind: kind, Name: nameOf(object), Verdict: verdict})
	})
	for _, f := range found {
		if f.Outcome == Refused {
			return text, found, nil
		}
	}
	if reflect.DeepEqual(was, want) {
		return text, found, nil
	}
	changed, err := rewrite(text, root, asJSON, was, want)
	return changed, found, err
}

// visit calls do for each pod template of an object, which is at node, and of
// the objects of a list.
func visit(node *yaml.Node, object map[string]any, kind string, do func(line int, kind string, object, template map[string]any)) {
	version, _ := object["apiVersion"].(string)
	if k, _ := object["kind"].(string); k != "" {
		kind = k
	}
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		nodes := child(node, "items")
		for i, item := range items {
			m, ok := item.(map[string]any)
			if !ok {
				continue
			}
			at := node
			if nodes != nil && nodes.Kind == yaml.SequenceNode && i < len(nodes.Content) {
				at = nodes.Content[i]
			}
			if _, said := m["apiVersion"]; !said && kind != "List" { // the items of a DeploymentList need not say what they are
				m = withVersion(m, version)
				visitNamed(at, m, item.(map[string]any), strings.TrimSuffix(kind, "List"), do)
				continue
			}
			visit(at, m, strings.TrimSuffix(kind, "List"), do)
		}
		return
	}
	visitNamed(node, object, object, kind, do)
}

func withVersion(m map[string]any, version string) map[string]any {
	return map[string]any{"apiVersion": version, "kind": m["kind"]}
}

func visitNamed(node *yaml.Node, named, object map[string]any, kind string, do func(line int, kind string, object, template map[string]any)) {
	version, _ := named["apiVersion"].(string)
	group, _, grouped := strings.Cut(version, "/")
	if group == "extensions" { // where they were at first
		group = "apps"
	}
	if !grouped && version != "v1" {
		return
	}
	path, known := templates[group+" "+kind]
	if !known {
		return
	}
	template := object
	for _, key := range path {
		next, ok := template[key].(map[string]any)
		if !ok {
			// Nothing to inject into; the API server will say what is wrong.
			return
		}
		template = next
	}
	do(node.Line, kind, object, template)
}

func nameOf(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" {
		name, _ = meta["generateName"].(string)
	}
	if ns, _ := meta["namespace"].(string); ns != "" {
		return ns + "/" + name
	}
	return name
}

func annotate(template map[string]any, key, value string) {
	meta, ok := template["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		template["metadata"] = meta
	}
	all, ok := meta["annotations"].(map[string]any)
	if !ok {
		all = map[string]any{}
		meta["annotations"] = all
	}
	all[key] = value
}

// copyOf is a deep copy of a decoded value.
func copyOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for k, x := range v {
			c[k] = copyOf(x)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, x := range v {
			c[i] = copyOf(x)
		}
		return c
	}
	return v
}
