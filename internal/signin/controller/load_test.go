//go:build unix

package controller

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// Many sign-ins at once: each becomes ready. A restart of the operator with all of them live writes
// nothing and causes no delay.
func TestManyAtOnce(t *testing.T) {
	const people = 300
	p := newEnv(t)
	stop := p.operate()
	s, _ := p.open()
	first := p.login(s, newSignin(p.owner("first@a.example", "laptop"), "view", time.Hour)) // the API server initialises a new kind

	start := time.Now()
	var wg sync.WaitGroup
	for worker := range 20 {
		wg.Go(func() {
			for i := worker; i < people; i += 20 {
				want := newSignin(p.owner(fmt.Sprintf("user-%d@a.example", i), "laptop"), "view", time.Hour)
				if _, err := s.Create(t.Context(), want); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range people {
		p.await(s, p.owner(fmt.Sprintf("user-%d@a.example", i), "laptop").Name(), in(signin.Ready))
	}
	took := time.Since(start)
	t.Logf("%d sign-ins ready in %v: %.0f a second", people, took.Round(time.Millisecond), people/took.Seconds())

	// Row 8: a restart with all sign-ins live writes nothing.
	stop()
	before := p.versions()
	writes := &counter{writes: true}
	p.operatorConfig = writes.wrap(p.operatorConfig)
	p.operate()
	late := newSignin(p.owner("late@a.example", "laptop"), "view", time.Hour)
	start = time.Now()
	p.login(s, late)
	t.Logf("a new one was ready %v after a restart with %d live", time.Since(start).Round(time.Millisecond), people)
	after := p.versions()
	delete(after, late.Name)
	for name, version := range before {
		if after[name] != version {
			t.Errorf("%s was written at a restart", name)
		}
	}
	if n := writes.now(); n != 4 { // ServiceAccount, binding, annotation and status of the new one
		t.Errorf("%d writes after the restart, want the 4 of the new sign-in", n)
	}

	start = time.Now()
	if err := p.admin.DeleteAllOf(t.Context(), &v1alpha1.TkaSignin{}, client.InNamespace(p.ns)); err != nil {
		t.Fatal(err)
	}
	p.await(s, first.Name, gone)
	p.until("all are gone", func() bool { return len(p.versions()) == 0 })
	t.Logf("%d taken down in %v", people+2, time.Since(start).Round(time.Millisecond))
	p.nothingLeft()
}

// versions returns the resource versions of all sign-ins.
func (p *env) versions() map[string]string {
	p.t.Helper()
	var list v1alpha1.TkaSigninList
	if err := p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns)); err != nil {
		p.t.Fatal(err)
	}
	m := map[string]string{}
	for _, o := range list.Items {
		m[o.Name] = o.ResourceVersion
	}
	return m
}
