//go:build unix

// Package install tests the chart, the manifests and the image. It renders them with the real helm and kubectl and
// applies them to a real API server. It enforces least privilege: golden files here list every granted right.
package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/testkit/buildcache"
)

var update = flag.Bool("update", false, "rewrite the golden files and deploy/ from the chart")

const (
	root    = "../.."
	chart   = root + "/charts/tailplane"
	crds    = root + "/charts/tailplane-crds"
	systems = "tailplane-system"
	signins = "tailplane-signins"
)

// runHelm runs the real helm, without the user's settings and caches.
func runHelm(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	bin, err := buildcache.Lookup("helm")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KUBE") && !strings.HasPrefix(e, "HELM") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s", args[0], err, &errs)
	}
	return out.String(), nil
}

// try renders the chart with a values file.
func try(t *testing.T, values string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return runHelm(t, append([]string{"template", "tailplane", chart, "--namespace", systems, "--values", file}, args...)...)
}

func render(t *testing.T, values string, args ...string) string {
	t.Helper()
	out, err := try(t, values, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A profile is a supported way to install the chart.
type profile struct {
	name, path, values string
	show               []string // templates in the golden file; empty means all
	archive            *txtar.Archive
}

func profiles(t *testing.T) (ps []profile) {
	t.Helper()
	files, err := filepath.Glob("testdata/profiles/*.txtar")
	if err != nil || len(files) < 4 {
		t.Fatalf("profiles %v, %v", files, err)
	}
	for _, path := range files {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p := profile{name: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path, archive: a}
		if _, show, ok := strings.Cut(string(a.Comment), "show: "); ok {
			p.show = strings.Fields(show)
		}
		p.values = string(a.Files[0].Data)
		ps = append(ps, p)
	}
	return ps
}

func profileValues(t *testing.T, name string) string {
	t.Helper()
	for _, p := range profiles(t) {
		if p.name == name {
			return p.values
		}
	}
	t.Fatalf("no profile %s", name)
	return ""
}

var blankLines = regexp.MustCompile(`\n{2,}(---\n|$)`)

// sources splits helm's output by template, without helm's comments.
func sources(out string) map[string]string {
	by := map[string]string{}
	for doc := range strings.SplitSeq("\n"+out, "\n---\n") {
		mark, text, ok := strings.Cut(strings.TrimLeft(doc, "\n"), "\n")
		name, found := strings.CutPrefix(mark, "# Source: tailplane/templates/")
		if !ok || !found {
			continue
		}
		text = strings.TrimRight(text, "\n") + "\n"
		if by[name] != "" {
			text = by[name] + "---\n" + text
		}
		by[name] = blankLines.ReplaceAllString(text, "\n$1")
	}
	return by
}

// Each profile renders to its golden file and passes helm lint.
func TestProfiles(t *testing.T) {
	for _, p := range profiles(t) {
		t.Run(p.name, func(t *testing.T) {
			by := sources(render(t, p.values))
			show := p.show
			if show == nil {
				for name := range maps.Keys(by) {
					show = append(show, strings.TrimSuffix(name, ".yaml"))
				}
				slices.Sort(show)
			}
			var got strings.Builder
			for _, name := range show {
				text, ok := by[name+".yaml"]
				if !ok {
					t.Fatalf("the template %s renders nothing", name)
				}
				fmt.Fprintf(&got, "--- # %s.yaml\n%s", name, text)
			}
			if want := &p.archive.Files[len(p.archive.Files)-1]; *update {
				want.Data = []byte(got.String())
				if err := os.WriteFile(p.path, txtar.Format(p.archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(want.Data) {
				t.Errorf("%s differs; if that is meant, run: go test ./test/install -update\n%s", p.path, difference(string(want.Data), got.String()))
			}
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(p.values), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := runHelm(t, "lint", "--strict", chart, "--namespace", systems, "--values", file); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if out, err := runHelm(t, "lint", "--strict", crds); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// difference returns the first lines that differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("from line %d on, want\n%s\ngot\n%s", i+1,
				strings.Join(w[min(i, len(w)):min(i+8, len(w))], "\n"), strings.Join(g[min(i, len(g)):min(i+8, len(g))], "\n"))
		}
	}
	return ""
}

// An unknown or invalid value causes an error that names it, before anything is rendered.
func TestValuesRefused(t *testing.T) {
	split := profileValues(t, "split")
	for _, tt := range []struct{ why, set, want string }{
		{"misspelt at the top", "singin.roles={view}", "singin"},
		{"misspelt below", "signin.role=view", "'role' not allowed"},
		{"misspelt in a role", "access.replica=2", "'replica' not allowed"},
		{"a setting that belongs to the chart", "tailnet.stateDir=/tmp", "'stateDir' not allowed"},
		{"every role", "signin.roles={*}", "/signin/roles/0"},
		{"a role that closes the policy's string", `signin.roles={a'b}`, "/signin/roles/0"},
		{"a path as a role", "signin.roles={../view}", "/signin/roles/0"},
		{"a list where one belongs", "signin.namespace={a}", "/signin/namespace"},
		{"a namespace that closes the string", `signin.namespace=a'b`, "/signin/namespace"},
		{"no replica", "access.replicas=0", "/access/replicas"},
		{"not a number", "access.replicas=two", "/access/replicas"},
		{"a duration without a unit", "signin.period.max=24", "/signin/period/max"},
		{"days", "signin.period.max=24d", "/signin/period/max"},
		{"http to the API server", "cluster.server=http://k8s.example", "/cluster/server"},
		{"a password in an address", "cluster.server=https://a:b@k8s.example", "/cluster/server"},
		{"not a tag", "tailnet.tags={k8s}", "/tailnet/tags/0"},
		{"a short digest", "image.digest=sha256:abc", "/image/digest"},
		{"a flag as a log level", "logLevel=--check", "/logLevel"},
		{"a port", "tailnet.port=70000", "/tailnet/port"},
		{"a typing error as truth", "networkPolicy.enabled=yess", "/networkPolicy/enabled"},
		{"no role", "signin.roles=null", "signin.roles is missing"},
		{"no image", "image.repository=", "image.repository is missing"},
		{"no cluster", "cluster.name=,cluster.server=", "cluster.server is missing"},
		{"no authority", "cluster.caFromPod=false", "cluster.caData is missing"},
		{"two authorities", "cluster.caData=x", "both set"},
		{"all and its parts", "all.enabled=true", "set access.enabled and operator.enabled to false"},
		{"a mode that does not exist", "access.modes={direct}", "/access/modes/0"},
		{"a proxy that does not run", "access.modes={proxy}", "set proxy.enabled"},
		{"a proxy without TLS", "access.modes={proxy},access.proxies[0].url=http://east-api", "/access/proxies/0/url"},
		{"sign-ins in the namespace of the operator", "signin.namespace=" + systems, "set another namespace"},
		{"an issuer without keys", "signin.oidc.issuers[0].url=https://a.example", "/signin/oidc/issuers/0"},
		{"an issuer with its keys twice", "signin.oidc.issuers[0].url=https://a.example,signin.oidc.issuers[0].keysURL=https://a.example/keys,signin.oidc.issuers[0].keysConfigMap.name=keys", "/signin/oidc/issuers/0"},
		{"keys in a ConfigMap that the plane may write", "signin.oidc.issuers[0].url=https://a.example,signin.oidc.issuers[0].keysConfigMap.name=change-1", "/signin/oidc/issuers/0/keysConfigMap/name"},
		{"keys in a ConfigMap that servers write", "signin.oidc.issuers[0].url=https://a.example,signin.oidc.issuers[0].keysConfigMap.name=tailplane-members", "/signin/oidc/issuers/0/keysConfigMap/name"},
		{"a path as a key", "signin.oidc.issuers[0].url=https://a.example,signin.oidc.issuers[0].keysConfigMap.name=keys,signin.oidc.issuers[0].keysConfigMap.key=../x", "/signin/oidc/issuers/0/keysConfigMap/key"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			out, err := try(t, split, "--set", tt.set)
			if err == nil {
				t.Fatalf("--set %s is taken; it renders %d bytes", tt.set, len(out))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("--set %s: %v\nwant %s", tt.set, err, tt.want)
			}
		})
	}
	// One error names all missing values.
	if _, err := try(t, "{}"); err == nil || strings.Count(err.Error(), "is missing") != 5 {
		t.Errorf("without values: %v", err)
	}
	if _, err := runHelm(t, "template", crds, "--set", "x=y"); err == nil {
		t.Error("the chart of the custom resources accepts a value")
	}
}

// A schema is the part of values.schema.json that the tests use.
type schema struct {
	Description          string
	Deprecated           bool // accepted for one release, without a default
	Type                 any
	Enum                 []string
	Properties           map[string]schema
	AdditionalProperties json.RawMessage
	Items                *schema
}

func readSchema(t *testing.T) schema {
	t.Helper()
	b, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Values without a default in values.yaml, with the reason.
var withoutDefault = map[string]string{
	"signin.clusterWide": "an upgrade must not end live sign-ins, so an absent list allows all roles",
}

// Every value has a description, unknown values are refused, and the table in the chart's README matches the schema
// with its defaults.
func TestValuesDocumented(t *testing.T) {
	b, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.UnmarshalStrict(b, &defaults); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	fmt.Fprintln(&table, "| value | default | |\n|---|---|---|")
	var walk func(path string, s schema, value any, there bool)
	walk = func(path string, s schema, value any, there bool) {
		if len(s.Description) < 8 || !strings.HasSuffix(s.Description, ".") {
			t.Errorf("%s: no sentence describes it: %q", path, s.Description)
		}
		if path == "global" {
			return
		}
		if s.Deprecated {
			if there {
				t.Errorf("%s: deprecated, and values.yaml has a default", path)
			}
			return
		}
		if there == (withoutDefault[path] != "") {
			t.Errorf("%s: values.yaml has a default: %v; it should have none because: %q", path, there, withoutDefault[path])
		}
		if s.Properties == nil {
			if s.Type == "object" && !strings.HasPrefix(string(s.AdditionalProperties), "{") {
				t.Errorf("%s: every value is accepted", path)
			}
			v, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", path, v, s.Description)
			return
		}
		if string(s.AdditionalProperties) != "false" {
			t.Errorf("%s: unknown values are let through", path)
		}
		if path != "" {
			fmt.Fprintf(&table, "| **`%s`** | | %s |\n", path, s.Description)
		}
		values, _ := value.(map[string]any)
		for name := range values {
			if _, ok := s.Properties[name]; !ok {
				t.Errorf("%s.%s: not in the schema", path, name)
			}
		}
		for _, name := range order(t, b, path, s.Properties) {
			v, ok := values[name]
			walk(strings.TrimPrefix(path+"."+name, "."), s.Properties[name], v, ok)
		}
	}
	walk("", readSchema(t), defaults, true)

	const begin, end = "<!-- values -->\n", "<!-- end of values -->\n"
	file := chart + "/README.md"
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(readme), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no place for the table", file)
	}
	want := head + begin + table.String() + end + tail
	if *update {
		err = os.WriteFile(file, []byte(want), 0o644)
	} else if want != string(readme) {
		t.Errorf("%s differs from the schema; run: go test ./test/install -update", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// order returns property names in the order of values.yaml, which is the reading order.
func order(t *testing.T, values []byte, path string, properties map[string]schema) []string {
	t.Helper()
	names := slices.Sorted(maps.Keys(properties))
	at := func(name string) int {
		indent := 0
		if path != "" {
			indent = strings.Count(path, ".") + 1
		}
		from := 0
		if top, _, _ := strings.Cut(path, "."); top != "" {
			from = bytes.Index(values, []byte("\n"+top+":"))
		}
		i := bytes.Index(values[max(from, 0):], []byte("\n"+strings.Repeat("  ", indent)+name+":"))
		if i < 0 {
			return len(values)
		}
		return i
	}
	slices.SortStableFunc(names, func(a, b string) int { return at(a) - at(b) })
	return names
}

// objects returns the objects that helm rendered, as the API server would decode them.
func objects(t *testing.T, out string) (all []*unstructured.Unstructured) {
	t.Helper()
	d := yamlstream.NewYAMLOrJSONDecoder(strings.NewReader(out), 4096)
	for {
		u := new(unstructured.Unstructured)
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
}

// as converts an object to its Go type.
func as[T any](t *testing.T, u *unstructured.Unstructured) T {
	t.Helper()
	var o T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &o, true); err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return o
}

// ofAccess are the roles of the access server that have another name than its account.
var ofAccess = map[string]string{"tailplane-cluster-profiles": "tailplane-access", "tailplane-proxy-certificates": "tailplane-access"}

// SI-12: the rules of every profile, as written. No rule has a star, Secrets are accessible only by name, bind is
// limited to listed roles, and no rule allows privilege escalation.
func TestSI12_RulesAsWritten(t *testing.T) {
	for _, p := range profiles(t) {
		rules, bindings := 0, 0
		check := func(u *unstructured.Unstructured, cluster bool, rs []rbacv1.PolicyRule) {
			kind, name := u.GetKind(), u.GetName()
			for _, r := range rs {
				rules++
				words := slices.Concat(r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs)
				where := fmt.Sprintf("%s: %s %s: %v of %v", p.name, kind, name, words, r.ResourceNames)
				if strings.Contains(strings.Join(words, " "), "*") {
					t.Errorf("a star: %s", where)
				}
				for _, verb := range []string{"escalate", "impersonate", "deletecollection", "approve", "sign"} {
					if verb == "deletecollection" && name == "tailplane-edit" {
						continue // a role for people, which the chart binds to nobody
					}
					if slices.ContainsFunc(r.Verbs, func(v string) bool { return v == verb || strings.HasPrefix(v, verb+":") }) {
						t.Errorf("%s: %s", verb, where)
					}
				}
				if slices.Contains(r.Verbs, "bind") && len(r.ResourceNames) == 0 {
					t.Errorf("binds what it likes: %s", where)
				}
				if slices.Contains(r.Resources, "secrets") && (cluster || len(r.ResourceNames) == 0) && (cluster || !secretsOfGateway(u, r) && !secretsOfFleet(u, r)) && !boundByFleet(u) {
					t.Errorf("Secrets of others: %s", where)
				}
				if cluster && name != "tailplane-edit" && slices.ContainsFunc(r.Resources, func(s string) bool {
					return strings.HasPrefix(s, "serviceaccounts") || strings.HasPrefix(s, "pods") || s == "nodes" || s == "configmaps"
				}) {
					if name == "tailplane-plane" && slices.Equal(r.Resources, []string{"pods"}) && slices.Equal(r.Verbs, []string{"get", "list", "watch"}) {
						continue // shows which pods have an adapter
					}
					if boundByFleet(u) {
						continue // bound only in namespaces of runners
					}
					t.Errorf("in every namespace: %s", where)
				}
			}
		}
		for _, u := range objects(t, render(t, p.values)) {
			switch u.GetKind() {
			case "Role":
				check(u, false, as[rbacv1.Role](t, u).Rules)
			case "ClusterRole":
				check(u, true, as[rbacv1.ClusterRole](t, u).Rules)
			case "RoleBinding", "ClusterRoleBinding":
				bindings++
				b := as[rbacv1.ClusterRoleBinding](t, u)
				if gatewayBinding(b) || fleetBinding(b) {
					continue
				}
				if !strings.HasPrefix(b.RoleRef.Name, "tailplane-") {
					t.Errorf("%s: %s %s gives %s", p.name, u.GetKind(), b.Name, b.RoleRef.Name)
				}
				for _, s := range b.Subjects {
					switch {
					case s.Kind != "ServiceAccount":
						t.Errorf("%s: s.Kind = %q, want %q; %s; %s", p.name, s.Kind, "ServiceAccount", u.GetKind(), b.Name)
					case s.Namespace != systems:
						t.Errorf("%s: s.Namespace = %q, want %q; %s; %s", p.name, s.Namespace, systems, u.GetKind(), b.Name)
					case s.Name != "tailplane" && s.Name != strings.TrimSuffix(b.RoleRef.Name, "-requests") && ofAccess[b.RoleRef.Name] != s.Name:
						t.Errorf("%s: %s %s gives the role %s to %s", p.name, u.GetKind(), b.Name, b.RoleRef.Name, s.Name)
					}
				}
			case "Secret":
				if data, ok := u.Object["data"]; ok {
					t.Errorf("%s: Secret %s has data %v: an upgrade would reset it", p.name, u.GetName(), data)
				}
			}
			for key, want := range map[string]string{"name": "tailplane", "part-of": "tailplane", "instance": "tailplane", "managed-by": "Helm"} {
				if got := u.GetLabels()["app.kubernetes.io/"+key]; got != want {
					t.Errorf("%s: %s %s has the label %s=%s", p.name, u.GetKind(), u.GetName(), key, got)
				}
			}
		}
		if rules < 8 || bindings < 4 {
			t.Errorf("%s: looked at %d rules and %d bindings only", p.name, rules, bindings)
		}
	}
}

// Settings that the chart does not set, with the reason.
var leftAlone = map[string]string{
	"audit.file": "the default, standard output, is where a cluster collects logs",

	"plane.enabled":                   "the chart sets it where the plane is part of the process of all",
	"plane.identity.listen":           elsewhere,
	"plane.identity.names":            elsewhere,
	"plane.identity.tls.certFile":     elsewhere,
	"plane.identity.tls.keyFile":      elsewhere,
	"plane.identity.tls.clientCAFile": elsewhere,
	"plane.identity.users":            elsewhere,
	"plane.identity.trustedProxies":   elsewhere,
	"plane.identity.secretFile":       elsewhere,
	"plane.identity.certificates":     elsewhere,
	"plane.identity.tailnet":          elsewhere,
	"plane.identity.login":            elsewhere,

	"plane.gitops.caFile":    "the image has the public authorities; another forge's is for who runs the plane himself",
	"plane.gitops.lookEvery": "the default interval is the shortest one that a forge allows",
	"tailnet.joinTimeout":    "a pod that did not join in a minute ends, and is begun again",
}

const elsewhere = "for a plane that is no node of its own, or part of another process: in a cluster it is a node, and nothing leads to it but the tailnet"

// The rendered settings files are what the programs read. Every value has a setting, every setting has a value, and
// the chart's defaults equal the programs' defaults.
func TestSettingsInStep(t *testing.T) {
	file := func(values, configMap, key string) string {
		for _, u := range objects(t, render(t, values)) {
			if u.GetKind() == "ConfigMap" && u.GetName() == configMap {
				text, _, _ := unstructured.NestedString(u.Object, "data", key)
				return text
			}
		}
		t.Fatalf("no ConfigMap %s", configMap)
		return ""
	}
	load := func(text string, role settings.Role) settings.File {
		f, err := settings.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if f.Cluster.CAFile != "" {
			f.Cluster.CAFile = "testdata/ca.crt" // the test runs outside a pod
		}
		if err := f.Validate(role); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
		return f
	}
	split := profileValues(t, "split")
	got := load(file(split, "tailplane-access", "tailplane-access-0.yaml"), settings.AccessRole)
	load(file(split, "tailplane-operator", "config.yaml"), settings.OperatorRole)
	load(file(profileValues(t, "all"), "tailplane", "tailplane-0.yaml"), settings.AllRoles)

	want := settings.Default()
	want.Cluster.Name, want.Cluster.Server, want.Cluster.CAFile = "prod-eu", "https://k8s.prod-eu.example:6443", "testdata/ca.crt"
	want.Signin.Roles = []string{"view", "edit"}
	want.Tailnet.Tags = []string{"tag:tailplane"} // a server belongs to no person
	want.Tailnet.StateSecret, want.Tailnet.AuthKeyFile = "tailplane-access-0", "/run/secrets/tailplane/authkey"
	want.Audit.KeySecret = "tailplane-audit-key"
	a, errA := got.YAML()
	b, errB := want.YAML()
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Errorf("the chart's defaults are not the programs': %s", difference(string(b), string(a)))
	}

	// Each replica is a separate tailnet node.
	ha := profileValues(t, "ha")
	seen := map[string]bool{}
	for i := range 3 {
		f, err := settings.Parse([]byte(file(ha, "tailplane-access", fmt.Sprintf("tailplane-access-%d.yaml", i))))
		if err != nil {
			t.Fatal(err)
		}
		if f.Tailnet.StateSecret != fmt.Sprintf("tailplane-access-%d", i) || seen[f.Tailnet.Hostname] {
			t.Errorf("replica %d is %s with the state %s", i, f.Tailnet.Hostname, f.Tailnet.StateSecret)
		}
		seen[f.Tailnet.Hostname] = true
	}

	// The file that the chart renders with all values contains every setting.
	var full map[string]any
	if err := yaml.Unmarshal([]byte(file(ha, "tailplane-access", "tailplane-access-1.yaml")), &full); err != nil {
		t.Fatal(err)
	}
	full["cluster"].(map[string]any)["caFile"] = "" // instead of caData
	full["tailnet"].(map[string]any)["authKeyFile"] = ""
	var plane map[string]any // the access server's file contains no setting of the plane
	if err := yaml.Unmarshal([]byte(file(strings.Replace(profileValues(t, "plane"), "plane:\n  enabled: true\n", "plane:\n  enabled: true\n  accessProxies: ['https://east-api.example.ts.net']\n  recorder: https://recorder.example.ts.net\n  gitops: {repository: acme/fleet, credentialSecret: fleet-repository}\n", 1), "tailplane-plane", "plane.yaml")), &plane); err != nil {
		t.Fatal(err)
	}
	full["plane"] = plane["plane"]
	var fleet map[string]any
	if err := yaml.Unmarshal([]byte(file(profileValues(t, "fleet"), "tailplane-fleet", "fleet.yaml")), &fleet); err != nil {
		t.Fatal(err)
	}
	full["fleet"] = fleet["fleet"]
	var recorder map[string]any
	recorderFile := file(profileValues(t, "split")+"\nrecorder: {enabled: true, planes: ['tag:plane']}\n", "tailplane-recorder", "recorder.yaml")
	if err := yaml.Unmarshal([]byte(recorderFile), &recorder); err != nil {
		t.Fatal(err)
	}
	full["recorder"] = recorder["recorder"]
	load(recorderFile, settings.RecorderRole)
	const rules = "\npolicy: {allowTokenMode: true, rules: [{name: careful, when: 'true', warn: Careful.}]}\n"
	var recordings map[string]any
	for _, recording := range []string{"volume: {enabled: true}", "recorder: 'recorder:80', tag: 'tag:recorder'"} {
		var proxied map[string]any
		text := file(profileValues(t, "all")+"\nproxy: {enabled: true, hostname: gate, planes: ['tag:dashboard'], service: 'svc:east-api', recording: {"+recording+"}}\naccess: {enabled: false, proxyTags: ['tag:east-proxy']}"+rules, "tailplane", "tailplane-0.yaml")
		if err := yaml.Unmarshal([]byte(text), &proxied); err != nil {
			t.Fatal(err)
		}
		load(text, settings.AllRoles)
		full["proxy"], full["access"], full["policy"] = proxied["proxy"], proxied["access"], proxied["policy"]
		now := proxied["proxy"].(map[string]any)["recording"].(map[string]any)
		maps.Copy(now, recordings)
		recordings = now
	}
	for _, path := range settingPaths(reflect.TypeFor[settings.File](), "") {
		_, there, err := unstructured.NestedFieldNoCopy(full, strings.Split(path, ".")...)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if why := leftAlone[path]; there == (why != "") {
			t.Errorf("setting %s: in the chart: %v; left alone because: %q", path, there, why)
		}
	}
}

// settingPaths returns the keys of a settings file, down to those with a value.
func settingPaths(t reflect.Type, path string) (paths []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		name = strings.TrimPrefix(path+"."+name, ".")
		if f.Type.Kind() == reflect.Struct {
			paths = append(paths, settingPaths(f.Type, name)...)
			continue
		}
		paths = append(paths, name)
	}
	return paths
}

// REQ-32, REQ-39: without access requests the chart renders nothing of them. With them, only the access server may write
// them, nothing may delete them but the operator, and no role for people includes them.
func TestREQ32_RightsOnRequests(t *testing.T) {
	for _, p := range profiles(t) {
		if out := render(t, p.values); p.name != "requests" && (strings.Contains(out, "tkarequests") || strings.Contains(out, "tailplane-requests")) {
			t.Errorf("the profile %s has something of access requests", p.name)
		}
	}
	got := map[string]string{}
	for _, u := range objects(t, render(t, profileValues(t, "requests"))) {
		if u.GetKind() != "Role" && u.GetKind() != "ClusterRole" {
			continue
		}
		rules, _, _ := unstructured.NestedSlice(u.Object, "rules")
		for _, r := range rules {
			resources, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "resources")
			verbs, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "verbs")
			if slices.ContainsFunc(resources, func(s string) bool { return strings.HasPrefix(s, "tkarequests") || s == "*" }) {
				got[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()+" "+strings.Join(resources, " ")] = strings.Join(verbs, " ")
			}
		}
	}
	want := map[string]string{
		"Role tailplane-signins/tailplane-access-requests tkarequests":        "create get list watch",
		"Role tailplane-signins/tailplane-access-requests tkarequests/status": "patch",
		"Role tailplane-signins/tailplane-operator-requests tkarequests":      "get list watch delete",
		"Role tailplane-signins/tailplane-plane-requests tkarequests":         "get list watch",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}
