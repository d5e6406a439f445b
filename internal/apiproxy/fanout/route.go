package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/catalog"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
)

// Route returns the target of a request. It implements [serving.Server.Route].
func (s *Server) Route(out *http.Request, req *apiproxy.Request) (serving.Target, error) {
	v := s.view.Load()
	if req.NonResource && v.kinds != nil && (req.Verb == "get" || req.Verb == "head") && catalog.Serves(req.Path) {
		return serving.Target{Serve: v.showKinds, Clusters: v.names()}, nil
	}
	visit := &Visit{Out: out, Request: req, view: v}
	d := v.Table.Route(req, visit.beside())
	if d.Kind == apiproxy.Deny && d.Refusal.Status == http.StatusServiceUnavailable && v.kinds != nil {
		if err := v.kinds.Learn(out.Context()); err != nil { // the scope of the resource was not known
			s.Log.Warn("the kinds of the home cluster cannot be asked for", "err", err)
		}
		d = v.Table.Route(req, visit.beside())
	}
	if d.Kind == apiproxy.Body {
		if err := visit.peek(); err != nil {
			return serving.Target{}, err
		}
		d = v.Table.Route(req, visit.beside())
	}
	visit.Decision = &d
	t, err := s.target(visit)
	if err == nil {
		if err = s.adopted(visit, &t); err == nil {
			err = s.shelter(visit, &t)
		}
		if err != nil && t.Done != nil {
			t.Done()
		}
	}
	t.Rule = d.Rule
	if t.Serve != nil {
		t.Clusters = d.Clusters()
	} else {
		t.Warnings = append(t.Warnings, d.Warnings...)
	}
	return t, err
}

func (v *Visit) beside() apiproxy.Beside {
	return apiproxy.Beside{UserAgent: v.Out.UserAgent(), ContentType: v.Out.Header.Get("Content-Type"), Object: v.object}
}

// peek reads the body and parses it. It leaves the body readable for the request to a cluster.
func (v *Visit) peek() error {
	if v.object != nil {
		return nil
	}
	if err := v.load(); err != nil {
		return err
	}
	o, err := apiproxy.Peek(v.body, v.Out.Header.Get("Content-Type"), v.Out.Header.Get("Content-Encoding"))
	if err != nil {
		return err
	}
	v.object = o
	return nil
}

// load reads the body and leaves it readable for the request to a cluster.
func (v *Visit) load() error {
	if v.body != nil || v.Out.Body == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(v.Out.Body, apiproxy.MaxBody+1))
	if err != nil {
		return fmt.Errorf("the body did not come: %w", err)
	}
	if len(b) > apiproxy.MaxBody {
		return &apiproxy.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "RequestEntityTooLarge",
			Message: fmt.Sprintf("the body has more than %d bytes, and what becomes of it depends on what is in it", apiproxy.MaxBody)}
	}
	v.send(b)
	return nil
}

// send sets the body that a cluster receives.
func (v *Visit) send(b []byte) {
	v.body = b
	v.Out.ContentLength = int64(len(b))
	v.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	v.Out.Body = io.NopCloser(bytes.NewReader(b))
}

func (s *Server) target(v *Visit) (serving.Target, error) {
	d := v.Decision
	switch {
	case d.Kind == apiproxy.Deny && d.Review:
		return serving.Target{Serve: v.denyReview}, nil
	case d.Kind == apiproxy.Deny:
		return serving.Target{}, d.Refusal
	case d.Review && d.Merged():
		return serving.Target{Serve: v.review}, nil
	case !d.Merged():
		return s.single(v)
	case v.Request.Verb == "list" || v.Request.Verb == "watch":
		return s.merged(v), nil
	case v.Request.Verb == "deletecollection":
		return serving.Target{Serve: v.deleteAll}, nil
	case v.Request.Name == "" && v.Request.Verb != "create":
		// A collection does not support the method, and no object has an empty name.
		return serving.Target{}, &apiproxy.Refusal{Status: http.StatusMethodNotAllowed, Reason: "MethodNotAllowed", Message: "the server does not allow this method on the requested resource"}
	case d.Kind == apiproxy.Spread:
		return s.named(v)
	}
	return serving.Target{}, fmt.Errorf("a %s of %s was routed as %s", v.Request.Verb, v.Request.Resource, d.Kind)
}

// merged returns the target of a merged list or watch.
func (s *Server) merged(v *Visit) serving.Target {
	return serving.Target{Serve: func(w http.ResponseWriter, out *http.Request, call serving.Calling) error {
		v.Out, v.call = out, call
		return s.Collection(w, v)
	}}
}

// told returns a target that answers with a Status without any request to a cluster.
func (s *Server) told(v *Visit, status *wire.Status) serving.Target {
	return serving.Target{Serve: func(w http.ResponseWriter, _ *http.Request, _ serving.Calling) error {
		v.tellAny(w, status)
		if status.Code == http.StatusGone && v.Request.Verb == "watch" {
			s.Metrics.WatchExpired(v.Decision.Cluster, observe.ExpiredMoved)
		}
		return nil
	}}
}

// single returns the target of a request that one cluster serves.
func (s *Server) single(v *Visit) (serving.Target, error) {
	t := serving.Target{Cluster: v.view.Cluster(v.Decision.Cluster)}
	if v.kinds != nil || len(v.past.Tables) > 1 || v.past.Lost { // otherwise no client can hold a vector
		if verb := v.Request.Verb; v.Request.Collection() && (verb == "list" || verb == "watch") {
			if v.sheltered() || v.past.Moved(v.Table, v.Request, v.beside()) {
				// Objects are rewritten, or clients may hold resource versions of another cluster. Serve it
				// as a merged collection with vectors.
				v.Decision.Kind, v.Decision.Members = apiproxy.Union, []apiproxy.Member{{Cluster: v.Decision.Cluster}}
				return s.merged(v), nil
			}
			t.Until = v.ended // the collection may move to another cluster then
		}
		if status := v.keepPositions(); status != nil {
			return s.told(v, status), nil
		}
	}
	if !v.Request.Creates(v.Out.Header.Get("Content-Type")) {
		return t, nil
	}
	if v.Decision.MustExist != nil {
		found := s.probe(v, v.Request, []apiproxy.Member{{Cluster: v.Decision.Cluster}})
		if verdict := apiproxy.Judge(found, false); verdict.Absent {
			return serving.Target{}, v.Decision.MustExist
		} else if verdict.Refusal != nil {
			return serving.Target{}, verdict.Refusal
		}
	}
	if v.kinds != nil && v.Decision.Rule != "" && v.Decision.OwnerReferences == document.Follow {
		if err := v.peek(); err != nil {
			return serving.Target{}, err
		}
		anchor, err := s.anchor(v)
		if err == nil {
			err = v.Decision.KeepTogether(v.object, anchor)
		}
		if err != nil {
			return serving.Target{}, err
		}
	}
	return t, nil
}

// place returns the context for reading positions.
func (v *Visit) place() position.Place {
	doc := v.Document()
	p := position.Place{Epoch: uint64(doc.Epoch)}
	for _, c := range doc.Clusters {
		p.Width = max(p.Width, c.Slot+1)
	}
	return p
}

// keepPositions removes vectors from a request to a single cluster.
func (v *Visit) keepPositions() *wire.Status {
	p := &v.Request.Params
	if p.ResourceVersion == "" && p.Continue == "" {
		return nil
	}
	slot, query := v.Document().Cluster(v.Decision.Cluster).Slot, v.Out.URL.Query()
	if v.Request.Collection() {
		ask, changed, status := v.place().Single(position.ParseQuery(query, v.Request.Verb == "watch"), slot)
		if status == nil && changed {
			v.Out = withQuery(v.Out, func() string {
				bookmarks, timeout := query["allowWatchBookmarks"], query["timeoutSeconds"]
				ask.Set(query)
				query["allowWatchBookmarks"], query["timeoutSeconds"] = bookmarks, timeout
				return query.Encode()
			}())
		}
		return status
	}
	rv, status := v.place().Named(p.ResourceVersion, slot, v.Decision.Merged())
	if status == nil && rv != p.ResourceVersion {
		query.Set("resourceVersion", rv)
		v.Out = withQuery(v.Out, query.Encode())
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

// tellAny writes a Status. For a watch it sends a 410 within the stream, because some clients retry an HTTP
// error endlessly.
func (v *Visit) tellAny(w http.ResponseWriter, s *wire.Status) {
	if s.Code != http.StatusGone || v.Request.Verb != "watch" {
		v.tell(w, s)
		return
	}
	form := v.preferred()
	setHead(w, form.MediaType(true))
	sink, _, err := begin(v.Out.Context(), w, form, nil)
	if err == nil {
		err = sink.Event(wire.AppendError(nil, form.Proto, s))
	}
	if err == nil {
		sink.Flush() // a client that disconnected needs no response
	}
}

// showKinds serves discovery and OpenAPI.
func (v *view) showKinds(w http.ResponseWriter, out *http.Request, _ serving.Calling) error {
	w.Header().Set(clusterHeader, merged)
	err := v.kinds.Serve(w, out)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return &apiproxy.Refusal{Status: http.StatusNotFound, Reason: "NotFound", Message: "the server could not find the requested resource"}
	case errors.Is(err, catalog.ErrNotAcceptable):
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
