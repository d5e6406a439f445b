package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
)

// Each certificate is in a Secret with the name of its domain, which the relays of a group share.
// Normally the operator creates the Secret empty, and the first relay issues a certificate. If
// another party created the Secret, that party fills and renews it, and relays only read it.

// terminatesTLS reports whether relays terminate TLS on a port of a service.
func terminatesTLS(s *v1alpha1.TailscaleService) bool {
	return s.Spec.VIPService != nil && slices.ContainsFunc(s.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.TLS == v1alpha1.TLSTerminate })
}

// domainOf returns the name of a service in the group's tailnet, or "" if it is unknown.
func (l *groupReconciliation) domainOf(s *v1alpha1.TailscaleService) string {
	label, ok := gateway.ServiceLabel(s.Spec.VIPService.Name)
	suffix := strings.ToLower(l.tailnetDomain())
	if !ok || suffix == "" {
		return ""
	}
	return label + "." + suffix
}

// retainCertificate keeps the certificate of a service that this group may carry, even while it does
// not carry it. Reissuing is costly, because a CA limits the certificates per name.
func (l *groupReconciliation) retainCertificate(s *v1alpha1.TailscaleService, group gateway.Name) {
	if s.Spec.Type == v1alpha1.Ingress && s.DeletionTimestamp == nil && terminatesTLS(s) && (group == objectName(l.group) || group.Name == "") {
		l.retained[l.domainOf(s)] = true
	}
}

// ensureCertificate finds the Secret for a service's name, or records that it must be created. domain
// is "" if there can be no certificate.
func (l *groupReconciliation) ensureCertificate(ctx context.Context, s *v1alpha1.TailscaleService) (domain string, err error) {
	domain = l.domainOf(s)
	if domain == "" {
		l.omitted = append(l.omitted, objectName(s).String()+" terminates TLS, but the domain of the tailnet is not known yet")
		return "", nil
	}
	if l.certs[domain] != nil {
		l.issue[domain] = true
		return domain, nil
	}
	other := &corev1.Secret{}
	switch err := l.direct.Get(ctx, client.ObjectKey{Namespace: l.group.Namespace, Name: domain}, other); {
	case apierrors.IsNotFound(err):
		l.issue[domain] = true
	case err != nil:
		return "", fmt.Errorf("get the Secret %s: %w", domain, err)
	case other.Type != corev1.SecretTypeTLS:
		l.omitted = append(l.omitted, objectName(s).String()+" terminates TLS, but the Secret "+domain+" has another type than "+string(corev1.SecretTypeTLS))
		return "", nil
	default:
		l.issue[domain] = false
	}
	return domain, nil
}

// applyCertificates creates missing Secrets and deletes those that no service needs.
func (l *groupReconciliation) applyCertificates(ctx context.Context, objects *workload.Objects) error {
	for _, s := range objects.Certs {
		if l.certs[s.Name] != nil || !l.issue[s.Name] {
			continue
		}
		if err := l.direct.Create(ctx, s, client.FieldOwner(v1alpha1.FieldManager)); apierrors.IsAlreadyExists(err) {
			l.requeueAt(l.Now().Add(groupRequeueSoon)) // another party created it first; its owner decides who fills it
		} else if err != nil {
			return fmt.Errorf("create the Secret %s: %w", s.Name, err)
		}
	}
	if l.retained[""] {
		return nil // the domain of a service is unknown, so delete nothing
	}
	for _, name := range slices.Sorted(maps.Keys(l.certs)) {
		if !l.retained[name] {
			if err := l.delete(ctx, l.certs[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
