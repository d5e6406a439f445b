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
)

// reasonNoSecret is a reason of the condition CredentialsValid, in addition to those of packages
// fleet and account.
const reasonNoSecret = "SecretNotFound"

// sourceSecret reads the Secret that an enrollment names; nil if there is none.
func (l *enrollmentState) sourceSecret(ctx context.Context) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	err := l.deps.direct.Get(ctx, client.ObjectKey{Namespace: l.deps.settings.isolation.Namespace, Name: l.e.Spec.Credentials.SecretName}, s)
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
func (l *enrollmentState) checkCredential(ctx context.Context, s *corev1.Secret) {
	name := l.e.Spec.Credentials.SecretName
	l.facts.Credential = fleet.CredentialState{Valid: fleet.No, Reason: reasonNoSecret, Message: fmt.Sprintf("There is no Secret %q in the fleet's namespace.", name)}
	switch {
	case s == nil:
		l.checkOldCredential(ctx)
		return
	case s.Labels[v1alpha1.OrgLabel] != l.e.Name: // do not use any of its data
		l.facts.Credential.Reason, l.facts.Credential.Message = fleet.ReasonSecretOfAnother, fmt.Sprintf("The Secret %q does not carry the label %s: %s.", name, v1alpha1.OrgLabel, l.e.Name)
		return
	}
	l.session = l.deps.sessions.get(l.e.Name, l.e, l.forge, s.Data)
	l.session.check(ctx, l.now, l.live)
	l.wake = earliest(l.wake, l.session.nextCheck())
	c := l.session.State
	l.credentialData = s.Data
	if c.Valid == fleet.Yes && l.session.GitHub != nil {
		l.credentialData = withInstallation(s.Data, l.session.Identity.InstallationID)
		copied, err := isolation.Credential(l.e.Name, l.deps.settings.isolation.Namespace, l.credentialData)
		if err != nil {
			c = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
		} else {
			c.Fingerprint = fleet.Fingerprint(copied.Data)
		}
	} else if l.session.GitHub == nil {
		c.Fingerprint = fleet.Fingerprint(s.Data)
	}
	l.facts.Credential = c
	l.useManualRunner()
	l.checkOldCredential(ctx)
}

// checkOldCredential checks the older credential that the runners still use, if the new credential is not valid.
func (l *enrollmentState) checkOldCredential(ctx context.Context) {
	if l.facts.Credential.Valid != fleet.No || l.forge.Spec.Type != v1alpha1.GitHub {
		return
	}
	for _, s := range l.secrets {
		if !isCopy(&s) || !slices.ContainsFunc(l.workloads, func(w *workload) bool { return w.Namespace == s.Namespace && slices.Contains(w.Copies, s.Name) }) {
			continue
		}
		a := l.deps.sessions.get(l.e.Name+"/"+s.Name, l.e, l.forge, s.Data)
		a.check(ctx, l.now, l.live)
		l.wake = earliest(l.wake, a.nextCheck())
		l.facts.Credential.InUse = a.State.Valid
		if a.State.Valid == fleet.Yes {
			if l.session == nil || l.session.State.Valid == fleet.No {
				l.session = a
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
