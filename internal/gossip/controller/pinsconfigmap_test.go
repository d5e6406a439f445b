//go:build unix

package controller

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

func key(t *testing.T, n byte) httpapi.PublicKey {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = n
	k, err := httpapi.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

// DSC-10: pins survive a restart, and the servers of a cluster share them. A pin that an administrator deleted stays deleted.
func TestPins(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	admin, err := client.New(c.AdminConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	one, err := NewPins(c.AdminConfig(), ns, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "the manifests must create it") {
		t.Errorf("no ConfigMap: %v", err)
	}
	if err := admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: PinsConfigMap}}); err != nil {
		t.Fatal(err)
	}
	two, err := NewPins(c.AdminConfig(), ns, "n2")
	if err != nil {
		t.Fatal(err)
	}
	load := func(p *Pins) gossip.Memory {
		t.Helper()
		m, err := p.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	save := func(p *Pins, m gossip.Memory) {
		t.Helper()
		if err := p.Save(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	m1, m2 := load(one), load(two)
	switch {
	case m1.Generation != 0:
		t.Fatalf("an empty memory: m1.Generation = %v, want 0", m1.Generation)
	case len(m1.Clusters) != 0:
		t.Fatalf("an empty memory: len(m1.Clusters) = %v, want 0", len(m1.Clusters))
	case m1.Clusters == nil:
		t.Fatal("an empty memory: m1.Clusters is nil")
	case m1.Nodes == nil:
		t.Fatal("an empty memory: m1.Nodes is nil")
	}
	a, b := key(t, 1), key(t, 2)
	m1.Generation, m1.Clusters["east"], m1.Nodes["n7"], m1.Absent["n7"] = 41, a, "east", 1763726400
	save(one, m1)
	m2.Generation, m2.Clusters["west"], m2.Nodes["n8"] = 17, b, "west"
	save(two, m2) // does not undo the other server's write
	again := load(one)
	switch {
	case again.Generation != 41:
		t.Errorf("after both wrote: again.Generation = %v, want 41", again.Generation)
	case !maps.Equal(again.Clusters, map[string]httpapi.PublicKey{"east": a, "west": b}):
		t.Errorf("after both wrote: difference (-want +got):\n%s",
			cmp.Diff(map[string]httpapi.PublicKey{"east": a, "west": b}, again.Clusters))
	case !maps.Equal(again.Nodes, map[string]string{"n7": "east", "n8": "west"}):
		t.Errorf("after both wrote: again.Nodes (-want +got):\n%s", cmp.Diff(map[string]string{"n7": "east", "n8": "west"}, again.Nodes))
	case !maps.Equal(again.Absent, map[string]int64{"n7": 1763726400}):
		t.Errorf("after both wrote: again.Absent (-want +got):\n%s", cmp.Diff(map[string]int64{"n7": 1763726400}, again.Absent))
	}
	if g := load(two).Generation; g != 17 {
		t.Errorf("the generation of the other is %d", g)
	}

	// An administrator deletes a pin by hand.
	cm := new(corev1.ConfigMap)
	at := client.ObjectKey{Namespace: ns, Name: PinsConfigMap}
	if err := admin.Get(t.Context(), at, cm); err != nil {
		t.Fatal(err)
	}
	cm.Data[pinsData] = strings.Replace(cm.Data[pinsData], `"east":"`+a.String()+`",`, "", 1)
	if err := admin.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	again.Generation = 42
	delete(again.Absent, "n7") // the node is back
	save(one, again)           // it remembers east but has no change for it
	switch m := load(one); {
	case m.Generation != 42:
		t.Errorf("a deleted pin is back: m.Generation = %v, want 42", m.Generation)
	case len(m.Absent) != 0:
		t.Errorf("a deleted pin is back: len(m.Absent) = %v, want 0", len(m.Absent))
	case !maps.Equal(m.Clusters, map[string]httpapi.PublicKey{"west": b}):
		t.Errorf("a deleted pin is back: m.Clusters (-want +got):\n%s", cmp.Diff(map[string]httpapi.PublicKey{"west": b}, m.Clusters))
	}
	// A lower generation never replaces a higher one.
	m := load(one)
	m.Generation = 3
	save(one, m)
	if g := load(one).Generation; g != 42 {
		t.Errorf("the generation fell to %d", g)
	}

	// If two servers met different nodes as the same cluster, both keep the entry that was written first. A server that followed a handover
	// writes the new key.
	c1, c2 := load(one), load(two)
	c1.Clusters["south"], c2.Clusters["south"] = a, b
	save(one, c1)
	save(two, c2)
	if got := load(one).Clusters["south"]; got != a {
		t.Errorf("south is %v, and was met as %v first", got, a)
	}
	next := load(two)
	next.Clusters["south"] = b
	save(two, next)
	if got := load(one).Clusters["south"]; got != b {
		t.Errorf("south is still %v", got)
	}

	// Damaged data is neither used nor overwritten.
	if err := admin.Get(t.Context(), at, cm); err != nil {
		t.Fatal(err)
	}
	cm.Data[pinsData] = `{"clusters": {"west": "ed25519:x"}}`
	if err := admin.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Load(t.Context()); err == nil || !strings.Contains(err.Error(), PinsConfigMap) {
		t.Errorf("damaged: %v", err)
	}
	if err := one.Save(t.Context(), m); err == nil {
		t.Error("what is damaged was overwritten")
	}
	for _, text := range []string{`{"clusters": null, "nodes": {}, "generations": {}}`, `{"generations": null}`, `{"absent": null}`, `{"generations": {"n1": 9007199254740991}}`} {
		if err := admin.Get(t.Context(), at, cm); err != nil {
			t.Fatal(err)
		}
		cm.Data[pinsData] = text
		if err := admin.Update(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Load(t.Context()); err == nil || !strings.Contains(err.Error(), PinsConfigMap) {
			t.Errorf("%s: %v", text, err)
		}
		if err := one.Save(t.Context(), m); err == nil {
			t.Errorf("%s was overwritten", text)
		}
	}
}

// However many nodes the servers of this cluster ever had, the latest generations are kept, and always the one of this node.
func TestGenerationsAreBounded(t *testing.T) {
	p, all := &Pins{node: "n0"}, map[string]uint64{}
	for i := range maxGenerations + 9 {
		all[fmt.Sprint("n", i)] = uint64(i)
	}
	p.bound(all)
	_, ours := all["n0"]
	_, oldest := all["n9"]
	_, last := all[fmt.Sprint("n", maxGenerations+8)]
	switch {
	case len(all) != maxGenerations:
		t.Errorf("len(all) = %v, want %v", len(all), maxGenerations)
	case !ours:
		t.Errorf("ours is false; %d, ours = %t, oldest = %t, last = %t", len(all), ours, oldest, last)
	case oldest:
		t.Errorf("oldest is true; %d, ours = %t, oldest = %t, last = %t", len(all), ours, oldest, last)
	case !last:
		t.Errorf("last is false; %d, ours = %t, oldest = %t, last = %t", len(all), ours, oldest, last)
	}
}
