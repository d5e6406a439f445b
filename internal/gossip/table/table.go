// Package table is a map that does not change: a change makes another one. It keeps
// the law that who reads never waits: a table may be read while its next one is made.
package table

import (
	"iter"
	"maps"
)

// A Table is an immutable map. A change copies what changed lately, and only
// now and then the rest: a view of thousands of members changes with every
// record that is met.
type Table[V any] struct {
	base   map[string]V
	recent map[string]V // before base
	size   int
}

const maxRecent = 64

// Get returns what is under a key.
func (t Table[V]) Get(key string) (V, bool) {
	v, ok := t.recent[key]
	if !ok {
		v, ok = t.base[key]
	}
	return v, ok
}

// With returns the table that has v under key, too.
func (t Table[V]) With(key string, v V) Table[V] {
	if _, ok := t.Get(key); !ok {
		t.size++
	}
	if len(t.recent) >= maxRecent {
		base := make(map[string]V, t.size)
		maps.Copy(base, t.base)
		maps.Copy(base, t.recent)
		t.base, t.recent = base, nil
	}
	recent := make(map[string]V, len(t.recent)+1)
	maps.Copy(recent, t.recent)
	recent[key] = v
	t.recent = recent
	return t
}

// Without returns the table that lacks those keys.
func (t Table[V]) Without(keys map[string]bool) Table[V] {
	base := make(map[string]V, t.size)
	for k, v := range t.All() {
		if !keys[k] {
			base[k] = v
		}
	}
	return Table[V]{base: base, size: len(base)}
}

// All yields in no order.
func (t Table[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for k, v := range t.recent {
			if !yield(k, v) {
				return
			}
		}
		for k, v := range t.base {
			if _, newer := t.recent[k]; !newer && !yield(k, v) {
				return
			}
		}
	}
}

// Len returns how many keys there are.
func (t Table[V]) Len() int { return t.size }
