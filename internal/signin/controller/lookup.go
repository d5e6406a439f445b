package controller

import (
	"sync"
	"time"
)

// A lookupCache caches answers of the API server about objects that this process may read by name but
// not watch: roles and admission policies. The zero value is ready to use.
type lookupCache[T any] struct {
	mu      sync.Mutex
	entries map[string]lookup[T]
}

type lookup[T any] struct {
	answer    T
	checkedAt time.Time
}

// get returns the answer to question. It uses the cached answer if that is younger than maxAge.
// Otherwise it calls find. Errors are not cached.
func (c *lookupCache[T]) get(question string, now time.Time, maxAge time.Duration, find func() (T, error)) (T, error) {
	c.mu.Lock()
	a, known := c.entries[question]
	c.mu.Unlock()
	if age := now.Sub(a.checkedAt); known && age >= 0 && age < maxAge {
		return a.answer, nil
	}
	answer, err := find()
	if err != nil {
		return answer, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]lookup[T]{}
	}
	c.entries[question] = lookup[T]{answer, now}
	return answer, nil
}
