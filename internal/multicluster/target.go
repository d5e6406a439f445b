package multicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/multicluster/config"
	"github.com/tailplane/tailplane/internal/multicluster/merge"
)

// Route returns the target of a request. It implements [apiproxy.Server.Route].
func (s *Router) Route(out *http.Request, req *apiproxy.Request) (apiproxy.Target, error) {
	v := s.state.Load()
	if req.NonResource && v.discovery != nil && (req.Verb == "get" || req.Verb == "head") && isDiscoveryPath(req.Path) {
		return apiproxy.Target{Serve: v.serveDiscovery, Clusters: v.clusterNames()}, nil
	}
	visit := &request{out: out, parsed: req, routerState: v}
	d := v.Table.Route(req, visit.routeInput())
	if d.Kind == DecisionDeny && d.Refusal.Status == http.StatusServiceUnavailable && v.discovery != nil {
		if err := v.discovery.Refresh(out.Context()); err != nil { // the scope of the resource was not known
			s.Log.Warn("the discovery of the home cluster failed", "err", err)
		}
		d = v.Table.Route(req, visit.routeInput())
	}
	if d.Kind == DecisionBody {
		if err := visit.parseBody(); err != nil {
			return apiproxy.Target{}, err
		}
		d = v.Table.Route(req, visit.routeInput())
	}
	visit.decision = &d
	t, err := s.targetFor(visit)
	if err == nil {
		if err = s.checkAdoption(visit, &t); err == nil {
			err = s.hideOwners(visit, &t)
		}
		if err != nil && t.Done != nil {
			t.Done()
		}
	}
	t.Rule = d.Rule
	if t.Serve != nil {
		t.Clusters = d.ClusterNames()
	} else {
		t.Warnings = append(t.Warnings, d.Warnings...)
	}
	return t, err
}

func (v *request) routeInput() RouteInput {
	return RouteInput{UserAgent: v.out.UserAgent(), ContentType: v.out.Header.Get("Content-Type"), Object: v.object}
}

// parseBody reads the body and parses it. It leaves the body readable for the request to a cluster.
func (v *request) parseBody() error {
	if v.object != nil {
		return nil
	}
	if err := v.readBody(); err != nil {
		return err
	}
	o, err := parseObject(v.body, v.out.Header.Get("Content-Type"), v.out.Header.Get("Content-Encoding"))
	if err != nil {
		return err
	}
	v.object = o
	return nil
}

// readBody reads the body and leaves it readable for the request to a cluster.
func (v *request) readBody() error {
	if v.body != nil || v.out.Body == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(v.out.Body, maxBody+1))
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	if len(b) > maxBody {
		return &apiproxy.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "RequestEntityTooLarge",
			Message: fmt.Sprintf("the body has more than %d bytes, and routing depends on its content", maxBody)}
	}
	v.setBody(b)
	return nil
}

// setBody sets the body that a cluster receives.
func (v *request) setBody(b []byte) {
	v.body = b
	v.out.ContentLength = int64(len(b))
	v.out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	v.out.Body = io.NopCloser(bytes.NewReader(b))
}

func (s *Router) targetFor(v *request) (apiproxy.Target, error) {
	d := v.decision
	switch {
	case d.Kind == DecisionDeny && d.Review:
		return apiproxy.Target{Serve: v.denyReview}, nil
	case d.Kind == DecisionDeny:
		return apiproxy.Target{}, d.Refusal
	case d.Review && d.IsMerged():
		return apiproxy.Target{Serve: v.reviewAll}, nil
	case !d.IsMerged():
		return s.singleTarget(v)
	case v.parsed.Verb == "list" || v.parsed.Verb == "watch":
		return s.mergedTarget(v), nil
	case v.parsed.Verb == "deletecollection":
		return apiproxy.Target{Serve: v.deleteAll}, nil
	case v.parsed.Name == "" && v.parsed.Verb != "create":
		// A collection does not support the method, and no object has an empty name.
		return apiproxy.Target{}, &apiproxy.Refusal{Status: http.StatusMethodNotAllowed, Reason: "MethodNotAllowed", Message: "the server does not allow this method on the requested resource"}
	case d.Kind == DecisionSpread:
		return s.namedTarget(v)
	}
	return apiproxy.Target{}, fmt.Errorf("a %s of %s was routed as %s", v.parsed.Verb, v.parsed.Resource, d.Kind)
}

// mergedTarget returns the target of a merged list or watch.
func (s *Router) mergedTarget(v *request) apiproxy.Target {
	return apiproxy.Target{Serve: func(w http.ResponseWriter, out *http.Request, call apiproxy.CallObserver) error {
		v.out, v.observeCall = out, call
		return s.serveCollection(w, v)
	}}
}

// statusTarget returns a target that answers with a Status without any request to a cluster.
func (s *Router) statusTarget(v *request, status *codec.Status) apiproxy.Target {
	return apiproxy.Target{Serve: func(w http.ResponseWriter, _ *http.Request, _ apiproxy.CallObserver) error {
		v.writeStatusOrEvent(w, status)
		if status.Code == http.StatusGone && v.parsed.Verb == "watch" {
			s.Metrics.WatchExpired(v.decision.Cluster, apiproxy.ExpiredMoved)
		}
		return nil
	}}
}

// singleTarget returns the target of a request that one cluster serves.
func (s *Router) singleTarget(v *request) (apiproxy.Target, error) {
	t := apiproxy.Target{Upstream: v.routerState.Upstream(v.decision.Cluster)}
	if v.discovery != nil || len(v.history.Tables) > 1 || v.history.Incomplete { // otherwise no client can hold a vector
		if verb := v.parsed.Verb; v.parsed.IsCollection() && (verb == "list" || verb == "watch") {
			if v.hidesOwners() || v.history.Moved(v.Table, v.parsed, v.routeInput()) {
				// Objects are rewritten, or clients may hold resource versions of another cluster. Serve it
				// as a merged collection with vectors.
				v.decision.Kind, v.decision.Members = DecisionUnion, []Member{{Cluster: v.decision.Cluster}}
				return s.mergedTarget(v), nil
			}
			t.Until = v.replaced // the collection may move to another cluster then
		}
		if status := v.translatePositions(); status != nil {
			return s.statusTarget(v, status), nil
		}
	}
	if !v.parsed.Creates(v.out.Header.Get("Content-Type")) {
		return t, nil
	}
	if v.decision.MustExist != nil {
		found := s.probeMembers(v, v.parsed, []Member{{Cluster: v.decision.Cluster}})
		if result := combineAnswers(found, false); result.Absent {
			return apiproxy.Target{}, v.decision.MustExist
		} else if result.Refusal != nil {
			return apiproxy.Target{}, result.Refusal
		}
	}
	if v.discovery != nil && v.decision.Rule != "" && v.decision.OwnerReferences == config.FollowOwners {
		if err := v.parseBody(); err != nil {
			return apiproxy.Target{}, err
		}
		anchorCluster, err := s.anchorCluster(v)
		if err == nil {
			err = v.decision.checkSeparation(v.object, anchorCluster)
		}
		if err != nil {
			return apiproxy.Target{}, err
		}
	}
	return t, nil
}

// planner returns the context for reading positions.
func (v *request) planner() merge.Planner {
	doc := v.Config()
	p := merge.Planner{Epoch: uint64(doc.Epoch)}
	for _, c := range doc.Clusters {
		p.Width = max(p.Width, c.Slot+1)
	}
	return p
}

// translatePositions removes vectors from a request to a single cluster.
func (v *request) translatePositions() *codec.Status {
	p := &v.parsed.Params
	if p.ResourceVersion == "" && p.Continue == "" {
		return nil
	}
	slot, query := v.Config().Cluster(v.decision.Cluster).Slot, v.out.URL.Query()
	if v.parsed.IsCollection() {
		fetch, changed, status := v.planner().SingleCluster(merge.ParseQuery(query, v.parsed.Verb == "watch"), slot)
		if status == nil && changed {
			v.out = withQuery(v.out, func() string {
				bookmarks, timeout := query["allowWatchBookmarks"], query["timeoutSeconds"]
				fetch.Set(query)
				query["allowWatchBookmarks"], query["timeoutSeconds"] = bookmarks, timeout
				return query.Encode()
			}())
		}
		return status
	}
	rv, status := v.planner().ObjectVersion(p.ResourceVersion, slot, v.decision.IsMerged())
	if status == nil && rv != p.ResourceVersion {
		query.Set("resourceVersion", rv)
		v.out = withQuery(v.out, query.Encode())
	}
	return status
}

// withQuery replaces the query of the request to a cluster.
func withQuery(out *http.Request, raw string) *http.Request {
	u := *out.URL
	u.RawQuery = raw
	out.URL = &u
	return out
}

// writeStatusOrEvent writes a Status. For a watch it sends a 410 within the stream, because some clients retry an HTTP
// error endlessly.
func (v *request) writeStatusOrEvent(w http.ResponseWriter, s *codec.Status) {
	if s.Code != http.StatusGone || v.parsed.Verb != "watch" {
		v.writeStatus(w, s)
		return
	}
	format := v.preferredFormat()
	setMergedHeaders(w, format.MediaType(true))
	sink, _, err := startStream(v.out.Context(), w, format, nil)
	if err == nil {
		err = sink.Event(codec.AppendError(nil, format.Proto, s))
	}
	if err == nil {
		sink.Flush() // a client that disconnected needs no response
	}
}

// serveDiscovery serves discovery and OpenAPI.
func (v *routerState) serveDiscovery(w http.ResponseWriter, out *http.Request, _ apiproxy.CallObserver) error {
	w.Header().Set(clusterHeader, mergedCluster)
	err := v.discovery.Serve(w, out)
	switch {
	case errors.Is(err, errDiscoveryNotFound):
		return &apiproxy.Refusal{Status: http.StatusNotFound, Reason: "NotFound", Message: "the server could not find the requested resource"}
	case errors.Is(err, errDiscoveryNotAcceptable):
		return &apiproxy.Refusal{Status: http.StatusNotAcceptable, Reason: "NotAcceptable", Message: err.Error()}
	case err != nil && errors.Is(out.Context().Err(), context.Canceled):
		panic(http.ErrAbortHandler)
	case err != nil:
		r := &apiproxy.Refusal{Status: http.StatusServiceUnavailable, Reason: "ServiceUnavailable", Message: err.Error()}
		r.RetryAfter = retryAfter
		return r
	}
	return nil
}
