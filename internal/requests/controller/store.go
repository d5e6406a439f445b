// Package controller stores access requests as TkaRequest objects in a Kubernetes cluster.
package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/requests"
)

// A Store stores access requests in one namespace. It implements requests.Store. In that namespace it needs get, list,
// watch and create on tkarequests, and patch on tkarequests/status. LeaseAge needs get on the Lease.
//
// Until Run has filled the cache, All and Await find nothing.
type Store struct {
	namespace string
	clusterID string // for the digests
	client    client.Client
	cache     *kube.WatchedCache // requestOf only reads
}

var _ requests.Store = (*Store)(nil)

// NewStore returns a store for the access requests in namespace of the cluster with the id.
func NewStore(config *rest.Config, namespace, clusterID string) (*Store, error) {
	if config == nil || namespace == "" || clusterID == "" {
		return nil, errors.New("a store of access requests needs a client configuration, a namespace and the id of the cluster")
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := kube.Mapper([]schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TkaRequest"), coordinationv1.SchemeGroupVersion.WithKind("Lease")}, nil)
	config = kube.Unthrottled(config)
	s := &Store{namespace: namespace, clusterID: clusterID}
	var err error
	if s.client, err = client.New(config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return nil, err
	}
	s.cache, err = kube.NewWatchedCache(config, scheme, mapper, namespace, &v1alpha1.TkaRequest{}, "access requests")
	return s, err
}

// Run keeps the cache up to date until ctx ends. It must be called at most once.
func (s *Store) Run(ctx context.Context) error { return s.cache.Run(ctx) }

// Synced reports whether the cache is filled, for a readiness check.
func (s *Store) Synced() bool { return s.cache.Synced() }

// Create stores a new request.
func (s *Store) Create(ctx context.Context, want requests.Request) (requests.Request, error) {
	o := objectOf(want, s.namespace)
	if err := s.client.Create(ctx, o, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return requests.Request{}, wrapError("create", want.Name, err)
	}
	return s.requestOf(o), nil
}

// Get reads the request from the API server.
func (s *Store) Get(ctx context.Context, name string) (requests.Request, error) {
	o := new(v1alpha1.TkaRequest)
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, o); err != nil {
		return requests.Request{}, wrapError("read", name, err)
	}
	return s.requestOf(o), nil
}

// All returns every request of the namespace from the cache, or false until the cache is filled.
func (s *Store) All() ([]requests.Request, bool) {
	if !s.Synced() {
		return nil, false
	}
	var list v1alpha1.TkaRequestList
	if err := s.cache.List(context.Background(), &list, client.InNamespace(s.namespace)); err != nil {
		return nil, false
	}
	all := make([]requests.Request, len(list.Items))
	for i := range list.Items {
		all[i] = s.requestOf(&list.Items[i])
	}
	return all, true
}

// Write stores the status of r if the stored version is the one that was read. A merge patch replaces whole lists, so it
// never joins the approvals of two writers.
func (s *Store) Write(ctx context.Context, r requests.Request) (requests.Request, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": r.UID, "resourceVersion": r.Version},
		"status":   statusOf(r.Status),
	})
	if err != nil {
		return requests.Request{}, err
	}
	o := &v1alpha1.TkaRequest{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: r.Name}}
	err = s.client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), &client.SubResourcePatchOptions{
		PatchOptions: client.PatchOptions{Raw: &metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}}})
	if err != nil {
		return requests.Request{}, wrapError("change", r.Name, err)
	}
	return s.requestOf(o), nil
}

// Await implements requests.Store.
func (s *Store) Await(ctx context.Context, name string, done func(requests.Request, bool) bool) error {
	seen := false // the cache may lag behind a request that was just created, so absence counts only after it was seen
	return s.cache.Await(ctx, name, func() (bool, error) {
		o := new(v1alpha1.TkaRequest)
		there := s.cache.Get(context.Background(), client.ObjectKey{Namespace: s.namespace, Name: name}, o) == nil
		var r requests.Request
		if there {
			seen, r = true, s.requestOf(o)
		}
		return seen && done(r, there), nil
	})
}

// LeaseAge returns how long ago the holder of a Lease renewed it, by the clock now.
func (s *Store) LeaseAge(ctx context.Context, namespace, name string, now time.Time) (time.Duration, error) {
	var lease coordinationv1.Lease
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &lease); err != nil {
		return 0, fmt.Errorf("read the Lease %s: %w", name, err)
	}
	if lease.Spec.RenewTime == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" { // an operator that stops gives it back
		return 0, fmt.Errorf("the Lease %s has no holder", name)
	}
	return now.Sub(lease.Spec.RenewTime.Time), nil
}

// wrapError wraps an error with the operation and maps API server errors to the errors of package requests.
func wrapError(doing, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		err = requests.ErrNotFound
	case apierrors.IsConflict(err):
		err = requests.ErrConflict
	}
	return fmt.Errorf("%s the access request %s: %w", doing, name, err)
}
