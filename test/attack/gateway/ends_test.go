package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// GW-10. Devices and services of the tailnet are deleted by hand. A group is scaled down, changes its type, and loses
// its namespace. A tailnet service belongs to another owner, or also to another operator. Everything ends, objects of
// others stay unchanged, and no device, key or service of the gateway remains.
//
// Guard: gateway.NextGroupStep and controller.groupReconciliation.deletePendingKeys; gateway.ReconcileVIP, gateway.ReleaseVIP and controller.serviceReconciliation.releaseVIP; controller.forbiddenTracker, which
// lets a gateway start although a namespace of relays is gone.
func TestGW10_EndsByHand(t *testing.T) {
	w := start(t)
	w.says(t, "TailscaleTailnet corp", "Ready", "True/Ready")
	before := w.corp.deviceIDs()
	t.Run("devices", w.devicesEnd)
	t.Run("namespace", w.namespaceEnds)
	t.Run("services", w.servicesEnd)
	for _, id := range before {
		if !slices.Contains(w.corp.deviceIDs(), id) {
			t.Errorf("another owner's device %s is deleted", id)
		}
	}
}

// devicesEnd tests the devices of a group.
func (w *env) devicesEnd(t *testing.T) {
	const group = "TailscaleProxyGroup relays/byhand"
	uid := w.relayGroup(t, "relays", "byhand", 2)
	first, second := w.join(t, "relays", "byhand-0"), w.join(t, "relays", "byhand-1")
	attacktest.Eventually(t, attacktest.Long, "both devices are recorded", func() bool { return slices.Equal(w.recorded(t, group), []string{first, second}) })

	err := w.cluster.Apply(t.Context(), []byte(strings.ReplaceAll(relayGroup("relays", "byhand", 2), "type: egress", "type: ingress")))
	if !apierrors.IsInvalid(err) {
		t.Errorf("its type was changed: %v", err)
	}
	w.patch(t, group, `{"spec":{"replicas":1}}`)
	attacktest.Eventually(t, attacktest.Long, "the second device and its Secrets are deleted", func() bool {
		return !slices.Contains(w.corp.deviceIDs(), second) && w.get(t, "Secret relays/byhand-1") == nil && w.get(t, "Secret relays/byhand-1-config") == nil
	})
	if !slices.Contains(w.corp.deviceIDs(), first) || w.get(t, "Secret relays/byhand-0") == nil {
		t.Error("the first relay was deleted too")
	}
	if err := w.corp.hand.DeleteDevice(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w.remove(t, group)
	w.gone(t, group)
	if left := w.corp.keysOf(t, uid); len(left) > 0 {
		t.Errorf("keys are left: %v", left)
	}
}

// namespaceEnds tests a group whose namespace is deleted, together with the gateway's rights there.
func (w *env) namespaceEnds(t *testing.T) {
	uid := w.relayGroup(t, "fleeting", "lost", 2)
	device := w.join(t, "fleeting", "lost-0")
	attacktest.Eventually(t, attacktest.Long, "a device and an unused key", func() bool {
		return slices.Equal(w.recorded(t, "TailscaleProxyGroup fleeting/lost"), []string{device}) && len(w.corp.keysOf(t, uid)) == 1
	})
	w.remove(t, "Namespace fleeting")
	took := attacktest.Eventually(t, attacktest.Long, "the namespace is deleted", func() bool { return w.get(t, "Namespace fleeting") == nil })
	t.Logf("deleted after %v", took.Round(time.Millisecond))
	if slices.Contains(w.corp.deviceIDs(), device) {
		t.Error("the device is left")
	}
	if left := w.corp.keysOf(t, uid); len(left) > 0 {
		t.Errorf("valid keys are left: %v", left)
	}

	// A gateway that starts now has no read access there. It still answers, and reports the problem once.
	w.restart(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	w.says(t, "TailscaleTailnet corp", "Ready", "True/Ready")
	leftOut := func() string {
		return strings.TrimSpace(strings.TrimPrefix(metricLines(t, w.Probes, "tailplane_gateway_namespaces_left_out"), "tailplane_gateway_namespaces_left_out"))
	}
	if n := leftOut(); n != "1" {
		t.Errorf("%q namespaces are skipped", n)
	}
	uid = w.relayGroup(t, "relays", "beside", 1)
	w.key(t, "relays", "beside-0")
	w.remove(t, "TailscaleProxyGroup relays/beside")
	w.gone(t, "TailscaleProxyGroup relays/beside")
	if left := w.corp.keysOf(t, uid); len(left) > 0 {
		t.Errorf("keys are left: %v", left)
	}

	// With its rights restored, the gateway uses the namespace again.
	rights, err := gatewayRights(t.Context(), gatewayNamespace)
	if err != nil {
		t.Fatal(err)
	}
	w.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: fleeting, labels: {net: any}}\n")
	if err := w.cluster.Apply(t.Context(), rights...); err != nil {
		t.Fatal(err)
	}
	w.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: fleeting, labels: {net: any}}\n", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {net: corp}}\n",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: relays, labels: {net: any}}\n")
	attacktest.Eventually(t, attacktest.Long, "it is included", func() bool { return leftOut() == "0" })
	w.relayGroup(t, "fleeting", "back", 1)
	w.key(t, "fleeting", "back-0")
	w.remove(t, "TailscaleProxyGroup fleeting/back")
	w.gone(t, "TailscaleProxyGroup fleeting/back")
	for line, want := range map[string]int{"a namespace is skipped": 1, "may read again": 1, "Failed to watch": 0} {
		if n := strings.Count(w.Output(), line); n != want {
			t.Errorf("the log has %q %d times, want %d", line, n, want)
		}
	}
}

// servicesEnd tests tailnet services that two operators share, and services that belong to other owners.
func (w *env) servicesEnd(t *testing.T) {
	const page, foreign = "TailscaleService shop/page", "TailscaleService shop/foreign"
	ctx := t.Context()

	// Without the gateway's owner reference the service is foreign, at creation and at deletion.
	mine := tsapi.Service{Name: "svc:foreign", Ports: []string{"tcp:80"}, Tags: []string{"tag:web"}, Comment: "by hand"}
	if err := w.corp.hand.PutService(ctx, mine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.corp.hand.DeleteService(context.WithoutCancel(ctx), "svc:foreign"); err != nil {
			t.Error(err)
		}
	})
	was, err := w.corp.hand.Service(ctx, "svc:foreign")
	if err != nil {
		t.Fatal(err)
	}
	w.apply(t, exposure("foreign"))
	w.says(t, foreign, "Programmed", "False/VIPNotOwned")
	w.remove(t, foreign)
	w.gone(t, foreign)
	if is, err := w.corp.hand.Service(ctx, "svc:foreign"); err != nil || fmt.Sprintf("%+v", is) != fmt.Sprintf("%+v", was) {
		t.Errorf("another owner's service was changed: %+v, %+v, %v", was, is, err)
	}

	// Another operator, of another cluster, on the same service.
	other := w.second(t)
	w.apply(t, exposure("page"))
	w.says(t, page, "Programmed", "True/Programmed")
	other.apply(t, exposure("page"))
	other.says(t, page, "Programmed", "True/Programmed")
	var made tsapi.Service
	owners := func(want ...string) func() bool {
		return func() bool {
			s, err := w.corp.hand.Service(ctx, "svc:page")
			if classOf(err) == tsapi.NotFound {
				return len(want) == 0
			}
			if err != nil {
				t.Fatal(err)
			}
			made = s
			var ids []string
			for _, o := range ownersOf(t, s) {
				ids = append(ids, o.OperatorID)
			}
			slices.Sort(ids)
			return slices.Equal(ids, want)
		}
	}
	attacktest.Eventually(t, attacktest.Long, "both own it", owners("tp-attacked", "tp-other"))
	addresses := made.Addrs

	// A third client writes an old version of the annotation, so the other operator's update is lost.
	both, err := gateway.ParseVIPOwners(made.Annotations[gateway.OwnersAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	lost := made
	lost.Annotations = maps.Clone(made.Annotations)
	for _, o := range ownersOf(t, made) {
		if o.OperatorID == "tp-other" {
			lost.Annotations[gateway.OwnersAnnotation] = both.Without(o).String()
		}
	}
	if err := w.corp.hand.PutService(ctx, lost); err != nil {
		t.Fatal(err)
	}
	took := attacktest.Eventually(t, attacktest.Long, "the lost reference is written again", owners("tp-attacked", "tp-other"))
	t.Logf("healed after %v", took.Round(time.Millisecond))

	w.remove(t, page)
	w.gone(t, page)
	if !owners("tp-other")() {
		t.Errorf("when one left: %+v", made)
	}
	if err := w.corp.hand.DeleteService(ctx, "svc:page"); err != nil {
		t.Fatal(err)
	}
	took = attacktest.Eventually(t, attacktest.Long, "the manually deleted service exists again", owners("tp-other"))
	t.Logf("back after %v", took.Round(time.Millisecond))
	if !slices.Equal(made.Addrs, addresses) {
		t.Errorf("with other addresses: %v, not %v", made.Addrs, addresses)
	}
	if err := w.corp.hand.DeleteService(ctx, "svc:page"); err != nil {
		t.Fatal(err)
	}
	other.remove(t, page)
	other.gone(t, page)
	if !owners()() {
		t.Errorf("the last owner has not deleted it: %+v", made)
	}
}

// ownersOf returns the owners in the annotation of a service.
func ownersOf(t *testing.T, s tsapi.Service) []gateway.VIPOwner {
	t.Helper()
	var all struct{ OwnerRefs []gateway.VIPOwner }
	if text := s.Annotations[gateway.OwnersAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
	}
	return all.OwnerRefs
}

// exposure returns a Service in the namespace shop, and a TailscaleService that exposes it on the tailnet as
// svc:<name>.
func exposure(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: exposed, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: %[1]s, namespace: shop}
spec: {type: ingress, tailnetRef: {name: corp}, vipService: {name: "svc:%[1]s", tags: ["tag:web"]}, ports: [{port: 80}], backendRef: {kind: Service, name: exposed}}
`, name)
}

func relayGroup(namespace, name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleProxyGroup
metadata: {name: %s, namespace: %s}
spec: {type: egress, replicas: %d, tailnetRef: {name: corp}, tailnetTarget: {serviceName: web}}
`, name, namespace, replicas)
}

// relayGroup creates a group and returns its UID.
func (w *env) relayGroup(t *testing.T, namespace, name string, replicas int) string {
	t.Helper()
	w.apply(t, relayGroup(namespace, name, replicas))
	return string(w.get(t, "TailscaleProxyGroup "+namespace+"/"+name).GetUID())
}

// key waits for the auth key of a relay.
func (w *env) key(t *testing.T, namespace, pod string) (key string) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, "a key for "+pod, func() bool {
		s := &corev1.Secret{}
		err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: pod + "-config"}, s)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		key = string(s.Data["authkey"])
		return key != ""
	})
	return key
}

// join acts as a relay: it logs in with its key and writes its state Secret. It returns the device's id.
func (w *env) join(t *testing.T, namespace, pod string) (id string) {
	t.Helper()
	s := w.corp.net.Node(pod, "", "tag:k8s-operator")
	s.AuthKey, s.Ephemeral, s.Store = w.key(t, namespace, pod), false, nil
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	st, err := s.Up(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id = string(st.Self.ID)
	state, err := json.Marshal(map[string]any{"data": map[string][]byte{
		"device_id": []byte(id), "device_fqdn": []byte(st.Self.DNSName), "device_ips": []byte(`["100.64.0.9"]`),
		"_machinekey": []byte("m"), "_profiles": []byte("p"), "_current-profile": []byte("profile-1"), "profile-1": []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	w.patch(t, "Secret "+namespace+"/"+pod, string(state))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return id
}

// recorded returns the devices in the status of a group.
func (w *env) recorded(t *testing.T, group string) (ids []string) {
	t.Helper()
	g := &struct {
		Status struct{ Devices []struct{ NodeID string } }
	}{}
	b, err := w.get(t, group).MarshalJSON()
	if err := errors.Join(err, json.Unmarshal(b, g)); err != nil {
		t.Fatal(err)
	}
	for _, d := range g.Status.Devices {
		if d.NodeID != "" {
			ids = append(ids, d.NodeID)
		}
	}
	return ids
}

// deviceIDs returns the ids of the tailnet's devices.
func (a *tailnetAPI) deviceIDs() (ids []string) {
	for _, n := range a.net.Nodes() {
		ids = append(ids, string(n.StableID))
	}
	return ids
}

// keysOf returns the ids of a group's keys that are still valid.
func (a *tailnetAPI) keysOf(t *testing.T, uid string) (open []string) {
	t.Helper()
	ids, err := a.hand.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		k, err := a.hand.Key(t.Context(), id)
		if classOf(err) == tsapi.NotFound {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(k.Description, fmt.Sprintf("tailplane-relay-%.8s-", uid)) {
			open = append(open, id)
		}
	}
	return open
}

// restart restarts the gateway.
func (w *env) restart(t *testing.T) {
	t.Helper()
	if err := w.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	again, err := testenv.StartGateway(t.Context(), filepath.Join(w.dir, "restarted"), w.cluster, w.options)
	if err != nil {
		t.Fatal(err)
	}
	w.Gateway = again
}

// second starts another gateway, in a separate cluster, on the same tailnet.
func (w *env) second(t *testing.T) *env {
	t.Helper()
	o := &env{corp: w.corp, dir: t.TempDir(), options: w.options}
	o.cluster = kubetest.New(t, kubetest.Options{Name: "second"})
	scheme := runtime.NewScheme()
	err := corev1.AddToScheme(scheme)
	if err == nil {
		o.admin, err = client.New(o.cluster.AdminConfig(), client.Options{Scheme: scheme})
	}
	rights, err2 := gatewayRights(t.Context(), gatewayNamespace)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(applyGatewayKinds(t.Context(), o.cluster), o.cluster.Apply(t.Context(), rights...)); err != nil {
		t.Fatal(err)
	}
	own := w.corp.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	o.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: corp, namespace: %[1]s}
stringData: {client_id: %[2]q, client_secret: %[3]q}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleTailnet
metadata: {name: corp}
spec: {oauthSecretName: corp, apiBaseURL: %[4]q, controlURL: %[5]q, syncInterval: 1m, allowedNamespaces: {from: All}}
`, gatewayNamespace, own.ID, own.Secret, w.corp.URL(), w.corp.net.ControlURL()))
	o.options.IP, o.options.Settings = strings.Replace(w.options.IP, "127.81.", "127.83.", 1), filepath.Join(o.dir, "gateway.yaml")
	text := fmt.Sprintf("operatorID: tp-other\ntailnet: {apiBaseURLs: [%q], requestsPerSecond: 1000, burst: 1000}\nproxy: {image: \"image.invalid/tailplaned:test\"}\nclusterDomain: cluster.local\n", w.corp.URL())
	if err := os.WriteFile(o.options.Settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if o.Gateway, err = testenv.StartGateway(t.Context(), o.dir, o.cluster, o.options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	})
	o.says(t, "TailscaleTailnet corp", "Ready", "True/Ready")
	return o
}
