package controller

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
)

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
	seen, err := json.Marshal(translationProblems{one.Incomplete, one.Ambiguous[:min(len(one.Ambiguous), maxRecordedNames)], one.Conflicted[:min(len(one.Conflicted), maxRecordedNames)]})
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
			err = a.patch(ctx, p, map[string]any{"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "spec": map[string]any{"revision": incrementRevision(p.Spec.Revision)}})
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
