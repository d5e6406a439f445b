package signin

import (
	"context"
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// ClusterWide lists the roles that may be bound in the whole cluster although they reach every
// ServiceAccount. nil means that the list is not configured: all roles may, with a warning.
type ClusterWide []ClusterWideRole

// A ClusterWideRole is an entry of ClusterWide.
type ClusterWideRole struct {
	Role      access.Role
	ByRequest bool // only for an approved access request, so not for a plain sign-in
}

// Refusal returns why a sign-in may not have the role in the whole cluster, or "". reaches is the
// result of ReachesAccounts for the role. byRequest is true for one that uses an access request.
func (c ClusterWide) Refusal(role access.Role, reaches string, byRequest bool) string {
	if reaches == "" || c == nil || slices.Contains(c, ClusterWideRole{Role: role}) || byRequest && slices.Contains(c, ClusterWideRole{role, true}) {
		return ""
	}
	return fmt.Sprintf("The role %q reaches every ServiceAccount when it is bound in the whole cluster: it may %s. signin.clusterWide does not allow it.", role, reaches)
}

// Warning returns a warning about a role that may be bound in the whole cluster only because the list
// is not configured, or "".
func (c ClusterWide) Warning(role access.Role, reaches string) string {
	if reaches == "" || c != nil {
		return ""
	}
	return fmt.Sprintf("The role %q reaches every ServiceAccount when it is bound in the whole cluster: it may %s. It is allowed because signin.clusterWide is not set.", role, reaches)
}

// A clusterWideCheck is the result of checkClusterWide.
type clusterWideCheck struct {
	refusal  *problem.Error // of the first role that needs namespaces; nil: none
	warnings []string       // about the allowed roles, if there is no refusal
}

// checkClusterWide decides about a sign-in to the whole cluster, in which some roles need namespaces. It
// reads roles only for callers with a grant. An error means that the roles cannot be read now.
func (d *Service) checkClusterWide(ctx context.Context, binds access.Binds, byRequest bool) (c clusterWideCheck, err error) {
	for _, b := range binds {
		if !b.IsClusterWide() || d.RoleRules == nil {
			continue
		}
		rules, err := d.RoleRules(ctx, b.Role)
		switch {
		case err != nil && d.ClusterWide == nil:
			continue // the rules of the role only matter for a warning
		case err != nil:
			return clusterWideCheck{}, unavailable(err)
		}
		reaches := ReachesAccounts(rules)
		if refusal := d.ClusterWide.Refusal(b.Role, reaches, byRequest); refusal != "" {
			return clusterWideCheck{refusal: problem.New(problem.RoleNeedsNamespaces, refusal,
				fmt.Sprintf("Sign in to the namespaces that you need: tka login --role %s --namespace NAME", b.Role),
				"Ask an administrator to name namespaces in the grant, or to list the role in signin.clusterWide.")}, nil
		}
		if warning := d.ClusterWide.Warning(b.Role, reaches); warning != "" {
			c.warnings = append(c.warnings, warning)
		}
	}
	return c, nil
}

// requireClusterWide returns the refusal of checkClusterWide as an error.
func (d *Service) requireClusterWide(ctx context.Context, binds access.Binds, byRequest bool) error {
	check, err := d.checkClusterWide(ctx, binds, byRequest)
	if err == nil && check.refusal != nil {
		return check.refusal
	}
	return err
}

// explainClusterWide adds to w which of its rules for the whole cluster the server refuses, and the
// warnings about the others.
func (d *Service) explainClusterWide(ctx context.Context, rules []access.ExplainedRule, w *Whoami) error {
	for i, r := range rules {
		if r.Problem != "" {
			continue
		}
		check, err := d.checkClusterWide(ctx, r.Binds, false)
		if err != nil {
			return err
		}
		if refused := check.refusal; refused != nil {
			w.Rules[i].Problem = refused.Message
			if r.Chosen {
				w.Decision = Decision{Code: refused.Code, Message: refused.Message, Advice: refused.Advice}
			}
		}
		for _, warning := range check.warnings {
			if w.Decision.Allowed && !slices.Contains(w.Decision.Advice, warning) {
				w.Decision.Advice = append(w.Decision.Advice, warning)
			}
		}
	}
	return nil
}
