package multicluster

import (
	"bytes"
	"mime"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// checkAdoption refuses an update that adds an owner from another cluster, as a controller does when it adopts an
// object. The garbage collector of the object's cluster would delete the object as an orphan (AD-11). A
// reference that the object already has is allowed, because a client that deletes the object must be able to
// write it.
func (s *Router) checkAdoption(v *request, up *apiproxy.Upstream) error {
	r, d := v.Request, v.decision
	if d.Rule == "" || d.OwnerReferences != config.FollowOwners || v.discovery == nil ||
		r.Verb != "update" && r.Verb != "patch" || r.Subresource != "" && r.Subresource != "status" {
		return nil
	}
	media, _, err := mime.ParseMediaType(v.Out.Header.Get("Content-Type"))
	if err != nil || v.Out.Header.Get("Content-Encoding") != "" {
		return nil // the cluster reports the error
	}
	protobuf := media == "application/vnd.kubernetes.protobuf"
	switch media {
	case "application/json",
		"application/yaml",
		"application/apply-patch+yaml",
		"application/merge-patch+json",
		"application/strategic-merge-patch+json":
	default:
		if !protobuf {
			return nil
		}
	}
	if err := v.readBody(); err != nil {
		return err
	}
	if !protobuf && !bytes.Contains(v.body, []byte("ownerReferences")) {
		return nil
	}
	if err := v.parseBody(); err != nil {
		return err
	}
	ref, owned := v.object.anchor()
	if !owned || v.object.InvolvedObject != nil {
		return nil
	}
	anchorCluster, err := s.anchorCluster(v)
	if err == nil {
		err = d.checkSeparation(v.object, anchorCluster)
	}
	if err == nil {
		return nil
	}
	o := &ownerLookup{Router: s, request: v, cluster: up}
	if hadOwner, failed := o.hadOwner(ref.UID); failed == nil && hadOwner {
		return nil
	}
	return err
}
