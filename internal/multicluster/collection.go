package multicluster

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/multicluster/merge"
)

// serveCollection serves a list or watch of a collection that several clusters hold. If it returns an error, it
// has written nothing.
func (s *Router) serveCollection(v *request) error {
	if err := v.answer(); err != nil {
		return err
	}
	formats := parseAccept(v.Out.Header["Accept"])
	if v.rewriteFor("") != nil {
		if formats = jsonFormats(formats); len(formats) == 0 {
			return notAcceptable()
		}
	}
	formats = s.supportedFormats(v.Request, formats)
	query := v.Out.URL.Query()
	q := merge.ParseQuery(query, v.Request.Verb == "watch")
	var last error
	for _, f := range formats {
		c := s.newCollection(v, query, f)
		var err error
		if q.Watch {
			err = s.serveWatch(v, c, q, f)
		} else {
			err = s.serveList(v, c, q)
		}
		if !needsOtherFormat(err) {
			if err != nil {
				return v.writeError(v.reportMissingResource(err))
			}
			return nil
		}
		if f.Proto {
			s.setJSONOnly(v.Request)
		}
		last = err
	}
	if status, ok := errors.AsType[*codec.Status](last); ok {
		v.writeStatus(status)
		return nil
	}
	return apiproxy.NewRefusal(
		http.StatusNotAcceptable,
		"collections of several clusters are available only as JSON, protobuf, Table or PartialObjectMetadataList",
	)
}

// needsOtherFormat reports whether members could not answer in the requested encoding, or answered in different
// ones.
func needsOtherFormat(err error) bool {
	status, ok := errors.AsType[*codec.Status](err)
	return errors.Is(err, merge.ErrMixedFormats) || ok && status.Code == http.StatusNotAcceptable
}

// supportedFormats removes protobuf if a member is known not to support it for this resource. Custom resources have no
// protobuf, and clients that prefer it would otherwise cause two requests each time.
func (s *Router) supportedFormats(r *apiproxy.Request, formats []acceptedFormat) []acceptedFormat {
	s.mu.Lock()
	jsonOnly := s.jsonOnly[r.Group+"/"+r.Resource]
	s.mu.Unlock()
	if jsonOnly {
		if rest := jsonFormats(formats); len(rest) > 0 {
			return rest
		}
	}
	return formats
}

// maxJSONOnly limits the number of cached resources.
const maxJSONOnly = 1024

func (s *Router) setJSONOnly(r *apiproxy.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jsonOnly == nil || len(s.jsonOnly) >= maxJSONOnly {
		s.jsonOnly = map[string]bool{}
	}
	s.jsonOnly[r.Group+"/"+r.Resource] = true
}

// newCollection prepares the merge in one encoding.
func (s *Router) newCollection(v *request, query url.Values, f acceptedFormat) *merge.Collection {
	doc, planner := v.Config(), v.planner()
	c := &merge.Collection{
		Epoch: planner.Epoch, Width: planner.Width, Spread: v.decision.Kind == DecisionSpread || v.decision.Overlap,
		Buffers: &s.buffers,
		Bare:    f.Shape == codec.ShapeTable && query.Get("includeObject") == "None",
		Hash:    merge.CollectionHash(v.Request.URLPath(), query.Get("labelSelector"), query.Get("fieldSelector")),
	}
	for _, m := range v.decision.Members {
		member := merge.Member{Slot: doc.Cluster(m.Cluster).Slot, Name: m.Cluster}
		if has := m.Namespaces; has != nil {
			member.Keep = func(namespace []byte) bool { return has.Has(string(namespace)) }
		}
		c.Members = append(c.Members, member)
	}
	header := v.Out.Header.Clone()
	header["Accept-Encoding"] = []string{"identity"}
	delete(header, "If-None-Match")
	path := v.Request.URLPath()
	read := readPolicy(v)
	c.Fetch = func(ctx context.Context, m merge.Member, a merge.MemberRequest) (*merge.Body, error) {
		fetched := maps.Clone(query)
		a.Set(fetched)
		format, h := f, header.Clone()
		if a.Names {
			format = namesFormat
		}
		if c.Bare {
			fetched.Set("includeObject", "Metadata") // otherwise rows could not be matched to objects
		}
		h["Accept"] = []string{format.mediaType}
		var res *apiproxy.UpstreamResponse
		var err error
		if a.Watch || read == readFail {
			res, err = v.get(ctx, m.Name, path, fetched, h, !a.Watch)
		} else { // the list can omit a member that is too slow
			var end func()
			res, end, err = merge.StartInTime(ctx, func(ctx context.Context) (*apiproxy.UpstreamResponse, error) {
				return v.get(ctx, m.Name, path, fetched, h, true)
			})
			if err == nil {
				res.Body = merge.CloseWith(res.Body, end)
			}
		}
		if err != nil {
			return nil, err
		}
		got, ok := codec.ParseFormat(res.Header.Get("Content-Type"))
		if !ok || got.Proto != format.Proto {
			res.Close()
			return nil, merge.ErrMixedFormats
		}
		return &merge.Body{ReadCloser: res.ClosingBody(), Format: format.Format}, nil
	}
	if v.rewriteFor("") != nil {
		c.Fetch = v.rewriting(c.Fetch, f)
	}
	if read == readSkip {
		c.Skip = func(_ merge.Member, err error) bool { return isUnavailable(err) }
	}
	if v.decision.Kind == DecisionSpread {
		key := keyOf(v.Request)
		c.OnObject = func(m merge.Member, namespace, name []byte, here bool) {
			key := key
			key.Namespace, key.Name = string(namespace), string(name)
			if here {
				v.owners.Set(key, m.Name)
			} else {
				v.owners.Delete(key, m.Name)
			}
		}
	}
	return c
}

// namesFormat is the encoding of requests for names.
var namesFormat = acceptedFormat{
	codec.Format{Shape: codec.ShapeMetadata},
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
}

// writeMergedHeaders sets the headers of a merged response, with a Warning for each missing part.
func (s *Router) writeMergedHeaders(v *request, contentType string, left []merge.Member) {
	v.setMergedHeaders(contentType)
	h := v.W.Header()
	for _, text := range v.decision.Warnings {
		h.Add("Warning", warningHeader(text))
	}
	for _, m := range left {
		h.Add("Warning", warningHeader("cluster "+m.Name+" is left out because it did not answer"))
		s.Metrics.PartialResponse(apiproxy.PartialSkip)
	}
}

// warningHeader returns the value of a Warning header.
func warningHeader(text string) string { return "299 mca " + strconv.QuoteToASCII(text) }
