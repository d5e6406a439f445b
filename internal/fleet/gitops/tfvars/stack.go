// Package tfvars reads and edits the variables of Tofu stacks as objects of the fleet's
// configuration. The settings contain the mapping from keys to fields. The package guarantees that
// the shown change is the written change: it refuses a field without a key instead of ignoring it.
package tfvars

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
)

// A Stack is one file of variables, with the mapping from its keys to fields.
type Stack struct {
	Path  string   // in the repository, ends with .tfvars; may contain {kind} and {name} as in [gitops.ResolvePath]
	Names []string // names of its objects, as patterns such as gh-*; none: all
	// Keys maps a kind and a field of its spec (such as scaling.max) to the location of the value:
	// an attribute, followed by keys of nested objects after dots. {name} stands for the object's
	// name, {name_} for the name with underscores.
	Keys map[string]map[string]string
}

// A Stacks is an ordered list of stacks. An object belongs to the first stack that covers it.
type Stacks struct{ stacks []mappedStack }

// mappedStack is a validated stack.
type mappedStack struct {
	Stack
	fields map[string][]field // by kind, sorted by path
}

// A field is a field of a spec with its key.
type field struct {
	path []string
	key  []segment
}

// A segment is a part of a key: the text before and after the name, if the segment contains the
// name.
type segment struct {
	before, after string
	named         bool
	underscores   bool
}

// NewStacks returns Stacks in this order. It returns an error if the mapping is not valid.
func NewStacks(stacks ...Stack) (Stacks, error) {
	var b Stacks
	if len(stacks) == 0 {
		return b, errors.New("there are no stacks")
	}
	for i, s := range stacks {
		m, err := validateStack(s)
		if err != nil {
			return Stacks{}, fmt.Errorf("stack %d: %w", i+1, err)
		}
		b.stacks = append(b.stacks, m)
	}
	for i, s := range b.stacks {
		for _, other := range b.stacks[:i] {
			if s.Path == other.Path {
				return Stacks{}, fmt.Errorf("stack %d: %s has two mappings", i+1, s.Path)
			}
		}
	}
	return b, nil
}

func validateStack(s Stack) (mappedStack, error) {
	m := mappedStack{s, map[string][]field{}}
	if _, err := gitops.ResolvePath(s.Path, gitops.Ref{Kind: gitops.Kinds()[0], Name: "a"}, ".tfvars"); err != nil {
		return m, err
	}
	for _, p := range s.Names {
		if _, err := path.Match(p, ""); err != nil {
			return m, fmt.Errorf("names: %.60q is not a valid pattern", p)
		}
	}
	if len(s.Keys) == 0 {
		return m, errors.New("keys: no key is mapped")
	}
	all := map[string][]field{} // fields of earlier kinds, by kind
	for _, kind := range slices.Sorted(maps.Keys(s.Keys)) {
		if !slices.Contains(gitops.Kinds(), kind) {
			return m, fmt.Errorf("keys: %.60q is not one of %s", kind, strings.Join(gitops.Kinds(), ", "))
		}
		for name, key := range s.Keys[kind] {
			f, err := parseField(name, key, strings.Contains(s.Path, "{name}"))
			if err != nil {
				return m, fmt.Errorf("keys.%s.%.100s: %w", kind, name, err)
			}
			m.fields[kind] = append(m.fields[kind], f)
		}
		slices.SortFunc(m.fields[kind], func(a, b field) int { return slices.Compare(a.path, b.path) })
		for i, f := range m.fields[kind] {
			for _, g := range m.fields[kind][:i] {
				if isUnder(f.path, g.path) {
					return m, fmt.Errorf(
						"keys.%s.%s: it is part of %s, which has another key",
						kind,
						strings.Join(f.path, "."),
						strings.Join(g.path, "."),
					)
				}
			}
		}
		for _, f := range m.fields[kind] {
			for other, those := range all {
				for _, g := range those {
					if mayCollide(f, g, kind == other) {
						return m, fmt.Errorf(
							"keys: %s %s and %s %s could have the same key for objects with some names",
							other,
							strings.Join(g.path, "."),
							kind,
							strings.Join(f.path, "."),
						)
					}
				}
			}
			all[kind] = append(all[kind], f)
		}
	}
	return m, nil
}

func parseField(name, key string, alone bool) (f field, err error) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	f.path = strings.Split(name, ".")
	for _, part := range f.path {
		if part == "" || strings.Trim(part, letters) != "" {
			return f, errors.New("it is not a field of a spec, such as scaling.max")
		}
	}
	named := 0
	for i, part := range strings.Split(key, ".") {
		s := segment{before: part}
		for _, mark := range []string{"{name}", "{name_}"} {
			if before, behind, ok := strings.Cut(part, mark); ok {
				s = segment{before, behind, true, mark == "{name_}"}
				named++
			}
		}
		if s.before+s.after == "" && !s.named || strings.Trim(s.before+s.after, letters+"_-") != "" ||
			i == 0 && s.before != "" && strings.ContainsRune("0123456789-", rune(s.before[0])) {
			return f, fmt.Errorf("%.100q is not a key, such as runners.{name}.max", key)
		}
		f.key = append(f.key, s)
	}
	switch {
	case named > 1:
		return f, errors.New("its key contains the name twice")
	case named == 0 && !alone:
		return f, errors.New("its key is the same for all objects: the key must contain {name} or {name_}, or the path must contain {name}")
	}
	return f, nil
}

// isUnder reports whether a path is equal to another one or below it.
func isUnder(p, of []string) bool { return len(p) >= len(of) && slices.Equal(p[:len(of)], of) }

// mayCollide reports whether two fields could share a key, or whether one object's key could be inside
// another object's part of the file.
func mayCollide(f, g field, kind bool) bool {
	own, others := f.root(), g.root()
	if kind && slices.Equal(own, others) {
		return keysOverlap(f.key, g.key)
	}
	return keysOverlap(own, others)
}

// root returns the part of a key below which everything belongs to the object: up to and including
// its name.
func (f field) root() []segment {
	if i := slices.IndexFunc(f.key, func(s segment) bool { return s.named }); i >= 0 {
		return f.key[:i+1]
	}
	return f.key
}

// keysOverlap reports whether, for some object names, two keys could be equal or one could be inside
// the other.
func keysOverlap(a, b []segment) bool {
	for i := range min(len(a), len(b)) {
		if !a[i].mayEqual(b[i]) {
			return false
		}
	}
	return true
}

func (s segment) mayEqual(o segment) bool {
	either := func(a, b string, part func(string, string) bool) bool { return part(a, b) || part(b, a) }
	switch {
	case s.named && o.named:
		return either(s.before, o.before, strings.HasPrefix) && either(s.after, o.after, strings.HasSuffix)
	case o.named:
		s, o = o, s
		fallthrough
	case s.named:
		return strings.HasPrefix(o.before, s.before) && strings.HasSuffix(o.before, s.after) && len(o.before) > len(s.before)+len(s.after)
	}
	return s.before == o.before
}

// keyFor returns the key for an object name.
func (f field) keyFor(name string) []string {
	var key []string
	for _, s := range f.key {
		key = append(key, s.resolve(name))
	}
	return key
}

func (s segment) resolve(name string) string {
	switch {
	case s.underscores:
		name = strings.ReplaceAll(name, "-", "_")
	case !s.named:
		name = ""
	}
	return s.before + name + s.after
}

// find returns the stack of an object.
func (b Stacks) find(r gitops.Ref) (mappedStack, error) {
	for _, s := range b.stacks {
		if len(s.fields[r.Kind]) > 0 &&
			(len(s.Names) == 0 || slices.ContainsFunc(s.Names, func(p string) bool { ok, _ := path.Match(p, r.Name); return ok })) {
			return s, nil
		}
	}
	return mappedStack{}, fmt.Errorf("%w: no Tofu stack has %s (plane.gitops.stacks)", gitops.ErrInvalidEdit, r)
}

// File returns the path of an object's file.
func (b Stacks) File(r gitops.Ref) (string, error) {
	s, err := b.find(r)
	if err != nil {
		return "", err
	}
	return gitops.ResolvePath(s.Path, r, ".tfvars")
}

// Note explains why the API server cannot preview a change.
func (Stacks) Note() string {
	return "These are variables of a Tofu stack. A dry run here cannot show their effect on the cluster; see the plan that CI adds to the pull request."
}

// keyText returns a key as people write it.
func keyText(key []string) string { return cmp.Or(strings.Join(key, "."), "?") }

// maxKeys is the maximum number of keys that one edit may change.
const maxKeys = 64

// Spec returns the spec of an object in a file, as far as the mapping covers it, and whether the
// file contains any value for it. A null value counts as absent.
func (b Stacks) Spec(file []byte, r gitops.Ref) (map[string]any, bool, error) {
	s, err := b.find(r)
	if err != nil {
		return nil, false, err
	}
	return s.spec(file, r)
}

func (m mappedStack) spec(file []byte, r gitops.Ref) (map[string]any, bool, error) {
	values, err := readVariables(file)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", gitops.ErrUnreadableFile, err)
	}
	spec := map[string]any{}
	for _, f := range m.fields[r.Kind] {
		v, exists := valueAt(values, f.keyFor(r.Name))
		if !exists || v == nil {
			continue
		}
		setValue(spec, f.path, v)
	}
	if len(spec) == 0 {
		return nil, false, nil
	}
	return spec, true, nil
}

// valueAt returns the value of a key, and whether the key exists.
func valueAt(values map[string]any, key []string) (any, bool) {
	var v any = values
	for _, k := range key {
		object, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = object[k]; !ok {
			return nil, false
		}
	}
	return v, true
}

// Apply returns the file after the edits, applied one after the other.
func (b Stacks) Apply(file []byte, r gitops.Ref, edits ...gitops.Edit) ([]byte, error) {
	s, err := b.find(r)
	if err != nil {
		return nil, err
	}
	for _, e := range edits {
		if file, err = s.apply(file, r, e); err != nil {
			return nil, err
		}
	}
	return file, nil
}

func (m mappedStack) apply(file []byte, r gitops.Ref, e gitops.Edit) ([]byte, error) {
	old, exists, err := m.spec(file, r)
	if err == nil {
		err = e.CheckExists(r, exists)
	}
	switch {
	case err != nil:
		return nil, err
	case e.Remove:
		return m.remove(file, r)
	}
	changes, err := e.Object()
	if err != nil {
		return nil, err
	}
	c, err := canonicalValue(gitops.MergePatch(old, changes))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", gitops.ErrInvalidEdit, err)
	}
	want, _ := withoutEmpty(c).(map[string]any)
	w := writer{mappedStack: m, name: r.Name, kind: r.Kind, text: file}
	if w.walk(nil, old, want); w.err != nil {
		return nil, w.err
	}
	if w.written == 0 {
		return nil, gitops.ErrNoChange
	}
	// Verify that the file now has exactly the wanted values.
	is, _, err := m.spec(w.text, r)
	if got, _ := withoutEmpty(is).(map[string]any); err != nil || !reflect.DeepEqual(got, want) {
		return nil, fmt.Errorf("%w: the edited file would not have the intended values", gitops.ErrInvalidEdit)
	}
	return w.text, nil
}

// withoutEmpty returns a value without nulls and empty objects; nil if nothing is left.
func withoutEmpty(v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{}
	for k, x := range object {
		if p := withoutEmpty(x); p != nil {
			out[k] = p
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// A writer writes the differences between two specs of an object.
type writer struct {
	mappedStack
	kind, name string
	text       []byte
	written    int
	err        error
}

// walk descends to the fields that have a key. old and updated are nil for absent values.
func (w *writer) walk(path []string, old, updated any) {
	was, _ := old.(map[string]any)
	is, object := updated.(map[string]any)
	if len(path) > 0 {
		above := false
		for _, f := range w.fields[w.kind] {
			if slices.Equal(f.path, path) {
				w.value(path, f.keyFor(w.name), true, old, updated)
				return
			}
			above = above || isUnder(f.path, path)
		}
		if !above || updated != nil && !object {
			w.err = fmt.Errorf(
				"%w: no key of the stack is mapped to spec.%.200s, so it would not be written (plane.gitops.stacks)",
				gitops.ErrInvalidEdit,
				strings.Join(path, "."),
			)
			return
		}
	}
	for _, k := range unionKeys(was, is) {
		if w.err == nil {
			w.walk(append(slices.Clone(path), k), was[k], is[k])
		}
	}
}

// value writes the value of a key and its subkeys. It adds a new key only if the mapping declares
// exactly that key: Tofu ignores keys that its modules do not declare.
func (w *writer) value(path, key []string, declared bool, old, updated any) {
	was, _ := old.(map[string]any)
	is, object := updated.(map[string]any)
	var err error
	switch {
	case w.err != nil || reflect.DeepEqual(old, updated):
		return
	case updated == nil:
		w.text, err = deleteVariable(w.text, key)
	case was != nil && object:
		for _, k := range unionKeys(was, is) {
			w.value(append(slices.Clone(path), k), append(slices.Clone(key), k), false, was[k], is[k])
		}
		return
	case object || old == nil && !declared:
		w.err = fmt.Errorf(
			"%w: the file has no %.200s, and no key is mapped to spec.%.200s: it might not be read there (plane.gitops.stacks)",
			gitops.ErrInvalidEdit,
			keyText(key),
			strings.Join(path, "."),
		)
		return
	default:
		w.text, err = setVariable(w.text, key, updated)
	}
	if w.written++; err == nil && w.written > maxKeys {
		err = errors.New("it changes too many keys at once")
	}
	if err != nil {
		w.err = fmt.Errorf("%w: %w", gitops.ErrInvalidEdit, err)
	}
}

func unionKeys(a, b map[string]any) []string {
	all := map[string]any{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// remove returns the file without an object. It removes everything below the object's name or, if
// the file belongs to the object alone, its mapped keys.
func (m mappedStack) remove(file []byte, r gitops.Ref) ([]byte, error) {
	done := map[string]bool{}
	for _, f := range m.fields[r.Kind] {
		key := f.keyFor(r.Name)[:len(f.root())]
		values, err := readVariables(file)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", gitops.ErrUnreadableFile, err)
		}
		if _, exists := valueAt(values, key); !exists || done[keyText(key)] {
			continue
		}
		done[keyText(key)] = true
		if file, err = deleteVariable(file, key); err != nil {
			return nil, fmt.Errorf("%w: %w", gitops.ErrInvalidEdit, err)
		}
	}
	return file, nil
}
