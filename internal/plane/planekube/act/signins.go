// Package act does in Kubernetes what people ask the plane for: it ends sign-ins, makes,
// changes and lifts holds, and writes enrollments. Whatever its caller has checked, nothing
// is done without a permit for that, and for whom it is done to.
package act

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planekube"
	"github.com/tailplane/tailplane/internal/problem"
)

// Signins ends sign-ins. It needs get and delete on tkasignins in its namespace.
type Signins struct {
	namespace string
	client    client.Client
	now       func() time.Time
}

// NewSignins returns what ends the sign-ins of a namespace. It asks nothing yet.
func NewSignins(config *rest.Config, namespace string, now func() time.Time) (*Signins, error) {
	if config == nil || namespace == "" || now == nil {
		return nil, errors.New("ending sign-ins takes a client configuration, a namespace and a clock")
	}
	c, err := planekube.NewClient(kube.Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &Signins{namespace, c, now}, nil
}

// tokenMemory is how long Kubernetes remembers that a token was good.
const tokenMemory = 10 * time.Second

// Revoke deletes exactly the sign-in that it has looked at, which must be the
// caller's own unless the permit is for all. Its binding goes at once, and
// Kubernetes refuses its token within the ten seconds that it remembers one. The
// reason stands in the record of the visit. A dry run asks the API server, and
// changes nothing.
//
// Whoever may not see a sign-in is told that there is none. Nobody is told that a
// sign-in has ended which has not: an answer that did not come is an error.
func (s *Signins) Revoke(ctx context.Context, p access.Permit, namespace, name, _ string, dryRun bool) (plane.Revocation, error) {
	none := problem.New(problem.NotFound, "There is no such sign-in, or you may not end it.", "List the sign-ins that you may see.")
	if err := p.Require(access.SigninsRevoke, s.now()); err != nil {
		return plane.Revocation{}, err
	}
	if namespace != s.namespace || name == "" {
		return plane.Revocation{}, none
	}
	o := new(v1alpha1.TkaSignin)
	switch err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o); {
	case apierrors.IsNotFound(err):
		return plane.Revocation{}, none
	case err != nil:
		return plane.Revocation{}, away(fmt.Errorf("read the sign-in %s: %w", name, err))
	case !p.Everywhere() && !(plane.Owner{Login: o.Spec.User.Login, Tailnet: o.Spec.Device.Tailnet}).Is(p.Caller()):
		return plane.Revocation{}, none
	}
	exactly := []client.DeleteOption{client.Preconditions{UID: new(o.UID)}}
	if dryRun {
		exactly = append(exactly, client.DryRunAll)
	}
	switch err := s.client.Delete(ctx, o, exactly...); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or another one has its name by now
		return plane.Revocation{}, none
	case err != nil:
		return plane.Revocation{}, away(fmt.Errorf("end the sign-in %s: %w", name, err))
	}
	if dryRun {
		return plane.Revocation{}, nil
	}
	return plane.Revocation{Deleted: true, RefusedBy: new(s.now().Add(tokenMemory).UTC())}, nil
}

func away(err error) error {
	return problem.New(problem.Unavailable, "The API server has not said that the sign-in was ended.", "Try again in a moment, and look whether it is still there.").
		After(time.Second).Because(err)
}
