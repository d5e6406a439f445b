package fanout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/merge"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/rewrite"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/shelter"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// fromKey is the annotation with the source cluster of an object in a merged response.
const fromKey = "mca.tailplane.dev/from-cluster"

// maxAnswer limits the size of a rewritten response for one object, in bytes.
const maxAnswer = 16 << 20

// sheltered reports whether owner references of the request's objects are hidden from the cluster.
func (v *Visit) sheltered() bool {
	if v.Decision.OwnerReferences != document.Shelter {
		return false
	}
	switch v.Request.Subresource {
	case "attach", "exec", "log", "portforward", "proxy": // these carry no objects
		return false
	}
	return true
}

// change returns the rewrite of a cluster's objects in a merged collection, or nil if there is none.
func (v *Visit) change(cluster string) rewrite.Change {
	var from rewrite.Change
	if v.Document().Annotate {
		from = rewrite.Annotate(fromKey, cluster)
	}
	switch {
	case !v.sheltered():
		return from
	case from == nil:
		return shelter.Read
	}
	return func(object []byte) []byte { return from(shelter.Read(object)) }
}

// changing wraps ask so that the objects in its responses are rewritten.
func (v *Visit) changing(ask func(context.Context, merge.Member, position.Ask) (*merge.Body, error), f form) func(context.Context, merge.Member, position.Ask) (*merge.Body, error) {
	return func(ctx context.Context, m merge.Member, a position.Ask) (*merge.Body, error) {
		body, err := ask(ctx, m, a)
		switch {
		case err != nil || a.Names:
		case a.Watch:
			body.ReadCloser = rewrite.Events(body.ReadCloser, v.change(m.Name))
		default:
			body.ReadCloser = rewrite.List(body.ReadCloser, f.Shape == wire.Table, v.change(m.Name))
		}
		return body, err
	}
}

// rewritable removes the encodings in which objects cannot be rewritten.
func rewritable(forms []form) []form {
	return slices.DeleteFunc(slices.Clone(forms), func(f form) bool { return f.Proto })
}

// notAcceptable refuses a client that accepts none of the available encodings.
func notAcceptable() error {
	return &apiproxy.Refusal{Status: http.StatusNotAcceptable, Reason: "NotAcceptable", Message: "what is asked for is rewritten, and shown as JSON only"}
}

// shelter hides owner references from the cluster of a target. It moves references to owners in other
// clusters to a place that the garbage collector does not read. It restores them in the response (AD-11).
func (s *Server) shelter(v *Visit, t *serving.Target) error {
	if t.Cluster == nil || !v.sheltered() {
		return nil
	}
	if v.Request.Verb == "watch" {
		return &apiproxy.Refusal{Status: http.StatusBadRequest, Reason: "BadRequest",
			Message: "objects of rule " + v.Decision.Rule + " are not watched by /watch/ and a name; watch the collection with fieldSelector=metadata.name=" + v.Request.Name}
	}
	forms := rewritable(formsOf(v.Out.Header["Accept"]))
	if len(forms) == 0 {
		return notAcceptable()
	}
	accept := make([]string, len(forms))
	for i, f := range forms {
		accept[i] = f.media
	}
	v.Out.Header["Accept"], v.Out.Header["Accept-Encoding"] = []string{strings.Join(accept, ",")}, []string{"identity"}
	learn := t.Heard
	t.Heard = func(res *http.Response) {
		if learn != nil {
			learn(res)
		}
		giveBack(res)
	}
	switch v.Request.Verb {
	case "create", "update", "patch":
		return s.keepOwners(v, t)
	}
	return nil
}

// keepOwners rewrites the body of a write.
func (s *Server) keepOwners(v *Visit, t *serving.Target) error {
	if err := v.load(); err != nil {
		return err
	}
	if encoding := v.Out.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return &apiproxy.Refusal{Status: http.StatusUnsupportedMediaType, Reason: "UnsupportedMediaType",
			Message: fmt.Sprintf("a body in encoding %.40q cannot be rewritten", encoding)}
	}
	if len(v.body) == 0 {
		return nil // the cluster reports the missing body
	}
	far := false
	o := &ownership{Server: s, Visit: v, cluster: t.Cluster}
	body, err := shelter.Write(v.body, v.Out.Header.Get("Content-Type"), func(r apiproxy.OwnerReference) (bool, error) {
		foreign, err := o.foreign(r)
		far = far || foreign
		return foreign, err
	})
	if err != nil {
		return err
	}
	if far {
		t.Warnings = append(t.Warnings, "the object is in "+t.Cluster.Name+" and has owners that are not: no garbage collector will delete it when they are gone")
	}
	v.send(body)
	t.Again = nil // a retry at another cluster would need another rewrite
	return nil
}

// ownership determines which owners a cluster has.
type ownership struct {
	*Server
	*Visit
	cluster *upstream.Cluster
	stored  *metadata // of the stored object; nil: not requested yet
}

// metadata is the part of an object's metadata that concerns ownership.
type metadata struct {
	UID             string                    `json:"uid"`
	OwnerReferences []apiproxy.OwnerReference `json:"ownerReferences"`
}

// foreign reports whether the cluster does not have the owner and never had it. The UID identifies an owner:
// an object with the same name and another UID is not the owner, and the garbage collector would treat the
// object as an orphan.
func (o *ownership) foreign(r apiproxy.OwnerReference) (bool, error) {
	if r.UID == "" || r.Name == "" || r.Kind == "" {
		return false, nil // the cluster refuses such a reference
	}
	key := apiproxy.Key{Group: o.cluster.Name, Namespace: r.UID, Name: r.Name}
	if where, _ := o.uids.Find(key, o.Now()); where != "" {
		return where != o.cluster.Name, nil
	}
	of, known, err := o.kind(r.APIVersion, r.Kind, r.Name, "")
	if err != nil || !known {
		return true, err // the garbage collector ignores unknown kinds
	}
	owner, err := o.look(&of)
	if err != nil {
		return false, err
	}
	here := owner != nil && owner.UID == r.UID
	if !here {
		// The owner may have been deleted in this cluster. Then the object is for its garbage collector.
		if here, err = o.had(r.UID); err != nil {
			return false, err
		}
	}
	where := o.cluster.Name
	if !here {
		where = "-" // never the name of a cluster
	}
	o.uids.Learn(key, where)
	return !here, nil
}

// had reports whether the stored object has an owner with this UID.
func (o *ownership) had(uid string) (bool, error) {
	if o.Request.Name == "" {
		return false, nil // a new object
	}
	if o.stored == nil {
		at := o.Request.Object()
		stored, err := o.look(&at)
		if err != nil {
			return false, err
		}
		if o.stored = stored; stored == nil {
			o.stored = &metadata{}
		}
	}
	return slices.ContainsFunc(o.stored.OwnerReferences, func(r apiproxy.OwnerReference) bool { return r.UID == uid }), nil
}

// look requests an object's metadata from the cluster; nil if it does not exist. An uncertain result is an
// error, because a wrong guess would delete the object or keep it forever.
func (o *ownership) look(r *apiproxy.Request) (*metadata, error) {
	ctx, cancel := context.WithTimeout(o.Out.Context(), probeTime)
	defer cancel()
	res, err := o.cluster.Get(ctx, r.URLPath(), http.Header{"Accept": {partial}, "User-Agent": {o.Out.UserAgent()}})
	if err != nil {
		o.Log.Warn("a cluster could not be asked for an owner", "cluster", o.cluster.Name, "resource", r.Resource, "group", r.Group, "err", err)
		return nil, unavailable("cluster %s could not be asked whether it has the %s %s, an owner of the object", o.cluster.Name, r.Resource, r.Name)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
	case res.StatusCode == http.StatusNotFound:
		return nil, nil
	case res.StatusCode == http.StatusForbidden:
		return nil, &apiproxy.Refusal{Status: http.StatusForbidden, Reason: "Forbidden",
			Message: fmt.Sprintf("cluster %s does not let this pod look whether it has the %s %s, an owner of the object", o.cluster.Name, r.Resource, r.Name)}
	case res.StatusCode == http.StatusOK:
		var object struct {
			Metadata metadata `json:"metadata"`
		}
		if err = json.Unmarshal(b, &object); err == nil {
			return &object.Metadata, nil
		}
	default:
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return nil, unavailable("cluster %s could not say whether it has the %s %s, an owner of the object: %v", o.cluster.Name, r.Resource, r.Name, err)
}

var errNotRewritten = errors.New("an answer that cannot be rewritten")

// giveBack restores the owner references in a response to the form that the client wrote.
func giveBack(res *http.Response) {
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return
	}
	if res.Request != nil && res.Request.Method == http.MethodHead {
		delete(res.Header, "Content-Length") // it is the length of the original body
		return
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if encoding := res.Header.Get("Content-Encoding"); err == nil && (len(b) > maxAnswer || encoding != "" && encoding != "identity") {
		err = errNotRewritten
	}
	delete(res.Header, "Content-Length")
	body := io.Reader(failed{err})
	if err == nil {
		b = rewrite.Answer(b, shelter.Read)
		body, res.ContentLength = bytes.NewReader(b), int64(len(b))
		res.Header["Content-Length"] = []string{fmt.Sprint(len(b))}
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{body, res.Body}
}
