package apiproxy

import (
	"mime"
	"strings"
)

// Creates reports whether r may create an object. Three requests may: a POST to a collection, a server-side
// apply, and an update of a kind that Kubernetes creates if it does not exist. An apply or update creates the
// object only if no cluster has one of that name. A POST to a subresource, such as an eviction, creates
// nothing.
func (r *Request) Creates(contentType string) bool {
	if r.NonResource || r.Subresource != "" {
		return false
	}
	return r.Verb == "create" && r.Name == "" || CreatesWithoutPost(r, contentType)
}

func CreatesWithoutPost(r *Request, contentType string) bool {
	switch {
	case r.NonResource || r.Subresource != "" || r.Name == "":
		return false
	case r.Verb == "patch":
		return isServerSideApply(contentType)
	case r.Verb == "update":
		group, listed := createdByUpdate[r.Resource]
		return listed && group == r.Group || r.Resource == "events" && (r.Group == "" || r.Group == "events.k8s.io")
	}
	return false
}

// isServerSideApply reports whether contentType is that of a server-side apply patch.
func isServerSideApply(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && strings.HasPrefix(media, "application/apply-patch+")
}

// createdByUpdate maps the resources that a PUT creates if they do not exist to their API groups
// (AllowCreateOnUpdate in Kubernetes 1.37). Events are handled separately.
var createdByUpdate = map[string]string{
	"leases": "coordination.k8s.io", "leasecandidates": "coordination.k8s.io",
	"limitranges": "", "endpoints": "", "services": "", "runtimeclasses": "node.k8s.io",
	"roles": "rbac.authorization.k8s.io", "rolebindings": "rbac.authorization.k8s.io",
	"clusterroles": "rbac.authorization.k8s.io", "clusterrolebindings": "rbac.authorization.k8s.io",
}
