package tsapi

import (
	"maps"
	"slices"
	"sync"
)

// A Version says of what a client was made: a client of another version is another client.
type Version struct {
	UID        string // of the object that names the tailnet
	Generation int64  // of its wishes
	Credential string // which one, never the credential itself
}

// Clients are the clients of all tailnets, by the name of the tailnet's object.
// There is no other way to one: no first, no default. The zero value holds none.
type Clients struct {
	mu     sync.RWMutex
	byName map[string]versioned
}

type versioned struct {
	Version
	*Client
}

// Get returns the client of the tailnet, and of what it was made. Use it for one
// piece of work and then get it again, since it may be replaced at any time.
func (s *Clients) Get(name string) (*Client, Version, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.byName[name]
	return v.Client, v.Version, ok
}

// Put returns the tailnet's client of that version and makes it if there is none
// yet. One of another version is given up: what it has in hand it finishes.
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
		return old.Client, nil // somebody else was faster
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

// Drop gives the tailnet's client up, with all it knows.
func (s *Clients) Drop(name string) {
	s.mu.Lock()
	old := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if old.Client != nil {
		old.drop()
	}
}

// Names returns the tailnets that have a client.
func (s *Clients) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.byName))
}

// Unwell returns of how many tailnets the API is left alone, because it failed too often.
func (s *Clients) Unwell() (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, v := range s.byName {
		if v.State().Circuit != Closed {
			n++
		}
	}
	return n
}
