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

// Handle serves a request. It implements [apiproxy.Server.Handle].
func (s *Router) Handle(x *apiproxy.Exchange) error {
	v := &request{Exchange: x, routerState: s.state.Load()}
	if r := v.Request; r.NonResource && v.discovery != nil && (r.Verb == "get" || r.Verb == "head") && isDiscoveryPath(r.Path) {
		return v.serveDiscovery()
	}
	d, err := s.decide(v)
	if err != nil {
		return err
	}
	v.decision = &d
	return s.serve(v)
}

// decide routes a request. It gathers what the table needs: the scope of the resource, and the object in the body.
func (s *Router) decide(v *request) (Decision, error) {
	d := v.Table.Route(v.Request, v.routeInput())
	if d.Kind == DecisionDeny && d.Refusal.Status == http.StatusServiceUnavailable && v.discovery != nil {
		if err := v.discovery.Refresh(v.Out.Context()); err != nil { // the scope of the resource was not known
			s.Log.Warn("the discovery of the home cluster failed", "err", err)
		}
		d = v.Table.Route(v.Request, v.routeInput())
	}
	if d.Kind == DecisionBody {
		if err := v.parseBody(); err != nil {
			return d, err
		}
		d = v.Table.Route(v.Request, v.routeInput())
	}
	return d, nil
}

// serve acts on the decision.
func (s *Router) serve(v *request) error {
	d := v.decision
	switch {
	case d.Kind == DecisionDeny && d.Review:
		return v.denyReview()
	case d.Kind == DecisionDeny:
		return d.Refusal
	case d.Review && d.IsMerged():
		return v.reviewAll()
	case !d.IsMerged():
		return s.serveSingle(v)
	case v.Request.Verb == "list" || v.Request.Verb == "watch":
		return s.serveCollection(v)
	case v.Request.Verb == "deletecollection":
		return v.deleteAll()
	case v.Request.Name == "" && v.Request.Verb != "create":
		// A collection does not support the method, and no object has an empty name.
		return apiproxy.NewRefusal(http.StatusMethodNotAllowed, "the server does not allow this method on the requested resource")
	case d.Kind == DecisionSpread && v.Request.Verb == "create" && v.Request.Name == "":
		return s.serveCreate(v)
	case d.Kind == DecisionSpread:
		return s.serveNamed(v)
	}
	return fmt.Errorf("a %s of %s was routed as %s", v.Request.Verb, v.Request.Resource, d.Kind)
}

func (v *request) routeInput() RouteInput {
	return RouteInput{UserAgent: v.Out.UserAgent(), ContentType: v.Out.Header.Get("Content-Type"), Object: v.object}
}

// parseBody reads the body and parses it. It leaves the body readable for the request to a cluster.
func (v *request) parseBody() error {
	if v.object != nil {
		return nil
	}
	if err := v.readBody(); err != nil {
		return err
	}
	o, err := parseObject(v.body, v.Out.Header.Get("Content-Type"), v.Out.Header.Get("Content-Encoding"))
	if err != nil {
		return err
	}
	v.object = o
	return nil
}

// readBody reads the body and leaves it readable for the request to a cluster.
func (v *request) readBody() error {
	if v.body != nil || v.Out.Body == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(v.Out.Body, maxBody+1))
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	if len(b) > maxBody {
		return apiproxy.NewRefusal(
			http.StatusRequestEntityTooLarge,
			"the body has more than %d bytes, and routing depends on its content",
			maxBody,
		)
	}
	v.setBody(b)
	return nil
}

// setBody sets the body that a cluster receives.
func (v *request) setBody(b []byte) {
	v.body = b
	v.Out.ContentLength = int64(len(b))
	v.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	v.Out.Body = io.NopCloser(bytes.NewReader(b))
}

// serveSingle serves a request that one cluster serves.
func (s *Router) serveSingle(v *request) error {
	if v.discovery != nil || len(v.history.Tables) > 1 || v.history.Incomplete { // otherwise no client can hold a vector
		if verb := v.Request.Verb; v.Request.IsCollection() && (verb == "list" || verb == "watch") {
			if v.hidesOwners() || v.history.Moved(v.Table, v.Request, v.routeInput()) {
				// Objects are rewritten, or clients may hold resource versions of another cluster. Serve it
				// as a merged collection with vectors.
				v.decision.Kind, v.decision.Members = DecisionUnion, []Member{{Cluster: v.decision.Cluster}}
				return s.serveCollection(v)
			}
			if verb == "watch" {
				defer v.endWhenReplaced()()
			}
		}
		if status := v.translatePositions(); status != nil {
			return s.serveStatus(v, status)
		}
	}
	if v.Request.Creates(v.Out.Header.Get("Content-Type")) {
		if err := s.checkCreate(v); err != nil {
			return err
		}
	}
	res, err := s.send(v, v.Upstream(v.decision.Cluster))
	if err != nil {
		return err
	}
	defer res.Close()
	return v.relay(res)
}

// endWhenReplaced ends a watch at the cluster when another configuration replaces this one, because the collection may
// move to another cluster then. The caller must call the returned function when the watch has ended.
func (v *request) endWhenReplaced() context.CancelFunc {
	ctx, cancel := context.WithCancel(v.Out.Context())
	go func() {
		defer cancel()
		select {
		case <-v.replaced:
		case <-ctx.Done():
		}
	}()
	v.Out = v.Out.WithContext(ctx)
	return cancel
}

// checkCreate refuses an object that the rules forbid to create in the cluster of the request.
func (s *Router) checkCreate(v *request) error {
	if v.decision.MustExist != nil {
		found := s.probeMembers(v, v.Request, []Member{{Cluster: v.decision.Cluster}})
		if result := combineAnswers(found, false); result.Absent {
			return v.decision.MustExist
		} else if result.Refusal != nil {
			return result.Refusal
		}
	}
	if v.discovery == nil || v.decision.Rule == "" || v.decision.OwnerReferences != config.FollowOwners {
		return nil
	}
	if err := v.parseBody(); err != nil {
		return err
	}
	anchorCluster, err := s.anchorCluster(v)
	if err != nil {
		return err
	}
	return v.decision.checkSeparation(v.object, anchorCluster)
}

// send sends the request to one cluster. First it checks and rewrites owner references, records the route and sets the
// warnings of the response. The caller must close the response and relay it.
func (s *Router) send(v *request, up *apiproxy.Upstream) (*apiproxy.UpstreamResponse, error) {
	if err := s.checkAdoption(v, up); err != nil {
		return nil, err
	}
	if err := s.hideOwners(v, up); err != nil {
		return nil, err
	}
	if err := v.Routed(v.decision.Rule, up.Name); err != nil {
		return nil, err
	}
	for _, text := range append(v.warnings, v.decision.Warnings...) {
		v.W.Header().Add("Warning", warningHeader(text))
	}
	return v.Send(up)
}

// relay sends a cluster's response to the client, with the owner references that the client wrote.
func (v *request) relay(res *apiproxy.UpstreamResponse) error {
	if v.hidesOwners() {
		restoreOwners(res.Response)
	}
	return v.Relay(res)
}

// routed records the clusters of the decision.
func (v *request) routed() error { return v.Routed(v.decision.Rule, v.decision.ClusterNames()...) }

// answer records the clusters of the decision and prepares a response that does not come from one of them.
func (v *request) answer() error {
	if err := v.routed(); err != nil {
		return err
	}
	return v.Answer()
}

// serveStatus answers with a Status without any request to a cluster.
func (s *Router) serveStatus(v *request, status *codec.Status) error {
	if err := v.answer(); err != nil {
		return err
	}
	v.writeStatusOrEvent(status)
	if status.Code == http.StatusGone && v.Request.Verb == "watch" {
		s.Metrics.WatchExpired(v.decision.Cluster, apiproxy.ExpiredMoved)
	}
	return nil
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
	p := &v.Request.Params
	if p.ResourceVersion == "" && p.Continue == "" {
		return nil
	}
	slot, query := v.Config().Cluster(v.decision.Cluster).Slot, v.Out.URL.Query()
	if v.Request.IsCollection() {
		fetch, changed, status := v.planner().SingleCluster(merge.ParseQuery(query, v.Request.Verb == "watch"), slot)
		if status == nil && changed {
			bookmarks, timeout := query["allowWatchBookmarks"], query["timeoutSeconds"]
			fetch.Set(query)
			query["allowWatchBookmarks"], query["timeoutSeconds"] = bookmarks, timeout
			v.setQuery(query.Encode())
		}
		return status
	}
	rv, status := v.planner().ObjectVersion(p.ResourceVersion, slot, v.decision.IsMerged())
	if status == nil && rv != p.ResourceVersion {
		query.Set("resourceVersion", rv)
		v.setQuery(query.Encode())
	}
	return status
}

// setQuery replaces the query of the request to a cluster.
func (v *request) setQuery(raw string) {
	u := *v.Out.URL
	u.RawQuery = raw
	v.Out.URL = &u
}

// writeStatusOrEvent writes a Status. For a watch it sends a 410 within the stream, because some clients retry an HTTP
// error endlessly.
func (v *request) writeStatusOrEvent(s *codec.Status) {
	if s.Code != http.StatusGone || v.Request.Verb != "watch" {
		v.writeStatus(s)
		return
	}
	format := v.preferredFormat()
	v.setMergedHeaders(format.MediaType(true))
	sink, _, err := v.startStream(format, nil)
	if err == nil {
		err = sink.Event(codec.AppendError(nil, format.Proto, s))
	}
	if err == nil {
		sink.Flush() // a client that disconnected needs no response
	}
}

// serveDiscovery serves discovery and OpenAPI.
func (v *request) serveDiscovery() error {
	if err := v.Routed("", v.clusterNames()...); err != nil {
		return err
	}
	if err := v.Answer(); err != nil {
		return err
	}
	v.W.Header().Set(clusterHeader, mergedCluster)
	err := v.discovery.Serve(v.W, v.Out)
	switch {
	case errors.Is(err, errDiscoveryNotFound):
		return apiproxy.NewRefusal(http.StatusNotFound, "the server could not find the requested resource")
	case errors.Is(err, errDiscoveryNotAcceptable):
		return apiproxy.NewRefusal(http.StatusNotAcceptable, "%v", err)
	case err != nil && errors.Is(v.Out.Context().Err(), context.Canceled):
		panic(http.ErrAbortHandler)
	case err != nil:
		return unavailable("%v", err)
	}
	return nil
}
