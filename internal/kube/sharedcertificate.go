package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// A SharedCertificate is a certificate in a Secret that several processes serve, and that one of them obtains from a
// certificate authority outside the cluster. The Secret must exist. The process that obtains the certificate notes its
// name and the time in an annotation first, so that the others do not contact the authority at the same time.
type SharedCertificate struct {
	secrets  corev1client.SecretInterface
	key      types.NamespacedName
	identity string
}

// issuerAnnotation notes which process obtains the certificate, and since when: "NAME TIME".
const issuerAnnotation = "tailplane.dev/certificate-issuer"

// issuerTime is how long the other processes leave the certificate to the one that has begun to obtain it.
const issuerTime = 2 * time.Minute

// NewSharedCertificate returns the certificate in a Secret for the process with an identity. It makes no request yet.
func NewSharedCertificate(config *rest.Config, namespace, name, identity string) (*SharedCertificate, error) {
	c, err := corev1client.NewForConfig(Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &SharedCertificate{c.Secrets(namespace), types.NamespacedName{Namespace: namespace, Name: name}, identity}, nil
}

// Load returns the certificate for a DNS name. If it is missing, or less than a third of its life is left, and no other
// process obtains it already, Load calls issue, which returns the chain and the key in PEM, and stores the result. It
// returns nil without an error while another process obtains the first certificate. A certificate that is still valid is
// returned together with the error of its renewal.
func (s *SharedCertificate) Load(ctx context.Context, name string, now time.Time, issue func(context.Context) (chain, key []byte, err error)) (*tls.Certificate, error) {
	secret, err := s.secrets.Get(ctx, s.key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, ExplainManifestObject("get", "Secret", s.key, err)
	}
	current, due := usable(secret.Data, name, now)
	if !due || s.isLeftTo(secret.Annotations[issuerAnnotation], now) {
		return current, nil
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, issuerAnnotation, s.identity+" "+now.UTC().Format(time.RFC3339))
	if secret, err = s.secrets.Update(ctx, secret, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return current, nil // another process was faster
	} else if err != nil {
		return current, ExplainManifestObject("update", "Secret", s.key, err)
	}
	chain, key, err := issue(ctx)
	if err != nil {
		return current, fmt.Errorf("obtain the certificate for %s: %w", name, err)
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	delete(secret.Annotations, issuerAnnotation)
	if _, err := s.secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return current, ExplainManifestObject("update", "Secret", s.key, err)
	}
	current, _ = usable(secret.Data, name, now)
	return current, nil
}

// usable returns the certificate if it is valid for a name, and whether it must be obtained or renewed.
func usable(data map[string][]byte, name string, now time.Time) (_ *tls.Certificate, due bool) {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil || pair.Leaf.VerifyHostname(name) != nil || now.After(pair.Leaf.NotAfter) {
		return nil, true
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	return &pair, now.After(pair.Leaf.NotAfter.Add(-life / 3))
}

// isLeftTo reports whether another process has noted that it obtains the certificate.
func (s *SharedCertificate) isLeftTo(note string, now time.Time) bool {
	var identity, since string
	if _, err := fmt.Sscanf(note, "%s %s", &identity, &since); err != nil || identity == s.identity {
		return false
	}
	began, err := time.Parse(time.RFC3339, since)
	return err == nil && now.Sub(began).Abs() < issuerTime
}
