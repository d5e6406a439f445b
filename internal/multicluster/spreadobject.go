package multicluster

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// partialMetadata is the Accept header for an object's metadata only, to find out whether the object exists.
const partialMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// probeTimeout is the timeout for queries whether members have an object.
const probeTimeout = 10 * time.Second

// probeMembers queries members whether they have the object of r.
func (s *Router) probeMembers(v *request, r *apiproxy.Request, members []Member) []ownerAnswer {
	object := r.ObjectRequest()
	path := object.URLPath()
	header := http.Header{"Accept": {partialMetadata}, "User-Agent": {v.Out.UserAgent()}}
	ctx, cancel := context.WithTimeout(v.Out.Context(), probeTimeout)
	defer cancel()
	answers := inParallel(members, func(m Member) ownerAnswer {
		res, err := v.Upstream(m.Cluster).Get(ctx, path, header)
		if err != nil {
			return ownerAnswer{Cluster: m.Cluster, Err: err}
		}
		defer res.Body.Close()
		io.Copy(io.Discard, io.LimitReader(res.Body, maxStatus)) // to reuse the connection
		return ownerAnswer{Cluster: m.Cluster, Status: res.StatusCode}
	})
	for _, a := range answers {
		if a.Err != nil {
			s.Log.Warn(
				"a cluster did not answer a request for an object",
				"cluster",
				a.Cluster,
				"resource",
				r.Resource,
				"group",
				r.Group,
				"err",
				a.Err,
			)
		}
	}
	return answers
}

// findOwner returns the cluster that has the object of r, from the cache or by querying all members.
func (s *Router) findOwner(v *request, r *apiproxy.Request, d *Decision) ownerResult {
	key := keyOf(r)
	cluster, absent := v.owners.Get(key, s.Now())
	known := absent || cluster != "" && v.Upstream(cluster) != nil
	s.Metrics.CacheLookup(apiproxy.CacheOwner, known)
	if cluster != "" && v.Upstream(cluster) != nil {
		s.Metrics.OwnerLookup(apiproxy.OwnerLearned)
		return ownerResult{Owner: cluster}
	}
	if absent {
		return ownerResult{Absent: true}
	}
	return s.queryOwner(v, r, d)
}

// queryOwner queries all members for the owner of the object.
func (s *Router) queryOwner(v *request, r *apiproxy.Request, d *Decision) ownerResult {
	result := combineAnswers(s.probeMembers(v, r, d.Members), d.Spread.OnConflict == "prefer")
	switch {
	case result.Owner != "":
		s.Metrics.OwnerLookup(apiproxy.OwnerProbed)
		v.owners.Set(keyOf(r), result.Owner)
		if result.Warning != "" {
			s.Metrics.ConflictResolved(apiproxy.ConflictPreferred)
		}
	case result.Absent:
		s.Metrics.OwnerLookup(apiproxy.OwnerAbsent)
		v.owners.SetAbsent(keyOf(r), s.Now())
	case result.Refusal.Status == http.StatusConflict:
		s.Metrics.OwnerLookup(apiproxy.OwnerConflict)
		s.Metrics.ConflictResolved(apiproxy.ConflictRejected)
	}
	return result
}

// destination is the cluster that receives a request for one object of a spread.
type destination struct {
	cluster string
	owner   bool // the cluster had the object when it was last queried
	creates bool // the request creates the object there
}

// serveNamed serves a request for one object of a spread.
func (s *Router) serveNamed(v *request) error {
	creates := v.Request.Creates(v.Out.Header.Get("Content-Type"))
	if creates {
		release, err := s.locks.lock(v.Out.Context(), keyOf(v.Request))
		if err != nil {
			return err
		}
		defer release()
	}
	to, err := s.findDestination(v, creates)
	if err != nil {
		return err
	}
	if v.decision.Cluster = to.cluster; v.Request.Params.ResourceVersion != "" {
		if status := v.translatePositions(); status != nil {
			return s.serveStatus(v, status)
		}
	}
	if to.creates {
		return s.createAt(v, to.cluster, keyOf(v.Request))
	}
	return s.sendToOwner(v, to)
}

// findDestination returns the cluster that has the object, or the cluster where an update creates it.
func (s *Router) findDestination(v *request, creates bool) (destination, error) {
	result := s.findOwner(v, v.Request, v.decision)
	switch {
	case result.Refusal != nil:
		return destination{}, result.Refusal
	case !result.Absent:
		if result.Warning != "" {
			v.warnings = append(v.warnings, result.Warning)
		}
		return destination{cluster: result.Owner, owner: result.Owner != ""}, nil
	case !creates:
		return destination{cluster: v.decision.Members[0].Cluster}, nil // its "not found" is the response
	case v.decision.MustExist != nil:
		return destination{}, v.decision.MustExist
	}
	if err := v.parseBody(); err != nil {
		return destination{}, err
	}
	cluster, err := s.place(v)
	return destination{cluster: cluster, creates: true}, err
}

// sendToOwner sends the request to the cluster that has the object. If the object was deleted there and created in
// another cluster, it sends the request to that cluster instead.
func (s *Router) sendToOwner(v *request, to destination) error {
	r := v.Request
	res, err := s.send(v, v.Upstream(to.cluster))
	if err != nil {
		return err
	}
	defer func() { res.Close() }()
	if to.owner && !v.rewritten && res.StatusCode == http.StatusNotFound && v.CanResend() {
		if next := s.newOwner(v, to.cluster); next != nil {
			res.Close()
			moved, err := v.Send(next)
			if err != nil {
				return err
			}
			res = moved
		}
	}
	gone := r.Verb == "delete" && r.Subresource == "" && res.StatusCode/100 == 2 && !r.Params.DryRun
	if gone || res.StatusCode == http.StatusNotFound {
		v.owners.Delete(keyOf(r), to.cluster)
	}
	return v.relay(res)
}

// newOwner returns the object's new cluster if the previous one no longer has it, because it was deleted there
// and created elsewhere.
func (s *Router) newOwner(v *request, from string) *apiproxy.Upstream {
	v.owners.Delete(keyOf(v.Request), from)
	result := s.queryOwner(v, v.Request, v.decision)
	if result.Owner == "" || result.Owner == from {
		return nil
	}
	return v.Upstream(result.Owner)
}

// serveCreate serves a POST to a collection of a spread.
func (s *Router) serveCreate(v *request) error {
	if err := v.parseBody(); err != nil {
		return err
	}
	var key ObjectKey
	var cluster string
	var err error
	if v.object.Name == "" {
		cluster, err = s.place(v)
	} else {
		named := *v.Request
		named.Name = v.object.Name
		key = keyOf(&named)
		release, lockErr := s.locks.lock(v.Out.Context(), key)
		if lockErr != nil {
			return lockErr
		}
		defer release()
		cluster, err = s.placeNamed(v, &named)
	}
	if err != nil {
		return err
	}
	return s.createAt(v, cluster, key)
}

// placeNamed returns the cluster that receives the create of an object with a name.
func (s *Router) placeNamed(v *request, named *apiproxy.Request) (string, error) {
	// The cache can name the owner, but only a query can show that the object does not exist.
	result := ownerResult{}
	if cluster, _ := v.owners.Get(keyOf(named), s.Now()); cluster != "" {
		result.Owner = cluster
	}
	if result.Owner == "" {
		result = s.queryOwner(v, named, v.decision)
	}
	switch {
	case result.Refusal != nil && result.Refusal.Status == http.StatusServiceUnavailable && v.decision.Spread.Create == "spill":
	case result.Refusal != nil:
		return "", result.Refusal
	case result.Owner != "":
		// That cluster answers "already exists", or creates the object if it was deleted meanwhile.
		return result.Owner, nil
	}
	return s.place(v)
}

// place returns the cluster where a new object is created.
func (s *Router) place(v *request) (string, error) {
	anchorCluster, err := s.anchorCluster(v)
	if err != nil {
		return "", err
	}
	p, err := placeObject(v.decision.Spread, v.Request, v.object, placementInput{
		Anchor: anchorCluster, Chance: rand.Float64(), Turn: s.creates.Add(1),
		Down: func(cluster string) bool {
			return v.Upstream(cluster).Health().State == apiproxy.StateUnhealthy
		},
	})
	if err != nil {
		return "", err
	}
	s.Metrics.Placed(v.decision.Rule, p.Cluster)
	if p.Spilled {
		v.warnings = append(v.warnings, "made in "+p.Cluster+": "+p.Why)
	}
	return p.Cluster, nil
}

// createAt creates the object in a cluster. It records the owner before the client gets the response.
func (s *Router) createAt(v *request, cluster string, key ObjectKey) error {
	res, err := s.send(v, v.Upstream(cluster))
	if err != nil {
		return err
	}
	defer res.Close()
	if res.StatusCode/100 == 2 && !v.Request.Params.DryRun {
		if key.Name == "" {
			key = keyOf(v.Request)
			key.Name = createdName(res.Response)
		}
		if key.Name != "" { // otherwise a later query finds it
			v.owners.Set(key, cluster)
		}
	}
	return v.relay(res)
}

// createdName reads the name of a new object from the response and keeps the body intact.
func createdName(res *http.Response) string {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	rest := io.MultiReader(bytes.NewReader(b), res.Body)
	if err != nil {
		rest = io.MultiReader(bytes.NewReader(b), failedReader{err})
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{rest, res.Body}
	if err != nil || len(b) > maxBody {
		return ""
	}
	o, err := parseObject(b, res.Header.Get("Content-Type"), res.Header.Get("Content-Encoding"))
	if err != nil {
		return ""
	}
	return o.Name
}

// failedReader is a body that fails with an error.
type failedReader struct{ err error }

func (f failedReader) Read([]byte) (int, error) { return 0, f.err }

// anchorCluster returns the cluster of the object that a new object belongs to, which is its owner or an Event's
// involved object. It returns "" if there is no such reference, or if no cluster has the object.
func (s *Router) anchorCluster(v *request) (string, error) {
	ref, ok := v.object.anchor()
	if !ok {
		return "", nil
	}
	if v.object.InvolvedObject == nil && v.decision.OwnerReferences != config.FollowOwners {
		return "", nil
	}
	of, known, err := v.requestForKind(ref.APIVersion, ref.Kind, ref.Name, ref.Namespace)
	if err != nil || !known {
		return "", err // no cluster has this kind
	}
	d := v.Table.Route(&of, RouteInput{UserAgent: v.Out.UserAgent()})
	switch d.Kind {
	case DecisionHome, DecisionSingle:
		return d.Cluster, nil
	case DecisionSpread:
		result := s.findOwner(v, &of, &d)
		if result.Refusal != nil {
			return "", unavailable(
				"the cluster of the %s %s that the object belongs to is unknown: %s",
				ref.Kind,
				ref.Name,
				result.Refusal.Message,
			)
		}
		return result.Owner, nil
	}
	return "", nil
}

// requestForKind returns the request for an object that is given by kind. namespace defaults to that of the request.
// known is false if no cluster has the kind.
func (v *request) requestForKind(apiVersion, kind, name, namespace string) (of apiproxy.Request, known bool, err error) {
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", group
	}
	resource, namespaced, known := v.discovery.Resource(group, version, kind)
	if !known {
		if err := v.discovery.Refresh(v.Out.Context()); err != nil {
			return of, false, unavailable("the owner of the object cannot be determined: %v", err)
		}
		if resource, namespaced, known = v.discovery.Resource(group, version, kind); !known {
			return of, false, nil
		}
	}
	of = apiproxy.Request{Verb: "get", Group: group, Version: version, Resource: resource, Name: name}
	if namespaced {
		of.Namespace = cmp.Or(namespace, v.Request.Namespace)
	}
	return of, true, nil
}

func unavailable(format string, args ...any) *apiproxy.Refusal {
	r := apiproxy.NewRefusal(http.StatusServiceUnavailable, format, args...)
	r.RetryAfter = time.Second
	return r
}

// createLocks serialise the requests that create an object with one name.
type createLocks struct {
	mu   sync.Mutex
	held map[ObjectKey]chan struct{} // closed when the lock is released
}

func (l *createLocks) lock(ctx context.Context, key ObjectKey) (unlock func(), err error) {
	mine := make(chan struct{})
	for {
		l.mu.Lock()
		other, taken := l.held[key]
		if !taken {
			if l.held == nil {
				l.held = map[ObjectKey]chan struct{}{}
			}
			l.held[key] = mine
		}
		l.mu.Unlock()
		if !taken {
			return func() { l.unlock(key) }, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *createLocks) unlock(key ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[key])
	delete(l.held, key)
}
