package plane

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tailplane/tailplane/internal/plane"
)

// enrolling adds the chart's rights for a plane that approves, and a forge.
const enrolling = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-plane-enrolls}
rules:
- {apiGroups: [tailplane.dev], resources: [runnerenrollments], verbs: [create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-plane-enrolls}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-plane-enrolls}
subjects: [{kind: ServiceAccount, namespace: tailplane-system, name: tailplane-plane}]
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerForge
metadata: {name: github}
spec: {type: github, url: "https://github.com"}
`

// PL-06, PL-05: the plane approves on the real tailnet. An organisation is requested, declined, requested again,
// approved and ended, by the command line and by HTTP. The plane records the tailnet's login of the caller. A
// requester cannot approve her own request, and a caller who may only request cannot make the change.
func TestPL06_Enroll(t *testing.T) {
	r := start(t)
	if err := r.Cluster.Apply(t.Context(), []byte(enrolling)); err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // other tests check the plane's rights without it
		rights := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
		if err := objects.Resource(rights).Delete(context.WithoutCancel(t.Context()), "test-plane-enrolls", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	stored := func(org string) *unstructured.Unstructured {
		t.Helper()
		o, err := objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerenrollments"}).Get(t.Context(), org, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return o
	}
	pat, amy, alice := person(t, r, "pat-enroll", "pat@platform.dev"), person(t, r, "amy-enroll", "amy@acme.dev"), person(t, r, "alice-enroll", "alice@example.com")
	tka := func(args ...string) string {
		t.Helper()
		res, err := pat.Run(t.Context(), "tka", append([]string{"fleet", "--url", r.Dashboard()}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return res.Stdout + res.Stderr
	}
	says := func(out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	request := []string{"request", "newco", "--forge", "github", "--pool", "linux", "--owner", "nora@newco.dev", "--reason", "their builds wait"}
	out := ""
	// Writes are limited, and the plane does not know the forge at once.
	for end := time.Now().Add(30 * time.Second); !strings.Contains(out, "newco would be written. Nothing was changed."); time.Sleep(time.Second) {
		if out = tka(append(request, "--dry-run")...); time.Now().After(end) {
			t.Fatal(out)
		}
	}
	if stored("newco") != nil {
		t.Fatal("a dry run")
	}
	says(tka(request...), "newco is written.")
	says(tka(request...), "newco was already requested.")
	if o := stored("newco"); o == nil || o.GetAnnotations()["tailplane.dev/requested-by"] != `["pat@platform.dev"]` {
		t.Fatalf("%v", o)
	}
	says(tka("decline", "newco", "--reason", "they have their own", "--dry-run"), "The plane would decline it. Nothing was changed.")
	says(tka("decline", "newco", "--reason", "they have their own", "--confirm", "DECLINE newco"), "newco is declined: the plane deleted the enrollment.")
	if stored("newco") != nil {
		t.Error("it is declined, and there")
	}
	says(tka(request...), "newco is written.")
	says(tka("approve", "newco", "--reason", "x", "--confirm", "APPROVE newco"), "You requested a part of this enrollment.")

	// amy of acme cannot see newco. She requests changes of her own organisation, which pat approves.
	do := func(method, path, body string, status int) (o plane.Outcome) {
		t.Helper()
		a, err := ask(t, r, amy, method, "/api/v1/enrollments"+path, body)
		if must(t, a, err).status != status {
			t.Errorf("%s %s: %d, %s", method, path, a.status, a.body)
		}
		_ = json.Unmarshal(a.Data, &o) // a refusal has no data
		return o
	}
	do("POST", "/newco/offboard", `{"reason":"mine"}`, http.StatusNotFound)
	do("POST", "/acme/approve", `{"reason":"mine","seen":"sha256:0"}`, http.StatusForbidden)
	if o := do("PATCH", "/acme", `{"reason":"the release","patch":{"quota":{"pods":9}}}`, http.StatusOK); o.Done != plane.OutcomeWritten || o.Enrollment.RequestedBy[0] != "amy@acme.dev" {
		t.Errorf("%+v", o)
	}
	says(tka("approve", "acme", "--reason", "x", "--dry-run"), "requested by amy@acme.dev")
	says(tka("approve", "acme", "--reason", "x", "--confirm", "APPROVE acme"), "acme is approved")
	if by, _, _ := unstructured.NestedString(stored("acme").Object, "spec", "approval", "by"); by != "pat@platform.dev" {
		t.Errorf("%q", by)
	}
	if o := do("POST", "/acme/rotate", `{"reason":"a laptop was lost"}`, http.StatusAccepted); o.Done != plane.OutcomeRecorded || o.Enrollment.Requested.By != "amy@acme.dev" {
		t.Errorf("%+v", o)
	}
	says(tka("rotate", "acme", "--reason", "amy has lost a laptop"), "acme is written.")
	if at, _, _ := unstructured.NestedString(stored("acme").Object, "spec", "credentials", "rotateAt"); at == "" || stored("acme").GetAnnotations()["tailplane.dev/asked"] != "" {
		t.Errorf("%v", stored("acme"))
	}
	if a, err := ask(t, r, alice, "POST", "/api/v1/enrollments/acme/offboard", `{"reason":"x"}`); must(t, a, err).status != http.StatusForbidden {
		t.Errorf("an operator: %s", a.body)
	}
	says(tka("offboard", "newco", "--reason", "they move"), `--confirm "OFFBOARD newco"`)
	says(tka("offboard", "newco", "--reason", "they move", "--confirm", "OFFBOARD newco"), "newco is written.")
	if stored("newco") != nil {
		t.Error("it is there")
	}
	a, err := ask(t, r, pat, "GET", "/api/v1/audit?limit=200", "")
	for _, want := range []string{`"verb":"enrollment.request"`, `"verb":"enrollment.approve"`, `"verb":"enrollment.decline"`, `"reason":"they have their own"`, `"verb":"credentials.rotate-request"`, `"code":"self_approval"`, `"code":"confirmation_required"`} {
		says(must(t, a, err).body, want)
	}
}
