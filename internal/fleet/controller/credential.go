package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// reasonNoSecret is a reason of the condition CredentialsValid, in addition to those of packages
// fleet and account.
const reasonNoSecret = "SecretNotFound"

// sourceSecret reads the Secret that an enrollment names; nil if there is none.
func sourceSecret(ctx context.Context, d deps, e *v1alpha1.RunnerEnrollment) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	err := d.direct.Get(ctx, client.ObjectKey{Namespace: d.settings.isolation.Namespace, Name: e.Spec.Credentials.SecretName}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the credential: %w", err)
	}
	return s, nil
}

// checkCredential determines the state of an enrollment's credential, from the content of its Secret and
// from the forge's answer.
func checkCredential(ctx context.Context, d deps, o *observed, s *corev1.Secret) {
	name := o.e.Spec.Credentials.SecretName
	o.facts.Credential = fleet.CredentialState{Valid: fleet.No, Reason: reasonNoSecret, Message: fmt.Sprintf("There is no Secret %q in the fleet's namespace.", name)}
	switch {
	case s == nil:
		checkOldCredential(ctx, d, o)
		return
	case s.Labels[v1alpha1.OrgLabel] != o.e.Name: // do not use any of its data
		o.facts.Credential.Reason, o.facts.Credential.Message = fleet.ReasonSecretOfAnother, fmt.Sprintf("The Secret %q does not carry the label %s: %s.", name, v1alpha1.OrgLabel, o.e.Name)
		return
	}
	o.session = d.sessions.get(o.e.Name, o.e, o.forge, s.Data)
	o.session.check(ctx, o.now, o.live)
	o.wake = retry.Earliest(o.wake, o.session.nextCheck())
	c := o.session.State
	o.credentialData = s.Data
	if c.Valid == fleet.Yes && o.session.GitHub != nil {
		o.credentialData = withInstallation(s.Data, o.session.Identity.InstallationID)
		copied, err := isolation.Credential(o.e.Name, o.settings.Namespace, o.credentialData)
		if err != nil {
			c = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
		} else {
			c.Fingerprint = fleet.Fingerprint(copied.Data)
		}
	} else if o.session.GitHub == nil {
		c.Fingerprint = fleet.Fingerprint(s.Data)
	}
	o.facts.Credential = c
	o.useManualRunner()
	checkOldCredential(ctx, d, o)
}

// checkOldCredential checks the older credential that the runners still use, if the new credential is not valid.
func checkOldCredential(ctx context.Context, d deps, o *observed) {
	if o.facts.Credential.Valid != fleet.No || o.forge.Spec.Type != v1alpha1.GitHub {
		return
	}
	for _, s := range o.secrets {
		if !isCopy(&s) || !slices.ContainsFunc(o.workloads, func(w *workload) bool { return w.Namespace == s.Namespace && slices.Contains(w.Copies, s.Name) }) {
			continue
		}
		a := d.sessions.get(o.e.Name+"/"+s.Name, o.e, o.forge, s.Data)
		a.check(ctx, o.now, o.live)
		o.wake = retry.Earliest(o.wake, a.nextCheck())
		o.facts.Credential.InUse = a.State.Valid
		if a.State.Valid == fleet.Yes {
			if o.session == nil || o.session.State.Valid == fleet.No {
				o.session = a
			}
			return
		}
	}
}

// isCopy reports whether a Secret is the copy of a GitHub credential.
func isCopy(s *corev1.Secret) bool {
	return s.Labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && s.Labels[v1alpha1.PoolLabel] == "" &&
		(len(s.Data["github_app_id"]) > 0 || len(s.Data["github_token"]) > 0)
}
