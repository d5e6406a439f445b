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
	writer, err := kube.NewEnrollmentWriter(h.config.cluster.AdminConfig(), func(string) bool { return true }, time.Now)
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
	h.enroll.Writer = writeThrough{writer, h}
	return h.config.cluster.Apply(context.Background(), text)
}

// writeThrough is a Writer that also updates the store at once, as a watch on the API server would.
type writeThrough struct {
	plane.EnrollmentWriter
	h *env
}

func (w writeThrough) tell(e plane.Enrollment, err error, dryRun bool) (plane.Enrollment, error) {
	if err == nil && !dryRun {
		if e.Phase == plane.StateUnknown {
			e.Phase = "Requested" // the first phase that the fleet reports
		}
		w.h.board.Set(plane.KindEnrollment, "kubernetes", e)
	}
	return e, err
}

func (w writeThrough) Create(ctx context.Context, p access.Permit, spec json.RawMessage, request string, dryRun bool) (plane.Enrollment, bool, error) {
	e, created, err := w.EnrollmentWriter.Create(ctx, p, spec, request, dryRun)
	e, err = w.tell(e, err, dryRun)
	return e, created, err
}

func (w writeThrough) Edit(ctx context.Context, p access.Permit, patch json.RawMessage, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.Edit(ctx, p, patch, dryRun)
	return w.tell(e, err, dryRun)
}

func (w writeThrough) Approve(ctx context.Context, p access.Permit, digest string, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.Approve(ctx, p, digest, dryRun)
	e.Conditions = []plane.Condition{is("Approved", true, "Approved", "")}
	return w.tell(e, err, dryRun)
}

func (w writeThrough) Decline(ctx context.Context, p access.Permit, digest string, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.Decline(ctx, p, digest, dryRun)
	if err == nil && !dryRun {
		w.h.board.Delete(plane.KindEnrollment, e.Name)
	}
	return e, err
}

func (w writeThrough) Rotate(ctx context.Context, p access.Permit, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.Rotate(ctx, p, dryRun)
	return w.tell(e, err, dryRun)
}

func (w writeThrough) RequestAction(ctx context.Context, p access.Permit, what plane.RequestedAction, reason string, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.RequestAction(ctx, p, what, reason, dryRun)
	return w.tell(e, err, dryRun)
}

func (w writeThrough) Offboard(ctx context.Context, p access.Permit, dryRun bool) (plane.Enrollment, error) {
	e, err := w.EnrollmentWriter.Offboard(ctx, p, dryRun)
	e.Phase, e.Offboard = "Draining", &plane.Offboard{Step: "Drain", Since: time.Now(), Message: "The last jobs are running."}
	return w.tell(e, err, dryRun)
}
