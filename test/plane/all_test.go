package plane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// everything creates the account of the role all, with the rights of every single role.
func everything(ctx context.Context, r *testenv.Env) error {
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	if _, err := k.CoreV1().ServiceAccounts(testenv.SystemNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "tailplane"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	all := rbacv1.Subject{Kind: "ServiceAccount", Name: "tailplane", Namespace: testenv.SystemNamespace}
	part := func(s rbacv1.Subject) bool {
		return s.Kind == all.Kind && s.Namespace == all.Namespace && slices.Contains([]string{"tailplane-access", "tailplane-operator", "tailplane-plane"}, s.Name)
	}
	bound, err := k.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, b := range bound.Items {
		if slices.ContainsFunc(b.Subjects, part) && !slices.Contains(b.Subjects, all) {
			b.Subjects = append(b.Subjects, all)
			if _, err := k.RbacV1().ClusterRoleBindings().Update(ctx, &b, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	in, err := k.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, b := range in.Items {
		if slices.ContainsFunc(b.Subjects, part) && !slices.Contains(b.Subjects, all) {
			b.Subjects = append(b.Subjects, all)
			if _, err := k.RbacV1().RoleBindings(b.Namespace).Update(ctx, &b, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// One process has every role, including the plane. It has two nodes, one audit log and one probe listener.
func TestAllInOneProcess(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := everything(ctx, r); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.Dir, "whole")
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, "tailplane", dir)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}, Reusable: true})), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := r.Settings("all")
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "audit.jsonl")
	text := strings.NewReplacer(filepath.Join(r.Dir, "all")+"/", dir+"/", r.AuditFile(), record, r.AuthKeyFile(), key, "hostname: tka\n", "hostname: whole\n",
		"  allowEndpoints: [127.0.0.0/8]\n", "  enabled: false\n", "  identity: {", "  enabled: true\n  identity: {hostname: whole-plane, ").Replace(without(own, "exposures"))
	p, err := r.Try("whole", "all", nil, text, "--kubeconfig", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(p.Output())
		}
	})
	for _, said := range []string{`"access is serving"`, `"the plane is serving"`} {
		if err := p.WaitLog(ctx, said); err != nil {
			t.Fatal(err)
		}
	}
	alice := person(t, r, "alice-whole", "alice@example.com")
	for host, path := range map[string]string{"whole": "/api/v1alpha1/cluster-info", "whole-plane": "/api/v1/me"} {
		if err := r.Net.WaitPeer(ctx, alice.Node, host); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, "GET", "https://"+host+"."+r.Net.Suffix()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		hc := alice.HTTP()
		defer hc.CloseIdleConnections()
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%s%s: %s %s %v", host, path, res.Status, b, err)
		}
	}
	b, err := os.ReadFile(record)
	switch {
	case err != nil:
		t.Errorf("the record: %v", err)
	case !strings.Contains(string(b), `"self.read"`):
		t.Errorf("the record: string(b) = %q does not contain %q", string(b), `"self.read"`)
	case !strings.Contains(string(b), `"cluster.info"`):
		t.Errorf("the record: string(b) = %q does not contain %q", string(b), `"cluster.info"`)
	}
	ports, told, err := testenv.Listening(p.PID())
	if err != nil || told && len(ports) != 3 { // two peer APIs, and probes
		t.Errorf("it listens on %v: %v", ports, err)
	}
	if !told {
		return
	}
	ready := ""
	for _, port := range ports {
		if res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose", port)); err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			ready += string(b)
		}
	}
	// Its operator waits for the leader.
	for _, check := range []string{"[+]plane ok", "[+]plane-tailnet ok", "[+]tailnet ok", "[+]access ok"} {
		if !strings.Contains(ready, check) {
			t.Errorf("readiness has no %q:\n%s", check, ready)
		}
	}
}
