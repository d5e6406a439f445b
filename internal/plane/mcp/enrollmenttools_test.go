package mcp_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/mcp"
)

// fakeEnrollmentWriter stores nothing and records the request. The real one is in plane/kube.
type fakeEnrollmentWriter struct {
	plane.EnrollmentWriter
	spec string
}

func (w *fakeEnrollmentWriter) Apply(_ context.Context, p access.Permit, c plane.EnrollmentChange) (plane.Enrollment, bool, error) {
	if !c.DryRun {
		w.spec = p.Caller().Identity() + " " + string(c.Spec)
	}
	return plane.Enrollment{ID: p.Org(), Name: p.Org(), Phase: "Requested", RequestedBy: []string{p.Caller().Identity()}}, true, nil
}

// MC-02: an assistant requests runners in its person's name, by a pull request or an unapproved enrollment. It has no tool to approve,
// rotate or end one.
func TestEnroll(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	s := of.overHTTP(t, "pat")
	for name := range listed(t, s) {
		for _, word := range []string{"approve", "decline", "rotate", "offboard", "delete_enrollment"} {
			if strings.Contains(name, word) {
				t.Errorf("there is the tool %s", name)
			}
		}
	}
	want := map[string]any{"org": "newco", "forge": "github", "pools": "gh-nix, gh-docker", "owners": "nora@newco.dev", "reason": "their builds wait", "dryRun": true}
	if res, text := call(t, s, "request_enrollment", want); res.IsError || !strings.Contains(text, "Nothing was changed. The enrollment would be proposed.") {
		t.Errorf("%s", text)
	}
	want["dryRun"] = false
	if res, text := call(t, s, "request_enrollment", want); res.IsError || !strings.Contains(text, "number 7, at https://forge.example/7. People must approve it.") {
		t.Errorf("%s", text)
	}
	for _, bad := range []map[string]any{{"pools": "*"}, {"pools": ""}, {"forge": "nowhere"}, {"org": "Newco Inc"}, {"reason": ""}} {
		args := map[string]any{}
		for k, v := range want {
			args[k] = v
		}
		for k, v := range bad {
			args[k] = v
		}
		if res, text := call(t, s, "request_enrollment", args); !res.IsError {
			t.Errorf("%v: %s", bad, text)
		}
	}
	service := &fakeEnrollmentWriter{}
	of.enroll.Writer = service
	if res, text := call(t, s, "request_enrollment", want); res.IsError || !strings.Contains(text, "newco is requested. A platform-admin must approve it.") {
		t.Errorf("%s", text)
	}
	switch {
	case !strings.HasPrefix(service.spec, "pat@"):
		t.Errorf("service.spec = %q does not start with %q", service.spec, "pat@")
	case !strings.Contains(service.spec, `"pools":[{"name":"gh-nix"},{"name":"gh-docker"}]`):
		t.Errorf("service.spec = %q does not contain %q", service.spec, `"pools":[{"name":"gh-nix"},{"name":"gh-docker"}]`)
	case !strings.Contains(service.spec, `"owners":["nora@newco.dev"]`):
		t.Errorf("service.spec = %q does not contain %q", service.spec, `"owners":["nora@newco.dev"]`)
	}
}
