package tfvars

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
)

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
		into := spec
		for _, k := range f.path[:len(f.path)-1] {
			inner, ok := into[k].(map[string]any)
			if !ok {
				inner = map[string]any{}
				into[k] = inner
			}
			into = inner
		}
		into[f.path[len(f.path)-1]] = v
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
	switch {
	case err != nil:
		return nil, err
	case e.Spec != nil && exists:
		return nil, fmt.Errorf("%w: %s", gitops.ErrObjectExists, r)
	case e.Spec == nil && !exists:
		return nil, fmt.Errorf("%w: %s", gitops.ErrObjectNotFound, r)
	case e.Remove:
		return m.remove(file, r)
	}
	text := e.Patch
	if e.Spec != nil {
		text = e.Spec
	}
	changes, err := gitops.ParseObject(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", gitops.ErrInvalidEdit, err)
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
			w.err = fmt.Errorf("%w: no key of the stack is mapped to spec.%.200s, so it would not be written (plane.gitops.stacks)", gitops.ErrInvalidEdit, strings.Join(path, "."))
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
		w.err = fmt.Errorf("%w: the file has no %.200s, and no key is mapped to spec.%.200s: it might not be read there (plane.gitops.stacks)", gitops.ErrInvalidEdit, keyText(key), strings.Join(path, "."))
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
	all := slices.Collect(maps.Keys(a))
	for k := range b {
		if _, both := a[k]; !both {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return all
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
