package inject

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/tailplane/tailplane/internal/manifest"
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

// Diff returns a unified diff of a source, or "" if nothing changed.
func Diff(name string, old, updated []byte) string {
	_, text, _ := strings.Cut(string(diff.Diff(name, old, name, updated)), "\n") // without the line that says "diff"
	return text
}

// file is Files for one source.
func file(s Source, o Options, annotations map[string]string) (text []byte, found []Finding, err error) {
	for _, d := range manifest.Split(s.Text) {
		changed, findings, err := document(d.Text, o, annotations)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s", s.Name, inFile(err, d.Line))
		}
		for i := range findings {
			findings[i].File = s.Name
			findings[i].Line += d.Line - 1
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

// templates says where the pod template of each kind that we know is.
var templates = map[string][]string{
	"v1 Pod": {}, "v1 PodTemplate": {"template"}, "v1 ReplicationController": {"spec", "template"},
	"apps Deployment": {"spec", "template"}, "apps ReplicaSet": {"spec", "template"}, "apps StatefulSet": {"spec", "template"}, "apps DaemonSet": {"spec", "template"},
	"batch Job": {"spec", "template"}, "batch CronJob": {"spec", "jobTemplate", "spec", "template"},
}

// document injects one document; it is text itself if nothing changes.
func document(text []byte, o Options, annotations map[string]string) ([]byte, []Finding, error) {
	d, err := manifest.Parse(text)
	if err != nil {
		// Of a kind that is none of ours, or of none: not ours to say what is wrong.
		if d.Readable() && !mentions(d.Kind()) {
			return text, nil, nil
		}
		return nil, nil, err
	}
	if d.Value == nil {
		return text, nil, nil
	}
	want := manifest.Copy(d.Value).(map[string]any)
	var found []Finding
	visit(d, nil, want, "", func(line int, kind string, object, template map[string]any) {
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
	changed, err := d.Rewrite(want, fields...)
	return changed, found, err
}

// mentions reports whether an object of a kind looks like one that we would change.
func mentions(kind string) bool {
	for k := range templates {
		if _, name, _ := strings.Cut(k, " "); strings.TrimSuffix(kind, "List") == name {
			return true
		}
	}
	return kind == "List"
}

// fields are in the order in which people write those of our parts.
var fields = strings.Fields("name image imagePullPolicy restartPolicy command args exec env value startupProbe periodSeconds failureThreshold resources requests limits cpu memory " +
	"securityContext runAsNonRoot runAsUser allowPrivilegeEscalation readOnlyRootFilesystem capabilities drop seccompProfile volumeMounts mountPath readOnly " +
	"emptyDir projected configMap secret sources serviceAccountToken audience expirationSeconds downwardAPI items key path fieldRef")

// visit calls do for each pod template of an object, which is at path, and of
// the objects of a list.
func visit(d manifest.Document, path []any, object map[string]any, kind string, do func(line int, kind string, object, template map[string]any)) {
	version, _ := object["apiVersion"].(string)
	if k, _ := object["kind"].(string); k != "" {
		kind = k
	}
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		for i, item := range items {
			m, ok := item.(map[string]any)
			if !ok {
				continue
			}
			at := append(slices.Clone(path), "items", i)
			if _, said := m["apiVersion"]; !said && kind != "List" { // the items of a DeploymentList need not say what they are
				m = withVersion(m, version)
				visitNamed(d.Line(at...), m, item.(map[string]any), strings.TrimSuffix(kind, "List"), do)
				continue
			}
			visit(d, at, m, strings.TrimSuffix(kind, "List"), do)
		}
		return
	}
	visitNamed(d.Line(path...), object, object, kind, do)
}

func withVersion(m map[string]any, version string) map[string]any {
	return map[string]any{"apiVersion": version, "kind": m["kind"]}
}

func visitNamed(line int, named, object map[string]any, kind string, do func(line int, kind string, object, template map[string]any)) {
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
	do(line, kind, object, template)
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
