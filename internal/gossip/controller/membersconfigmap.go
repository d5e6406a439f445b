package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tailplane/tailplane/internal/gossip"
)

// MembersConfigMap is the ConfigMap that shows the list of members. MembersData is its key; the value is a Members in JSON.
const (
	MembersConfigMap = "tailplane-members"
	MembersData      = "members.json"
)

const (
	// maxMembersBytes is less than the 1 MiB limit of a ConfigMap's data.
	maxMembersBytes = 1_000_000
	// seenGrain is how far a published lastSeen may lag behind. Live servers are seen all the time, so without it each pass would write.
	seenGrain = time.Minute
)

// Cluster and Member are the entries of the list of members.
type (
	Cluster = gossip.Cluster
	Member  = gossip.ClusterMember
)

// Members is the published list.
type Members struct {
	ObservedAt time.Time `json:"observedAt"`
	Omitted    int       `json:"omitted"` // clusters for which there was no room
	Clusters   []Cluster `json:"clusters"`
}

// sortedClusters returns a copy of clusters in the form in which they are compared and published: sorted by name and id, times in whole seconds,
// no null. Of the audit logs, only those that were rolled back are published.
func sortedClusters(clusters []Cluster) []Cluster {
	clusters = slices.Clone(clusters)
	for i := range clusters {
		c := &clusters[i]
		c.LastSeen = c.LastSeen.UTC().Truncate(time.Second)
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.AuditLogs = c.RolledBack() // there is no space for the others, and they change every ten minutes
		c.Members = append([]Member{}, c.Members...)
		for j := range c.Members {
			c.Members[j].LastSeen = c.Members[j].LastSeen.UTC().Truncate(time.Second)
		}
		slices.SortFunc(c.Members, func(a, b Member) int { return cmp.Compare(a.Node, b.Node) })
	}
	slices.SortStableFunc(clusters, func(a, b Cluster) int { // an entry that contests a cluster may share all of these fields with it
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Key.String(), b.Key.String()), cmp.Compare(a.URL, b.URL))
	})
	return clusters
}

// isDue reports whether next differs enough from was to be written. A newer lastSeen alone is worth one write per minute; an unchanged list
// is worth none.
func isDue(was, next []Cluster) bool {
	if len(was) != len(next) {
		return true
	}
	for i := range was {
		a, b := was[i], next[i]
		moved := b.LastSeen.Sub(a.LastSeen)
		a.LastSeen, b.LastSeen = time.Time{}, time.Time{}
		if len(a.Members) != len(b.Members) {
			return true
		}
		a.Members, b.Members = slices.Clone(a.Members), slices.Clone(b.Members)
		for j := range a.Members {
			moved = max(moved, b.Members[j].LastSeen.Sub(a.Members[j].LastSeen))
			a.Members[j].LastSeen, b.Members[j].LastSeen = time.Time{}, time.Time{}
		}
		if moved >= seenGrain || !reflect.DeepEqual(a, b) {
			return true
		}
	}
	return false
}

// encodeMembers encodes clusters in at most limit bytes. Clusters that a person can sign in to come before all others; form counts the omitted ones.
func encodeMembers(now time.Time, clusters []Cluster, limit int) ([]byte, int, error) {
	entries := make([][]byte, len(clusters))
	order := make([]int, len(clusters))
	for i, c := range clusters {
		b, err := json.Marshal(c)
		if err != nil {
			return nil, 0, fmt.Errorf("cluster %s: %w", c.ID, err)
		}
		entries[i], order[i] = b, i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rank(clusters[i]), rank(clusters[j])) })
	size, omitted := len(`{"observedAt":"2006-01-02T15:04:05Z","omitted":99999999,"clusters":[`)+len("\n]}"), 0
	for _, i := range order {
		if n := len(entries[i]) + len(",\n"); size+n <= limit {
			size += n
		} else {
			entries[i] = nil
			omitted++
		}
	}
	head, err := json.Marshal(now.UTC().Truncate(time.Second))
	if err != nil {
		return nil, 0, err
	}
	// One line per cluster, for people who read the ConfigMap.
	b := fmt.Appendf(nil, `{"observedAt":%s,"omitted":%d,"clusters":[`, head, omitted)
	entries = slices.DeleteFunc(entries, func(e []byte) bool { return e == nil })
	b = append(append(b, '\n'), bytes.Join(entries, []byte(",\n"))...)
	return append(b, "\n]}"...), omitted, nil
}

// rank is the order in which clusters get room in the ConfigMap.
func rank(c Cluster) int {
	n := 0
	if !c.Self {
		n += 8
	}
	if c.State == gossip.Dead || c.State == gossip.Gone {
		n += 4
	}
	if !c.Verified || c.Conflict {
		n += 2
	}
	return n
}

// A membersWriter writes the members ConfigMap while this server leads.
type membersWriter struct {
	configMap
	stored  *corev1.ConfigMap // as last read or written; nil: must be read
	written []Cluster         // its current content; nil: no valid content
	full    error             // reports the clusters that it had no room for
}

// read fetches the ConfigMap if it is not cached.
func (b *membersWriter) read(ctx context.Context) error {
	if b.stored != nil {
		return nil
	}
	cm, err := b.get(ctx)
	if err != nil {
		return err
	}
	b.stored, b.written = cm, nil
	if m, ok := b.decodeShown(); ok && m.Omitted == 0 {
		b.written = sortedClusters(m.Clusters)
	}
	return nil
}

// decodeShown decodes what was read or written last. Invalid content is of no use to anyone, so the next pass overwrites it.
func (b *membersWriter) decodeShown() (m Members, ok bool) {
	return m, json.Unmarshal([]byte(b.stored.Data[MembersData]), &m) == nil
}

// removesClusters reports whether the ConfigMap shows a cluster that is not one of these.
func (b *membersWriter) removesClusters(ctx context.Context, clusters []Cluster) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := b.read(ctx); err != nil {
		return false, err
	}
	m, ok := b.decodeShown()
	return ok && (m.Omitted > 0 || slices.ContainsFunc(m.Clusters, func(was Cluster) bool {
		return !slices.ContainsFunc(clusters, func(is Cluster) bool { return is.ID == was.ID })
	})), nil
}

// write writes clusters if that is due.
func (b *membersWriter) write(ctx context.Context, now time.Time, clusters []Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := b.read(ctx); err != nil {
		return err
	}
	if !isDue(b.written, clusters) {
		return b.full
	}
	text, omitted, err := encodeMembers(now, clusters, maxMembersBytes)
	if err != nil {
		return err
	}
	next := b.stored.DeepCopy()
	if err := b.set(ctx, next, MembersData, string(text)); err != nil {
		b.stored = nil
		if apierrors.IsConflict(err) {
			return nil // another client edited it; the next pass reads it again
		}
		return err
	}
	b.stored, b.written, b.full = next, clusters, nil
	if omitted > 0 {
		b.full = fmt.Errorf("the ConfigMap %s has no space for %d of %d clusters; it keeps the clusters that people can sign in to, and reports the omission", b.key, omitted, len(clusters))
	}
	return b.full
}
