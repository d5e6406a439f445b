package groups

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/portmap"
	"github.com/tailplane/tailplane/internal/gateway/upkeep"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const mostDeeds = 24 // in one look; the deletion of a group with all its ways round has fewer

// A look is one look at one group.
type look struct {
	*Controller
	result *gateway.Result
	report gateway.GroupReport
	group  *v1alpha1.TailscaleProxyGroup // as it was last written
	before *v1alpha1.TailscaleProxyGroup // as it was found

	tailnet *v1alpha1.TailscaleTailnet // nil: it is not known, or not there
	api     *tsapi.Client              // nil: there is none
	version tsapi.Version

	// What is there now.
	set    *appsv1.StatefulSet // nil: none
	pods   map[int]*corev1.Pod
	state  map[int]*corev1.Secret
	config map[int]*corev1.Secret
	certs  map[string]*corev1.Secret // ours, by name
	facts  upkeep.Facts

	// What was found out and done in this look.
	gone, doubted map[string]bool // devices, as the API said
	dropped       map[string]bool // devices that are gone from the tailnet
	tidied        bool            // of a group that ends: no key is left that nothing tells of
	forbidden     bool            // what is in the namespace may not be read now
	failure       *tsapi.Error
	blocked       bool
	inTheWay      []string       // objects of others with our names
	troubles      []string       // what is left out of what the group carries, and why
	allocated     int            // ports, anew
	table         *portmap.Table // nil: it was not read
	refused       []portmap.Key
	issue         map[string]bool // names of certificates that the relays use: whether it is for them to have one issued
	kept          map[string]bool // those that are not to be taken away
	minted        []mint
	deleted       []string // devices
	wake          time.Time
}

// look looks at a group once, and says when to look again at the latest.
func (c *Controller) look(ctx context.Context, key types.NamespacedName) (time.Time, error) {
	result := c.board.Result()
	if result == nil {
		return time.Time{}, nil // the first decision will bring us here again
	}
	g := &v1alpha1.TailscaleProxyGroup{}
	if err := c.direct.Get(ctx, key, g); err != nil {
		if apierrors.IsNotFound(err) {
			return time.Time{}, c.makeWanted(ctx, key, result)
		}
		return time.Time{}, err
	}
	report, known := result.Groups[gateway.Name(key)]
	if !known && g.DeletionTimestamp == nil {
		return time.Time{}, nil // it is new, and not decided upon
	}
	l := &look{Controller: c, result: result, report: report, group: g, before: g.DeepCopy(), gone: map[string]bool{}, doubted: map[string]bool{}, dropped: map[string]bool{},
		issue: map[string]bool{}, kept: map[string]bool{}}
	if unused, err := l.keepWanted(ctx); unused || err != nil {
		return l.wake, err
	}
	err := l.run(ctx)
	if kube.Stale(err) {
		return time.Time{}, err // what is to be reported was seen in what is no longer so
	}
	if l.group.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(l.group, v1alpha1.Finalizer) {
		c.forget(g.UID)
		return time.Time{}, err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return time.Time{}, err // the operator ends; what was not seen is not told
	}
	return l.wake, errors.Join(err, l.tell(context.WithoutCancel(ctx), err))
}

// again notes when to look again.
func (l *look) again(t time.Time) {
	if !t.IsZero() && (l.wake.IsZero() || t.Before(l.wake)) {
		l.wake = t
	}
}

func (l *look) run(ctx context.Context) error {
	if err := l.findTailnet(ctx); err != nil {
		return err
	}
	alive := l.group.DeletionTimestamp == nil && l.report.Accepted.OK
	if !l.manages(l.group.Namespace) {
		return l.leave(ctx)
	}
	if err := l.gather(ctx); err != nil {
		return err
	}
	if l.forbidden {
		return l.leave(ctx)
	}
	if l.group.DeletionTimestamp == nil && !alive && len(l.facts.Ordinals) > 0 {
		return l.withdraw(ctx)
	}
	if alive {
		if step := upkeep.Next(l.facts, l.Now()); step.Deed == upkeep.Hold { // before anything is made
			if err := l.hold(ctx); err != nil {
				return err
			}
		}
		if err := l.furnish(ctx); err != nil {
			return err
		}
	}
	if err := l.decide(ctx); err != nil {
		return err
	}
	if alive && !l.forbidden {
		return l.furnishPods(ctx)
	}
	return nil
}

// decide lets the decision be carried out, step by step.
func (l *look) decide(ctx context.Context) error {
	for range mostDeeds {
		if err := l.gather(ctx); err != nil || l.forbidden {
			return err
		}
		step := upkeep.Next(l.facts, l.Now())
		if step.Deed == upkeep.Rest {
			l.again(step.Wake)
			l.blocked = step.Blocked
			if l.api == nil && l.tailnetReady() { // its client is made this moment, and nobody tells
				l.again(l.Now().Add(soon))
			}
			return nil
		}
		l.Log.Debug("proxy group", "group", l.group.Namespace+"/"+l.group.Name, "deed", step.Deed, "ordinals", step.Ordinals)
		if err := l.act(ctx, step); err != nil || step.Deed == upkeep.Release {
			return err
		}
	}
	l.again(l.Now().Add(soon))
	return nil
}

// findTailnet finds the tailnet of the group, and its client.
func (l *look) findTailnet(ctx context.Context) error {
	name := l.report.Tailnet
	if ref := l.group.Spec.TailnetRef; name == "" && ref != nil {
		name = ref.Name
	}
	if name == "" {
		name = l.group.Labels[v1alpha1.TailnetLabel] // it was the default one
	}
	if name == "" {
		return nil
	}
	t := &v1alpha1.TailscaleTailnet{}
	if err := l.cache.Get(ctx, client.ObjectKey{Name: name}, t); err == nil {
		l.tailnet = t
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look up the tailnet: %w", err)
	}
	if api, version, ok := l.Clients.Get(name); ok && l.tailnet != nil && version.UID == string(l.tailnet.UID) {
		l.api, l.version = api, version
	}
	return nil
}

// tailnetReady says whether keys of the tailnet may be asked for at all.
func (l *look) tailnetReady() bool {
	return l.tailnet != nil && meta.IsStatusConditionTrue(l.tailnet.Status.Conditions, v1alpha1.ConditionReady)
}

// act carries a step out. An error is Kubernetes' own; what Tailscale refuses is
// noted, and the next decision knows it.
func (l *look) act(ctx context.Context, step upkeep.Step) error {
	switch step.Deed {
	case upkeep.Hold:
		return l.hold(ctx)
	case upkeep.Release:
		return l.release(ctx)
	case upkeep.Record:
		return l.record(ctx)
	case upkeep.EndSet:
		return l.delete(ctx, l.set, client.PropagationPolicy(metav1.DeletePropagationForeground))
	case upkeep.Restart:
		for _, i := range step.Ordinals {
			l.Log.Warn("a relay's state Secret was taken from under it; its pod is replaced", "pod", l.pods[i].Name)
			if err := l.delete(ctx, l.pods[i]); err != nil {
				return err
			}
		}
		return nil
	case upkeep.Clean:
		for _, i := range step.Ordinals {
			if err := l.writeKey(ctx, i, upkeep.Key{ID: l.facts.Ordinals[i].Key.ID, Until: l.facts.Ordinals[i].Key.Until}, ""); err != nil {
				return err
			}
		}
		return nil
	case upkeep.Tidy:
		return l.tidy(ctx, step.Ordinals)
	case upkeep.Ask:
		return l.ask(ctx, step.Ordinals)
	case upkeep.Mint:
		return l.mint(ctx, step.Ordinals)
	case upkeep.DropKeys:
		return l.dropKeys(ctx, step.Ordinals)
	case upkeep.DropSecrets:
		for _, i := range step.Ordinals {
			for _, s := range []*corev1.Secret{l.config[i], l.state[i]} {
				// Of exactly what was read: a device that came since must not be lost.
				if s != nil {
					if err := l.delete(ctx, s, client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}); err != nil {
						return err
					}
				}
			}
		}
		l.tidied = true // keys came first, and what told of them is gone by our own hand
		return nil
	case upkeep.DropDevices:
		return l.dropDevices(ctx, step.Devices)
	}
	return fmt.Errorf("no such deed: %q", step.Deed)
}

// delete deletes exactly o. That it is gone already is success.
func (l *look) delete(ctx context.Context, o client.Object, more ...client.DeleteOption) error {
	err := l.direct.Delete(ctx, o, append([]client.DeleteOption{client.Preconditions{UID: new(o.GetUID())}}, more...)...)
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("delete %s: %w", o.GetName(), err)
	}
	return nil
}

// hold puts the finalizer on, and writes down the tailnet: that it is the default one
// may be over when the group goes.
func (l *look) hold(ctx context.Context) error {
	return l.patch(ctx, "put the finalizer on", func() {
		controllerutil.AddFinalizer(l.group, v1alpha1.Finalizer)
		metav1.SetMetaDataLabel(&l.group.ObjectMeta, v1alpha1.TailnetLabel, l.report.Tailnet)
	})
}

func (l *look) release(ctx context.Context) error {
	return client.IgnoreNotFound(l.patch(ctx, "take the finalizer off", func() { controllerutil.RemoveFinalizer(l.group, v1alpha1.Finalizer) }))
}

// patch changes the metadata of the group, if it is still what was read.
func (l *look) patch(ctx context.Context, doing string, change func()) error {
	was := l.group.DeepCopy()
	change()
	if err := l.direct.Patch(ctx, l.group, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// leave is for a group in a namespace that is not ours, or no longer, or that we may
// not read.
func (l *look) leave(ctx context.Context) error {
	l.facts = upkeep.Facts{}
	if l.group.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(l.group, v1alpha1.Finalizer) {
		return nil
	}
	if l.group.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true" {
		return l.release(ctx)
	}
	l.blocked = true
	return nil
}
