package inject

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// Source is a file or a stream of YAML or JSON manifests, with any number of documents.
type Source struct {
	Name string // for messages
	Text []byte
}

// FileResult is the result for one pod template.
type FileResult struct {
	File string
	Line int    // of the start of the object, from 1
	Kind string // such as Deployment
	Name string // of the object, with its namespace if it has one
	Decision
}

func (f FileResult) String() string {
	return fmt.Sprintf("%s:%d: %s %s: %s", f.File, f.Line, f.Kind, f.Name, f.Message)
}

// ErrRefused is the error of Files if a template cannot have the adapter.
var ErrRefused = errors.New("some pod templates cannot have the adapter; no file is written")

// Files injects the adapter into every pod template of the sources that does not opt out. It keeps everything
// else byte for byte: comments, field order, and objects of unknown kinds. If annotations is not nil, Files
// first sets them on each template.
//
// If it returns an error, there is nothing to write. With ErrRefused the findings have the reasons.
func Files(in []Source, o Options, annotations map[string]string) (out []Source, results []FileResult, err error) {
	o.Unlabelled = InjectUnlabelled
	refused := false
	for _, s := range in {
		text, findings, err := injectFile(s, o, annotations)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range findings {
			refused = refused || f.Outcome == Refused
		}
		results = append(results, findings...)
		out = append(out, Source{s.Name, text})
	}
	if refused {
		return nil, results, ErrRefused
	}
	return out, results, nil
}

// Diff returns a unified diff of a source, or "" if nothing changed.
func Diff(name string, old, updated []byte) string {
	_, text, _ := strings.Cut(string(diff.Diff(name, old, name, updated)), "\n") // without the "diff" line
	return text
}

// injectFile implements Files for one source.
func injectFile(s Source, o Options, annotations map[string]string) (text []byte, results []FileResult, err error) {
	for _, d := range yamledit.Split(s.Text) {
		changed, findings, err := injectDocument(d.Text, o, annotations)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s", s.Name, fileError(err, d.Line))
		}
		for i := range findings {
			findings[i].File = s.Name
			findings[i].Line += d.Line - 1
		}
		results = append(results, findings...)
		text = append(text, changed...)
	}
	return text, results, nil
}

var lineNumber = regexp.MustCompile(`\bline ([0-9]+)`)

// fileError converts the line numbers in an error from the document to the file.
func fileError(err error, began int) string {
	if !lineNumber.MatchString(err.Error()) {
		return fmt.Sprintf("line %d: %v", began, err)
	}
	return lineNumber.ReplaceAllStringFunc(err.Error(), func(m string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(m, "line ")) // the match has digits
		return fmt.Sprintf("line %d", n+began-1)
	})
}

// templates maps each known kind to the path of its pod template.
var templates = map[string][]string{
	"v1 Pod": {}, "v1 PodTemplate": {"template"}, "v1 ReplicationController": {"spec", "template"},
	"apps Deployment": {
		"spec",
		"template",
	}, "apps ReplicaSet": {"spec", "template"}, "apps StatefulSet": {"spec", "template"}, "apps DaemonSet": {"spec", "template"},
	"batch Job": {"spec", "template"}, "batch CronJob": {"spec", "jobTemplate", "spec", "template"},
}

// injectDocument injects the adapter into one document. It returns text itself if nothing changes.
func injectDocument(text []byte, o Options, annotations map[string]string) ([]byte, []FileResult, error) {
	d, err := yamledit.Parse(text)
	if err != nil {
		// A document of another kind, or of no kind, may be invalid: reporting that is not the injector's
		// task.
		if d.Readable() && !hasTemplates(d.Kind()) {
			return text, nil, nil
		}
		return nil, nil, err
	}
	if d.Value == nil {
		return text, nil, nil
	}
	want := yamledit.Copy(d.Value).(map[string]any)
	var results []FileResult
	eachTemplate(d, nil, want, "", func(line int, kind string, object, template map[string]any) {
		for k, v := range annotations {
			annotate(template, k, v)
		}
		decision := decide(template, o)
		results = append(results, FileResult{Line: line, Kind: kind, Name: nameOf(object), Decision: decision})
	})
	for _, f := range results {
		if f.Outcome == Refused {
			return text, results, nil
		}
	}
	changed, err := d.Rewrite(want, fields...)
	return changed, results, err
}

// hasTemplates reports whether an object of this kind looks like one that injection changes.
func hasTemplates(kind string) bool {
	for k := range templates {
		if _, name, _ := strings.Cut(k, " "); strings.TrimSuffix(kind, "List") == name {
			return true
		}
	}
	return kind == "List"
}

// fields lists field names in the conventional order, which Rewrite uses for new fields.
var fields = strings.Fields(
	"name image imagePullPolicy restartPolicy command args exec env value startupProbe periodSeconds failureThreshold resources requests limits cpu memory " +
		"securityContext runAsNonRoot runAsUser allowPrivilegeEscalation readOnlyRootFilesystem capabilities drop seccompProfile volumeMounts mountPath readOnly " +
		"emptyDir projected configMap secret sources serviceAccountToken audience expirationSeconds downwardAPI items key path fieldRef",
)

// eachTemplate calls do for each pod template of the object at path, and of the items of a list.
func eachTemplate(
	d yamledit.Document,
	path []any,
	object map[string]any,
	kind string,
	do func(line int, kind string, object, template map[string]any),
) {
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
			// the items of a typed list, such as a DeploymentList, may omit apiVersion and kind
			if _, present := m["apiVersion"]; !present && kind != "List" {
				m = withVersion(m, version)
				eachNamedTemplate(d.Line(at...), m, item.(map[string]any), strings.TrimSuffix(kind, "List"), do)
				continue
			}
			eachTemplate(d, at, m, strings.TrimSuffix(kind, "List"), do)
		}
		return
	}
	eachNamedTemplate(d.Line(path...), object, object, kind, do)
}

func withVersion(m map[string]any, version string) map[string]any {
	return map[string]any{"apiVersion": version, "kind": m["kind"]}
}

func eachNamedTemplate(
	line int,
	named, object map[string]any,
	kind string,
	do func(line int, kind string, object, template map[string]any),
) {
	version, _ := named["apiVersion"].(string)
	group, _, grouped := strings.Cut(version, "/")
	if group == "extensions" { // the former API group
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
			// There is no template to inject into. The API server reports the error.
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
