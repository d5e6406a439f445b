package accessproxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

// PX-01. Header fields that Connection nominates cannot remove what the proxy sets, and are not forwarded. This applies to
// plain requests and to both kinds of upgrade. A nominated impersonation is refused, because the request would mean
// something else without it. The proxy refuses a request with two lengths.
//
// Guard: header, checkImpersonation and send in internal/accessproxy; framing.Listener.
func TestPX01_NominatedHeadersRemoveNoIdentity(t *testing.T) {
	e := start(t, nil)
	for _, name := range []string{"Authorization", "authorization", "Audit-Id", "X-Forwarded-For", "Content-Length", "Transfer-Encoding", "X-Mine", "Host", "Accept-Encoding"} {
		for _, k := range kinds {
			connection := strings.TrimPrefix(k.connection+", "+name, ", ")
			what := k.name + ", Connection: " + connection
			n := e.API.Count()
			status, body := e.RawStatus(t, aliceAt, k.head+"X-Mine: mine\r\nX-Forwarded-For: "+mark+"\r\nConnection: "+connection+"\r\n\r\n")
			got := e.API.Arrived(n)
			if status != k.status || len(got) != 1 {
				t.Errorf("%s: status %d, %d arrived: %s", what, status, len(got), body)
				continue
			}
			e.isFrom(t, what, got[0], e.alice)
			want := []string{"mine"}
			if name == "X-Mine" {
				want = nil
			}
			if diff := cmp.Diff(want, got[0].Header["X-Mine"]); diff != "" {
				t.Errorf("%s: X-Mine (-want +got):\n%s", what, diff)
			}
			if c := strings.Join(got[0].Header["Connection"], ","); c != k.connection {
				t.Errorf("%s: arrived with Connection: %q, want %q", what, c, k.connection)
			}
			if got[0].Host != e.API.URL.Host {
				t.Errorf("%s: arrived for the host %q", what, got[0].Host)
			}
		}
	}
	for _, name := range []string{"Impersonate-User", "impersonate-group", "Impersonate_User", "IMPERSONATE-USER"} {
		for _, k := range kinds {
			connection := strings.TrimPrefix(k.connection+", "+name, ", ")
			e.refused(t, k.name+", Connection: "+connection, e.raw(t, k.head+"Impersonate-User: admin\r\nImpersonate-Group: admins\r\nConnection: "+connection+"\r\n\r\n"), http.StatusBadRequest)
		}
	}
	post := strings.Replace(plainHead, "GET", "POST", 1)
	for name, text := range map[string]string{
		"two lengths":           post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
		"length and chunks":     post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"nominated, and both":   post + "Connection: Content-Length\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another encoding":      post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"upgrade with a body":   strings.Replace(spdyHead, "Content-Length: 0", "Content-Length: 2", 1) + "Connection: Upgrade\r\n\r\n{}",
		"upgrade with chunks":   strings.Replace(spdyHead, "Content-Length: 0", "Transfer-Encoding: chunked", 1) + "Connection: Upgrade\r\n\r\n0\r\n\r\n",
		"folded header":         plainHead + "X-A: b\r\n Authorization: Bearer x\r\n\r\n",
		"space before a colon":  plainHead + "Impersonate-User : admin\r\n\r\n",
		"bare line feed":        plainHead + "X-A: b\nImpersonate-User: admin\r\n\r\n",
		"the request line's LF": "GET /api/v1/pods HTTP/1.1\nHost: $HOST\r\n\r\n",
	} {
		e.unparsed(t, name, text)
	}
}

// An impersonation is a set of fields, and the fields that arrive at the API server.
type impersonation struct {
	name    string
	pairs   []string
	arrives http.Header
}

var wellFormed = []impersonation{
	{"a user", []string{"Impersonate-User", "admin"}, http.Header{"Impersonate-User": {"admin"}}},
	{"lower case", []string{"impersonate-user", "admin", "impersonate-group", "a"}, http.Header{"Impersonate-User": {"admin"}, "Impersonate-Group": {"a"}}},
	{"groups", []string{"Impersonate-User", "admin", "Impersonate-Group", "a", "Impersonate-Group", "system:masters"},
		http.Header{"Impersonate-User": {"admin"}, "Impersonate-Group": {"a", "system:masters"}}},
	{"a UID", []string{"Impersonate-User", "admin", "Impersonate-Uid", "1"}, http.Header{"Impersonate-User": {"admin"}, "Impersonate-Uid": {"1"}}},
	{"extras", []string{"Impersonate-User", "admin", "Impersonate-Extra-Scopes", "view", "Impersonate-Extra-Scopes", "edit", "Impersonate-Extra-Acme.com%2fProject", "x"},
		http.Header{"Impersonate-User": {"admin"}, "Impersonate-Extra-Scopes": {"view", "edit"}, "Impersonate-Extra-Acme.com%2fproject": {"x"}}},
	{"another ServiceAccount", []string{"Impersonate-User", "system:serviceaccount:shop:app"}, http.Header{"Impersonate-User": {"system:serviceaccount:shop:app"}}},
}

var malformed = []impersonation{
	{name: "twice", pairs: []string{"Impersonate-User", "admin", "Impersonate-User", "other"}},
	{name: "twice in two cases", pairs: []string{"Impersonate-User", "admin", "impersonate-user", "other"}},
	{name: "empty", pairs: []string{"Impersonate-User", ""}},
	{name: "an empty group", pairs: []string{"Impersonate-User", "admin", "Impersonate-Group", ""}},
	{name: "a group without a user", pairs: []string{"Impersonate-Group", "system:masters"}},
	{name: "a UID without a user", pairs: []string{"Impersonate-Uid", "0"}},
	{name: "an extra without a user", pairs: []string{"Impersonate-Extra-Scopes", "all"}},
	{name: "two UIDs", pairs: []string{"Impersonate-User", "admin", "Impersonate-Uid", "0", "Impersonate-Uid", "1"}},
	{name: "an underscore", pairs: []string{"Impersonate_User", "admin"}},
	{name: "underscores and a user", pairs: []string{"Impersonate-User", "admin", "IMPERSONATE_GROUP", "x"}},
	{name: "an unknown field", pairs: []string{"Impersonate-User", "admin", "Impersonate-Mode", "x"}},
	{name: "a field without a kind", pairs: []string{"Impersonate-User", "admin", "Impersonate-", "x"}},
	{name: "an extra without a key", pairs: []string{"Impersonate-User", "admin", "Impersonate-Extra-", "x"}},
	{name: "an extra with a line break", pairs: []string{"Impersonate-User", "admin", "Impersonate-Extra-a%0ab", "x"}},
	{name: "an extra with a NUL", pairs: []string{"Impersonate-User", "admin", "Impersonate-Extra-a%00", "x"}},
	{name: "an extra that is not escaped", pairs: []string{"Impersonate-User", "admin", "Impersonate-Extra-a%2", "x"}},
	{name: "an extra with an underscore", pairs: []string{"Impersonate-User", "admin", "Impersonate_Extra-a", "x"}},
	{name: "a group that cannot be printed", pairs: []string{"Impersonate-User", "admin", "Impersonate-Group", "a\u202eb"}},
}

// protected are accounts of the product and of the cluster's controllers.
var protected = []string{"system:serviceaccount:tailplane-system:tailplane-operator", "system:serviceaccount:tailplane-signins:bob-example-com", "system:serviceaccount:kube-system:default"}

func fieldsOf(pairs []string) string {
	var all strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&all, "%s: %s\r\n", pairs[i], pairs[i+1])
	}
	return all.String()
}

func impersonates(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		if strings.HasPrefix(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "impersonate") {
			out[name] = values
		}
	}
	return out
}

// PX-02. A request for impersonation reaches the API server exactly as it was, beside the one credential of the caller's
// sign-in, or the proxy refuses it. It is never merged with an identity of the proxy and never dropped: then it would
// run as the caller. Without the right, the API server answers 403.
//
// Guard: checkImpersonation and header in internal/accessproxy.
func TestPX02_ImpersonationPassesOrIsRefused(t *testing.T) {
	e := start(t, nil)
	t.Run("well formed", func(t *testing.T) {
		for _, x := range wellFormed {
			for _, k := range kinds {
				n := e.API.Count()
				status, body := e.RawStatus(t, aliceAt, k.head+fieldsOf(x.pairs)+"Connection: "+k.connection+"\r\n\r\n")
				e.arrivedAs(t, k.name+", "+x.name, n, status == k.status, x, body)
			}
			n := e.API.Count()
			status, body := e.h2(t, "GET", "/api/v1/pods", x.pairs...)()
			e.arrivedAs(t, "HTTP/2, "+x.name, n, status == http.StatusOK, x, body)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		for _, x := range malformed {
			for _, k := range kinds {
				e.refused(t, k.name+", "+x.name, e.raw(t, k.head+fieldsOf(x.pairs)+"Connection: "+k.connection+"\r\n\r\n"), http.StatusBadRequest)
			}
			if !strings.Contains(x.name, "case") { // a client of net/http joins them
				e.refused(t, "HTTP/2, "+x.name, e.h2(t, "GET", "/api/v1/pods", x.pairs...), http.StatusBadRequest)
			}
		}
	})
	t.Run("accounts of the product", func(t *testing.T) {
		for _, user := range protected {
			for _, k := range kinds {
				e.refused(t, k.name+", "+user, e.raw(t, k.head+"Impersonate-User: "+user+"\r\nConnection: "+k.connection+"\r\n\r\n"), http.StatusForbidden)
			}
			e.refused(t, "HTTP/2, "+user, e.h2(t, "GET", "/api/v1/pods", "impersonate-user", user), http.StatusForbidden)
		}
	})
	t.Run("the API server decides", attackImpersonation)
}

func (e *env) arrivedAs(t *testing.T, what string, before int, passed bool, x impersonation, body string) {
	t.Helper()
	got := e.API.Arrived(before)
	if !passed || len(got) != 1 {
		t.Errorf("%s: %d arrived: %s", what, len(got), body)
		return
	}
	e.isFrom(t, what, got[0], e.alice)
	if diff := cmp.Diff(x.arrives, impersonates(got[0].Header)); diff != "" {
		t.Errorf("%s: arrived (-want +got):\n%s", what, diff)
	}
}

// PX-05. A person's nested --as reaches the API server unchanged, and only the API server decides about it. The audit
// entry names the caller and the impersonated user.
//
// Guard: checkImpersonation and entry in internal/accessproxy.
func TestPX05_NestedImpersonation(t *testing.T) {
	e := start(t, nil)
	x := wellFormed[slices.IndexFunc(wellFormed, func(x impersonation) bool { return x.name == "extras" })]
	pairs := append(slices.Clone(x.pairs), "Impersonate-Group", "b", "Impersonate-Uid", "7")
	n := e.API.Count()
	res, body := proxytest.Do(t, e.Client(t, aliceAt, true), proxytest.Request(t, "GET", "/api/v1/namespaces/shop/secrets", "", pairs...))
	want := x.arrives.Clone()
	want["Impersonate-Group"], want["Impersonate-Uid"] = []string{"b"}, []string{"7"}
	e.arrivedAs(t, "all kinds", n, res.StatusCode == http.StatusOK, impersonation{arrives: want}, body)
	entry := e.entryOf(t, res.Header.Get("Audit-Id"))
	if entry.Args["impersonate"] != "admin" || entry.Actor.Login != "alice@example.com" {
		t.Errorf("the audit entry names %q as %q, want alice@example.com as admin", entry.Actor.Login, entry.Args["impersonate"])
	}
	if entry.Object != e.alice.Name {
		t.Errorf("the audit entry names the sign-in %q, want %q", entry.Object, e.alice.Name)
	}
	for _, x := range malformed {
		if strings.HasPrefix(x.name, "an extra") {
			e.refused(t, x.name, e.h2(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", x.pairs...), http.StatusBadRequest)
		}
	}
	t.Run("the API server decides", attackNested)
}
