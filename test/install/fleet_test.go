//go:build unix

package install

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// fleetNamespaces are the namespaces in the fleet's profile, with its own first.
var fleetNamespaces = []string{"tailplane-fleet", "arc-systems", "old-runners", "default"}

// fleetBinds are the ClusterRoles that the fleet binds in namespaces of runners. The chart binds them nowhere.
var fleetBinds = []string{isolation.FleetRole, isolation.ARCRole, isolation.ManagerRole, isolation.PodRunnerRole}

func boundByFleet(role *unstructured.Unstructured) bool {
	return role.GetKind() == "ClusterRole" && slices.Contains(fleetBinds, role.GetName())
}

// secretsOfFleet reports whether a rule about all Secrets of a namespace is the fleet's rule for its own namespace.
// That namespace contains only the credentials of organisations.
func secretsOfFleet(role *unstructured.Unstructured, r rbacv1.PolicyRule) bool {
	return role.GetNamespace() == "tailplane-fleet" && role.GetName() == "tailplane-fleet" && slices.Equal(r.Verbs, []string{"get", "list", "watch", "delete"})
}

func fleetBinding(b rbacv1.ClusterRoleBinding) bool {
	return len(b.Subjects) == 1 && b.Subjects[0] == rbacv1.Subject{Kind: "ServiceAccount", Namespace: "tailplane-fleet", Name: "tailplane-fleet"} &&
		slices.Contains([]string{"tailplane-fleet", "tailplane-fleet-arc", "tailplane-fleet-adopted"}, b.RoleRef.Name)
}

// The chart refuses inconsistent values.
func TestFleetValuesRefused(t *testing.T) {
	values := profileValues(t, "fleet")
	for _, tt := range []struct{ why, set, want string }{
		{"credentials in the namespace of the server", "fleet.namespace=" + systems, "set a namespace that nothing else uses"},
		{"jobs in the namespace of sign-ins", "fleet.sharedNamespace=" + signins, "set a namespace that nothing else uses"},
		{"jobs in the namespace of credentials", "fleet.sharedNamespace=tailplane-fleet", "are both tailplane-fleet"},
		{"jobs in the namespace of ARC", "fleet.sharedNamespace=arc-systems", "set a namespace that nothing else uses"},
		{"the shared one as an organisation's", "fleet.sharedNamespace=tailplane-org-x", "set a namespace that nothing else uses"},
		{"no writer", "fleet.writers=null,fleet.writerGroups=null", "fleet.writers is missing"},
		{"no approver", "fleet.approval=plane", "plane.enabled is false"},
		{"no such approval", "fleet.approval=nobody", "/fleet/approval"},
		{"a writer that closes the policy's string", `fleet.writers={a'b}`, "/fleet/writers/0"},
		{"a namespace that closes the string", `fleet.arcNamespace=a'b`, "/fleet/arcNamespace"},
		{"misspelt", "fleet.writer=x", "'writer' not allowed"},
		{"misspelt image", "fleet.images.runners=x", "'runners' not allowed"},
		{"no range", "fleet.clusterCIDRs={here}", "/fleet/clusterCIDRs/0"},
	} {
		if _, err := try(t, values, "--set", tt.set); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: --set %s: %v\nwant %s", tt.why, tt.set, err, tt.want)
		}
	}
}

// The fleet's file is what the program reads, with the program's defaults. The program accepts the arguments of its
// pod.
func TestFleetSettingsInStep(t *testing.T) {
	const bare = "image: {repository: registry.invalid/x}\ncluster: {name: prod-eu, server: \"https://prod.invalid\", caFromPod: true}\nsignin: {roles: [view]}\nfleet: {enabled: true, writers: [argo]}\n"
	for name, values := range map[string]string{"defaults": bare, "everything": profileValues(t, "fleet")} {
		out := render(t, values)
		text, _, _ := unstructured.NestedString(rendered(t, out, "ConfigMap", "tailplane-fleet").Object, "data", "fleet.yaml")
		f, err := settings.Parse([]byte(text))
		if err == nil {
			err = f.Validate(settings.FleetRole)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		got, want := f.Fleet, settings.Default().Fleet
		if name == "defaults" && (got.Namespace != want.Namespace || got.SharedNamespace != want.SharedNamespace || got.ARCNamespace != want.ARCNamespace || got.Approval != want.Approval ||
			got.Images != want.Images || got.Canary.Image != "" || got.DriftCheckInterval != want.DriftCheckInterval || got.RequireOwnApp || len(got.Approvers)+len(got.ClusterCIDRs)+len(got.APIServers)+len(got.CacheNamespaces) > 0) {
			t.Errorf("the chart's defaults are\n%+v\nthe program's\n%+v", got, want)
		}
		if name == "everything" && (len(got.Prefixes()) != 2 || len(got.Servers()) != 2 || !got.RequireOwnApp || got.Images.Job == "" || got.Canary.Image != "registry.invalid/team/tailplaned:v1.0.0" || len(got.Canary.Targets) != 1 || got.CacheNamespaces[0] != "cache") {
			t.Errorf("%+v", got)
		}
		containers, _, _ := unstructured.NestedSlice(rendered(t, out, "Deployment", "tailplane-fleet").Object, "spec", "template", "spec", "containers")
		args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		understood(t, args, text)
	}
	if settings.Default().Fleet.SharedNamespace != fleet.SharedNamespace {
		t.Error("the shared namespace has two names")
	}
	if one := render(t, bare, "--set", "fleet.replicas=1"); rendered(t, one, "PodDisruptionBudget", "tailplane-fleet") != nil {
		t.Error("the only replica may not be evicted")
	}
}

// installFleet applies the chart with the fleet's profile, together with objects that the chart does not contain. It
// removes them at the end, because other tests share the cluster.
func installFleet(t *testing.T, set ...string) *kubetest.Cluster {
	t.Helper()
	return installFleetIn(t, place(t), set...)
}

func installFleetIn(t *testing.T, c *kubetest.Cluster, set ...string) *kubetest.Cluster {
	t.Helper()
	out := ofPart(t, render(t, profileValues(t, "fleet"), append([]string{"--no-hooks"}, set...)...), "fleet")
	var arc strings.Builder
	for _, kind := range []string{"AutoscalingRunnerSet", "AutoscalingListener", "EphemeralRunnerSet", "EphemeralRunner"} {
		plural := strings.ToLower(kind) + "s"
		fmt.Fprintf(&arc, "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: %s.actions.github.com, annotations: {api-approved.kubernetes.io: \"unapproved, a stub\"}}\n"+
			"spec: {group: actions.github.com, scope: Namespaced, names: {plural: %s, singular: %s, kind: %s}, versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}\n",
			plural, plural, strings.ToLower(kind), kind)
	}
	// RBAC allows these users everything, so only the admission policies refuse.
	people := "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: test-people}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: \"test:people\"}]}"
	if err := c.Apply(t.Context(), []byte(arc.String()), []byte(people), []byte(out)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k, ctx := clientsOf(t, c.AdminConfig()), context.WithoutCancel(t.Context())
		for _, u := range objects(t, out) {
			if u.GetKind() == "ValidatingAdmissionPolicyBinding" {
				if err := k.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, u.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		}
		unbind(t, c, out)
	})
	// A policy takes effect a moment after its creation.
	mallory := somebody(t, c, "mallory@acme.dev")
	until(t, "the policies are at work", func() bool {
		return byPolicy(mallory.create("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerForge, metadata: {name: x}, spec: {type: github, url: \"https://github.com\"}}")) &&
			byPolicy(mallory.create("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerHold, metadata: {name: x}, spec: {scope: {all: true}, mode: Pause, reason: x, requestedBy: amy@acme.dev}}")) &&
			byPolicy(mallory.create("{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {tailplane.dev/isolation: Node}}}")) &&
			byPolicy(fleetAccount(t, c).create("{apiVersion: v1, kind: Namespace, metadata: {name: x}}"))
	})
	return c
}

// removeNamespace starts to delete a namespace when the test ends.
func removeNamespace(t *testing.T, c *kubetest.Cluster, ns string) {
	t.Helper()
	t.Cleanup(func() {
		if err := clientsOf(t, c.AdminConfig()).CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// A userClient writes objects with the rights of one user.
type userClient struct {
	t      *testing.T
	client *dynamic.DynamicClient
}

func handOf(t *testing.T, config *rest.Config) userClient {
	t.Helper()
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return userClient{t, client}
}

// somebody returns a hand for a user to whom RBAC allows everything.
func somebody(t *testing.T, c *kubetest.Cluster, name string, groups ...string) userClient {
	t.Helper()
	config := c.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append([]string{"test:people", "system:authenticated"}, groups...)}
	return handOf(t, config)
}

// fleetAccount returns a hand with exactly the fleet's rights.
func fleetAccount(t *testing.T, c *kubetest.Cluster) userClient {
	t.Helper()
	return handOf(t, configOf(t, c, "tailplane-fleet", "tailplane-fleet"))
}

func (h userClient) of(u *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	if u.GetNamespace() == "" {
		return h.client.Resource(gvr)
	}
	return h.client.Resource(gvr).Namespace(u.GetNamespace())
}

func (h userClient) read(doc string) *unstructured.Unstructured {
	h.t.Helper()
	u := new(unstructured.Unstructured)
	if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
		h.t.Fatalf("%v: %s", err, doc)
	}
	return u
}

// create creates an object with a dry run. store creates it for real.
func (h userClient) create(doc string) error {
	h.t.Helper()
	u := h.read(doc)
	_, err := h.of(u).Create(h.t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (h userClient) store(doc string) error {
	h.t.Helper()
	u := h.read(doc)
	_, err := h.of(u).Create(h.t.Context(), u, metav1.CreateOptions{})
	return err
}

// change patches an object, or its status if sub names it, with a dry run.
func (h userClient) change(doc, patch string, sub ...string) error {
	h.t.Helper()
	u := h.read(doc)
	_, err := h.of(u).Patch(h.t.Context(), u.GetName(), "application/merge-patch+json", []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, sub...)
	return err
}

func (h userClient) remove(doc string) error {
	h.t.Helper()
	u := h.read(doc)
	return h.of(u).Delete(h.t.Context(), u.GetName(), metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
}

// apply writes an object as the fleet does.
func (h userClient) apply(o isolation.Object) error {
	h.t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		h.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: m}
	_, err = h.of(u).Apply(h.t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "tailplane-fleet", Force: true})
	return err
}

// units returns workloads that together need every kind of object that the fleet can create.
func units() (s isolation.Settings, all []isolation.WorkloadSpec) {
	s = isolation.Settings{Namespace: "tailplane-fleet", Account: "tailplane-fleet", Shared: "tailplane-runners",
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/14")}, APIServers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:443")}, CacheNamespaces: []string{"cache"},
		ARC:    isolation.ARC{Version: "0.14.2", Namespace: "arc-systems", ServiceAccount: "arc-gha-rs-controller"},
		Images: isolation.Images{Runner: "registry.invalid/r:1", Manager: "registry.invalid/m:1", Job: "registry.invalid/j:1"}}
	add := func(org string, forge v1alpha1.ForgeType, level v1alpha1.Isolation, mode v1alpha1.ContainerMode) {
		u := isolation.WorkloadSpec{
			Forge:      &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: string(forge)}, Spec: v1alpha1.RunnerForgeSpec{Type: forge, URL: "https://" + string(forge) + ".com"}},
			Pool:       &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "nix"}, Spec: v1alpha1.RunnerPoolSpec{Forge: string(forge), RunsOn: []string{"nix"}, Scaling: v1alpha1.PoolScaling{Max: 5, Budget: 20}, ContainerMode: mode}},
			Enrollment: &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: string(forge), ConfigURL: "https://" + string(forge) + ".com/" + org, Isolation: level}},
			Use:        v1alpha1.EnrolledPool{Name: "nix", Type: v1alpha1.UseShared}, Name: org + "-nix", Capacity: fleet.Capacity{Max: 3}, Credential: org + "-3f9c1a2b", Token: secret.New("glrt-0123456789"),
		}
		if forge == v1alpha1.GitLab {
			u.Pool.Spec.GitLab = &v1alpha1.PoolGitLab{Replicas: 2}
		}
		all = append(all, u)
	}
	add("acme", v1alpha1.GitHub, v1alpha1.IsolationNamespace, v1alpha1.ModeKubernetes)
	add("globex", v1alpha1.GitLab, v1alpha1.IsolationNone, v1alpha1.ModeDefault)
	return s, all
}

// FLEET-14, FL-05: with exactly its own account the fleet creates everything that runners need, in namespaces that it
// created. It can create none of it elsewhere. None of its requests gives it a right or a Secret outside of them.
func TestFLEET14_FleetAccount(t *testing.T) {
	c := installFleet(t)
	us := fleetAccount(t, c)
	admin := handOf(t, c.AdminConfig())
	s, all := units()
	var made []isolation.Object
	for _, u := range all {
		ground, err := isolation.Baseline(s, isolation.Tenant{Enrollment: u.Enrollment, Forge: u.Forge, Pools: []*v1alpha1.RunnerPool{u.Pool}})
		if err != nil {
			t.Fatal(err)
		}
		workload, err := isolation.Objects(s, u)
		if err != nil {
			t.Fatal(err)
		}
		// The rights in a namespace exist only after the fleet has bound them there.
		rank := func(o isolation.Object) int {
			return slices.Index([]string{"RoleBinding", "Namespace"}, o.GetObjectKind().GroupVersionKind().Kind)
		}
		slices.SortStableFunc(ground, func(a, b isolation.Object) int { return rank(b) - rank(a) })
		for _, o := range append(ground, workload...) {
			made = append(made, o)
			if _, is := o.(*corev1.Namespace); is {
				removeNamespace(t, c, o.GetName())
			}
			var err error
			until(t, "the API server has seen the binding", func() bool {
				err = us.apply(o)
				return !byRBAC(err)
			})
			if err != nil {
				t.Fatalf("%s %s: %v", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
			}
		}
	}
	roles := map[string]bool{}
	for _, o := range made {
		if b, is := o.(*rbacv1.RoleBinding); is {
			roles[b.RoleRef.Name] = true
		}
	}
	if len(roles) != len(fleetBinds) {
		t.Errorf("bound %v of %v", roles, fleetBinds)
	}

	// The same objects in other places: in the server's namespace, in users' namespaces, in a foreign namespace with
	// the name of an organisation's namespace, and in the namespace of the fleet's credentials.
	if err := admin.store("{apiVersion: v1, kind: Namespace, metadata: {name: tailplane-org-foreign, labels: {app.kubernetes.io/managed-by: somebody}}}"); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, ns := range []string{systems, "people", "kube-system", "tailplane-org-foreign", "tailplane-fleet", "arc-systems"} {
		for _, o := range made {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			if kind == "Namespace" {
				continue
			}
			other := o.DeepCopyObject().(isolation.Object)
			other.SetNamespace(ns)
			if err := us.apply(other); !byRBAC(err) && !byPolicy(err) {
				t.Errorf("%s %s in %s: %v", kind, o.GetName(), ns, err)
			}
		}
	}
	binding := func(ns, label, role, subject, of string) string {
		return fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: test, namespace: %s, labels: {app.kubernetes.io/managed-by: %s}}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}, subjects: [{kind: ServiceAccount, name: %s, namespace: %s}]}", ns, label, role, subject, of)
	}
	namespace := func(name, labels string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s}}}", name, labels)
	}
	const ours = "app.kubernetes.io/managed-by: tailplane"
	for _, tt := range []struct {
		why     string
		refused func(error) bool
		err     error
	}{
		{"itself, in the namespace of the server", byPolicy, us.create(binding(systems, "tailplane", "tailplane-fleet-namespace", "tailplane-fleet", "tailplane-fleet"))},
		{"itself, in kube-system", byPolicy, us.create(binding("kube-system", "tailplane", "tailplane-fleet-namespace", "tailplane-fleet", "tailplane-fleet"))},
		{"itself, in an organisation's namespace that another client created", byPolicy, us.create(binding("tailplane-org-foreign", "tailplane", "tailplane-fleet-namespace", "tailplane-fleet", "tailplane-fleet"))},
		{"without its label", byPolicy, us.create(binding("tailplane-org-acme", "somebody", "tailplane-fleet-namespace", "tailplane-fleet", "tailplane-fleet"))},
		{"another account as the fleet", byPolicy, us.create(binding("tailplane-org-acme", "tailplane", "tailplane-fleet-namespace", "mallory", "people"))},
		{"ARC's rights for a job", byPolicy, us.create(binding("tailplane-org-acme", "tailplane", "tailplane-arc-manager", "tailplane-runner", "tailplane-org-acme"))},
		{"one organisation's manager in another's", byPolicy, us.create(binding("tailplane-org-acme", "tailplane", "tailplane-gitlab-manager", "tailplane-runner-manager", "tailplane-runners"))},
		{"a job's rights for all", byPolicy, us.create(binding("tailplane-runners", "tailplane", "tailplane-runner-kubernetes", "tailplane-runner", "tailplane-runners"))},
		{"cluster-admin", func(err error) bool { return byRBAC(err) || byPolicy(err) }, us.create(binding("tailplane-org-acme", "tailplane", "cluster-admin", "tailplane-fleet", "tailplane-fleet"))},
		{"itself, in its own namespace of credentials", byPolicy, us.create(binding("tailplane-fleet", "tailplane", "tailplane-fleet-namespace", "tailplane-fleet", "tailplane-fleet"))},
		{"a namespace of another name", byPolicy, us.create(namespace("kube-flannel", ours))},
		{"a namespace that begins so", byPolicy, us.create(namespace("tailplane-orgs", ours))},
		{"one of an organisation without its label", byPolicy, us.create(namespace("tailplane-org-x", ours))},
		{"one of an organisation with another's label", byPolicy, us.create(namespace("tailplane-org-x", ours+", tailplane.dev/org: acme"))},
		{"one without ours", byPolicy, us.create(namespace("tailplane-org-x", "tailplane.dev/org: x"))},
		{"one that is right", func(err error) bool { return err == nil }, us.create(namespace("tailplane-org-x", ours+", tailplane.dev/org: x"))},
		{"to take over a foreign one", byPolicy, us.change(namespace("tailplane-org-foreign", ""), `{"metadata": {"labels": {"app.kubernetes.io/managed-by": "tailplane", "tailplane.dev/org": "foreign"}}}`)},
		{"labels of kube-system", byPolicy, us.change(namespace("kube-system", ""), `{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}`)},
		{"to delete a foreign one of another name", byPolicy, us.remove(namespace("people", ""))},
		{"to delete a foreign one", byPolicy, us.remove(namespace("tailplane-org-foreign", ""))},
		{"to delete its own", func(err error) bool { return err == nil }, us.remove(namespace("tailplane-org-acme", ""))},
		{"to remove the policy", byRBAC, us.remove("{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: tailplane-fleet}}")},
		{"to widen its role", byRBAC, us.change("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: tailplane-fleet}}", `{"rules": []}`)},
		{"to widen what it binds", byRBAC, us.change("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: tailplane-arc-manager}}", `{"rules": []}`)},
		{"who has runners", byRBAC, us.create("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerForge, metadata: {name: x}, spec: {type: github, url: \"https://github.com\"}}")},
	} {
		if !tt.refused(tt.err) {
			t.Errorf("%s: %v", tt.why, tt.err)
		}
	}

	// Secrets: the fleet's own and those of runners, no others.
	config := configOf(t, c, "tailplane-fleet", "tailplane-fleet")
	k := clientsOf(t, config)
	for ns, may := range map[string]bool{"tailplane-fleet": true, "tailplane-org-acme": true, "tailplane-runners": true, systems: false, "people": false, "kube-system": false, "default": false,
		"arc-systems": false, "old-runners": false, "tailplane-org-foreign": false, "": false} {
		if _, err := k.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); (err == nil) != may || err != nil && !byRBAC(err) {
			t.Errorf("Secrets of %q: %v", ns, err)
		}
	}
	// The fleet can read a credential but cannot write one.
	if _, err := k.CoreV1().Secrets("tailplane-fleet").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !byRBAC(err) {
		t.Errorf("a credential that it created: %v", err)
	}

	// Only the fleet can set the labels that policies use to recognise a namespace.
	mallory := somebody(t, c, "mallory@acme.dev")
	for why, err := range map[string]error{
		"off":           mallory.change(namespace("tailplane-org-acme", ""), `{"metadata": {"labels": {"tailplane.dev/isolation": null}}}`),
		"weaker":        mallory.change(namespace("tailplane-org-acme", ""), `{"metadata": {"labels": {"tailplane.dev/isolation": "None"}}}`),
		"on another":    mallory.change(namespace("people", ""), `{"metadata": {"labels": {"tailplane.dev/org": "acme"}}}`),
		"of a new one":  mallory.create(namespace("mine", "tailplane.dev/isolation: Node, tailplane.dev/org: x")),
		"of all others": mallory.create(namespace("mine", "tailplane.dev/org: acme")),
	} {
		if !byPolicy(err) {
			t.Errorf("the label %s: %v", why, err)
		}
	}
	if err := mallory.change(namespace("tailplane-org-acme", ""), `{"metadata": {"annotations": {"note": "x"}}}`); err != nil {
		t.Errorf("what is not a label of the fleet's: %v", err)
	}
}

// FLEET-14: while an organisation has its own nodes, the real API server admits only that organisation's pods there.
// While there are no such nodes, the policy does not apply.
func TestFLEET14_Nodes(t *testing.T) {
	c := installFleet(t)
	us, mallory := fleetAccount(t, c), somebody(t, c, "mallory@acme.dev")
	pod := func(ns, spec string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: %s}, spec: {automountServiceAccountToken: false, securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, "+
			"containers: [{name: a, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]%s}}", ns, spec)
	}
	const everything = ", tolerations: [{operator: Exists}]"
	if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: monitoring}")); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"people", "monitoring", "tailplane-org-nodes", "tailplane-org-others", "kube-system"} {
		if strings.HasPrefix(ns, "tailplane-org-") {
			org := strings.TrimPrefix(ns, "tailplane-org-")
			if err := us.store(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {app.kubernetes.io/managed-by: tailplane, tailplane.dev/org: %s, tailplane.dev/isolation: Namespace}}}", ns, org)); err != nil {
				t.Fatal(err)
			}
			removeNamespace(t, c, ns)
		}
		if err := c.Apply(t.Context(), fmt.Appendf(nil, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: %s}}", ns)); err != nil {
			t.Fatal(err)
		}
		if err := mallory.create(pod(ns, everything)); err != nil {
			t.Fatalf("without reserved nodes, a pod in %s that tolerates everything: %v", ns, err)
		}
	}
	// A pod of another organisation that already runs there.
	if err := mallory.store(pod("people", "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clientsOf(t, c.AdminConfig()).CoreV1().Pods("people").Delete(context.WithoutCancel(t.Context()), "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	})
	own := "{apiVersion: v1, kind: Namespace, metadata: {name: tailplane-org-nodes}}"
	u := us.read(own)
	isolate := func(level string) error {
		_, err := us.of(u).Patch(context.WithoutCancel(t.Context()), u.GetName(), "application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"labels": {"tailplane.dev/isolation": %q}}}`, level), metav1.PatchOptions{})
		return err
	}
	if err := isolate("Node"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := isolate("Namespace"); err != nil {
			t.Error(err)
		}
	})
	until(t, "the policy has seen it", func() bool { return byPolicy(mallory.create(pod("people", everything))) })

	const selector, taint = ", nodeSelector: {tailplane.dev/org: nodes}", ", tolerations: [{key: tailplane.dev/org, value: nodes, effect: NoSchedule}]"
	for _, tt := range []struct {
		why, ns, spec string
		admitted      bool
	}{
		{"its own, where it belongs", "tailplane-org-nodes", selector + taint, true},
		{"its own, that tolerates everything", "tailplane-org-nodes", selector + everything, true},
		{"its own, anywhere", "tailplane-org-nodes", taint, false},
		{"its own, among others", "tailplane-org-nodes", ", nodeSelector: {tailplane.dev/org: others}" + taint, false},
		{"its own, on a node of its choice", "tailplane-org-nodes", selector + ", nodeName: x", false},
		{"a foreign one with the toleration", "people", taint, false},
		{"a foreign one that tolerates the key", "people", ", tolerations: [{key: tailplane.dev/org, operator: Exists}]", false},
		{"a foreign pod that tolerates everything with operator: Exists", "people", everything, false},
		{"a foreign pod that tolerates all taints", "people", ", tolerations: [{operator: Exists, effect: NoSchedule}]", false},
		{"another organisation's with the toleration", "tailplane-org-others", taint, false},
		{"another organisation's with its own", "tailplane-org-others", ", tolerations: [{key: tailplane.dev/org, value: others}]", true},
		{"a foreign one that names its node", "people", ", nodeName: x", false},
		{"a foreign one with another toleration", "people", ", tolerations: [{key: gpu, operator: Exists}]", true},
		{"a foreign pod that stays on an unhealthy node", "people", ", tolerations: [{operator: Exists, effect: NoExecute}]", true},
		{"a foreign one", "people", "", true},
		{"a DaemonSet's, of an exempt namespace", "kube-system", everything, true},
		{"a DaemonSet's, of a namespace that the settings exempt", "monitoring", everything + ", nodeName: x", true},
	} {
		doc := strings.Replace(pod(tt.ns, tt.spec), "name: a, namespace", "name: b, namespace", 1)
		if err := mallory.create(doc); (err == nil) != tt.admitted || err != nil && !byPolicy(err) {
			t.Errorf("%s: %v", tt.why, err)
		}
	}
	// Tolerations can be added later, so the policy checks them. It ignores other changes of a pod.
	if err := mallory.change(pod("people", ""), `{"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, {"operator": "Exists"}]}}`); !byPolicy(err) {
		t.Errorf("a toleration that is added: %v", err)
	}
	if err := mallory.change(pod("people", ""), `{"metadata": {"annotations": {"a": "b"}}}`); err != nil {
		t.Errorf("an annotation: %v", err)
	}
	// A kubelet reports its static pods.
	node := somebody(t, c, "system:node:x", "system:nodes")
	if err := node.create(strings.Replace(pod("people", everything+", nodeName: x"), "metadata: {name: a,", "metadata: {name: mirror, annotations: {kubernetes.io/config.mirror: x},", 1)); byPolicy(err) {
		t.Errorf("what a node runs: %v", err)
	}
}

// FLEET-14, FL-06: only the writer of reviewed manifests decides which organisations have runners. The fleet reports
// their status. The operator plane may send dry runs, and only the plane may approve.
func TestFleetWriters(t *testing.T) {
	for _, approval := range []string{"git", "plane"} {
		t.Run(approval, func(t *testing.T) {
			c := installFleet(t, "--set", "fleet.approval="+approval+",plane.enabled=true")
			argo, plane := somebody(t, c, "system:serviceaccount:argocd:argocd-application-controller"), somebody(t, c, "system:serviceaccount:"+systems+":tailplane-plane")
			us, mallory, inGroup := fleetAccount(t, c), somebody(t, c, "mallory@acme.dev"), somebody(t, c, "pat@platform.dev", "platform:admins")
			name := "acme-" + approval
			doc := fmt.Sprintf("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerEnrollment, metadata: {name: %s, finalizers: [tailplane.dev/fleet]}, spec: {forge: github, configURL: \"https://github.com/acme\", pools: [{name: nix}], credentials: {secretName: acme}}}", name)
			forge := strings.Replace("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerForge, metadata: {name: NAME}, spec: {type: github, url: \"https://github.com\"}}", "NAME", name, 1)
			pool := strings.Replace("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerPool, metadata: {name: NAME}, spec: {forge: github, runsOn: [nix], scaling: {max: 1, budget: 1}}}", "NAME", name, 1)
			for _, d := range []string{forge, pool, doc} {
				if err := argo.store(d); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					u := us.read(d)
					ctx := context.WithoutCancel(t.Context())
					if u.GetKind() == "RunnerEnrollment" {
						if _, err := us.of(u).Patch(ctx, u.GetName(), "application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); err != nil {
							t.Error(err)
						}
					}
					if err := argo.of(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
				spec := map[string]string{"RunnerForge": `{"spec": {"caBundle": "-----BEGIN CERTIFICATE-----"}}`, "RunnerPool": `{"spec": {"runsOn": ["x"]}}`, "RunnerEnrollment": `{"spec": {"owners": ["mallory@acme.dev"]}}`}[us.read(d).GetKind()]
				for who, h := range map[string]userClient{"mallory": mallory, "the fleet": us} {
					if err := h.change(d, spec); !byPolicy(err) && !(who == "the fleet" && byRBAC(err)) {
						t.Errorf("%s changes %s: %v", who, d, err)
					}
					if err := h.remove(d); !byPolicy(err) && !(who == "the fleet" && byRBAC(err)) {
						t.Errorf("%s deletes %s: %v", who, d, err)
					}
				}
				for who, h := range map[string]userClient{"argo": argo, "one of the group": inGroup, "the plane, asking": plane} {
					if err := h.change(d, spec); err != nil {
						t.Errorf("%s changes %s: %v", who, d, err)
					}
					if err := h.remove(d); err != nil {
						t.Errorf("%s deletes %s: %v", who, d, err)
					}
				}
				for who, h := range map[string]userClient{"mallory": mallory, "argo": argo, "the plane": plane} {
					if err := h.change(d, `{"status": {"observedGeneration": 9}}`, "status"); !byPolicy(err) {
						t.Errorf("%s writes the status of %s: %v", who, d, err)
					}
				}
				if err := us.change(d, `{"status": {"observedGeneration": 9}}`, "status"); err != nil {
					t.Errorf("the fleet writes the status of %s: %v", d, err)
				}
			}
			for why, tt := range map[string]struct {
				err     error
				refused bool
			}{
				"mallory enrolls":                   {mallory.create(strings.Replace(doc, name, "new", 1)), true},
				"mallory removes the finalizer":     {mallory.change(doc, `{"metadata": {"finalizers": null}}`), true},
				"argo removes it":                   {argo.change(doc, `{"metadata": {"finalizers": null}}`), true},
				"the fleet removes it":              {us.change(doc, `{"metadata": {"finalizers": null}}`), false},
				"mallory abandons the registration": {mallory.change(doc, `{"metadata": {"annotations": {"tailplane.dev/force-cleanup": "x"}}}`), true},
				"mallory confirms a mass deletion":  {mallory.change(doc, `{"metadata": {"annotations": {"tailplane.dev/offboard": "confirm"}}}`), true},
				"argo confirms it":                  {argo.change(doc, `{"metadata": {"annotations": {"tailplane.dev/offboard": "confirm"}}}`), false},
				"mallory makes a note":              {mallory.change(doc, `{"metadata": {"annotations": {"note": "x"}}}`), false},
				"argo approves":                     {argo.change(doc, `{"spec": {"approval": {"by": "pat@platform.dev", "at": "2026-01-01T00:00:00Z", "digest": "sha256:`+strings.Repeat("0", 64)+`"}}}`), true},
				"the plane approves":                {plane.change(doc, `{"spec": {"approval": {"by": "pat@platform.dev", "at": "2026-01-01T00:00:00Z", "digest": "sha256:`+strings.Repeat("0", 64)+`"}}}`), false},
			} {
				if (tt.err != nil) != tt.refused || tt.err != nil && !byPolicy(tt.err) {
					t.Errorf("%s: %v", why, tt.err)
				}
			}
			// In mode git, a request of the plane takes effect only through its review.
			u := plane.read(doc)
			_, err := plane.of(u).Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"spec": {"owners": ["amy@acme.dev"]}}`), metav1.PatchOptions{})
			if approval == "git" && !byPolicy(err) || approval == "plane" && err != nil {
				t.Errorf("with approval %s the plane writes: %v", approval, err)
			}
		})
	}
}

// PL-08, FL-06: a person who holds runners must write her own name. The plane writes the name of its authenticated
// caller. The name cannot be changed afterwards.
func TestPL08_RequestedBy(t *testing.T) {
	c := installFleet(t)
	hold := func(name, by string) string {
		return fmt.Sprintf("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerHold, metadata: {name: %s}, spec: {scope: {pool: nix}, mode: Pause, reason: upgrade, requestedBy: %q}}", name, by)
	}
	amy, plane, us := somebody(t, c, "amy@acme.dev"), somebody(t, c, "system:serviceaccount:"+systems+":tailplane-plane"), fleetAccount(t, c)
	if err := amy.create(hold("a", "pat@platform.dev")); !byPolicy(err) || !strings.Contains(err.Error(), "must be the requesting user, amy@acme.dev") {
		t.Errorf("in another's name: %v", err)
	}
	if err := amy.create(hold("a", "AMY@acme.dev")); !byPolicy(err) {
		t.Errorf("in nearly her own: %v", err)
	}
	if err := plane.create(hold("a", "pat@platform.dev")); err != nil {
		t.Errorf("the plane, for another: %v", err)
	}
	if err := us.create(hold("a", "system:serviceaccount:tailplane-fleet:tailplane-fleet")); !byRBAC(err) {
		t.Errorf("the fleet: %v", err)
	}
	if err := amy.store(hold("upgrade", "amy@acme.dev")); err != nil {
		t.Fatalf("in her own: %v", err)
	}
	t.Cleanup(func() {
		u := amy.read(hold("upgrade", ""))
		if err := amy.of(u).Delete(context.WithoutCancel(t.Context()), "upgrade", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	bob := somebody(t, c, "bob@acme.dev")
	if err := bob.change(hold("upgrade", ""), `{"spec": {"requestedBy": "bob@acme.dev"}}`); err == nil {
		t.Error("its owner changed")
	}
	if err := plane.change(hold("upgrade", ""), `{"spec": {"requestedBy": "bob@acme.dev"}}`); err == nil {
		t.Error("the plane changed its owner")
	}
	if err := bob.change(hold("upgrade", ""), `{"spec": {"expiresAt": "2030-01-01T00:00:00Z"}}`); err != nil {
		t.Errorf("its end: %v", err)
	}
	if err := amy.change(hold("upgrade", ""), `{"status": {"targets": 0}}`, "status"); !byPolicy(err) {
		t.Errorf("its status by hand: %v", err)
	}
	if err := us.change(hold("upgrade", ""), `{"status": {"targets": 3}}`, "status"); err != nil {
		t.Errorf("its status: %v", err)
	}
}

// The backstop policy refuses new runners while a hold covers everything. It ignores pods that are not runners, holds
// of a single pool, and expired holds. By default it does not exist.
func TestHoldAdmission(t *testing.T) {
	if out := render(t, profileValues(t, "fleet"), "--set", "fleet.holdAdmission=false"); strings.Contains(out, "tailplane-fleet-held") {
		t.Error("it exists without being requested")
	}
	c := installFleet(t)
	us, amy := fleetAccount(t, c), somebody(t, c, "amy@acme.dev")
	const ns = "tailplane-org-held"
	if err := us.store("{apiVersion: v1, kind: Namespace, metadata: {name: " + ns + ", labels: {app.kubernetes.io/managed-by: tailplane, tailplane.dev/org: held, tailplane.dev/isolation: Namespace}}}"); err != nil {
		t.Fatal(err)
	}
	removeNamespace(t, c, ns)
	if err := c.Apply(t.Context(), []byte("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: "+ns+"}}")); err != nil {
		t.Fatal(err)
	}
	pod := func(ns, component string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: %s, labels: {app.kubernetes.io/component: %s}}, spec: {containers: [{name: a, image: a}]}}", ns, component)
	}
	hold := func(scope, more string) (remove func()) {
		t.Helper()
		doc := fmt.Sprintf("{apiVersion: tailplane.dev/v1alpha1, kind: RunnerHold, metadata: {name: stop}, spec: {scope: {%s}, mode: Pause, reason: fire, requestedBy: amy@acme.dev%s}}", scope, more)
		if err := amy.store(doc); err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			u := amy.read(doc)
			if err := amy.of(u).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	admitted := func() bool { return amy.create(pod(ns, "runner")) == nil }
	until(t, "without a hold, a runner starts", admitted)
	lift := hold("all: true", ", expiresAt: "+time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	until(t, "a runner is refused", func() bool {
		err := amy.create(pod(ns, "runner"))
		return byPolicy(err) && strings.Contains(err.Error(), "holds all runners: fire")
	})
	for _, other := range []string{pod(ns, "runner-manager"), pod(ns, "x"), pod("people", "runner")} {
		if err := amy.create(other); err != nil {
			t.Errorf("a pod that is not a runner of the fleet: %v", err)
		}
	}
	lift()
	until(t, "it is lifted", admitted)
	// The hold of everything proves that the next hold has taken effect.
	lift = hold("all: true", ", expiresAt: "+time.Now().Add(2*time.Second).UTC().Format(time.RFC3339))
	until(t, "it has expired", admitted)
	lift()
	lift = hold("pool: nix", "")
	defer lift()
	if !admitted() {
		t.Error("the hold of one pool refuses runners of another pool")
	}
}
