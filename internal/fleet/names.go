package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// maxWorkload is the maximum length of a workload name. ARC appends a suffix to it for the names of
// pods.
const maxWorkload = 45

// SharedNamespace is the default namespace for the runners of organisations with isolation None.
const SharedNamespace = "tailplane-runners"

// OrgNamespace returns the name of an organisation's own namespace.
func OrgNamespace(org string) string { return "tailplane-org-" + org }

// NamespaceOf returns the namespace for the runners of an enrollment.
func NamespaceOf(e *v1alpha1.RunnerEnrollment, shared string) string {
	switch e.Spec.Isolation {
	case v1alpha1.IsolationNamespace, v1alpha1.IsolationNode:
		return OrgNamespace(e.Name)
	}
	return shared
}

// WorkloadName returns the name of the workload that runs a pool's jobs for one organisation. At
// GitHub it is also the name of the scale set. Revisions start at 1. A change that is not possible
// in place creates a workload with the next revision.
func WorkloadName(org, pool string, revision int) string {
	name := org + "-" + pool
	if revision > 1 {
		name += "-r" + strconv.Itoa(revision)
	}
	if len(name) <= maxWorkload {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:maxWorkload-9], "-") + "-" + hex.EncodeToString(sum[:4])
}

// NextWorkloadName returns the name and the revision of a new workload: the first revision above after
// whose name is not taken.
func NextWorkloadName(org, pool string, after int, taken []string) (name string, revision int) {
	for revision = after + 1; ; revision++ {
		if name = WorkloadName(org, pool, revision); !slices.Contains(taken, name) {
			return name, revision
		}
	}
}

// CredentialName returns the name of a copy of a credential. A new credential gets a new copy,
// because ARC reads a Secret again only when its name changes.
func CredentialName(org, fingerprint string) string {
	return org + "-" + fingerprint[:min(len(fingerprint), 8)]
}

// Fingerprint returns a hash that identifies the data of a credential. It reveals nothing about the
// data, because the data contains a key that cannot be guessed.
func Fingerprint(data map[string][]byte) string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(data)) {
		for _, part := range [][]byte{[]byte(k), data[k]} {
			h.Write([]byte(strconv.Itoa(len(part)) + ":"))
			h.Write(part)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// RunsOn returns the labels or tags of a pool for one organisation.
func RunsOn(pool *v1alpha1.RunnerPool, org string) []string {
	labels := make([]string, len(pool.Spec.RunsOn))
	for i, l := range pool.Spec.RunsOn {
		labels[i] = strings.ReplaceAll(l, "{org}", org)
	}
	return labels
}

// A ConfigURL is a parsed and normalised URL. Equal places have equal values.
type ConfigURL struct {
	Origin string   // scheme, host and port, in lower case
	Path   []string // in lower case
}

// ParseConfigURL parses the URL of a forge, an organisation or a group. It returns false if the URL is
// not valid for that.
func ParseConfigURL(s string) (ConfigURL, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" {
		return ConfigURL{}, false
	}
	p := ConfigURL{Origin: strings.ToLower(u.Scheme) + "://" + strings.ToLower(u.Hostname())}
	if port := u.Port(); port != "" && port != map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)] {
		p.Origin += ":" + port
	}
	// An unclean path is an alias of a clean one, so ParseConfigURL refuses it.
	trimmed := strings.Trim(u.Path, "/")
	if trimmed != "" && path.Clean(trimmed) != trimmed {
		return ConfigURL{}, false
	}
	if trimmed != "" {
		p.Path = strings.Split(strings.ToLower(trimmed), "/")
	}
	return p, true
}

// Within returns the path segments of p below a forge, and whether p is below it.
func (p ConfigURL) Within(forge ConfigURL) ([]string, bool) {
	n := len(forge.Path)
	if p.Origin != forge.Origin || len(p.Path) <= n || !slices.Equal(p.Path[:n], forge.Path) {
		return nil, false
	}
	return p.Path[n:], true
}

// String returns the same text for all URLs with the same meaning.
func (p ConfigURL) String() string { return p.Origin + "/" + strings.Join(p.Path, "/") }
