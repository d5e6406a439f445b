//go:build unix

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// GTW-13, GTW-14, GTW-15, GTW-17: a group with real relays.
func TestGroupRelays(t *testing.T) {
	p := newGroupEnv(t)
	pods, err := testenv.RunPods(p.cluster, t.TempDir(), testenv.PodsOptions{Namespace: p.ns, First: netip.MustParseAddr("127.79.1.1"), Env: tailnettest.ChildEnv()})
	p.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			for name, r := range pods.Running() {
				t.Logf("%s:\n%s", name, lastRelayLines(r.Output()))
			}
		}
		if err := pods.Stop(); err != nil {
			t.Error(err)
		}
	})

	// GTW-13: two real nodes; keys are removed after login; the state Secrets contain everything.
	g := p.group("web", 2)
	is := p.condition("web", "Ready", "True/Ready")
	devices := map[int32]v1alpha1.RelayDevice{}
	for _, d := range is.Status.Devices {
		devices[d.Ordinal] = d
	}
	switch ids := p.devices(); {
	case len(ids) != 2:
		t.Fatalf("nodes: len(ids) = %v, want 2", len(ids))
	case len(is.Status.Devices) != 2:
		t.Fatalf("nodes: len(is.Status.Devices) = %v, want 2", len(is.Status.Devices))
	case !slices.Contains(ids, devices[0].NodeID):
		t.Fatalf("nodes: ids = %v does not contain %q", ids, devices[0].NodeID)
	case !slices.Contains(ids, devices[1].NodeID):
		t.Fatalf("nodes: ids = %v does not contain %q", ids, devices[1].NodeID)
	}
	for i, d := range devices {
		name := fmt.Sprintf("web-%d", i)
		state, config := p.secret(name), p.secret(name+"-config")
		for _, field := range []string{"_machinekey", "_profiles", "_current-profile", "device_id", "device_fqdn", "device_ips", "pod_uid", "tailscale_capver", "egress-services"} {
			if len(state.Data[field]) == 0 {
				t.Errorf("%s has no %s", name, field)
			}
		}
		switch {
		case d.Hostname != name:
			t.Errorf("device: d.Hostname = %q, want %q", d.Hostname, name)
		case d.FQDN != name+"."+p.net.Suffix():
			t.Errorf("device: d.FQDN = %q, want %q", d.FQDN, name+"."+p.net.Suffix())
		case len(d.IPs) != 2:
			t.Errorf("device: len(d.IPs) = %v, want 2", len(d.IPs))
		case !d.Ready:
			t.Errorf("device: d.Ready is false; %+v", d)
		case d.Reason != "":
			t.Errorf("device: d.Reason = %q, want none", d.Reason)
		case d.PodUID == "":
			t.Errorf("device: d.PodUID is empty; %+v", d)
		}
		if len(config.Data["authkey"]) != 0 || config.Annotations[v1alpha1.AuthKeyIDAnnotation] == "" {
			t.Errorf("%s: key at hand %v, %v", config.Name, len(config.Data["authkey"]), config.Annotations)
		}
	}
	switch {
	case is.Status.ReadyReplicas != 2:
		t.Errorf("status: is.Status.ReadyReplicas = %v, want 2", is.Status.ReadyReplicas)
	case is.Status.Replicas != 2:
		t.Errorf("status: is.Status.Replicas = %v, want 2", is.Status.Replicas)
	case is.Status.Selector != "app="+string(g.UID):
		t.Errorf("status: is.Status.Selector = %q, want %q", is.Status.Selector, "app="+string(g.UID))
	}

	// GTW-14: after the deletion of a pod, the relay has the same node and address and needs no
	// new key.
	issuedBefore := p.requests("POST")
	old := &corev1.Pod{}
	p.exists("web-0", old)
	p.must(p.admin.Delete(t.Context(), old, client.GracePeriodSeconds(1)))
	var now v1alpha1.RelayDevice
	p.until("another pod is the same device", func() bool {
		for _, d := range p.get("web").Status.Devices {
			if d.Ordinal == 0 {
				now = d
			}
		}
		return now.Ready && now.PodUID != old.UID
	})
	switch was := devices[0]; {
	case now.NodeID != was.NodeID:
		t.Errorf("now.NodeID = %q, want %q; %d", now.NodeID, was.NodeID, p.requests("POST")-issuedBefore)
	case !slices.Equal(now.IPs, was.IPs):
		t.Errorf("now.IPs (-want +got):\n%s", cmp.Diff(was.IPs, now.IPs))
	case now.FQDN != was.FQDN:
		t.Errorf("now.FQDN = %q, want %q; %d", now.FQDN, was.FQDN, p.requests("POST")-issuedBefore)
	case p.requests("POST") != issuedBefore:
		t.Errorf(`p.requests("POST") != issuedBefore; %+v, %+v, %d`, was, now, p.requests("POST")-issuedBefore)
	}

	// GTW-17: a device is deleted in the API: the relay comes back with one new key. The pause
	// between two keys must be over first.
	p.ahead.Add(int64(gateway.AuthKeyPause + time.Second))
	if !p.net.Delete(tailcfg.StableNodeID(devices[1].NodeID)) {
		t.Fatal("the device does not exist")
	}
	p.until("it is registered again", func() bool {
		for _, d := range p.get("web").Status.Devices {
			if d.Ordinal == 1 && d.Ready && d.FQDN != "" && d.NodeID != devices[1].NodeID && slices.Contains(p.devices(), d.NodeID) {
				return len(p.secret("web-1-config").Data["authkey"]) == 0
			}
		}
		return false
	})
	p.event(g, "AuthKeyReissued")
	if n := p.requests("POST") - issuedBefore; n != 1 || p.counted.get("reissued") != 1 {
		t.Errorf("%d keys created, %d reissued", n, p.counted.get("reissued"))
	}

	// GTW-15: 2 -> 3 -> 1: no other relay restarts, and nothing of relays 1 and 2 is left.
	p.condition("web", "Ready", "True/Ready")
	p.until("the lost device is removed from the status", func() bool { return len(p.get("web").Status.Devices) == 2 })
	uid := func() (ids []string) {
		var list corev1.PodList
		p.must(p.admin.List(t.Context(), &list, client.InNamespace(p.ns)))
		for _, pod := range list.Items {
			ids = append(ids, pod.Name+" "+string(pod.UID))
		}
		slices.Sort(ids)
		return ids
	}
	before := uid()
	p.patch(p.get("web"), `{"spec":{"replicas":3}}`)
	p.condition("web", "Ready", "True/Ready")
	if after := uid(); len(after) != 3 || !slices.Equal(after[:2], before) {
		t.Errorf("pods %v, and then %v", before, after)
	}
	p.patch(p.get("web"), `{"spec":{"replicas":1}}`)
	p.condition("web", "Ready", "True/Ready")
	p.until("1 and 2 are deleted", func() bool {
		for _, name := range []string{"web-1", "web-1-config", "web-2", "web-2-config"} {
			if p.exists(name, &corev1.Secret{}) {
				return false
			}
		}
		return len(p.get("web").Status.Devices) == 1 && len(p.devices()) == 1
	})
	if after := uid(); !slices.Equal(after, before[:1]) {
		t.Errorf("pods %v, and then %v", before[:1], after)
	}
	if keys := p.keys(); len(keys) != 0 {
		t.Errorf("keys %v", keys)
	}

	// GW-10: a Secret of a running relay is deleted manually.
	p.must(p.admin.Delete(t.Context(), p.secret("web-0")))
	p.until("it is another device, alone", func() bool {
		d := p.get("web").Status.Devices
		return len(d) == 1 && d[0].Ready && d[0].NodeID != devices[0].NodeID && slices.Equal(p.devices(), []string{d[0].NodeID})
	})

	p.must(p.admin.Delete(t.Context(), g))
	p.until("it is deleted", func() bool { return !p.exists("web", &v1alpha1.TailscaleProxyGroup{}) })
	p.checkOnlyGarbage(g)
}

// checkRights checks that the ServiceAccount of a group has exactly the rights in section 6.3 of the
// contract and those of every ServiceAccount, and none for another group.
func (p *groupEnv) checkRights(t *testing.T, group string) {
	t.Helper()
	account, seen := p.rightsOf(t, group)
	_, anybody := p.rightsOf(t, "default")
	for what := range anybody {
		delete(seen, what)
	}
	for _, want := range []string{
		"secrets get,patch,update web-0,web-0-config,web-1,web-1-config",
		"configmaps get,watch web-egress-config",
		"events create,patch ",
	} {
		if !seen[want] {
			t.Errorf("the account may not: %s", want)
		}
		delete(seen, want)
	}
	for what := range seen {
		t.Errorf("the account may: %s", what)
	}
	other := &corev1.Secret{}
	other.Namespace, other.Name = p.ns, "other-0"
	p.must(p.admin.Create(t.Context(), other))
	if _, err := account.CoreV1().Secrets(p.ns).Get(t.Context(), "other-0", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another group's Secret: %v", err)
	}
	p.must(p.admin.Delete(t.Context(), other))
}

// rightsOf returns the rights of a ServiceAccount in the namespace.
func (p *groupEnv) rightsOf(t *testing.T, account string) (*kubernetes.Clientset, map[string]bool) {
	t.Helper()
	path, err := p.cluster.ServiceAccountKubeconfig(t.Context(), p.ns, account, t.TempDir())
	p.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	p.must(err)
	own, err := kubernetes.NewForConfig(config)
	p.must(err)
	review, err := own.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: p.ns}}, metav1.CreateOptions{})
	p.must(err)
	seen := map[string]bool{}
	for _, r := range review.Status.ResourceRules {
		for _, resource := range r.Resources {
			seen[fmt.Sprintf("%s %s %s", resource, sortedWords(r.Verbs), sortedWords(r.ResourceNames))] = true
		}
	}
	return own, seen
}

func sortedWords(words []string) string {
	return strings.Join(slices.Sorted(slices.Values(words)), ",")
}

// lastRelayLines returns the end of a relay's log without the lines of Tailscale's library.
func lastRelayLines(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `"from":"tailscale"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-25):], "")
}
