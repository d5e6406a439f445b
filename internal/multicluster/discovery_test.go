package multicluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fakeDiscovery is a cluster that serves documents.
type fakeDiscovery struct {
	mu       sync.Mutex
	docs     map[string]string // by path; "|" separates an encoding
	down     bool
	requests []string
	tags     bool // it supports ETags
}

func (s *fakeDiscovery) set(down bool) { s.mu.Lock(); s.down = down; s.mu.Unlock() }

func (s *fakeDiscovery) fetch(_ context.Context, path string, header http.Header) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	doc, there := s.docs[path+"|"+header.Get("Accept")]
	if !there {
		doc, there = s.docs[path]
	}
	switch tag := fmt.Sprintf(`"%d"`, len(doc)); {
	case !there:
		rec.WriteHeader(http.StatusNotFound)
	case s.tags && header.Get("If-None-Match") == tag:
		s.requests = append(s.requests, "304 "+path)
		rec.WriteHeader(http.StatusNotModified)
	default:
		s.requests = append(s.requests, "200 "+path)
		rec.Header().Set("ETag", tag)
		rec.Header().Set("Content-Type", "application/json")
		if path == "/api" || path == "/apis" {
			rec.Header().Set("Content-Type", aggregatedV2)
		}
		io.WriteString(rec, doc)
	}
	return rec.Result(), nil
}

const (
	homeCore = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"creationTimestamp":null},"versions":[{"version":"v1","freshness":"Current","resources":[
		{"resource":"pods","responseKind":{"group":"","version":"","kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":["get","list","watch"],"shortNames":["po"],"categories":["all"],"later":{"x":1},
		 "subresources":[{"subresource":"eviction","responseKind":{"group":"policy","version":"v1","kind":"Eviction"},"verbs":["create"]},{"subresource":"log","responseKind":{"group":"","version":"","kind":"Pod"},"verbs":["get"]}]},
		{"resource":"nodes","responseKind":{"group":"","version":"","kind":"Node"},"scope":"Cluster","singularResource":"node","verbs":["get"]}]}]}]}`
	homeApis = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1","freshness":"Current","resources":[
		{"resource":"deployments","responseKind":{"group":"apps","version":"v1","kind":"Deployment"},"scope":"Namespaced","singularResource":"deployment","verbs":["get","list"]}]}]},
		{"metadata":{"name":"example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[
		{"resource":"cars","responseKind":{"group":"example.com","version":"v1","kind":"Car"},"scope":"Namespaced","singularResource":"car","verbs":["get"]}]}]}]}`
	eastApis = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"example.com"},"versions":[{"version":"v2","freshness":"Current","resources":[
		{"resource":"cars","responseKind":{"group":"example.com","version":"v2","kind":"Car"},"scope":"Namespaced","singularResource":"car","verbs":["get"]}]},{"version":"v1","freshness":"Current","resources":[
		{"resource":"cars","responseKind":{"group":"example.com","version":"v1","kind":"Other"},"scope":"Cluster","singularResource":"car","verbs":["get"]},
		{"resource":"boats","responseKind":{"group":"example.com","version":"v1","kind":"Boat"},"scope":"Cluster","singularResource":"boat","verbs":["get"]}]}]},
		{"metadata":{"name":"jobs.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[
		{"resource":"runs","responseKind":{"group":"jobs.example.com","version":"v1","kind":"Run"},"scope":"Namespaced","singularResource":"run","verbs":["get","list"]}]}]},
		{"metadata":{"name":"hidden.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[]}]}]}`
	emptyCore = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[]}`
)

func newTestDiscovery(t *testing.T) (c *mergedDiscovery, home, east *fakeDiscovery, url string) {
	t.Helper()
	home = &fakeDiscovery{docs: map[string]string{"/api": homeCore, "/apis": homeApis}, tags: true}
	east = &fakeDiscovery{docs: map[string]string{"/api": emptyCore, "/apis": eastApis}, tags: true}
	c = &mergedDiscovery{
		Sources: []*discoverySource{{Name: "here", Fetch: home.fetch}, {Name: "east", Fetch: east.fetch, Shows: func(group, _ string) bool { return group != "hidden.example.com" }}},
		OnError: func(cluster string, err error) { t.Logf("%s: %v", cluster, err) },
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isDiscoveryPath(r.URL.Path) {
			t.Errorf("asked for %s", r.URL.Path)
		}
		switch err := c.Serve(w, r); {
		case errors.Is(err, errDiscoveryNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case errors.Is(err, errDiscoveryNotAcceptable):
			http.Error(w, err.Error(), http.StatusNotAcceptable)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	return c, home, east, srv.URL
}

func getDocument(t *testing.T, url, accept string, more ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	for i := 0; i < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// ADP-15: client-go reads the union by both forms of discovery. A RESTMapper finds a kind that only a member
// has.
func TestUnion(t *testing.T) {
	_, _, _, url := newTestDiscovery(t)
	want := map[string][]string{
		"v1": {"nodes", "pods", "pods/eviction", "pods/log"}, "apps/v1": {"deployments"},
		"example.com/v1": {"boats", "cars"}, "example.com/v2": {"cars"}, "jobs.example.com/v1": {"runs"},
	}
	var forms []string
	for _, legacy := range []bool{false, true} {
		d := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: url})
		d.UseLegacyDiscovery = legacy
		groups, lists, err := d.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		have := map[string][]string{}
		for _, l := range lists {
			for _, r := range l.APIResources {
				have[l.GroupVersion] = append(have[l.GroupVersion], r.Name)
				if r.Name == "cars" && l.GroupVersion == "example.com/v1" && (r.Kind != "Car" || !r.Namespaced) {
					t.Errorf("another cluster overrides the home cluster's entry: %+v", r)
				}
				if r.Name == "pods/eviction" && (r.Group != "policy" || r.Kind != "Eviction" || !r.Namespaced) {
					t.Errorf("%+v", r)
				}
				if r.Name == "pods" && (r.SingularName != "pod" || !slices.Equal(r.ShortNames, []string{"po"}) || !slices.Equal(r.Categories, []string{"all"})) {
					t.Errorf("%+v", r)
				}
			}
			slices.Sort(have[l.GroupVersion])
		}
		if !maps.EqualFunc(have, want, slices.Equal) {
			t.Errorf("legacy %v: %v, want %v", legacy, have, want)
		}
		names := []string{}
		for _, g := range groups {
			names = append(names, g.Name+":"+g.PreferredVersion.Version)
		}
		forms = append(forms, strings.Join(names, " "))
		mapper := restmapper.NewDeferredDiscoveryRESTMapper(memCache{d})
		switch m, err := mapper.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Boat"}); {
		case err != nil:
			t.Errorf("legacy: %v; legacy = %v", err, legacy)
		case m.Resource.Resource != "boats":
			t.Errorf("legacy: m.Resource.Resource = %q, want %q; legacy = %v", m.Resource.Resource, "boats", legacy)
		case m.Scope.Name() != "root":
			t.Errorf("legacy: m.Scope.Name() = %q, want %q; legacy = %v", m.Scope.Name(), "root", legacy)
		}
	}
	if wantOrder := ":v1 apps:v1 example.com:v1 jobs.example.com:v1"; forms[0] != wantOrder || forms[1] != wantOrder {
		t.Errorf("groups %q, want %q in both forms", forms, wantOrder)
	}
	if _, body := getDocument(t, url+"/apis", aggregatedV2); !strings.Contains(body, `"later":{"x":1}`) {
		if _, body = getDocument(t, url+"/api", aggregatedV2); !strings.Contains(body, `"later":{"x":1}`) {
			t.Error("an unknown field is lost")
		}
	}
}

// memCache makes a mapper read discovery again.
type memCache struct{ *discovery.DiscoveryClient }

func (memCache) Fresh() bool { return true }
func (memCache) Invalidate() {}

// TestETags checks that unchanged documents are not sent again, either by the clusters or to the client.
func TestETags(t *testing.T) {
	c, home, east, url := newTestDiscovery(t)
	var changed, same [2]atomic.Int64 // of discovery, of OpenAPI
	c.OnFetch = func(openAPI, new bool) {
		of := 0
		if openAPI {
			of = 1
		}
		if new {
			changed[of].Add(1)
		} else {
			same[of].Add(1)
		}
	}
	res, _ := getDocument(t, url+"/apis", aggregatedV2+",application/json")
	tag := res.Header.Get("ETag")
	switch {
	case res.StatusCode != 200:
		t.Fatalf("res.StatusCode = %v, want 200", res.StatusCode)
	case res.Header.Get("Content-Type") != aggregatedV2:
		t.Fatalf(`res.Header.Get("Content-Type") != aggregatedV2; %d, %v`, res.StatusCode, res.Header)
	case tag == "":
		t.Fatalf("tag is empty; %d, %v", res.StatusCode, res.Header)
	case res.Header.Get("Vary") != "Accept":
		t.Fatalf(`res.Header.Get("Vary") != "Accept"; %d, %v`, res.StatusCode, res.Header)
	}
	if res, body := getDocument(t, url+"/apis", aggregatedV2, "If-None-Match", tag); res.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	if res, _ := getDocument(t, url+"/apis", mediaTypeJSON, "If-None-Match", tag); res.StatusCode != 200 || res.Header.Get("ETag") == tag {
		t.Errorf("the other format has the same ETag: %d %v", res.StatusCode, res.Header)
	}
	for _, s := range []*fakeDiscovery{home, east} {
		if want := []string{"200 /apis", "304 /apis", "304 /apis"}; !slices.Equal(s.requests, want) {
			t.Errorf("asked %v, want %v", s.requests, want)
		}
	}
	east.docs["/apis"] = strings.Replace(eastApis, "boats", "rowingboats", 1)
	if res, body := getDocument(t, url+"/apis", aggregatedV2, "If-None-Match", tag); res.StatusCode != 200 || !strings.Contains(body, "rowingboats") {
		t.Errorf("a changed member: %d %s", res.StatusCode, body)
	}
	home.docs["/openapi/v3"] = `{"paths":{"version":{"serverRelativeURL":"/openapi/v3/version?hash=0"}}}`
	east.docs["/openapi/v3"] = home.docs["/openapi/v3"]
	for range 3 {
		if _, body := getDocument(t, url+"/openapi/v3", mediaTypeJSON); !strings.Contains(body, "hash=0") {
			t.Errorf("an index: %s", body)
		}
	}
	for i, want := range [][2]int64{{3, 5}, {2, 4}} {
		if got := [2]int64{changed[i].Load(), same[i].Load()}; got != want {
			t.Errorf("changed and same: %v, want %v", got, want)
		}
	}
}

// ADP-15: the discovery of a member that is down is stale and not removed. A Warning names a member that was
// never reached.
func TestMemberDown(t *testing.T) {
	_, home, east, url := newTestDiscovery(t)
	east.set(true)
	res, body := getDocument(t, url+"/apis", mediaTypeJSON)
	switch {
	case res.StatusCode != 200:
		t.Errorf("res.StatusCode = %v, want 200", res.StatusCode)
	case strings.Contains(body, "jobs.example.com"):
		t.Errorf("body = %q contains %q", body, "jobs.example.com")
	case !strings.Contains(res.Header.Get("Warning"), "cluster east"):
		t.Errorf(`strings.Contains(res.Header.Get("Warning"), "cluster east") is false; %d, %v, body = %s`,
			res.StatusCode, res.Header, body)
	}
	if res, body := getDocument(t, url+"/apis/jobs.example.com", mediaTypeJSON); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "east") {
		t.Errorf("a group that may be the member's: %d %s", res.StatusCode, body)
	}
	east.set(false)
	getDocument(t, url+"/apis", mediaTypeJSON)
	east.set(true)
	_, body = getDocument(t, url+"/apis", aggregatedV2)
	var l apiGroupList
	if err := json.Unmarshal([]byte(body), &l); err != nil {
		t.Fatal(err)
	}
	fresh := map[string]string{}
	for _, g := range l.Items {
		for _, v := range g.Versions {
			fresh[g.Metadata.Name+"/"+v.Version] = v.Freshness
		}
	}
	want := map[string]string{"apps/v1": "Current", "example.com/v1": "Stale", "example.com/v2": "Stale", "jobs.example.com/v1": "Stale"}
	if !maps.Equal(fresh, want) {
		t.Errorf("%v, want %v", fresh, want)
	}
	d := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: url})
	if _, _, err := d.ServerGroupsAndResources(); !discovery.IsGroupDiscoveryFailedError(err) || strings.Contains(err.Error(), "apps/v1") {
		t.Errorf("client-go: %v", err)
	}
	east.set(false)
	if _, body := getDocument(t, url+"/apis", aggregatedV2); strings.Contains(body, "Stale") {
		t.Error("still stale")
	}
	home.set(true)
	if res, body := getDocument(t, url+"/apis", aggregatedV2); res.StatusCode != 200 || !strings.Contains(body, "Stale") {
		t.Errorf("home down: %d %s", res.StatusCode, body)
	}
}

func TestHomeUnknown(t *testing.T) {
	_, home, _, url := newTestDiscovery(t)
	home.set(true)
	if res, body := getDocument(t, url+"/apis", mediaTypeJSON); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "cluster here") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

func TestDiscoveryForms(t *testing.T) {
	_, _, _, url := newTestDiscovery(t)
	for _, tt := range []struct {
		path, accept string
		status       int
		contentType  string
		has          string
	}{
		{"/api", "*/*", 200, mediaTypeJSON, `"kind":"APIVersions","versions":["v1"]`},
		{"/api", aggregatedV2 + ";profile=nopeer", 200, aggregatedV2, `"APIGroupDiscoveryList"`},
		{"/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json", 200, mediaTypeJSON, `"APIGroupList"`},
		{"/apis", "application/vnd.kubernetes.protobuf", 406, "", ""},
		{"/apis", "application/vnd.kubernetes.protobuf,application/json", 200, mediaTypeJSON, `"APIGroupList"`},
		{"/apis/example.com", mediaTypeJSON, 200, mediaTypeJSON, `{"kind":"APIGroup","apiVersion":"v1","name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"},{"groupVersion":"example.com/v2","version":"v2"}],"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}`},
		{"/apis/example.com/v2", mediaTypeJSON, 200, mediaTypeJSON, `"groupVersion":"example.com/v2","resources":[{"name":"cars","singularName":"car","namespaced":true,"kind":"Car","verbs":["get"]}]`},
		{"/apis/example.com/v2", aggregatedV2, 406, "", ""},
		{"/api/v1", mediaTypeJSON, 200, mediaTypeJSON, `"name":"pods/eviction","singularName":"","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]`},
		{"/apis/hidden.example.com/v1", mediaTypeJSON, 404, "", ""},
		{"/apis/nobody.example.com", mediaTypeJSON, 404, "", ""},
		{"/api/v9", mediaTypeJSON, 404, "", ""},
	} {
		res, body := getDocument(t, url+tt.path, tt.accept)
		switch {
		case res.StatusCode != tt.status:
			t.Errorf("GET %s: res.StatusCode = %v, want %v; %s", tt.path, res.StatusCode, tt.status, tt.accept)
		case tt.contentType != "" && res.Header.Get("Content-Type") != tt.contentType:
			t.Errorf(`GET %s: tt.contentType != "" && res.Header.Get("Content-Type") != tt.contentType, %s, %d, %s, body = %s`,
				tt.path, tt.accept, res.StatusCode, res.Header.Get("Content-Type"), body)
		case !strings.Contains(body, tt.has):
			t.Errorf("GET %s: body = %q does not contain %q; %s", tt.path, body, tt.has, tt.accept)
		}
	}
}

func TestIsDiscoveryPath(t *testing.T) {
	for path, want := range map[string]bool{
		"/api": true, "/api/": true, "/apis": true, "/api/v1": true, "/apis/apps": true, "/apis/apps/v1": true, "/openapi/v2": true, "/openapi/v3": true, "/openapi/v3/apis/apps/v1": true,
		"/": false, "/api/v1/pods": false, "/apis/apps/v1/deployments": false, "/version": false, "/openapi": false, "/apix": false, "/healthz": false,
	} {
		if got := isDiscoveryPath(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestScope(t *testing.T) {
	c, _, _, url := newTestDiscovery(t)
	if c.Scope("", "pods").Known {
		t.Error("known before the first request")
	}
	getDocument(t, url+"/api", mediaTypeJSON)
	getDocument(t, url+"/apis", mediaTypeJSON)
	for _, tt := range []struct {
		group, resource string
		want            discoveredScope
	}{
		{"", "pods", discoveredScope{true, true}}, {"", "nodes", discoveredScope{false, true}}, {"example.com", "cars", discoveredScope{true, true}}, {"example.com", "boats", discoveredScope{false, true}}, {"", "cars", discoveredScope{}},
	} {
		if got := c.Scope(tt.group, tt.resource); got != tt.want {
			t.Errorf("%s/%s: %+v", tt.group, tt.resource, got)
		}
	}
}

// TestOpenAPIv3 checks OpenAPI v3. A document of one cluster is passed through. A document of several
// clusters is merged and has a new hash.
func TestOpenAPIv3(t *testing.T) {
	_, home, east, url := newTestDiscovery(t)
	home.docs["/openapi/v3"] = `{"paths":{"version":{"serverRelativeURL":"/openapi/v3/version?hash=0"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=A"},"apis/example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/example.com/v1?hash=B"}}}`
	east.docs["/openapi/v3"] = `{"paths":{"version":{"serverRelativeURL":"/openapi/v3/version?hash=9"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=A"},"apis/example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/example.com/v1?hash=C"},"apis/jobs.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/jobs.example.com/v1?hash=D"},"apis/hidden.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/hidden.example.com/v1?hash=E"}}}`
	home.docs["/openapi/v3/apis/apps/v1?hash=A"] = `{"home":true}`
	home.docs["/openapi/v3/apis/example.com/v1?hash=B"] = `{"openapi":"3.0.0","paths":{"/a":{"x":1}},"components":{"schemas":{"Car":{"h":1}}}}`
	east.docs["/openapi/v3/apis/example.com/v1?hash=C"] = `{"openapi":"3.0.1","paths":{"/a":{"x":2},"/b":{}},"components":{"schemas":{"Car":{"e":1},"Boat":{}},"securitySchemes":{"s":{}}}}`
	east.docs["/openapi/v3/apis/jobs.example.com/v1?hash=D"] = `{"east":true}`
	_, body := getDocument(t, url+"/openapi/v3", mediaTypeJSON)
	var x openAPIIndex
	if err := json.Unmarshal([]byte(body), &x); err != nil {
		t.Fatal(err)
	}
	switch {
	case len(x.Paths) != 4:
		t.Errorf("len(x.Paths) = %v, want 4", len(x.Paths))
	case x.Paths["apis/apps/v1"].ServerRelativeURL != "/openapi/v3/apis/apps/v1?hash=A":
		t.Errorf("got %q, want %q", x.Paths["apis/apps/v1"].ServerRelativeURL, "/openapi/v3/apis/apps/v1?hash=A")
	case x.Paths["version"].ServerRelativeURL != "/openapi/v3/version?hash=0":
		t.Errorf(`x.Paths["version"].ServerRelativeURL = %q, want %q`, x.Paths["version"].ServerRelativeURL, "/openapi/v3/version?hash=0")
	}
	joined := x.Paths["apis/example.com/v1"].ServerRelativeURL
	if openAPIHash(joined) == "B" || openAPIHash(joined) == "" {
		t.Errorf("joined at %s", joined)
	}
	for path, want := range map[string]string{
		x.Paths["apis/apps/v1"].ServerRelativeURL:             `{"home":true}`,
		x.Paths["apis/jobs.example.com/v1"].ServerRelativeURL: `{"east":true}`,
		joined: `{"components":{"schemas":{"Boat":{},"Car":{"h":1}},"securitySchemes":{"s":{}}},"openapi":"3.0.0","paths":{"/a":{"x":1},"/b":{}}}`,
	} {
		if res, body := getDocument(t, url+path, mediaTypeJSON); res.StatusCode != 200 || body != want {
			t.Errorf("%s: %d %s, want %s", path, res.StatusCode, body, want)
		}
	}
	if res, _ := getDocument(t, url+joined, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"); res.StatusCode != http.StatusNotAcceptable {
		t.Errorf("joined as protobuf: %d", res.StatusCode)
	}
	if res, _ := getDocument(t, url+"/openapi/v3/apis/hidden.example.com/v1?hash=E", mediaTypeJSON); res.StatusCode != 404 {
		t.Errorf("hidden: %d", res.StatusCode)
	}
	east.set(true)
	if res, body := getDocument(t, url+"/openapi/v3", mediaTypeJSON); res.StatusCode != 200 || !strings.Contains(body, "jobs.example.com") {
		t.Errorf("a member is down: %d %s", res.StatusCode, body)
	}
	switch res, body := getDocument(t, url+joined, mediaTypeJSON); {
	case res.StatusCode != 200:
		t.Errorf("a member is down: res.StatusCode = %v, want 200", res.StatusCode)
	case !strings.Contains(body, `"h":1`):
		t.Errorf("a member is down: body = %q does not contain %q", body, `"h":1`)
	case !strings.Contains(res.Header.Get("Warning"), "east"):
		t.Errorf(`a member is down: strings.Contains(res.Header.Get("Warning"), "east") is false; %d, %v, body = %s`,
			res.StatusCode, res.Header, body)
	}
}

// swaggerProto returns an OpenAPI v2 document in the protobuf format of gnostic.
func swaggerProto(title string, paths []string, kinds map[string]string) string {
	message := func(fields ...any) (b []byte) { // pairs of number and text
		for i := 0; i < len(fields); i += 2 {
			b = protowire.AppendTag(b, protowire.Number(fields[i].(int)), protowire.BytesType)
			b = protowire.AppendString(b, fmt.Sprint(fields[i+1]))
		}
		return b
	}
	var items, schemas []any
	for _, p := range paths {
		items = append(items, pathsItem, string(message(namedName, p, 2, "")))
	}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		schemas = append(schemas, definitionsItem, string(message(namedName, k, 2, string(message(4, kinds[k])))))
	}
	return string(message(1, "2.0", 2, string(message(1, title, 2, "1")), swaggerPaths, string(message(items...)), swaggerDefinitions, string(message(schemas...))))
}

// TestOpenAPIv2 checks both forms of OpenAPI v2; it reads the protobuf form as client-go does.
func TestOpenAPIv2(t *testing.T) {
	_, home, east, url := newTestDiscovery(t)
	home.docs["/openapi/v2"] = `{"swagger":"2.0","info":{"title":"h","version":"1"},"paths":{"/version/":{},"/apis/example.com/v1/cars":{}},"definitions":{"Car":{"description":"home"}}}`
	east.docs["/openapi/v2"] = `{"swagger":"2.0","info":{"title":"e","version":"1"},"paths":{"/version/":{},"/logs":{},"/apis/example.com/v1/cars":{},"/apis/example.com/v1/boats":{},"/apis/hidden.example.com/v1/x":{}},"definitions":{"Car":{"description":"east"},"Boat":{"description":"east"}}}`
	home.docs["/openapi/v2|"+openAPIv2Proto] = swaggerProto("h", []string{"/version/", "/apis/example.com/v1/cars"}, map[string]string{"Car": "home"})
	east.docs["/openapi/v2|"+openAPIv2Proto] = swaggerProto("e", []string{"/version/", "/logs", "/apis/example.com/v1/cars", "/apis/example.com/v1/boats", "/apis/hidden.example.com/v1/x"}, map[string]string{"Car": "east", "Boat": "east"})
	const want = `{"definitions":{"Boat":{"description":"east"},"Car":{"description":"home"}},"info":{"title":"h","version":"1"},"paths":{"/apis/example.com/v1/boats":{},"/apis/example.com/v1/cars":{},"/version/":{}},"swagger":"2.0"}`
	if res, body := getDocument(t, url+"/openapi/v2", mediaTypeJSON); res.StatusCode != 200 || body != want {
		t.Errorf("%d %s, want %s", res.StatusCode, body, want)
	}
	d, err := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: url}).OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	var paths, kinds []string
	for _, p := range d.GetPaths().GetPath() {
		paths = append(paths, p.GetName())
	}
	for _, s := range d.GetDefinitions().GetAdditionalProperties() {
		kinds = append(kinds, s.GetName()+" "+s.GetValue().GetDescription())
	}
	switch {
	case !slices.Equal(paths, []string{"/version/", "/apis/example.com/v1/cars", "/apis/example.com/v1/boats"}):
		t.Errorf("paths (-want +got):\n%s",
			cmp.Diff([]string{"/version/", "/apis/example.com/v1/cars", "/apis/example.com/v1/boats"}, paths))
	case !slices.Equal(kinds, []string{"Car home", "Boat east"}):
		t.Errorf("kinds (-want +got):\n%s", cmp.Diff([]string{"Car home", "Boat east"}, kinds))
	case d.GetInfo().GetTitle() != "h":
		t.Errorf(`d.GetInfo().GetTitle() != "h"; paths = %v, kinds = %v, %v`, paths, kinds, d.GetInfo())
	}
	east.set(true)
	switch res, body := getDocument(t, url+"/openapi/v2", mediaTypeJSON); {
	case res.StatusCode != 200:
		t.Errorf("a member is down: res.StatusCode = %v, want 200", res.StatusCode)
	case strings.Contains(body, "boats"):
		t.Errorf("a member is down: body = %q contains %q", body, "boats")
	case !strings.Contains(res.Header.Get("Warning"), "east"):
		t.Errorf(`a member is down: strings.Contains(res.Header.Get("Warning"), "east") is false; %d, %v`, res.StatusCode, res.Header)
	}
}

// FuzzDocuments checks that no cluster's documents cause a panic, and that the merged ones can be parsed.
func FuzzDocuments(f *testing.F) {
	f.Add(homeApis, eastApis, `{"paths":{}}`)
	f.Add(`{"items":[{"versions":[{"version":"","resources":[{"resource":"x"}]}]}]}`, `{"items":[{"versions":[{"version":"","resources":[{}]}]}]}`, "\x42\x02\x12\x00")
	f.Fuzz(func(t *testing.T, a, b, swagger string) {
		home := &fakeDiscovery{docs: map[string]string{"/api": emptyCore, "/apis": a, "/openapi/v2": swagger, "/openapi/v3": swagger}}
		east := &fakeDiscovery{docs: map[string]string{"/api": emptyCore, "/apis": b, "/openapi/v2": swagger, "/openapi/v3": swagger}}
		c := &mergedDiscovery{Sources: []*discoverySource{{Name: "here", Fetch: home.fetch}, {Name: "east", Fetch: east.fetch}}, OnError: func(string, error) {}}
		for path, accept := range map[string]string{"/apis": aggregatedV2, "/apis/apps": mediaTypeJSON, "/openapi/v2": mediaTypeJSON, "/openapi/v3": mediaTypeJSON} {
			rec := httptest.NewRecorder()
			req := httptest.NewRequest(http.MethodGet, path, nil)
			req.Header.Set("Accept", accept)
			if err := c.Serve(rec, req); err == nil && !json.Valid(rec.Body.Bytes()) {
				t.Fatalf("%s: %q", path, rec.Body)
			}
		}
		rec := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/openapi/v2", nil)
		req.Header.Set("Accept", openAPIv2Proto)
		c.Serve(rec, req)
	})
}

// ADP-15: HasResource is certain for a cluster that answered. It is not for one that did not answer, or whose
// aggregated API server did not.
func TestHasResource(t *testing.T) {
	home := &fakeDiscovery{docs: map[string]string{"/api": homeCore, "/apis": homeApis}}
	east := &fakeDiscovery{docs: map[string]string{"/api": homeCore, "/apis": strings.Replace(eastApis, `"version":"v2","freshness":"Current"`, `"version":"v2","freshness":"Stale"`, 1)}}
	c := &mergedDiscovery{OnError: func(string, error) {}, Sources: []*discoverySource{{Name: "home", Fetch: home.fetch}, {Name: "east", Shows: func(string, string) bool { return false }, Fetch: east.fetch}}}
	has := func(why, cluster, group, version, resource string, want, wantKnown bool) {
		t.Helper()
		if got, known := c.HasResource(cluster, group, version, resource); got != want || known != wantKnown {
			t.Errorf("%s: has %v, known %v", why, got, known)
		}
	}
	has("nobody was asked", "east", "example.com", "v1", "boats", false, false)
	for _, cluster := range []string{"home", "east"} {
		if err := c.RefreshCluster(t.Context(), cluster, "example.com"); err != nil {
			t.Fatal(err)
		}
	}
	has("it has it, though it is shown to nobody", "east", "example.com", "v1", "boats", true, true)
	has("in some version", "east", "example.com", "", "boats", true, false)
	has("another cluster has it", "home", "example.com", "v1", "boats", false, true)
	has("another version", "home", "example.com", "v2", "cars", false, true)
	has("no such group", "home", "nothing.example.com", "", "cars", false, true)
	has("a part of it does not answer", "east", "example.com", "v2", "boats", false, false)
	has("the core group was not asked for", "home", "", "v1", "pods", false, false)
	if err := c.RefreshCluster(t.Context(), "home", ""); err != nil {
		t.Fatal(err)
	}
	has("and now it was", "home", "", "v1", "pods", true, true)
	has("nobody of that name", "west", "", "v1", "pods", false, false)
	home.set(true)
	if c.RefreshCluster(t.Context(), "home", "") == nil || c.RefreshCluster(t.Context(), "west", "") == nil {
		t.Error("the refresh of a cluster that is down or missing succeeds")
	}
	has("it is down now", "home", "", "v1", "pods", true, false)
	has("and may have got it since", "home", "", "v1", "boats", false, false)
}
