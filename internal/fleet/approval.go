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
	ReasonMerged          = "Merged"          // by whoever may write enrollments
	ReasonApproved        = "Approved"        // by the plane
	ReasonNotApproved     = "NotApproved"     // nobody has
	ReasonApprovalVoid    = "ApprovalVoid"    // it was changed since
	ReasonApproverIsOwn   = "ApproverIsOwn"   // by somebody of the organisation itself
	ReasonApproverIsNoOne = "ApproverIsNoOne" // by somebody who may not
)

// Digest is of what an approval is about: everything but who owns and belongs to the
// organisation, and the approval itself.
func Digest(e *v1alpha1.RunnerEnrollment) string {
	s := e.Spec.DeepCopy()
	s.Owners, s.Members, s.Approval = nil, nil, nil
	b, err := json.Marshal(struct {
		Name string
		Spec *v1alpha1.RunnerEnrollmentSpec
	}{e.Name, s})
	if err != nil {
		panic(fmt.Sprintf("digest of enrollment %s: %v", e.Name, err)) // it came from JSON
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Belongs says whether a login is one of an organisation's owners or members. Logins
// are compared as they are, and *@example.com is everybody there.
func Belongs(e *v1alpha1.RunnerEnrollment, login string) bool {
	return slices.ContainsFunc(slices.Concat(e.Spec.Owners, e.Spec.Members), func(entry string) bool {
		if domain, any := strings.CutPrefix(entry, "*@"); any {
			at := strings.LastIndexByte(login, '@')
			return at > 0 && strings.EqualFold(login[at+1:], domain)
		}
		return strings.EqualFold(entry, login)
	})
}

// Approved says whether an enrollment may be acted upon. Where git approves, being
// stored is enough: only those who apply what was merged can store it. Where the
// plane approves, a platform-admin must have approved what it says now, who is nobody
// of the organisation itself.
func Approved(e *v1alpha1.RunnerEnrollment, byPlane bool, isAdmin func(login string) bool) Condition {
	c := Condition{Type: "Approved", Status: No}
	a := e.Spec.Approval
	switch {
	case !byPlane:
		c.Status, c.Reason, c.Message = Yes, ReasonMerged, "Whoever may write enrollments has written it."
	case a == nil:
		c.Reason, c.Message = ReasonNotApproved, "Nobody has approved it."
	case Belongs(e, a.By):
		c.Reason, c.Message = ReasonApproverIsOwn, "Who approved it belongs to the organisation."
	case !isAdmin(a.By):
		c.Reason, c.Message = ReasonApproverIsNoOne, "Who approved it is no platform-admin."
	case a.Digest != Digest(e):
		c.Reason, c.Message = ReasonApprovalVoid, "It was changed after it was approved."
	default:
		c.Status, c.Reason, c.Message = Yes, ReasonApproved, "Approved by "+a.By+"."
	}
	return c
}
