package fanout

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/merge"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// Collection serves a list or watch of a collection that several clusters hold. If it returns an error, it
// has written nothing.
func (s *Server) Collection(w http.ResponseWriter, v *Visit) error {
	forms := formsOf(v.Out.Header["Accept"])
	if v.change("") != nil {
		if forms = rewritable(forms); len(forms) == 0 {
			return notAcceptable()
		}
	}
	forms = s.served(v.Request, forms)
	query := v.Out.URL.Query()
	q := position.ParseQuery(query, v.Request.Verb == "watch")
	var last error
	for _, f := range forms {
		c, release := s.collection(v, query, f)
		var err error
		if q.Watch {
			err = s.watch(w, v, c, q, f)
		} else {
			err = s.list(w, v, c, q)
		}
		release()
		if !otherForm(err) {
			if err != nil {
				return v.fail(w, v.lacking(err))
			}
			return nil
		}
		if f.Proto {
			s.remember(v.Request)
		}
		last = err
	}
	if status, ok := errors.AsType[*wire.Status](last); ok {
		v.tell(w, status)
		return nil
	}
	return &apiproxy.Refusal{Status: http.StatusNotAcceptable, Reason: "NotAcceptable",
		Message: "what several clusters keep is shown as JSON, protobuf, Table or PartialObjectMetadataList only"}
}

// otherForm reports whether members could not answer in the requested encoding, or answered in different
// ones.
func otherForm(err error) bool {
	status, ok := errors.AsType[*wire.Status](err)
	return errors.Is(err, merge.ErrForms) || ok && status.Code == http.StatusNotAcceptable
}

// served removes protobuf if a member is known not to support it for this resource. Custom resources have no
// protobuf, and clients that prefer it would otherwise cause two requests each time.
func (s *Server) served(r *apiproxy.Request, forms []form) []form {
	s.mu.Lock()
	without := s.plain[r.Group+"/"+r.Resource]
	s.mu.Unlock()
	if !without {
		return forms
	}
	var rest []form
	for _, f := range forms {
		if !f.Proto {
			rest = append(rest, f)
		}
	}
	if len(rest) == 0 {
		return forms
	}
	return rest
}

// maxPlain limits the number of cached resources.
const maxPlain = 1024

func (s *Server) remember(r *apiproxy.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plain == nil || len(s.plain) >= maxPlain {
		s.plain = map[string]bool{}
	}
	s.plain[r.Group+"/"+r.Resource] = true
}

// collection prepares the merge in one encoding. The caller must call the returned function when it is done.
func (s *Server) collection(v *Visit, query url.Values, f form) (*merge.Collection, func()) {
	doc, place := v.Document(), v.place()
	c := &merge.Collection{
		Epoch: place.Epoch, Width: place.Width, Spread: v.Decision.Kind == apiproxy.Spread || v.Decision.Overlap,
		Buffers: &s.buffers,
		Bare:    f.Shape == wire.Table && query.Get("includeObject") == "None",
		Hash:    position.CollectionHash(v.Request.URLPath(), query.Get("labelSelector"), query.Get("fieldSelector")),
	}
	for _, m := range v.Decision.Members {
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
	c.Ask = func(ctx context.Context, m merge.Member, a position.Ask) (*merge.Body, error) {
		asked := maps.Clone(query)
		a.Set(asked)
		form, h := f, header.Clone()
		if a.Names {
			form = form0
		}
		if c.Bare {
			asked.Set("includeObject", "Metadata") // otherwise rows could not be matched to objects
		}
		h["Accept"] = []string{form.media}
		var answer *upstream.Answer
		var err error
		if a.Watch || read == readFail {
			answer, err = v.ask(ctx, m.Name, path, asked, h, !a.Watch)
		} else { // the list can omit a member that is too slow
			var end func()
			answer, end, err = merge.InTime(ctx, func(ctx context.Context) (*upstream.Answer, error) { return v.ask(ctx, m.Name, path, asked, h, true) })
			if err == nil {
				answer.Body = merge.Ending(answer.Body, end)
			}
		}
		if err != nil {
			return nil, err
		}
		got, ok := wire.ParseForm(answer.Header.Get("Content-Type"))
		if !ok || got.Proto != form.Proto {
			answer.Close()
			return nil, merge.ErrForms
		}
		return &merge.Body{ReadCloser: answer.Whole(), Form: form.Form}, nil
	}
	if v.change("") != nil {
		c.Ask = v.changing(c.Ask, f)
	}
	if read == readSkip {
		c.Skip = func(_ merge.Member, err error) bool { return down(err) }
	}
	if v.Decision.Kind == apiproxy.Spread {
		key := v.Request.Key()
		c.Learn = func(m merge.Member, namespace, name []byte, here bool) {
			key := key
			key.Namespace, key.Name = string(namespace), string(name)
			if here {
				v.owners.Learn(key, m.Name)
			} else {
				v.owners.Forget(key, m.Name)
			}
		}
	}
	ring, release := s.ring(c.Hash + " " + strconv.FormatInt(doc.Epoch, 10))
	c.Ring = ring
	return c, release
}

// form0 is the encoding of requests for names.
var form0 = form{wire.Form{Shape: wire.Metadata}, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}

// head sets the headers of a merged response, with a Warning for each missing part.
func (s *Server) head(w http.ResponseWriter, v *Visit, contentType string, left []merge.Member) {
	setHead(w, contentType)
	h := w.Header()
	for _, text := range v.Decision.Warnings {
		h.Add("Warning", warning(text))
	}
	for _, m := range left {
		h.Add("Warning", warning("cluster "+m.Name+" left out: it did not answer"))
		s.Metrics.AnsweredInPart(observe.PartialSkip)
	}
}

// warning returns the value of a Warning header.
func warning(text string) string { return "299 mca " + strconv.QuoteToASCII(text) }
