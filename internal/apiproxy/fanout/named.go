package fanout

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
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

const retryAfter = time.Second

// partial is the Accept header for an object's metadata only, to find out whether the object exists.
const partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// probeTime is the timeout for queries whether members have an object.
const probeTime = 10 * time.Second

// probe queries members whether they have the object of r.
func (s *Server) probe(v *Visit, r *apiproxy.Request, members []apiproxy.Member) []apiproxy.Answer {
	object := r.Object()
	path := object.URLPath()
	header := http.Header{"Accept": {partial}, "User-Agent": {v.Out.UserAgent()}}
	answers := make([]apiproxy.Answer, len(members))
	ctx, cancel := context.WithTimeout(v.Out.Context(), probeTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			answers[i].Cluster = m.Cluster
			res, err := v.view.Cluster(m.Cluster).Get(ctx, path, header)
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
			s.Log.Warn("a cluster could not be asked for an object", "cluster", a.Cluster, "resource", r.Resource, "group", r.Group, "err", a.Err)
		}
	}
	return answers
}

// find returns the cluster that has the object of r, from the cache or by querying all members.
func (s *Server) find(v *Visit, r *apiproxy.Request, d *apiproxy.Decision) apiproxy.Verdict {
	key := r.Key()
	cluster, absent := v.owners.Find(key, s.Now())
	known := absent || cluster != "" && v.view.Cluster(cluster) != nil
	s.Metrics.CacheAsked(observe.CacheOwner, known)
	if cluster != "" && v.view.Cluster(cluster) != nil {
		s.Metrics.OwnerSought(observe.OwnerLearned)
		return apiproxy.Verdict{Owner: cluster}
	}
	if absent {
		return apiproxy.Verdict{Absent: true}
	}
	return s.ask(v, r, d)
}

// ask queries all members for the owner of the object.
func (s *Server) ask(v *Visit, r *apiproxy.Request, d *apiproxy.Decision) apiproxy.Verdict {
	verdict := apiproxy.Judge(s.probe(v, r, d.Members), d.Spread.OnConflict == "prefer")
	switch {
	case verdict.Owner != "":
		s.Metrics.OwnerSought(observe.OwnerProbed)
		v.owners.Learn(r.Key(), verdict.Owner)
		if verdict.Warning != "" {
			s.Metrics.ConflictFound(observe.ConflictPreferred)
		}
	case verdict.Absent:
		s.Metrics.OwnerSought(observe.OwnerAbsent)
		v.owners.Absent(r.Key(), s.Now())
	case verdict.Refusal.Status == http.StatusConflict:
		s.Metrics.OwnerSought(observe.OwnerConflict)
		s.Metrics.ConflictFound(observe.ConflictRejected)
	}
	return verdict
}

// named routes a request for one object of a spread.
func (s *Server) named(v *Visit) (serving.Target, error) {
	r, d := v.Request, v.Decision
	if r.Verb == "create" && r.Name == "" {
		return s.create(v)
	}
	creates := r.Creates(v.Out.Header.Get("Content-Type"))
	release := func() {}
	if creates {
		unlock, err := s.locks.lock(v.Out.Context(), r.Key())
		if err != nil {
			return serving.Target{}, err
		}
		release = unlock
	}
	t, err := s.owned(v, creates)
	if err != nil {
		release()
		return serving.Target{}, err
	}
	t.Done = release
	if d.Cluster = t.Cluster.Name; r.Params.ResourceVersion != "" {
		if status := v.keepPositions(); status != nil {
			release()
			return s.told(v, status), nil
		}
	}
	return t, nil
}

// owned returns the cluster that has the object, or the cluster where an update creates it.
func (s *Server) owned(v *Visit, creates bool) (serving.Target, error) {
	r, d := v.Request, v.Decision
	verdict := s.find(v, r, d)
	if verdict.Refusal != nil {
		return serving.Target{}, verdict.Refusal
	}
	if verdict.Absent && creates {
		if d.MustExist != nil {
			return serving.Target{}, d.MustExist
		}
		if err := v.peek(); err != nil {
			return serving.Target{}, err
		}
		return s.placed(v, r.Key())
	}
	cluster := verdict.Owner
	if verdict.Absent {
		cluster = d.Members[0].Cluster // its "not found" is the response
	}
	t := serving.Target{Cluster: v.view.Cluster(cluster)}
	if verdict.Warning != "" {
		t.Warnings = append(t.Warnings, verdict.Warning)
	}
	key := r.Key()
	t.Heard = func(res *http.Response) {
		gone := r.Verb == "delete" && r.Subresource == "" && res.StatusCode/100 == 2 && !r.Params.DryRun
		if gone || res.StatusCode == http.StatusNotFound {
			v.owners.Forget(key, cluster)
		}
	}
	if verdict.Owner != "" {
		t.Again = func(res *http.Response) *upstream.Cluster { return s.moved(v, res, cluster) }
	}
	return t, nil
}

// moved returns the object's new cluster if the previous one no longer has it, because it was deleted there
// and created elsewhere.
func (s *Server) moved(v *Visit, res *http.Response, from string) *upstream.Cluster {
	if res.StatusCode != http.StatusNotFound {
		return nil
	}
	v.owners.Forget(v.Request.Key(), from)
	verdict := s.ask(v, v.Request, v.Decision)
	if verdict.Owner == "" || verdict.Owner == from {
		return nil
	}
	return v.view.Cluster(verdict.Owner)
}

// create routes a POST to a collection of a spread.
func (s *Server) create(v *Visit) (serving.Target, error) {
	if err := v.peek(); err != nil {
		return serving.Target{}, err
	}
	if v.object.Name == "" {
		return s.placed(v, apiproxy.Key{})
	}
	named := *v.Request
	named.Name = v.object.Name
	key := named.Key()
	release, err := s.locks.lock(v.Out.Context(), key)
	if err != nil {
		return serving.Target{}, err
	}
	t, err := s.createNamed(v, &named)
	if err != nil {
		release()
		return serving.Target{}, err
	}
	t.Done = release
	return t, nil
}

func (s *Server) createNamed(v *Visit, named *apiproxy.Request) (serving.Target, error) {
	// The cache can name the owner, but only a query can show that the object does not exist.
	verdict := apiproxy.Verdict{}
	if cluster, _ := v.owners.Find(named.Key(), s.Now()); cluster != "" {
		verdict.Owner = cluster
	}
	if verdict.Owner == "" {
		verdict = s.ask(v, named, v.Decision)
	}
	switch {
	case verdict.Refusal != nil && verdict.Refusal.Status == http.StatusServiceUnavailable && v.Decision.Spread.Create == "spill":
	case verdict.Refusal != nil:
		return serving.Target{}, verdict.Refusal
	case verdict.Owner != "":
		// That cluster answers "already exists", or creates the object if it was deleted meanwhile.
		return s.at(v, verdict.Owner, named.Key()), nil
	}
	return s.placed(v, named.Key())
}

// placed returns the cluster where a new object is created.
func (s *Server) placed(v *Visit, key apiproxy.Key) (serving.Target, error) {
	anchor, err := s.anchor(v)
	if err != nil {
		return serving.Target{}, err
	}
	p, err := apiproxy.Place(v.Decision.Spread, v.Request, v.object, apiproxy.Surroundings{
		Anchor: anchor, Chance: rand.Float64(), Turn: s.turn.Add(1),
		Down: func(cluster string) bool { return v.view.Cluster(cluster).Health().State == upstream.StateUnhealthy },
	})
	if err != nil {
		return serving.Target{}, err
	}
	s.Metrics.Placed(v.Decision.Rule, p.Cluster)
	t := s.at(v, p.Cluster, key)
	if p.Spilled {
		t.Warnings = append(t.Warnings, "made in "+p.Cluster+": "+p.Why)
	}
	return t, nil
}

// at returns a create at a cluster. It records the owner before the client gets the response.
func (s *Server) at(v *Visit, cluster string, key apiproxy.Key) serving.Target {
	t := serving.Target{Cluster: v.view.Cluster(cluster)}
	if v.Request.Params.DryRun {
		return t
	}
	t.Heard = func(res *http.Response) {
		switch {
		case res.StatusCode/100 != 2:
			return
		case key.Name == "":
			key = v.Request.Key()
			if key.Name = nameOf(res); key.Name == "" {
				return // a later query finds it
			}
		}
		v.owners.Learn(key, cluster)
	}
	return t
}

// nameOf reads the name of a new object from the response and keeps the body intact.
func nameOf(res *http.Response) string {
	b, err := io.ReadAll(io.LimitReader(res.Body, apiproxy.MaxBody+1))
	rest := io.MultiReader(bytes.NewReader(b), res.Body)
	if err != nil {
		rest = io.MultiReader(bytes.NewReader(b), failed{err})
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{rest, res.Body}
	if err != nil || len(b) > apiproxy.MaxBody {
		return ""
	}
	o, err := apiproxy.Peek(b, res.Header.Get("Content-Type"), res.Header.Get("Content-Encoding"))
	if err != nil {
		return ""
	}
	return o.Name
}

// failed is a body that fails with an error.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// anchor returns the cluster of the object that a new object belongs to, which is its owner or an Event's
// involved object. It returns "" if there is no such reference, or if no cluster has the object.
func (s *Server) anchor(v *Visit) (string, error) {
	ref, ok := v.object.Anchor()
	if !ok {
		return "", nil
	}
	if v.object.Involved == nil && v.Decision.OwnerReferences != document.Follow {
		return "", nil
	}
	of, known, err := v.kind(ref.APIVersion, ref.Kind, ref.Name, ref.Namespace)
	if err != nil || !known {
		return "", err // no cluster has this kind
	}
	d := v.Table.Route(&of, apiproxy.Beside{UserAgent: v.Out.UserAgent()})
	switch d.Kind {
	case apiproxy.Home, apiproxy.Single:
		return d.Cluster, nil
	case apiproxy.Spread:
		verdict := s.find(v, &of, &d)
		if verdict.Refusal != nil {
			return "", unavailable("who has the %s %s to which the object belongs is not known: %s", ref.Kind, ref.Name, verdict.Refusal.Message)
		}
		return verdict.Owner, nil
	}
	return "", nil
}

// kind returns the request for an object that is given by kind. namespace defaults to that of the visit.
// known is false if no cluster has the kind.
func (v *Visit) kind(apiVersion, kind, name, namespace string) (of apiproxy.Request, known bool, err error) {
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", group
	}
	resource, namespaced, known := v.kinds.Resource(group, version, kind)
	if !known {
		if err := v.kinds.Learn(v.Out.Context()); err != nil {
			return of, false, unavailable("whose the object is cannot be told: %v", err)
		}
		if resource, namespaced, known = v.kinds.Resource(group, version, kind); !known {
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
	return &apiproxy.Refusal{Status: http.StatusServiceUnavailable, Reason: "ServiceUnavailable", Message: fmt.Sprintf(format, args...), RetryAfter: retryAfter}
}

// locks serialise the requests that create an object with one name.
type locks struct {
	mu   sync.Mutex
	held map[apiproxy.Key]*lock
}

type lock struct {
	turn  chan struct{} // holds one value while the lock is taken
	users int
}

func (l *locks) lock(ctx context.Context, key apiproxy.Key) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[apiproxy.Key]*lock{}
	}
	k := l.held[key]
	if k == nil {
		k = &lock{turn: make(chan struct{}, 1)}
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
	case k.turn <- struct{}{}:
		return func() { <-k.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
