package controller

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

// Names of the admission policies on which tokens rely, and of their bindings. The first allows only
// the access server to write sign-ins, the second only the access server to request their tokens, and
// the third only the access server to write access requests.
const (
	AdmissionPolicy = "tailplane-signins"
	TokenPolicy     = "tailplane-signin-tokens"
	RequestPolicy   = "tailplane-requests"
)

// furtherRole is the end of the name of a binding of a further role, after the hash of the sign-in's name.
var furtherRole = regexp.MustCompile(`(-[0-9a-f]{20})-[0-9a-f]{6}$`)

// signinName returns the name of the sign-in for a binding name, or "".
func signinName(name string) string {
	s, ok := strings.CutPrefix(name, signin.BindingName(""))
	if !ok {
		return ""
	}
	return furtherRole.ReplaceAllString(s, "$1")
}

// maxReads is the maximum number of namespaces of a selector in which bindings are read by name. A
// sign-in with more is refused.
const maxReads = 50

// gather collects the facts that signin.Next needs for one sign-in. It reads from the cache. If
// live, it reads objects with a known name from the API server. It returns the object even if a
// later read fails. It returns a NotFound error only if the sign-in does not exist.
func (r *reconciler) gather(ctx context.Context, name string, live bool) (f signin.Facts, o *v1alpha1.TkaSignin, err error) {
	reader := client.Reader(r.Client)
	if live {
		reader = r.live
	}
	o = new(v1alpha1.TkaSignin)
	if err := reader.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, o); err != nil {
		return f, nil, err
	}
	f = signin.Facts{
		Signin:       signinOf(o),
		ExpiredAt:    expiredAt(o),
		HasFinalizer: controllerutil.ContainsFinalizer(o, v1alpha1.SigninFinalizer),
		Rules:        r.Rules,
	}
	if f.Account, err = r.account(ctx, reader, f.Signin); err != nil {
		return f, o, err
	}
	ends := f.Deleting || !f.ExpiredAt.IsZero() // the conditions for provisioning are not needed
	if !ends {
		if err := r.namespaces(ctx, reader, &f); err != nil {
			return f, o, err
		}
	}
	if f.Bindings, err = r.bindings(ctx, reader, f); err != nil || ends {
		return f, o, err
	}
	if err := r.accessRequest(ctx, reader, &f); err != nil {
		return f, o, err
	}
	if f.OnUse && (f.Phase != signin.PhaseReady || f.ServiceAccountUID == "") {
		f.FirstUseOff = true
		if r.marks != nil {
			if f.FirstUseOff, err = r.marks.IsOff(ctx, f.Name); err != nil {
				return f, o, err
			}
		}
	}
	if f.PolicyActive, err = r.isPolicyActive(ctx, AdmissionPolicy); err != nil {
		return f, o, err
	}
	f.Roles = map[access.Role]signin.ClusterRole{}
	for _, b := range f.Binds {
		role, err := r.role(ctx, b.Role)
		if err != nil {
			return f, o, err
		}
		f.Roles[b.Role] = signin.ClusterRole{Exists: role.exists, Reaches: signin.ReachesAccounts(role.rules)}
	}
	return f, o, nil
}

// namespaces sets the namespaces that exist and those that the selectors select.
func (r *reconciler) namespaces(ctx context.Context, reader client.Reader, f *signin.Facts) error {
	f.Selected = map[access.Selector][]string{}
	for _, b := range f.Binds {
		if b.Selector != "" {
			selected, err := selectNamespaces(ctx, reader, b.Selector)
			if err != nil {
				return err
			}
			f.Selected[b.Selector] = selected
		}
		for _, ns := range b.Namespaces {
			there, err := namespaceExists(ctx, reader, ns)
			if err != nil {
				return err
			}
			if there {
				f.Existing = append(f.Existing, ns)
			}
		}
	}
	return nil
}

func (r *reconciler) account(ctx context.Context, reader client.Reader, s signin.Signin) (*signin.Account, error) {
	sa := new(corev1.ServiceAccount)
	if err := reader.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: s.Name}, sa); err != nil {
		return nil, client.IgnoreNotFound(r.ignoreForbiddenIfTerminating(ctx, err))
	}
	return accountOf(sa), nil
}

func accountOf(sa *corev1.ServiceAccount) *signin.Account {
	a := &signin.Account{UID: string(sa.UID), Signin: ownerUID(sa, sa.Namespace), Deleting: sa.DeletionTimestamp != nil}
	if owner := metav1.GetControllerOf(sa); owner != nil {
		a.Owner = string(owner.UID)
	}
	return a
}

// ignoreForbiddenIfTerminating turns a Forbidden error for ServiceAccounts into NotFound while the namespace of
// the sign-ins is being deleted. The operator's Role in that namespace is already gone, and the
// ServiceAccounts go with it. The operator must still remove the objects elsewhere; its finalizers
// keep the namespace until then.
func (r *reconciler) ignoreForbiddenIfTerminating(ctx context.Context, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	there, getErr := namespaceExists(ctx, r.live, r.Namespace)
	if getErr != nil || there {
		return err
	}
	return apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "")
}

// bindings returns the bindings with the sign-in's names in the whole cluster, in the namespaces where
// it is or should be bound, and from the cache all bindings with its UID.
func (r *reconciler) bindings(ctx context.Context, reader client.Reader, s signin.Facts) ([]signin.Binding, error) {
	var found []signin.Binding
	add := func(o client.Object) {
		b := r.bindingOf(o)
		if !slices.ContainsFunc(found, func(x signin.Binding) bool { return x.UID == b.UID }) {
			found = append(found, b)
		}
	}
	names := signin.BindingNames(s.Name, s.Binds)
	for i, b := range s.Binds {
		places := append([]string{""}, b.Namespaces...)
		if len(b.Namespaces) == 0 && len(s.Selected[b.Selector]) <= maxReads {
			places = append(places, s.Selected[b.Selector]...)
		}
		for _, ns := range places {
			var o client.Object = new(rbacv1.RoleBinding)
			if ns == "" {
				o = new(rbacv1.ClusterRoleBinding)
			}
			switch err := reader.Get(ctx, client.ObjectKey{Namespace: ns, Name: names[i]}, o); {
			case err == nil:
				add(o)
			case !apierrors.IsNotFound(err):
				return nil, err
			}
		}
	}
	for _, list := range []client.ObjectList{new(rbacv1.ClusterRoleBindingList), new(rbacv1.RoleBindingList)} {
		labelled, err := r.objects(ctx, list, client.MatchingFields{bySignin: s.UID})
		if err != nil {
			return nil, err
		}
		for _, o := range labelled {
			add(o)
		}
	}
	return found, nil
}

// objects returns the items of a list from the cache. The caller must not change them.
func (r *reconciler) objects(ctx context.Context, list client.ObjectList, options ...client.ListOption) (items []client.Object, err error) {
	if err := r.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		items = append(items, o.(client.Object))
		return nil
	})
	return items, err
}

func (r *reconciler) bindingOf(o client.Object) signin.Binding {
	b := signin.Binding{Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()), Signin: ownerUID(o, r.Namespace)}
	var role rbacv1.RoleRef
	var subjects []rbacv1.Subject
	switch o := o.(type) {
	case *rbacv1.ClusterRoleBinding:
		role, subjects = o.RoleRef, o.Subjects
	case *rbacv1.RoleBinding:
		role, subjects = o.RoleRef, o.Subjects
	}
	if role.APIGroup == rbacv1.GroupName && role.Kind == "ClusterRole" {
		b.Role = access.Role(role.Name)
	}
	if len(subjects) == 1 && subjects[0] == (rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: r.Namespace, Name: subjects[0].Name}) {
		b.Account = subjects[0].Name
	}
	return b
}

// ownerUID returns the UID of the sign-in in the labels of o, if o carries all labels of the operator
// of the sign-ins in namespace.
func ownerUID(o client.Object, namespace string) string {
	l := o.GetLabels()
	if l[v1alpha1.ManagedByLabel] != v1alpha1.ManagedBy || l[v1alpha1.SigninNamespaceLabel] != namespace {
		return ""
	}
	return l[v1alpha1.SigninUIDLabel]
}

func namespaceExists(ctx context.Context, reader client.Reader, name string) (bool, error) {
	ns := new(metav1.PartialObjectMetadata)
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, ns); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return ns.DeletionTimestamp == nil, nil // no object can be created in a namespace that is being deleted
}

// selectNamespaces returns the namespaces that the selector selects, sorted, without those that are
// being deleted. An invalid selector selects none.
func selectNamespaces(ctx context.Context, reader client.Reader, selector access.Selector) (names []string, err error) {
	parsed, err := labels.Parse(string(selector))
	if err != nil {
		return nil, nil //nolint:nilerr // signin.Next refuses it
	}
	list := new(metav1.PartialObjectMetadataList)
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := reader.List(ctx, list, client.MatchingLabelsSelector{Selector: parsed}); err != nil {
		return nil, fmt.Errorf("list the namespaces with the labels %s: %w", selector, err)
	}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			names = append(names, list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// selects reports whether the selector selects a namespace with these labels.
func selects(selector access.Selector, of map[string]string) bool {
	parsed, err := labels.Parse(string(selector))
	return err == nil && parsed.Matches(labels.Set(of))
}

// role describes the ClusterRole. Kubernetes would accept a binding to a missing role. It queries
// only roles on the allow-list, because the operator's permissions name them one by one.
func (r *reconciler) role(ctx context.Context, role access.Role) (roleInfo, error) {
	if !slices.Contains(r.Rules.Roles, role) {
		return roleInfo{}, nil
	}
	return r.roles.get(string(role), r.Now(), r.Rules.Recheck, func() (roleInfo, error) { return readRole(ctx, r.Client, role) })
}

// isPolicyActive reports whether the named admission policy and its binding exist and deny.
func (r *reconciler) isPolicyActive(ctx context.Context, name string) (bool, error) {
	if !r.Rules.RequireAdmissionPolicy {
		return false, nil
	}
	return r.policies.get(name, r.Now(), r.Rules.Recheck, func() (bool, error) { return kube.IsPolicyInForce(ctx, r.Client, name) })
}
