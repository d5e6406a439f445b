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

// Profiles configure the writing of ClusterProfile objects, one for each verified cluster, for tools that use the Cluster Inventory API.
// While the API server does not have the kind, the profiler is off and logs that once. Every field is required.
type Profiles struct {
	Namespace   string
	ForgetAfter time.Duration // how long to keep the profile of a cluster that is gone

	// CA returns the PEM certificate authority of the cluster's API server, as one of the cluster's servers reports it. The signed record
	// has its hash, so no other proof is needed. The profiler calls CA in the background, once for each Cluster.CAHash, and does not
	// publish a result that does not match the hash. CA must return soon after its context ends.
	CA func(context.Context, Cluster) ([]byte, error)
}

const (
	lookEvery = 10 * time.Minute // to detect a kind that came, went or has a new schema
	listEvery = 5 * time.Minute  // to detect profiles that other clients changed
	// settleTime is how long after a start a missing cluster may simply not have been met yet.
	settleTime = time.Minute
	// passWrites bounds the requests of one pass, so that a pass does not delay the list of members for long.
	passWrites = 100
	passLimit  = 20 * time.Second
	blockTime  = time.Minute // after a write that failed
)

// A profiler writes ClusterProfiles while this server leads.
type profiler struct {
	*Profiles
	schemas     rest.Interface
	objects     dynamic.Interface
	said        *reports
	began       time.Time
	authorities *authorities

	served   served
	lookedAt time.Time // zero: read the schema in the next pass
	listedAt time.Time // zero: list in the next pass
	known    map[string]*unstructured.Unstructured
	blocked  map[string]block // by cluster id
	sent     map[string]sent  // by cluster id
}

// A sent is a status that was written, and the resource version that resulted. A server that stores another version of the kind may keep
// fewer fields; sent prevents writing the same status to it again in every pass.
type sent struct {
	status  any
	version string
}

// A block is why and until when the profiler does not write a profile.
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

// forget makes the next pass read everything again.
func (f *profiler) forget() {
	f.lookedAt, f.listedAt = time.Time{}, time.Time{}
	clear(f.blocked)
	clear(f.sent)
}

// pass writes the profiles of clusters, as far as the limits of one pass allow. Fetches of authorities run with lead, so they may continue
// after the pass.
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

// look determines how the API server serves the kind, every lookEvery.
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

// list fetches our existing profiles, every listEvery.
func (f *profiler) list(ctx context.Context, now time.Time) error {
	if !f.listedAt.IsZero() && now.Sub(f.listedAt) < listEvery {
		return nil
	}
	found, err := f.resource().List(ctx, metav1.ListOptions{LabelSelector: managerLabel + "=" + manager})
	if apierrors.IsNotFound(err) {
		f.lookedAt = time.Time{} // the kind was removed
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

// failed handles a cluster whose profile could not be written. It returns an error when the other profiles would fail for the same reason.
func (f *profiler) failed(id string, err error, now time.Time) error {
	switch {
	case apierrors.IsForbidden(err):
		return f.explain("write", err)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err) && f.known[id] != nil:
		f.listedAt = time.Time{} // another client edited or deleted it
		return nil
	case errors.Is(err, errTaken):
		f.listedAt = time.Time{} // or a previous leader created it
	case apierrors.IsNotFound(err):
		f.lookedAt = time.Time{} // the kind was removed, or the namespace does not exist
	}
	f.blocked[id] = block{now.Add(blockTime), err}
	return nil
}

// troubles returns the failed writes as one error. Its text stays the same while the failures do.
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

// errTaken is the error for an object that Tailplane did not create.
var errTaken = errors.New("there is a ClusterProfile of that name that Tailplane did not make; it is left alone")

// An errand is the work of one pass.
type errand struct {
	*profiler
	lead   context.Context
	ctx    context.Context // of this pass
	now    time.Time
	writes int
}

// bring reconciles the profile of one cluster.
func (p *errand) bring(id string, s standing) error {
	o := p.known[id]
	gone := s.gone(o, p.now, p.now.Sub(p.began) >= settleTime)
	// Times are stored in whole seconds.
	if !gone.IsZero() && p.now.Sub(gone) > p.ForgetAfter+time.Second {
		return p.remove(id, o)
	}
	if s.Cluster == nil && (o == nil || gone.IsZero()) {
		return nil // not our cluster, or perhaps not met yet
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

// remove deletes o if it has not changed since it was read.
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
