package signinkube

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// All returns every sign-in, from the cache of an operator that is at work; false
// while it is not.
func (o *Operator) All() ([]signin.Signin, bool) {
	reader := o.reader.Load()
	if reader == nil || !o.Synced() {
		return nil, false
	}
	var list v1alpha1.TkaSigninList
	if err := (*reader).List(context.Background(), &list, client.InNamespace(o.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, false
	}
	all := make([]signin.Signin, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, signinOf(&list.Items[i]))
	}
	return all, true
}

// arrivals are the times at which the watch showed sign-ins that nobody had
// looked at yet. They are only for the measure of how long people wait.
type arrivals struct {
	mu  sync.Mutex
	now func() time.Time
	at  map[types.UID]time.Time
}

// handler notes what comes and forgets what goes. It wakes nobody.
func (a *arrivals) handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) {
			if o, ok := e.Object.(*v1alpha1.TkaSignin); ok && o.Status.Phase == "" {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.at[o.UID] = a.now()
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.at, e.Object.GetUID())
		},
	}
}

// waited returns how long the owner of s has been waiting for it: since the watch
// showed it, or, if there was no operator then, since it was asked for. A stored
// time is whole seconds, so of that wait up to one is not counted. It is false for
// one that is not on its first way to being ready.
func (a *arrivals) waited(s signin.Signin) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	since, ok := a.at[types.UID(s.UID)]
	if !ok {
		return 0, false
	}
	delete(a.at, types.UID(s.UID))
	if asked := s.AskedAt.Add(time.Second); asked.Before(since) {
		since = asked
	}
	return a.now().Sub(since), true
}

// An End is that of a sign-in which no request to the access server caused.
type End struct {
	Signin signin.Signin
	Cause  signin.Cause
	Reason string // a sentence, for the record
}

// endBy returns the end that step, once carried out, is for a sign-in; false when
// it ends none: one that had ended before, or that the access server ended, which
// counts and records it with the request.
func endBy(f signin.Facts, step signin.Step, asked bool) (End, bool) {
	if !f.ExpiredAt.IsZero() || f.Phase == signin.PhaseRefused {
		return End{}, false
	}
	switch {
	case step.Deed == signin.Expire:
		return End{f.Signin, signin.CauseExpired, step.Report.Message}, true
	case step.Deed == signin.Refuse:
		return End{f.Signin, signin.CauseRefused, step.Report.Message}, true
	case step.Deed == signin.Revoke && step.Release && !asked:
		reason := "It was deleted in the cluster."
		if f.ServiceAccountUID != "" && (f.Account == nil || f.Account.UID != f.ServiceAccountUID) {
			reason = "Its ServiceAccount was deleted or made anew in the cluster."
		}
		return End{f.Signin, signin.CauseAdmin, reason}, true
	}
	return End{}, false
}
