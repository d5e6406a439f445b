package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// SigninRevoker ends sign-ins. It needs get and delete on tkasignins in its namespace.
type SigninRevoker struct {
	namespace string
	client    client.Client
	now       func() time.Time
}

// Signins returns the revoker of the sign-ins in a namespace.
func (c *Connection) Signins(namespace string) *SigninRevoker {
	return &SigninRevoker{namespace, c.client, c.now}
}

// tokenCacheTime is how long Kubernetes caches that a token is valid.
const tokenCacheTime = 10 * time.Second

// Revoke deletes a sign-in. Unless the permit is for all, the sign-in must be the caller's own. Its binding goes at once. Kubernetes
// refuses its token within ten seconds, the time that it caches a valid token. The audit entry of the request has the reason. A dry run
// sends a dry-run request to the API server and changes nothing.
//
// A caller that may not see a sign-in receives NotFound. Revoke reports success only if the API server confirmed the deletion; a missing
// response is an error.
func (s *SigninRevoker) Revoke(ctx context.Context, p access.Permit, namespace, name, _ string, dryRun bool) (plane.Revocation, error) {
	none := problem.New(problem.NotFound, "The sign-in does not exist, or you may not end it.", "List the sign-ins that you may see.")
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
		return plane.Revocation{}, signinUnavailable(fmt.Errorf("read the sign-in %s: %w", name, err))
	case !p.Everywhere() && !(plane.Owner{Login: o.Spec.User.Login, Tailnet: o.Spec.Device.Tailnet}).Is(p.Caller()):
		return plane.Revocation{}, none
	}
	switch err := dryRunClient(s.client, dryRun).Delete(ctx, o, client.Preconditions{UID: new(o.UID)}); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // deleted, or another sign-in has the name now
		return plane.Revocation{}, none
	case err != nil:
		return plane.Revocation{}, signinUnavailable(fmt.Errorf("end the sign-in %s: %w", name, err))
	}
	if dryRun {
		return plane.Revocation{}, nil
	}
	return plane.Revocation{Deleted: true, RefusedBy: new(s.now().Add(tokenCacheTime).UTC())}, nil
}

func signinUnavailable(err error) error {
	return problem.New(problem.Unavailable, "The API server did not confirm that the sign-in was ended.", "Try again in a moment, and check whether the sign-in still exists.").
		WithRetryAfter(time.Second).WithCause(err)
}
