//go:build linux

package gateway

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/testkit/kubetest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// An operator is `tailplaned gateway` as a process, with a separate cluster.
type operator struct {
	*kubetest.Cluster
	*process
	command []string
}

// startOperator starts an operator with a credential of this API. It serves its metrics at the given address.
func startOperator(t *testing.T, name, metrics string, api *fakeapi.API) *operator {
	t.Helper()
	c := defined(t, name)
	for _, ns := range []string{"infra", ourNamespace, egNamespace} {
		kubectl(t, c, "create", "namespace", ns)
	}
	own := api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	apply(t, c, corp(own.ID, own.Secret, api.URL()), "apiVersion: v1\nkind: Service\nmetadata: {name: backend, namespace: infra}\nspec: {ports: [{port: 3000}]}\n")
	o := &operator{Cluster: c, command: []string{"gateway", "--config", settingsFor(t, api.URL()), "--kubeconfig", c.Kubeconfig, "--namespace", ourNamespace, "--metrics-addr", metrics,
		"--extension-addr", "unix://" + filepath.Join(t.TempDir(), "x.sock"), "--log-level", "info"}}
	o.begin(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("in %s: %s", name, kubectl(t, c, "get", "tssvc,tstn,leases", "-A", "-o", "yaml"))
		}
	})
	return o
}

// begin starts or restarts the program.
func (o *operator) begin(t *testing.T) {
	t.Helper()
	o.process = start(t, nil, "tailplaned", o.command...)
}

// publish creates a service on the tailnet and waits for the wanted reason.
func (o *operator) publish(t *testing.T, name string, port int, want string) {
	t.Helper()
	apply(t, o.Cluster, fmt.Sprintf(`apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: %s, namespace: infra}
spec:
  type: ingress
  tailnetRef: {name: corp}
  vipService: {name: "svc:%s", tags: ["tag:web"]}
  ports: [{name: http, port: %d, targetPort: 3000}]
  backendRef: {kind: Service, name: backend}
`, name, name, port))
	await(t, name+" is "+want, func() bool { return reason(t, o.Cluster, "tssvc/"+name, "Programmed") == want })
}

func (o *operator) withdraw(t *testing.T, name string) {
	t.Helper()
	kubectl(t, o.Cluster, "-n", "infra", "delete", "tssvc", name, "--timeout=200s")
}

// GTW-25, GTW-36, GW-10: two clusters share a tailnet. Each has its own API server and its own operator process with
// all controllers. Neither operator takes or deletes a service of the other. A service of both stays when one of them
// leaves, also while the other operator is stopped. A service without an owner stays unchanged.
func TestGTW25_TwoClusters(t *testing.T) {
	needsNamespaces(t)
	n := startTailnet(t)
	east, west := startOperator(t, "east", "127.0.0.1:9091", n.api), startOperator(t, "west", "127.0.0.1:9092", n.api)
	service := func(name string) *vipService {
		own := n.api.Client([]string{"services"}, "tag:k8s-operator")
		all := vips(t.Context(), t, n.api.URL(), own.ID, own.Secret)
		if i := slices.IndexFunc(all, func(s vipService) bool { return s.Name == "svc:"+name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	owners := func(name string) int {
		s := service(name)
		if s == nil {
			return 0
		}
		o, err := gateway.ParseVIPOwners(s.Annotations[gateway.OwnersAnnotation])
		if err != nil {
			t.Fatal(err)
		}
		return o.Len()
	}
	if err := n.client.PutService(t.Context(), tsapi.Service{Name: "svc:by-hand", Ports: []string{"tcp:80"}, Tags: []string{"tag:web"}, Comment: "mine"}); err != nil {
		t.Fatal(err)
	}
	byHand := service("by-hand")

	east.publish(t, "east", 80, "Programmed")
	west.publish(t, "west", 80, "Programmed")
	east.publish(t, "both", 80, "Programmed")
	west.publish(t, "both", 80, "Programmed")
	await(t, "both keep their common service", func() bool { return owners("both") == 2 })
	was := map[string]*vipService{"east": service("east"), "west": service("west"), "by-hand": byHand}
	unchanged := func(when string, names ...string) {
		t.Helper()
		for _, name := range names {
			if now := service(name); !reflect.DeepEqual(now, was[name]) {
				t.Errorf("%s: svc:%s was %+v, now it is %+v", when, name, was[name], now)
			}
		}
	}

	// One cluster requests the name of the other's service with other ports, and the name of a manually created
	// service.
	west.publish(t, "east", 8080, "VIPConflict")
	east.publish(t, "by-hand", 80, "VIPNotOwned")
	west.publish(t, "by-hand", 80, "VIPNotOwned")
	unchanged("while another operator owns it", "east", "west", "by-hand")
	west.withdraw(t, "east")
	east.withdraw(t, "by-hand")
	unchanged("when it released the service", "east", "west", "by-hand")

	// One operator is killed; its services stay, whatever the other does.
	if err := east.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-east.done
	west.withdraw(t, "both")
	west.withdraw(t, "by-hand")
	await(t, "one is left", func() bool { return owners("both") == 1 })
	unchanged("while its operator is not running", "east", "west", "by-hand")
	west.withdraw(t, "west")
	if service("west") != nil || service("both") == nil {
		t.Errorf("svc:west is %+v, and svc:both %+v", service("west"), service("both"))
	}
	unchanged("while its operator is not running", "east", "by-hand")

	// Its services are deleted after its restart. A service that was deleted in the meantime is reconciled before the
	// client for its tailnet exists.
	kubectl(t, east.Cluster, "-n", "infra", "delete", "tssvc", "east", "both", "--wait=false")
	east.begin(t)
	await(t, "east's services are deleted", func() bool { return service("east") == nil && service("both") == nil })
	unchanged("at the end", "by-hand")
}
