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

// partial asks for an object's metadata only: whether it is there.
const partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// probeTime bounds how long a member is waited for that may have an object.
const probeTime = 10 * time.Second

// probe asks members whether they have the object that r is about.
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
			io.Copy(io.Discard, io.LimitReader(res.Body, maxStatus)) // so that the connection can be used again
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

// find says who has the object that r is about, from what was learned or by asking all.
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

// ask asks all members who has the object.
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

// named is a request about one object of a spread.
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

// owned is the cluster that has the object, or in which an update makes it.
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
		cluster = d.Members[0].Cluster // its "not found" is the answer
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

// moved says where the object is that the cluster which had it has no more: it
// was deleted there and made elsewhere.
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

// create is a POST to a collection of a spread.
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
	// What was learned says who has it; that nobody has it is always asked.
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
		// Its own cluster says that it is there, or takes it if it was deleted meanwhile.
		return s.at(v, verdict.Owner, named.Key()), nil
	}
	return s.placed(v, named.Key())
}

// placed is where a new object is made.
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

// at is a create at a cluster, from whose answer the owner is learned before the
// client has it.
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
				return // it is found by asking
			}
		}
		v.owners.Learn(key, cluster)
	}
	return t
}

// nameOf reads the name of a new object from the answer, and leaves the answer whole.
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

// failed is a body that breaks off.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// anchor is the cluster of what a new object belongs to: its owner, or what an
// Event is about; "" if it belongs to nothing, or nobody has that.
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
		return "", err // no cluster has such a kind, so it is nowhere
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

// kind returns the request for an object that is named by its kind; it is in the
// visit's namespace if no other is said. It is not known if no cluster has the kind.
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

// locks let one request at a time make an object of a name.
type locks struct {
	mu   sync.Mutex
	held map[apiproxy.Key]*lock
}

type lock struct {
	turn  chan struct{} // holds one value while it is taken
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
