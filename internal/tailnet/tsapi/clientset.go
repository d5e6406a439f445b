package tsapi

import (
	"maps"
	"slices"
	"sync"
)

// A Version identifies the configuration of a client. A different version needs a new client.
type Version struct {
	UID        string // of the Tailnet object
	Generation int64  // of the object's spec
	Credential string // an identifier of the credential, never the credential
}

// Clients holds the clients of all tailnets, by the name of the Tailnet object. A client can only
// be found by name; there is no default. The zero value is empty.
type Clients struct {
	mu     sync.RWMutex
	byName map[string]versioned
}

type versioned struct {
	Version
	*Client
}

// Get returns the client of a tailnet and its version. Use it for one piece of work and then call
// Get again, because it may be replaced at any time.
func (s *Clients) Get(name string) (*Client, Version, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.byName[name]
	return v.Client, v.Version, ok
}

// Put returns the client of that tailnet and version, and creates it if necessary. It retires a
// client of another version, which finishes its calls in progress.
func (s *Clients) Put(name string, v Version, config func() (Config, error)) (*Client, error) {
	if c, have, ok := s.Get(name); ok && have == v {
		return c, nil
	}
	made, err := config()
	if err != nil {
		return nil, err
	}
	c, err := New(made)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	old := s.byName[name]
	if old.Client != nil && old.Version == v {
		s.mu.Unlock()
		return old.Client, nil // another goroutine created it first
	}
	if s.byName == nil {
		s.byName = map[string]versioned{}
	}
	s.byName[name] = versioned{v, c}
	s.mu.Unlock()
	if old.Client != nil {
		old.drop()
	}
	return c, nil
}

// Drop retires a tailnet's client and discards its cache.
func (s *Clients) Drop(name string) {
	s.mu.Lock()
	old := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if old.Client != nil {
		old.drop()
	}
}

// Names returns the names of the tailnets that have a client, sorted.
func (s *Clients) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.byName))
}

// CountFailing returns the number of clients whose circuit is not closed.
func (s *Clients) CountFailing() (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, v := range s.byName {
		if v.State().Circuit != Closed {
			n++
		}
	}
	return n
}
