package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// maxWorkload is how long the name of a workload can be: ARC appends to it what
// makes the name of a pod.
const maxWorkload = 45

// SharedNamespace is where the runners of organisations with isolation None are, if
// the settings do not say otherwise.
const SharedNamespace = "tailplane-runners"

// OrgNamespace is the namespace of an organisation's own.
func OrgNamespace(org string) string { return "tailplane-org-" + org }

// NamespaceOf is where the runners of an enrollment are.
func NamespaceOf(e *v1alpha1.RunnerEnrollment, shared string) string {
	switch e.Spec.Isolation {
	case v1alpha1.IsolationNamespace, v1alpha1.IsolationNode:
		return OrgNamespace(e.Name)
	}
	return shared
}

// WorkloadName is the name of what runs a pool's jobs of one organisation, and of
// its scale set at GitHub. What cannot be changed in place gets another revision
// beside the first, which is 1.
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

// NextWorkload is the name and the revision of another workload beside those that
// have names: the first revision above after that nobody has.
func NextWorkload(org, pool string, after int, taken []string) (name string, revision int) {
	for revision = after + 1; ; revision++ {
		if name = WorkloadName(org, pool, revision); !slices.Contains(taken, name) {
			return name, revision
		}
	}
}

// CredentialName is the name of the copy of a credential: another credential has
// another copy, for ARC reads a Secret only when the name of it changes.
func CredentialName(org, fingerprint string) string {
	return org + "-" + fingerprint[:min(len(fingerprint), 8)]
}

// Fingerprint tells the data of a credential from other data. It says nothing about
// it: the data has a key in it that cannot be guessed.
func Fingerprint(data map[string][]byte) string {
	h := sha256.New()
	keys := make([]string, 0, len(data))
	for k := range data {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		for _, part := range [][]byte{[]byte(k), data[k]} {
			h.Write([]byte(strconv.Itoa(len(part)) + ":"))
			h.Write(part)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// RunsOn are the labels or tags of a pool for one organisation.
func RunsOn(pool *v1alpha1.RunnerPool, org string) []string {
	labels := make([]string, len(pool.Spec.RunsOn))
	for i, l := range pool.Spec.RunsOn {
		labels[i] = strings.ReplaceAll(l, "{org}", org)
	}
	return labels
}

// A Place is a URL taken apart so that two that mean the same are equal.
type Place struct {
	Origin string   // scheme, host and port, in lower case
	Path   []string // in lower case
}

// ParsePlace reads the URL of a forge, an organisation or a group. It is false for
// what is none.
func ParsePlace(s string) (Place, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" {
		return Place{}, false
	}
	p := Place{Origin: strings.ToLower(u.Scheme) + "://" + strings.ToLower(u.Hostname())}
	if port := u.Port(); port != "" && port != map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)] {
		p.Origin += ":" + port
	}
	// An unclean path is another name for a clean one, so it is none of ours.
	trimmed := strings.Trim(u.Path, "/")
	if trimmed != "" && path.Clean(trimmed) != trimmed {
		return Place{}, false
	}
	if trimmed != "" {
		p.Path = strings.Split(strings.ToLower(trimmed), "/")
	}
	return p, true
}

// Within are the parts of the path of p below a forge, and whether it is there.
func (p Place) Within(forge Place) ([]string, bool) {
	n := len(forge.Path)
	if p.Origin != forge.Origin || len(p.Path) <= n || !slices.Equal(p.Path[:n], forge.Path) {
		return nil, false
	}
	return p.Path[n:], true
}

// String is the same for all URLs that mean the same.
func (p Place) String() string { return p.Origin + "/" + strings.Join(p.Path, "/") }
