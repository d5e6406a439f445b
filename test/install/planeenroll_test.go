package install

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
)

// PL-06, PL-08: where the plane approves, its account writes enrollments and no other configuration of the fleet,
// with and without a repository. No other user can mark an enrollment as approved. The chart gives the same values to
// the plane and to the fleet.
func TestPL08_PlaneApproves(t *testing.T) {
	for name, more := range map[string][]string{"without a repository": nil, "with a repository": {"--set", "plane.gitops.repository=acme/fleet,plane.gitops.credentialSecret=fleet-repository"}} {
		t.Run(name, func(t *testing.T) {
			set := append([]string{"--set", "plane.enabled=true,fleet.approval=plane,fleet.approvers={pat@platform.dev}"}, more...)
			all := render(t, profileValues(t, "fleet"), append([]string{"--no-hooks"}, set...)...)
			text := rendered(t, all, "ConfigMap", "tailplane-plane").Object["data"].(map[string]any)["plane.yaml"].(string)
			f, err := settings.Parse([]byte(text))
			if err == nil {
				err = f.Validate(settings.PlaneRole)
			}
			switch {
			case err != nil:
				t.Fatal(err)
			case f.Fleet.Approval != settings.ApprovalPlane:
				t.Fatalf("f.Fleet.Approval = %q, want %q", f.Fleet.Approval, settings.ApprovalPlane)
			case f.Fleet.Approver("alice@example.com"):
				t.Fatalf(`f.Fleet.Approver("alice@example.com") is true; %+v, %v`, f.Fleet, err)
			case !f.Fleet.Approver("pat@platform.dev"):
				t.Fatalf(`f.Fleet.Approver("pat@platform.dev") is false; %+v, %v`, f.Fleet, err)
			}
			c := installFleet(t, set...)
			var rights strings.Builder // without other components
			for _, u := range objects(t, ofPart(t, all, "plane")) {
				if u.GetKind() != "StatefulSet" {
					text, err := yaml.Marshal(u.Object)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&rights, "---\n%s", text)
				}
			}
			out := rights.String()
			if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+signins+"}"), []byte(out)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unbind(t, c, out) })
			us, mallory := handOf(t, configOf(t, c, systems, "tailplane-plane")), somebody(t, c, "mallory@acme.dev")
			until(t, "the plane makes neither pool nor forge", func() bool {
				for _, doc := range []string{"{apiVersion: tailplane.dev/v1alpha1, kind: RunnerPool, metadata: {name: try}, spec: {forge: github, runsOn: [nix], scaling: {min: 0, max: 1, budget: 1}}}",
					"{apiVersion: tailplane.dev/v1alpha1, kind: RunnerForge, metadata: {name: try}, spec: {type: github, url: \"https://github.com\"}}"} {
					switch err := us.store(doc); {
					case err == nil: // a policy takes effect a moment after its creation
						admin := handOf(t, c.AdminConfig())
						if err := admin.of(admin.read(doc)).Delete(t.Context(), "try", metav1.DeleteOptions{}); err != nil {
							t.Fatal(err)
						}
						return false
					case !byPolicy(err) && !byRBAC(err):
						t.Fatal(err)
					}
				}
				return true
			})

			// With the program itself, and exactly the account's rights.
			api, err := kube.Connect(configOf(t, c, systems, "tailplane-plane"), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			writer := api.Enrollments(f.Fleet.Approver)
			permit := func(who string, v access.Verb) access.Permit {
				t.Helper()
				admin := access.PlaneRole{Name: access.PlatformAdmin}
				p, err := access.DecidePlane(access.Caller{Login: access.Login(who), Via: access.ViaTailnet, Device: access.Device{ID: "n", Name: "n"}}, v,
					access.PlanePolicy{Capability: "c", Settings: []access.Holder{{Login: "pat@platform.dev", Role: admin}, {Login: "paula@platform.dev", Role: admin}}}, time.Now())
				if err == nil {
					p, err = p.In("newco")
				}
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			var e plane.Enrollment
			until(t, "it is requested", func() bool { // after the policies of another test no longer apply
				e, _, err = writer.Apply(t.Context(), permit("paula@platform.dev", access.EnrollmentRequest), plane.EnrollmentChange{Action: plane.ActionRequest, Spec: []byte(`{"forge":"github","configURL":"https://github.com/newco","pools":[{"name":"nix"}],"credentials":{"secretName":"x"}}`)})
				if err != nil && problem.CodeOf(err) != problem.Unavailable {
					t.Fatal(err)
				}
				return err == nil
			})
			const enrollment = "{apiVersion: tailplane.dev/v1alpha1, kind: RunnerEnrollment, metadata: {name: newco}}"
			approval := `{"spec":{"approval":{"by":"pat@platform.dev","at":"2026-01-01T00:00:00Z","digest":"` + e.Digest + `"}}}`
			if err := mallory.change(enrollment, approval); !byPolicy(err) {
				t.Errorf("another account approves: %v", err)
			}
			if err := mallory.change(enrollment, `{"metadata":{"annotations":{"tailplane.dev/requested-by":"[]"}}}`); !byPolicy(err) {
				t.Errorf("another account sets the requester: %v", err)
			}
			if _, _, err := writer.Apply(t.Context(), permit("pat@platform.dev", access.EnrollmentApprove), plane.EnrollmentChange{Action: plane.ActionApprove, Seen: e.Digest}); err != nil {
				t.Error(err)
			}
			if _, _, err := writer.Apply(t.Context(), permit("pat@platform.dev", access.RotateRequest), plane.EnrollmentChange{Action: plane.ActionRotate}); err != nil {
				t.Error(err)
			}
			if err := us.change(enrollment, `{"status":{"phase":"Active"}}`, "status"); !byPolicy(err) && !byRBAC(err) {
				t.Errorf("it writes a status: %v", err)
			}
			if _, _, err := writer.Apply(t.Context(), permit("pat@platform.dev", access.OffboardRequest), plane.EnrollmentChange{Action: plane.ActionOffboard}); err != nil {
				t.Error(err)
			}
			if none := render(t, profileValues(t, "fleet"), "--set", "plane.enabled=true"); strings.Contains(ofPart(t, none, "plane"), "tailplane-plane-changes") {
				t.Error("the plane has rights, although git approves and there is no repository")
			}
		})
	}
}
