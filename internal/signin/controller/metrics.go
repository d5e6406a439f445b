package controller

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

// All returns every sign-in from the operator's cache, or false while the operator is not running.
func (o *Controller) All() ([]signin.Signin, bool) {
	reader := o.reader.Load()
	if reader == nil || !o.Synced() {
		return nil, false
	}
	return listSignins(*reader, o.Namespace)
}

// listSignins returns all sign-ins in a cache; false if it cannot be read.
func listSignins(reader client.Reader, namespace string, more ...client.ListOption) ([]signin.Signin, bool) {
	var list v1alpha1.TkaSigninList
	if err := reader.List(context.Background(), &list, append(more, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, false
	}
	all := make([]signin.Signin, len(list.Items))
	for i := range list.Items {
		all[i] = signinOf(&list.Items[i])
	}
	return all, true
}

// arrivalTimes stores when the watch first showed each new sign-in. It is used only to measure how long
// people wait.
type arrivalTimes struct {
	mu  sync.Mutex
	now func() time.Time
	at  map[types.UID]time.Time
}

// handler records new sign-ins and forgets deleted ones. It enqueues nothing.
func (a *arrivalTimes) handler() handler.EventHandler {
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

// waitTime returns how long the owner of s has been waiting. The wait starts when the watch showed
// the sign-in, or at AskedAt if no operator was running then. Stored times are whole seconds, so up
// to one second is not counted. It returns false if s was ready before.
func (a *arrivalTimes) waitTime(s signin.Signin) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	since, ok := a.at[types.UID(s.UID)]
	if !ok {
		return 0, false
	}
	delete(a.at, types.UID(s.UID))
	if requested := s.AskedAt.Add(time.Second); requested.Before(since) {
		since = requested
	}
	return a.now().Sub(since), true
}

// An EndedSignin describes a sign-in that ended without a request to the access server.
type EndedSignin struct {
	Signin signin.Signin
	Cause  signin.Cause
	Reason string // a sentence for the audit log
}

// endOf returns the End that the executed step causes. It returns false if the sign-in had already
// ended, or if the access server ended it. The access server counts and audits such an end with its
// request.
func endOf(f signin.Facts, step signin.Step, requested bool) (EndedSignin, bool) {
	if !f.ExpiredAt.IsZero() || f.Phase == signin.PhaseRefused {
		return EndedSignin{}, false
	}
	switch {
	case step.Action == signin.Expire:
		return EndedSignin{f.Signin, signin.CauseExpired, step.Report.Message}, true
	case step.Action == signin.Refuse:
		return EndedSignin{f.Signin, signin.CauseRefused, step.Report.Message}, true
	case step.Action == signin.Revoke && step.RemoveFinalizer && !requested:
		reason := "It was deleted in the cluster."
		if f.ServiceAccountUID != "" && (f.Account == nil || f.Account.UID != f.ServiceAccountUID) {
			reason = "Its ServiceAccount was deleted or recreated in the cluster."
		}
		if signin.IsWithdrawal(f.Reason) {
			reason = f.Message
		}
		return EndedSignin{f.Signin, signin.CauseAdmin, reason}, true
	}
	return EndedSignin{}, false
}
