package planekube

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
)

// orgs holds the organisations and their people from the enrollments.
type orgs struct {
	mu    sync.Mutex
	known map[string]access.Org
	list  atomic.Pointer[[]access.Org]
}

// Orgs returns the organisations with their owners and members, sorted by name. While the API server is down it returns the last known
// list, and nil before the first one. The caller must not modify it.
func (w *Watch) Orgs() []access.Org {
	if list := w.orgs.list.Load(); list != nil {
		return *list
	}
	return nil
}

func (s *orgs) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	list := slices.SortedFunc(maps.Values(s.known), func(a, b access.Org) int { return strings.Compare(a.Name, b.Name) })
	s.list.Store(&list)
}

// take stores the organisation of an enrollment. Callers must hold mu.
func (s *orgs) take(o client.Object) {
	if e, ok := o.(*v1alpha1.RunnerEnrollment); ok {
		s.known[e.Name] = access.Org{Name: e.Name, Owners: slices.Clone(e.Spec.Owners), Members: slices.Clone(e.Spec.Members)}
	}
}

// put, remove and replace implement [companion].
func (s *orgs) put(o client.Object)    { s.change(func() { s.take(o) }) }
func (s *orgs) remove(o client.Object) { s.change(func() { delete(s.known, o.GetName()) }) }
func (s *orgs) replace(all []client.Object) {
	s.change(func() {
		s.known = map[string]access.Org{}
		for _, o := range all {
			s.take(o)
		}
	})
}
