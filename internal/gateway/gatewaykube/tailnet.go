package gatewaykube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/standing"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	mostDeeds = 12               // per reconcile; a complete proof needs fewer
	tidyTime  = 10 * time.Second // for a deletion, even if the context of the reconcile has ended
)

// A tailnetReconciler maintains the API clients of tailnets and reports their health.
type tailnetReconciler struct {
	*Controllers
	client.Client
	events  events.EventRecorder
	watches *secretWatches
}

// used returns the tailnets that an object uses.
func (r *tailnetReconciler) used(ctx context.Context, o client.Object) (out []reconcile.Request) {
	for _, name := range tailnetsOf(o) {
		if name != "" {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
			continue
		}
		var all v1alpha1.TailscaleTailnetList
		if err := r.List(ctx, &all); err != nil {
			r.Log.Error("look up tailnets in the cache", "err", err)
		}
		for i := range all.Items {
			if all.Items[i].Annotations[v1alpha1.DefaultAnnotation] == "true" {
				out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: all.Items[i].Name}})
			}
		}
	}
	return out
}

// Reconcile reconciles one tailnet: gather facts, decide, act, report.
func (r *tailnetReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &v1alpha1.TailscaleTailnet{}
	if err := r.Get(ctx, req.NamespacedName, o); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.Name)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("look at the tailnet %s: %w", req.Name, err)
	}
	look := &tailnetLook{tailnetReconciler: r, object: o, before: o.DeepCopy()}
	wake, err := look.run(ctx)
	switch {
	case kube.Stale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // stale cache: try again in a moment
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("tailnet %s: %w", req.Name, err)
	case wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(wake.Sub(r.Now()), time.Millisecond), longestNap)}, nil
}

func (r *tailnetReconciler) forget(name string) {
	r.Clients.Drop(name)
	r.watches.follow(name, types.NamespacedName{})
}

// A tailnetLook is one reconcile of one tailnet.
type tailnetLook struct {
	*tailnetReconciler
	object *v1alpha1.TailscaleTailnet // as last written
	before *v1alpha1.TailscaleTailnet // as read at the start
	facts  standing.Facts
	client *tsapi.Client // nil if there is no credential
	lists  *tsapi.Lists  // of the check in this reconcile
}

func (l *tailnetLook) run(ctx context.Context) (wake time.Time, err error) {
	if err := l.gather(ctx); err != nil {
		return time.Time{}, err
	}
	deed := standing.Deed("")
	for range mostDeeds {
		if deed, wake = standing.Next(l.facts, l.Now()); deed == standing.Rest {
			break
		}
		if err = l.act(ctx, deed); err != nil || deed == standing.Release {
			break
		}
	}
	if deed == standing.Release && err == nil {
		return time.Time{}, nil
	}
	if kube.Stale(err) {
		return time.Time{}, err // the facts are outdated, so they are not reported
	}
	if deed != standing.Rest && wake.IsZero() {
		wake = l.Now()
	}
	return wake, errors.Join(err, l.report(context.WithoutCancel(ctx), wake))
}

func (l *tailnetLook) gather(ctx context.Context) error {
	o := l.object
	has, err := l.credential(ctx, o)
	if err != nil {
		return err
	}
	l.watches.follow(o.Name, has.secret)
	l.facts = factsOf(o)
	l.facts.Credential, l.facts.Trouble = has.version, has.trouble
	if l.facts.Users, err = l.users(ctx, o); err != nil {
		return err
	}
	if has.version == "" {
		l.Clients.Drop(o.Name)
		return nil
	}
	version := tsapi.Version{UID: string(o.UID), Generation: o.Generation, Credential: has.version}
	l.client, err = l.Clients.Put(o.Name, version, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: o.Spec.APIBaseURL, Tailnet: o.Spec.Tailnet, Credential: has.credential, UserAgent: l.UserAgent,
			PerSecond: l.PerSecond, Burst: l.Burst, Now: l.Now, Observe: l.Observe}, nil
	})
	return err
}

// users returns the objects that use the tailnet, as "kind namespace/name".
func (r *tailnetReconciler) users(ctx context.Context, o *v1alpha1.TailscaleTailnet) (users []string, err error) {
	names := []string{o.Name}
	if o.Annotations[v1alpha1.DefaultAnnotation] == "true" {
		names = append(names, "")
	}
	for _, name := range names {
		var groups v1alpha1.TailscaleProxyGroupList
		var services v1alpha1.TailscaleServiceList
		var gateways v1alpha1.TailscaleGatewayList
		for _, list := range []client.ObjectList{&groups, &services, &gateways} {
			if err := r.List(ctx, list, client.MatchingFields{byTailnet: name}, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("look up who uses it: %w", err)
			}
		}
		for i := range groups.Items {
			users = append(users, "TailscaleProxyGroup "+groups.Items[i].Namespace+"/"+groups.Items[i].Name)
		}
		for i := range services.Items {
			users = append(users, "TailscaleService "+services.Items[i].Namespace+"/"+services.Items[i].Name)
		}
		for i := range gateways.Items {
			users = append(users, "TailscaleGateway "+gateways.Items[i].Namespace+"/"+gateways.Items[i].Name)
		}
	}
	return users, nil
}

// act executes an action and stores the result in the facts. It returns only Kubernetes errors;
// failures of Tailscale's API become facts.
func (l *tailnetLook) act(ctx context.Context, deed standing.Deed) error {
	switch deed {
	case standing.Hold:
		return l.hold(ctx)
	case standing.Release:
		return l.release(ctx)
	case standing.Prove:
		return l.prove(ctx)
	case standing.Tidy:
		return l.tidy(ctx)
	case standing.Forget:
		l.facts.LeftOver = l.facts.Proof.Phase == standing.ToTidy
		l.facts.Proof = standing.Proof{Phase: standing.Pending}
		return nil
	case standing.Check:
		return l.check(ctx)
	}
	return fmt.Errorf("no such deed: %q", deed)
}

func (l *tailnetLook) hold(ctx context.Context) error {
	was := l.object.DeepCopy()
	controllerutil.AddFinalizer(l.object, v1alpha1.Finalizer)
	if err := l.Patch(ctx, l.object, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("put the finalizer on: %w", err)
	}
	l.facts.Held = true
	return nil
}

func (l *tailnetLook) release(ctx context.Context) error {
	l.forget(l.object.Name)
	was := l.object.DeepCopy()
	controllerutil.RemoveFinalizer(l.object, v1alpha1.Finalizer)
	err := l.Patch(ctx, l.object, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("take the finalizer off: %w", err)
	}
	return nil
}

// prove creates a key and deletes it immediately. It records each step before the next one, so
// that a process that continues after a crash can find the key.
func (l *tailnetLook) prove(ctx context.Context) error {
	nonce := make([]byte, 4)
	rand.Read(nonce) // never fails
	p := &l.facts.Proof
	*p = standing.Proof{Phase: standing.Begun, Credential: l.facts.Credential, Generation: l.facts.Generation, Nonce: hex.EncodeToString(nonce), At: l.Now()}
	if err := l.writeProof(ctx, client.MergeFromWithOptimisticLock{}); err != nil {
		return err // nothing was created: the object has changed
	}
	key, err := l.client.CreateKey(ctx, tsapi.KeyRequest{Tags: l.object.Spec.Tags, Ephemeral: true, Life: standing.KeyLife, Description: l.description()})
	if err != nil {
		l.failed(err)
		if f := l.facts.Failure; f.Class != standing.Unavailable {
			p.Phase, p.Nonce, p.At = standing.Pending, "", l.Now() // these failures mean that no key was created
		}
		return nil
	}
	l.Log.Info("validation key made", "tailnet", l.object.Name, "key", key.ID)
	p.Phase, p.KeyID = standing.ToTidy, key.ID
	written := l.writeProof(context.WithoutCancel(ctx), nil)
	if l.deleteKey(ctx, key.ID) {
		p.Phase, p.At = standing.Done, l.Now()
	}
	return written
}

// description returns the description by which the key can be found again. Tailscale allows 50
// letters, digits and hyphens.
func (l *tailnetLook) description() string {
	return "tailplane-validate-" + fmt.Sprintf("%.8s", l.object.UID) + "-" + l.facts.Proof.Nonce
}

// deleteKey deletes a key. It does not stop with ctx, so that a canceled reconcile leaves no key
// behind.
func (l *tailnetLook) deleteKey(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	if err := l.client.DeleteKey(ctx, id); err != nil {
		l.failed(err)
		return false
	}
	l.Log.Info("validation key deleted", "tailnet", l.object.Name, "key", id)
	return true
}

// tidy deletes the key that an earlier proof left behind. If a key existed and that proof was for
// the current credential and spec, the proof succeeded.
func (l *tailnetLook) tidy(ctx context.Context) error {
	p := &l.facts.Proof
	found := p.KeyID
	if p.Phase == standing.Begun {
		var err error
		if found, err = l.findKey(ctx); err != nil {
			l.failed(err)
			return nil
		}
	}
	if found != "" && !l.deleteKey(ctx, found) {
		return nil
	}
	if found != "" && p.Credential == l.facts.Credential && p.Generation == l.facts.Generation {
		p.Phase, p.KeyID, p.At = standing.Done, found, l.Now()
	} else {
		*p = standing.Proof{Phase: standing.Pending}
	}
	return nil
}

// findKey returns the ID of the key with the proof's nonce, or "" if there is none.
func (l *tailnetLook) findKey(ctx context.Context) (string, error) {
	ids, err := l.client.Keys(ctx)
	if err != nil {
		return "", err
	}
	for _, id := range ids {
		k, err := l.client.Key(ctx, id)
		if f, ok := errors.AsType[*tsapi.Error](err); ok && f.Class == tsapi.NotFound {
			continue
		}
		if err != nil {
			return "", err
		}
		if k.Description == l.description() {
			return id, nil
		}
	}
	return "", nil
}

// check reads the lists of devices and services, or uses a recent result of another reader.
func (l *tailnetLook) check(ctx context.Context) error {
	maxAge := l.facts.Interval / 2
	if l.facts.Was[v1alpha1.ConditionReady].Status != "True" {
		maxAge = 0
	}
	lists, err := l.client.Lists(ctx, maxAge)
	if err != nil {
		l.failed(err)
		return nil
	}
	a := &standing.Answer{Devices: len(lists.Devices), Services: len(lists.Services)}
	for _, d := range lists.Devices {
		if !d.External {
			a.Names = append(a.Names, d.Name)
		}
	}
	if refused := lists.ServicesRefused; refused != nil {
		a.ServicesRefused = fmt.Sprintf("The credential lacks the scope %s: services of the tailnet are not seen. %v", refused.Op.Scope(), refused)
	}
	l.facts.Answer, l.lists = a, lists
	return nil
}

// failed stores an API error in the facts.
func (l *tailnetLook) failed(err error) {
	out := &standing.Failure{Class: standing.Unavailable, Message: err.Error(), Wait: time.Second}
	if f, ok := errors.AsType[*tsapi.Error](err); ok {
		out.Class, out.AtToken, out.Scope, out.Wait = standing.Class(f.Class), f.AtToken, f.Op.Scope(), max(f.RetryAfter, 100*time.Millisecond)
		out.MakeKey = f.Op == tsapi.CreateKey
		if f.Class == tsapi.Dropped {
			out.Class = standing.Unavailable // a newer reconcile has replaced the client
		}
	}
	l.facts.Failure = out
}
