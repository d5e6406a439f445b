//go:build unix

package dashboard_test

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/kube"
)

// byPlane switches to approval by the plane, on the real API server, which has acme.
func (h *env) byPlane() error {
	api, err := kube.Connect(h.config.cluster.AdminConfig(), time.Now)
	if err != nil {
		return err
	}
	spec, _, err := gitops.ReadSpec([]byte(orgFile), gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"})
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerEnrollment", "metadata": map[string]any{"name": "acme"}, "spec": spec})
	if err != nil {
		return err
	}
	h.enroll.Writer = writeThrough{api.Enrollments(func(string) bool { return true }), h}
	return h.config.cluster.Apply(context.Background(), text)
}

// writeThrough is a Writer that also updates the store at once, as a watch on the API server would.
type writeThrough struct {
	plane.EnrollmentWriter
	h *env
}

func (w writeThrough) Apply(ctx context.Context, p access.Permit, c plane.EnrollmentChange) (plane.Enrollment, bool, error) {
	e, changed, err := w.EnrollmentWriter.Apply(ctx, p, c)
	switch {
	case c.Action == plane.ActionApprove:
		e.Conditions = []plane.Condition{is("Approved", true, "Approved", "")}
	case c.Action == plane.ActionOffboard && !c.RecordOnly:
		e.Phase, e.Offboard = "Draining", &plane.Offboard{Step: "Drain", Since: time.Now(), Message: "The last jobs are running."}
	}
	switch {
	case err != nil || bool(c.DryRun):
	case c.Action == plane.ActionDecline:
		w.h.board.Delete(plane.KindEnrollment, e.Name)
	default:
		if e.Phase == plane.StateUnknown {
			e.Phase = "Requested" // the first phase that the fleet reports
		}
		w.h.board.Set(plane.KindEnrollment, "kubernetes", e)
	}
	return e, changed, err
}
