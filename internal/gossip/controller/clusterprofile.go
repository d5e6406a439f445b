package controller

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/gossip"
)

const (
	managerLabel = "x-k8s.io/cluster-manager"
	manager      = "tailplane" // the label's value, and the name of the access provider
	healthy      = "ControlPlaneHealthy"
	idAnnotation = "tailplane.dev/cluster-id" // an id may be longer than a label's value
	// goneAnnotation is on the profile of a cluster that is dead, has left or is not listed. Its value is the time since then, so a restart
	// does not start the count again.
	goneAnnotation = "tailplane.dev/gone-since"

	hashLength  = 20
	maxSlug     = 40
	maxProperty = 253 // maximum bytes in a property's name
)

// profileSuffix returns a suffix that makes profile names unique; cluster names need not be unique.
func profileSuffix(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// profileName returns a readable slug of the cluster's name and a hash of its id. A profile keeps its name when the cluster's name changes.
func profileName(c Cluster) string {
	var slug strings.Builder
	for _, r := range strings.ToLower(c.Name) {
		switch {
		case slug.Len() >= maxSlug:
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			slug.WriteRune(r)
		case slug.Len() > 0 && !strings.HasSuffix(slug.String(), "-"):
			slug.WriteByte('-')
		}
	}
	return cmp.Or(strings.Trim(slug.String(), "-"), "cluster") + profileSuffix(c.ID)
}

// managedClusterID returns the id of the cluster that o describes, or "" if Tailplane did not create o. The label alone proves nothing, because any
// client can set it.
func managedClusterID(o *unstructured.Unstructured) string {
	id := o.GetAnnotations()[idAnnotation]
	by, _, _ := unstructured.NestedString(o.Object, "spec", "clusterManager", "name")
	if o.GetLabels()[managerLabel] != manager || by != manager || id == "" || !strings.HasSuffix(o.GetName(), profileSuffix(id)) {
		return ""
	}
	return id
}

// A clusterStatus is the status of a cluster in the list of members.
type clusterStatus struct {
	*Cluster           // nil: not listed, or not verified
	isConflicting bool // listed, but not verified or in conflict with another entry
}

// clusterStatuses returns the clusters of the list by id.
func clusterStatuses(clusters []Cluster) map[string]clusterStatus {
	all := make(map[string]clusterStatus, len(clusters))
	for i := range clusters {
		c := &clusters[i]
		switch was := all[c.ID]; {
		case was.Cluster != nil: // keep the verified entry; an entry that contests it changes nothing
		case c.Verified && !c.Conflict:
			all[c.ID] = clusterStatus{Cluster: c}
		default:
			all[c.ID] = clusterStatus{isConflicting: true}
		}
	}
	return all
}

// goneSince returns since when the cluster of profile o is gone, or zero if it is not. o may be nil. settled means that the list has had time to
// become complete.
func (s clusterStatus) goneSince(o *unstructured.Unstructured, now time.Time, settled bool) time.Time {
	var noted time.Time
	if o != nil {
		// An impossible value, such as a time in the future, is no reason to delete.
		if t, err := time.Parse(time.RFC3339, o.GetAnnotations()[goneAnnotation]); err == nil && !t.After(now) {
			noted = t
		}
	}
	switch {
	case s.Cluster == nil && !s.isConflicting && !settled:
		return noted
	case s.Cluster == nil:
	case s.State == gossip.Alive || s.State == gossip.Suspect:
		return time.Time{}
	case s.State != gossip.Dead && s.State != gossip.Gone:
		return noted // unknown: neither start nor restart the count
	case !s.LastSeen.IsZero() && !s.LastSeen.After(now):
		return s.LastSeen
	}
	if noted.IsZero() {
		return now.UTC().Truncate(time.Second)
	}
	return noted
}

// health returns the condition for a standing.
func (s clusterStatus) health() (status metav1.ConditionStatus, reason, message string) {
	switch {
	case s.isConflicting:
		return metav1.ConditionUnknown, "NotVerified", "The identity of the cluster is no longer verified."
	case s.Cluster == nil:
		return metav1.ConditionUnknown, "NotListed", "The list of members does not contain the cluster."
	}
	switch s.State {
	case gossip.Alive:
		return metav1.ConditionTrue, "Alive", "An access server of the cluster is alive. The API server of the cluster was not checked."
	case gossip.Dead:
		return metav1.ConditionFalse, "Dead", "All access servers of the cluster are dead."
	case gossip.Gone:
		return metav1.ConditionUnknown, "Left", "The access servers of the cluster have left the gossip network."
	case gossip.Suspect:
		return metav1.ConditionUnknown, "Suspect", "The access servers of the cluster have not sent a message for some time."
	}
	return metav1.ConditionUnknown, "Unknown", "This server has no message from the access servers of the cluster, or from no other server at all."
}

// desiredProfile returns a copy of o with the desired metadata and spec. o is nil for a cluster that has no profile yet. describe does not modify
// o.
func (s clusterStatus) desiredProfile(o *unstructured.Unstructured, version, namespace string, gone time.Time) *unstructured.Unstructured {
	if o == nil {
		o = &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"clusterManager": map[string]any{"name": manager}}}}
		o.SetAPIVersion(profileGroup + "/" + version)
		o.SetKind("ClusterProfile")
		o.SetNamespace(namespace)
		o.SetName(profileName(*s.Cluster))
	} else {
		o = o.DeepCopy()
	}
	// The schema requires objects at these paths, so set cannot fail.
	set := func(value string, path ...string) { _ = unstructured.SetNestedField(o.Object, value, path...) }
	set(manager, "metadata", "labels", managerLabel)
	set(manager, "metadata", "labels", "app.kubernetes.io/managed-by")
	if s.Cluster != nil {
		set(s.ID, "metadata", "annotations", idAnnotation)
		set(s.Name, "spec", "displayName")
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", goneAnnotation)
	if !gone.IsZero() {
		set(gone.UTC().Format(time.RFC3339), "metadata", "annotations", goneAnnotation)
	}
	return o
}

// desiredStatus returns a copy of o with the desired status. authority is nil while it is unknown. report does not modify o.
func (s clusterStatus) desiredStatus(o *unstructured.Unstructured, access bool, authority []byte, now time.Time) *unstructured.Unstructured {
	o = o.DeepCopy()
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	if status == nil {
		status = map[string]any{}
	}
	set := func(list string, items []any) {
		if status[list] = items; len(items) == 0 {
			delete(status, list)
		}
	}
	set("conditions", s.conditions(entries(status["conditions"]), o.GetGeneration(), now))
	if s.Cluster != nil {
		set("properties", s.properties(entries(status["properties"]), now))
	}
	if access {
		set("accessProviders", s.providers(entries(status["accessProviders"]), authority))
	}
	o.Object["status"] = status
	return o
}

// entries returns the objects of a list.
func entries(list any) (all []map[string]any) {
	items, _ := list.([]any)
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// conditions returns was with our condition updated; it keeps the other conditions.
func (s clusterStatus) conditions(was []map[string]any, generation int64, now time.Time) (all []any) {
	status, reason, message := s.health()
	since := now.UTC().Format(time.RFC3339)
	for _, c := range was {
		if c["type"] != healthy {
			all = append(all, c)
		} else if t, ok := c["lastTransitionTime"].(string); ok && c["status"] == string(status) {
			since = t
		}
	}
	return append(all, map[string]any{
		"type": healthy, "status": string(status), "reason": reason, "message": message,
		"observedGeneration": generation, "lastTransitionTime": since,
	})
}

// properties returns the cluster's labels. A label without a value cannot be a property. The first versions of the kind require
// lastObservedTime. It moves only when another property changes, because otherwise each pass would write.
func (s clusterStatus) properties(was []map[string]any, now time.Time) []any {
	seen := s.LastSeen
	if seen.IsZero() {
		seen = now
	}
	var all []any
	for k, v := range s.Labels {
		if k != "" && len(k) <= maxProperty && v != "" {
			all = append(all, map[string]any{"name": k, "value": v, "lastObservedTime": seen.UTC().Format(time.RFC3339)})
		}
	}
	name := func(p any) string { n, _ := p.(map[string]any)["name"].(string); return n }
	slices.SortFunc(all, func(a, b any) int { return cmp.Compare(name(a), name(b)) })
	if slices.EqualFunc(was, entries(all), func(a, b map[string]any) bool {
		return a["name"] == b["name"] && a["value"] == b["value"] && a["lastObservedTime"] != nil
	}) {
		for i, p := range was {
			all[i] = p
		}
	}
	return all
}

// providers returns was with our access provider updated. A cluster that is not verified has none. The provider of a cluster that is not
// listed stays.
func (s clusterStatus) providers(was []map[string]any, authority []byte) (all []any) {
	for _, p := range was {
		if p["name"] != manager || s.Cluster == nil && !s.isConflicting {
			all = append(all, p)
		}
	}
	if s.Cluster != nil && authority != nil && s.APIEndpoint != s.Proxy { // authority is not the proxy's
		all = append(all, map[string]any{"name": manager, "cluster": map[string]any{
			"server": s.APIEndpoint, "certificate-authority-data": base64.StdEncoding.EncodeToString(authority),
		}})
	}
	return all
}

// caIn returns the certificates in our access provider of o.
func caIn(o *unstructured.Unstructured) []byte {
	if o == nil {
		return nil
	}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "accessProviders")
	for _, p := range entries(any(all)) {
		if p["name"] == manager {
			text, _, _ := unstructured.NestedString(p, "cluster", "certificate-authority-data")
			b, _ := base64.StdEncoding.DecodeString(text)
			return b
		}
	}
	return nil
}

// differ reports whether two objects differ in one of the parts.
func differ(a, b *unstructured.Unstructured, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return !reflect.DeepEqual(a.Object[p], b.Object[p]) })
}
