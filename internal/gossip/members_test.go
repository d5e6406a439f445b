package gossip

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/door"
)

func member1(f Facts, state State, change func(*Member)) Member {
	m := Member{Record: &Record{Facts: f, Order: Order{1, 1}, Status: Up}, State: state, Verified: true, LastSeen: simEpoch.Add(400 * time.Millisecond)}
	if change != nil {
		change(&m)
	}
	return m
}

// TestClusters: one entry a cluster, the state of the best, and who contests a
// cluster beside it (DSC-10, DSC-11).
func TestClusters(t *testing.T) {
	s := newSim(t, 1, 6, Settings{})
	f := func(i int) Facts { return s.nodes[i].facts }
	replica := f(1)
	replica.ClusterID, replica.ClusterName, replica.Key = f(0).ClusterID, f(0).ClusterName, f(0).Key
	thief := f(5)
	thief.ClusterID, thief.ClusterName = f(0).ClusterID, f(0).ClusterName
	all := &Members{List: []Member{
		member1(f(0), Dead, nil), member1(replica, Suspect, nil),
		member1(thief, Alive, func(m *Member) { m.Verified, m.Conflict = false, true }),
		member1(f(2), Dead, nil), member1(f(3), Gone, nil), member1(f(4), Unknown, func(m *Member) { m.Verified = false; m.LastSeen = time.Time{} }),
	}}
	brief, hidden := all.Clusters(false)
	var got []string
	for _, c := range brief {
		got = append(got, fmt.Sprintf("%s %s members=%d verified=%t conflict=%t %s", c.Name, c.State, len(c.Members), c.Verified, c.Conflict, c.URL))
	}
	slices.Sort(got)
	want := []string{
		"prod-0 alive members=1 verified=false conflict=true " + thief.URL,
		"prod-0 suspect members=2 verified=true conflict=false " + replica.URL,
		"prod-4 unknown members=1 verified=false conflict=false " + f(4).URL,
	}
	if !slices.Equal(got, want) || hidden != 2 {
		t.Errorf("%d hidden, and\n%s", hidden, strings.Join(got, "\n"))
	}
	if full, hidden := all.Clusters(true); len(full) != 5 || hidden != 0 {
		t.Errorf("all: %d, %d hidden", len(full), hidden)
	}
}

// TestMemberlistForm: what existing clients read, whatever else is there (DSC-11).
func TestMemberlistForm(t *testing.T) {
	s := newSim(t, 1, 2, Settings{})
	alone := Alone(s.nodes[0].facts, simEpoch)
	list := alone.Memberlist(MemberlistRequest{})
	shape, err := list.Shape("*/*")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(shape.Body)
	if err != nil {
		t.Fatal(err)
	}
	var old []struct {
		APIEndpoint string            `json:"apiEndpoint"`
		APIPort     int               `json:"apiPort"`
		Labels      map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(b, &old); err != nil || len(old) != 1 || old[0].APIEndpoint != "https://k8s.prod-0.example:6443" || old[0].APIPort != 6443 || old[0].Labels["env"] != "prod" {
		t.Errorf("existing clients read %+v, %v, from %s", old, err, b)
	}
	var fields []map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(fields[0]))
	if got := strings.Join(names, " "); got != "apiEndpoint apiPort caHash conflict id key labels lastSeen members name self software state url verified" {
		t.Errorf("its fields are %s", got)
	}
	var back Memberlist
	if err := json.Unmarshal(b, &back); err != nil || len(back.Clusters) != 1 || !back.Clusters[0].Self || back.Clusters[0].Key != s.nodes[0].facts.Key {
		t.Errorf("our own client reads %+v, %v", back, err)
	}
	shape, _ = (&Members{Isolated: true}).Memberlist(MemberlistRequest{}).Shape("")
	if b, _ := json.Marshal(shape.Body); string(b) != "[]" || shape.Header.Get(IsolatedHeader) != "true" || shape.Header.Get(HiddenHeader) != "0" {
		t.Errorf("no members: %s, %v", b, shape.Header)
	}
	var filter StateFilter
	if filter.UnmarshalText([]byte("all")) != nil || filter.UnmarshalText([]byte("dead")) == nil || filter.UnmarshalText(nil) == nil {
		t.Error("state is something else than \"all\"")
	}
}

// TestAccept: a page for browsers, JSON for everybody else (DSC-11).
func TestAccept(t *testing.T) {
	for accept, page := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/html": true, "nonsense": false, "text/html;q=0": false, "text/html;q=nan": false,
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"application/json,text/html":                                      false,
		"application/json;q=0.5, text/html":                               true,
		"text/html;q=0.5,*/*":                                             false,
		"text/*":                                                          false,
	} {
		if got := prefersHTML(accept); got != page {
			t.Errorf("%q: a page %t", accept, got)
		}
	}
}

// TestRefusedAreNamed: whoever asks for the list is told whose record does not
// count, and why, in headers that hold nothing but plain text (GO-07, GO-08).
func TestRefusedAreNamed(t *testing.T) {
	all := &Members{}
	for i := range 20 {
		all.Refused = append(all.Refused, Refusal{Node: fmt.Sprintf("n%02d", i), Cluster: "c", Reason: Endpoint, Detail: "apiEndpoint: 10.0.0.1\r\nSet-Cookie: é" + strings.Repeat("x", 9000)})
	}
	shape, err := all.Memberlist(MemberlistRequest{}).Shape("")
	if err != nil {
		t.Fatal(err)
	}
	values := shape.Header.Values(RefusedHeader)
	if len(values) != maxRefused || !strings.HasPrefix(values[0], "n00 of cluster c: apiEndpoint: 10.0.0.1??Set-Cookie: ?") || len(values[0]) > 400 {
		t.Errorf("%d values, the first is %.80q", len(values), values)
	}
	if shape, _ := (&Members{}).Memberlist(MemberlistRequest{}).Shape(""); len(shape.Header.Values(RefusedHeader)) != 0 {
		t.Error("nobody is refused, and it says so of somebody")
	}
}

// TestPage: what others say is data, whatever it holds (DSC-11, GO-08).
func TestPage(t *testing.T) {
	evil := `<script>alert("x")</script>`
	list := Memberlist{Clusters: []Cluster{{Name: evil, State: State(evil), URL: "javascript:alert(1)", APIEndpoint: `"><img src=x>`,
		Labels: map[string]string{evil: evil}, Key: door.PublicKey{1}}}, Hidden: 2, Isolated: true}
	shape, err := list.Shape("text/html")
	if err != nil {
		t.Fatal(err)
	}
	page := string(shape.Body.([]byte))
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "href") {
		t.Errorf("the page holds markup of others:\n%s", page)
	}
	if !strings.Contains(page, "&lt;script&gt;") || !strings.Contains(page, "unverified") || !strings.Contains(page, "2 not shown") || !strings.Contains(page, "hears none") {
		t.Errorf("the page lacks something:\n%s", page)
	}
	if csp := shape.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") || shape.ContentType != "text/html; charset=utf-8" {
		t.Errorf("it is %s under %q", shape.ContentType, csp)
	}
}
