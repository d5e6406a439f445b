package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

// annotateTimeout limits the write of the annotation before a deletion.
const annotateTimeout = 2 * time.Second

// lookupMaxAge is how long the store relies on an admission policy or a role that it has read.
const lookupMaxAge = 30 * time.Second

// byLogin is the name of the cache index by the login of the owner.
const byLogin = "login"

// A Store stores sign-ins as TkaSignin objects in one namespace. It implements signin.Store. In
// that namespace it needs get, list, watch, create, patch and delete on tkasignins, get on
// serviceaccounts, and create on serviceaccounts/token. It also needs get on the admission policies
// AdmissionPolicy and TokenPolicy and their bindings, if the rules require them, and get on the
// ClusterRoles whose names RoleRules receives.
//
// Until Run has filled the cache, reads from the cache find nothing. Await waits for the cache.
type Store struct {
	namespace string
	rules     signin.TokenRules
	now       func() time.Time
	config    *rest.Config
	client    client.Client
	cache     *kube.WatchedCache    // signinOf only reads
	policies  lookupCache[bool]     // whether a policy is in force, by name
	roles     lookupCache[roleInfo] // by name
}

var _ signin.Store = (*Store)(nil)

// NewStore returns a store for the sign-ins in namespace. rules apply to their tokens.
func NewStore(config *rest.Config, namespace string, rules signin.TokenRules, now func() time.Time) (*Store, error) {
	if config == nil || namespace == "" || rules.Max <= 0 || now == nil {
		return nil, errors.New("a store of sign-ins needs a client configuration, a namespace, the rules of its tokens and a clock")
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, authenticationv1.AddToScheme, admissionv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := kube.Mapper([]schema.GroupVersionKind{
		v1alpha1.GroupVersion.WithKind("TkaSignin"),
		corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	}, []schema.GroupVersionKind{
		admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"),
		admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"),
		rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
	})
	config = kube.Unthrottled(config)
	s := &Store{namespace: namespace, rules: rules, now: now, config: config}
	var err error
	if s.client, err = client.New(config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return nil, err
	}
	s.cache, err = kube.NewWatchedCache(config, scheme, mapper, namespace, &v1alpha1.TkaSignin{}, "sign-ins")
	return s, err
}

// Run keeps the cache up to date until ctx ends. It must be called at most once.
func (s *Store) Run(ctx context.Context) error {
	if err := s.cache.IndexField(ctx, &v1alpha1.TkaSignin{}, byLogin, func(o client.Object) []string {
		return []string{o.(*v1alpha1.TkaSignin).Spec.User.Login}
	}); err != nil {
		return fmt.Errorf("index sign-ins: %w", err)
	}
	return s.cache.Run(ctx)
}

// Synced reports whether the cache is filled, for a readiness check.
func (s *Store) Synced() bool { return s.cache.Synced() }

// Get reads the sign-in from the API server.
func (s *Store) Get(ctx context.Context, name string) (signin.Signin, error) {
	o := new(v1alpha1.TkaSignin)
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, o); err != nil {
		return signin.Signin{}, wrapError("read", name, err)
	}
	return signinOf(o), nil
}

// GetCached reads the sign-in from the cache.
func (s *Store) GetCached(name string) (signin.Signin, bool) {
	if !s.Synced() {
		return signin.Signin{}, false
	}
	o := new(v1alpha1.TkaSignin)
	if err := s.cache.Get(context.Background(), client.ObjectKey{Namespace: s.namespace, Name: name}, o); err != nil {
		return signin.Signin{}, false
	}
	return signinOf(o), true
}

// ListCached returns the cached sign-ins of a login.
func (s *Store) ListCached(login string) []signin.Signin {
	if !s.Synced() {
		return nil
	}
	all, _ := listSignins(s.cache, s.namespace, client.MatchingFields{byLogin: login})
	return all
}

// Create stores a new sign-in.
func (s *Store) Create(ctx context.Context, want signin.Signin) (signin.Signin, error) {
	o := objectOf(want, s.namespace)
	// Strict: an API server whose schema has no spec.bind would drop the field, and so widen the sign-in.
	if err := s.client.Create(ctx, o, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return signin.Signin{}, wrapError("create", want.Name, err)
	}
	return signinOf(o), nil
}

// Extend writes the period, the reason, the name of the rule, the request time and the first use, if the stored version is the one that was read.
func (s *Store) Extend(ctx context.Context, want signin.Signin) (signin.Signin, error) {
	spec := map[string]any{"period": metav1.Duration{Duration: want.Period}, "askedAt": metav1.NewTime(want.AskedAt)}
	if want.Why != "" {
		spec["reason"] = want.Why
	}
	if spec["rule"] = want.Rule; want.Rule == "" {
		spec["rule"] = nil
	}
	if len(want.Record) > 0 {
		spec["record"] = want.Record
	}
	spec["onUse"], spec["idle"], spec["usedAt"] = nil, nil, nil
	if want.OnUse {
		spec["onUse"], spec["idle"], spec["usedAt"] = true, metav1.Duration{Duration: want.Idle}, metav1.NewTime(want.UsedAt)
	}
	o, err := s.patch(ctx, want.Name, map[string]any{"metadata": map[string]any{"uid": want.UID, "resourceVersion": want.Version}, "spec": spec})
	if err != nil {
		return signin.Signin{}, wrapError("extend", want.Name, err)
	}
	return signinOf(o), nil
}

func (s *Store) patch(ctx context.Context, name string, change map[string]any) (*v1alpha1.TkaSignin, error) {
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	return o, s.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), client.FieldValidation(metav1.FieldValidationStrict))
}

// Delete deletes exactly this sign-in. First it marks the sign-in with an annotation, because a
// deletion does not show who requested it.
func (s *Store) Delete(ctx context.Context, which signin.Signin) error {
	o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: which.Name}}
	s.annotateEnd(ctx, which)
	for range maxAttempts {
		err := s.client.Delete(ctx, o, client.Preconditions{UID: new(types.UID(which.UID))})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return wrapError("end", which.Name, err)
		}
		// The sign-in is gone only if another one has its name. Do not report a live one as gone.
		now, err := s.Get(ctx, which.Name)
		if err != nil {
			return err
		}
		if now.UID != which.UID {
			return fmt.Errorf("end the sign-in %s: another sign-in has its name: %w", which.Name, signin.ErrNotFound)
		}
	}
	return fmt.Errorf("end the sign-in %s: %w", which.Name, signin.ErrConflict)
}

// annotateEnd sets the annotation. A failure does not prevent the deletion; the operator then adds
// one more entry to the audit log.
func (s *Store) annotateEnd(ctx context.Context, which signin.Signin) {
	ctx, cancel := context.WithTimeout(ctx, annotateTimeout)
	defer cancel()
	_, _ = s.patch(ctx, which.Name, map[string]any{"metadata": map[string]any{"uid": which.UID, "annotations": map[string]string{v1alpha1.EndRequestedAnnotation: cmp.Or(which.EndAsked, "access")}}})
}

// Await implements signin.Store. The watch triggers each check. A positive check is repeated on the
// API server, because the cache may lag behind a write that the caller knows of.
func (s *Store) Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error {
	return s.cache.Await(ctx, name, func() (bool, error) {
		if !done(s.GetCached(name)) {
			return false, nil
		}
		now, err := s.Get(ctx, name)
		if err != nil && !errors.Is(err, signin.ErrNotFound) {
			return false, err
		}
		return done(now, err == nil), nil
	})
}

// wrapError wraps an error with the operation and maps API server errors to the errors of package
// signin.
func wrapError(doing, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		err = signin.ErrNotFound
	case apierrors.IsAlreadyExists(err):
		err = signin.ErrExists
	case apierrors.IsConflict(err):
		err = signin.ErrConflict
	}
	return fmt.Errorf("%s the sign-in %s: %w", doing, name, err)
}

// RoleRules returns the stored rules of a ClusterRole, or none if it does not exist. The answer is 30
// seconds old at most.
func (s *Store) RoleRules(ctx context.Context, role access.Role) ([]signin.PolicyRule, error) {
	info, err := s.roles.get(string(role), s.now(), lookupMaxAge, func() (roleInfo, error) { return readRole(ctx, s.client, role) })
	if err != nil {
		return nil, fmt.Errorf("read the ClusterRole %s: %w", role, err)
	}
	return info.rules, nil
}

// All returns every sign-in of the namespace from the cache, or false until the cache is filled.
func (s *Store) All() ([]signin.Signin, bool) {
	if !s.Synced() {
		return nil, false
	}
	return listSignins(s.cache, s.namespace)
}

// Live lists the sign-ins that exist now and are not being deleted: their UIDs by name, and the resource version of the
// list. The list comes from the API server and is consistent, so a sign-in that it lacks has ended.
func (s *Store) Live(ctx context.Context) (version string, uids map[string]string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TkaSigninList"))
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return "", nil, fmt.Errorf("list sign-ins: %w", err)
	}
	uids = make(map[string]string, len(list.Items))
	for _, o := range list.Items {
		if o.DeletionTimestamp.IsZero() {
			uids[o.Name] = string(o.UID)
		}
	}
	return list.ResourceVersion, uids, nil
}
