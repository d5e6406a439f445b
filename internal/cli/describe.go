package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/signin"
)

// describeAccess formats the roles of a sign-in for a sentence. bind is set if there are several roles or a selector.
func describeAccess(role string, namespaces []string, bind []signin.Role) string {
	if len(bind) > 0 {
		return "the roles " + signin.DescribeRoles(bind)
	}
	return fmt.Sprintf("the role %s in %s", role, describeNamespaces(namespaces))
}

// describePlaces formats the namespaces of a sign-in for a table.
func describePlaces(namespaces []string, bind []signin.Role) string {
	if len(bind) == 0 {
		return cmp.Or(strings.Join(slices.Sorted(slices.Values(namespaces)), ", "), "all")
	}
	return strings.Join(mapped(bind, func(r signin.Role) string {
		places := cmp.Or(strings.Join(r.Namespaces, ", "), "all")
		if r.Selector != "" {
			places = strings.Trim(strings.Join(r.Namespaces, ", ")+" with "+r.Selector, " ")
		}
		return r.Role + ": " + places
	}), "; ")
}
