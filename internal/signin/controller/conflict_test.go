//go:build unix

package controller

import (
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// SGN-17: If the API server answers each deletion with a conflict, nothing has ended, and the store
// does not report an end. It does not report a live sign-in as gone, and it does not report it as
// another one.
func TestSGN17_AConflictIsNoEnd(t *testing.T) {
	p := newEnv(t)
	p.operate()
	storm := kubetest.NewStorm(1)
	p.accessConfig = rest.CopyConfig(p.accessConfig)
	p.accessConfig.Wrap(storm.Wrap)
	s, _ := p.open()
	x := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	storm.Blow(map[kubetest.Fault]float64{kubetest.Conflict: 1})
	if err := s.Delete(t.Context(), x); !errors.Is(err, signin.ErrConflict) || errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Delete in a storm of conflicts: %v, want ErrConflict", err)
	}
	if now, err := s.Get(t.Context(), x.Name); err != nil || now.State(time.Now()) != signin.Ready {
		t.Errorf("afterwards it is %+v, %v", now, err)
	}
	storm.Blow(map[kubetest.Fault]float64{kubetest.Conflict: .5}) // some requests succeed
	for {
		err := s.Delete(t.Context(), x)
		if err == nil || errors.Is(err, signin.ErrNotFound) {
			break
		}
		if !errors.Is(err, signin.ErrConflict) {
			t.Fatal(err)
		}
	}
	p.await(s, x.Name, gone)
	p.nothingLeft()
}
