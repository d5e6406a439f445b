//go:build unix

package git_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/problem"
)

var update = flag.Bool("update", false, "write the role matrix into testdata")

// forged waits until the plane knows the forge.
func (f *env) forged() {
	f.Helper()
	o := f.named("github")
	o.SetKind("RunnerForge")
	o.Object["spec"] = map[string]any{"type": "github", "url": "https://github.com"}
	if err := f.admin.Create(f.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
		f.Fatal(err)
	}
	store := f.changes.Plane.Store
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, found := store.Get(plane.KindForge, "github"); found && store.List(plane.KindForge).Known {
			return
		} else if time.Now().After(end) {
			f.Fatal("the plane never saw the forge")
		}
	}
}

// named returns an enrollment object with the name.
func (f *env) named(org string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerEnrollment", "metadata": map[string]any{"name": org}}}
}

// live returns an enrollment of the cluster, or nil.
func (f *env) live(org string) *unstructured.Unstructured {
	f.Helper()
	o := f.named(org)
	err := f.admin.Get(f.Context(), client.ObjectKey{Name: org}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	f.must(err)
	return o
}

// PLANE-11, FLEET-15: where git approves, pull requests enroll, change, rotate and end an organisation. They create and delete its file,
// and the plane writes nothing.
func TestFLEET15_Enroll(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		t.Run(at, func(t *testing.T) {
			f := newEnv(t, at)
			f.forged()
			f.changes.Layout = gitops.Manifests{Pattern: "fleet/{kind}/{name}.yaml"}
			const path = "fleet/runnerenrollment/globex.yaml"
			onMain := func() (string, bool) {
				if f.github != nil {
					text, found := f.github.Commit(f.repository, "main").Files[path]
					return text, found
				}
				return f.gitlab.File("platform/fleet", "main", path)
			}
			var o plane.Outcome
			do := func(who, method, path string, body map[string]any, want string) plane.Outcome {
				t.Helper()
				o = plane.Outcome{}
				switch code := f.do(who, method, path, body, &o); {
				case code != "":
					t.Fatalf("code = %q, want none; method = %s; path = %s", code, method, path)
				case o.Done != want:
					t.Fatalf("o.Done = %q, want %q; method = %s; path = %s", o.Done, want, method, path)
				case o.Approval != "git":
					t.Fatalf("o.Approval = %q, want %q; method = %s; path = %s", o.Approval, "git", method, path)
				case o.Enrollment != nil:
					t.Fatalf("o.Enrollment = %v, want nil; method = %s; path = %s", o.Enrollment, method, path)
				}
				return o
			}
			merge := func(what string) {
				t.Helper()
				open := o.Change
				switch o := do("pat@platform.dev", "POST", "/enrollments/globex/approve?dryRun=true", map[string]any{"reason": "x"}, "nothing"); {
				case o.Seen != open.Head:
					t.Fatalf("%s: o.Seen = %q, want %q", what, o.Seen, open.Head)
				case o.Change.ID != open.ID:
					t.Fatalf("%s: o.Change.ID = %q, want %q", what, o.Change.ID, open.ID)
				case o.Would != "approved":
					t.Fatalf("%s: o.Would = %q, want %q", what, o.Would, "approved")
				}
				do("pat@platform.dev", "POST", "/enrollments/globex/approve", map[string]any{"reason": "they share our budget", "seen": open.Head}, "approved")
				if code := f.do("pat@platform.dev", "POST", "/changes/"+open.ID+"/merge", map[string]any{"head": open.Head, "reason": "now"}, nil); code != "" {
					t.Fatalf("%s: %s", what, code)
				}
			}

			request := map[string]any{"org": "globex", "forge": "github", "pools": []any{map[string]any{"name": "gh-nix"}}, "owners": []string{"gus@globex.dev"}, "reason": "our builds wait"}
			if code := f.do("gus@globex.dev", "POST", "/enrollments", map[string]any{"org": "globex", "forge": "nowhere", "pools": request["pools"], "reason": "x"}, nil); code != problem.Validation {
				t.Errorf("at no forge: %s", code)
			}
			do("gus@globex.dev", "POST", "/enrollments?dryRun=true", request, "nothing")
			switch {
			case o.Would != "proposed":
				t.Fatalf("o.Would = %q, want %q", o.Would, "proposed")
			case o.Preview == nil:
				t.Fatal("o.Preview is nil")
			case o.Preview.Refused != "":
				t.Fatalf("o.Preview.Refused = %q, want none", o.Preview.Refused)
			case !strings.Contains(o.Preview.Diff, "--- /dev/null"):
				t.Fatalf("o.Preview.Diff = %q does not contain %q", o.Preview.Diff, "--- /dev/null")
			case !strings.Contains(o.Preview.Diff, "+  configURL: https://github.com/globex\n"):
				t.Fatalf("o.Preview.Diff = %q does not contain %q", o.Preview.Diff, "+  configURL: https://github.com/globex\n")
			}
			first := do("gus@globex.dev", "POST", "/enrollments", request, "proposed").Change
			switch {
			case first.State != "open":
				t.Fatalf("first.State = %q, want %q", first.State, "open")
			case first.Number == 0:
				t.Fatalf("first.Number = %v", first.Number)
			case !first.Platform:
				t.Fatalf("first.Platform is false; first = %+v", first)
			case first.Title != "Enroll globex":
				t.Fatalf("first.Title = %q, want %q", first.Title, "Enroll globex")
			case first.Proposer != "gus@globex.dev":
				t.Fatalf("first.Proposer = %q, want %q", first.Proposer, "gus@globex.dev")
			}
			if again := do("gus@globex.dev", "POST", "/enrollments", request, "proposed").Change; again.ID != first.ID || again.Head != first.Head {
				t.Errorf("the same again: %+v", again)
			}
			for who, want := range map[string]problem.Code{"gus@globex.dev": problem.Forbidden, "olga@platform.dev": problem.Forbidden, "amy@acme.dev": problem.Forbidden} {
				if code := f.do(who, "POST", "/enrollments/globex/approve", map[string]any{"reason": "x", "seen": first.Head}, nil); code != want {
					t.Errorf("%s approves: %s", who, code)
				}
			}
			if code := f.do("pat@platform.dev", "POST", "/enrollments/globex/approve", map[string]any{"reason": "x"}, nil); code != problem.Validation {
				t.Errorf("without a reviewed version: %s", code)
			}
			if code := f.do("pat@platform.dev", "POST", "/enrollments/globex/approve", map[string]any{"reason": "x", "seen": "0123456"}, nil); code != problem.Conflict {
				t.Errorf("of another commit: %s", code)
			}
			// The request is declined, with the reason on the pull request, and made again.
			no := map[string]any{"reason": "they have runners @home /merge", "seen": first.Head}
			for who, want := range map[string]problem.Code{"gus@globex.dev": problem.Forbidden, "olga@platform.dev": problem.Forbidden} {
				if code := f.do(who, "POST", "/enrollments/globex/decline", no, nil); code != want {
					t.Errorf("%s declines: %s", who, code)
				}
			}
			if code := f.do("pat@platform.dev", "POST", "/enrollments/globex/decline", map[string]any{"reason": "x", "seen": "0123456"}, nil); code != problem.Conflict {
				t.Errorf("of another commit: %s", code)
			}
			switch o := do("pat@platform.dev", "POST", "/enrollments/globex/decline?dryRun=true", map[string]any{"reason": "x"}, "nothing"); {
			case o.Would != "declined":
				t.Fatalf("o.Would = %q, want %q", o.Would, "declined")
			case o.Seen != first.Head:
				t.Fatalf("o.Seen = %q, want %q", o.Seen, first.Head)
			case o.Change.State != "open":
				t.Fatalf("o.Change.State = %q, want %q", o.Change.State, "open")
			}
			if o := do("pat@platform.dev", "POST", "/enrollments/globex/decline", no, "declined"); o.Change.ID != first.ID || o.Change.State != "closed" {
				t.Fatalf("%+v", o)
			}
			if said := f.comments(first.Number); len(said) != 1 || said[0] != "Declined by `pat@platform.dev`:\n\n> they have runners @\u200bhome /merge\n" {
				t.Errorf("%q", said)
			}
			if code := f.do("pat@platform.dev", "POST", "/enrollments/globex/decline", no, nil); code != problem.NotFound {
				t.Errorf("twice: %s", code)
			}
			if again := do("gus@globex.dev", "POST", "/enrollments", request, "proposed").Change; again.ID == first.ID {
				t.Errorf("%+v", again)
			}
			merge("a request")
			text, found := onMain()
			switch {
			case !found:
				t.Fatalf("found is false; found = %v, text = %q", found, text)
			case !strings.Contains(text, "secretName: globex-credential"):
				t.Fatalf("text = %q does not contain %q", text, "secretName: globex-credential")
			case f.live("globex") != nil:
				t.Fatalf(`f.live("globex") is not nil; found = %v, text = %q`, found, text)
			}

			// The rotation changes the same file. A platform administrator approves it, but not the requester.
			do("pat@platform.dev", "POST", "/enrollments/globex/rotate", map[string]any{"reason": "a laptop was lost"}, "proposed")
			if code := f.do("pat@platform.dev", "POST", "/enrollments/globex/approve", map[string]any{"reason": "x", "seen": o.Seen}, nil); code != problem.SelfApproval {
				t.Errorf("the caller's own: %s", code)
			}
			if code := f.do("pat@platform.dev", "POST", "/changes/"+o.Change.ID+"/close", map[string]any{"reason": "another person requests it"}, nil); code != "" {
				t.Fatal(code)
			}
			do("gus@globex.dev", "POST", "/enrollments/globex/rotate", map[string]any{"reason": "a laptop was lost"}, "proposed")
			merge("a rotation")
			if text, _ := onMain(); !strings.Contains(text, "rotateAt: ") {
				t.Errorf("%q", text)
			}

			// The end deletes the file. A change that was given up can be requested again.
			end := do("gus@globex.dev", "POST", "/enrollments/globex/offboard", map[string]any{"reason": "they move"}, "proposed").Change
			if code := f.do("gus@globex.dev", "POST", "/changes/"+end.ID+"/close", map[string]any{"reason": "they stay"}, nil); code != "" {
				t.Fatal(code)
			}
			if again := do("gus@globex.dev", "DELETE", "/enrollments/globex", map[string]any{"reason": "they move"}, "proposed").Change; again.ID == end.ID || again.State != "open" {
				t.Fatalf("%+v", again)
			}
			if code := f.do("gus@globex.dev", "PATCH", "/enrollments/globex", map[string]any{"reason": "x", "patch": map[string]any{"approval": map[string]any{"by": "gus@globex.dev"}}}, nil); code != problem.Validation {
				t.Errorf("a self-approval: %s", code)
			}
			merge("an end")
			if text, found := onMain(); found {
				t.Errorf("%q", text)
			}
			// Each request has an audit entry with its actor and its target.
			f.mu.Lock()
			defer f.mu.Unlock()
			if !slices.ContainsFunc(f.entries, func(e audit.Entry) bool {
				return e.Verb == access.EnrollmentDecline && e.Actor.Login == "pat@platform.dev" && e.Org == "globex" && e.Reason == no["reason"] && e.Object == first.ID
			}) || !slices.ContainsFunc(f.entries, func(e audit.Entry) bool {
				return e.Verb == access.OffboardRequest && e.Actor.Login == "gus@globex.dev" && e.Org == "globex" && e.Reason == "they move" && e.Object == end.ID
			}) {
				t.Errorf("%+v", f.entries)
			}
		})
	}
}

// PL-06: where the plane approves, the same API writes the enrollment, and an action with wide effect needs a second request.
func TestPL06_EnrollByPlane(t *testing.T) {
	f := newEnv(t, "github")
	f.forged()
	f.byPlane()
	const org = "initech"
	t.Cleanup(func() { _ = f.admin.Delete(context.Background(), f.named(org)) })
	var o plane.Outcome
	do := func(who, method, path string, body map[string]any, want string) problem.Code {
		t.Helper()
		o = plane.Outcome{}
		code := f.do(who, method, path, body, &o)
		if code == "" && (o.Done != want || o.Approval != "plane" || o.Change != nil) {
			t.Fatalf("%s %s: %+v", method, path, o)
		}
		return code
	}
	request := map[string]any{"org": org, "forge": "github", "pools": []any{map[string]any{"name": "gh-nix", "max": 3}}, "more": map[string]any{"quota": map[string]any{"pods": 9}}, "reason": "our builds wait"}
	switch code := do("ivy@initech.dev", "POST", "/enrollments?dryRun=true", request, "nothing"); {
	case code != "":
		t.Fatalf("code = %q, want none", code)
	case o.Would != "written":
		t.Fatalf("o.Would = %q, want %q", o.Would, "written")
	case f.live(org) != nil:
		t.Fatalf("f.live(org) is not nil; code = %v, %v", code, o)
	}
	switch code := do("ivy@initech.dev", "POST", "/enrollments", request, "written"); {
	case code != "":
		t.Fatalf("code = %q, want none", code)
	case o.Enrollment.RequestedBy[0] != "ivy@initech.dev":
		t.Fatalf("o.Enrollment.RequestedBy[0] = %q, want %q", o.Enrollment.RequestedBy[0], "ivy@initech.dev")
	case f.live(org) == nil:
		t.Fatal("f.live(org) is nil")
	}
	if code := do("ivy@initech.dev", "POST", "/enrollments", request, "nothing"); code != "" {
		t.Fatal("the same again", code)
	}
	request["reason"] = "others"
	if code := do("ivy@initech.dev", "POST", "/enrollments", request, ""); code != problem.Conflict {
		t.Error("there already", code)
	}
	switch code := do("pat@platform.dev", "POST", "/enrollments/initech/decline?dryRun=true", map[string]any{"reason": "x"}, "nothing"); {
	case code != "":
		t.Fatalf("code = %q, want none", code)
	case o.Would != "declined":
		t.Fatalf("o.Would = %q, want %q", o.Would, "declined")
	case f.live(org) == nil:
		t.Fatal("f.live(org) is nil")
	}
	if code := do("pat@platform.dev", "POST", "/enrollments/initech/decline", map[string]any{"reason": "they have their own", "seen": o.Seen}, "declined"); code != "" || f.live(org) != nil {
		t.Fatal(code, o)
	}
	request["reason"] = "our builds wait"
	if code := do("ivy@initech.dev", "POST", "/enrollments", request, "written"); code != "" {
		t.Fatal("requested again", code)
	}
	if code := do("pat@platform.dev", "POST", "/enrollments/initech/approve?dryRun=true", map[string]any{"reason": "x"}, "nothing"); code != "" || o.Would != "approved" {
		t.Fatal(code, o)
	}
	if code := do("pat@platform.dev", "POST", "/enrollments/initech/approve", map[string]any{"reason": "x", "seen": o.Seen}, "approved"); code != "" {
		t.Fatal(code)
	}
	if by, _, _ := unstructured.NestedString(f.live(org).Object, "spec", "approval", "by"); by != "pat@platform.dev" {
		t.Errorf("%q", by)
	}
	if code := do("pat@platform.dev", "POST", "/enrollments/initech/decline?dryRun=true", map[string]any{"reason": "x"}, ""); code != problem.Conflict {
		t.Error("it is approved", code)
	}
	if code := do("ivy@initech.dev", "POST", "/enrollments/initech/rotate", map[string]any{"reason": "lost"}, "asked"); code != "" || o.Enrollment.Requested.What != plane.ActionRotate {
		t.Fatal(code, o)
	}
	switch code := do("pat@platform.dev", "POST", "/enrollments/initech/rotate", map[string]any{"reason": "lost"}, "written"); {
	case code != "":
		t.Fatalf("code = %q, want none", code)
	case o.Enrollment.Requested != nil:
		t.Fatalf("o.Enrollment.Requested = %v, want nil", o.Enrollment.Requested)
	case o.Enrollment.Rotation.At == nil:
		t.Fatal("o.Enrollment.Rotation.At is nil")
	}
	if code := do("ivy@initech.dev", "POST", "/enrollments/initech/offboard", map[string]any{"reason": "they move"}, "asked"); code != "" {
		t.Fatal(code)
	}
	if code := do("pat@platform.dev", "DELETE", "/enrollments/initech", map[string]any{"reason": "they move"}, ""); code != problem.Confirmation || f.live(org) == nil {
		t.Fatal(code)
	}
	if code := do("pat@platform.dev", "DELETE", "/enrollments/initech", map[string]any{"reason": "they move", "confirm": "OFFBOARD initech"}, "written"); code != "" || f.live(org) != nil {
		t.Fatal(code)
	}
}

// comments returns the comments on a pull or merge request.
func (f *env) comments(number int) []string {
	if f.github != nil {
		return f.github.Pulls(f.repository)[number-1].Comments
	}
	return f.gitlab.MergeRequests("platform/fleet")[number-1].Notes
}

// byPlane lets the plane approve.
func (f *env) byPlane() {
	c, err := installed()
	f.must(err)
	api, err := kube.Connect(c.AdminConfig(), f.changes.Plane.Now)
	f.must(err)
	f.enroll.Writer = api.Enrollments(func(string) bool { return true })
}

// ID-12, PLANE-04: every operation for every kind of caller, where git approves and where the plane does. Each error is declared, each
// request has one audit entry, and nothing changes.
func TestRoles(t *testing.T) {
	f := newEnv(t, "github")
	f.forged()
	const spec = `{"forge":"github","configURL":"https://github.com/acme","credentials":{"secretName":"acme-app"},"pools":[{"name":"gh-nix"}],"owners":["amy@acme.dev"]}`
	f.must(f.admin.Patch(t.Context(), f.named("acme"), client.RawPatch("application/apply-patch+yaml", []byte(`{"apiVersion":"tailplane.dev/v1alpha1","kind":"RunnerEnrollment","metadata":{"name":"acme"},"spec":`+spec+`}`)), client.FieldOwner("test")))
	t.Cleanup(func() { _ = f.admin.Delete(context.Background(), f.named("acme")) })
	person := func(login string, rules ...string) access.Caller {
		c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n-" + login, Name: "laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
		for _, r := range rules {
			c.Rules = append(c.Rules, json.RawMessage(r))
		}
		return c
	}
	with := func(c access.Caller, change func(*access.Caller)) access.Caller { change(&c); return c }
	tagged := func(rule string) access.Caller {
		return with(person("", rule), func(c *access.Caller) {
			c.Device, c.Tags = access.Device{ID: "n-ci", Name: "ci.ts.net"}, []access.Tag{"tag:ci"}
		})
	}
	declared := map[string][]problem.Code{}
	for _, op := range (&plane.EnrollmentService{Plane: new(plane.Service)}).Routes() {
		declared[op.Pattern] = slices.Concat(httpapi.CommonRefusals(), op.Refusals)
	}
	var got strings.Builder
	for _, mode := range []string{"git", "plane"} {
		if mode == "plane" {
			f.byPlane()
		}
		for _, p := range []struct {
			name   string
			caller access.Caller
			err    error
		}{
			{"viewer acme", person("vic@example.com", `{"role":"viewer","orgs":["acme"]}`), nil}, {"operator acme (member)", person("mel@acme.dev"), nil}, {"operator *", person("olga@platform.dev"), nil},
			{"org-admin acme (owner)", person("amy@acme.dev"), nil}, {"org-admin newco (grant)", person("nora@newco.dev", `{"role":"org-admin","orgs":["newco"]}`), nil},
			{"org-admin *", person("omar@example.com", `{"role":"org-admin","orgs":["*"]}`), nil}, {"org-admin globex", person("gus@globex.dev"), nil}, {"platform-admin", person("pat@platform.dev"), nil},
			{"nobody", person("mallory@evil.example"), nil}, {"shared in, owner's name", with(person("amy@acme.dev"), func(c *access.Caller) { c.Shared, c.Tailnet = true, "other.example" }), nil},
			{"tagged", tagged(`{"role":"org-admin","orgs":["acme"]}`), nil}, {"tagged, let in", tagged(`{"role":"platform-admin","orgs":["*"],"tags":["tag:ci"]}`), nil},
			{"key expired", with(person("pat@platform.dev"), func(c *access.Caller) { c.Expired = true }), nil}, {"Funnel", with(person("pat@platform.dev"), func(c *access.Caller) { c.Via = access.ViaFunnel }), nil},
			{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "Nobody.", "Connect directly.")}, {"WhoIs down", access.Caller{}, problem.New(problem.IdentityUnavailable, "Cannot ask.", "Try again.").WithRetryAfter(time.Second)},
		} {
			for _, op := range (&plane.EnrollmentService{Plane: new(plane.Service)}).Routes() {
				method, path, _ := strings.Cut(op.Pattern, " ")
				body := `{"reason":"matrix"}`
				switch op.Pattern {
				case plane.RequestEnrollment.Pattern:
					body = `{"reason":"matrix","org":"newco","forge":"github","pools":[{"name":"gh-nix"}]}`
				case plane.EditEnrollment.Pattern:
					body = `{"reason":"matrix","patch":{"quota":{"pods":9}}}`
				}
				f.mu.Lock()
				f.as, f.refused, f.entries = &p.caller, p.err, nil
				f.mu.Unlock()
				r := httptest.NewRequestWithContext(t.Context(), method, strings.ReplaceAll(path, "{org}", "acme")+"?dryRun=true", strings.NewReader(body))
				r.Host = "dashboard"
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				f.api.ServeHTTP(w, r)
				var a struct {
					Data  plane.Outcome
					Error *problem.Error
				}
				f.must(json.Unmarshal(w.Body.Bytes(), &a))
				what := fmt.Sprint(w.Code, " ", a.Data.Would)
				if a.Error != nil {
					what = strings.TrimSpace(fmt.Sprint(w.Code, " ", a.Error.Code, " ", strings.Join(a.Error.Have, " ")))
					if !slices.Contains(declared[op.Pattern], a.Error.Code) {
						t.Errorf("%s %s: refused with %s, which it does not declare", p.name, op.Pattern, a.Error.Code)
					}
				} else if w.Code == http.StatusOK && a.Data.Done != plane.OutcomeNothing {
					t.Errorf("%s %s: a dry run: %s", p.name, op.Pattern, w.Body)
				}
				fmt.Fprintf(&got, "%-6s %-24s %-45s %s\n", mode, p.name, op.Pattern, what)
				f.mu.Lock()
				if len(f.entries) != 1 || f.entries[0].Verb != "" && f.entries[0].Verb != op.Verb { // "": refused before the decision
					t.Errorf("%s %s: %+v", p.name, op.Pattern, f.entries)
				}
				f.mu.Unlock()
			}
		}
	}
	switch o := f.live("acme"); {
	case o == nil:
		t.Error("something was changed: o is nil")
	case f.live("newco") != nil:
		t.Errorf(`something was changed: f.live("newco") is not nil; %+v`, o)
	case o.GetGeneration() != 1:
		t.Errorf("something was changed: o.GetGeneration() != 1; %+v", o)
	case len(o.GetAnnotations()) > 0:
		t.Errorf("something was changed: len(o.GetAnnotations()) > 0; %+v", o)
	}
	golden := filepath.Join("testdata", "roles.golden")
	if *update {
		f.must(os.MkdirAll("testdata", 0o755))
		f.must(os.WriteFile(golden, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	f.must(err)
	wants := strings.Split(string(want), "\n")
	for i, line := range strings.Split(got.String(), "\n") {
		if i >= len(wants) || wants[i] != line {
			t.Errorf("line %d is\n%s\nnot as in %s; check it, and write it with -update", i+1, line, golden)
		}
	}
}
