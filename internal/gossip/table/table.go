// Package table implements an immutable map: each change returns a new table. It keeps the law that readers never block: readers may use a
// table while a writer creates the next one.
package table

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// A Table is an immutable map in key order. A change copies one page and the list of pages, because a view of thousands of members changes
// with every new record. The zero Table is empty.
type Table[V any] struct {
	pages [][]entry[V] // none is empty
	size  int
}

type entry[V any] struct {
	key   string
	value V
}

const maxPage = 32 // entries

// find returns the position of key, or the position where it belongs. The table must have a page.
func (t Table[V]) find(key string) (page, at int, ok bool) {
	page, _ = slices.BinarySearchFunc(t.pages, key, func(p []entry[V], key string) int {
		return strings.Compare(p[len(p)-1].key, key)
	})
	page = min(page, len(t.pages)-1) // a key greater than all others belongs in the last page
	at, ok = slices.BinarySearchFunc(t.pages[page], key, func(e entry[V], key string) int {
		return strings.Compare(e.key, key)
	})
	return page, at, ok
}

// Get returns the value of a key.
func (t Table[V]) Get(key string) (v V, ok bool) {
	if t.size == 0 {
		return v, false
	}
	page, at, ok := t.find(key)
	if ok {
		v = t.pages[page][at].value
	}
	return v, ok
}

// With returns a table that has v under key in addition.
func (t Table[V]) With(key string, v V) Table[V] {
	added := entry[V]{key, v}
	if t.size == 0 {
		return Table[V]{[][]entry[V]{{added}}, 1}
	}
	page, at, ok := t.find(key)
	old := t.pages[page]
	if ok {
		changed := slices.Clone(old)
		changed[at] = added
		pages := slices.Clone(t.pages)
		pages[page] = changed
		return Table[V]{pages, t.size}
	}
	changed := append(append(append(make([]entry[V], 0, len(old)+1), old[:at]...), added), old[at:]...)
	parts := [][]entry[V]{changed}
	if half := len(changed) / 2; len(changed) > maxPage {
		parts = [][]entry[V]{slices.Clip(changed[:half]), changed[half:]}
	}
	pages := append(make([][]entry[V], 0, len(t.pages)+1), t.pages[:page]...)
	pages = append(append(pages, parts...), t.pages[page+1:]...)
	return Table[V]{pages, t.size + 1}
}

// Without returns a table without those keys.
func (t Table[V]) Without(keys map[string]bool) Table[V] {
	var next Table[V]
	var page []entry[V]
	for k, v := range t.All() {
		if keys[k] {
			continue
		}
		if len(page) == maxPage/2 { // half full, so that there is room for insertions
			next.pages, page = append(next.pages, page), nil
		}
		page = append(page, entry[V]{k, v})
		next.size++
	}
	if len(page) > 0 {
		next.pages = append(next.pages, page)
	}
	return next
}

// All yields the entries in key order.
func (t Table[V]) All() iter.Seq2[string, V] {
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
func (t Table[V]) Len() int { return t.size }

// Expire drops the entries older than since, and the oldest entries beyond limit.
func Expire[V any](from Table[V], limit int, at func(V) time.Time, since time.Time) Table[V] {
	drop := map[string]bool{}
	for k, v := range from.All() {
		if at(v).Before(since) {
			drop[k] = true
		}
	}
	for from.Len()-len(drop) > limit {
		oldest, found := "", false
		var when time.Time
		for k, v := range from.All() {
			if !drop[k] && (!found || at(v).Before(when) || at(v).Equal(when) && k < oldest) {
				oldest, when, found = k, at(v), true
			}
		}
		drop[oldest] = true
	}
	if len(drop) == 0 {
		return from
	}
	return from.Without(drop)
}
