package kube

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

// orgList holds the organisations and their people from the enrollments.
type orgList struct {
	mu    sync.Mutex
	known map[string]access.Org
	list  atomic.Pointer[[]access.Org]
}

// Orgs returns the organisations with their owners and members, sorted by name. While the API server is down it returns the last known
// list, and nil before the first one. The caller must not modify it.
func (w *Watcher) Orgs() []access.Org {
	if list := w.orgs.list.Load(); list != nil {
		return *list
	}
	return nil
}

func (s *orgList) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	list := slices.SortedFunc(maps.Values(s.known), func(a, b access.Org) int { return strings.Compare(a.Name, b.Name) })
	s.list.Store(&list)
}

// store stores the organisation of an enrollment. Callers must hold mu.
func (s *orgList) store(o client.Object) {
	if e, ok := o.(*v1alpha1.RunnerEnrollment); ok {
		s.known[e.Name] = access.Org{Name: e.Name, Owners: slices.Clone(e.Spec.Owners), Members: slices.Clone(e.Spec.Members)}
	}
}

// set, remove and replace implement [objectSink].
func (s *orgList) set(o client.Object)    { s.change(func() { s.store(o) }) }
func (s *orgList) remove(o client.Object) { s.change(func() { delete(s.known, o.GetName()) }) }
func (s *orgList) replace(all []client.Object) {
	s.change(func() {
		s.known = map[string]access.Org{}
		for _, o := range all {
			s.store(o)
		}
	})
}
