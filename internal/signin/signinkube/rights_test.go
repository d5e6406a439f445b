//go:build unix

package signinkube

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/kubetest"
)

// product is a cluster as the manifests make it, shared by the tests that look
// at rights and policies.
var product = sync.OnceValues(func() (*kubetest.Cluster, error) {
	c, err := kubetest.Run(context.Background(), kubetest.Options{Name: "product"})
	return c, err
})

// productPlace is the product's own namespace, with operator and store as its
// own ServiceAccounts. Tests that use it run one after the other and leave
// nothing behind.
func productPlace(t *testing.T) *place {
	t.Helper()
	c, err := product()
	if err != nil {
		t.Fatal(err)
	}
	install, _ := installed.LoadOrStore(c, sync.OnceValue(func() error {
		docs := files(t, "../../../deploy/crds/tailplane.dev_*.yaml")
		names, err := filepath.Glob("../../../deploy/base/*.yaml")
		if err != nil {
			return err
		}
		for _, name := range names {
			if filepath.Base(name) != "kustomization.yaml" {
				docs = append(docs, files(t, name)...)
			}
		}
		return c.Apply(context.Background(), docs...)
	}))
	if err := install.(func() error)(); err != nil {
		t.Fatal(err)
	}
	p := placeOn(t, c, "tailplane-signins")
	p.rules.RequireAdmissionPolicy = true
	dir := t.TempDir()
	account := func(name string) string {
		path, err := c.ServiceAccountKubeconfig(t.Context(), "tailplane-system", name, dir)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	if p.accessConfig, err = kube.Config(account("tailplane-access")); err != nil {
		t.Fatal(err)
	}
	if p.operatorConfig, err = kube.Config(account("tailplane-operator")); err != nil {
		t.Fatal(err)
	}
	return p
}

// The manifests give each program the rights it needs.
func TestManifestsSuffice(t *testing.T) {
	p := productPlace(t)
	p.lease = "tailplane-system"
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	ready := p.login(s, wanted(alice, "view", time.Hour))
	if _, _, err := s.Token(t.Context(), ready, time.Hour); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	p.await(s, ready.Name, gone)
	p.nothingLeft()
}
