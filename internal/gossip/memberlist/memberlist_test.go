package memberlist

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip"
)

// TestForm: the fields that existing clients read, whatever else is present (DSC-11).
func TestForm(t *testing.T) {
	alone := gossip.Alone(gossip.Facts{ClusterID: "5e0c", ClusterName: "prod-0", Node: "n0", Host: "tka.tail1234.ts.net", URL: "https://tka.tail1234.ts.net", APIEndpoint: "https://k8s.prod-0.example:6443",
		APIPort: 6443, Labels: map[string]string{"env": "prod"}, Key: door.PublicKey{7}}, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	list := Of(alone, Request{})
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
	var back List
	if err := json.Unmarshal(b, &back); err != nil || len(back.Clusters) != 1 || !back.Clusters[0].Self || back.Clusters[0].Key != (door.PublicKey{7}) {
		t.Errorf("our own client reads %+v, %v", back, err)
	}
	shape, _ = Of(&gossip.Members{Isolated: true}, Request{}).Shape("")
	if b, _ := json.Marshal(shape.Body); string(b) != "[]" || shape.Header.Get(IsolatedHeader) != "true" || shape.Header.Get(HiddenHeader) != "0" {
		t.Errorf("no members: %s, %v", b, shape.Header)
	}
	var filter StateFilter
	if filter.UnmarshalText([]byte("all")) != nil || filter.UnmarshalText([]byte("dead")) == nil || filter.UnmarshalText(nil) == nil {
		t.Error("state is something else than \"all\"")
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
	all := &gossip.Members{}
	for i := range 20 {
		all.Refused = append(all.Refused, gossip.Refusal{Node: fmt.Sprintf("n%02d", i), Cluster: "c", Reason: gossip.Endpoint, Detail: "apiEndpoint: 10.0.0.1\r\nSet-Cookie: é" + strings.Repeat("x", 9000)})
	}
	shape, err := Of(all, Request{}).Shape("")
	if err != nil {
		t.Fatal(err)
	}
	values := shape.Header.Values(RefusedHeader)
	if len(values) != maxRefused || !strings.HasPrefix(values[0], "n00 of cluster c: apiEndpoint: 10.0.0.1??Set-Cookie: ?") || len(values[0]) > 400 {
		t.Errorf("%d values, the first is %.80q", len(values), values)
	}
	if shape, _ := Of(&gossip.Members{}, Request{}).Shape(""); len(shape.Header.Values(RefusedHeader)) != 0 {
		t.Error("nobody is refused, and it says so of somebody")
	}
}

// TestPage: the page for browsers has a content security policy that forbids everything (DSC-11).
func TestPage(t *testing.T) {
	list := List{page: func(List) ([]byte, error) { return []byte("<p>"), nil }}
	shape, err := list.Shape("text/html")
	if err != nil {
		t.Fatal(err)
	}
	if string(shape.Body.([]byte)) != "<p>" {
		t.Errorf("the page is %q", shape.Body)
	}
	if csp := shape.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") || shape.ContentType != "text/html; charset=utf-8" {
		t.Errorf("it is %s under %q", shape.ContentType, csp)
	}
}
