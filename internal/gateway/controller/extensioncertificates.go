package controller

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// ExtensionCertificates maintains the certificates for mutual TLS between Envoy Gateway and the
// extension server. It follows law 9: the state of a rotation is in a Secret, so a new leader can
// continue it, and at no time does one side use a certificate that the other does not trust.

// Names of the Secrets. The server's Secret also contains the state of a rotation.
const (
	extensionServerSecret    = "tailplane-extension-server"
	extensionAuthoritySecret = "tailplane-extension-ca"
	ExtensionClientSecret    = "tailplane-extension-client"
)

// Keys of the client's certificate in the server's Secret.
const (
	clientCertificateKey = "client.crt"
	clientKeyKey         = "client.key"
)

// Default times of ExtensionCertificates.
const (
	extensionCertificateLifetime = 90 * 24 * time.Hour
	authorityPublishTime         = 10 * time.Minute
	authorityRetainTime          = time.Hour
	certificateCheckInterval     = time.Minute // interval for detecting external changes of a Secret
	certificateRetryTime         = 5 * time.Second
)

// An ExtensionCertificates maintains the certificates. Fields are required unless documented otherwise.
type ExtensionCertificates struct {
	Namespace string
	Names     []string // DNS names of the extension server for Envoy Gateway
	Client    string   // DNS name in Envoy Gateway's certificate
	Log       *slog.Logger
	Now       func() time.Time

	// Lifetime, PublishTime and RetainTime are the times of a rotation. CheckInterval is the interval for checking the
	// Secrets. All are optional.
	Lifetime, PublishTime, RetainTime, CheckInterval time.Duration

	client client.Client
}

// Add registers the certificates' rotation to run on the manager's leader. The manager's client must read Secrets
// from the API server, not from a cache.
func (k *ExtensionCertificates) Add(mgr manager.Manager) error {
	if k.Namespace == "" || len(k.Names) == 0 || k.Client == "" || k.Log == nil || k.Now == nil {
		return errors.New(
			"the controller of the extension server's certificates lacks a setting: namespace, names, client, log and clock are required",
		)
	}
	k.Lifetime, k.PublishTime = cmp.Or(k.Lifetime, extensionCertificateLifetime), cmp.Or(k.PublishTime, authorityPublishTime)
	k.RetainTime, k.CheckInterval = cmp.Or(k.RetainTime, authorityRetainTime), cmp.Or(k.CheckInterval, certificateCheckInterval)
	k.client = mgr.GetClient()
	return mgr.Add(manager.RunnableFunc(k.run))
}

func (k *ExtensionCertificates) run(ctx context.Context) error {
	logged := ""
	for {
		wake, err := k.rotate(ctx)
		wait := min(max(wake.Sub(k.Now()), time.Millisecond), k.CheckInterval)
		message := ""
		if err != nil {
			wait = min(certificateRetryTime, k.CheckInterval)
			if message = err.Error(); message != logged && !kube.IsStale(err) && ctx.Err() == nil {
				k.Log.Error("cannot renew the extension server's certificates", "err", err)
			}
		}
		logged = message
		if retry.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// rotation returns the rotation of both sides' certificates.
func (k *ExtensionCertificates) rotation() *kube.Rotation {
	return &kube.Rotation{
		Name:        "tailplane-extension",
		Lifetime:    k.Lifetime,
		PublishTime: k.PublishTime,
		RetainTime:  k.RetainTime,
		Leaves: []kube.Leaf{
			{Certificate: corev1.TLSCertKey, Key: corev1.TLSPrivateKeyKey, Usage: x509.ExtKeyUsageServerAuth, Names: k.Names},
			{Certificate: clientCertificateKey, Key: clientKeyKey, Usage: x509.ExtKeyUsageClientAuth, Names: []string{k.Client}},
		},
	}
}

// rotate distributes the current stage from the server's Secret to both sides and then advances one
// step.
func (k *ExtensionCertificates) rotate(ctx context.Context) (wake time.Time, err error) {
	var own corev1.Secret
	err = k.client.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: extensionServerSecret}, &own)
	if err != nil && !apierrors.IsNotFound(err) {
		return wake, fmt.Errorf("read the Secret %s: %w", extensionServerSecret, err)
	}
	rotation := k.rotation()
	was, err := rotation.Parse(own.Data)
	if err != nil {
		return wake, fmt.Errorf("the Secret %s: %w", extensionServerSecret, err)
	}
	if rotation.Check(was.Serving) == nil {
		if err := errors.Join(
			k.ensureSecret(ctx, extensionAuthoritySecret, corev1.SecretTypeOpaque, map[string][]byte{"tls.crt": was.Bundle()}),
			k.ensureSecret(ctx, ExtensionClientSecret, corev1.SecretTypeTLS, map[string][]byte{corev1.TLSCertKey: was.Serving[clientCertificateKey], corev1.TLSPrivateKeyKey: was.Serving[clientKeyKey]}),
		); err != nil {
			return wake, err
		}
	}
	next, wake, err := rotation.Advance(was, k.Now())
	if err != nil {
		return wake, err
	}
	next.Published, next.Switched = next.Published.Truncate(time.Second), next.Switched.Truncate(time.Second) // as the Secret has them
	if data := rotation.Data(next, nil); !equalData(data, own.Data) {
		own.Data, own.Type = data, corev1.SecretTypeTLS
		if err := k.writeSecret(ctx, &own, extensionServerSecret); err != nil {
			return wake, err
		}
		k.Log.Info(
			"the certificates of the extension server changed stage",
			"next",
			next.Next != nil,
			"published",
			!next.Published.IsZero(),
			"previous",
			next.Previous != nil,
		)
		return k.Now(), nil // distribute the new stage first
	}
	return wake, nil
}

// ensureSecret creates or updates a Secret.
func (k *ExtensionCertificates) ensureSecret(ctx context.Context, name string, kind corev1.SecretType, data map[string][]byte) error {
	var s corev1.Secret
	err := k.client.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: name}, &s)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the Secret %s: %w", name, err)
	case equalData(data, s.Data):
		return nil
	}
	s.Data, s.Type = data, kind
	return k.writeSecret(ctx, &s, name)
}

// writeSecret creates a Secret, or updates exactly the version that was read.
func (k *ExtensionCertificates) writeSecret(ctx context.Context, s *corev1.Secret, name string) error {
	var err error
	if s.ResourceVersion == "" {
		s.ObjectMeta = metav1.ObjectMeta{Namespace: k.Namespace, Name: name, Labels: map[string]string{v1alpha1.ManagedLabel: "true"}}
		err = k.client.Create(ctx, s)
	} else {
		err = k.client.Update(ctx, s)
	}
	return wrapError(err, "write the Secret %s", name)
}

func equalData(a, b map[string][]byte) bool {
	return maps.EqualFunc(a, b, slices.Equal)
}
