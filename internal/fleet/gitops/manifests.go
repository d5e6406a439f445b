package gitops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// Group is the API group of the objects of a configuration.
const Group = "tailplane.dev"

// kinds are the kinds that are changed by pull request. Holds are not among them, because they must
// take effect at once.
var kinds = []string{"RunnerForge", "RunnerPool", "RunnerEnrollment"}

// Kinds returns the kinds that are changed by pull request.
func Kinds() []string { return slices.Clone(kinds) }

// Errors of a change of a file.
var (
	ErrObjectNotFound  = errors.New("the file has no such object")
	ErrDuplicateObject = errors.New("the file has the object twice")
	ErrObjectExists    = errors.New("the file has the object already")
	ErrNoChange        = errors.New("the edit changes nothing")
	ErrInvalidEdit     = errors.New("the edit is not valid")
	ErrUnreadableFile  = errors.New("the file cannot be read")
	ErrInvalidPath     = errors.New("the file path is not valid")
)

// ParseRef validates a kind and a name from a person's input.
func ParseRef(kind, name string) (Ref, error) {
	if !slices.Contains(kinds, kind) {
		return Ref{}, fmt.Errorf("%w: %.40q is not one of %s", ErrInvalidEdit, kind, strings.Join(kinds, ", "))
	}
	if len(name) == 0 || len(name) > 40 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name[0] == '-' ||
		name[len(name)-1] == '-' {
		return Ref{}, fmt.Errorf("%w: %.60q is not a valid name: use a DNS label of at most 40 characters", ErrInvalidEdit, name)
	}
	return Ref{Kind: kind, Name: name}, nil
}

// ResolvePath returns the path of an object's file in the repository. In the configured pattern, {kind}
// stands for its kind in lower case and {name} for its name; without them, all objects are in one
// file. The path must have one of the extensions.
func ResolvePath(pattern string, r Ref, extensions ...string) (string, error) {
	file := strings.NewReplacer("{kind}", strings.ToLower(r.Kind), "{name}", r.Name).Replace(pattern)
	if file != path.Clean(file) || path.IsAbs(file) || strings.HasPrefix(file, "..") || strings.HasPrefix(file, ".git/") ||
		strings.ContainsAny(file, "\\\x00\r\n{}") ||
		!slices.Contains(extensions, path.Ext(file)) {
		return "", fmt.Errorf(
			"%w: %.100q is not a path within the repository that ends with %s",
			ErrInvalidPath,
			file,
			strings.Join(extensions, ", "),
		)
	}
	return file, nil
}

// ManifestPath returns the path of an object's file in a repository of manifests, see [ResolvePath].
func ManifestPath(pattern string, r Ref) (string, error) {
	return ResolvePath(pattern, r, ".yaml", ".yml", ".json")
}

// PatternFolder returns the folder that contains all files of a pattern, see [ResolvePath]; "" is the whole
// repository. deep says that some may be in subfolders.
func PatternFolder(pattern string) (folder string, deep bool) {
	before, after, _ := strings.Cut(pattern, "{")
	return before[:max(strings.LastIndex(before, "/"), 0)], strings.Contains(after, "/")
}

// PathMatcher returns a function that reports whether a path can be the file of an object, see [ResolvePath]. To
// be sure, compare it with [ManifestPath] for the objects in the file.
func PathMatcher(pattern string) func(path string) bool {
	lower := make([]string, len(kinds))
	for i, k := range kinds {
		lower[i] = strings.ToLower(k)
	}
	expression := strings.NewReplacer(`\{kind\}`, "("+strings.Join(lower, "|")+")", `\{name\}`, "[a-z0-9-]{1,40}").
		Replace(regexp.QuoteMeta(pattern))
	return regexp.MustCompile("^" + expression + "$").MatchString
}

// Manifests reads and edits files of Kubernetes manifests, in YAML or JSON.
type Manifests struct {
	Pattern string // see [ResolvePath]
}

// File returns the path of an object's file.
func (m Manifests) File(r Ref) (string, error) { return ManifestPath(m.Pattern, r) }

// Spec calls [ReadSpec].
func (Manifests) Spec(file []byte, r Ref) (map[string]any, bool, error) { return ReadSpec(file, r) }

// Apply returns the file after the edits, applied one after the other.
func (Manifests) Apply(file []byte, r Ref, edits ...Edit) (text []byte, err error) {
	text = file
	for _, e := range edits {
		if text, err = applyEdit(text, r, e); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// Note is empty: a dry run at the API server shows the effect of a manifest.
func (Manifests) Note() string { return "" }

// An Edit is one requested change of an object. Exactly one of its fields must be set.
type Edit struct {
	Patch  json.RawMessage `json:"patch,omitempty"` // merge patch of the spec (RFC 7386)
	Spec   json.RawMessage `json:"spec,omitempty"`  // spec of a new object
	Remove bool            `json:"remove,omitempty"`
}

// Validate returns an error unless exactly one field is set.
func (e Edit) Validate() error {
	n := 0
	for _, set := range []bool{e.Patch != nil, e.Spec != nil, e.Remove} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%w: set exactly one of patch, spec and remove", ErrInvalidEdit)
	}
	return nil
}

// Object returns the patch or the new spec of an edit; nil if the edit removes the object.
func (e Edit) Object() (map[string]any, error) {
	text := e.Patch
	switch {
	case e.Remove:
		return nil, nil
	case e.Spec != nil:
		text = e.Spec
	}
	object, err := ParseObject(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidEdit, err)
	}
	return object, nil
}

// CheckExists returns an error if the edit cannot apply to an object that exists, or that does not exist.
func (e Edit) CheckExists(r Ref, exists bool) error {
	switch {
	case e.Spec != nil && exists:
		return fmt.Errorf("%w: %s", ErrObjectExists, r)
	case e.Spec == nil && !exists:
		return fmt.Errorf("%w: %s", ErrObjectNotFound, r)
	}
	return nil
}

// applyEdit returns the file after an edit. The rest of the file stays unchanged. The result is empty without the last object.
func applyEdit(file []byte, r Ref, e Edit) ([]byte, error) {
	changes, err := e.Object()
	if err != nil {
		return nil, err
	}
	parts, at, d, err := findDocument(file, r)
	if err == nil {
		err = e.CheckExists(r, at >= 0)
	}
	switch {
	case err != nil:
		return nil, err
	case e.Remove:
		return joinParts(slices.Delete(parts, at, at+1)), nil
	case e.Spec != nil:
		return addObject(file, r, changes)
	}
	want := maps.Clone(d.Value)
	want["spec"] = MergePatch(specOf(d), changes)
	text, err := d.Rewrite(want, fieldOrder...)
	if err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", ErrUnreadableFile, parts[at].Line, err)
	}
	if bytes.Equal(text, d.Text) {
		return nil, ErrNoChange
	}
	parts[at].Text = text
	return joinParts(parts), nil
}

// addObject returns the file with another object at its end.
func addObject(file []byte, r Ref, spec map[string]any) ([]byte, error) {
	object := map[string]any{"apiVersion": Group + "/v1alpha1", "kind": r.Kind, "metadata": map[string]any{"name": r.Name}, "spec": spec}
	text, err := yamledit.Compose(object, fieldOrder...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidEdit, err)
	}
	if len(bytes.TrimSpace(file)) == 0 {
		return text, nil
	}
	out := slices.Clone(file)
	if !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	return append(append(out, "---\n"...), text...), nil
}

// ReadSpec returns the spec of an object in a file, and whether the file contains the object.
func ReadSpec(file []byte, r Ref) (map[string]any, bool, error) {
	_, at, d, err := findDocument(file, r)
	if err != nil || at < 0 {
		return nil, false, err
	}
	return specOf(d), true, nil
}

// ReadSpecs returns the specs of all objects of the fleet in a file. It parses the file only once.
func ReadSpecs(file []byte) (map[Ref]map[string]any, error) {
	all, lines := map[Ref]map[string]any{}, map[Ref]int{}
	for _, p := range yamledit.Split(file) {
		d, r, err := parseDocument(p)
		if err != nil {
			return nil, err
		}
		if _, err := ParseRef(r.Kind, r.Name); err != nil {
			continue // not an object of the fleet
		}
		if line, twice := lines[r]; twice {
			return nil, fmt.Errorf("%w: %s, at lines %d and %d", ErrDuplicateObject, r, line, p.Line)
		}
		lines[r] = p.Line
		all[r] = specOf(d)
	}
	return all, nil
}

// parseDocument parses a document and returns its object of the fleet. The Ref is empty for a document of
// another group.
func parseDocument(p yamledit.Part) (d yamledit.Document, r Ref, err error) {
	if d, err = yamledit.Parse(p.Text); err != nil {
		return d, r, fmt.Errorf("%w: in the document that begins at line %d: %w", ErrUnreadableFile, p.Line, err)
	}
	version, _ := d.Value["apiVersion"].(string)
	if group, _, _ := strings.Cut(version, "/"); group != Group {
		return d, r, nil
	}
	meta, _ := d.Value["metadata"].(map[string]any)
	r.Kind, _ = d.Value["kind"].(string)
	r.Name, _ = meta["name"].(string)
	return d, r, nil
}

func specOf(d yamledit.Document) map[string]any {
	spec, _ := d.Value["spec"].(map[string]any)
	return spec
}

// findDocument returns the file's documents and the index of the object; -1 if it is missing.
func findDocument(file []byte, r Ref) (parts []yamledit.Part, at int, found yamledit.Document, err error) {
	parts, at = yamledit.Split(file), -1
	for i, p := range parts {
		d, is, err := parseDocument(p)
		if err != nil {
			return nil, -1, d, err
		}
		if is != r {
			continue
		}
		if at >= 0 {
			return nil, -1, d, fmt.Errorf("%w: %s, at lines %d and %d", ErrDuplicateObject, r, parts[at].Line, p.Line)
		}
		at, found = i, d
	}
	return parts, at, found, nil
}

func joinParts(parts []yamledit.Part) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		b.Write(p.Text)
	}
	return b.Bytes()
}

// ParseObject parses JSON from a request: one object without duplicate keys.
func ParseObject(text json.RawMessage) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	d = json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, errors.New("it is not valid JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	// The manifest parser refuses input that two parsers could read differently.
	if _, err := yamledit.Parse(text); err != nil {
		return nil, err
	}
	return v, nil
}

// MergePatch applies a merge patch (RFC 7386) to a value.
func MergePatch(old map[string]any, patch map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, old)
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case map[string]any:
			inner, _ := out[k].(map[string]any)
			out[k] = MergePatch(inner, v)
		default:
			out[k] = v
		}
	}
	return out
}

// fieldOrder is the order of fields in written objects.
var fieldOrder = strings.Fields(
	"apiVersion kind metadata name spec type url forge configURL groupID isolation runsOn scaling min max budget guarantee containerMode image resources template gitlab " +
		"dedicatedTo adopt pools credentials secretName rotateEvery rotateAt quota cpu memory pods placement network owners members offboardTimeout",
)
