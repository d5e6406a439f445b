package gossip

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// TestForm: the fields that existing clients read, whatever else is present (DSC-11).
func TestForm(t *testing.T) {
	alone := NewStandaloneMembers(Facts{ClusterID: "5e0c", ClusterName: "prod-0", Node: "n0", Host: "tka.tail1234.ts.net", URL: "https://tka.tail1234.ts.net", APIEndpoint: "https://k8s.prod-0.example:6443",
		APIPort: 6443, Labels: map[string]string{"env": "prod"}, Key: httpapi.PublicKey{7}}, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	list := newClusterList(alone, ClusterListRequest{})
	shape, err := list.EncodeResponse("*/*")
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
	switch err := json.Unmarshal(b, &old); {
	case err != nil:
		t.Errorf("existing clients: %v; %s", err, b)
	case len(old) != 1:
		t.Errorf("existing clients: len(old) = %v, want 1; %s", len(old), b)
	case old[0].APIEndpoint != "https://k8s.prod-0.example:6443":
		t.Errorf("existing clients: old[0].APIEndpoint = %q, want %q; %s", old[0].APIEndpoint, "https://k8s.prod-0.example:6443", b)
	case old[0].APIPort != 6443:
		t.Errorf("existing clients: old[0].APIPort = %v, want 6443; %s", old[0].APIPort, b)
	case old[0].Labels["env"] != "prod":
		t.Errorf(`existing clients: old[0].Labels["env"] = %q, want %q; %s`, old[0].Labels["env"], "prod", b)
	}
	var fields []map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(fields[0]))
	if got := strings.Join(names, " "); got != "apiEndpoint apiPort caHash conflict id key labels lastSeen members name self software state url verified" {
		t.Errorf("its fields are %s", got)
	}
	var back ClusterList
	switch err := json.Unmarshal(b, &back); {
	case err != nil:
		t.Errorf("our own client: %v", err)
	case len(back.Clusters) != 1:
		t.Errorf("our own client: len(back.Clusters) = %v, want 1", len(back.Clusters))
	case !back.Clusters[0].Self:
		t.Errorf("our own client: back.Clusters[0].Self is false; back = %+v, %v", back, err)
	case back.Clusters[0].Key != (httpapi.PublicKey{7}):
		t.Errorf("our own client: back.Clusters[0].Key = %v, want %v", back.Clusters[0].Key, (httpapi.PublicKey{7}))
	}
	shape, _ = newClusterList(&Members{Isolated: true}, ClusterListRequest{}).EncodeResponse("")
	switch b, _ := json.Marshal(shape.Body); {
	case string(b) != "[]":
		t.Errorf("no members: string(b) = %q, want %q", string(b), "[]")
	case shape.Header.Get(IsolatedHeader) != "true":
		t.Errorf(`no members: shape.Header.Get(IsolatedHeader) != "true"; %s, %v`, b, shape.Header)
	case shape.Header.Get(HiddenHeader) != "0":
		t.Errorf(`no members: shape.Header.Get(HiddenHeader) != "0"; %s, %v`, b, shape.Header)
	}
	var filter StateFilter
	switch {
	case filter.UnmarshalText([]byte("all")) != nil:
		t.Error(`state is not "all": filter.UnmarshalText([]byte("all")) is not nil`)
	case filter.UnmarshalText([]byte("dead")) == nil:
		t.Error(`state is not "all": filter.UnmarshalText([]byte("dead")) is nil, want an error`)
	case filter.UnmarshalText(nil) == nil:
		t.Error(`state is not "all": filter.UnmarshalText(nil) is nil, want an error`)
	}
}

// TestAccept: a page for browsers, JSON for all other clients (DSC-11).
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

// TestRefusedAreNamed: the response names the servers whose records are refused, with the reason, in headers that contain only plain text
// (GO-07, GO-08).
func TestRefusedAreNamed(t *testing.T) {
	all := &Members{}
	for i := range 20 {
		all.Refused = append(all.Refused, Refusal{Node: fmt.Sprintf("n%02d", i), Cluster: "c", Reason: Endpoint, Detail: "apiEndpoint: 10.0.0.1\r\nSet-Cookie: é" + strings.Repeat("x", 9000)})
	}
	shape, err := newClusterList(all, ClusterListRequest{}).EncodeResponse("")
	if err != nil {
		t.Fatal(err)
	}
	values := shape.Header.Values(RefusedHeader)
	switch {
	case len(values) != maxRefusedHeaders:
		t.Errorf("len(values) = %v, want %v", len(values), maxRefusedHeaders)
	case !strings.HasPrefix(values[0], "n00 of cluster c: apiEndpoint: 10.0.0.1??Set-Cookie: ?"):
		t.Errorf("values[0] = %q does not start with %q", values[0], "n00 of cluster c: apiEndpoint: 10.0.0.1??Set-Cookie: ?")
	case len(values[0]) > 400:
		t.Errorf("len(values[0]) = %v, want at most 400", len(values[0]))
	}
	if shape, _ := newClusterList(&Members{}, ClusterListRequest{}).EncodeResponse(""); len(shape.Header.Values(RefusedHeader)) != 0 {
		t.Error("the refusals are not empty")
	}
}

// TestPage: the page for browsers has a content security policy that forbids everything (DSC-11).
func TestPage(t *testing.T) {
	list := ClusterList{page: func(ClusterList) ([]byte, error) { return []byte("<p>"), nil }}
	shape, err := list.EncodeResponse("text/html")
	if err != nil {
		t.Fatal(err)
	}
	if string(shape.Body.([]byte)) != "<p>" {
		t.Errorf("the page is %q", shape.Body)
	}
	switch csp := shape.Header.Get("Content-Security-Policy"); {
	case !strings.Contains(csp, "default-src 'none'"):
		t.Errorf("csp = %q does not contain %q", csp, "default-src 'none'")
	case strings.Contains(csp, "script-src"):
		t.Errorf("csp = %q contains %q", csp, "script-src")
	case shape.ContentType != "text/html; charset=utf-8":
		t.Errorf("shape.ContentType = %q, want %q", shape.ContentType, "text/html; charset=utf-8")
	}
}

// A cluster's servers are those that this server has verified itself, with the cluster's key: a list of another cluster's or an unknown
// server would send people there.
func TestServersOf(t *testing.T) {
	key, other := httpapi.PublicKey{1}, httpapi.PublicKey{2}
	member := func(url string, change func(*Member)) Member {
		m := Member{State: Alive, Verified: true, Record: &Record{Facts: Facts{ClusterID: "5e0c", Key: key, URL: url}, Status: Up}}
		if change != nil {
			change(&m)
		}
		return m
	}
	all := &Members{List: []Member{
		member("https://b", nil),
		member("https://a", func(m *Member) { m.Self = true }),
		member("https://suspect", func(m *Member) { m.State = Suspect }),
		member("https://dead", func(m *Member) { m.State = Dead }),
		member("https://gone", func(m *Member) { m.State = Gone }),
		member("https://unverified", func(m *Member) { m.Verified = false }),
		member("https://conflict", func(m *Member) { m.Conflict = true }),
		member("https://cluster", func(m *Member) { m.ClusterID = "other" }),
		member("https://key", func(m *Member) { m.Key = other }),
		member("", nil),
	}}
	if diff := cmp.Diff([]string{"https://a", "https://b", "https://suspect"}, ServersOf(all, "5e0c", key)); diff != "" {
		t.Errorf("the servers (-want +got):\n%s", diff)
	}
	for range 2 * maxServers {
		all.List = append(all.List, member("https://b", nil))
	}
	if got := len(ServersOf(all, "5e0c", key)); got != maxServers {
		t.Errorf("%d servers, want %d", got, maxServers)
	}
}
