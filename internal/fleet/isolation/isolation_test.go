package isolation_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/secret"
)

var update = flag.Bool("update", false, "write the rendered objects into testdata")

func testSettings() isolation.Settings {
	return isolation.Settings{
		Namespace: "tailplane-system", Account: "tailplane-fleet", Shared: fleet.SharedNamespace,
		ClusterCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/14"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:1::/48")},
		APIServers:      []netip.AddrPort{netip.MustParseAddrPort("10.4.0.1:443"), netip.MustParseAddrPort("192.0.2.10:6443")},
		CacheNamespaces: []string{"cache", "a"},
		ARC:             isolation.ARC{Version: "0.14.2", Namespace: "arc-systems", ServiceAccount: "arc-gha-rs-controller"},
		Images: isolation.Images{Runner: "registry.example/actions-runner:1", Docker: "registry.example/docker:dind", Manager: "registry.example/gitlab-runner:1",
			Helper: "registry.example/gitlab-helper:1", Job: "registry.example/alpine:1"},
	}
}

// testWorkload returns one use of one pool, with the values that the cases below share.
func testWorkload(forge v1alpha1.ForgeType, use v1alpha1.PoolUse, level v1alpha1.Isolation) isolation.WorkloadSpec {
	u := isolation.WorkloadSpec{
		Forge: &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: string(forge)}, Spec: v1alpha1.RunnerForgeSpec{Type: forge, URL: "https://" + string(forge) + ".com"}},
		Pool: &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "nix"}, Spec: v1alpha1.RunnerPoolSpec{Forge: string(forge), RunsOn: []string{"self-hosted", "nix", "{org}"},
			Scaling: v1alpha1.PoolScaling{Max: 5, Budget: 20}, ContainerMode: v1alpha1.ModeDefault}},
		Enrollment: &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme"}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: string(forge),
			ConfigURL: "https://" + string(forge) + ".com/acme", Isolation: level}},
		Use: v1alpha1.EnrolledPool{Name: "nix", Type: use}, Name: "acme-nix", Capacity: fleet.Capacity{Min: 1, Max: 3},
	}
	if forge == v1alpha1.GitHub {
		u.Credential = "acme-3f9c1a2b"
	} else {
		u.Token = secret.New("glrt-0123456789")
	}
	switch use {
	case v1alpha1.UseDedicated:
		u.Pool.Spec.DedicatedTo = "acme"
	case v1alpha1.UseOrgPlusUser:
		u.Use.Repositories = []string{"acme/app"}
	}
	if level == v1alpha1.IsolationNode {
		u.Enrollment.Spec.Placement = &v1alpha1.EnrollmentPlacement{NodeSelector: map[string]string{"disk": "fast"}, Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}, RuntimeClassName: "gvisor"}
	}
	return u
}

// render renders the namespace of a unit and the unit itself.
func render(s isolation.Settings, u isolation.WorkloadSpec) ([]isolation.Object, error) {
	ground, err := isolation.Baseline(s, isolation.Tenant{Enrollment: u.Enrollment, Forge: u.Forge, Pools: []*v1alpha1.RunnerPool{u.Pool}})
	if err != nil {
		return nil, err
	}
	objects, err := isolation.Objects(s, u)
	return append(ground, objects...), err
}

// show prints objects in a readable form, with the text of Secrets in clear.
func show(t testing.TB, objects []isolation.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, o := range objects {
		if s, is := o.(*corev1.Secret); is {
			s = s.DeepCopy()
			s.StringData = map[string]string{}
			for k, v := range s.Data {
				s.StringData[k] = string(v)
			}
			s.Data, o = nil, s
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	return b.Bytes()
}

func golden(t *testing.T, name string, objects []isolation.Object, err error) {
	t.Helper()
	got := show(t, objects)
	if err != nil {
		got = []byte("error: " + err.Error() + "\n")
	}
	file := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs from the rendered objects (%v):\n%s", file, err, got)
	}
}

var (
	forges = []v1alpha1.ForgeType{v1alpha1.GitHub, v1alpha1.GitLab}
	uses   = []v1alpha1.PoolUse{v1alpha1.UseShared, v1alpha1.UseDedicated, v1alpha1.UseOrgPlusUser}
	levels = []v1alpha1.Isolation{v1alpha1.IsolationNone, v1alpha1.IsolationNamespace, v1alpha1.IsolationNode}
)

// FLEET-01: the exact objects for every type, isolation and forge.
func TestFLEET01_Golden(t *testing.T) {
	for _, forge := range forges {
		for _, use := range uses {
			for _, level := range levels {
				name := fmt.Sprintf("%s-%s-%s", forge, use, level)
				t.Run(name, func(t *testing.T) {
					objects, err := render(testSettings(), testWorkload(forge, use, level))
					golden(t, name, objects, err)
				})
			}
		}
	}
}

// variations are further settings of a pool, an enrollment or the fleet.
var variations = []struct {
	name  string
	forge v1alpha1.ForgeType
	level v1alpha1.Isolation
	do    func(*isolation.Settings, *isolation.WorkloadSpec)
}{
	{"github-dind", v1alpha1.GitHub, v1alpha1.IsolationNamespace, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Pool.Spec.ContainerMode = v1alpha1.ModeDind }},
	{"github-kubernetes", v1alpha1.GitHub, v1alpha1.IsolationNamespace, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
		u.Pool.Spec.ContainerMode = v1alpha1.ModeKubernetes
	}},
	{"github-novolume", v1alpha1.GitHub, v1alpha1.IsolationNamespace, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
		u.Pool.Spec.ContainerMode = v1alpha1.ModeKubernetesNoVolume
	}},
	{"github-template", v1alpha1.GitHub, v1alpha1.IsolationNamespace, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
		u.Pool.Spec.Template = &runtime.RawExtension{Raw: []byte(restrictedTemplate)}
		u.Use.RunnerGroup = "gold"
	}},
	{"github-held", v1alpha1.GitHub, v1alpha1.IsolationNone, func(s *isolation.Settings, u *isolation.WorkloadSpec) {
		u.Capacity = fleet.Capacity{Mode: v1alpha1.HoldPause, Hold: "node-upgrade"}
		s.ARC.Version = "0.13.1"
		u.Forge.Spec.CABundle = "-----BEGIN CERTIFICATE-----\n"
	}},
	{"gitlab-whole", v1alpha1.GitLab, v1alpha1.IsolationNode, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
		u.Pool.Spec.ContainerMode, u.Pool.Spec.Image = v1alpha1.ModeDind, "registry.example/build:1"
		u.Pool.Spec.GitLab = &v1alpha1.PoolGitLab{Concurrent: 10, Replicas: 2, ShutdownTimeout: metav1.Duration{Duration: 7200e9}}
		u.Pool.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("2")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("6"), "memory": resource.MustParse("16Gi")}}
		u.Forge.Spec.CABundle, u.Capacity.Max = "-----BEGIN CERTIFICATE-----\n", 7
		u.Enrollment.Spec.Quota = v1alpha1.EnrollmentQuota{CPU: resource.MustParse("4"), Memory: resource.MustParse("8Gi"), Pods: 9}
		u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "198.51.100.0/24", Ports: []int32{443, 8443}}},
			Caches: []v1alpha1.NetworkCache{{Namespace: "cache", PodSelector: map[string]string{"app": "attic"}, Port: 8080}}}
	}},
}

// FL-01: access to a namespace that the settings do not name is omitted, even if the enrollment was
// admitted.
func TestCachesElsewhere(t *testing.T) {
	for _, forge := range forges {
		for _, level := range levels {
			u, s := testWorkload(forge, v1alpha1.UseShared, level), testSettings()
			u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "cache", PodSelector: map[string]string{"app": "attic"}, Port: 8080},
				{Namespace: "tailplane-org-beta", PodSelector: map[string]string{"app": "attic"}, Port: 8080}}}
			objects, err := render(s, u)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(objects)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), "tailplane-org-beta") || !strings.Contains(string(b), `"kubernetes.io/metadata.name":"cache"`) {
				t.Errorf("%s %s: %s", forge, level, b)
			}
		}
	}
}

const restrictedTemplate = `{"metadata": {"labels": {"team": "shop", "tailplane.dev/org": "mallory", "tailplane.dev/api-server": "true"}}, "spec": {"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
	"containers": [{"name": "runner", "image": "registry.example/own:1", "resources": {"limits": {"cpu": "12"}}, "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`

func TestFLEET01_Variations(t *testing.T) {
	for _, v := range variations {
		t.Run(v.name, func(t *testing.T) {
			s, u := testSettings(), testWorkload(v.forge, v1alpha1.UseShared, v.level)
			v.do(&s, &u)
			objects, err := render(s, u)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, v.name, objects, nil)
		})
	}
}

// each calls f for every case of the tests above, and for organisations that share a namespace.
func each(t *testing.T, f func(t *testing.T, s isolation.Settings, u isolation.WorkloadSpec, objects []isolation.Object)) {
	run := func(name string, s isolation.Settings, u isolation.WorkloadSpec) {
		t.Run(name, func(t *testing.T) {
			objects, err := render(s, u)
			if err != nil {
				t.Fatal(err)
			}
			f(t, s, u, objects)
		})
	}
	for _, forge := range forges {
		for _, use := range uses {
			for _, level := range levels {
				if forge == v1alpha1.GitHub || use != v1alpha1.UseOrgPlusUser {
					run(fmt.Sprintf("%s-%s-%s", forge, use, level), testSettings(), testWorkload(forge, use, level))
				}
			}
		}
	}
	for _, v := range variations {
		s, u := testSettings(), testWorkload(v.forge, v1alpha1.UseShared, v.level)
		v.do(&s, &u)
		run(v.name, s, u)
	}
}

// podOf returns the pod template of an object, if it has one.
func podOf(t *testing.T, o isolation.Object) *corev1.PodTemplateSpec {
	t.Helper()
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *unstructured.Unstructured:
		b, err := json.Marshal(o.Object["spec"].(map[string]any)["template"])
		if err != nil {
			t.Fatal(err)
		}
		p := &corev1.PodTemplateSpec{}
		if err := yaml.UnmarshalStrict(b, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	return nil
}

// The laws of all rendered objects. They are in the right place and have the organisation's label.
// No pod reaches the host. A job has no token and no permission, and only the chart's roles are
// bound. The token is only in the Secret.
func TestLaws(t *testing.T) {
	each(t, func(t *testing.T, s isolation.Settings, u isolation.WorkloadSpec, objects []isolation.Object) {
		namespace := fleet.NamespaceOf(u.Enrollment, s.Shared)
		denied := false
		for _, o := range objects {
			what := fmt.Sprintf("%s %s", o.GetObjectKind().GroupVersionKind().Kind, o.GetName())
			_, isNamespace := o.(*corev1.Namespace)
			if isNamespace && o.GetName() != namespace || !isNamespace && o.GetNamespace() != namespace {
				t.Errorf("%s is in %q", what, o.GetNamespace())
			}
			if o.GetLabels()[v1alpha1.ManagedByLabel] != v1alpha1.ManagedBy || u.Enrollment.Spec.Isolation != v1alpha1.IsolationNone && o.GetLabels()[v1alpha1.OrgLabel] != "acme" {
				t.Errorf("%s has the labels %v", what, o.GetLabels())
			}
			switch o := o.(type) {
			case *corev1.ServiceAccount:
				if o.AutomountServiceAccountToken == nil || *o.AutomountServiceAccountToken {
					t.Errorf("%s exposes its token", what)
				}
			case *rbacv1.RoleBinding:
				if !slices.Contains([]string{isolation.FleetRole, isolation.ARCRole, isolation.ManagerRole, isolation.PodRunnerRole}, o.RoleRef.Name) || o.RoleRef.Kind != "ClusterRole" {
					t.Errorf("%s binds %v", what, o.RoleRef)
				}
				for _, subject := range o.Subjects {
					if subject.Name == isolation.RunnerAccount {
						t.Errorf("%s gives every job permissions", what)
					}
				}
			case *networkingv1.NetworkPolicy:
				if len(o.Spec.PodSelector.MatchLabels) == 0 && len(o.Spec.PolicyTypes) == 2 && len(o.Spec.Ingress) == 0 {
					denied = true
				}
				if len(o.Spec.Ingress) > 0 {
					t.Errorf("%s allows ingress", what)
				}
				checkEgress(t, s, o)
			}
			if pod := podOf(t, o); pod != nil {
				checkPod(t, u, what, o, pod)
			}
			if config, is := o.(*corev1.Secret); is && !u.Token.IsZero() && !bytes.Contains(config.Data["config.toml"], []byte(u.Token.Reveal())) {
				t.Errorf("%s has no token", what)
			} else if !is && !u.Token.IsZero() && bytes.Contains(show(t, []isolation.Object{o}), []byte(u.Token.Reveal())) {
				t.Errorf("FL-03: %s has the token", what)
			}
		}
		if !denied {
			t.Error("no policy denies other traffic")
		}
		before := string(show(t, objects))
		again, err := render(s, u)
		if err != nil || string(show(t, again)) != before {
			t.Errorf("rendered twice it is not the same (%v)", err)
		}
	})
}

// checkEgress checks that the allowed destinations include no address that jobs must not reach.
// FL-05.
func checkEgress(t *testing.T, s isolation.Settings, p *networkingv1.NetworkPolicy) {
	t.Helper()
	if p.Name == "tailplane-api-server" {
		for _, r := range p.Spec.Egress {
			for _, peer := range r.To {
				if c := netip.MustParsePrefix(peer.IPBlock.CIDR); c.Bits() != c.Addr().BitLen() {
					t.Errorf("the API server is %s", c)
				}
			}
		}
		return
	}
	for _, r := range p.Spec.Egress {
		if len(r.Ports) == 0 || len(r.To) == 0 {
			t.Errorf("%s: %+v is everywhere, or every port", p.Name, r)
		}
		for _, peer := range r.To {
			if peer.IPBlock == nil {
				switch {
				case peer.NamespaceSelector == nil:
					t.Errorf("peer.NamespaceSelector is nil; %s", p.Name)
				case peer.PodSelector == nil:
					t.Errorf("peer.PodSelector is nil; %s", p.Name)
				case len(peer.NamespaceSelector.MatchLabels) == 0:
					t.Errorf("len(peer.NamespaceSelector.MatchLabels) = %v; %s", len(peer.NamespaceSelector.MatchLabels), p.Name)
				case len(peer.PodSelector.MatchLabels) == 0:
					t.Errorf("len(peer.PodSelector.MatchLabels) = %v; %s", len(peer.PodSelector.MatchLabels), p.Name)
				}
				continue
			}
			allowed := func(a netip.Addr) bool {
				return netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(a) && !slices.ContainsFunc(peer.IPBlock.Except, func(x string) bool { return netip.MustParsePrefix(x).Contains(a) })
			}
			for _, forbidden := range slices.Concat(fleet.PrivatePrefixes(), s.ClusterCIDRs) {
				if a := forbidden.Masked().Addr().Next(); allowed(a) || allowed(forbidden.Addr()) {
					t.Errorf("%s allows jobs to reach %s", p.Name, a)
				}
			}
			for _, x := range peer.IPBlock.Except { // the API server refuses exceptions outside the block
				if e, c := netip.MustParsePrefix(x), netip.MustParsePrefix(peer.IPBlock.CIDR); !c.Contains(e.Addr()) || e.Bits() <= c.Bits() {
					t.Errorf("%s: %s is not within %s", p.Name, e, c)
				}
			}
		}
	}
}

func checkPod(t *testing.T, u isolation.WorkloadSpec, what string, o isolation.Object, pod *corev1.PodTemplateSpec) {
	t.Helper()
	s := pod.Spec
	_, manager := o.(*appsv1.Deployment)
	starts := u.Pool.Spec.ContainerMode == v1alpha1.ModeKubernetes || u.Pool.Spec.ContainerMode == v1alpha1.ModeKubernetesNoVolume
	if pod.Labels[v1alpha1.OrgLabel] != "acme" || pod.Labels[v1alpha1.PoolLabel] != "nix" {
		t.Errorf("%s: pods have the labels %v", what, pod.Labels)
	}
	if !manager {
		switch {
		case s.AutomountServiceAccountToken == nil:
			t.Errorf("%s: a job has a token or starts again: s.AutomountServiceAccountToken is nil", what)
		case *s.AutomountServiceAccountToken != starts:
			t.Errorf("%s: a job has a token or starts again: got %v, want %v", what, *s.AutomountServiceAccountToken, starts)
		case s.RestartPolicy != corev1.RestartPolicyNever:
			t.Errorf("%s: a job has a token or starts again: got %q, want %q", what, s.RestartPolicy, corev1.RestartPolicyNever)
		}
		if want := map[bool]string{true: isolation.PodRunnerAccount, false: isolation.RunnerAccount}[starts]; s.ServiceAccountName != want {
			t.Errorf("%s: its account is %q", what, s.ServiceAccountName)
		}
		if got := pod.Labels["tailplane.dev/api-server"] == "true"; got != starts {
			t.Errorf("%s: jobs may connect to the API server: %v", what, got)
		}
	}
	switch {
	case s.HostNetwork:
		t.Errorf("%s reaches the host: s.HostNetwork is true", what)
	case s.HostPID:
		t.Errorf("%s reaches the host: s.HostPID is true", what)
	case s.HostIPC:
		t.Errorf("%s reaches the host: s.HostIPC is true", what)
	case slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }):
		t.Errorf("%s reaches the host: slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) is true",
			what)
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged && u.Pool.Spec.ContainerMode != v1alpha1.ModeDind {
			t.Errorf("%s: %s is privileged", what, c.Name)
		}
	}
	own := slices.Contains(s.Tolerations, corev1.Toleration{Key: v1alpha1.OrgLabel, Operator: corev1.TolerationOpEqual, Value: "acme", Effect: corev1.TaintEffectNoSchedule})
	if node := u.Enrollment.Spec.Isolation == v1alpha1.IsolationNode; own != node || (s.NodeSelector[v1alpha1.OrgLabel] == "acme") != node {
		t.Errorf("%s: it is placed by %v, %v", what, s.NodeSelector, s.Tolerations)
	}
}

// Organisations in a shared namespace share its baseline, and each has its own egress policy.
func TestSharedBaseline(t *testing.T) {
	a, b := testWorkload(v1alpha1.GitHub, v1alpha1.UseShared, v1alpha1.IsolationNone), testWorkload(v1alpha1.GitLab, v1alpha1.UseShared, v1alpha1.IsolationNone)
	b.Enrollment.Name, b.Pool.Name = "beta", "gl"
	a.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "198.51.100.0/24", Ports: []int32{443}}}}
	c := testWorkload(v1alpha1.GitHub, v1alpha1.UseShared, v1alpha1.IsolationNone)
	c.Enrollment.Name = "gamma"
	tenant := func(u isolation.WorkloadSpec) isolation.Tenant {
		return isolation.Tenant{Enrollment: u.Enrollment, Forge: u.Forge, Pools: []*v1alpha1.RunnerPool{u.Pool}}
	}
	// Each reconcile renders the policies of its own pods, and the same objects for everything
	// else.
	var all []isolation.Object
	for _, of := range [][]isolation.WorkloadSpec{{a, b, c}, {b, c, a}, {c, b, a}} {
		objects, err := isolation.Baseline(testSettings(), tenant(of[0]), tenant(of[1]), tenant(of[2]))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			i := slices.IndexFunc(all, func(x isolation.Object) bool {
				return x.GetName() == o.GetName() && x.GetObjectKind().GroupVersionKind() == o.GetObjectKind().GroupVersionKind()
			})
			switch {
			case i < 0:
				all = append(all, o)
			case !bytes.Equal(show(t, all[i:i+1]), show(t, []isolation.Object{o})):
				t.Errorf("%s is not the same for %s", o.GetName(), of[0].Enrollment.Name)
			}
			if p, ok := o.(*networkingv1.NetworkPolicy); ok && p.Labels[v1alpha1.OrgLabel] != "" && p.Labels[v1alpha1.OrgLabel] != of[0].Enrollment.Name {
				t.Errorf("%s applies the policy %s", of[0].Enrollment.Name, p.Name)
			}
		}
	}
	golden(t, "shared", all, nil)
	broken := testWorkload(v1alpha1.GitHub, v1alpha1.UseShared, v1alpha1.IsolationNone)
	broken.Enrollment.Name, broken.Pool.Name, broken.Pool.Spec.ContainerMode = "delta", "vm", "vm"
	with, err := isolation.Baseline(testSettings(), tenant(a), tenant(broken))
	alone, err2 := isolation.Baseline(testSettings(), tenant(a))
	switch {
	case err != nil:
		t.Errorf("a fault of another enrollment changes the objects: %v", err)
	case err2 != nil:
		t.Errorf("a fault of another enrollment changes the objects: err2: %v", err2)
	case !bytes.Equal(show(t, with), show(t, alone)):
		t.Errorf("a fault of another enrollment changes the objects: bytes.Equal(show(t, with), show(t, alone)) is false; %v, err2 = %v",
			err, err2)
	}
	if _, err := isolation.Baseline(testSettings(), tenant(broken)); err == nil {
		t.Error("a fault of its own pool is not reported")
	}
	isolated := testWorkload(v1alpha1.GitHub, v1alpha1.UseShared, v1alpha1.IsolationNode)
	if _, err := isolation.Baseline(testSettings(), tenant(a), tenant(isolated)); err == nil {
		t.Error("an isolated organisation shares a namespace")
	}
}

// Unsafe input is not rendered, and the error names the reason.
func TestRefused(t *testing.T) {
	raw := func(s string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(s)} }
	pod := func(s string) func(*isolation.Settings, *isolation.WorkloadSpec) {
		return func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Pool.Spec.Template = raw(`{"spec": {"containers": [{"name": "runner", "image": "a"}], ` + s + `}}`)
		}
	}
	for _, c := range []struct {
		why   string
		forge v1alpha1.ForgeType
		do    func(*isolation.Settings, *isolation.WorkloadSpec)
	}{
		{"clusterCIDRs is not set", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ClusterCIDRs = nil }},
		{"ARC was not found", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ARC = isolation.ARC{} }},
		{"not supported", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ARC.Version = "0.12.9" }},
		{"not supported", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ARC.Version = "0.13.0" }},
		{"not supported", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ARC.Version = "0.15.0" }},
		{"not supported", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.ARC.Version = "dev" }},
		{"no credential", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Credential = "" }},
		{"dedicated to another", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Pool.Spec.DedicatedTo = "beta" }},
		{"the fleet does not manage it", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Pool.Spec.Adopt = &v1alpha1.PoolAdopt{} }},
		{"do not match", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Pool.Spec.Forge = "other" }},
		{"unknown isolation \"VM\"", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Enrollment.Spec.Isolation = "VM" }},
		{"unknown isolation \"\"", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Enrollment.Spec.Isolation = "" }},
		{"have an image", v1alpha1.GitHub, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.Images.Runner = "" }},
		{"a Docker image", v1alpha1.GitHub, func(s *isolation.Settings, u *isolation.WorkloadSpec) {
			s.Images.Docker, u.Pool.Spec.ContainerMode = "", v1alpha1.ModeDind
		}},
		{"unknown container mode", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Pool.Spec.ContainerMode = "vm" }},
		{"API server are not known", v1alpha1.GitHub, func(s *isolation.Settings, u *isolation.WorkloadSpec) {
			s.APIServers, u.Pool.Spec.ContainerMode = nil, v1alpha1.ModeKubernetes
		}},
		{"within 10.0.0.0/8", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "10.1.0.0/16", Ports: []int32{443}}}}
		}},
		{"within 169.254.0.0/16", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "169.254.169.254/32", Ports: []int32{80}}}}
		}},
		{"is not a valid range", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "198.51.100.1/24", Ports: []int32{443}}}}
		}},
		{"has no pod selector", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Enrollment.Spec.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "cache", Port: 80}}}
		}},
		{"3 to 2 runners", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Capacity = fleet.Capacity{Min: 3, Max: 2} }},
		{"containres", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Pool.Spec.Template = raw(`{"spec": {"containres": []}}`)
		}},
		{"0 containers named runner", v1alpha1.GitHub, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Pool.Spec.Template = raw(`{"spec": {"containers": [{"name": "other"}]}}`)
		}},
		{"a namespace of the host", v1alpha1.GitHub, pod(`"hostNetwork": true`)},
		{"a namespace of the host", v1alpha1.GitHub, pod(`"hostPID": true`)},
		{"host path of volume x", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "hostPath": {"path": "/"}}]`)},
		{"a token in volume x", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]`)},
		// FL-01: the namespace of the runners also contains the credentials of all organisations
		// there.
		{"the Secret beta-0a1b2c3d", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "secret": {"secretName": "beta-0a1b2c3d"}}]`)},
		{"the Secret beta-gl-nix-runner-config", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "projected": {"sources": [{"secret": {"name": "beta-gl-nix-runner-config"}}]}}]`)},
		{"the Secret beta-gl-nix-runner-token", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "secret": {"secretName": "beta-gl-nix-runner-token"}}]`)},
		{"the Secret beta-0a1b2c3d", v1alpha1.GitHub, pod(`"initContainers": [{"name": "x", "envFrom": [{"secretRef": {"name": "beta-0a1b2c3d"}}]}]`)},
		{"the Secret beta-0a1b2c3d", v1alpha1.GitHub, pod(`"initContainers": [{"name": "x", "env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "beta-0a1b2c3d", "key": "github_app_private_key"}}}]}]`)},
		{"the Secret beta-0a1b2c3d", v1alpha1.GitHub, pod(`"volumes": [{"name": "x", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "beta-0a1b2c3d"}}}]`)},
		{"nodeName", v1alpha1.GitHub, pod(`"nodeName": "n"`)},
		{"a ServiceAccount", v1alpha1.GitHub, pod(`"serviceAccountName": "tailplane-runner-manager"`)},
		{"a ServiceAccount token", v1alpha1.GitHub, pod(`"automountServiceAccountToken": true`)},
		{"each job needs a new pod", v1alpha1.GitHub, pod(`"restartPolicy": "Always"`)},
		{"a priority", v1alpha1.GitHub, pod(`"priorityClassName": "system-node-critical"`)},
		{"belong to one organisation", v1alpha1.GitHub, pod(`"tolerations": [{"operator": "Exists"}]`)},
		{"belong to one organisation", v1alpha1.GitHub, pod(`"nodeSelector": {"tailplane.dev/org": "beta"}`)},
		{"privileged container x", v1alpha1.GitHub, pod(`"initContainers": [{"name": "x", "securityContext": {"privileged": true}}]`)},
		{"a host port", v1alpha1.GitHub, pod(`"initContainers": [{"name": "x", "ports": [{"containerPort": 1, "hostPort": 1}]}]`)},
		{"the template already has one of them", v1alpha1.GitHub, func(s *isolation.Settings, u *isolation.WorkloadSpec) {
			pod(`"initContainers": [{"name": "dind"}]`)(s, u)
			u.Pool.Spec.ContainerMode = v1alpha1.ModeDind
		}},
		{"no token", v1alpha1.GitLab, func(_ *isolation.Settings, u *isolation.WorkloadSpec) { u.Token = secret.Text{} }},
		{"no image for GitLab's runner", v1alpha1.GitLab, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.Images.Manager = "" }},
		{"an image for jobs", v1alpha1.GitLab, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.Images.Job = "" }},
		{"only GitHub runners", v1alpha1.GitLab, pod(`"hostNetwork": false`)},
		{"API server are not known", v1alpha1.GitLab, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.APIServers = nil }},
		{"does not support the toleration", v1alpha1.GitLab, func(_ *isolation.Settings, u *isolation.WorkloadSpec) {
			u.Enrollment.Spec.Placement = &v1alpha1.EnrollmentPlacement{Tolerations: []corev1.Toleration{{Key: "a", Effect: "NoSchedule"}, {Key: "a", Effect: "NoExecute"}}}
		}},
		{"must be set", v1alpha1.GitLab, func(s *isolation.Settings, _ *isolation.WorkloadSpec) { s.Account = "" }},
	} {
		s, u := testSettings(), testWorkload(c.forge, v1alpha1.UseShared, v1alpha1.IsolationNamespace)
		c.do(&s, &u)
		objects, err := render(s, u)
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%d objects, %v; want the error to contain %q", len(objects), err, c.why)
		}
		if c.why == "clusterCIDRs is not set" && !errors.Is(err, isolation.ErrUnbounded) {
			t.Errorf("%v is not ErrUnbounded", err)
		}
	}
}

// The managers of a unit together never run more jobs than allocated.
func TestManagers(t *testing.T) {
	for _, c := range []struct {
		concurrent, replicas int32
		capacity             fleet.Capacity
		drained              bool
		managers, each       int
	}{
		{0, 0, fleet.Capacity{Max: 3}, false, 1, 3},
		{4, 1, fleet.Capacity{Max: 9}, false, 1, 4},
		{4, 3, fleet.Capacity{Max: 9}, false, 3, 3},
		{4, 3, fleet.Capacity{Max: 5}, false, 3, 1},
		{4, 3, fleet.Capacity{Max: 2}, false, 2, 1},
		{4, 3, fleet.Capacity{}, false, 3, 1}, // for the running jobs
		{4, 3, fleet.Capacity{Mode: v1alpha1.HoldPause}, true, 3, 1},
		{4, 3, fleet.Capacity{Mode: v1alpha1.HoldDrain}, false, 3, 1},
		{4, 3, fleet.Capacity{Mode: v1alpha1.HoldDrain}, true, 0, 1},
		{4, 3, fleet.Capacity{Mode: v1alpha1.HoldStop}, true, 0, 1},
	} {
		u := testWorkload(v1alpha1.GitLab, v1alpha1.UseShared, v1alpha1.IsolationNone)
		u.Pool.Spec.GitLab = &v1alpha1.PoolGitLab{Concurrent: c.concurrent, Replicas: c.replicas}
		u.Capacity, u.Drained = c.capacity, c.drained
		managers, each := isolation.ManagerCount(u)
		switch {
		case managers != c.managers:
			t.Errorf("managers = %v, want %v", managers, c.managers)
		case each != c.each:
			t.Errorf("each = %v, want %v", each, c.each)
		case c.capacity.Max > 0 && managers*each > c.capacity.Max:
			t.Errorf("c.capacity.Max > 0 && managers*each > c.capacity.Max; %+v, managers = %d, each = %d", c, managers, each)
		}
	}
}

// FL-01, FL-03: any name or image becomes a single value in the runner's configuration, and a token
// cannot be printed.
func TestHostileValues(t *testing.T) {
	u := testWorkload(v1alpha1.GitLab, v1alpha1.UseShared, v1alpha1.IsolationNode)
	hostile := "a\"\n[runners.kubernetes]\nprivileged = true\t\\\x00\x7f é \xff"
	u.Pool.Spec.Image, u.Token = hostile, secret.New(hostile)
	u.Enrollment.Spec.Placement.NodeSelector = map[string]string{hostile: hostile}
	objects, err := isolation.Objects(testSettings(), u)
	if err != nil {
		t.Fatal(err)
	}
	text := string(objects[0].(*corev1.Secret).Data["config.toml"])
	want := strings.ToValidUTF8(hostile, "\ufffd")
	table, values, seen := "", 0, map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		if strings.HasPrefix(line, "[") {
			if table = line; seen[table] {
				t.Errorf("the table %s is there twice", table)
			}
			seen[table] = true
			continue
		}
		// The output is also valid JSON, so the test can parse it.
		var pair [2]any
		key, value, _ := strings.Cut(line, " = ")
		if strings.HasPrefix(key, `"`) {
			d := json.NewDecoder(strings.NewReader(line))
			if err := d.Decode(&pair[0]); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			value = strings.TrimPrefix(line[d.InputOffset():], " = ")
		} else {
			pair[0] = key
		}
		if err := json.Unmarshal([]byte(value), &pair[1]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch {
		case pair[1] == want:
			values++
		case pair[0] == "privileged" && pair[1] != false:
			t.Errorf("%s: %q", table, line)
		}
	}
	switch {
	case values != 3:
		t.Errorf("values = %v, want 3; want = %q; text = %s", values, want, text)
	case !seen["[[runners]]"]:
		t.Errorf(`seen["[[runners]]"] is false; values = %d, want = %q, text = %s`, values, want, text)
	case !seen["[runners.kubernetes]"]:
		t.Errorf(`seen["[runners.kubernetes]"] is false; values = %d, want = %q, text = %s`, values, want, text)
	}
	u.Pool, u.Enrollment, u.Token = nil, nil, secret.New("glrt-canary")
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("token", "token", u.Token, "unit", u)
	slog.New(slog.NewTextHandler(&log, nil)).Info("token", "token", u.Token, "unit", u)
	for _, printed := range []string{fmt.Sprintf("%v %+v %#v %s %q %x", u.Token, u.Token, u.Token, u.Token, u.Token, u.Token), fmt.Sprintf("%v %+v %#v", u, u, u), fmt.Sprint(fmt.Errorf("a: %s", u.Token)), log.String()} {
		if strings.Contains(printed, "canary") || !strings.Contains(printed, secret.Redacted) {
			t.Errorf("a token is printed: %s", printed)
		}
	}
	if b, err := json.Marshal(struct{ T secret.Text }{u.Token}); err != nil || strings.Contains(string(b), "canary") {
		t.Errorf("a token in JSON: %s (%v)", b, err)
	}
}

// A copy of a credential has one form, and contains no other data of the Secret.
func TestCredential(t *testing.T) {
	app := map[string][]byte{"github_app_id": []byte("1"), "github_app_installation_id": []byte("2"), "github_app_private_key": []byte("key"), "note": []byte("n")}
	s, err := isolation.Credential("acme", "tailplane-org-acme", app)
	switch {
	case err != nil:
		t.Error(err)
	case len(s.Data) != 3:
		t.Errorf("len(s.Data) = %v, want 3", len(s.Data))
	case s.Name != fleet.CredentialName("acme", fleet.Fingerprint(s.Data)):
		t.Errorf(`s.Name = %q, want fleet.CredentialName("acme", fleet.Fingerprint(s.Data))`, s.Name)
	case s.Labels[v1alpha1.OrgLabel] != "acme":
		t.Errorf("s.Labels[v1alpha1.OrgLabel] = %q, want %q", s.Labels[v1alpha1.OrgLabel], "acme")
	}
	for _, bad := range []map[string][]byte{nil, {"github_app_pem": []byte("key")}, {"github_app_id": []byte("1")},
		{"github_token": []byte("t"), "github_app_id": []byte("1"), "github_app_installation_id": []byte("2"), "github_app_private_key": []byte("k")}} {
		if s, err := isolation.Credential("acme", "ns", bad); err == nil {
			t.Errorf("%v is copied as %v", bad, reflect.ValueOf(s.Data).MapKeys())
		} else if strings.Contains(err.Error(), "key\"") {
			t.Errorf("the error has the key: %v", err)
		}
	}
}

// FLEET-11 (FL-01): whatever the fields of an enrollment contain, the rendered objects have the
// same places and names, and reference the same Secrets and service accounts.
func TestFLEET11_HostileFields(t *testing.T) {
	names := func(objects []isolation.Object) (all []string) {
		for _, o := range objects {
			all = append(all, fmt.Sprint(o.GetObjectKind().GroupVersionKind(), o.GetNamespace(), "/", o.GetName(), o.GetLabels()))
			switch o := o.(type) {
			case *rbacv1.RoleBinding:
				all = append(all, fmt.Sprint(o.RoleRef, o.Subjects))
			case *unstructured.Unstructured:
				spec := o.Object["spec"].(map[string]any)
				all = append(all, fmt.Sprint(spec["githubConfigSecret"], spec["runnerScaleSetName"], spec["runnerScaleSetLabels"]))
			}
			if p := podOf(t, o); p != nil {
				all = append(all, fmt.Sprint(p.Labels, p.Spec.ServiceAccountName, p.Spec.Volumes, p.Spec.NodeSelector[v1alpha1.OrgLabel], p.Spec.HostNetwork, p.Spec.Containers))
			}
		}
		return all
	}
	for _, forge := range forges {
		for _, level := range levels {
			u := testWorkload(forge, v1alpha1.UseShared, level)
			s := &u.Enrollment.Spec
			s.Credentials.SecretName, s.Owners, s.Members = "a", []string{"a"}, []string{"a"}
			s.Placement = &v1alpha1.EnrollmentPlacement{NodeSelector: map[string]string{"a": "a"}, RuntimeClassName: "a", Tolerations: []corev1.Toleration{{Key: "a", Value: "a"}, {Key: v1alpha1.OrgLabel, Value: "a"}}}
			s.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "a", PodSelector: map[string]string{"a": "a"}, Port: 80}}}
			s.Pools = []v1alpha1.EnrolledPool{{Name: "a", RunnerGroup: "a", Repositories: []string{"a"}}}
			good, err := render(testSettings(), u)
			if err != nil {
				t.Fatal(err)
			}
			want := names(good)
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			tried, rendered := 0, 0
			for _, hostile := range []string{"tailplane-org-beta", "beta-app", "../beta", "beta\n---\nkind: Secret", "tailplane-system"} {
				quoted, err := json.Marshal(hostile)
				if err != nil {
					t.Fatal(err)
				}
				for i := range strings.Count(string(text), `"a"`) {
					parts := strings.Split(string(text), `"a"`)
					changed := strings.Join(parts[:i+1], `"a"`) + string(quoted) + strings.Join(parts[i+1:], `"a"`)
					v := u
					v.Enrollment = u.Enrollment.DeepCopy()
					v.Enrollment.Spec = v1alpha1.RunnerEnrollmentSpec{}
					if err := json.Unmarshal([]byte(changed), &v.Enrollment.Spec); err != nil {
						t.Fatal(err)
					}
					tried++
					objects, err := render(testSettings(), v)
					if err != nil {
						continue // refused
					}
					rendered++
					if got := names(objects); !slices.Equal(got, want) {
						t.Errorf("%s %s: with %s:\n%q\nwant\n%q", forge, level, changed, got, want)
					}
				}
			}
			if tried < 50 || rendered < tried/2 {
				t.Errorf("%d fields were tried, %d rendered", tried, rendered)
			}
		}
	}
}
