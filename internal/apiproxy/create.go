package apiproxy

import (
	"mime"
	"strings"
)

// Creates says whether r may make an object: a POST to a collection, a
// server-side apply, or an update of a kind that Kubernetes makes if it is not
// there. One that has a name makes it only if nobody has it. A POST to the
// subresource of an object, such as an eviction, makes none.
func (r *Request) Creates(contentType string) bool {
	if r.NonResource || r.Subresource != "" {
		return false
	}
	return r.Verb == "create" && r.Name == "" || createsWithoutPost(r, contentType)
}

func createsWithoutPost(r *Request, contentType string) bool {
	switch {
	case r.NonResource || r.Subresource != "" || r.Name == "":
		return false
	case r.Verb == "patch":
		return Applies(contentType)
	case r.Verb == "update":
		group, listed := createdByUpdate[r.Resource]
		return listed && group == r.Group || r.Resource == "events" && (r.Group == "" || r.Group == "events.k8s.io")
	}
	return false
}

// Applies says whether a patch of that type is a server-side apply.
func Applies(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && strings.HasPrefix(media, "application/apply-patch+")
}

// createdByUpdate are, with their groups, the kinds that a PUT makes if they are
// not there (AllowCreateOnUpdate in Kubernetes 1.37), but for events.
var createdByUpdate = map[string]string{
	"leases": "coordination.k8s.io", "leasecandidates": "coordination.k8s.io",
	"limitranges": "", "endpoints": "", "services": "", "runtimeclasses": "node.k8s.io",
	"roles": "rbac.authorization.k8s.io", "rolebindings": "rbac.authorization.k8s.io",
	"clusterroles": "rbac.authorization.k8s.io", "clusterrolebindings": "rbac.authorization.k8s.io",
}
