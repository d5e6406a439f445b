package signin

import (
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
)

// holdOf returns why no new sign-in may have b, or "": its role needs an access request, or namespaces.
func (f Facts) holdOf(b access.Bind) (reason, message string) {
	if n := f.Rules.Requests.Floor[b.Role]; n > 0 && f.ByRequest.Name == "" {
		return ReasonApprovalRequired, fmt.Sprintf("The role %q needs an access request with at least %d approvals: requests.floor says so.", b.Role, n)
	}
	if !b.IsClusterWide() {
		return "", ""
	}
	if message := f.Rules.ClusterWide.Refusal(b.Role, f.Roles[b.Role].Reaches, f.ByRequest.Name != ""); message != "" {
		return ReasonRoleNeedsNamespaces, message
	}
	return "", ""
}

// hold returns why no new sign-in may have one of the roles, or "".
func (f Facts) hold() (reason, message string) {
	for _, b := range f.Binds {
		if reason, message := f.holdOf(b); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

// isHeld reports whether no new sign-in may have one of the roles.
func (f Facts) isHeld() bool {
	reason, _ := f.hold()
	return reason != ""
}

// isFrozen reports whether roles are bound that may no longer be: their rules, signin.clusterWide or
// requests.floor changed. Such a sign-in keeps its access until its present end, and nothing extends
// it. Whether they are bound show the bindings, not the status.
func (f Facts) isFrozen() bool {
	if !f.isHeld() || f.ValidUntil.IsZero() || f.ServiceAccountUID == "" || !f.isAccountIntact() {
		return false
	}
	for i, name := range BindingNames(f.Name, f.Binds) {
		wanted := f.Binds[i]
		isBound := func(b Binding) bool {
			return b == Binding{b.Namespace, name, b.UID, wanted.Role, f.Name, f.UID} && (b.Namespace == "") == wanted.IsClusterWide()
		}
		if reason, _ := f.holdOf(wanted); reason != "" && !slices.ContainsFunc(f.Bindings, isBound) {
			return false
		}
	}
	return true
}
