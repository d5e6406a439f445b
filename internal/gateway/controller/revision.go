package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
)

// Envoy Gateway translates again when the spec of one of its extension policies changes, but not
// when a status, a label or an annotation changes. The operator therefore maintains one policy for
// each rendered Gateway, the revision object. Its spec contains the revision to render.

// bareRevisionSuffix is the suffix of the revision object's name for a Gateway without a TailscaleGateway.
// The dot makes it unique, because the name of a TailscaleGateway contains no dot.
const bareRevisionSuffix = ".gateway" + v1alpha1.RevisionSuffix

// revisionName returns the name of the revision object of a Gateway.
func revisionName(g *gateway.Gateway) string {
	if g.Attachment != (gateway.Name{}) {
		return g.Attachment.Name + v1alpha1.RevisionSuffix
	}
	return gateway.Shorten(g.Name.Name, 253-len(bareRevisionSuffix)) + bareRevisionSuffix
}

// revisionOf returns the revision in the object without its counter.
func revisionOf(p *v1alpha1.TailscaleRoutePolicy) string {
	revision, _, _ := strings.Cut(p.Spec.Revision, "-")
	return revision
}

// incrementRevision returns the revision with its counter incremented, which makes Envoy Gateway translate
// again.
func incrementRevision(revision string) string {
	base, n, _ := strings.Cut(revision, "-")
	count, err := strconv.Atoi(n)
	if err != nil {
		count = 0
	}
	return base + "-" + strconv.Itoa(count+1)
}

func isRevision(p *v1alpha1.TailscaleRoutePolicy) bool {
	return p.Labels[v1alpha1.ManagedLabel] == "true" && p.Spec.Revision != "" && p.Spec.TargetRef.Kind == v1alpha1.KindGateway
}

// ensureRevision makes Envoy Gateway request the current revision of a Gateway, and returns the revision
// object. taken means that another owner has an object with this name. If wake is not 0, the
// previous request is very recent, and the caller must try again after wake. Each request causes a
// full translation, so changes are batched.
func (c *attachmentReconciler) ensureRevision(
	ctx context.Context,
	g *gateway.Gateway,
	owner metav1.OwnerReference,
) (p *v1alpha1.TailscaleRoutePolicy, taken bool, wake time.Duration, err error) {
	p = &v1alpha1.TailscaleRoutePolicy{}
	now := c.Now()
	at := types.NamespacedName{Namespace: g.Name.Namespace, Name: revisionName(g)}
	err = c.client.Get(ctx, at, p)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, false, 0, fmt.Errorf("get the revision %s: %w", at, err)
	case !isRevision(p):
		return nil, true, 0, nil
	case p.DeletionTimestamp != nil:
		return p, false, 0, nil
	case revisionOf(p) == g.Revision && p.Spec.TargetRef.Name == g.Name.Name && len(p.OwnerReferences) == 1 && p.OwnerReferences[0].UID == owner.UID:
		return p, false, 0, nil
	default:
		// A time in the future comes from another clock and must not block the request.
		if last, ok := requestTime(p); ok && !last.After(now) && now.Sub(last) < minRequestInterval {
			return p, false, last.Add(minRequestInterval).Sub(now), nil
		}
	}
	u := newObject("TailscaleRoutePolicy", at)
	u.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true"})
	u.SetAnnotations(map[string]string{v1alpha1.RequestedAnnotation: now.UTC().Format(requestedFormat)})
	u.SetOwnerReferences([]metav1.OwnerReference{owner})
	u.Object["spec"] = map[string]any{
		"targetRef": map[string]any{"group": gatewayapi.GroupName, "kind": v1alpha1.KindGateway, "name": g.Name.Name},
		"revision":  g.Revision,
	}
	if err := c.apply(ctx, u); err != nil {
		return nil, false, 0, fmt.Errorf("request the revision %s of %s from Envoy Gateway: %w", g.Revision, g.Name, err)
	}
	if err := c.client.Get(ctx, at, p); err != nil {
		return nil, false, 0, fmt.Errorf("get the revision %s: %w", at, err)
	}
	return p, false, 0, nil
}

// minRequestInterval is the minimum time between two requests for one Gateway.
const minRequestInterval = time.Second

// requestedFormat is RFC 3339 with milliseconds.
const requestedFormat = "2006-01-02T15:04:05.000Z07:00"

// requestTime returns the time of the last request.
func requestTime(p *v1alpha1.TailscaleRoutePolicy) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, p.Annotations[v1alpha1.RequestedAnnotation])
	return at, err == nil
}

// newObject returns one of Tailplane's kinds as unstructured object for apply.
func newObject(kind string, at types.NamespacedName) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetNamespace(at.Namespace)
	u.SetName(at.Name)
	return u
}

func (c *attachmentReconciler) apply(ctx context.Context, u *unstructured.Unstructured) error {
	return c.client.Apply(
		ctx,
		client.ApplyConfigurationFromUnstructured(u),
		client.FieldOwner(v1alpha1.FieldManager),
		client.ForceOwnership,
	)
}

// bareGatewayOf returns the Gateway of a revision object without a TailscaleGateway.
func bareGatewayOf(_ context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(*v1alpha1.TailscaleRoutePolicy)
	if !ok || !isRevision(p) || !strings.HasSuffix(p.Name, bareRevisionSuffix) {
		return nil
	}
	return requests(gateway.Name{Namespace: p.Namespace, Name: p.Spec.TargetRef.Name})
}

// reconcileBareGateway maintains the revision object of a Gateway whose routes have TailscaleService backends but
// to which no TailscaleGateway is attached.
func (c *attachmentReconciler) reconcileBareGateway(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result := c.Publisher.Result()
	if result == nil {
		return reconcile.Result{}, nil // the first decision triggers a reconcile
	}
	g := result.Snapshot.Gateways[gateway.Name(req.NamespacedName)]
	if g != nil && g.Attachment == (gateway.Name{}) {
		var owner gatewayapi.Gateway
		if err := c.client.Get(ctx, req.NamespacedName, &owner); err != nil || owner.DeletionTimestamp != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err) // garbage collection deletes the revision object with the Gateway
		}
		_, taken, wake, err := c.ensureRevision(ctx, g, *metav1.NewControllerRef(&owner, gatewayAPI.WithKind("Gateway")))
		if taken {
			c.Log.Warn(
				"another owner has the object that triggers a translation by Envoy Gateway",
				"gateway",
				g.Name.String(),
				"object",
				revisionName(g),
			)
		}
		if wake > 0 {
			return reconcile.Result{RequeueAfter: wake}, nil
		}
		return requeueIfStale(err)
	}
	var old v1alpha1.TailscaleRoutePolicy
	at := types.NamespacedName{Namespace: req.Namespace, Name: revisionName(&gateway.Gateway{Name: gateway.Name(req.NamespacedName)})}
	if err := c.client.Get(ctx, at, &old); err != nil || !isRevision(&old) {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return requeueIfStale(kube.Delete(ctx, c.client, &old)) // this makes Envoy Gateway translate once more
}

// translationProblems is the part of a TranslationReport besides its revision that is stored on the revision object.
type translationProblems struct {
	Incomplete bool     `json:"incomplete,omitempty"`
	Ambiguous  []string `json:"ambiguous,omitempty"`
	Conflicted []string `json:"conflicted,omitempty"`
}

// maxRecordedNames is the maximum number of stored names per list.
const maxRecordedNames = 10

// TranslationReports stores answers on the revision object of the Gateway, so that the leader can read those
// of every replica. It uses annotations, which Envoy Gateway ignores. Fields are required unless
// documented otherwise.
type TranslationReports struct {
	Log *slog.Logger

	client    client.Client
	publisher *Publisher

	mu     sync.Mutex
	last   map[gateway.Name]gateway.TranslationReport // not stored yet
	behind map[gateway.Name]string                    // revisions that were requested before they existed
}

// Report receives an answer. It does not block.
func (a *TranslationReports) Report(one gateway.TranslationReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last, a.behind = map[gateway.Name]gateway.TranslationReport{}, map[gateway.Name]string{}
	}
	a.last[one.Gateway] = one
	delete(a.behind, one.Gateway)
	if one.Requested != "" && one.Requested != one.Rendered {
		a.behind[one.Gateway] = one.Requested
	}
}

// Add registers the TranslationReports to run on every replica, leader or not.
func (a *TranslationReports) Add(mgr manager.Manager, publisher *Publisher) error {
	if a.Log == nil || publisher == nil {
		return errors.New("translation reports lack a setting: log and publisher are required")
	}
	a.client, a.publisher = mgr.GetClient(), publisher
	return mgr.Add(everyReplica(a.run))
}

// run stores answers until ctx ends.
func (a *TranslationReports) run(ctx context.Context) error {
	tick := time.NewTicker(attachmentRequeueSoon) // answers arrive in bursts; only the last per Gateway is stored
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		a.store(ctx)
		a.requestTranslations(ctx)
	}
}

// store stores the answers since the last call.
func (a *TranslationReports) store(ctx context.Context) {
	a.mu.Lock()
	news := a.last
	a.last = map[gateway.Name]gateway.TranslationReport{}
	if a.behind == nil {
		a.behind = map[gateway.Name]string{}
	}
	a.mu.Unlock()
	for _, n := range slices.SortedFunc(maps.Keys(news), gateway.Name.Compare) {
		err := a.storeReport(ctx, news[n])
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !kube.IsStale(err) {
			a.Log.Warn("cannot record the response to Envoy Gateway", "gateway", n.String(), "err", err)
		}
		a.mu.Lock()
		if _, newer := a.last[n]; !newer {
			a.last[n] = news[n]
		}
		a.mu.Unlock()
	}
}

func (a *TranslationReports) storeReport(ctx context.Context, one gateway.TranslationReport) error {
	p, err := a.revision(ctx, one.Gateway)
	if p == nil || err != nil {
		return err
	}
	seen, err := json.Marshal(
		translationProblems{
			one.Incomplete,
			one.Ambiguous[:min(len(one.Ambiguous), maxRecordedNames)],
			one.Conflicted[:min(len(one.Conflicted), maxRecordedNames)],
		},
	)
	if err != nil {
		return err
	}
	want := map[string]string{v1alpha1.TranslatedAnnotation: one.Rendered, v1alpha1.TranslationAnnotation: string(seen)}
	if p.Annotations[v1alpha1.TranslatedAnnotation] == one.Rendered && p.Annotations[v1alpha1.TranslationAnnotation] == string(seen) {
		return nil
	}
	return a.patch(ctx, p, map[string]any{"metadata": map[string]any{"uid": p.UID, "annotations": want}})
}

// requestTranslations makes Envoy Gateway translate again for Gateways whose requested revision did not exist at
// the time of the call and exists now.
func (a *TranslationReports) requestTranslations(ctx context.Context) {
	result := a.publisher.Result()
	a.mu.Lock()
	behind := maps.Clone(a.behind)
	a.mu.Unlock()
	for n, revision := range behind {
		if result == nil || result.Snapshot.Gateways[n] == nil || result.Snapshot.Gateways[n].Revision != revision {
			continue
		}
		p, err := a.revision(ctx, n)
		if err == nil && p != nil && revisionOf(p) == revision {
			err = a.patch(
				ctx,
				p,
				map[string]any{
					"metadata": map[string]any{"resourceVersion": p.ResourceVersion},
					"spec":     map[string]any{"revision": incrementRevision(p.Spec.Revision)},
				},
			)
		}
		if err != nil {
			if ctx.Err() == nil && !kube.IsStale(err) {
				a.Log.Warn("cannot trigger another translation by Envoy Gateway", "gateway", n.String(), "err", err)
			}
			continue // tried again with the next tick
		}
		a.mu.Lock()
		if a.behind[n] == revision {
			delete(a.behind, n)
		}
		a.mu.Unlock()
	}
}

// revision returns the revision object of a Gateway, or nil if there is none.
func (a *TranslationReports) revision(ctx context.Context, n gateway.Name) (*v1alpha1.TailscaleRoutePolicy, error) {
	result := a.publisher.Result()
	if result == nil || result.Snapshot.Gateways[n] == nil {
		return nil, nil
	}
	p := &v1alpha1.TailscaleRoutePolicy{}
	err := a.client.Get(ctx, types.NamespacedName{Namespace: n.Namespace, Name: revisionName(result.Snapshot.Gateways[n])}, p)
	if err != nil || !isRevision(p) {
		return nil, client.IgnoreNotFound(err)
	}
	return p, nil
}

func (a *TranslationReports) patch(ctx context.Context, p *v1alpha1.TailscaleRoutePolicy, change map[string]any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return a.client.Patch(ctx, p, client.RawPatch(types.MergePatchType, text), client.FieldOwner(v1alpha1.FieldManager+"-answers"))
}
