package fanout

import (
	"bytes"
	"mime"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
)

// adopted refuses an update that adds an owner from another cluster, as a controller does when it adopts an
// object. The garbage collector of the object's cluster would delete the object as an orphan (AD-11). A
// reference that the object already has is allowed, because a client that deletes the object must be able to
// write it.
func (s *Server) adopted(v *Visit, t *serving.Target) error {
	r, d := v.Request, v.Decision
	if t.Cluster == nil || d.Rule == "" || d.OwnerReferences != document.Follow || v.kinds == nil ||
		r.Verb != "update" && r.Verb != "patch" || r.Subresource != "" && r.Subresource != "status" {
		return nil
	}
	media, _, err := mime.ParseMediaType(v.Out.Header.Get("Content-Type"))
	if err != nil || v.Out.Header.Get("Content-Encoding") != "" {
		return nil // the cluster reports the error
	}
	protobuf := media == "application/vnd.kubernetes.protobuf"
	switch media {
	case "application/json", "application/yaml", "application/apply-patch+yaml", "application/merge-patch+json", "application/strategic-merge-patch+json":
	default:
		if !protobuf {
			return nil
		}
	}
	if err := v.load(); err != nil {
		return err
	}
	if !protobuf && !bytes.Contains(v.body, []byte("ownerReferences")) {
		return nil
	}
	if err := v.peek(); err != nil {
		return err
	}
	ref, owned := v.object.Anchor()
	if !owned || v.object.Involved != nil {
		return nil
	}
	at, err := s.anchor(v)
	if err == nil {
		err = d.KeepTogether(v.object, at)
	}
	if err == nil {
		return nil
	}
	o := &ownership{Server: s, Visit: v, cluster: t.Cluster}
	if had, failed := o.had(ref.UID); failed == nil && had {
		return nil
	}
	return err
}
