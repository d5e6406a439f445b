package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// HostCertificates are the serving certificates of hosts whose network issues none, in one Secret that must exist. One
// process issues them by Advance, and the hosts read them by Load. Each host has authorities of its own, which can vouch
// for no other name: so a host that is added or renamed changes nothing for clients of the others. The data of a host
// have its label and a dot before the keys of a Rotation, such as "east-api.tls.crt".
type HostCertificates struct {
	secrets corev1client.SecretInterface
	key     types.NamespacedName
	times   Rotation
}

// NewHostCertificates returns the certificates in a Secret. Times are the times of each rotation. It makes no request yet.
func NewHostCertificates(config *rest.Config, namespace, name string, times Rotation) (*HostCertificates, error) {
	c, err := corev1client.NewForConfig(Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &HostCertificates{c.Secrets(namespace), types.NamespacedName{Namespace: namespace, Name: name}, times}, nil
}

func (h *HostCertificates) rotation(host, fullName string) *Rotation {
	r := h.times
	r.Name, r.Constrained = "tailplane "+host, true
	r.Leaves = []Leaf{{Certificate: corev1.TLSCertKey, Key: corev1.TLSPrivateKeyKey, Usage: x509.ExtKeyUsageServerAuth, Names: []string{fullName}}}
	return &r
}

// Advance performs the next step of each host's rotation, and issues the certificate of a host that has none for its full
// name. The keys of hosts are their labels, the values their full names. Advance returns, by label, the authorities (PEM)
// that clients must trust, and the time of the next step. An error for which [IsStale] is true means that another process
// has made a step.
func (h *HostCertificates) Advance(ctx context.Context, hosts map[string]string, now time.Time) (bundles map[string][]byte, wake time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, stateRequestTimeout)
	defer cancel()
	s, err := h.secrets.Get(ctx, h.key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, wake, ExplainManifestObject("get", "Secret", h.key, err)
	}
	data := map[string][]byte{}
	maps.Copy(data, s.Data)
	bundles = map[string][]byte{}
	for host, fullName := range hosts {
		r, own := h.rotation(host, fullName), map[string][]byte{}
		for key, value := range s.Data {
			if name, ok := strings.CutPrefix(key, host+"."); ok {
				own[name] = value
				delete(data, key)
			}
		}
		was, err := r.Parse(own)
		if err != nil {
			return nil, wake, fmt.Errorf("the Secret %s, data of %s: %w", h.key, host, err)
		}
		if certificate, err := parsePair(was.Serving); err == nil && certificate.Leaf.VerifyHostname(fullName) != nil {
			was = RotationStage{} // no client reaches the host under its earlier name
		}
		next, due, err := r.Advance(was, now)
		if err != nil {
			return nil, wake, err
		}
		for key, value := range r.Data(next, nil) {
			data[host+"."+key] = value
		}
		bundles[host] = next.Bundle()
		if wake.IsZero() || due.Before(wake) {
			wake = due
		}
	}
	if maps.EqualFunc(data, s.Data, bytes.Equal) {
		return bundles, wake, nil
	}
	s.Data = data
	if _, err := h.secrets.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return nil, wake, ExplainManifestObject("update", "Secret", h.key, err)
	}
	return bundles, now, nil
}

// Load reads the certificate of the host with a label.
func (h *HostCertificates) Load(ctx context.Context, host string) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, stateRequestTimeout)
	defer cancel()
	s, err := h.secrets.Get(ctx, h.key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, ExplainManifestObject("get", "Secret", h.key, err)
	}
	own := Certificates{}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		own[key] = s.Data[host+"."+key]
	}
	certificate, err := parsePair(own)
	if err != nil {
		return nil, fmt.Errorf("the Secret %s has no certificate of %s: %w", h.key, host, err)
	}
	return certificate, nil
}

// parsePair parses the serving certificate and its key.
func parsePair(c Certificates) (*tls.Certificate, error) {
	if len(c[corev1.TLSCertKey]) == 0 {
		return nil, errors.New("none was issued yet")
	}
	pair, err := tls.X509KeyPair(c[corev1.TLSCertKey], c[corev1.TLSPrivateKeyKey])
	return &pair, err
}

// Follow loads the certificate of a host now and after each interval, and calls set for each new one, until ctx ends. It
// calls report for each error that differs from the one before. The last certificate stays in use after an error.
func (h *HostCertificates) Follow(ctx context.Context, host string, interval time.Duration, set func(*tls.Certificate), report func(error)) {
	var last []byte
	reported := ""
	for {
		certificate, err := h.Load(ctx, host)
		switch {
		case err != nil:
			if text := err.Error(); text != reported && ctx.Err() == nil {
				reported = text
				report(err)
			}
		case !bytes.Equal(certificate.Leaf.Raw, last):
			last, reported = certificate.Leaf.Raw, ""
			set(certificate)
		}
		if retry.Sleep(ctx, interval) != nil {
			return
		}
	}
}
