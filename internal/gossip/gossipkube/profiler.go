package gossipkube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Profiles say how to write ClusterProfile objects, one for each verified
// cluster, so that tools which know the Cluster Inventory API find them. They
// are off, with a line in the log, while the API server does not have the kind.
// Every field is required.
type Profiles struct {
	Namespace   string
	ForgetAfter time.Duration // how long the profile of a cluster that is gone stays

	// CA returns the certificate authority of the cluster's API server, PEM, as one of
	// its servers says. The signed record has its hash, so no other proof is needed. It is asked beside the
	// publishing, once for each Cluster.CAHash, and what does not fit that is not
	// published. It must return soon after its context ends.
	CA func(context.Context, Cluster) ([]byte, error)
}

const (
	lookEvery = 10 * time.Minute // for a kind that came, went or has a new schema
	listEvery = 5 * time.Minute  // for profiles that somebody changed
	// settleTime is how long after a start a missing cluster may just not have been
	// met yet.
	settleTime = time.Minute
	// passWrites bounds the requests of one pass, so that the list of members,
	// which comes before, is not held up for long.
	passWrites = 100
	passLimit  = 20 * time.Second
	blockTime  = time.Minute // after a write that failed
)

// A profiler writes ClusterProfiles, as one leader.
type profiler struct {
	*Profiles
	schemas     rest.Interface
	objects     dynamic.Interface
	said        *reports
	began       time.Time
	authorities *authorities

	served   served
	lookedAt time.Time // zero: to be looked at
	listedAt time.Time // zero: to be listed
	known    map[string]*unstructured.Unstructured
	blocked  map[string]block // by cluster id
	sent     map[string]sent  // by cluster id
}

// A sent is a status that was written, and the version of the object that came
// of it. A server that keeps less, because it stores another version of the
// kind, is not sent the same again for ever.
type sent struct {
	status  any
	version string
}

// A block is why and until when a profile is not written.
type block struct {
	until time.Time
	err   error
}

func newProfiler(config *rest.Config, p *Profiles, said *reports, began time.Time) (*profiler, error) {
	raw := rest.CopyConfig(config)
	raw.GroupVersion, raw.NegotiatedSerializer = nil, scheme.Codecs.WithoutConversion()
	schemas, err := rest.UnversionedRESTClientFor(raw)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &profiler{Profiles: p, schemas: schemas, objects: objects, said: said, began: began, blocked: map[string]block{}, sent: map[string]sent{}, authorities: &authorities{
		fetch: p.CA, said: said, known: map[string][]byte{}, after: map[string]time.Time{}, asking: map[string]bool{},
	}}, nil
}

// forget makes the next pass look at everything.
func (f *profiler) forget() {
	f.lookedAt, f.listedAt = time.Time{}, time.Time{}
	clear(f.blocked)
	clear(f.sent)
}

// pass brings the profiles up to clusters, or as far as one pass may go. Its
// context bounds questions for authorities too, which go on after it.
func (f *profiler) pass(lead context.Context, now time.Time, clusters []Cluster) error {
	ctx, cancel := context.WithTimeout(lead, passLimit)
	defer cancel()
	if err := f.look(ctx, now); err != nil || f.served.version == "" {
		return err
	}
	if err := f.list(ctx, now); err != nil {
		return err
	}
	all := standings(clusters)
	f.authorities.keep(all)
	ids := slices.Collect(maps.Keys(f.known))
	for id := range all {
		if f.known[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	maps.DeleteFunc(f.blocked, func(_ string, b block) bool { return !now.Before(b.until) })
	p := &errand{profiler: f, lead: lead, ctx: ctx, now: now}
	for _, id := range ids {
		if _, ok := f.blocked[id]; ok {
			continue
		}
		if p.writes >= passWrites {
			break
		}
		if err := p.bring(id, all[id]); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("ClusterProfiles in %s: %w", f.Namespace, err)
			}
			if err := f.failed(id, err, now); err != nil {
				return err
			}
		}
	}
	return f.troubles()
}

// look finds out how the kind is served, from time to time.
func (f *profiler) look(ctx context.Context, now time.Time) error {
	first := f.lookedAt.IsZero()
	if !first && now.Sub(f.lookedAt) < lookEvery {
		return nil
	}
	s, err := look(ctx, f.schemas)
	if err != nil {
		return err
	}
	if changed := s != f.served; changed || first {
		if s.version == "" {
			f.said.log.Info("ClusterProfiles are off: the API server does not have the kind", "group", profileGroup)
		} else {
			f.said.log.Info("ClusterProfiles are written", "namespace", f.Namespace, "version", s.version, "accessProviders", s.access)
		}
		f.listedAt = time.Time{}
	}
	f.served, f.lookedAt = s, now
	return nil
}

// list learns which profiles of ours there are, from time to time.
func (f *profiler) list(ctx context.Context, now time.Time) error {
	if !f.listedAt.IsZero() && now.Sub(f.listedAt) < listEvery {
		return nil
	}
	found, err := f.resource().List(ctx, metav1.ListOptions{LabelSelector: managerLabel + "=" + manager})
	if apierrors.IsNotFound(err) {
		f.lookedAt = time.Time{} // the kind went away
	}
	if err != nil {
		return f.explain("list", err)
	}
	f.known = map[string]*unstructured.Unstructured{}
	for i := range found.Items {
		o := &found.Items[i]
		if id := ownID(o); id != "" && f.known[id] == nil {
			f.known[id] = o
		}
	}
	f.listedAt = now
	return nil
}

func (f *profiler) resource() dynamic.ResourceInterface {
	return f.objects.Resource(f.served.resource()).Namespace(f.Namespace)
}

// failed decides what becomes of a cluster whose profile could not be written.
// It returns an error when the others would fail for the same reason.
func (f *profiler) failed(id string, err error, now time.Time) error {
	switch {
	case apierrors.IsForbidden(err):
		return f.explain("write", err)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err) && f.known[id] != nil:
		f.listedAt = time.Time{} // somebody edited or deleted it
		return nil
	case errors.Is(err, errTaken):
		f.listedAt = time.Time{} // or it is ours, of a leader before us
	case apierrors.IsNotFound(err):
		f.lookedAt = time.Time{} // the kind went away, or there is no such namespace
	}
	f.blocked[id] = block{now.Add(blockTime), err}
	return nil
}

// troubles are the writes that failed, as one error that stays the same while
// they do.
func (f *profiler) troubles() error {
	if len(f.blocked) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(f.blocked)))
	return fmt.Errorf("%d of the ClusterProfiles in %s; that of cluster %s: %w", len(f.blocked), f.Namespace, first, f.blocked[first].err)
}

func (f *profiler) explain(doing string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("this account may not %s ClusterProfiles in %s; it needs list, create, update and delete on clusterprofiles.%s, and update on their status: %w", doing, f.Namespace, profileGroup, err)
	}
	return fmt.Errorf("%s ClusterProfiles in %s: %w", doing, f.Namespace, err)
}

// errTaken is not our object.
var errTaken = errors.New("there is a ClusterProfile of that name that Tailplane did not make; it is left alone")

// An errand is the work of one pass.
type errand struct {
	*profiler
	lead   context.Context
	ctx    context.Context // of this pass
	now    time.Time
	writes int
}

// bring makes the profile of one cluster what it should be.
func (p *errand) bring(id string, s standing) error {
	o := p.known[id]
	gone := s.gone(o, p.now, p.now.Sub(p.began) >= settleTime)
	// Times are stored in whole seconds.
	if !gone.IsZero() && p.now.Sub(gone) > p.ForgetAfter+time.Second {
		return p.remove(id, o)
	}
	if s.Cluster == nil && (o == nil || gone.IsZero()) {
		return nil // nobody's, or perhaps not met yet
	}
	var authority []byte
	if s.Cluster != nil && p.served.access {
		authority = p.authorities.of(p.lead, *s.Cluster, authorityIn(o), p.now, gone.IsZero())
	}
	next := s.describe(o, p.served.version, p.Namespace, gone)
	var err error
	if o == nil {
		p.writes++
		if next, err = p.resource().Create(p.ctx, next, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%s: %w", profileName(*s.Cluster), errTaken)
		}
	} else if differ(o, next, "metadata", "spec") {
		p.writes++
		next, err = p.resource().Update(p.ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	p.known[id] = next
	with := s.report(next, p.served.access, authority, p.now)
	status := with.Object["status"]
	if !differ(next, with, "status") || next.GetResourceVersion() == p.sent[id].version && reflect.DeepEqual(status, p.sent[id].status) {
		return nil
	}
	p.writes++
	if with, err = p.resource().UpdateStatus(p.ctx, with, metav1.UpdateOptions{}); err != nil {
		return err
	}
	p.known[id], p.sent[id] = with, sent{status, with.GetResourceVersion()}
	return nil
}

// remove deletes o, if it is still what we saw.
func (p *errand) remove(id string, o *unstructured.Unstructured) error {
	if o == nil {
		return nil
	}
	p.writes++
	err := p.resource().Delete(p.ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())}})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	delete(p.known, id)
	delete(p.sent, id)
	p.said.log.Info("the ClusterProfile of a cluster that is gone was removed", "cluster", id, "profile", o.GetName())
	return nil
}
