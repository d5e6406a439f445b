package gossipkube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/kube"
)

// MembersConfigMap is where the list of members is shown, as JSON under
// MembersData: a Members.
const (
	MembersConfigMap = "tailplane-members"
	MembersData      = "members.json"
)

const (
	// maxMembersBytes is less than the 1 MiB that a ConfigMap's data may have.
	maxMembersBytes = 1_000_000
	// seenGrain is how far a lastSeen that moved on lies behind at most. Servers
	// that live are seen all the time; each look would be a write.
	seenGrain = time.Minute
)

// A Cluster and its Members are those of the list of members.
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

// ordered returns a copy of clusters in the form in which they are compared and
// published: sorted by name and id, times in whole seconds, no null.
func ordered(clusters []Cluster) []Cluster {
	clusters = slices.Clone(clusters)
	for i := range clusters {
		c := &clusters[i]
		c.LastSeen = c.LastSeen.UTC().Truncate(time.Second)
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Members = append([]Member{}, c.Members...)
		for j := range c.Members {
			c.Members[j].LastSeen = c.Members[j].LastSeen.UTC().Truncate(time.Second)
		}
		slices.SortFunc(c.Members, func(a, b Member) int { return cmp.Compare(a.Node, b.Node) })
	}
	slices.SortStableFunc(clusters, func(a, b Cluster) int { // who contests a cluster may share all of this with it
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Key.String(), b.Key.String()), cmp.Compare(a.URL, b.URL))
	})
	return clusters
}

// due says whether next is worth a write after was. That somebody was seen again
// is worth one a minute, and nothing is worth none.
func due(was, next []Cluster) bool {
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

// form is the stored form of clusters, of at most limit bytes. Those that a
// person could sign in to have room before all others; the rest is counted.
func form(now time.Time, clusters []Cluster, limit int) ([]byte, int, error) {
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
	// A line for each cluster, for people who look at the ConfigMap.
	b := fmt.Appendf(nil, `{"observedAt":%s,"omitted":%d,"clusters":[`, head, omitted)
	entries = slices.DeleteFunc(entries, func(e []byte) bool { return e == nil })
	b = append(append(b, '\n'), bytes.Join(entries, []byte(",\n"))...)
	return append(b, "\n]}"...), omitted, nil
}

// rank is the order in which clusters have room.
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

// A board is the ConfigMap, as one leader writes it.
type board struct {
	client client.Client
	key    client.ObjectKey
	there  *corev1.ConfigMap // as it was read or written last; nil: to be read
	shown  []Cluster         // what it shows; nil: nothing that counts
	full   error             // what it had no room for
}

func newBoard(config *rest.Config, namespace string) (*board, error) {
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	return &board{client: c, key: client.ObjectKey{Namespace: namespace, Name: MembersConfigMap}}, nil
}

// read finds out what there is, if that is not known.
func (b *board) read(ctx context.Context) error {
	if b.there != nil {
		return nil
	}
	cm := new(corev1.ConfigMap)
	if err := b.client.Get(ctx, b.key, cm); err != nil {
		return kube.ExplainGiven("read", "ConfigMap", b.key, err)
	}
	b.there, b.shown = cm, nil
	if m, ok := b.list(); ok && m.Omitted == 0 {
		b.shown = ordered(m.Clusters)
	}
	return nil
}

// list is what was read or written last. What is no list is nothing that anybody
// needs: it is ours, and written anew.
func (b *board) list() (m Members, ok bool) {
	return m, json.Unmarshal([]byte(b.there.Data[MembersData]), &m) == nil
}

// loses reports whether a cluster that is shown is not one of these.
func (b *board) loses(ctx context.Context, clusters []Cluster) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := b.read(ctx); err != nil {
		return false, err
	}
	m, ok := b.list()
	return ok && (m.Omitted > 0 || slices.ContainsFunc(m.Clusters, func(was Cluster) bool {
		return !slices.ContainsFunc(clusters, func(is Cluster) bool { return is.ID == was.ID })
	})), nil
}

// pass writes clusters if that is due.
func (b *board) pass(ctx context.Context, now time.Time, clusters []Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := b.read(ctx); err != nil {
		return err
	}
	if !due(b.shown, clusters) {
		return b.full
	}
	text, omitted, err := form(now, clusters, maxMembersBytes)
	if err != nil {
		return err
	}
	next := b.there.DeepCopy()
	next.Data = maps.Clone(next.Data)
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	next.Data[MembersData] = string(text)
	if err := b.client.Update(ctx, next); err != nil {
		b.there = nil
		if apierrors.IsConflict(err) {
			return nil // somebody edited it; the next look has what is there
		}
		return kube.ExplainGiven("write", "ConfigMap", b.key, err)
	}
	b.there, b.shown, b.full = next, clusters, nil
	if omitted > 0 {
		b.full = fmt.Errorf("the ConfigMap %s has no room for %d of %d clusters; it says so, and has those that people can sign in to first", b.key, omitted, len(clusters))
	}
	return b.full
}
