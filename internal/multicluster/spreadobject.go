package multicluster

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

const retryAfter = time.Second

// partialMetadata is the Accept header for an object's metadata only, to find out whether the object exists.
const partialMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// probeTimeout is the timeout for queries whether members have an object.
const probeTimeout = 10 * time.Second

// probeMembers queries members whether they have the object of r.
func (s *Router) probeMembers(v *request, r *apiproxy.Request, members []Member) []ownerAnswer {
	object := r.ObjectRequest()
	path := object.URLPath()
	header := http.Header{"Accept": {partialMetadata}, "User-Agent": {v.out.UserAgent()}}
	answers := make([]ownerAnswer, len(members))
	ctx, cancel := context.WithTimeout(v.out.Context(), probeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			answers[i].Cluster = m.Cluster
			res, err := v.routerState.Upstream(m.Cluster).Get(ctx, path, header)
			if err != nil {
				answers[i].Err = err
				return
			}
			defer res.Body.Close()
			answers[i].Status = res.StatusCode
			io.Copy(io.Discard, io.LimitReader(res.Body, maxStatus)) // to reuse the connection
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a.Err != nil {
			s.Log.Warn("a cluster did not answer a request for an object", "cluster", a.Cluster, "resource", r.Resource, "group", r.Group, "err", a.Err)
		}
	}
	return answers
}

// findOwner returns the cluster that has the object of r, from the cache or by querying all members.
func (s *Router) findOwner(v *request, r *apiproxy.Request, d *Decision) ownerResult {
	key := keyOf(r)
	cluster, absent := v.owners.Get(key, s.Now())
	known := absent || cluster != "" && v.routerState.Upstream(cluster) != nil
	s.Metrics.CacheLookup(apiproxy.CacheOwner, known)
	if cluster != "" && v.routerState.Upstream(cluster) != nil {
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

// namedTarget routes a request for one object of a spread.
func (s *Router) namedTarget(v *request) (apiproxy.Target, error) {
	r, d := v.parsed, v.decision
	if r.Verb == "create" && r.Name == "" {
		return s.createTarget(v)
	}
	creates := r.Creates(v.out.Header.Get("Content-Type"))
	release := func() {}
	if creates {
		unlock, err := s.locks.lock(v.out.Context(), keyOf(r))
		if err != nil {
			return apiproxy.Target{}, err
		}
		release = unlock
	}
	t, err := s.ownedTarget(v, creates)
	if err != nil {
		release()
		return apiproxy.Target{}, err
	}
	t.Done = release
	if d.Cluster = t.Upstream.Name; r.Params.ResourceVersion != "" {
		if status := v.translatePositions(); status != nil {
			release()
			return s.statusTarget(v, status), nil
		}
	}
	return t, nil
}

// ownedTarget returns the cluster that has the object, or the cluster where an update creates it.
func (s *Router) ownedTarget(v *request, creates bool) (apiproxy.Target, error) {
	r, d := v.parsed, v.decision
	result := s.findOwner(v, r, d)
	if result.Refusal != nil {
		return apiproxy.Target{}, result.Refusal
	}
	if result.Absent && creates {
		if d.MustExist != nil {
			return apiproxy.Target{}, d.MustExist
		}
		if err := v.parseBody(); err != nil {
			return apiproxy.Target{}, err
		}
		return s.placedTarget(v, keyOf(r))
	}
	cluster := result.Owner
	if result.Absent {
		cluster = d.Members[0].Cluster // its "not found" is the response
	}
	t := apiproxy.Target{Upstream: v.routerState.Upstream(cluster)}
	if result.Warning != "" {
		t.Warnings = append(t.Warnings, result.Warning)
	}
	key := keyOf(r)
	t.OnResponse = func(res *http.Response) {
		gone := r.Verb == "delete" && r.Subresource == "" && res.StatusCode/100 == 2 && !r.Params.DryRun
		if gone || res.StatusCode == http.StatusNotFound {
			v.owners.Delete(key, cluster)
		}
	}
	if result.Owner != "" {
		t.Redirect = func(res *http.Response) *apiproxy.Upstream { return s.newOwner(v, res, cluster) }
	}
	return t, nil
}

// newOwner returns the object's new cluster if the previous one no longer has it, because it was deleted there
// and created elsewhere.
func (s *Router) newOwner(v *request, res *http.Response, from string) *apiproxy.Upstream {
	if res.StatusCode != http.StatusNotFound {
		return nil
	}
	v.owners.Delete(keyOf(v.parsed), from)
	result := s.queryOwner(v, v.parsed, v.decision)
	if result.Owner == "" || result.Owner == from {
		return nil
	}
	return v.routerState.Upstream(result.Owner)
}

// createTarget routes a POST to a collection of a spread.
func (s *Router) createTarget(v *request) (apiproxy.Target, error) {
	if err := v.parseBody(); err != nil {
		return apiproxy.Target{}, err
	}
	if v.object.Name == "" {
		return s.placedTarget(v, ObjectKey{})
	}
	named := *v.parsed
	named.Name = v.object.Name
	key := keyOf(&named)
	release, err := s.locks.lock(v.out.Context(), key)
	if err != nil {
		return apiproxy.Target{}, err
	}
	t, err := s.createNamedTarget(v, &named)
	if err != nil {
		release()
		return apiproxy.Target{}, err
	}
	t.Done = release
	return t, nil
}

func (s *Router) createNamedTarget(v *request, named *apiproxy.Request) (apiproxy.Target, error) {
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
		return apiproxy.Target{}, result.Refusal
	case result.Owner != "":
		// That cluster answers "already exists", or creates the object if it was deleted meanwhile.
		return s.createAt(v, result.Owner, keyOf(named)), nil
	}
	return s.placedTarget(v, keyOf(named))
}

// placedTarget returns the cluster where a new object is created.
func (s *Router) placedTarget(v *request, key ObjectKey) (apiproxy.Target, error) {
	anchorCluster, err := s.anchorCluster(v)
	if err != nil {
		return apiproxy.Target{}, err
	}
	p, err := placeObject(v.decision.Spread, v.parsed, v.object, placementInput{
		Anchor: anchorCluster, Chance: rand.Float64(), Turn: s.creates.Add(1),
		Down: func(cluster string) bool {
			return v.routerState.Upstream(cluster).Health().State == apiproxy.StateUnhealthy
		},
	})
	if err != nil {
		return apiproxy.Target{}, err
	}
	s.Metrics.Placed(v.decision.Rule, p.Cluster)
	t := s.createAt(v, p.Cluster, key)
	if p.Spilled {
		t.Warnings = append(t.Warnings, "made in "+p.Cluster+": "+p.Why)
	}
	return t, nil
}

// createAt returns a create at a cluster. It records the owner before the client gets the response.
func (s *Router) createAt(v *request, cluster string, key ObjectKey) apiproxy.Target {
	t := apiproxy.Target{Upstream: v.routerState.Upstream(cluster)}
	if v.parsed.Params.DryRun {
		return t
	}
	t.OnResponse = func(res *http.Response) {
		switch {
		case res.StatusCode/100 != 2:
			return
		case key.Name == "":
			key = keyOf(v.parsed)
			if key.Name = createdName(res); key.Name == "" {
				return // a later query finds it
			}
		}
		v.owners.Set(key, cluster)
	}
	return t
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
	d := v.Table.Route(&of, RouteInput{UserAgent: v.out.UserAgent()})
	switch d.Kind {
	case DecisionHome, DecisionSingle:
		return d.Cluster, nil
	case DecisionSpread:
		result := s.findOwner(v, &of, &d)
		if result.Refusal != nil {
			return "", unavailable("the cluster of the %s %s that the object belongs to is unknown: %s", ref.Kind, ref.Name, result.Refusal.Message)
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
		if err := v.discovery.Refresh(v.out.Context()); err != nil {
			return of, false, unavailable("the owner of the object cannot be determined: %v", err)
		}
		if resource, namespaced, known = v.discovery.Resource(group, version, kind); !known {
			return of, false, nil
		}
	}
	of = apiproxy.Request{Verb: "get", Group: group, Version: version, Resource: resource, Name: name}
	if namespaced {
		of.Namespace = cmp.Or(namespace, v.parsed.Namespace)
	}
	return of, true, nil
}

func unavailable(format string, args ...any) *apiproxy.Refusal {
	return &apiproxy.Refusal{Status: http.StatusServiceUnavailable, Reason: "ServiceUnavailable", Message: fmt.Sprintf(format, args...), RetryAfter: retryAfter}
}

// createLocks serialise the requests that create an object with one name.
type createLocks struct {
	mu   sync.Mutex
	held map[ObjectKey]*createLock
}

type createLock struct {
	sem   chan struct{} // holds one value while the lock is taken
	users int
}

func (l *createLocks) lock(ctx context.Context, key ObjectKey) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[ObjectKey]*createLock{}
	}
	k := l.held[key]
	if k == nil {
		k = &createLock{sem: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case k.sem <- struct{}{}:
		return func() { <-k.sem; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
