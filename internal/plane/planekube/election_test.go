//go:build unix

package planekube

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A replica runs an election until its ctx ends.
type replica struct {
	stop    context.CancelFunc
	leads   atomic.Bool
	overdue atomic.Bool
	done    chan error
}

func (p *place) replica(config *rest.Config, busy *atomic.Int32) *replica {
	ctx, cancel := context.WithCancel(p.Context())
	r := &replica{stop: cancel, done: make(chan error, 1)}
	e := &Election{Config: config, Namespace: p.ns, Log: p.logger(), Overdue: func() { r.overdue.Store(true) }}
	go func() {
		r.done <- e.Run(ctx, func(ctx context.Context) error {
			if busy.Add(1) > 1 {
				return errors.New("two at a time")
			}
			defer busy.Add(-1)
			r.leads.Store(true)
			defer r.leads.Store(false)
			<-ctx.Done()
			return nil
		})
	}()
	return r
}

// PLANE-18, in part: of several replicas one is the node. When it goes, the next
// one begins, at once if it went in order; when it loses the Lease it ends before
// another one may begin; and never are there two.
func TestPLANE18_Election(t *testing.T) {
	p := newPlace(t, nil)
	var busy atomic.Int32
	gate, through := newGate(t, p.config)
	first := p.replica(through, &busy)
	p.until("the first one leads", first.leads.Load)
	second := p.replica(p.config, &busy)

	gate.set(true, false) // it can no longer renew
	p.until("the second one leads", second.leads.Load)
	if first.leads.Load() {
		t.Error("the first one goes on")
	}
	if err := <-first.done; !errors.Is(err, ErrLost) {
		t.Errorf("the first one ended with %v, want ErrLost", err)
	}
	if first.overdue.Load() {
		t.Error("its term was overdue, although it ended at once")
	}

	third := p.replica(p.config, &busy)
	began := time.Now()
	second.stop()
	if err := <-second.done; err != nil {
		t.Errorf("the second one ended with %v", err)
	}
	p.until("the third one leads", third.leads.Load)
	t.Logf("after an end in order the next one began in %v", time.Since(began))
	third.stop()
	if err := <-third.done; err != nil {
		t.Errorf("the third one ended with %v", err)
	}
	lease := new(coordinationv1.Lease)
	p.must(p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: LeaseName}, lease))
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("nobody leads, and the Lease is %s's", *lease.Spec.HolderIdentity)
	}
}

// Without its Lease nobody is elected, and the reason is said; with it the election
// goes on by itself.
func TestElectionTrouble(t *testing.T) {
	p := newPlace(t, nil)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: LeaseName}}
	p.must(p.admin.Delete(t.Context(), lease))
	e := &Election{Config: p.config, Namespace: p.ns, Log: p.logger(), Overdue: func() {}}
	var leads atomic.Bool
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- e.Run(ctx, func(ctx context.Context) error { leads.Store(true); <-ctx.Done(); return nil })
	}()
	p.until("it says that the Lease is missing", func() bool {
		err := e.Trouble()
		return err != nil && strings.Contains(err.Error(), "is not there")
	})
	if leads.Load() {
		t.Error("it leads without a Lease")
	}
	lease.ResourceVersion = ""
	p.must(p.admin.Create(t.Context(), lease))
	p.until("it leads", leads.Load)
	if err := e.Trouble(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A term that does not end when the Lease is lost is told of, while no other
// replica may begin yet.
func TestElectionOverdue(t *testing.T) {
	p := newPlace(t, nil)
	gate, through := newGate(t, p.config)
	release := make(chan struct{})
	var told atomic.Bool
	e := &Election{Config: through, Namespace: p.ns, Log: p.logger(), Overdue: func() { told.Store(true) }}
	leads, done := make(chan struct{}), make(chan error, 1)
	ctx := t.Context()
	go func() {
		done <- e.Run(ctx, func(context.Context) error {
			close(leads)
			<-release
			return nil
		})
	}()
	<-leads
	gate.set(true, false)
	p.until("it is told of", told.Load)
	if late := renewDeadline + retryPeriod + overdue; late >= leaseDuration {
		t.Errorf("it may be told of %v after the last renewal, when another replica may lead", late)
	}
	close(release)
	if err := <-done; !errors.Is(err, ErrLost) {
		t.Errorf("it ended with %v, want ErrLost", err)
	}
}
