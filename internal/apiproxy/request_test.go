package apiproxy

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// parsed parses a target as a server does.
func parsed(t *testing.T, method, target string) (Request, error) {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	return ParseRequest(method, u)
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		method, target string
		want           Request // except Path
		why            string
	}{
		{"GET", "/", Request{NonResource: true, Verb: "get"}, "the root"},
		{"GET", "/version", Request{NonResource: true, Verb: "get"}, ""},
		{"POST", "/logs/x", Request{NonResource: true, Verb: "post"}, ""},
		{"GET", "/api/v1", Request{NonResource: true, Verb: "get"}, "discovery"},
		{"GET", "/apis/apps/v1", Request{NonResource: true, Verb: "get"}, "discovery"},
		{"GET", "/apis/apps/v1/", Request{NonResource: true, Verb: "get"}, "discovery"},
		{"GET", "/openapi/v3/apis/apps/v1?hash=1;2", Request{NonResource: true, Verb: "get"}, "its query is not read"},
		{"GET", "/api/v1/pods", Request{Verb: "list", Version: "v1", Resource: "pods"}, ""},
		{"HEAD", "/api/v1/pods", Request{Verb: "list", Version: "v1", Resource: "pods"}, ""},
		{"GET", "/api/v1/pods/", Request{Verb: "list", Version: "v1", Resource: "pods"}, "one slash at the end is cut"},
		{"GET", "/api/v1/namespaces/a/pods/b/", Request{Verb: "get", Version: "v1", Resource: "pods", Namespace: "a", Name: "b"}, ""},
		{"POST", "/api/v1/namespaces/a/pods?dryRun=All", Request{Verb: "create", Version: "v1", Resource: "pods", Namespace: "a", Params: RequestParams{DryRun: true}}, ""},
		{"PUT", "/apis/apps/v1/namespaces/a/deployments/b/scale", Request{Verb: "update", Group: "apps", Version: "v1", Resource: "deployments", Subresource: "scale", Namespace: "a", Name: "b"}, ""},
		{"PATCH", "/api/v1/nodes/n", Request{Verb: "patch", Version: "v1", Resource: "nodes", Name: "n"}, ""},
		{"DELETE", "/api/v1/namespaces/a/pods/b", Request{Verb: "delete", Version: "v1", Resource: "pods", Namespace: "a", Name: "b"}, ""},
		{"DELETE", "/api/v1/namespaces/a/pods?labelSelector=a%3Db", Request{Verb: "deletecollection", Version: "v1", Resource: "pods", Namespace: "a", Params: RequestParams{LabelSelector: "a=b"}}, "no name"},
		{"DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db", Request{Verb: "deletecollection", Version: "v1", Resource: "pods", Namespace: "a", Params: RequestParams{FieldSelector: "metadata.name=b"}}, "only of list and watch"},
		{"GET", "/api/v1/namespaces", Request{Verb: "list", Version: "v1", Resource: "namespaces"}, ""},
		{"GET", "/api/v1/namespaces/a", Request{Verb: "get", Version: "v1", Resource: "namespaces", Namespace: "a", Name: "a"}, ""},
		{"PUT", "/api/v1/namespaces/a/status", Request{Verb: "update", Version: "v1", Resource: "namespaces", Subresource: "status", Namespace: "a", Name: "a"}, ""},
		{"PUT", "/api/v1/namespaces/a/finalize", Request{Verb: "update", Version: "v1", Resource: "namespaces", Subresource: "finalize", Namespace: "a", Name: "a"}, ""},
		{"GET", "/api/v1/namespaces/a/other", Request{Verb: "list", Version: "v1", Resource: "other", Namespace: "a"}, ""},
		{"GET", "/api/v1/namespaces/a/pods/b/Exec", Request{Verb: "get", Version: "v1", Resource: "pods", Subresource: "Exec", Namespace: "a", Name: "b"}, "case is kept: the server knows no Exec"},
		{"POST", "/api/v1/namespaces/a/pods/b/exec?command=a&command=b", Request{Verb: "create", Version: "v1", Resource: "pods", Subresource: "exec", Namespace: "a", Name: "b"}, ""},
		{"POST", "/api/v1/namespaces/a/pods/b/eviction", Request{Verb: "create", Version: "v1", Resource: "pods", Subresource: "eviction", Namespace: "a", Name: "b"}, ""},
		{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode", Request{Verb: "get", Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles", Name: "system:node"}, "the Python client escapes the colon"},
		{"GET", "/apis/subresources.kubevirt.io/v1/namespaces/a/vmis/b/portforward/80/tcp", Request{Verb: "get", Group: "subresources.kubevirt.io", Version: "v1", Resource: "vmis", Subresource: "portforward", Namespace: "a", Name: "b", Tail: "/80/tcp"}, ""},

		{"GET", "/api/v1/pods?watch=1", Request{Verb: "watch", Version: "v1", Resource: "pods"}, ""},
		{"GET", "/api/v1/pods?watch=TRUE", Request{Verb: "watch", Version: "v1", Resource: "pods"}, ""},
		{"GET", "/api/v1/pods?watch", Request{Verb: "watch", Version: "v1", Resource: "pods"}, "what is there is true"},
		{"GET", "/api/v1/pods?watch=0", Request{Verb: "list", Version: "v1", Resource: "pods"}, ""},
		{"GET", "/api/v1/pods?watch=False", Request{Verb: "list", Version: "v1", Resource: "pods"}, ""},
		{"GET", "/api/v1/namespaces/a/pods/b?watch=1", Request{Verb: "get", Version: "v1", Resource: "pods", Namespace: "a", Name: "b"}, "a name is got"},
		{"GET", "/api/v1/watch/pods", Request{Verb: "watch", Version: "v1", Resource: "pods", WatchPrefix: true}, ""},
		{"GET", "/api/v1/watch/pods?watch=0", Request{Verb: "watch", Version: "v1", Resource: "pods", WatchPrefix: true}, "the path says it"},
		{"GET", "/apis/apps/v1/watch/namespaces/a/deployments/b", Request{Verb: "watch", Group: "apps", Version: "v1", Resource: "deployments", Namespace: "a", Name: "b", WatchPrefix: true}, ""},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Db", Request{Verb: "list", Version: "v1", Resource: "pods", Name: "b", Params: RequestParams{FieldSelector: "metadata.name=b"}}, ""},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name!%3Db", Request{Verb: "list", Version: "v1", Resource: "pods", Params: RequestParams{FieldSelector: "metadata.name!=b"}}, ""},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Da/b", Request{Verb: "list", Version: "v1", Resource: "pods", Params: RequestParams{FieldSelector: "metadata.name=a/b"}}, "no object has that name"},
		{"GET", "/api/v1/pods?watch=1&resourceVersion=5&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=9",
			Request{Verb: "watch", Version: "v1", Resource: "pods", Params: RequestParams{ResourceVersion: "5", ResourceVersionMatch: "NotOlderThan", SendInitialEvents: new(true), AllowWatchBookmarks: true, TimeoutSeconds: new(int64(9))}}, ""},
		{"GET", "/api/v1/pods?limit=500&continue=abc", Request{Verb: "list", Version: "v1", Resource: "pods", Params: RequestParams{Limit: 500, Continue: "abc"}}, ""},
		{"GET", "/api/v1/namespaces/a/pods/b?resourceVersion=5", Request{Verb: "get", Version: "v1", Resource: "pods", Namespace: "a", Name: "b", Params: RequestParams{ResourceVersion: "5"}}, ""},

		{"GET", "/api/v1/namespaces/a/services/https:b:c/proxy/..%2f//x/%2e/?a;b", Request{Verb: "get", Version: "v1", Resource: "services", Subresource: "proxy", Namespace: "a", Name: "https:b:c", Tail: "/..%2f//x/%2e/"}, "the tail is for who is behind it"},
		{"GET", "/api/v1/nodes/n/proxy/", Request{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: "n", Tail: "/"}, ""},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			got, err := parsed(t, tt.method, tt.target)
			if err != nil {
				t.Fatal(err)
			}
			got.Path = ""
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("read as %+v, want %+v: %s", got, tt.want, tt.why)
			}
		})
	}
}

// PX-08, PX-10: ParseRequest refuses ambiguous requests.
func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct {
		method, target string
		status         int
		says           string
	}{
		{"GET", "//evil/api", 400, "empty segment"},
		{"GET", "/api//v1/pods", 400, "empty segment"},
		{"GET", "/api/v1/pods//", 400, "empty segment"},
		{"GET", "/api/v1/../v1/pods", 400, `".."`},
		{"GET", "/healthz/%2e%2e/api/v1/secrets", 400, `".."`},
		{"GET", "/api/v1/./pods", 400, `"."`},
		{"GET", "/api/v1/namespaces/a%2Fpods/b", 400, "escaped slash"},
		{"GET", "/api/v1/namespaces/a%252Fpods/b", 400, "percent sign"},
		{"GET", "/api/v1/namespaces/a%5Cb/pods", 400, "backslash"},
		{"GET", "/api/v1/namespaces/a;b=c/pods", 400, "semicolon"},
		{"GET", "/api/v1/namespaces/a%00/pods", 400, "control character"},
		{"GET", "/api/v1/namespaces/a%ff/pods", 400, "UTF-8"},
		{"GET", "/api/v1/namespaces/a%2f/pods/b/proxy/x", 400, "escaped slash"},
		{"GET", "http://evil/api/v1/pods", 400, "has a host"},
		{"CONNECT", "/api/v1/pods", 400, "forward proxy"},
		{"OPTIONS", "*", 400, "does not begin with a slash"},
		{"TRACE", "/api/v1/pods", 405, "no method"},
		{"OPTIONS", "/api/v1/pods", 405, "no method"},
		{"POST", "/api/v1/watch/pods", 405, "GET"},
		{"GET", "/api/v1/watch", 400, "without a resource"},
		{"GET", "/api/v1/proxy/nodes/n", 400, "no longer"},
		{"GET", "/api/v1/pods?a=%zz", 400, "parse the query"},
		{"GET", "/api/v1/pods?a;b", 400, "parse the query"},
		{"GET", "/api/v1/pods?watch=0&watch=1", 400, "more than once"},
		{"GET", "/api/v1/pods?limit=x", 400, "limit is not a number"},
		{"GET", "/api/v1/pods?timeoutSeconds=1.5", 400, "timeoutSeconds is not a number"},
		{"GET", "/api/v1/pods?labelSelector=a%3D%3D%3Db", 400, "labelSelector"},
		{"GET", "/api/v1/pods?fieldSelector=a", 400, "fieldSelector"},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			got, err := parsed(t, tt.method, tt.target)
			refusal, ok := errors.AsType[*Refusal](err)
			if !ok {
				t.Fatalf("read as %+v (%v), want a refusal", got, err)
			}
			switch {
			case refusal.Status != tt.status:
				t.Errorf("refused: refusal.Status = %v, want %v", refusal.Status, tt.status)
			case refusal.Reason == "":
				t.Errorf("refused: refusal.Reason is empty; %d, %s, %q, %d, %q",
					refusal.Status, refusal.Reason, refusal.Message, tt.status, tt.says)
			case !strings.Contains(refusal.Message, tt.says):
				t.Errorf("refused: refusal.Message = %q does not contain %q", refusal.Message, tt.says)
			}
			if !reflect.DeepEqual(got, Request{}) {
				t.Errorf("a refused request returns %+v", got)
			}
		})
	}
}

// FuzzParse checks that an accepted request keeps its meaning when URLPath writes it again.
func FuzzParse(f *testing.F) {
	for _, target := range []string{"/", "/api/v1/pods?watch=1", "/apis/apps/v1/namespaces/a/deployments/b/scale", "/api/v1/namespaces/a/pods/b/proxy/..%2f",
		"/api/v1/watch/namespaces/a/pods", "/api/v1/namespaces/a/status", "/api/v1/pods?fieldSelector=metadata.name%3Db&limit=1", "/api/v1/nodes/%3f/"} {
		f.Add(http.MethodGet, target)
		f.Add(http.MethodDelete, target)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r, err := ParseRequest(method, u)
		if err != nil {
			switch refusal, ok := errors.AsType[*Refusal](err); {
			case !ok:
				t.Fatalf("ok is false; %v", err)
			case refusal.Status < 400:
				t.Fatalf("refusal.Status = %v, want at least 400", refusal.Status)
			case refusal.Message == "":
				t.Fatalf("refusal.Message is empty; %v", err)
			}
			return
		}
		again := r
		again.Path, again.WatchPrefix = "", false
		u2, err := url.ParseRequestURI(r.URLPath())
		if err != nil {
			t.Fatalf("%q of %+v: %v", r.URLPath(), r, err)
		}
		u2.RawQuery = u.RawQuery
		if r.WatchPrefix {
			return // its path implies watch, so the query may lack it
		}
		r2, err := ParseRequest(method, u2)
		if err != nil {
			t.Fatalf("%q of %+v: %v", r.URLPath(), r, err)
		}
		if r2.Path = ""; !reflect.DeepEqual(again, r2) {
			t.Fatalf("%q is %+v; written as %q it is %+v", target, again, r.URLPath(), r2)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	u, err := url.ParseRequestURI("/apis/apps/v1/namespaces/production/deployments?labelSelector=app%3Dweb&limit=500")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(http.MethodGet, u); err != nil {
			b.Fatal(err)
		}
	}
}

// TestObject checks the request for the object itself, which precedes a change of it.
func TestObject(t *testing.T) {
	for target, want := range map[string]string{
		"/api/v1/namespaces/a/pods/b/exec?command=x":                       "/api/v1/namespaces/a/pods/b",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode":    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
		"/api/v1/namespaces/a/finalize":                                    "/api/v1/namespaces/a",
		"/api/v1/namespaces/a/services/https:b:c/proxy/..%2f//x?y":         "/api/v1/namespaces/a/services/https:b:c",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles/%C3%A4%20b": "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles/%C3%A4%20b",
	} {
		r, err := parsed(t, http.MethodPut, target)
		if err != nil {
			t.Fatal(err)
		}
		o := r.ObjectRequest()
		switch got := o.URLPath(); {
		case got != want:
			t.Errorf("got = %q, want %q; target = %s", got, want, target)
		case o.Verb != "get":
			t.Errorf("o.Verb = %q, want %q; target = %s", o.Verb, "get", target)
		case o.Group != r.Group:
			t.Errorf("o.Group = %q, want %q; target = %s", o.Group, r.Group, target)
		case o.Resource != r.Resource:
			t.Errorf("o.Resource = %q, want %q; target = %s", o.Resource, r.Resource, target)
		case o.Namespace != r.Namespace:
			t.Errorf("o.Namespace = %q, want %q; target = %s", o.Namespace, r.Namespace, target)
		case o.Name != r.Name:
			t.Errorf("o.Name = %q, want %q; target = %s", o.Name, r.Name, target)
		}
		again, err := parsed(t, http.MethodGet, o.URLPath())
		if err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("%s is read as %+v, want %+v (%v)", o.URLPath(), again, o, err)
		}
	}
}
