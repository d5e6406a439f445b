//go:build unix

package kube_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/kube"
)

// hostTimes are the times of a rotation.
var hostTimes = kube.Rotation{Lifetime: 90 * time.Hour, PublishTime: 10 * time.Hour, RetainTime: time.Hour}

// Two processes issue the certificates of two hosts: both return the same authorities. A host that is added or renamed
// changes nothing for the other.
func TestHostCertificates(t *testing.T) {
	_, ns, config, _ := newKeyEnv(t)
	one, two := newHostCertificates(t, config, ns), newHostCertificates(t, config, ns)
	now := time.Now()
	ctx := context.Background()
	if _, err := one.Load(ctx, "east-api"); err == nil {
		t.Error("a certificate exists before it was issued")
	}
	hosts := map[string]string{"east-api": "east-api.mesh.example"}
	first, _, err := one.Advance(ctx, hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	hosts["east-api-1"] = "east-api-1.mesh.example"
	second, wake, err := two.Advance(ctx, hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	if string(first["east-api"]) != string(second["east-api"]) {
		t.Error("the authority of east-api changed with another host, or with another process")
	}
	if !wake.Equal(now) {
		t.Errorf("wake = %v, want now: the Secret changed", wake)
	}
	for host, fullName := range hosts {
		loaded, err := one.Load(ctx, host)
		if err != nil {
			t.Fatal(err)
		}
		leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: loaded.Leaf.Raw})
		if err := verifyLeaf(second[host], leaf, fullName, x509.ExtKeyUsageServerAuth, now); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	hosts["east-api-1"] = "gate-1.mesh.example"
	third, _, err := two.Advance(ctx, hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{}
	for host, bundle := range third {
		kept[host] = string(bundle) == string(second[host])
	}
	if diff := cmp.Diff(map[string]bool{"east-api": true, "east-api-1": false}, kept); diff != "" {
		t.Errorf("authorities that a rename of east-api-1 kept (-want +got):\n%s", diff)
	}
}

// A renewal: clients that know the authorities of one stage accept the certificate of the next stage.
func TestHostCertificatesRenewal(t *testing.T) {
	_, ns, config, _ := newKeyEnv(t)
	h := newHostCertificates(t, config, ns)
	hosts := map[string]string{"east-api": "east-api.mesh.example"}
	now := time.Now()
	var trusted []byte
	var switches int
	var served string
	for range 12 {
		bundles, wake, err := h.Advance(t.Context(), hosts, now)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := h.Load(t.Context(), "east-api")
		if err != nil {
			t.Fatal(err)
		}
		leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: loaded.Leaf.Raw})
		for why, bundle := range map[string][]byte{"this stage": bundles["east-api"], "the stage before": trusted} {
			if err := verifyLeaf(bundle, leaf, "east-api.mesh.example", x509.ExtKeyUsageServerAuth, now); err != nil && bundle != nil {
				t.Errorf("with the authorities of %s: %v", why, err)
			}
		}
		if string(leaf) != served {
			served = string(leaf)
			switches++
		}
		trusted, now = bundles["east-api"], wake
	}
	if switches < 2 {
		t.Errorf("%d certificates were served, want a renewal", switches)
	}
}

func newHostCertificates(t *testing.T, config *rest.Config, ns string) *kube.HostCertificates {
	t.Helper()
	h, err := kube.NewHostCertificates(config, ns, "key", hostTimes)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
