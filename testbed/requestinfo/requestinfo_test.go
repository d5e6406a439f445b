// Package requestinfo_test compares how the adapter and the API server parse a request. The adapter must reject a
// request that the two could parse differently (PX-10).
package requestinfo_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// factory is the same as in every API server.
var factory = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// reading contains the attributes by which a request is routed and authorized.
type reading struct {
	resource                                                         bool
	verb, group, version, kind, subresource, namespace, name, ls, fs string
}

// differs parses a request in both ways. accepted is false if the adapter rejects it.
func differs(method, target string) (accepted bool, _ error) {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return false, nil // neither server receives it
	}
	ours, err := apiproxy.ParseRequest(method, u)
	if err != nil {
		return false, nil
	}
	theirs, err := factory.NewRequestInfo(&http.Request{Method: method, URL: u})
	if err != nil {
		return true, fmt.Errorf("%s %s: we read %+v, the API server refuses: %w", method, target, ours, err)
	}
	a := reading{!ours.NonResource, ours.Verb, ours.Group, ours.Version, ours.Resource, ours.Subresource, ours.Namespace, ours.Name,
		ours.Params.LabelSelector, ours.Params.FieldSelector}
	b := reading{theirs.IsResourceRequest, theirs.Verb, theirs.APIGroup, theirs.APIVersion, theirs.Resource, theirs.Subresource, theirs.Namespace, theirs.Name,
		theirs.LabelSelector, theirs.FieldSelector}
	if ours.WatchPrefix {
		a.ls, a.fs = "", "" // the API server does not use them for authorization there
	}
	if a != b {
		return true, fmt.Errorf("%s %s:\nwe read        %+v\nthe API server %+v", method, target, a, b)
	}
	if ours.Path != theirs.Path {
		return true, fmt.Errorf("%s %s: our path is %q, the API server's %q", method, target, ours.Path, theirs.Path)
	}
	return true, nil
}

var methods = []string{"GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND"}

// pieces are valid and invalid parts of paths and queries.
var (
	segments = []string{"api", "apis", "v1", "apps", "namespaces", "namespaces", "watch", "proxy", "pods", "deployments", "status", "finalize", "a", "b", "exec", "Exec",
		"log", "scale", "system:node", "system%3Anode", "..", ".", "%2e%2e", "%2F", "a%2Fb", "", "a;b", `a\b`, "%25", "%20", "ä", "%ff", "*", "-", "healthz", "version", "%00"}
	queries = []string{"watch=1", "watch=true", "watch=TRUE", "watch=0", "watch=false", "watch=", "watch", "Watch=1", "watch=no", "limit=5", "limit=x", "limit=", "continue=abc",
		"fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3D%3Da", "fieldSelector=metadata.name%21%3Da", "fieldSelector=metadata.name%3Da,spec.x%3Db",
		"fieldSelector=spec.x%3Db,metadata.name%3Da", "fieldSelector=metadata.name%3Db,metadata.name%3Da", `fieldSelector=metadata.name%3Da%5C%2Cb`, "fieldSelector=metadata.name%3D", "fieldSelector=a",
		"fieldSelector=metadata.name%3D..", "fieldSelector=metadata.name%3Da%252Fb", "fieldSelector=,", "labelSelector=a%3Db", "labelSelector=a%20in%20(b,c)", "labelSelector=%3D%3D", "labelSelector=!a",
		"resourceVersion=0", "resourceVersionMatch=Exact", "resourceVersionMatch=x", "sendInitialEvents=true", "sendInitialEvents=x", "allowWatchBookmarks=1", "timeoutSeconds=5", "timeoutSeconds=x",
		"dryRun=All", "a=%zz", "a;b", "pretty=1", "shardSelector=x"}
)

// target builds a request: a plausible one, with some random errors.
func target(r *rand.Rand) (method, path string) {
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	var parts []string
	switch r.IntN(4) {
	case 0:
		parts = []string{"api", "v1"}
	case 1:
		parts = []string{"apis", "apps", "v1"}
	}
	if len(parts) > 0 && r.IntN(8) == 0 {
		parts = append(parts, "watch")
	}
	if len(parts) > 0 && r.IntN(2) == 0 {
		parts = append(parts, "namespaces", "a")
	}
	for range r.IntN(5) {
		parts = append(parts, pick(segments[:19]))
	}
	if r.IntN(6) == 0 && len(parts) > 0 {
		parts[r.IntN(len(parts))] = pick(segments)
	}
	path = "/" + strings.Join(parts, "/")
	if r.IntN(10) == 0 {
		path += "/"
	}
	var q []string
	for range r.IntN(4) {
		q = append(q, pick(queries))
	}
	if len(q) > 0 {
		path += "?" + strings.Join(q, "&")
	}
	return pick(methods), path
}

// PX-10: for every request that the adapter accepts, the API server parses the same attributes.
func TestReadsAsTheAPIServer(t *testing.T) {
	const tries = 200_000
	r := rand.New(rand.NewPCG(1, 2))
	accepted, failed := 0, 0
	for range tries {
		ok, err := differs(target(r))
		if ok {
			accepted++
		}
		if err != nil {
			t.Error(err)
			if failed++; failed > 10 {
				t.FailNow()
			}
		}
	}
	if accepted < tries/10 {
		t.Errorf("only %d of %d requests were accepted: nothing much was compared", accepted, tries)
	}
	t.Logf("%d of %d requests accepted", accepted, tries)
}

// FuzzReadsAsTheAPIServer searches for a request that the two parse differently.
func FuzzReadsAsTheAPIServer(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		method, path := target(r)
		f.Add(method, path)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if _, err := differs(method, target); err != nil {
			t.Fatal(err)
		}
	})
}
