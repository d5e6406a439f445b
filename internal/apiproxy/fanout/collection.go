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

// Collection answers a list or a watch of what several clusters keep. Nothing
// was answered when it returns an error.
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

// otherForm says whether members did not answer, or not alike, in the form that
// they were asked for.
func otherForm(err error) bool {
	status, ok := errors.AsType[*wire.Status](err)
	return errors.Is(err, merge.ErrForms) || ok && status.Code == http.StatusNotAcceptable
}

// served leaves out protobuf where some member is known not to have it: custom
// resources have none, and clients that prefer it would ask twice each time.
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

// maxPlain bounds the resources that are remembered.
const maxPlain = 1024

func (s *Server) remember(r *apiproxy.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plain == nil || len(s.plain) >= maxPlain {
		s.plain = map[string]bool{}
	}
	s.plain[r.Group+"/"+r.Resource] = true
}

// collection prepares what is merged, in one form.
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
			asked.Set("includeObject", "Metadata") // or nobody could say which object a row is
		}
		h["Accept"] = []string{form.media}
		var answer *upstream.Answer
		var err error
		if a.Watch || read == readFail {
			answer, err = v.ask(ctx, m.Name, path, asked, h, !a.Watch)
		} else { // the list goes on without a member that is too slow
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

// form0 is that of names.
var form0 = form{wire.Form{Shape: wire.Metadata}, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}

// head fills in the header of an answer that is merged, with what is missing in it.
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

// warning is the value of a Warning header.
func warning(text string) string { return "299 mca " + strconv.QuoteToASCII(text) }
