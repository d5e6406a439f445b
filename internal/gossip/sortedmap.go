package gossip

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// A sortedMap is an immutable map in key order. A change copies one page and the list of pages, because a view of thousands of members changes
// with every new record. The zero sortedMap is empty.
type sortedMap[V any] struct {
	pages [][]sortedMapEntry[V] // none is empty
	size  int
}

type sortedMapEntry[V any] struct {
	key   string
	value V
}

const maxMapPage = 32 // entries

// find returns the position of key, or the position where it belongs. The map must have a page.
func (t sortedMap[V]) find(key string) (page, at int, ok bool) {
	page, _ = slices.BinarySearchFunc(t.pages, key, func(p []sortedMapEntry[V], key string) int {
		return strings.Compare(p[len(p)-1].key, key)
	})
	page = min(page, len(t.pages)-1) // a key greater than all others belongs in the last page
	at, ok = slices.BinarySearchFunc(t.pages[page], key, func(e sortedMapEntry[V], key string) int {
		return strings.Compare(e.key, key)
	})
	return page, at, ok
}

// Get returns the value of a key.
func (t sortedMap[V]) Get(key string) (v V, ok bool) {
	if t.size == 0 {
		return v, false
	}
	page, at, ok := t.find(key)
	if ok {
		v = t.pages[page][at].value
	}
	return v, ok
}

// With returns a map that has v under key in addition.
func (t sortedMap[V]) With(key string, v V) sortedMap[V] {
	added := sortedMapEntry[V]{key, v}
	if t.size == 0 {
		return sortedMap[V]{[][]sortedMapEntry[V]{{added}}, 1}
	}
	page, at, ok := t.find(key)
	old := t.pages[page]
	if ok {
		changed := slices.Clone(old)
		changed[at] = added
		pages := slices.Clone(t.pages)
		pages[page] = changed
		return sortedMap[V]{pages, t.size}
	}
	changed := slices.Insert(slices.Clone(old), at, added)
	parts := [][]sortedMapEntry[V]{changed}
	if half := len(changed) / 2; len(changed) > maxMapPage {
		parts = [][]sortedMapEntry[V]{slices.Clip(changed[:half]), changed[half:]}
	}
	pages := append(make([][]sortedMapEntry[V], 0, len(t.pages)+1), t.pages[:page]...)
	pages = append(append(pages, parts...), t.pages[page+1:]...)
	return sortedMap[V]{pages, t.size + 1}
}

// Without returns a map without those keys.
func (t sortedMap[V]) Without(keys ...string) sortedMap[V] {
	drop := map[string]bool{}
	for _, k := range keys {
		if _, ok := t.Get(k); ok {
			drop[k] = true
		}
	}
	if len(drop) == 0 {
		return t
	}
	var next sortedMap[V]
	var page []sortedMapEntry[V]
	for k, v := range t.All() {
		if drop[k] {
			continue
		}
		if len(page) == maxMapPage/2 { // half full, so that there is room for insertions
			next.pages, page = append(next.pages, page), nil
		}
		page = append(page, sortedMapEntry[V]{k, v})
		next.size++
	}
	if len(page) > 0 {
		next.pages = append(next.pages, page)
	}
	return next
}

// All yields the entries in key order.
func (t sortedMap[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, page := range t.pages {
			for _, e := range page {
				if !yield(e.key, e.value) {
					return
				}
			}
		}
	}
}

// Len returns the number of keys.
func (t sortedMap[V]) Len() int { return t.size }

// expireEntries drops the entries older than since, and the oldest entries beyond limit.
func expireEntries[V any](from sortedMap[V], limit int, at func(V) time.Time, since time.Time) sortedMap[V] {
	type aged struct {
		key string
		at  time.Time
	}
	var all []aged
	for k, v := range from.All() {
		all = append(all, aged{k, at(v)})
	}
	slices.SortStableFunc(all, func(a, b aged) int { return a.at.Compare(b.at) })
	var drop []string
	for i, e := range all {
		if e.at.Before(since) || len(all)-i > limit {
			drop = append(drop, e.key)
		}
	}
	return from.Without(drop...)
}
