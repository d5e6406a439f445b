package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// Reasons of the condition Approved.
const (
	ReasonMerged          = "Merged"          // stored by a person or program that may write enrollments
	ReasonApproved        = "Approved"        // by the plane
	ReasonNotApproved     = "NotApproved"     // not approved yet
	ReasonApprovalVoid    = "ApprovalVoid"    // changed since the approval
	ReasonApproverIsOwn   = "ApproverIsOwn"   // the approver belongs to the organisation
	ReasonApproverIsNoOne = "ApproverIsNoOne" // the approver may not approve
)

// Digest returns the hash of everything that an approval covers: the name and the spec of e,
// without its owners, its members and the approval itself.
func Digest(e *v1alpha1.RunnerEnrollment) string {
	s := e.Spec.DeepCopy()
	s.Owners, s.Members, s.Approval = nil, nil, nil
	b, err := json.Marshal(struct {
		Name string
		Spec *v1alpha1.RunnerEnrollmentSpec
	}{e.Name, s})
	if err != nil {
		panic(fmt.Sprintf("digest of enrollment %s: %v", e.Name, err)) // the spec was decoded from JSON
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// IsMember reports whether a login is an owner or a member of the organisation. It compares logins
// without regard to case. The entry *@example.com matches every login of that domain.
func IsMember(e *v1alpha1.RunnerEnrollment, login string) bool {
	return slices.ContainsFunc(slices.Concat(e.Spec.Owners, e.Spec.Members), func(entry string) bool {
		if domain, any := strings.CutPrefix(entry, "*@"); any {
			at := strings.LastIndexByte(login, '@')
			return at > 0 && strings.EqualFold(login[at+1:], domain)
		}
		return strings.EqualFold(entry, login)
	})
}

// Approved reports whether the operator may act on an enrollment. If git approves (byPlane is
// false), a stored enrollment is approved: only those who apply merged changes can store it. If the
// plane approves, a platform-admin must have approved the current content. The approver must not
// belong to the organisation.
func Approved(e *v1alpha1.RunnerEnrollment, byPlane bool, isAdmin func(login string) bool) Condition {
	c := Condition{Type: "Approved", Status: No}
	a := e.Spec.Approval
	switch {
	case !byPlane:
		c.Status, c.Reason, c.Message = Yes, ReasonMerged, "Write access to enrollments counts as approval."
	case a == nil:
		c.Reason, c.Message = ReasonNotApproved, "It is not approved yet."
	case IsMember(e, a.By):
		c.Reason, c.Message = ReasonApproverIsOwn, "Its approver is a member of the organisation."
	case !isAdmin(a.By):
		c.Reason, c.Message = ReasonApproverIsNoOne, "Its approver is not a platform-admin."
	case a.Digest != Digest(e):
		c.Reason, c.Message = ReasonApprovalVoid, "It was changed after its approval."
	default:
		c.Status, c.Reason, c.Message = Yes, ReasonApproved, "Approved by "+a.By+"."
	}
	return c
}
