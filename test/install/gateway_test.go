//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/controller"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// gatewayNamespaces are the namespaces in a profile of the gateway, with its own first.
var gatewayNamespaces = []string{"tailscale-gateway-system", "relays", "shop", "tailnet-credentials", "envoy-gateway-system"}

// secretsOfGateway reports whether the gateway needs a rule about all Secrets of a namespace. It creates the Secrets
// of relays in the namespaces of relays, and watches one Secret in the namespace of credentials.
func secretsOfGateway(role *unstructured.Unstructured, r rbacv1.PolicyRule) bool {
	switch role.GetNamespace() {
	case "tailscale-gateway-system", "relays":
		return role.GetName() == "tailplane-gateway-relays"
	case "tailnet-credentials":
		return role.GetName() == "tailplane-gateway-credentials" && slices.Equal(r.Verbs, []string{"get", "watch"})
	}
	return false
}

// gatewayBinding reports whether a binding belongs to the gateway and has the correct subject.
func gatewayBinding(b rbacv1.ClusterRoleBinding) bool {
	if len(b.Subjects) != 1 || b.Subjects[0].Kind != "ServiceAccount" {
		return false
	}
	switch who := b.Subjects[0].Namespace + "/" + b.Subjects[0].Name; b.RoleRef.Name {
	case "tailplane-gateway", "tailplane-gateway-relays", "tailplane-gateway-credentials", "tailplane-gateway-consumers", "tailplane-gateway-envoy":
		return who == "tailscale-gateway-system/tailplane-gateway"
	case "envoy-gateway-tailscale-extension", "tailplane-extension-reader":
		return who == "envoy-gateway-system/envoy-gateway"
	}
	return false
}

// rendered finds an object in the chart's output.
func rendered(t *testing.T, out, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, u := range objects(t, out) {
		if u.GetKind() == kind && u.GetName() == name {
			return u
		}
	}
	return nil
}

// The chart refuses inconsistent values and reports all of them at once.
func TestGatewayValuesRefused(t *testing.T) {
	values := profileValues(t, "gateway")
	for _, tt := range []struct{ why, set, want string }{
		{"relays in the namespace of the access server's keys", "gateway.namespace=" + systems, "gateway.namespace names " + systems},
		{"groups in the namespace of the operator", "gateway.proxyNamespaces={" + systems + "}", "gateway.proxyNamespaces names " + systems},
		{"groups where the cluster runs", "gateway.proxyNamespaces={kube-system}", "kube-system"},
		{"pods among the sign-ins", "gateway.proxyNamespaces={" + signins + "}", signins},
		{"credentials among the access server's keys", "gateway.credentialNamespaces={" + systems + "}", "may not read the Secrets there"},
		{"files of no Secret", "gateway.oauth.existingSecret=", "existingSecret is missing"},
		{"a credential in the clear", "gateway.tailnet.apiBaseURLs={http://api.example}", "/gateway/tailnet/apiBaseURLs/0"},
		{"an unknown mode", "gateway.extensionServer.mode=daemon", "/gateway/extensionServer/mode"},
		{"every namespace", "gateway.proxyNamespaces={*}", "/gateway/proxyNamespaces/0"},
		{"a Gateway of no namespace", "gateway.envoyGateway.tailnetOnly={eg}", "/gateway/envoyGateway/tailnetOnly/0"},
		{"misspelt", "gateway.proxy.allowContainerBoot=true", "'allowContainerBoot' not allowed"},
	} {
		if _, err := try(t, values, "--set", tt.set); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: --set %s: %v\nwant %s", tt.why, tt.set, err, tt.want)
		}
	}
}

// GTW-37: the file that the chart renders is what the program reads, with the program's defaults. The chart has a
// value for every setting.
func TestGatewaySettingsInStep(t *testing.T) {
	file := func(values string, args ...string) string {
		u := rendered(t, render(t, values, args...), "ConfigMap", "tailplane-gateway")
		text, _, _ := unstructured.NestedString(u.Object, "data", "gateway.yaml")
		return text
	}
	got, err := settings.ParseGateway([]byte(file(profileValues(t, "gateway-sidecar"))))
	if err != nil {
		t.Fatal(err)
	}
	want := settings.DefaultGateway()
	want.Proxy.Image, want.Proxy.Resources = "registry.invalid/team/tailplaned:v1.0.0", got.Proxy.Resources // the chart's own values
	want.Proxy.PullPolicy, want.Proxy.PullSecrets, want.Proxy.MonitoringNamespaces = "IfNotPresent", []string{}, []string{}
	want.CredentialNamespaces, want.ProxyNamespaces, want.ConsumerNamespaces = []string{}, []string{}, []string{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the chart's defaults are\n%+v\nthe program's\n%+v", got, want)
	}
	if got.Proxy.Resources["limits"]["memory"] == "" {
		t.Errorf("relays have the resources %v", got.Proxy.Resources)
	}
	text := file(profileValues(t, "gateway"), "--set", "gateway.envoyGateway.discovery=Endpoints,gateway.proxy.image=registry.invalid/relay:1,gateway.extensionServer.deadline=500ms")
	g, err := settings.ParseGateway([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case g.Envoy.Discovery != settings.DiscoveryEndpoints:
		t.Errorf("g.Envoy.Discovery = %q, want %q", g.Envoy.Discovery, settings.DiscoveryEndpoints)
	case g.Proxy.Image != "registry.invalid/relay:1":
		t.Errorf("g.Proxy.Image = %q, want %q", g.Proxy.Image, "registry.invalid/relay:1")
	case g.OperatorID != "prod-eu-gateway":
		t.Errorf("g.OperatorID = %q, want %q", g.OperatorID, "prod-eu-gateway")
	case !slices.Equal(g.ConsumerNamespaces, []string{"shop"}):
		t.Errorf("g.ConsumerNamespaces (-want +got):\n%s", cmp.Diff([]string{"shop"}, g.ConsumerNamespaces))
	case time.Duration(g.Extension.Deadline) != 500*time.Millisecond:
		t.Errorf("time.Duration(g.Extension.Deadline) = %v, want %v", time.Duration(g.Extension.Deadline), 500*time.Millisecond)
	}
	var full map[string]any
	if err := yaml.Unmarshal([]byte(text), &full); err != nil {
		t.Fatal(err)
	}
	deprecated := []string{"proxy.allowContainerboot", "proxy.containerbootImage"} // accepted with a warning, and written by no chart
	for _, path := range settingPaths(reflect.TypeFor[settings.Gateway](), "") {
		if slices.Contains(deprecated, path) {
			continue
		}
		if _, there, err := unstructured.NestedFieldNoCopy(full, strings.Split(path, ".")...); err != nil || !there {
			t.Errorf("the setting %s is not in the chart: %v", path, err)
		}
	}
}

// The chart's configuration for Envoy Gateway equals the one that the program prints. Another test checks that one
// against Envoy Gateway's own types.
func TestEnvoyGatewayConfigInStep(t *testing.T) {
	for profile, o := range map[string]xds.ConfigOptions{
		"gateway": {Provider: xds.Kubernetes, Server: xds.Address{Network: "tcp", Addr: "tailscale-extension-server.tailscale-gateway-system.svc.cluster.local:5005"},
			Namespace: "tailscale-gateway-system", MaxMessage: 64 << 20},
		"gateway-sidecar": {Provider: xds.Kubernetes, Server: xds.Address{Network: "unix", Addr: "/var/run/tailplane/extension.sock"}, MaxMessage: 64 << 20},
	} {
		b, err := xds.Config(o)
		if err != nil {
			t.Fatal(err)
		}
		var want, got map[string]any
		u := rendered(t, render(t, profileValues(t, profile)), "ConfigMap", "tailplane-envoy-gateway")
		text, _, _ := unstructured.NestedString(u.Object, "data", "envoy-gateway.yaml")
		if err := errors.Join(yaml.UnmarshalStrict(b, &want), yaml.UnmarshalStrict([]byte(text), &got)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Errorf("%s: the chart has\n%s\nthe program prints\n%s", profile, text, b)
		}
	}
	if rendered(t, render(t, profileValues(t, "gateway"), "--set", "gateway.envoyGateway.printConfig=false"), "ConfigMap", "tailplane-envoy-gateway") != nil {
		t.Error("it is printed although it is not enabled")
	}
}

// stubs returns CRDs for foreign kinds that the chart's modes use.
func stubs(kinds ...string) []byte {
	var b strings.Builder
	for _, k := range kinds {
		kind, group, _ := strings.Cut(k, ".")
		plural := strings.ToLower(kind) + "s"
		fmt.Fprintf(&b, "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: %s.%s, annotations: {api-approved.kubernetes.io: \"unapproved, a stub\"}}\n"+
			"spec: {group: %s, scope: Namespaced, names: {plural: %s, singular: %s, kind: %s}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}\n",
			plural, group, group, plural, strings.ToLower(kind), kind)
	}
	return []byte(b.String())
}

// GTW-37: the API server accepts the output of each mode, and each pod has the files that its arguments name.
func TestGatewayModes(t *testing.T) {
	c := place(t)
	if err := c.Apply(t.Context(), stubs("Certificate.cert-manager.io", "Issuer.cert-manager.io", "PodMonitor.monitoring.coreos.com", "PrometheusRule.monitoring.coreos.com")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []struct {
		name, set string
		check     func(out string)
	}{
		{"generated", "gateway.enabled=true", func(out string) {
			if strings.Contains(out, "cert-manager.io") || !strings.Contains(out, "--extension-certificates") {
				t.Error("generated: wrong certificates, or none")
			}
		}},
		{"certManager", "gateway.extensionServer.tls.mode=certManager", func(out string) {
			for name, dns := range map[string][]any{"server": {"tailscale-extension-server.tailscale-gateway-system.svc", "tailscale-extension-server.tailscale-gateway-system.svc.cluster.local"}, "client": {xds.ClientName}} {
				u := rendered(t, out, "Certificate", "tailplane-extension-"+name)
				got, _, _ := unstructured.NestedSlice(u.Object, "spec", "dnsNames")
				secret, _, _ := unstructured.NestedString(u.Object, "spec", "secretName")
				if !reflect.DeepEqual(got, dns) || secret != "tailplane-extension-"+name {
					t.Errorf("the %s's certificate is for %v in %s", name, got, secret)
				}
			}
			if !strings.Contains(out, "--extension-tls-dir=/etc/tailplane-extension") || strings.Contains(out, "--extension-certificates") {
				t.Error("certManager: the program has no path to its certificates, or creates others")
			}
		}},
		{"existing", "gateway.extensionServer.tls.mode=existing", func(out string) {
			switch {
			case strings.Contains(out, "cert-manager.io"):
				t.Errorf("existing: the existing Secrets are not mounted: out = %q contains %q", out, "cert-manager.io")
			case strings.Contains(out, "--extension-certificates"):
				t.Errorf("existing: the existing Secrets are not mounted: out = %q contains %q", out, "--extension-certificates")
			case !strings.Contains(out, "name: tailplane-extension-server\n"):
				t.Errorf("existing: the existing Secrets are not mounted: out = %q does not contain %q",
					out, "name: tailplane-extension-server\n")
			}
		}},
		{"sidecar", "gateway.extensionServer.mode=sidecar", func(out string) {
			if rendered(t, out, "Service", "tailscale-extension-server") != nil || rendered(t, out, "ClusterRole", "tailplane-extension-reader") == nil {
				t.Error("sidecar: an unused Service, or no rights for the sidecar of Envoy Gateway")
			}
		}},
		{"monitored", "metrics.serviceMonitor.enabled=true,metrics.rules.enabled=true,networkPolicy.enabled=false,gateway.replicas=1", func(out string) {
			switch {
			case rendered(t, out, "PodMonitor", "tailplane-gateway") == nil:
				t.Error(`monitored: there is no monitor: rendered(t, out, "PodMonitor", "tailplane-gateway") is nil`)
			case rendered(t, out, "PodMonitor", "tailplane-relays") == nil:
				t.Error(`monitored: there is no monitor: rendered(t, out, "PodMonitor", "tailplane-relays") is nil`)
			case rendered(t, out, "PrometheusRule", "tailplane-gateway") == nil:
				t.Error(`monitored: there is no monitor: rendered(t, out, "PrometheusRule", "tailplane-gateway") is nil`)
			}
			if rendered(t, out, "NetworkPolicy", "tailplane-gateway") != nil || rendered(t, out, "PodDisruptionBudget", "tailplane-gateway") != nil {
				t.Error("monitored: an unnecessary policy, or a budget for one replica")
			}
		}},
	} {
		out := ofGateway(t, render(t, profileValues(t, "gateway"), "--no-hooks", "--set", mode.set))
		mode.check(out)
		if err := c.Apply(t.Context(), []byte(out)); err != nil {
			t.Errorf("%s: %v", mode.name, err)
		}
		u := rendered(t, out, "Deployment", "tailplane-gateway")
		spec, _, _ := unstructured.NestedMap(u.Object, "spec", "template", "spec")
		var pod corev1.PodSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod); err != nil {
			t.Fatal(err)
		}
		mounts := []string{}
		for _, m := range pod.Containers[0].VolumeMounts {
			mounts = append(mounts, m.MountPath)
		}
		for _, arg := range pod.Containers[0].Args {
			if _, path, ok := strings.Cut(arg, "=/"); ok && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix("/"+path, m) }) {
				t.Errorf("%s: %s is mounted nowhere: %v", mode.name, arg, mounts)
			}
		}
		unbind(t, c, out)
	}
}

// ofGateway returns the gateway's part of a rendered chart.
func ofGateway(t *testing.T, out string) string {
	t.Helper()
	return ofPart(t, out, "gateway")
}

// ofPart returns one component's part of a rendered chart.
func ofPart(t *testing.T, out, part string) string {
	t.Helper()
	var b strings.Builder
	for _, u := range objects(t, out) {
		if u.GetLabels()["app.kubernetes.io/component"] != part {
			continue
		}
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	return b.String()
}

// installGateway applies the chart with a profile's values.
func installGateway(t *testing.T, profile string) *kubetest.Cluster {
	t.Helper()
	c := place(t)
	out := ofGateway(t, render(t, profileValues(t, profile), "--no-hooks"))
	account := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: envoy-gateway, namespace: envoy-gateway-system}"
	if err := c.Apply(t.Context(), []byte(out), []byte(account)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unbind(t, c, out) })
	return c
}

// unbind removes the rights that a rendered chart granted, because another test of the same cluster grants others.
func unbind(t *testing.T, c *kubetest.Cluster, out string) {
	t.Helper()
	admin := clientsOf(t, c.AdminConfig()).RbacV1()
	ctx := context.WithoutCancel(t.Context())
	for _, u := range objects(t, out) {
		var err error
		switch u.GetKind() {
		case "ClusterRoleBinding":
			err = admin.ClusterRoleBindings().Delete(ctx, u.GetName(), metav1.DeleteOptions{})
		case "RoleBinding":
			err = admin.RoleBindings(u.GetNamespace()).Delete(ctx, u.GetName(), metav1.DeleteOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// GTW-37: Envoy Gateway's account may list the kinds in its configuration and write the status of policies. It may
// not change a policy or read the product's Secrets.
func TestEnvoyGatewayRights(t *testing.T) {
	c := installGateway(t, "gateway")
	eg, err := dynamic.NewForConfig(configOf(t, c, "envoy-gateway-system", "envoy-gateway"))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	ns := c.Namespace(t)
	resource := v1alpha1.GroupVersion.WithResource
	for _, name := range []string{"tailscaleroutepolicies", "tailscaleservices", "tailscalegateways"} {
		if _, err := eg.Resource(resource(name)).List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		w, err := eg.Resource(resource(name)).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		w.Stop()
	}
	policy := "apiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleRoutePolicy\nmetadata: {name: p, namespace: " + ns + "}\n" +
		"spec: {targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}, tailscaleTarget: {servicePattern: \"svc:web-*\"}}"
	if err := c.Apply(t.Context(), []byte(policy)); err != nil {
		t.Fatal(err)
	}
	policies := eg.Resource(resource("tailscaleroutepolicies")).Namespace(ns)
	status := `{"status":{"ancestors":[{"ancestorRef":{"name":"eg"},"controllerName":"gateway.envoyproxy.io/gatewayclass-controller","conditions":[{"type":"Accepted","status":"True","reason":"Accepted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}]}}`
	if _, err := policies.Patch(t.Context(), "p", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
	u, err := admin.Resource(resource("tailscaleroutepolicies")).Namespace(ns).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if kept, _, _ := unstructured.NestedSlice(u.Object, "status", "ancestors"); len(kept) != 1 {
		t.Errorf("Envoy Gateway's status of the policy is lost: %v", u.Object["status"])
	}
	if _, err := policies.Patch(t.Context(), "p", types.MergePatchType, []byte(`{"spec":{"defaultBackend":"Route"}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("Envoy Gateway changes a policy: %v", err)
	}
	if _, err := eg.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace("tailscale-gateway-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("Envoy Gateway reads Secrets by our leave: %v", err)
	}
}

// GTW-37, GTW-22: with its own account the gateway can create every object of a group of relays in the allowed
// namespaces, without granting rights that it does not have. It can create none elsewhere.
func TestGatewayMakesGroups(t *testing.T) {
	c := installGateway(t, "gateway")
	as := configOf(t, c, "tailscale-gateway-system", "tailplane-gateway")
	as.WarningHandler = rest.NoWarnings{}
	account, err := dynamic.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"tailscale-gateway-system", "relays"} {
		for _, kind := range []v1alpha1.Direction{v1alpha1.Egress, v1alpha1.Ingress} {
			doc := fmt.Sprintf("{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: rights-%s, namespace: %s}, spec: {type: %s}}", kind, ns, kind)
			var u unstructured.Unstructured
			if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
				t.Fatal(err)
			}
			groups := account.Resource(v1alpha1.GroupVersion.WithResource("tailscaleproxygroups"))
			stored, err := groups.Namespace(ns).Create(t.Context(), &u, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := groups.Namespace(ns).Delete(context.WithoutCancel(t.Context()), stored.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			g := new(v1alpha1.TailscaleProxyGroup)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, g); err != nil {
				t.Fatal(err)
			}
			o, err := workload.Render(g, workload.Settings{Image: "registry.invalid/tailplaned:1", EnvoyNamespaces: []string{"envoy-gateway-system"}}, workload.Plan{Tailnet: "corp", CertDomains: []string{"x.example"}})
			if err != nil {
				t.Fatal(err)
			}
			all := append(o.Unchanged(), o.ConfigMap)
			for _, s := range append(o.Config, o.Certs...) {
				all = append(all, s)
			}
			for _, object := range all {
				if err := applyAs(t, account, object, ns); err != nil {
					t.Errorf("in %s: %v", ns, err)
				}
				if err := applyAs(t, account, object, "shop"); !apierrors.IsForbidden(err) && object.GetObjectKind().GroupVersionKind().Kind != "Service" {
					t.Errorf("%s among users: %v", object.GetObjectKind().GroupVersionKind().Kind, err)
				}
				if err := applyAs(t, account, object, systems); !apierrors.IsForbidden(err) {
					t.Errorf("%s together with the operator of sign-ins: %v", object.GetObjectKind().GroupVersionKind().Kind, err)
				}
			}
			// It cannot grant more rights than it has.
			role := o.Role.DeepCopy()
			role.Name, role.Rules = "too-much", append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create"}})
			if err := applyAs(t, account, role, ns); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "permissions not currently held") {
				t.Errorf("a role with more than it has: %v", err)
			}
		}
	}
}

// applyAs applies an object in a namespace with an account's rights.
func applyAs(t *testing.T, account *dynamic.DynamicClient, object workload.Object, ns string) error {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetNamespace(ns)
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	_, err = account.Resource(gvr).Namespace(ns).Apply(t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: v1alpha1.FieldManager, Force: true})
	return err
}

// A recorder records the requests of an account that the API server refuses.
type recorder struct {
	mu      sync.Mutex
	refused []string
}

// recorded is one client's transport to the API server.
type recorded struct {
	*recorder
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (r recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.next.RoundTrip(req)
	if err == nil && res.StatusCode == http.StatusForbidden {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, req.Method+" "+req.URL.Path)
	}
	return res, err
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

// startGateway runs the gateway with an account's rights until the test ends. The recorder contains the refused
// requests.
func startGateway(t *testing.T, config *rest.Config, change func(*controller.Runner)) *recorder {
	t.Helper()
	r := new(recorder)
	t.Cleanup(func() {
		got := r.all()
		// Proof that the recorder works: the gateway has no right to read the operator's Secrets of sign-ins.
		if _, err := clientsOf(t, config).CoreV1().Secrets(systems).List(context.WithoutCancel(t.Context()), metav1.ListOptions{}); !apierrors.IsForbidden(err) || len(r.all()) != len(got)+1 {
			t.Errorf("Secrets in addition to the operator's: %v; refused %v", err, r.all())
		}
		if len(got) > 0 {
			t.Errorf("the API server refused: %v", got)
		}
	})
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorded{r, next} })
	c := &controller.Runner{
		Config: config, Namespace: "tailscale-gateway-system", CredentialNamespaces: []string{"tailnet-credentials"}, ProxyNamespaces: []string{"relays"}, ConsumerNamespaces: []string{"shop"},
		BaseURLs: []string{"https://api.tailscale.com"}, Clients: new(tsapi.Clients), UserAgent: "tailplane-gateway/test", PerSecond: 1000, Burst: 1000,
		ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: "envoy-gateway-system", Addresses: true,
		Publisher: new(controller.Publisher), Relays: workload.Settings{Image: "registry.invalid/tailplaned:1"}, Release: "tailplane", LeaseNamespace: "tailscale-gateway-system",
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	change(c)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	until(t, "a snapshot exists", func() bool { return c.Publisher.Result() != nil })
	return r
}

// GTW-37: with its own account the gateway reads all its inputs, becomes leader and reconciles each of its kinds. The
// API server refuses none of its requests.
func TestGatewayActs(t *testing.T) {
	c := installGateway(t, "gateway")
	n := tailnettest.StartWith(t, tailnettest.Options{Policy: `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"]}}`})
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	own := api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	docs := fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: acts, namespace: tailnet-credentials}, stringData: {client_id: %q, client_secret: %q}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleTailnet, metadata: {name: acts}, spec: {oauthSecretName: acts, oauthSecretNamespace: tailnet-credentials, apiBaseURL: %q, controlURL: %q, allowedNamespaces: {from: All}}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: acts, namespace: relays}, spec: {type: egress, tailnetRef: {name: acts}, consumers: {from: All}}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleService, metadata: {name: acts, namespace: shop}, spec: {tailnetRef: {name: acts}, proxyGroupRef: {name: acts, namespace: relays}, target: {ip: 100.64.0.9}, ports: [{port: 80}]}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleService, metadata: {name: acts-too, namespace: shop}, spec: {tailnetRef: {name: acts}, target: {ip: 100.64.0.9}, ports: [{port: 80}]}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleGateway, metadata: {name: acts, namespace: shop}, spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: eg}, tailnets: [{tailnetRef: {name: acts}, routeGeneration: {egress: {}}}]}}
---
{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleRoutePolicy, metadata: {name: acts, namespace: shop}, spec: {targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}, tailscaleTarget: {servicePattern: "svc:web-*"}}}
`, own.ID, own.Secret, api.URL(), n.ControlURL())
	if err := c.Apply(t.Context(), []byte(docs)); err != nil {
		t.Fatal(err)
	}
	r := startGateway(t, configOf(t, c, "tailscale-gateway-system", "tailplane-gateway"), func(c *controller.Runner) {
		c.BaseURLs = append(c.BaseURLs, api.URL())
		c.Certificates = &controller.ExtensionCertificates{Namespace: c.Namespace, Names: []string{"tailscale-extension-server"}, Client: xds.ClientName, Log: c.Log, Now: time.Now}
	})
	admin := clientsOf(t, c.AdminConfig())
	ours, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct{ resource, ns, name string }{
		{"tailscaletailnets", "", "acts"}, {"tailscaleproxygroups", "relays", "acts"}, {"tailscaleservices", "shop", "acts"}, {"tailscaleservices", "shop", "acts-too"},
		{"tailscalegateways", "shop", "acts"}, {"tailscaleroutepolicies", "shop", "acts"},
	} {
		until(t, at.resource+" "+at.name+" is spoken of", func() bool {
			u, err := ours.Resource(v1alpha1.GroupVersion.WithResource(at.resource)).Namespace(at.ns).Get(t.Context(), at.name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			return len(all) > 0 || len(r.all()) > 0
		})
	}
	for _, made := range []struct {
		what string
		get  func() error
	}{
		{"a group's pods", func() error {
			_, err := admin.AppsV1().StatefulSets("relays").Get(t.Context(), "acts", metav1.GetOptions{})
			return err
		}},
		{"the pods of a group that it created", func() error {
			_, err := admin.AppsV1().StatefulSets("tailscale-gateway-system").Get(t.Context(), "acts-too-proxy-group", metav1.GetOptions{})
			return err
		}},
		{"the Service of a user", func() error {
			_, err := admin.CoreV1().Services("shop").Get(t.Context(), "acts", metav1.GetOptions{})
			return err
		}},
		{"what Envoy Gateway is let in by", func() error {
			_, err := admin.CoreV1().Secrets("tailscale-gateway-system").Get(t.Context(), controller.ExtensionClientSecret, metav1.GetOptions{})
			return err
		}},
		{"a relay's key", func() error {
			s, err := admin.CoreV1().Secrets("relays").Get(t.Context(), "acts-0-config", metav1.GetOptions{})
			if err == nil && len(s.Data["authkey"]) == 0 {
				return errors.New("none yet")
			}
			return err
		}},
	} {
		until(t, made.what, func() bool { return made.get() == nil || len(r.all()) > 0 })
	}
	// And it removes all of it again.
	for _, at := range []struct{ resource, ns string }{{"tailscaleservices", "shop"}, {"tailscalegateways", "shop"}, {"tailscaleroutepolicies", "shop"}, {"tailscaleproxygroups", "relays"}, {"tailscaletailnets", ""}} {
		if err := ours.Resource(v1alpha1.GroupVersion.WithResource(at.resource)).Namespace(at.ns).Delete(t.Context(), "acts", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	until(t, "the group is gone, with its Secrets", func() bool {
		_, err := ours.Resource(v1alpha1.GroupVersion.WithResource("tailscaleproxygroups")).Namespace("relays").Get(t.Context(), "acts", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || len(r.all()) > 0
	})
}

// As a sidecar of Envoy Gateway, the extension server uses Envoy Gateway's account and can read all inputs of its
// answers.
func TestGatewayReadsAsSidecar(t *testing.T) {
	c := installGateway(t, "gateway-sidecar")
	startGateway(t, configOf(t, c, "envoy-gateway-system", "envoy-gateway"), func(c *controller.Runner) { c.GatherOnly = true })
}
