package gossip

import (
	"iter"
	"maps"
)

// A table is an immutable map. A change copies what changed lately, and only
// now and then the rest: a view of thousands of members changes with every
// record that is met.
type table[V any] struct {
	base   map[string]V
	recent map[string]V // before base
	size   int
}

const maxRecent = 64

func (t table[V]) get(key string) (V, bool) {
	v, ok := t.recent[key]
	if !ok {
		v, ok = t.base[key]
	}
	return v, ok
}

func (t table[V]) with(key string, v V) table[V] {
	if _, ok := t.get(key); !ok {
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

func (t table[V]) without(keys map[string]bool) table[V] {
	base := make(map[string]V, t.size)
	for k, v := range t.all() {
		if !keys[k] {
			base[k] = v
		}
	}
	return table[V]{base: base, size: len(base)}
}

// all yields in no order.
func (t table[V]) all() iter.Seq2[string, V] {
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
