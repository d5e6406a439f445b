package attachments

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
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/kube"
)

// An Answer describes the answer to a Translation call of Envoy Gateway for one Gateway.
type Answer struct {
	Gateway    gateway.Name
	Asked      string   // requested revision
	Answered   string   // rendered revision
	Incomplete bool     // the call contained neither virtual hosts nor routes
	Ambiguous  []string // hosts without Tailplane's routes because their security filters are ambiguous
	Conflicted []string // names of Tailplane's clusters that other clusters already have
}

// Seen is the part of an Answer besides its revision that is stored on the revision object.
type Seen struct {
	Incomplete bool     `json:"incomplete,omitempty"`
	Ambiguous  []string `json:"ambiguous,omitempty"`
	Conflicted []string `json:"conflicted,omitempty"`
}

// mostNoted is the maximum number of stored names per list.
const mostNoted = 10

// Answers stores answers on the revision object of the Gateway, so that the leader can read those
// of every replica. It uses annotations, which Envoy Gateway ignores. Fields are required unless
// documented otherwise.
type Answers struct {
	Log *slog.Logger

	client client.Client
	board  *gather.Board

	mu     sync.Mutex
	last   map[gateway.Name]Answer // not stored yet
	behind map[gateway.Name]string // revisions that were requested before they existed
}

// Tell receives an answer. It does not block.
func (a *Answers) Tell(one Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last, a.behind = map[gateway.Name]Answer{}, map[gateway.Name]string{}
	}
	a.last[one.Gateway] = one
	delete(a.behind, one.Gateway)
	if one.Asked != "" && one.Asked != one.Answered {
		a.behind[one.Gateway] = one.Asked
	}
}

// Add registers the Answers to run on every replica, leader or not.
func (a *Answers) Add(mgr manager.Manager, board *gather.Board) error {
	if a.Log == nil || board == nil {
		return errors.New("answers lack a setting: log and board are required")
	}
	a.client, a.board = mgr.GetClient(), board
	return mgr.Add(everywhere{a})
}

type everywhere struct{ *Answers }

func (everywhere) NeedLeaderElection() bool { return false }

// Start stores answers until ctx ends.
func (e everywhere) Start(ctx context.Context) error {
	tick := time.NewTicker(soon) // answers arrive in bursts; only the last per Gateway is stored
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		e.note(ctx)
		e.ask(ctx)
	}
}

// note stores the answers since the last call.
func (a *Answers) note(ctx context.Context) {
	a.mu.Lock()
	news := a.last
	a.last = map[gateway.Name]Answer{}
	if a.behind == nil {
		a.behind = map[gateway.Name]string{}
	}
	a.mu.Unlock()
	for _, n := range slices.SortedFunc(maps.Keys(news), gateway.Name.Compare) {
		err := a.noteOne(ctx, news[n])
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !kube.Stale(err) {
			a.Log.Warn("what Envoy Gateway was answered cannot be noted", "gateway", n.String(), "err", err)
		}
		a.mu.Lock()
		if _, newer := a.last[n]; !newer {
			a.last[n] = news[n]
		}
		a.mu.Unlock()
	}
}

func (a *Answers) noteOne(ctx context.Context, one Answer) error {
	p, err := a.revision(ctx, one.Gateway)
	if p == nil || err != nil {
		return err
	}
	seen, err := json.Marshal(Seen{one.Incomplete, one.Ambiguous[:min(len(one.Ambiguous), mostNoted)], one.Conflicted[:min(len(one.Conflicted), mostNoted)]})
	if err != nil {
		return err
	}
	want := map[string]string{v1alpha1.TranslatedAnnotation: one.Answered, v1alpha1.TranslationAnnotation: string(seen)}
	if p.Annotations[v1alpha1.TranslatedAnnotation] == one.Answered && p.Annotations[v1alpha1.TranslationAnnotation] == string(seen) {
		return nil
	}
	return a.patch(ctx, p, map[string]any{"metadata": map[string]any{"uid": p.UID, "annotations": want}})
}

// ask makes Envoy Gateway translate again for Gateways whose requested revision did not exist at
// the time of the call and exists now.
func (a *Answers) ask(ctx context.Context) {
	result := a.board.Result()
	a.mu.Lock()
	behind := maps.Clone(a.behind)
	a.mu.Unlock()
	for n, revision := range behind {
		if result == nil || result.Snapshot.Gateways[n] == nil || result.Snapshot.Gateways[n].Revision != revision {
			continue
		}
		p, err := a.revision(ctx, n)
		if err == nil && p != nil && revisionOf(p) == revision {
			err = a.patch(ctx, p, map[string]any{"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "spec": map[string]any{"revision": counted(p.Spec.Revision)}})
		}
		if err != nil {
			if ctx.Err() == nil && !kube.Stale(err) {
				a.Log.Warn("Envoy Gateway cannot be made to ask again", "gateway", n.String(), "err", err)
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
func (a *Answers) revision(ctx context.Context, n gateway.Name) (*v1alpha1.TailscaleRoutePolicy, error) {
	result := a.board.Result()
	if result == nil || result.Snapshot.Gateways[n] == nil {
		return nil, nil
	}
	p := &v1alpha1.TailscaleRoutePolicy{}
	err := a.client.Get(ctx, types.NamespacedName{Namespace: n.Namespace, Name: RevisionName(result.Snapshot.Gateways[n])}, p)
	if err != nil || !isRevision(p) {
		return nil, client.IgnoreNotFound(err)
	}
	return p, nil
}

func (a *Answers) patch(ctx context.Context, p *v1alpha1.TailscaleRoutePolicy, change map[string]any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return a.client.Patch(ctx, p, client.RawPatch(types.MergePatchType, text), client.FieldOwner(v1alpha1.FieldManager+"-answers"))
}
