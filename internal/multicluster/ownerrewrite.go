package multicluster

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
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/multicluster/config"
	"github.com/tailplane/tailplane/internal/multicluster/merge"
)

// fromClusterAnnotation is the annotation with the source cluster of an object in a merged response.
const fromClusterAnnotation = "mca.tailplane.dev/from-cluster"

// maxRewritten limits the size of a rewritten response for one object, in bytes.
const maxRewritten = 16 << 20

// hidesOwners reports whether owner references of the request's objects are hidden from the cluster.
func (v *request) hidesOwners() bool {
	return v.decision.OwnerReferences == config.HideOwners && !v.Request.HasStreamSubresource() // streams carry no objects
}

// rewriteFor returns the rewrite of a cluster's objects in a merged collection, or nil if there is none.
func (v *request) rewriteFor(cluster string) objectChange {
	var from objectChange
	if v.Config().Annotate {
		from = annotateObject(fromClusterAnnotation, cluster)
	}
	switch {
	case !v.hidesOwners():
		return from
	case from == nil:
		return restoreOwnerReferences
	}
	return func(object []byte) []byte { return from(restoreOwnerReferences(object)) }
}

// rewriting wraps fetch so that the objects in its responses are rewritten.
func (v *request) rewriting(
	fetch func(context.Context, merge.Member, merge.MemberRequest) (*merge.Body, error),
	f acceptedFormat,
) func(context.Context, merge.Member, merge.MemberRequest) (*merge.Body, error) {
	return func(ctx context.Context, m merge.Member, a merge.MemberRequest) (*merge.Body, error) {
		body, err := fetch(ctx, m, a)
		switch {
		case err != nil || a.Names:
		case a.Watch:
			body.ReadCloser = rewriteEvents(body.ReadCloser, v.rewriteFor(m.Name))
		default:
			body.ReadCloser = rewriteList(body.ReadCloser, f.Shape == codec.ShapeTable, v.rewriteFor(m.Name))
		}
		return body, err
	}
}

// jsonFormats removes protobuf, in which the adapter cannot rewrite objects.
func jsonFormats(formats []acceptedFormat) []acceptedFormat {
	return slices.DeleteFunc(slices.Clone(formats), func(f acceptedFormat) bool { return f.Proto })
}

// notAcceptable refuses a client that accepts none of the available encodings.
func notAcceptable() error {
	return apiproxy.NewRefusal(http.StatusNotAcceptable, "the adapter rewrites this response, which is available only as JSON")
}

// hideOwners hides owner references from the cluster that receives the request. It moves references to owners in other
// clusters to a place that the garbage collector does not read. [request.relay] restores them in the response (AD-11).
func (s *Router) hideOwners(v *request, up *apiproxy.Upstream) error {
	if !v.hidesOwners() {
		return nil
	}
	if v.Request.Verb == "watch" {
		return watchWithName(v.decision.Rule, v.Request.Name)
	}
	formats := jsonFormats(parseAccept(v.Out.Header["Accept"]))
	if len(formats) == 0 {
		return notAcceptable()
	}
	accept := make([]string, len(formats))
	for i, f := range formats {
		accept[i] = f.mediaType
	}
	v.Out.Header["Accept"], v.Out.Header["Accept-Encoding"] = []string{strings.Join(accept, ",")}, []string{"identity"}
	switch v.Request.Verb {
	case "create", "update", "patch":
		return s.hideOwnersInBody(v, up)
	}
	return nil
}

// hideOwnersInBody rewrites the body of a write.
func (s *Router) hideOwnersInBody(v *request, up *apiproxy.Upstream) error {
	if err := v.readBody(); err != nil {
		return err
	}
	if encoding := v.Out.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "a body in encoding %.40q cannot be rewritten", encoding)
	}
	if len(v.body) == 0 {
		return nil // the cluster reports the missing body
	}
	hasForeign := false
	o := &ownerLookup{Router: s, request: v, cluster: up}
	body, err := hideOwnerReferences(v.body, v.Out.Header.Get("Content-Type"), func(r ownerReference) (bool, error) {
		foreign, err := o.isForeign(r)
		hasForeign = hasForeign || foreign
		return foreign, err
	})
	if err != nil {
		return err
	}
	if hasForeign {
		v.warnings = append(v.warnings,
			"the object is in "+up.Name+" and has owners in other clusters: no garbage collector deletes it after they are deleted")
	}
	v.setBody(body)
	v.rewritten = true
	return nil
}

// ownerLookup determines which owners a cluster has.
type ownerLookup struct {
	*Router
	*request
	cluster *apiproxy.Upstream
	stored  *ownerMetadata // of the stored object; nil: not requested yet
}

// ownerMetadata is the part of an object's metadata that concerns ownership.
type ownerMetadata struct {
	UID             string           `json:"uid"`
	OwnerReferences []ownerReference `json:"ownerReferences"`
}

// isForeign reports whether the cluster does not have the owner and never had it. The UID identifies an owner:
// an object with the same name and another UID is not the owner, and the garbage collector would treat the
// object as an orphan.
func (o *ownerLookup) isForeign(r ownerReference) (bool, error) {
	if r.UID == "" || r.Name == "" || r.Kind == "" {
		return false, nil // the cluster refuses such a reference
	}
	key := ObjectKey{Group: o.cluster.Name, Namespace: r.UID, Name: r.Name}
	if where, _ := o.uids.Get(key, o.Now()); where != "" {
		return where != o.cluster.Name, nil
	}
	of, known, err := o.requestForKind(r.APIVersion, r.Kind, r.Name, "")
	if err != nil || !known {
		return true, err // the garbage collector ignores unknown kinds
	}
	owner, err := o.getMetadata(&of)
	if err != nil {
		return false, err
	}
	here := owner != nil && owner.UID == r.UID
	if !here {
		// The owner may have been deleted in this cluster. Then the object is for its garbage collector.
		if here, err = o.hadOwner(r.UID); err != nil {
			return false, err
		}
	}
	where := o.cluster.Name
	if !here {
		where = "-" // never the name of a cluster
	}
	o.uids.Set(key, where)
	return !here, nil
}

// hadOwner reports whether the stored object has an owner with this UID.
func (o *ownerLookup) hadOwner(uid string) (bool, error) {
	if o.Request.Name == "" {
		return false, nil // a new object
	}
	if o.stored == nil {
		anchorCluster := o.Request.ObjectRequest()
		stored, err := o.getMetadata(&anchorCluster)
		if err != nil {
			return false, err
		}
		if o.stored = stored; stored == nil {
			o.stored = &ownerMetadata{}
		}
	}
	return slices.ContainsFunc(o.stored.OwnerReferences, func(r ownerReference) bool { return r.UID == uid }), nil
}

// getMetadata requests an object's metadata from the cluster; nil if it does not exist. An uncertain result is an
// error, because a wrong guess would delete the object or keep it forever.
func (o *ownerLookup) getMetadata(r *apiproxy.Request) (*ownerMetadata, error) {
	ctx, cancel := context.WithTimeout(o.Out.Context(), probeTimeout)
	defer cancel()
	res, err := o.cluster.Get(ctx, r.URLPath(), http.Header{"Accept": {partialMetadata}, "User-Agent": {o.Out.UserAgent()}})
	if err != nil {
		o.Log.Warn(
			"a cluster did not answer a request for an owner",
			"cluster",
			o.cluster.Name,
			"resource",
			r.Resource,
			"group",
			r.Group,
			"err",
			err,
		)
		return nil, unavailable(
			"cluster %s did not answer whether it has the %s %s, an owner of the object",
			o.cluster.Name,
			r.Resource,
			r.Name,
		)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxRewritten))
	switch {
	case err != nil:
	case res.StatusCode == http.StatusNotFound:
		return nil, nil
	case res.StatusCode == http.StatusForbidden:
		return nil, apiproxy.NewRefusal(
			http.StatusForbidden,
			"cluster %s does not allow this pod to check whether it has the %s %s, an owner of the object",
			o.cluster.Name,
			r.Resource,
			r.Name,
		)
	case res.StatusCode == http.StatusOK:
		var object struct {
			Metadata ownerMetadata `json:"metadata"`
		}
		if err = json.Unmarshal(b, &object); err == nil {
			return &object.Metadata, nil
		}
	default:
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return nil, unavailable(
		"the request to cluster %s for the %s %s, an owner of the object, failed: %v",
		o.cluster.Name,
		r.Resource,
		r.Name,
		err,
	)
}

var errNotRewritten = errors.New("the answer cannot be rewritten")

// restoreOwners restores the owner references in a response to the form that the client wrote.
func restoreOwners(res *http.Response) {
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return
	}
	if res.Request != nil && res.Request.Method == http.MethodHead {
		delete(res.Header, "Content-Length") // it is the length of the original body
		return
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxRewritten+1))
	if encoding := res.Header.Get("Content-Encoding"); err == nil && (len(b) > maxRewritten || encoding != "" && encoding != "identity") {
		err = errNotRewritten
	}
	delete(res.Header, "Content-Length")
	body := io.Reader(failedReader{err})
	if err == nil {
		b = rewriteResponse(b, restoreOwnerReferences)
		body, res.ContentLength = bytes.NewReader(b), int64(len(b))
		res.Header["Content-Length"] = []string{fmt.Sprint(len(b))}
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{body, res.Body}
}
