package plane

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// stored returns the holds in the API server, each with its requester.
func stored(t *testing.T, r *testenv.Env) map[string]string {
	t.Helper()
	objects, err := dynamic.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	list, err := objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerholds"}).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, h := range list.Items {
		by, _, _ := unstructured.NestedString(h.Object, "spec", "requestedBy")
		all[h.GetName()] = by
	}
	return all
}

// PLANE-10, FL-06: a pause by HTTP, by the command line and by an assistant creates the same object on a real API
// server. Its requester is the tailnet's login of the caller, and the audit log contains it. Far-reaching requests
// need a confirmation by every one of these ways. An organisation that the caller cannot see does not exist for the
// caller (PL-05).
func TestPLANE10_Pause(t *testing.T) {
	r := start(t)
	amy, alice := person(t, r, "amy-fleet", "amy@acme.dev"), person(t, r, "alice-fleet", "alice@example.com")
	vic, bob := person(t, r, "vic-fleet", "vic@example.com"), person(t, r, "bob-fleet", "bob@example.com")
	until := func(what string, true func() bool) {
		t.Helper()
		for end := time.Now().Add(deadline); !true(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("timed out waiting for: %s: %v", what, stored(t, r))
			}
		}
	}
	until("the plane shows the runners", func() bool {
		a, err := ask(t, r, amy, "GET", "/api/v1/pools/github/acme/linux", "")
		return must(t, a, err).status == http.StatusOK
	})
	before := stored(t, r)
	const body = `{"scope":{"org":"acme","pool":"linux"},"reason":"test"}`
	key := func(q *http.Request) { q.Header.Set("Idempotency-Key", "k") }

	for _, x := range []struct {
		who    *testenv.Person
		status int
	}{{vic, http.StatusForbidden}, {bob, http.StatusForbidden}} { // bob is a viewer of another organisation and may not pause at all
		a, err := ask(t, r, x.who, "POST", "/api/v1/holds", body)
		if must(t, a, err).status != x.status {
			t.Errorf("%s", a.body)
		}
	}
	for _, path := range []string{"/api/v1/pools/github/acme/linux", "/api/v1/enrollments/acme"} {
		if a, err := ask(t, r, bob, "GET", path, ""); must(t, a, err).status != http.StatusNotFound {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	if got := stored(t, r); len(got) != len(before) {
		t.Fatalf("%v", got)
	}

	// By HTTP, twice with one idempotency key.
	var names []string
	for i := range 2 {
		a, err := ask(t, r, amy, "POST", "/api/v1/holds", body, key)
		var made struct{ Data plane.Created }
		switch {
		case json.Unmarshal([]byte(must(t, a, err).body), &made) != nil:
			t.Fatalf("json.Unmarshal([]byte(must(t, a, err).body), &made) is not nil; %s", a.body)
		case made.Data.Hold.RequestedBy != "amy@acme.dev":
			t.Fatalf("made.Data.Hold.RequestedBy = %q, want %q; %s", made.Data.Hold.RequestedBy, "amy@acme.dev", a.body)
		case made.Data.Created == (i == 1):
			t.Fatalf("made.Data.Created = %v, the same as (i == 1); %s", made.Data.Created, a.body)
		}
		names = append(names, made.Data.Hold.Name)
	}
	if names[0] != names[1] || stored(t, r)[names[0]] != "amy@acme.dev" {
		t.Errorf("%v, %v", names, stored(t, r))
	}
	until("the runners are pausing, and not yet paused", func() bool {
		a, err := ask(t, r, amy, "GET", "/api/v1/pools/github/acme/linux", "")
		var shown struct{ Data plane.Pool }
		return json.Unmarshal([]byte(must(t, a, err).body), &shown) == nil && slices.Contains(shown.Data.Holds, names[0]) && shown.Data.State != plane.PoolPaused && shown.Data.State != plane.PoolActive
	})

	// By the command line, for everything.
	tka := func(args ...string) string {
		t.Helper()
		res, err := alice.Run(t.Context(), "tka", append([]string{"fleet", "--url", r.Dashboard()}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return res.Stdout + res.Stderr
	}
	if out := tka("pause", "--all", "--reason", "test"); !strings.Contains(out, `--confirm "PAUSE ALL"`) {
		t.Errorf("%s", out)
	}
	all := strings.TrimSpace(tka("pause", "--all", "--reason", "test", "--confirm", "PAUSE ALL", "-o", "name"))
	if stored(t, r)[all] != "alice@example.com" {
		t.Fatalf("%q, %v", all, stored(t, r))
	}
	until("the plane shows it", func() bool { return strings.Contains(tka("holds", "-o", "name"), all) })
	if a, err := ask(t, r, amy, "DELETE", "/api/v1/holds/"+all, `{"reason":"test"}`); must(t, a, err).status != http.StatusForbidden {
		t.Errorf("amy lifts everything: %s", a.body)
	}

	// By an assistant: it pauses one pool, and cannot lift the hold of everything without a confirmation.
	lines := session(t, &mcp.CommandTransport{Command: command(t, r, alice)})
	call := func(name string, args map[string]any) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		res, err := lines.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return res.Content[0].(*mcp.TextContent).Text
	}
	if text := call("pause_runner", map[string]any{"pool": "github/acme/linux", "reason": "test"}); !strings.Contains(text, "The hold is created.") {
		t.Errorf("%s", text)
	}
	if text := call("resume_runner", map[string]any{"hold": all, "reason": "test"}); !strings.HasPrefix(text, "428 confirmation_required") || stored(t, r)[all] == "" {
		t.Errorf("%s", text)
	}
	if out := tka("lift", all, "--reason", "test", "--confirm", "LIFT ALL"); !strings.Contains(out, "lifted") || stored(t, r)[all] != "" {
		t.Errorf("%s, %v", out, stored(t, r))
	}
	until("nothing of it is left", func() bool { // one after the other, as the plane observes them
		a, err := ask(t, r, amy, "POST", "/api/v1/pools/github/acme/linux/resume", `{"reason":"test"}`)
		_ = must(t, a, err)
		return len(stored(t, r)) == len(before)
	})
	verbs := map[string]bool{}
	_, err := plane.AuditLog{Path: r.PlaneAuditFile()}.ReadNewest(t.Context(), func(e plane.AuditEntry) bool {
		if strings.HasPrefix(string(e.Verb), "holds.") {
			verbs[string(e.Verb)+" "+e.Actor.Login+" "+string(e.Result)] = true
		}
		return true
	})
	for _, want := range []string{"holds.create amy@acme.dev done", "holds.create alice@example.com done", "holds.create vic@example.com refused", "holds.lift amy@acme.dev refused", "holds.lift alice@example.com done"} {
		if err != nil || !verbs[want] {
			t.Errorf("the record has %v (%v), and not %s", verbs, err, want)
		}
	}
}
