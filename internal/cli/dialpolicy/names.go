package dialpolicy

import "regexp"

// Names from a server appear in arguments, file names and commands that people copy. So they may contain only characters that are safe for
// shells and terminals.
var (
	clusterPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:@/-]{0,251}[A-Za-z0-9])?$`)
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// IsClusterName reports whether word is a valid name of a cluster.
func IsClusterName(name string) bool { return clusterPattern.MatchString(name) }

// IsNamespaceName reports whether word is a valid name of a namespace.
func IsNamespaceName(name string) bool { return namespacePattern.MatchString(name) }
