//go:build unix

package kube

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/planekubetest"
)

// electionEnv is an environment with the Lease and an account that may hold it.
type electionEnv struct{ *planekubetest.Env }

func newElectionEnv(t *testing.T) *electionEnv {
	t.Helper()
	p := &electionEnv{planekubetest.New(t, kubetest.Start(t), planekubetest.Rights{
		Here: []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{LeaseName}, Verbs: []string{"get", "update"}}}})}
	p.Must(p.Admin.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: LeaseName}}))
	return p
}

// replica runs an election until its context ends.
type replica struct {
	stop    context.CancelFunc
	leads   atomic.Bool
	overdue atomic.Bool
	done    chan error
}

func (p *electionEnv) replica(config *rest.Config, busy *atomic.Int32) *replica {
	ctx, cancel := context.WithCancel(p.Context())
	r := &replica{stop: cancel, done: make(chan error, 1)}
	e := &Election{Config: config, Namespace: p.Namespace, Log: p.Logger(), Overdue: func() { r.overdue.Store(true) }}
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

// PLANE-18, in part: of several replicas one is the node. When it stops, the next one starts, at once after an orderly stop. When it loses
// the Lease, it stops before another one may start. There are never two.
func TestPLANE18_Election(t *testing.T) {
	p := newElectionEnv(t)
	var busy atomic.Int32
	gate, through := kubetest.NewGate(t, p.Config)
	first := p.replica(through, &busy)
	p.Until("the first one leads", first.leads.Load)
	second := p.replica(p.Config, &busy)

	gate.Set(true, false) // it can no longer renew
	p.Until("the second one leads", second.leads.Load)
	if first.leads.Load() {
		t.Error("the first one goes on")
	}
	if err := <-first.done; !errors.Is(err, kube.ErrLeaseLost) {
		t.Errorf("the first one ended with %v, want ErrLeaseLost", err)
	}
	if first.overdue.Load() {
		t.Error("its term was overdue, although it ended at once")
	}

	third := p.replica(p.Config, &busy)
	began := time.Now()
	second.stop()
	if err := <-second.done; err != nil {
		t.Errorf("the second one ended with %v", err)
	}
	p.Until("the third one leads", third.leads.Load)
	t.Logf("after an end in order the next one began in %v", time.Since(began))
	third.stop()
	if err := <-third.done; err != nil {
		t.Errorf("the third one ended with %v", err)
	}
	lease := new(coordinationv1.Lease)
	p.Must(p.Admin.Get(t.Context(), client.ObjectKey{Namespace: p.Namespace, Name: LeaseName}, lease))
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("no replica leads, but %s holds the Lease", *lease.Spec.HolderIdentity)
	}
}

// Without the Lease there is no leader, and Trouble gives the reason. With it the election continues without a restart.
func TestElectionFailures(t *testing.T) {
	p := newElectionEnv(t)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: LeaseName}}
	p.Must(p.Admin.Delete(t.Context(), lease))
	e := &Election{Config: p.Config, Namespace: p.Namespace, Log: p.Logger(), Overdue: func() {}}
	var leads atomic.Bool
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- e.Run(ctx, func(ctx context.Context) error { leads.Store(true); <-ctx.Done(); return nil })
	}()
	p.Until("it says that the Lease is missing", func() bool {
		err := e.Err()
		return err != nil && strings.Contains(err.Error(), "does not exist")
	})
	if leads.Load() {
		t.Error("it leads without a Lease")
	}
	lease.ResourceVersion = ""
	p.Must(p.Admin.Create(t.Context(), lease))
	p.Until("it leads", leads.Load)
	if err := e.Err(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A term that does not end when the Lease is lost is reported before another replica may start.
func TestElectionOverdue(t *testing.T) {
	p := newElectionEnv(t)
	gate, through := kubetest.NewGate(t, p.Config)
	release := make(chan struct{})
	var reported atomic.Bool
	e := &Election{Config: through, Namespace: p.Namespace, Log: p.Logger(), Overdue: func() { reported.Store(true) }}
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
	gate.Set(true, false)
	p.Until("it is reported", reported.Load)
	if late := renewDeadline + retryPeriod + maxTermEnd; late >= leaseDuration {
		t.Errorf("it may be reported %v after the last renewal, when another replica may lead", late)
	}
	close(release)
	if err := <-done; !errors.Is(err, kube.ErrLeaseLost) {
		t.Errorf("it ended with %v, want ErrLeaseLost", err)
	}
}
