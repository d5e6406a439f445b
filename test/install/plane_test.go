//go:build unix

package install

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// PLANE-01: no rendered object makes the plane reachable from outside the tailnet, with any values. By default there
// is no plane.
func TestPLANE01_OnlyOverTheTailnet(t *testing.T) {
	for _, p := range profiles(t) {
		out := render(t, p.values)
		found := false
		for _, u := range objects(t, out) {
			found = found || u.GetLabels()["app.kubernetes.io/component"] == "plane"
			if slices.Contains([]string{"Ingress", "Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"}, u.GetKind()) {
				t.Errorf("%s: %s %s", p.name, u.GetKind(), u.GetName())
			}
			if u.GetKind() != "Service" {
				continue
			}
			svc := as[corev1.Service](t, u)
			if svc.Spec.Type != "" && svc.Spec.Type != corev1.ServiceTypeClusterIP || len(svc.Spec.ExternalIPs) > 0 {
				t.Errorf("%s: the Service %s is %s", p.name, u.GetName(), svc.Spec.Type)
			}
			if u.GetLabels()["app.kubernetes.io/component"] == "plane" && (len(svc.Spec.Ports) != 1 || svc.Spec.Ports[0].Port != 9091) {
				t.Errorf("%s: the Service %s leads to %v", p.name, u.GetName(), svc.Spec.Ports)
			}
		}
		if want := strings.Contains(p.name, "plane") || p.name == "requests"; found != want { // that profile has each reader of requests
			t.Errorf("%s: a plane exists: %v, want %v", p.name, found, want)
		}
		for _, word := range []string{"funnel", "LoadBalancer", "NodePort", "hostPort", "hostNetwork"} {
			if strings.Contains(strings.ToLower(out), strings.ToLower(word)) {
				t.Errorf("%s: the output is %s", p.name, word)
			}
		}
	}
}

// In a single process the plane is included: one pod has all roles, with one account, to which everything about the
// plane refers, and with settings that the program accepts.
func TestPlaneInAll(t *testing.T) {
	values := profileValues(t, "all-plane")
	out := render(t, values)
	for _, u := range objects(t, out) {
		switch u.GetKind() {
		case "StatefulSet", "Deployment", "NetworkPolicy", "ServiceAccount":
			if u.GetName() != "tailplane" {
				t.Errorf("%s %s exists", u.GetKind(), u.GetName())
			}
		case "RoleBinding", "ClusterRoleBinding":
			for _, s := range as[rbacv1.RoleBinding](t, u).Subjects {
				if s.Name != "tailplane" {
					t.Errorf("%s %s is for %s", u.GetKind(), u.GetName(), s.Name)
				}
			}
		case "ConfigMap":
			text, _, _ := unstructured.NestedString(u.Object, "data", "tailplane-0.yaml")
			if text == "" {
				continue
			}
			f, err := settings.Parse([]byte(text))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			f.Cluster.CAFile = "testdata/ca.crt" // the test runs outside a pod
			if err := f.Validate(settings.AllRoles); err != nil {
				t.Error(err)
			}
			switch {
			case !f.Plane.Enabled:
				t.Errorf("f.Plane.Enabled is false; text = %s", text)
			case f.Audit.File == "":
				t.Errorf("f.Audit.File is empty; text = %s", text)
			case f.Audit.File == "-":
				t.Errorf("f.Audit.File = %q; text = %s", f.Audit.File, text)
			case f.Tailnet.StateSecret != "tailplane-access-0":
				t.Errorf("f.Tailnet.StateSecret = %q, want %q; text = %s", f.Tailnet.StateSecret, "tailplane-access-0", text)
			case len(f.Plane.Exposures) != 1:
				t.Errorf("len(f.Plane.Exposures) = %v, want 1; text = %s", len(f.Plane.Exposures), text)
			}
		}
	}
	if strings.Contains(out, "serviceaccount:"+systems+":tailplane-plane") {
		t.Error("a policy names an account that does not exist")
	}
	if out := render(t, values, "--set", "plane.record.persistent=true"); !strings.Contains(out, "volumeClaimTemplates:") || strings.Contains(out, "name: record\n        emptyDir") {
		t.Error("the record does not outlive the pod")
	}
	// The plane queries the configured metrics server, and an external collector by its port.
	for url, want := range map[string]string{"http://prometheus.monitoring.svc:9090": "kubernetes.io/metadata.name: monitoring", "https://prometheus.monitoring.svc.cluster.local": "kubernetes.io/metadata.name: monitoring",
		"https://metrics.example.com": "{protocol: TCP, port: 443}\n    to:", "http://10.1.2.3:9090": "{protocol: TCP, port: 9090}", "http://[2001:db8::1]:9091": "{protocol: TCP, port: 9091}"} {
		for _, profile := range []string{"plane", "all-plane"} {
			out, err := try(t, profileValues(t, profile), "--set", "plane.exposures=null", "--set", "plane.prometheus.url="+url)
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %s: %v, want %s", profile, url, err, want)
			}
		}
	}
}

// The chart refuses inconsistent values.
func TestPlaneValuesRefused(t *testing.T) {
	values := profileValues(t, "plane")
	for _, tt := range []struct{ why, set, want string }{
		{"an unknown mode", "plane.identity.mode=proxy", "/plane/identity/mode"},
		{"no domain", "plane.emailDomains={*}", "/plane/emailDomains/0"},
		{"a role for all users of a domain", "plane.roles[0].login=*@acme.dev", "/plane/roles/0/login"},
		{"no such role", "plane.roles[0].role=admin", "/plane/roles/0/role"},
		{"misspelt", "plane.identity.insecureHttp=true", "'insecureHttp' not allowed"},
		{"a way in", "plane.service.type=LoadBalancer", "'service' not allowed"},
		{"an upstream outside", "plane.exposures[0].upstream=https://example.com", "/plane/exposures/0/upstream"},
		{"runners", "plane.exposures[0].upstream=http://acme-runner.build.svc", "/plane/exposures/0/upstream"},
		{"where runners are", "plane.exposures[0].upstream=http://metrics.arc-systems.svc", "/plane/exposures/0/upstream"},
		{"PostgreSQL", "plane.exposures[0].upstream=http://acme-rw.db.svc:5432", "/plane/exposures/0/upstream"},
		{"RustFS", "plane.exposures[0].upstream=http://rustfs.cache.svc:9000", "/plane/exposures/0/upstream"},
		{"the API server", "plane.exposures[0].upstream=https://kubernetes.default.svc", "/plane/exposures/0/upstream"},
		{"for all users", "plane.exposures[0].access=public", "/plane/exposures/0/access"},
		{"keys that could be replaced", "plane.identity.oidc.issuer=http://idp.example", "/plane/identity/oidc/issuer"},
	} {
		if _, err := try(t, values, "--set", tt.set); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: --set %s: %v\nwant %s", tt.why, tt.set, err, tt.want)
		}
	}
}

// The plane's file is what the program reads, with the program's defaults. The program accepts the arguments of its
// pod.
func TestPlaneSettingsInStep(t *testing.T) {
	const bare = "image: {repository: registry.invalid/x}\ncluster: {name: prod-eu, server: \"https://prod.invalid\", caFromPod: true}\nsignin: {roles: [view]}\nplane: {enabled: true}\n"
	for name, values := range map[string]string{"defaults": bare, "everything": profileValues(t, "plane")} {
		out := render(t, values)
		text, _, _ := unstructured.NestedString(rendered(t, out, "ConfigMap", "tailplane-plane").Object, "data", "plane.yaml")
		f, err := settings.Parse([]byte(text))
		if err == nil {
			err = f.Validate(settings.PlaneRole)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		want := settings.Default()
		if name == "defaults" && (!reflect.DeepEqual(f.Plane.Identity, want.Plane.Identity) || f.Plane.Capability != want.Plane.Capability || len(f.Plane.Roles)+len(f.Plane.EmailDomains) > 0 || f.Tailnet.Port != want.Tailnet.Port) {
			t.Errorf("the chart's defaults are\n%+v\nthe program's\n%+v", f.Plane, want.Plane)
		}
		if secrets := exposureSecrets(t, out); name == "everything" && (len(f.Plane.Exposures) != 2 || f.Plane.Identity.OIDC.Audience != "tailplane" ||
			!slices.Equal(secrets, []string{"tailplane-plane-exposure-attic", "tailplane-plane-exposure-grafana"})) {
			t.Errorf("exposed are %+v, with the Secrets %v", f.Plane.Exposures, secrets)
		}
		if name == "everything" && (f.Plane.Identity.Hostname != "board" || len(f.PlanePolicy().Settings) != 2 || f.Plane.Contact != "#platform") {
			t.Errorf("%+v", f.Plane)
		}
		switch {
		case f.Health != ":9091":
			t.Errorf("%s: f.Health = %q, want %q", name, f.Health, ":9091")
		case f.Tailnet.StateSecret != "tailplane-plane":
			t.Errorf("%s: f.Tailnet.StateSecret = %q, want %q", name, f.Tailnet.StateSecret, "tailplane-plane")
		case f.Audit.KeySecret != "tailplane-plane-audit-key":
			t.Errorf("%s: f.Audit.KeySecret = %q, want %q", name, f.Audit.KeySecret, "tailplane-plane-audit-key")
		}
		containers, _, _ := unstructured.NestedSlice(rendered(t, out, "StatefulSet", "tailplane-plane").Object, "spec", "template", "spec", "containers")
		args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		understood(t, args, text)
	}
	one := render(t, bare, "--set", "plane.replicas=1")
	if !strings.Contains(one, "--leader-elect=false") || rendered(t, one, "PodDisruptionBudget", "tailplane-plane") != nil {
		t.Error("one replica is elected, or may not be evicted")
	}
	if out := render(t, bare); !strings.Contains(out, "--leader-elect=true") {
		t.Error("two replicas are not elected")
	}
}

// exposureSecrets returns the Secrets for exposure nodes that the chart creates and the plane's account may use.
func exposureSecrets(t *testing.T, out string) (names []string) {
	t.Helper()
	var rule []string
	for _, u := range objects(t, out) {
		if u.GetKind() == "Secret" && strings.HasPrefix(u.GetName(), "tailplane-plane-exposure-") {
			names = append(names, u.GetName())
		}
		if u.GetKind() == "Role" && u.GetName() == "tailplane-plane" && u.GetNamespace() == systems {
			for _, r := range as[rbacv1.Role](t, u).Rules {
				if slices.Contains(r.Resources, "secrets") {
					rule = append(rule, r.ResourceNames...)
				}
			}
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if !slices.Contains(rule, n) {
			t.Errorf("the Secret %s is created, but not for the plane's account", n)
		}
	}
	return names
}

// With the account that the chart creates, the plane reads all data that it shows, becomes leader and ends sign-ins.
// It may read nothing else. TestSGN13_Rights covers the rights that it does not have.
func TestPlaneReads(t *testing.T) {
	c := place(t)
	out := ofPart(t, render(t, profileValues(t, "plane"), "--no-hooks"), "plane")
	if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+signins+"}"), stubs("HTTPRoute.gateway.networking.k8s.io", "Gateway.gateway.networking.k8s.io"),
		bytes.Replace(stubs("EphemeralRunner.actions.github.com"), []byte("{name: v1,"), []byte("{name: v1alpha1,"), 1), []byte(out),
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tailplane-members, namespace: "+systems+"}")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unbind(t, c, out) })
	config := configOf(t, c, systems, "tailplane-plane")
	board := plane.NewStore(time.Now)
	var log kubetest.Log
	api, err := kube.Connect(config, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	w := &kube.Watcher{DriftIgnores: api.DriftIgnores(systems, board), Config: config, Store: board, SigninNamespace: signins, SystemNamespace: systems, FleetNamespace: "tailplane-fleet", Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- w.Run(ctx) }()
	elected := make(chan struct{})
	go func() {
		e := &kube.Election{Config: config, Namespace: systems, Log: w.Log, Overdue: func() {}}
		done <- e.Run(ctx, func(ctx context.Context) error { close(elected); <-ctx.Done(); return nil })
	}()
	defer func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	until(t, "every source answers", func() bool {
		for _, s := range board.Sources() {
			// This test has no access server and no fleet.
			if s.Status != plane.StatusOK && !(slices.Contains([]string{"kubernetes:members", "kubernetes:fleet"}, s.Name) && s.Status == plane.StatusDegraded) {
				return false
			}
		}
		return len(board.Sources()) > 8
	})
	until(t, "it is elected", func() bool {
		select {
		case <-elected:
			return true
		default:
			return false
		}
	})
	k := clientsOf(t, config)
	if _, err := k.CoreV1().ConfigMaps(systems).Get(t.Context(), "tailplane-plane", metav1.GetOptions{}); !byRBAC(err) {
		t.Errorf("a ConfigMap that it does not show: %v", err)
	}
	if _, err := k.CoreV1().Secrets(systems).Get(t.Context(), "tailplane-cluster-key", metav1.GetOptions{}); !byRBAC(err) {
		t.Errorf("the cluster's key: %v", err)
	}
}
