package workload_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/relay"
)

var update = flag.Bool("update", false, "write the result of Render into testdata")

// An input contains the arguments of Render as one document.
type input struct {
	Group    v1alpha1.TailscaleProxyGroup
	Settings workload.Settings
	Plan     workload.Plan
}

// allObjects returns all objects of a group: first those that are applied unchanged, then those
// that get data before.
func allObjects(o *workload.Objects) []workload.Object {
	all := append(o.Unchanged(), o.ConfigMap)
	for _, s := range slices.Concat(o.Config, o.Certs) {
		all = append(all, s)
	}
	return all
}

func render(t testing.TB, o *workload.Objects) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, object := range allObjects(o) {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	return b.Bytes()
}

// TestGolden compares the rendered objects with one file for each shape of a group.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Files) == 0 || a.Files[0].Name != "in.yaml" {
				t.Fatal("no in.yaml")
			}
			var in input
			if err := yaml.UnmarshalStrict(a.Files[0].Data, &in); err != nil {
				t.Fatal(err)
			}
			var got []byte
			if o, err := workload.Render(&in.Group, in.Settings, in.Plan); err != nil {
				got = []byte("error: " + err.Error() + "\n")
			} else {
				got = render(t, o)
			}
			if *update {
				a.Files = append(a.Files[:1], txtar.File{Name: "out", Data: got})
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) != 2 || !bytes.Equal(a.Files[1].Data, got) {
				t.Errorf("Render returns:\n%s", got)
			}
		})
	}
}

// sample returns a random valid group.
func sample(r *rand.Rand) input {
	name := "g"
	for range r.IntN(51) {
		name += string("abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)])
	}
	if r.IntN(4) == 0 {
		name = strings.Repeat("n", 52)
	}
	in := input{
		Group: v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "relays", UID: types.UID(fmt.Sprintf("uid-%d", r.IntN(1000)))}},
		Settings: workload.Settings{Image: "registry.example/tailplaned:1", AllowCustomImages: r.IntN(2) == 0,
			EnvoyNamespaces: []string{"envoy-gateway-system", "edge"}[:r.IntN(3)], MonitoringNamespaces: []string{"monitoring"}[:r.IntN(2)], Version: "v1.2.3+dirty"},
		Plan: workload.Plan{Tailnet: "corp", Ordinals: int32(r.IntN(51))},
	}
	spec := &in.Group.Spec
	spec.Type = []v1alpha1.Direction{v1alpha1.Egress, v1alpha1.Ingress}[r.IntN(2)]
	spec.Runtime = []v1alpha1.Runtime{v1alpha1.RuntimeRelay, ""}[r.IntN(2)]
	if r.IntN(4) > 0 {
		spec.Replicas = new(int32(r.IntN(51)))
	}
	if r.IntN(2) == 0 {
		spec.Image = "registry.example/own:1"
	}
	spec.DrainTimeout = []*metav1.Duration{nil, {Duration: time.Minute}, {Duration: 10 * time.Minute}}[r.IntN(3)]
	spec.PodLabels = []map[string]string{nil, {"team": "shop", "app": "mine", v1alpha1.ManagedLabel: "false"}}[r.IntN(2)]
	spec.Consumers = []v1alpha1.NamespaceSelector{{}, {From: v1alpha1.NamespacesSame}, {From: v1alpha1.NamespacesAll},
		{From: v1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}}}[r.IntN(4)]
	for range r.IntN(30) {
		in.Plan.Ports = append(in.Plan.Ports, v1alpha1.MappedPort{Service: "shop.billing", Protocol: []v1alpha1.PortProtocol{v1alpha1.TCP, v1alpha1.UDP}[r.IntN(2)],
			MatchPort: int32(10000 + r.IntN(40)), TargetPort: 80})
	}
	in.Plan.CertDomains = []string{"web.tail8eff9.ts.net", "api.tail8eff9.ts.net"}[:r.IntN(3)]
	return in
}

func clone(t *testing.T, in input) (out input) {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLaws checks properties of every group.
func TestLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		in := sample(r)
		before := clone(t, in)
		o, err := workload.Render(&in.Group, in.Settings, in.Plan)
		if err != nil {
			t.Fatal(err)
		}
		if after := clone(t, in); !reflect.DeepEqual(before, after) {
			t.Fatalf("Render changed its input: %+v", in)
		}
		lawOfBytes(t, in, o)
		for _, object := range allObjects(o) {
			lawOfObject(t, in, object)
		}
		lawOfRights(t, in, o)
		lawOfPods(t, in, o)
		lawOfNetwork(t, o)
		lawOfRest(t, in, o)
		if t.Failed() {
			t.Fatalf("of %+v", in)
		}
	}
}

// lawOfBytes: the same group gives the same bytes, whatever the order of its lists.
func lawOfBytes(t *testing.T, in input, o *workload.Objects) {
	slices.Reverse(in.Plan.Ports)
	slices.Reverse(in.Settings.EnvoyNamespaces)
	other, err := workload.Render(&in.Group, in.Settings, in.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(o, other) {
		t.Error("the same group gives other objects")
	}
}

// lawOfObject: each object has the operator's labels, is owned by the group, and contains no
// secret.
func lawOfObject(t *testing.T, in input, object workload.Object) {
	id := fmt.Sprintf("%T %s", object, object.GetName())
	if gvk := object.GetObjectKind().GroupVersionKind(); gvk.Kind == "" || gvk.Version == "" {
		t.Errorf("%s has no kind", id)
	}
	if object.GetNamespace() != in.Group.Namespace {
		t.Errorf("%s is in %q", id, object.GetNamespace())
	}
	want := metav1.OwnerReference{APIVersion: "gateway.tailscale.com/v1alpha1", Kind: "TailscaleProxyGroup", Name: in.Group.Name, UID: in.Group.UID, Controller: new(true), BlockOwnerDeletion: new(true)}
	if refs := object.GetOwnerReferences(); len(refs) != 1 || !reflect.DeepEqual(refs[0], want) {
		t.Errorf("%s belongs to %+v", id, refs)
	}
	labels := object.GetLabels()
	switch {
	case labels[v1alpha1.ManagedLabel] != "true":
		t.Errorf("labels[v1alpha1.ManagedLabel] = %q, want %q; %s", labels[v1alpha1.ManagedLabel], "true", id)
	case labels[v1alpha1.ProxyGroupLabel] != in.Group.Name:
		t.Errorf("labels[v1alpha1.ProxyGroupLabel] = %q, want %q; %s", labels[v1alpha1.ProxyGroupLabel], in.Group.Name, id)
	case labels[v1alpha1.TailnetLabel] != "corp":
		t.Errorf("labels[v1alpha1.TailnetLabel] = %q, want %q; %s", labels[v1alpha1.TailnetLabel], "corp", id)
	case labels["app.kubernetes.io/version"] != "v1.2.3-dirty":
		t.Errorf(`labels["app.kubernetes.io/version"] = %q, want %q; %s`, labels["app.kubernetes.io/version"], "v1.2.3-dirty", id)
	}
	for k := range labels {
		if strings.HasPrefix(k, "tailscale.com/") {
			t.Errorf("%s has the label %s of Tailscale's own operator", id, k)
		}
	}
	if s, ok := object.(*corev1.Secret); ok {
		for k, v := range s.Data {
			if len(v) > 0 || labels[v1alpha1.SecretTypeLabel] != v1alpha1.SecretTypeCert {
				t.Errorf("%s is rendered with %s", id, k)
			}
		}
		if len(s.StringData) > 0 || s.Data == nil == (labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeCert) {
			t.Errorf("%s: data %v, %v", id, s.Data, s.StringData)
		}
	}
}

// GTW-22: a pod may read and write the Secrets of its group by name, watch its ConfigMap and
// create events. It has no rights without names, and none to create or list.
func lawOfRights(t *testing.T, in input, o *workload.Objects) {
	n := int(max(workload.Replicas(&in.Group), in.Plan.Ordinals))
	var secrets []string
	for i := range n {
		pod := in.Group.Name + "-" + strconv.Itoa(i)
		secrets = append(secrets, pod, pod+"-config")
	}
	secrets = append(secrets, in.Plan.CertDomains...)
	slices.Sort(secrets)
	var named, created []string
	for _, rule := range o.Role.Rules {
		switch {
		case len(rule.Resources) != 1:
			t.Errorf("the rule: len(rule.Resources) = %v, want 1", len(rule.Resources))
			continue
		case !slices.Equal(rule.APIGroups, []string{""}):
			t.Errorf("the rule: rule.APIGroups (-want +got):\n%s", gocmp.Diff([]string{""}, rule.APIGroups))
			continue
		case len(rule.NonResourceURLs) > 0:
			t.Errorf("the rule: len(rule.NonResourceURLs) = %v, want at most 0", len(rule.NonResourceURLs))
			continue
		}
		verbs := ""
		switch rule.Resources[0] {
		case "secrets":
			verbs = "get update patch"
			named = slices.Sorted(slices.Values(rule.ResourceNames))
			if len(named) == 0 {
				t.Error("a rule about every Secret of the namespace")
			}
		case "configmaps":
			verbs = "get watch"
			if !slices.Equal(rule.ResourceNames, []string{in.Group.Name + "-" + string(in.Group.Spec.Type) + "-config"}) {
				t.Errorf("the ConfigMaps %v", rule.ResourceNames)
			}
		case "events":
			verbs = "create patch"
		}
		if got := strings.Join(rule.Verbs, " "); got != verbs {
			t.Errorf("%v may be: %s; want %s", rule.Resources, got, verbs)
		}
	}
	if !slices.Equal(named, secrets) {
		t.Errorf("the Secrets %v, want %v", named, secrets)
	}
	for _, s := range slices.Concat(o.State, o.Config, o.Certs) {
		created = append(created, s.Name)
	}
	if slices.Sort(created); !slices.Equal(created, secrets) {
		t.Errorf("the Secrets %v are created, %v may be used", created, secrets)
	}
	b := o.RoleBinding
	if b.RoleRef != (rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: in.Group.Name}) ||
		!slices.Equal(b.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: in.Group.Name, Namespace: in.Group.Namespace}}) {
		t.Errorf("the role is given to %+v by %+v", b.Subjects, b.RoleRef)
	}
}

// lawOfPods: pods run without privileges and without a secret in their template. Their selector
// label cannot be set by another party.
func lawOfPods(t *testing.T, in input, o *workload.Objects) {
	spec := o.StatefulSet.Spec
	if len(o.StatefulSet.Name)+len("-1234567890") > 63 {
		t.Errorf("the name %s is too long for the label of its revision", o.StatefulSet.Name)
	}
	for k, v := range workload.PodLabels(in.Group.UID) {
		switch {
		case spec.Template.Labels[k] != v:
			t.Errorf("the pods: spec.Template.Labels[k] = %q, want %q", spec.Template.Labels[k], v)
		case spec.Selector.MatchLabels[k] != v:
			t.Errorf("the pods: spec.Selector.MatchLabels[k] = %q, want %q", spec.Selector.MatchLabels[k], v)
		case o.Service.Spec.Selector[k] != v:
			t.Errorf("the pods: o.Service.Spec.Selector[k] = %q, want %q", o.Service.Spec.Selector[k], v)
		}
	}
	if spec.Template.Labels[v1alpha1.ManagedLabel] != "true" {
		t.Error("the group's own labels override the operator's labels")
	}
	p := spec.Template.Spec
	if len(p.Containers) != 1 {
		t.Fatalf("%d containers", len(p.Containers))
	}
	c := p.Containers[0]
	want := "registry.example/tailplaned:1"
	if in.Settings.AllowCustomImages {
		want = cmp.Or(in.Group.Spec.Image, want)
	}
	if c.Image != want {
		t.Errorf("the image %s, want %s", c.Image, want)
	}
	for _, e := range slices.Concat(c.Env, slices.Concat(envOf(p.InitContainers)...)) {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef == nil {
			t.Errorf("%s comes from %+v", e.Name, e.ValueFrom)
		}
	}
	for _, v := range p.Volumes {
		switch {
		case v.Secret != nil:
			t.Errorf("the volume: v.Secret = %v, want nil", v.Secret)
		case v.HostPath != nil:
			t.Errorf("the volume: v.HostPath = %v, want nil", v.HostPath)
		case v.Projected != nil:
			t.Errorf("the volume: v.Projected = %v, want nil", v.Projected)
		}
	}
	switch {
	case p.HostNetwork:
		t.Errorf("the pod has the host's namespaces, or the account: p.HostNetwork is true; %s", p.ServiceAccountName)
	case p.HostPID:
		t.Errorf("the pod has the host's namespaces, or the account: p.HostPID is true; %s", p.ServiceAccountName)
	case p.HostIPC:
		t.Errorf("the pod has the host's namespaces, or the account: p.HostIPC is true; %s", p.ServiceAccountName)
	case p.ServiceAccountName != in.Group.Name:
		t.Errorf("the pod has the host's namespaces, or the account: got %q, want %q", p.ServiceAccountName, in.Group.Name)
	}
	if d := in.Group.Spec.DrainTimeout; *p.TerminationGracePeriodSeconds < 360 || d != nil && *p.TerminationGracePeriodSeconds <= int64(d.Seconds()) {
		t.Errorf("%d s to end, and %v to wait for connections", *p.TerminationGracePeriodSeconds, d)
	}
	s := c.SecurityContext
	switch {
	case s == nil:
		t.Error("the pod is privileged: s is nil")
	case *s.AllowPrivilegeEscalation:
		t.Errorf("the pod is privileged: *s.AllowPrivilegeEscalation is true; %+v, %+v", s, p.SecurityContext)
	case !*s.ReadOnlyRootFilesystem:
		t.Errorf("the pod is privileged: *s.ReadOnlyRootFilesystem is false; %+v, %+v", s, p.SecurityContext)
	case s.Privileged != nil:
		t.Errorf("the pod is privileged: s.Privileged = %v, want nil", s.Privileged)
	case len(s.Capabilities.Add) > 0:
		t.Errorf("the pod is privileged: len(s.Capabilities.Add) = %v, want at most 0", len(s.Capabilities.Add))
	case !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Errorf("the pod is privileged: s.Capabilities.Drop (-want +got):\n%s", gocmp.Diff([]corev1.Capability{"ALL"}, s.Capabilities.Drop))
	case !*p.SecurityContext.RunAsNonRoot:
		t.Errorf("the pod is privileged: *p.SecurityContext.RunAsNonRoot is false; %+v, %+v", s, p.SecurityContext)
	case *p.SecurityContext.RunAsUser != 65532:
		t.Errorf("the pod is privileged: *p.SecurityContext.RunAsUser = %v, want 65532", *p.SecurityContext.RunAsUser)
	case p.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("the pod is privileged: got %q, want %q", p.SecurityContext.SeccompProfile.Type, corev1.SeccompProfileTypeRuntimeDefault)
	case len(p.InitContainers) > 0:
		t.Errorf("the pod is privileged: len(p.InitContainers) = %v, want at most 0", len(p.InitContainers))
	}
}

func envOf(containers []corev1.Container) (all [][]corev1.EnvVar) {
	for _, c := range containers {
		all = append(all, c.Env)
	}
	return all
}

// lawOfNetwork: no rule has an empty list of peers, which would admit every source.
func lawOfNetwork(t *testing.T, o *workload.Objects) {
	for _, rule := range o.NetworkPolicy.Spec.Ingress {
		if len(rule.From) == 0 || len(rule.Ports) == 0 {
			t.Errorf("the rule %+v admits all peers", rule)
		}
		for _, p := range rule.Ports {
			if p.Port.IntValue() <= v1alpha1.DebugPort {
				t.Errorf("the port %v is open", p.Port)
			}
		}
	}
	if len(o.NetworkPolicy.Spec.PolicyTypes) != 1 {
		t.Error("the connections of a relay are limited")
	}
}

// lawOfRest: changes of ports and replicas do not change the pod template.
func lawOfRest(t *testing.T, in input, o *workload.Objects) {
	other := clone(t, in)
	other.Plan.Ports, other.Plan.CertDomains, other.Plan.Ordinals = nil, nil, 0
	other.Settings.Version, other.Settings.EnvoyNamespaces, other.Settings.MonitoringNamespaces = "v9", nil, nil
	other.Group.Spec.Consumers = v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesAll}
	was := workload.Replicas(&in.Group)
	is := int32(50)
	other.Group.Spec.Replicas = new(is)
	scaled, err := workload.Render(&other.Group, other.Settings, other.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(o.StatefulSet.Spec.Template, scaled.StatefulSet.Spec.Template) {
		t.Errorf("other mappings, or %d replicas instead of %d, restart the pods", is, was)
	}
	if (o.DisruptionBudget != nil) != (was > 1) || *o.StatefulSet.Spec.Replicas != was {
		t.Errorf("%d replicas: %d, a budget %v", was, *o.StatefulSet.Spec.Replicas, o.DisruptionBudget)
	}
}

// Render rejects invalid inputs with an error that lists every mistake.
func TestRefused(t *testing.T) {
	good := func() input { return sample(rand.New(rand.NewPCG(1, 1))) }
	for _, x := range []struct {
		why    string
		change func(*input)
		says   string
	}{
		{"a label of its pods would not fit", func(in *input) { in.Group.Name = strings.Repeat("n", 53) }, "1 to 52"},
		{"its objects would have no owner", func(in *input) { in.Group.UID = "" }, "not stored"},
		{"more than a group can have", func(in *input) { in.Group.Spec.Replicas = new(int32(51)) }, "0 to 50"},
		{"more than a group ever had", func(in *input) { in.Plan.Ordinals = 51 }, "0 to 50"},
		{"which way?", func(in *input) { in.Group.Spec.Type = "both" }, `"both"`},
		{"an unknown tailnet", func(in *input) { in.Plan.Tailnet = "" }, "tailnet is not known"},
		{"a runtime of an earlier release", func(in *input) { in.Group.Spec.Runtime = v1alpha1.RuntimeContainerboot }, `runtime "Containerboot" is not supported`},
		{"no image", func(in *input) { in.Settings = workload.Settings{} }, "no image"},
	} {
		in := good()
		x.change(&in)
		if _, err := workload.Render(&in.Group, in.Settings, in.Plan); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %q", x.why, err, x.says)
		}
	}
}

// expand returns the environment of a pod as the kubelet computes it: in order, and $(VAR) refers
// only to preceding variables.
func expand(o *workload.Objects, pod, ip string) map[string]string {
	env := map[string]string{}
	for _, v := range o.StatefulSet.Spec.Template.Spec.Containers[0].Env {
		value := v.Value
		if v.ValueFrom != nil {
			value = map[string]string{"metadata.name": pod, "metadata.uid": "uid-of-pod", "status.podIP": ip, "status.podIPs": ip}[v.ValueFrom.FieldRef.FieldPath]
		}
		for k, known := range env {
			value = strings.ReplaceAll(value, "$("+k+")", known)
		}
		env[v.Name] = value
	}
	return env
}

// A relay parses the environment correctly, and the names that it derives match the rendered
// objects.
func TestRelayContract(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		in := sample(r)
		in.Group.Spec.Runtime, in.Group.Spec.Replicas = v1alpha1.RuntimeRelay, new(int32(3))
		o, err := workload.Render(&in.Group, in.Settings, in.Plan)
		if err != nil {
			t.Fatal(err)
		}
		for i, ip := range []string{"10.1.2.3", "fd00::7"} {
			env := expand(o, o.State[i].Name, ip)
			for k, v := range env {
				if strings.Contains(v, "$(") {
					t.Errorf("%s=%s stands before what it needs", k, v)
				}
			}
			c, err := relay.ParseEnvironment(func(k string) string { return env[k] })
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.ConfigMap() != o.ConfigMap.Name:
				t.Errorf("it understands: c.ConfigMap() = %q, want %q", c.ConfigMap(), o.ConfigMap.Name)
			case c.ConfigSecret() != o.Config[i].Name:
				t.Errorf("it understands: c.ConfigSecret() = %q, want %q", c.ConfigSecret(), o.Config[i].Name)
			case c.Secret != o.State[i].Name:
				t.Errorf("it understands: c.Secret = %q, want %q", c.Secret, o.State[i].Name)
			case c.Group != in.Group.Name:
				t.Errorf("it understands: c.Group = %q, want %q", c.Group, in.Group.Name)
			case c.Ingress != (in.Group.Spec.Type == v1alpha1.Ingress):
				t.Errorf("it understands: c.Ingress = %v, want %v", c.Ingress, (in.Group.Spec.Type == v1alpha1.Ingress))
			case c.Mount != "/etc/proxies":
				t.Errorf("it understands: c.Mount = %q, want %q", c.Mount, "/etc/proxies")
			case !strings.HasSuffix(c.Health, ":9002"):
				t.Errorf("it understands: c.Health = %q does not end with %q", c.Health, ":9002")
			}
		}
	}
}
