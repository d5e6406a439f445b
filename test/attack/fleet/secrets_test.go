package fleet

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// everything returns each object of the API server except Secrets, as text by kind.
func (y *env) everything(t *testing.T) map[string]string {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(y.Cluster.AdminConfig())
	y.must(t, err)
	objects, err := dynamic.NewForConfig(y.Cluster.AdminConfig())
	y.must(t, err)
	lists, err := client.ServerPreferredResources()
	y.must(t, err)
	all := map[string]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		y.must(t, err)
		for _, r := range list.APIResources {
			if r.Kind == "Secret" || !slices.Contains(r.Verbs, "list") {
				continue
			}
			l, err := objects.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			y.must(t, err)
			b, err := json.Marshal(l)
			y.must(t, err)
			all["objects of kind "+r.Kind] += string(b)
		}
	}
	return all
}

// FL-03. App keys, installation tokens, access tokens and runner tokens appear in no log at the highest level, no
// object except Secrets, no metric, no argument and no answer of the plane. The fleet may die after it creates a
// runner and before it stores the token. It then finds the runner by its marker. In the end there is exactly one
// runner, and its token is stored.
//
// Guard: secret.Text, forge.readable errors; controller.(*enrollmentState).findLostRunners, which reads the ownership markers of runners.
func TestFL03_Tokens(t *testing.T) {
	y := start(t)
	y.pool(t, "fl3-nix", "github", 3)
	y.pool(t, "fl3-docker", "gitlab", 3)
	alice := y.Visitor(t, "alice-fleet", "alice@example.com")

	// The fleet dies after GitLab has created the runner and before the fleet receives the answer.
	group := y.gitlab.AddGroup("fl3-lab")
	access := y.gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})
	var killed atomic.Bool
	y.gitlab.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/user/runners") && killed.CompareAndSwap(false, true) {
			y.fleet.Kill()
			return &forgetest.Fault{Drop: true, After: true}
		}
		return nil
	})
	t.Cleanup(func() { y.gitlab.Fault(nil) })
	y.credential(t, "fl3-lab", map[string]string{"access_token": access})
	y.enroll(t, "fl3-lab", "gitlab", y.gitlab.URL+"/fl3-lab", []string{"fl3-docker"})
	attacktest.Eventually(t, attacktest.Long, "the fleet is killed", func() bool {
		select {
		case <-y.fleet.Done():
			return killed.Load()
		default:
			return false
		}
	})
	lost, ok := y.runnerOf("fl3-lab-fl3-docker")
	if !ok || y.secret(t, attacktest.SharedRunners, "fl3-lab-fl3-docker-runner-token") != nil {
		t.Fatalf("the runner with the lost token: %+v, %v", lost, ok)
	}
	y.must(t, y.begin(t.Context(), fleetSettings))

	app, key := y.github.AddApp(t)
	y.github.AddAccount("fl3-hub", "")
	y.github.Install(app, "fl3-hub", forgetest.Enough())
	y.credential(t, "fl3-hub", map[string]string{"github_app_id": fmt.Sprint(app), "github_app_private_key": string(key)})
	y.enroll(t, "fl3-hub", "github", y.github.URL+"/fl3-hub", []string{"fl3-nix"}, apart)
	bad := "ghp_" + strings.Repeat("canary", 6)
	y.github.AddAccount("fl3-bad", "")
	y.credential(t, "fl3-bad", map[string]string{"github_token": bad})
	y.enroll(t, "fl3-bad", "github", y.github.URL+"/fl3-bad", []string{"fl3-nix"})
	y.active(t, "fl3-hub")
	y.active(t, "fl3-lab")
	y.says(t, "fl3-bad", "CredentialsValid", "False/")

	runners := slices.DeleteFunc(y.gitlab.Runners(), func(r forgetest.GitLabRunner) bool { return r.Group != group })
	kept := y.secret(t, attacktest.SharedRunners, "fl3-lab-fl3-docker-runner-token")
	switch {
	case len(runners) != 1:
		t.Errorf("len(runners) = %v, want 1; %v", len(runners), kept != nil)
	case kept == nil:
		t.Errorf("kept is nil; %v", kept != nil)
	case string(kept.Data["token"]) != runners[0].Token:
		t.Errorf(`string(kept.Data["token"]) = %q, want %q; %v`, string(kept.Data["token"]), runners[0].Token, kept != nil)
	case runners[0].Token == lost.Token:
		t.Errorf("runners[0].Token = %q, the same as lost.Token; %v", runners[0].Token, kept != nil)
	}
	c := &attacktest.Canary{T: t, Secrets: map[string]string{}, Out: map[string]string{}, Expect: map[string]string{}}
	block, _ := pem.Decode(key)
	lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
	c.Secret("the App's key", lines[len(lines)/2])
	c.Secret("the access token", access)
	c.Secret("a token that is not accepted", bad)
	c.Secret("the token of the lost runner", lost.Token)
	for _, r := range runners {
		c.Secret("the token of the runner", r.Token)
	}
	var secrets corev1.SecretList
	y.must(t, y.KubeClient.List(t.Context(), &secrets))
	for _, s := range secrets.Items {
		for key, value := range s.Data {
			if strings.HasPrefix(s.Labels[v1alpha1.OrgLabel], "fl3-") && len(value) >= 20 && key != "config.toml" && !strings.Contains(key, "private_key") {
				c.Secret(key+" of "+s.Name, string(value))
			}
		}
	}
	// Error messages are the most likely place for a leaked secret.
	y.gitlab.Fault(func(*http.Request) *forgetest.Fault {
		return &forgetest.Fault{Status: http.StatusUnauthorized, Body: `{"message":"token ` + access + ` is expired","error":"` + runners[0].Token + `"}`}
	})
	asked := len(y.gitlab.Calls())
	// Without a hold the fleet queries the runner rarely.
	y.hold(t, "fl3-lab", "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl3-lab"}, Mode: v1alpha1.HoldPause})
	attacktest.Eventually(t, attacktest.Long, "GitLab repeats its input", func() bool { y.look(t, "fl3-lab"); return len(y.gitlab.Calls()) > asked })
	y.gitlab.Fault(nil)
	y.drop(t, &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: "fl3-lab"}})
	y.leave(t, "fl3-bad")

	c.Put("the fleet's log", y.output(t), `"level":"DEBUG`)
	c.Put("the plane's log", y.Plane.Output(), "the plane is serving")
	c.Put("the metrics", attacktest.RawProbe(t, y.ProbeAddress(t, y.fleet), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").Body, "tailplane_fleet_")
	for _, of := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", y.fleet.PID(), of))
		if err != nil {
			t.Skipf("SKIP arguments of a process: %v", err)
		}
		c.Put("the process's "+of, string(b), "")
	}
	for _, path := range []string{"pools", "enrollments", "forges", "holds", "overview", "sources"} {
		c.Put("answers of the plane", y.Request(t, alice, "GET", "/api/v1/"+path, "").Body, "")
	}
	record, err := os.ReadFile(y.PlaneAuditFile())
	y.must(t, err)
	c.Put("the plane's record", string(record), "alice@example.com")
	for where, text := range y.everything(t) {
		c.Put(where, text, "")
	}
	for where, text := range c.Out {
		if want := c.Expect[where]; !strings.Contains(text, want) {
			t.Errorf("%s: it does not contain %q, so it is not the expected output: %.1000s", where, want, text)
		}
		for _, found := range c.Scan(where, text) {
			t.Error(found)
		}
	}
	if len(c.Secrets) < 5 || !strings.Contains(c.Out["objects of kind RunnerEnrollment"], "fl3-hub") {
		t.Errorf("%d secrets were searched in %d places", len(c.Secrets), len(c.Out))
	}
	t.Logf("%d secrets were searched in %d places", len(c.Secrets), len(c.Out))
}

// FL-05. The stored objects block every access from a job of a shared pool: to cloud metadata, the tailnet, the API
// server, the dashboard and other organisations' pods. They also block every incoming connection. No token is
// mounted, and the job's account has no rights. Two organisations never run containers in the shared namespace.
//
// Guard: isolation.(*baseline).policies, fleet.PrivatePrefixes, isolation's pod template; and (*checker).containers of fleet.
func TestFL05_AJobIsAlone(t *testing.T) {
	y := start(t)
	y.pool(t, "fl5-nix", "github", 3)
	y.atGitHub(t, "fl5-a", []string{"fl5-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) {
		e.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "cache", PodSelector: map[string]string{"app": "attic"}, Port: 8080}}}
	})
	y.atGitHub(t, "fl5-b", []string{"fl5-nix"})
	y.atGitHub(t, "fl5-c", []string{"fl5-nix"}, apart)
	for _, org := range []string{"fl5-a", "fl5-b", "fl5-c"} {
		y.active(t, org)
	}
	for org, ns := range map[string]string{"fl5-a": attacktest.SharedRunners, "fl5-b": attacktest.SharedRunners, "fl5-c": "tailplane-org-fl5-c"} {
		t.Run(org, func(t *testing.T) {
			attacktest.Eventually(t, attacktest.Long, "it takes jobs", func() bool { return y.maxOf(t, ns, org+"-fl5-nix") > 0 })
			y.arc.Assign(ns, org+"-fl5-nix", arctest.Job{ID: org, Repository: org + "/app", Run: 51})
			y.must(t, y.arc.Start(t.Context(), org))
			defer func() { y.must(t, y.arc.Finish(t.Context(), org)) }()
			pod := y.podOf(t, ns, org)
			policies := y.policies(t, ns)
			if !isolated(policies, pod.Labels) {
				t.Errorf("peers may connect to it: %+v", policies)
			}
			for _, x := range []struct {
				why, to string
				port    int32
				open    bool
			}{
				{"the control: a forge", "140.82.112.3", 443, true}, {"the control: by IPv6", "2606:50c0:8000::153", 443, true},
				{"another port of it", "140.82.112.3", 22, false}, {"in the clear", "140.82.112.3", 80, false},
				{"metadata", "169.254.169.254", 443, false}, {"metadata, in the clear", "169.254.169.254", 80, false}, {"metadata by IPv6", "fd00:ec2::254", 443, false}, {"a link-local address", "fe80::1", 443, false},
				{"the tailnet", "100.64.0.10", 443, false}, {"its end", "100.127.255.254", 443, false}, {"the tailnet's own service", "100.100.100.100", 443, false}, {"the tailnet by IPv6", "fd7a:115c:a1e0::1", 443, false},
				{"the API server", "10.96.0.1", 443, false}, {"behind its Service", "10.0.0.1", 443, false}, {"the dashboard's Service", "10.96.17.4", 443, false}, {"another's pod", "10.244.3.9", 443, false},
				{"a private network", "192.168.1.1", 443, false}, {"another one", "172.16.9.9", 443, false},
				{"an address in another form", "::ffff:169.254.169.254", 443, false}, {"the API server in it", "::ffff:10.96.0.1", 443, false},
			} {
				if got := reaches(policies, pod.Labels, netip.MustParseAddr(x.to), x.port); got != x.open {
					t.Errorf("%s (%s:%d): reached is %v", x.why, x.to, x.port, got)
				}
			}
			for _, x := range []struct {
				why, namespace string
				labels         map[string]string
				port           int32
				open           bool
			}{
				{"names", "kube-system", map[string]string{"k8s-app": "kube-dns"}, 53, true}, {"its cache", "cache", map[string]string{"app": "attic"}, 8080, org == "fl5-a"},
				{"another port of DNS", "kube-system", map[string]string{"k8s-app": "kube-dns"}, 9153, false}, {"another pod of kube-system", "kube-system", map[string]string{"k8s-app": "kube-proxy"}, 53, false},
				{"DNS of another namespace", "evil", map[string]string{"k8s-app": "kube-dns"}, 53, false}, {"another pod of the cache", "cache", map[string]string{"app": "other"}, 8080, false},
				{"the server", "tailplane-system", map[string]string{"app.kubernetes.io/component": "plane"}, 443, false}, {"the fleet", attacktest.FleetNamespace, map[string]string{"app.kubernetes.io/component": "fleet"}, 9091, false},
				{"a job of fl5-b", attacktest.SharedRunners, map[string]string{v1alpha1.OrgLabel: "fl5-b"}, 443, false}, {"another job of its organisation", ns, map[string]string{v1alpha1.OrgLabel: org}, 443, false},
				{"a job apart", "tailplane-org-fl5-c", map[string]string{v1alpha1.OrgLabel: "fl5-c"}, 443, false},
			} {
				if got := connects(policies, pod.Labels, x.namespace, x.labels, x.port); got != x.open {
					t.Errorf("%s: connected is %v", x.why, got)
				}
			}
			switch {
			case pod.Spec.AutomountServiceAccountToken == nil:
				t.Error("token mounted: pod.Spec.AutomountServiceAccountToken is nil")
			case *pod.Spec.AutomountServiceAccountToken:
				t.Errorf("token mounted: *pod.Spec.AutomountServiceAccountToken is true; %v, %v, %v, %v",
					pod.Spec.AutomountServiceAccountToken, pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC)
			case pod.Spec.HostNetwork:
				t.Errorf("token mounted: pod.Spec.HostNetwork is true; %v, %v, %v, %v",
					pod.Spec.AutomountServiceAccountToken, pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC)
			case pod.Spec.HostPID:
				t.Errorf("token mounted: pod.Spec.HostPID is true; %v, %v, %v, %v",
					pod.Spec.AutomountServiceAccountToken, pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC)
			case pod.Spec.HostIPC:
				t.Errorf("token mounted: pod.Spec.HostIPC is true; %v, %v, %v, %v",
					pod.Spec.AutomountServiceAccountToken, pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC)
			}
			for _, v := range pod.Spec.Volumes {
				switch {
				case v.HostPath != nil:
					t.Errorf("it has the volume: v.HostPath = %v, want nil", v.HostPath)
				case v.Secret != nil:
					t.Errorf("it has the volume: v.Secret = %v, want nil", v.Secret)
				case v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil || s.Secret != nil }):
					t.Errorf("it has the volume: v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil || s.Secret != nil }); %+v",
						v)
				}
			}
			y.mayNothing(t, ns, pod.Spec.ServiceAccountName)
		})
	}

	t.Run("containers", func(t *testing.T) {
		for _, mode := range []v1alpha1.ContainerMode{v1alpha1.ModeDind, v1alpha1.ModeKubernetes, v1alpha1.ModeKubernetesNoVolume} {
			name := "fl5-" + strings.ReplaceAll(string(mode), "kubernetes", "k")
			y.pool(t, name, "github", 3, func(s *v1alpha1.RunnerPoolSpec) { s.ContainerMode = mode })
			y.atGitHub(t, name+"-x", []string{name})
			if mode == v1alpha1.ModeDind { // the first organisation may have Docker, the second may not
				y.atGitHub(t, name+"-y", []string{name})
				y.says(t, name+"-y", "PolicyViolation", "True/ContainerModeRefused")
				if made := y.listed(t, things[8], name+"-y"); len(made) > 0 {
					t.Errorf("%s: created %q", mode, made)
				}
				continue
			}
			y.says(t, name+"-x", "PolicyViolation", "True/ContainerModeRefused")
			if made := y.listed(t, things[8], name+"-x"); len(made) > 0 {
				t.Errorf("%s: created %q", mode, made)
			}
			y.atGitHub(t, name+"-z", []string{name}, apart) // control
			y.active(t, name+"-z")
		}
	})

	t.Run("on the wire", func(t *testing.T) {
		t.Skip("SKIP a network plugin that enforces the policies: pods of the testbed have none; the test evaluates the policies like a plugin")
	})
}

// podOf returns the pod that ARC would create for a runner of an organisation, from the template that the API server
// stores.
func (y *env) podOf(t *testing.T, namespace, org string) *corev1.Pod {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "actions.github.com", Version: "v1alpha1", Kind: "EphemeralRunnerList"})
	y.must(t, y.KubeClient.List(t.Context(), list, inNamespace(namespace)))
	for _, u := range list.Items {
		spec, _, _ := unstructured.NestedMap(u.Object, "spec")
		if _, has := spec["spec"]; !has || !strings.HasPrefix(u.GetName(), org+"-") {
			continue
		}
		pod := &corev1.Pod{}
		y.must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, pod))
		if pod.Labels[v1alpha1.OrgLabel] == org && len(pod.Spec.Containers) > 0 {
			return pod
		}
	}
	t.Fatalf("no runner of %s in %s: %v", org, namespace, list.Items)
	return nil
}

// mayNothing fails if an account has any right beyond those of every authenticated account.
func (y *env) mayNothing(t *testing.T, namespace, account string) {
	t.Helper()
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	for _, a := range []authorizationv1.ResourceAttributes{{Verb: "get", Resource: "secrets"}, {Verb: "list", Resource: "secrets"}, {Verb: "create", Resource: "pods"}, {Verb: "list", Resource: "pods"}, {Verb: "create", Resource: "pods", Subresource: "exec"},
		{Verb: "get", Resource: "configmaps"}, {Verb: "create", Resource: "serviceaccounts", Subresource: "token"}, {Verb: "patch", Group: "actions.github.com", Resource: "ephemeralrunnersets"}, {Verb: "list", Group: "tailplane.dev", Resource: "runnerenrollments"}} {
		for _, ns := range []string{namespace, attacktest.FleetNamespace, "tailplane-system", "kube-system"} {
			a.Namespace = ns
			r, err := y.Clientset.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + namespace + ":" + account, Groups: groups, ResourceAttributes: &a}}, metav1.CreateOptions{})
			y.must(t, err)
			if r.Status.Allowed {
				t.Errorf("%s may %s %s/%s in %s", account, a.Verb, a.Resource, a.Subresource, ns)
			}
		}
	}
}

// The functions below evaluate network policies as the Kubernetes documentation defines them. If at least one policy
// selects a pod for a direction, only connections that one of these policies allows are possible.

func selects(p networkingv1.NetworkPolicy, pod map[string]string, kind networkingv1.PolicyType) bool {
	s, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	return err == nil && s.Matches(kubelabels.Set(pod)) && slices.Contains(p.Spec.PolicyTypes, kind)
}

// isolated reports whether a pod accepts no incoming connection.
func isolated(all []networkingv1.NetworkPolicy, pod map[string]string) bool {
	chosen := false
	for _, p := range all {
		if selects(p, pod, networkingv1.PolicyTypeIngress) {
			if chosen = true; len(p.Spec.Ingress) > 0 {
				return false
			}
		}
	}
	return chosen
}

func allows(all []networkingv1.NetworkPolicy, pod map[string]string, port int32, peer func(networkingv1.NetworkPolicyPeer) bool) bool {
	chosen := false
	for _, p := range all {
		if !selects(p, pod, networkingv1.PolicyTypeEgress) {
			continue
		}
		chosen = true
		for _, rule := range p.Spec.Egress {
			to := len(rule.To) == 0 || slices.ContainsFunc(rule.To, peer)
			at := len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(x networkingv1.NetworkPolicyPort) bool {
				return x.Port == nil || x.Port.IntVal == port || x.EndPort != nil && x.Port.IntVal <= port && port <= *x.EndPort
			})
			if to && at {
				return true
			}
		}
	}
	return !chosen
}

// reaches reports whether a pod may connect to an address. connects reports the same for another pod, by its labels.
func reaches(all []networkingv1.NetworkPolicy, pod map[string]string, to netip.Addr, port int32) bool {
	to = to.Unmap() // as a socket does
	return allows(all, pod, port, func(x networkingv1.NetworkPolicyPeer) bool {
		return x.IPBlock != nil && netip.MustParsePrefix(x.IPBlock.CIDR).Contains(to) && !slices.ContainsFunc(x.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(to) })
	})
}

func connects(all []networkingv1.NetworkPolicy, pod map[string]string, namespace string, to map[string]string, port int32) bool {
	return allows(all, pod, port, func(x networkingv1.NetworkPolicyPeer) bool {
		if x.IPBlock != nil || x.NamespaceSelector == nil {
			return x.IPBlock == nil // a pod of the same namespace
		}
		in, err := metav1.LabelSelectorAsSelector(x.NamespaceSelector)
		if err != nil || !in.Matches(kubelabels.Set{corev1.LabelMetadataName: namespace}) {
			return false
		}
		if x.PodSelector == nil {
			return true
		}
		s, err := metav1.LabelSelectorAsSelector(x.PodSelector)
		return err == nil && s.Matches(kubelabels.Set(to))
	})
}
