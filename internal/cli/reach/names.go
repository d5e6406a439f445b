package reach

import "regexp"

// Names from a server appear in arguments, file names and commands that people copy. So they may contain only characters that are safe for
// shells and terminals.
var (
	clusterForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:@/-]{0,251}[A-Za-z0-9])?$`)
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// IsCluster reports whether word is a valid name of a cluster.
func IsCluster(word string) bool { return clusterForm.MatchString(word) }

// IsNamespace reports whether word is a valid name of a namespace.
func IsNamespace(word string) bool { return namespaceForm.MatchString(word) }
