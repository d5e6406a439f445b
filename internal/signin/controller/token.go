package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// IssueToken requests a token of the ServiceAccount of which, for life at most. It reads the account
// from the API server and applies the rules of the store, because a status alone proves nothing.
//
// The request names the UID of the account, and IssueToken compares the UID in the token. API
// servers before Kubernetes 1.34 only warn about a mismatch.
func (s *Store) IssueToken(ctx context.Context, which signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	fail := func(err error) (secret.Text, time.Time, error) {
		return secret.Text{}, time.Time{}, fmt.Errorf("token for %s: %w", which.Name, err)
	}
	if which.ServiceAccountUID == "" {
		return fail(fmt.Errorf("no ServiceAccount is known: %w", signin.ErrConflict))
	}
	if err := s.requirePolicies(ctx); err != nil {
		return fail(err)
	}
	account := &corev1.ServiceAccount{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: which.Name}, account); err != nil {
		return secret.Text{}, time.Time{}, wrapError("read the ServiceAccount of", which.Name, err)
	}
	allowed, err := s.rules.Verify(which, accountOf(account), s.now())
	if err != nil {
		return fail(err)
	}
	life = max(min(life, allowed), signin.MinTokenLife)
	request := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(which.ServiceAccountUID)},
		Spec:       authenticationv1.TokenRequestSpec{Audiences: s.rules.Audiences, ExpirationSeconds: new(int64(life / time.Second))},
	}
	if err := s.client.SubResource("token").Create(ctx, account, request); err != nil {
		return secret.Text{}, time.Time{}, wrapError("create a token for", which.Name, err)
	}
	if err := s.verifyToken(which, request.Status.Token); err != nil {
		return fail(err)
	}
	return secret.New(request.Status.Token), request.Status.ExpirationTimestamp.Time, nil
}

// requirePolicies returns ErrPolicyMissing unless the admission policies on which tokens rely are in
// force. Only positive answers are cached, so that a repaired policy counts at once.
func (s *Store) requirePolicies(ctx context.Context) error {
	if !s.rules.RequireAdmissionPolicy {
		return nil
	}
	for _, name := range []string{AdmissionPolicy, TokenPolicy} {
		_, err := s.policies.get(name, s.now(), lookupMaxAge, func() (bool, error) {
			active, err := kube.IsPolicyInForce(ctx, s.client, name)
			if err == nil && !active {
				err = fmt.Errorf("%w: %s", signin.ErrPolicyMissing, name)
			}
			return active, err
		})
		if err != nil {
			return fmt.Errorf("read the admission policy %s: %w", name, err)
		}
	}
	return nil
}

// verifyToken checks that the API server returned a token of the account of which. Without configured
// audiences the token must have the audiences of this process's own token: the API server's.
func (s *Store) verifyToken(which signin.Signin, token string) error {
	if token == "" {
		return errors.New("the API server returned an empty token")
	}
	c, err := parseClaims(token)
	if err != nil {
		return fmt.Errorf("the API server returned a token that cannot be read: %w", err)
	}
	if c.Kubernetes.ServiceAccount.UID != which.ServiceAccountUID {
		return fmt.Errorf("the token is for another ServiceAccount of that name: %w", signin.ErrConflict)
	}
	want := s.rules.Audiences
	if len(want) == 0 {
		if want = s.ownAudiences(); len(want) == 0 {
			return nil
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(c.Audiences))) {
		return fmt.Errorf("%w: the token is for the audiences %q, not %q", signin.ErrMismatch, c.Audiences, want)
	}
	return nil
}

// ownAudiences returns the audiences of this process's own token. It returns none if the process
// authenticates with a certificate, or with a legacy token, which has none.
func (s *Store) ownAudiences() []string {
	token := s.config.BearerToken
	if path := s.config.BearerTokenFile; path != "" {
		if b, err := os.ReadFile(path); err == nil {
			token = strings.TrimSpace(string(b))
		}
	}
	c, err := parseClaims(token)
	if err != nil {
		return nil
	}
	return c.Audiences
}

// claims are the claims of a ServiceAccount's token that the store checks.
type claims struct {
	Audiences  []string `json:"aud"`
	Kubernetes struct {
		ServiceAccount struct {
			UID string `json:"uid"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// parseClaims returns the claims of a token. It does not verify the signature, because the token
// comes directly from the API server. Its errors contain no part of the token.
func parseClaims(token string) (c claims, err error) {
	text, err := secret.JWTPayload(token)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, errors.New("its claims are not JSON")
	}
	return c, nil
}
