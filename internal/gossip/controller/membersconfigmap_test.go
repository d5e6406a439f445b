//go:build unix

package controller

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/internal/gossip"
)

func TestDue(t *testing.T) {
	both := func() []Cluster { return []Cluster{clusterNamed("east"), clusterNamed("west")} }
	for _, tc := range []struct {
		why    string
		change func([]Cluster) []Cluster
		want   bool
	}{
		{"nothing changed", func(c []Cluster) []Cluster { return c }, false},
		{"another order", func(c []Cluster) []Cluster { slices.Reverse(c); return c }, false},
		{"no labels and none", func(c []Cluster) []Cluster { c[0].Members[0].LastSeen = noon.Local(); return c }, false},
		{"seen 59 s later", func(c []Cluster) []Cluster { c[0].LastSeen = noon.Add(59 * time.Second); return c }, false},
		{"its server seen 59 s later", func(c []Cluster) []Cluster { c[1].Members[0].LastSeen = noon.Add(59 * time.Second); return c }, false},
		{"seen earlier, by a leader with fewer contacts", func(c []Cluster) []Cluster { c[0].LastSeen = noon.Add(-time.Hour); return c }, false},
		{"seen a minute later", func(c []Cluster) []Cluster { c[0].LastSeen = noon.Add(time.Minute); return c }, true},
		{"its server seen a minute later", func(c []Cluster) []Cluster { c[1].Members[0].LastSeen = noon.Add(time.Minute); return c }, true},
		{"a state", func(c []Cluster) []Cluster { c[1].State = gossip.Suspect; return c }, true},
		{"a server's state", func(c []Cluster) []Cluster { c[1].Members[0].State = gossip.Dead; return c }, true},
		{"a label", func(c []Cluster) []Cluster { c[1].Labels = map[string]string{"env": "test"}; return c }, true},
		{"no longer verified", func(c []Cluster) []Cluster { c[0].Verified = false; return c }, true},
		{"a conflict", func(c []Cluster) []Cluster { c[0].Conflict = true; return c }, true},
		{"another address", func(c []Cluster) []Cluster { c[0].URL = "https://other.ts.net"; return c }, true},
		{"a server more", func(c []Cluster) []Cluster { c[0].Members = append(c[0].Members, Member{Node: "n2"}); return c }, true},
		{"one more", func(c []Cluster) []Cluster { return append(c, clusterNamed("north")) }, true},
		{"one less", func(c []Cluster) []Cluster { return c[:1] }, true},
		{"another one", func(c []Cluster) []Cluster { c[1] = clusterNamed("zz"); return c }, true},
	} {
		if got := isDue(sortedClusters(both()), sortedClusters(tc.change(both()))); got != tc.want {
			t.Errorf("%s: due is %v", tc.why, got)
		}
	}
	if !isDue(nil, sortedClusters(both())) {
		t.Error("the first list is not due")
	}
	c := both()
	before := fmt.Sprint(c)
	if sortedClusters(c); fmt.Sprint(c) != before {
		t.Error("what was given is changed")
	}
}

// A reader of the stored form gets the same list back. Clusters without room are counted, and are those that a person could not sign in to,
// as far as possible.
func TestForm(t *testing.T) {
	east, west, lost, odd, own := clusterNamed("east"), clusterNamed("west"), clusterNamed("lost"), clusterNamed("odd"), clusterNamed("zz-own")
	lost.State, odd.Verified, own.Self, own.Labels, own.Members = gossip.Dead, false, true, nil, nil
	all := sortedClusters([]Cluster{west, lost, east, own, odd})
	text, omitted, err := encodeMembers(noon, all, maxMembersBytes)
	if err != nil || omitted != 0 {
		t.Fatal(omitted, err)
	}
	var m Members
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if !m.ObservedAt.Equal(noon) || !reflect.DeepEqual(m.Clusters, all) {
		t.Errorf("it comes back as %+v", m)
	}
	if strings.Contains(string(text), "null") {
		t.Errorf("null in %s", text)
	}
	one, err := json.Marshal(east)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range [][]string{{}, {"zz-own"}, {"east", "zz-own"}, {"east", "west", "zz-own"}, {"east", "odd", "west", "zz-own"}} {
		room := 80 + n*(len(one)+10) // enough for n of them; their lengths differ by their names
		text, omitted, err := encodeMembers(noon, all, room)
		if err != nil || len(text) > room {
			t.Fatal(len(text), err)
		}
		var m Members
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, c := range m.Clusters {
			names = append(names, c.Name)
		}
		switch {
		case !slices.Equal(names, want):
			t.Errorf("room: names (-want +got):\n%s", cmp.Diff(want, names))
		case m.Omitted != len(all)-len(want):
			t.Errorf("room: m.Omitted = %v, want %v; %d", m.Omitted, len(all)-len(want), n)
		case omitted != m.Omitted:
			t.Errorf("room: omitted = %v, want %v; %d", omitted, m.Omitted, n)
		}
	}
}

// The ConfigMap on a real API server. It is written on change, by an account that has only get and update on it.
func TestMembersConfigMap(t *testing.T) {
	p := newEnv(t)
	shared, err := newConfigMap(p.config, p.ns, MembersConfigMap)
	if err != nil {
		t.Fatal(err)
	}
	b := &membersWriter{configMap: shared}
	show := func(b *membersWriter, now time.Time, clusters ...Cluster) (Members, string) {
		t.Helper()
		if err := b.write(t.Context(), now, sortedClusters(clusters)); err != nil {
			t.Fatal(err)
		}
		cm := p.configMap()
		var m Members
		if err := json.Unmarshal([]byte(cm.Data[MembersData]), &m); err != nil {
			t.Fatal(err)
		}
		return m, cm.ResourceVersion
	}
	east, west := clusterNamed("east"), clusterNamed("west")
	m, first := show(b, noon, west, east)
	switch {
	case len(m.Clusters) != 2:
		t.Errorf("the first list: len(m.Clusters) = %v, want 2", len(m.Clusters))
	case m.Clusters[0].Name != "east":
		t.Errorf("the first list: m.Clusters[0].Name = %q, want %q", m.Clusters[0].Name, "east")
	case m.Clusters[0].APIPort != 6443:
		t.Errorf("the first list: m.Clusters[0].APIPort = %v, want 6443", m.Clusters[0].APIPort)
	case !m.ObservedAt.Equal(noon):
		t.Errorf("the first list: m.ObservedAt = %v, want %v", m.ObservedAt, noon)
	}
	east.LastSeen = noon.Add(59 * time.Second)
	if m, v := show(b, noon.Add(59*time.Second), east, west); v != first || !m.ObservedAt.Equal(noon) {
		t.Error("written although only a lastSeen moved a little")
	}
	if _, v := show(&membersWriter{configMap: shared}, noon.Add(59*time.Second), east, west); v != first {
		t.Error("a new leader writes what is there already")
	}
	east.LastSeen = noon.Add(time.Minute)
	m, second := show(b, noon.Add(time.Minute), east, west)
	switch {
	case second == first:
		t.Errorf("not written although a lastSeen moved a minute: second = %q, the same as first", second)
	case !m.ObservedAt.Equal(noon.Add(time.Minute)):
		t.Errorf("not written although a lastSeen moved a minute: m.ObservedAt = %v, want %v", m.ObservedAt, noon.Add(time.Minute))
	case !m.Clusters[0].LastSeen.Equal(east.LastSeen):
		t.Errorf("not written although a lastSeen moved a minute: got %v, want %v", m.Clusters[0].LastSeen, east.LastSeen)
	}
	west.State = gossip.Dead
	if m, _ := show(b, noon.Add(62*time.Second), east, west); m.Clusters[1].State != gossip.Dead {
		t.Error("a death is not shown")
	}

	// Another client edits it. Its additions stay, and the next write restores our data.
	cm := p.configMap()
	cm.Data["note"], cm.Data[MembersData] = "of an administrator", "{"
	if err := p.admin.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	west.State = gossip.Alive
	if err := b.write(t.Context(), noon.Add(64*time.Second), sortedClusters([]Cluster{east, west})); err != nil {
		t.Errorf("a conflict is an error: %v", err)
	}
	if m, _ := show(b, noon.Add(66*time.Second), east, west); m.Clusters[1].State != gossip.Alive || p.configMap().Data["note"] != "of an administrator" {
		t.Error("after an edit:", p.configMap().Data)
	}

	// More than an API server accepts.
	var many []Cluster
	for i := range 3000 {
		c := clusterNamed(fmt.Sprintf("c%04d", i))
		c.Verified = i >= 1500
		many = append(many, c)
	}
	many[2999].Self = true
	for range 2 { // the error is returned as long as it lasts
		if err := b.write(t.Context(), noon, sortedClusters(many)); err == nil || !strings.Contains(err.Error(), "no space for") {
			t.Errorf("too many: %v", err)
		}
	}
	cm = p.configMap()
	m = Members{}
	if err := json.Unmarshal([]byte(cm.Data[MembersData]), &m); err != nil {
		t.Fatal(err)
	}
	switch n := len(cm.Data[MembersData]); {
	case n > maxMembersBytes:
		t.Errorf("n = %v, want at most %v", n, maxMembersBytes)
	case n < maxMembersBytes-1000:
		t.Errorf("n = %v, want at least %v", n, maxMembersBytes-1000)
	case m.Omitted+len(m.Clusters) != 3000:
		t.Errorf("m.Omitted+len(m.Clusters) = %v, want 3000", m.Omitted+len(m.Clusters))
	case !m.Clusters[len(m.Clusters)-1].Self:
		t.Errorf("m.Clusters[len(m.Clusters)-1].Self is false; %d, %d, %d", n, len(m.Clusters), m.Omitted)
	case !m.Clusters[len(m.Clusters)-1].Verified:
		t.Errorf("m.Clusters[len(m.Clusters)-1].Verified is false; %d, %d, %d", n, len(m.Clusters), m.Omitted)
	}
	show(b, noon, east, west) // now there is room again

	// The ConfigMap is missing or the account has no right. The error says what to do.
	if err := p.admin.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: MembersConfigMap}}); err != nil {
		t.Fatal(err)
	}
	west.Name = "occident"
	if err := b.write(t.Context(), noon, sortedClusters([]Cluster{east, west})); err == nil || !strings.Contains(err.Error(), "the manifests must create it") {
		t.Errorf("no ConfigMap: %v", err)
	}
	b.key, b.stored = client.ObjectKey{Namespace: "default", Name: MembersConfigMap}, nil
	if err := b.write(t.Context(), noon, sortedClusters([]Cluster{east, west})); err == nil || !strings.Contains(err.Error(), "needs get and update") {
		t.Errorf("not allowed: %v", err)
	}
}
