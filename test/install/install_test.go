//go:build unix

package install

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/go-logr/logr"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard()) // for libraries without their own logger
	testenv.Main(m)
}

func kubectl(t *testing.T, c *kubetest.Cluster, args ...string) (out, errs string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	return kubetest.Kubectl(ctx, c.Kubeconfig, args...)
}

// must runs a command of a page and returns its output.
func must(t *testing.T, c *kubetest.Cluster, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, errs, exit := kubectl(t, c, words[1:]...)
	if words[0] != "kubectl" || exit != 0 {
		t.Fatalf("%s: exit %d\n%s%s", line, exit, out, errs)
	}
	return out
}

// helm runs helm on a cluster.
func helm(t *testing.T, c *kubetest.Cluster, args ...string) string {
	t.Helper()
	out, err := runHelm(t, append(args, "--kubeconfig", c.Kubeconfig, "--namespace", systems)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ofPod returns the settings file of a pod of the installation. Only the addresses are replaced by those of this
// machine.
func ofPod(c *kubetest.Cluster, configMap, key string) func(*testenv.Env, string) ([]byte, error) {
	return func(r *testenv.Env, role string) ([]byte, error) {
		path := strings.ReplaceAll(key, ".", `\.`)
		out, errs, exit := kubetest.Kubectl(context.Background(), c.Kubeconfig, "-n", systems, "get", "configmap", configMap, "-o", "jsonpath={.data."+path+"}")
		if exit != 0 || out == "" {
			return nil, fmt.Errorf("settings %s in %s: %s", key, configMap, errs)
		}
		var f map[string]any
		if err := yaml.UnmarshalStrict([]byte(out), &f); err != nil {
			return nil, err
		}
		f["health"] = "127.0.0.1:0"
		if cluster, ok := f["cluster"].(map[string]any); ok {
			ca := filepath.Join(r.Dir, "cluster-ca.crt")
			if err := os.WriteFile(ca, c.CA, 0o600); err != nil {
				return nil, err
			}
			cluster["server"], cluster["caFile"] = c.Server, ca
			tailnet := f["tailnet"].(map[string]any)
			tailnet["controlURL"], tailnet["authKeyFile"], tailnet["stateDir"] = r.Net.ControlURL(), r.AuthKeyFile(), filepath.Join(r.Dir, role, "state")
			delete(tailnet, "stateSecret") // outside a pod the program would not find it
			f["audit"].(map[string]any)["file"] = r.AuditFile()
		}
		return yaml.Marshal(f)
	}
}

func startRig(t *testing.T, o testenv.Options) *testenv.Env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r, err := testenv.Start(ctx, t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func person(t *testing.T, r *testenv.Env, host, login string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, host, login)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a command as p and fails the test unless it exits with want.
func run(t *testing.T, p *testenv.Person, want int, command string) string {
	t.Helper()
	words := strings.Fields(command)
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s%s", command, r.Exit, want, r.Stdout, r.Stderr)
	}
	return r.Stdout + r.Stderr
}

// The test follows the pages from beginning to end. helm installs for real, and the API server admits the pods. The
// real programs run with exactly the installed accounts and settings, and a person signs in. An upgrade and a
// rollback lose nothing. After uninstalling, exactly the objects that the page names are left.
func TestInstall(t *testing.T) {
	_, blocks := page(t, "install.md")
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(blocks["values.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	c := kubetest.New(t, kubetest.Options{Name: "prod-eu", FakeNode: true})

	must(t, c, "kubectl create namespace tailplane-system")
	must(t, c, "kubectl label namespace tailplane-system pod-security.kubernetes.io/enforce=restricted")
	must(t, c, "kubectl -n tailplane-system create secret generic tailplane-authkey --from-file=authkey=/dev/null")
	helm(t, c, "upgrade", "--install", "tailplane-crds", crds)
	notes := helm(t, c, "upgrade", "--install", "tailplane", chart, "--values", values)
	for _, say := range []string{"view, edit", "tka.your-tailnet.ts.net", "delete tkasignins --all"} {
		if !strings.Contains(notes, say) {
			t.Errorf("the notes do not contain %q:\n%s", say, notes)
		}
	}
	settled := func() {
		t.Helper()
		must(t, c, "kubectl -n tailplane-system rollout status statefulset/tailplane-access --timeout 2m")
		must(t, c, "kubectl -n tailplane-system rollout status deployment/tailplane-operator --timeout 2m")
	}
	settled()

	file := func(r *testenv.Env, role string) ([]byte, error) {
		if role == "operator" {
			return ofPod(c, "tailplane-operator", "config.yaml")(r, role)
		}
		return ofPod(c, "tailplane-access", "tailplane-access-0.yaml")(r, role)
	}
	r := startRig(t, testenv.Options{Policy: blocks["policy"], Cluster: c, ClusterName: "prod-eu", Manifests: [][]byte{}, File: file})
	alice := person(t, r, "alice-laptop", "alice@example.com")
	run(t, alice, 0, "tka login --use")
	run(t, alice, 0, "kubectl get pods")
	if says := run(t, alice, 1, "kubectl create configmap x"); !strings.Contains(says, "forbidden") {
		t.Errorf("create under view: %s", says)
	}
	// The page's policy allows no other person to reach the server.
	run(t, person(t, r, "bob-laptop", "bob@example.com"), 5, "tka login --timeout 5s")
	t.Run("health", func(t *testing.T) { checkHealth(t, r) })
	t.Run("helm test", func(t *testing.T) { checkHelmTest(t, r, alice, helm(t, c, "get", "hooks", "tailplane")) })
	t.Run("record", func(t *testing.T) { checkRecord(t, r, alice) })

	// The access server stores its node state in its Secret, with this account's rights.
	account, err := c.ServiceAccountKubeconfig(t.Context(), systems, "tailplane-access", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := kubetest.Kubectl(t.Context(), account, "-n", systems, "patch", "secret", "tailplane-access-0", "--type", "merge", "-p", `{"data":{"_machinekey":"eA=="}}`); exit != 0 {
		t.Fatal(errs)
	}
	keep := func() string {
		return must(t, c, "kubectl -n tailplane-system get secret tailplane-access-0 tailplane-cluster-key tailplane-audit-key tailplane-operator-audit-key -o jsonpath={.items[*].data}") +
			must(t, c, "kubectl -n tailplane-signins get tkasignins,serviceaccounts -o jsonpath={.items[*].metadata.uid}") +
			must(t, c, "kubectl get clusterrolebindings -l app.kubernetes.io/managed-by=tailplane -o jsonpath={.items[*].metadata.uid}")
	}
	before := keep()
	if !strings.Contains(before, "_machinekey") || !strings.Contains(before, "ed25519") {
		t.Fatalf("the Secrets and sign-ins: %s", before)
	}

	// From N to N+1, and back.
	next := t.TempDir()
	if out, err := runHelm(t, "package", chart, "--version", "0.2.0", "--app-version", "0.2.0", "--destination", next); err != nil {
		t.Fatal(err, out)
	}
	logLevel := func() string {
		return must(t, c, "kubectl -n tailplane-system get statefulset tailplane-access -o jsonpath={.spec.template.spec.containers[0].args}")
	}
	helm(t, c, "upgrade", "tailplane-crds", crds)
	helm(t, c, "upgrade", "tailplane", filepath.Join(next, "tailplane-0.2.0.tgz"), "--values", values, "--set", "logLevel=debug,access.replicas=2")
	settled()
	if args := logLevel(); !strings.Contains(args, "debug") {
		t.Errorf("after the upgrade it runs with %s", args)
	}
	must(t, c, "kubectl -n tailplane-system get secret tailplane-access-1")
	if after := keep(); after != before {
		t.Errorf("the upgrade changed\n%s\nto\n%s", before, after)
	}
	run(t, alice, 0, "kubectl get pods")
	helm(t, c, "rollback", "tailplane")
	settled()
	if args := logLevel(); !strings.Contains(args, "info") {
		t.Errorf("after the rollback it runs with %s", args)
	}
	if after := keep(); after != before {
		t.Errorf("the rollback changed\n%s\nto\n%s", before, after)
	}
	run(t, alice, 0, "tka login")
	run(t, alice, 0, "kubectl get pods")

	// Uninstall, and the objects that are left.
	must(t, c, "kubectl -n tailplane-signins delete tkasignins --all --timeout 60s")
	if left := must(t, c, "kubectl get clusterrolebindings,rolebindings -A -l app.kubernetes.io/managed-by=tailplane -o name"); left != "" {
		t.Errorf("bindings of sign-ins are left: %s", left)
	}
	secrets := must(t, c, "kubectl -n tailplane-system get secret tailplane-access-0 tailplane-cluster-key tailplane-audit-key tailplane-operator-audit-key -o jsonpath={.items[*].data}")
	helm(t, c, "uninstall", "tailplane", "--wait")
	helm(t, c, "uninstall", "tailplane-crds")
	kinds := "statefulsets,deployments,services,serviceaccounts,secrets,configmaps,resourcequotas,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases," +
		"clusterroles,clusterrolebindings,namespaces,validatingadmissionpolicies,validatingadmissionpolicybindings,validatingwebhookconfigurations,mutatingwebhookconfigurations"
	left := strings.Fields(must(t, c, "kubectl get "+kinds+" -A -l app.kubernetes.io/part-of=tailplane -o name"))
	slices.Sort(left)
	want := []string{"configmap/tailplane-gossip-pins", "configmap/tailplane-members", "namespace/tailplane-signins", "resourcequota/tailplane-signins", "secret/tailplane-access-0", "secret/tailplane-access-1",
		"secret/tailplane-audit-key", "secret/tailplane-cluster-key", "secret/tailplane-operator-audit-key"}
	if !slices.Equal(left, want) {
		t.Errorf("left after uninstalling: %v, want %v", left, want)
	}
	must(t, c, "kubectl get crd tkasignins.tailplane.dev")
	must(t, c, "kubectl -n tailplane-system get lease tailplane-operator")
	for _, words := range left {
		_, name, _ := strings.Cut(words, "/")
		if text, _ := page(t, "upgrade.md"); !strings.Contains(text, strings.TrimSuffix(name, "-1")) {
			t.Errorf("upgrade.md does not mention that %s remains", words)
		}
	}

	// A new installation is the same node and the same cluster.
	helm(t, c, "upgrade", "--install", "tailplane-crds", crds)
	helm(t, c, "upgrade", "--install", "tailplane", chart, "--values", values)
	settled()
	if again := must(t, c, "kubectl -n tailplane-system get secret tailplane-access-0 tailplane-cluster-key tailplane-audit-key tailplane-operator-audit-key -o jsonpath={.items[*].data}"); again != secrets {
		t.Errorf("the Secrets were %s and are %s", secrets, again)
	}
}

// published returns the public key of an audit log, as a person who verifies it can read it.
func published(t *testing.T, c *kubetest.Cluster, secret string) string {
	t.Helper()
	key := must(t, c, "kubectl -n tailplane-system get secret "+secret+` -o jsonpath={.metadata.annotations.tailplane\.dev/public-key}`)
	if !strings.HasPrefix(key, "ed25519:") {
		t.Fatalf("the Secret %s has the key annotation %q", secret, key)
	}
	return key
}

// checkRecord restarts the access server with an empty scratch volume, as a new pod would. The audit log continues
// with the same key, and verification with the previously published key succeeds.
func checkRecord(t *testing.T, r *testenv.Env, alice *testenv.Person) {
	key, operators := published(t, r.Cluster, "tailplane-audit-key"), published(t, r.Cluster, "tailplane-operator-audit-key")
	if key == operators {
		t.Error("the access server and the operator sign with one key")
	}
	if says := r.Operator.Output(); !strings.Contains(says, operators) {
		t.Errorf("the operator does not sign with %s: %.2000s", operators, says)
	}
	// In a pod the node's keys are in their Secret; here the test keeps their files.
	kept := filepath.Join(r.Dir, "access", "state")
	if found, err := filepath.Glob(filepath.Join(kept, "audit*")); err != nil || len(found) > 0 {
		t.Errorf("the key is on the scratch volume: %v, %v", found, err)
	}
	if err := r.Access.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The second matching line belongs to the new run, because one log contains both runs.
	before := strings.Count(r.Access.Output(), `"access is serving"`)
	if err := r.StartAccess(ctx); err != nil {
		t.Fatal(err)
	}
	for strings.Count(r.Access.Output(), `"access is serving"`) <= before {
		select {
		case <-ctx.Done():
			t.Fatalf("it does not serve again: %.2000s", r.Access.Output())
		case <-r.Access.Done():
			t.Fatalf("it ended: %.2000s", r.Access.Output())
		case <-time.After(20 * time.Millisecond):
		}
	}
	run(t, alice, 0, "tka login")
	if now := published(t, r.Cluster, "tailplane-audit-key"); now != key {
		t.Errorf("the key was %s and is %s", key, now)
	}
	if err := r.Access.Stop(30 * time.Second); err != nil { // so that all entries are signed
		t.Fatal(err)
	}
	says := run(t, alice, 0, "tka audit verify --key "+key+" "+r.AuditFile())
	for _, want := range []string{"The audit log is intact.", "in 2 runs", "Signed by " + key + "."} {
		if !strings.Contains(says, want) {
			t.Errorf("the output of the check lacks %q:\n%s", want, says)
		}
	}
	run(t, alice, 3, "tka audit verify --key "+operators+" "+r.AuditFile())
	before = strings.Count(r.Access.Output(), `"access is serving"`)
	if err := r.StartAccess(ctx); err != nil {
		t.Fatal(err)
	}
	for strings.Count(r.Access.Output(), `"access is serving"`) <= before && ctx.Err() == nil {
		<-time.After(20 * time.Millisecond)
	}
}

// checkHealth compares operate.md with the answers of the processes.
func checkHealth(t *testing.T, r *testenv.Env) {
	text, _ := page(t, "operate.md")
	address := regexp.MustCompile(`"health is served","address":"([^"]+)"`)
	get := func(p *testenv.Process, path string) string {
		t.Helper()
		m := address.FindStringSubmatch(p.Output())
		if m == nil {
			t.Fatalf("no health listener: %.2000s", p.Output())
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m[1]+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v\n%s", path, res.Status, err, b)
		}
		return string(b)
	}
	metrics, checks := map[string]bool{}, map[string]bool{}
	for _, p := range []*testenv.Process{r.Access, r.Operator} {
		get(p, "/livez")
		for _, m := range regexp.MustCompile(`(?m)^\[\+\](\S+) ok$`).FindAllStringSubmatch(get(p, "/readyz?verbose"), -1) {
			checks[m[1]] = true
		}
		text := get(p, "/metrics")
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1) {
			metrics[m[1]] = true
		}
		t.Logf("tailplaned %s: %s", p.Args[1], regexp.MustCompile(`(?m)^process_resident_memory_bytes .*`).FindString(text))
	}
	// This metric is absent without a value: the node of a test has no expiry.
	metrics["tailplane_node_key_expiry_seconds"] = true
	for _, name := range monitored(t) {
		if !metrics[name] {
			t.Errorf("alerts or dashboard use %s, but there is no such metric", name)
		}
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(?:tailplane|controller_runtime|workqueue)_\w+`).FindAllString(text, -1) {
		named[name] = true
		if !metrics[name] {
			t.Errorf("operate.md names %s, but there is no such metric", name)
		}
	}
	for name := range metrics {
		if strings.HasPrefix(name, "tailplane_") && !named[name] {
			t.Errorf("operate.md does not name %s", name)
		}
	}
	_, table, _ := strings.Cut(text, "| check | fails when |")
	table, _, _ = strings.Cut(table, "\n\n")
	for name := range checks {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("operate.md does not name the check %s", name)
		}
	}
	if len(checks) < 4 || len(named) < 15 {
		t.Errorf("checks %v, metrics %v", slices.Sorted(maps.Keys(checks)), slices.Sorted(maps.Keys(named)))
	}
}

// One process with one account does the same.
func TestInstallAll(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{Name: "home"})
	definitions, err := runHelm(t, "template", crds)
	if err != nil {
		t.Fatal(err)
	}
	_, blocks := page(t, "install.md")
	r := startRig(t, testenv.Options{
		Policy: blocks["policy"], Cluster: c, ClusterName: "home", All: true, File: ofPod(c, "tailplane", "tailplane-0.yaml"),
		Manifests: [][]byte{[]byte(definitions), []byte(render(t, profileValues(t, "all"), "--no-hooks", "--set", "systemNamespace.create=true"))},
	})
	alice := person(t, r, "alice-laptop", "alice@example.com")
	run(t, alice, 0, "tka login --use")
	run(t, alice, 0, "kubectl get pods")
	run(t, alice, 0, "tka logout")
	if left := must(t, c, "kubectl get clusterrolebindings,tkasignins -A -l app.kubernetes.io/managed-by=tailplane -o name"); left != "" {
		t.Errorf("left after logout: %s", left)
	}
}
