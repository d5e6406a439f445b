package controller

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
	discoveryInterval = 10 * time.Minute // to detect a kind that came, went or has a new schema
	listInterval      = 5 * time.Minute  // to detect profiles that other clients changed
	// settleTime is how long after a start a missing cluster may simply not have been met yet.
	settleTime = time.Minute
	// maxWritesPerPass bounds the requests of one pass, so that a pass does not delay the list of members for long.
	maxWritesPerPass = 100
	passTimeout      = 20 * time.Second
	blockTime        = time.Minute // after a write that failed
)

// A profileWriter writes ClusterProfiles while this server leads.
type profileWriter struct {
	*Profiles
	schemas  rest.Interface
	objects  dynamic.Interface
	errorLog *errorLog
	began    time.Time
	cas      *caCache

	served       servedKind
	discoveredAt time.Time // zero: read the schema in the next pass
	listedAt     time.Time // zero: list in the next pass
	known        map[string]*unstructured.Unstructured
	blocked      map[string]writeBlock    // by cluster id
	sent         map[string]writtenStatus // by cluster id
}

// A writtenStatus is a status that was written, and the resource version that resulted. A server that stores another version of the kind may keep
// fewer fields; sent prevents writing the same status to it again in every pass.
type writtenStatus struct {
	status  any
	version string
}

// A writeBlock is why and until when the profiler does not write a profile.
type writeBlock struct {
	until time.Time
	err   error
}

func newProfileWriter(config *rest.Config, p *Profiles, errorLog *errorLog, began time.Time) (*profileWriter, error) {
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
	return &profileWriter{Profiles: p, schemas: schemas, objects: objects, errorLog: errorLog, began: began, blocked: map[string]writeBlock{}, sent: map[string]writtenStatus{}, cas: &caCache{
		fetch: p.CA, errorLog: errorLog, byHash: map[string][]byte{}, after: map[string]time.Time{}, inFlight: map[string]bool{},
	}}, nil
}

// reset makes the next pass read everything again.
func (f *profileWriter) reset() {
	f.discoveredAt, f.listedAt = time.Time{}, time.Time{}
	clear(f.blocked)
	clear(f.sent)
}

// writeAll writes the profiles of clusters, as far as the limits of one pass allow. Fetches of authorities run with lead, so they may continue
// after the pass.
func (f *profileWriter) writeAll(lead context.Context, now time.Time, clusters []Cluster) error {
	ctx, cancel := context.WithTimeout(lead, passTimeout)
	defer cancel()
	if err := f.discoverSchema(ctx, now); err != nil || f.served.version == "" {
		return err
	}
	if err := f.listProfiles(ctx, now); err != nil {
		return err
	}
	all := clusterStatuses(clusters)
	f.cas.retain(all)
	ids := slices.Collect(maps.Keys(f.known))
	for id := range all {
		if f.known[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	maps.DeleteFunc(f.blocked, func(_ string, b writeBlock) bool { return !now.Before(b.until) })
	p := &profilePass{profileWriter: f, lead: lead, ctx: ctx, now: now}
	for _, id := range ids {
		if _, ok := f.blocked[id]; ok {
			continue
		}
		if p.writes >= maxWritesPerPass {
			break
		}
		if err := p.reconcile(id, all[id]); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("ClusterProfiles in %s: %w", f.Namespace, err)
			}
			if err := f.handleFailure(id, err, now); err != nil {
				return err
			}
		}
	}
	return f.writeErrors()
}

// discoverSchema determines how the API server serves the kind, every discoveryInterval.
func (f *profileWriter) discoverSchema(ctx context.Context, now time.Time) error {
	first := f.discoveredAt.IsZero()
	if !first && now.Sub(f.discoveredAt) < discoveryInterval {
		return nil
	}
	s, err := discoverKind(ctx, f.schemas)
	if err != nil {
		return err
	}
	if changed := s != f.served; changed || first {
		if s.version == "" {
			f.errorLog.log.Info("ClusterProfiles are off: the API server does not have this kind", "group", profileGroup)
		} else {
			f.errorLog.log.Info("ClusterProfiles are written", "namespace", f.Namespace, "version", s.version, "accessProviders", s.access)
		}
		f.listedAt = time.Time{}
	}
	f.served, f.discoveredAt = s, now
	return nil
}

// listProfiles fetches our existing profiles, every listInterval.
func (f *profileWriter) listProfiles(ctx context.Context, now time.Time) error {
	if !f.listedAt.IsZero() && now.Sub(f.listedAt) < listInterval {
		return nil
	}
	found, err := f.resource().List(ctx, metav1.ListOptions{LabelSelector: managerLabel + "=" + manager})
	if apierrors.IsNotFound(err) {
		f.discoveredAt = time.Time{} // the kind was removed
	}
	if err != nil {
		return f.explain("list", err)
	}
	f.known = map[string]*unstructured.Unstructured{}
	for i := range found.Items {
		o := &found.Items[i]
		if id := managedClusterID(o); id != "" && f.known[id] == nil {
			f.known[id] = o
		}
	}
	f.listedAt = now
	return nil
}

func (f *profileWriter) resource() dynamic.ResourceInterface {
	return f.objects.Resource(f.served.resource()).Namespace(f.Namespace)
}

// handleFailure handles a cluster whose profile could not be written. It returns an error when the other profiles would fail for the same reason.
func (f *profileWriter) handleFailure(id string, err error, now time.Time) error {
	switch {
	case apierrors.IsForbidden(err):
		return f.explain("write", err)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err) && f.known[id] != nil:
		f.listedAt = time.Time{} // another client edited or deleted it
		return nil
	case errors.Is(err, errNameTaken):
		f.listedAt = time.Time{} // or a previous leader created it
	case apierrors.IsNotFound(err):
		f.discoveredAt = time.Time{} // the kind was removed, or the namespace does not exist
	}
	f.blocked[id] = writeBlock{now.Add(blockTime), err}
	return nil
}

// writeErrors returns the failed writes as one error. Its text stays the same while the failures do.
func (f *profileWriter) writeErrors() error {
	if len(f.blocked) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(f.blocked)))
	return fmt.Errorf("%d ClusterProfiles in %s failed; the first is of cluster %s: %w", len(f.blocked), f.Namespace, first, f.blocked[first].err)
}

func (f *profileWriter) explain(doing string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("this account may not %s ClusterProfiles in %s; it needs list, create, update and delete on clusterprofiles.%s, and update on their status: %w", doing, f.Namespace, profileGroup, err)
	}
	return fmt.Errorf("%s ClusterProfiles in %s: %w", doing, f.Namespace, err)
}

// errNameTaken is the error for an object that Tailplane did not create.
var errNameTaken = errors.New("a ClusterProfile of that name exists that Tailplane did not create; Tailplane does not change it")

// A profilePass is the work of one pass.
type profilePass struct {
	*profileWriter
	lead   context.Context
	ctx    context.Context // of this pass
	now    time.Time
	writes int
}

// reconcile reconciles the profile of one cluster.
func (p *profilePass) reconcile(id string, s clusterStatus) error {
	o := p.known[id]
	gone := s.goneSince(o, p.now, p.now.Sub(p.began) >= settleTime)
	// Times are stored in whole seconds.
	if !gone.IsZero() && p.now.Sub(gone) > p.ForgetAfter+time.Second {
		return p.deleteProfile(id, o)
	}
	if s.Cluster == nil && (o == nil || gone.IsZero()) {
		return nil // not our cluster, or perhaps not met yet
	}
	var authority []byte
	if s.Cluster != nil && p.served.access {
		authority = p.cas.get(p.lead, *s.Cluster, caIn(o), p.now, gone.IsZero())
	}
	next := s.desiredProfile(o, p.served.version, p.Namespace, gone)
	var err error
	if o == nil {
		p.writes++
		if next, err = p.resource().Create(p.ctx, next, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%s: %w", profileName(*s.Cluster), errNameTaken)
		}
	} else if differ(o, next, "metadata", "spec") {
		p.writes++
		next, err = p.resource().Update(p.ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	p.known[id] = next
	with := s.desiredStatus(next, p.served.access, authority, p.now)
	status := with.Object["status"]
	if !differ(next, with, "status") || next.GetResourceVersion() == p.sent[id].version && reflect.DeepEqual(status, p.sent[id].status) {
		return nil
	}
	p.writes++
	if with, err = p.resource().UpdateStatus(p.ctx, with, metav1.UpdateOptions{}); err != nil {
		return err
	}
	p.known[id], p.sent[id] = with, writtenStatus{status, with.GetResourceVersion()}
	return nil
}

// deleteProfile deletes o if it has not changed since it was read.
func (p *profilePass) deleteProfile(id string, o *unstructured.Unstructured) error {
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
	p.errorLog.log.Info("deleted the ClusterProfile of a removed cluster", "cluster", id, "profile", o.GetName())
	return nil
}
