//go:build unix

package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// good has valid objects. Each refused object is one of them with one change.
var good = map[string]string{
	"forge":      `{"kind": "RunnerForge", "spec": {"type": "github", "url": "https://github.com"}}`,
	"api forge":  `{"kind": "RunnerForge", "spec": {"type": "gitlab", "url": "http://127.0.0.1:8080", "apiURL": "https://gitlab.example.com/api/v4"}}`,
	"pool":       `{"kind": "RunnerPool", "spec": {"forge": "github", "runsOn": ["self-hosted", "nix", "{org}"], "scaling": {"max": 5, "budget": 20}}}`,
	"whole pool": `{"kind": "RunnerPool", "spec": {"forge": "github", "runsOn": ["nix"], "scaling": {"min": 1, "max": 5, "budget": 20, "guarantee": 1}, "template": {"spec": {"containers": [{"name": "runner", "image": "a", "env": [{"name": "A", "value": "b"}]}]}}}}`,
	"gitlab":     `{"kind": "RunnerPool", "spec": {"forge": "gitlab", "runsOn": ["nix"], "scaling": {"max": 5, "budget": 20}, "gitlab": {}}}`,
	"adopted":    `{"kind": "RunnerPool", "spec": {"forge": "github", "runsOn": ["nix"], "scaling": {"max": 5, "budget": 20}, "adopt": {"namespace": "arc", "name": "old"}}}`,
	"enrollment": `{"kind": "RunnerEnrollment", "spec": {"forge": "github", "configURL": "https://github.com/acme", "pools": [{"name": "gh-nix"}], "credentials": {"secretName": "acme-app"}}}`,
	"node": `{"kind": "RunnerEnrollment", "spec": {"forge": "github", "configURL": "https://github.com/acme", "isolation": "Node", "placement": {"nodeSelector": {"a": "b"}},
		"pools": [{"name": "gh", "type": "OrgPlusUser", "repositories": ["acme/app"], "runnerGroup": "tailplane acme", "allowPublic": true}, {"name": "gpu", "type": "Dedicated", "max": 3}],
		"network": {"egress": [{"cidr": "0.0.0.0/0", "ports": [443]}, {"cidr": "2001:db8::/32", "ports": [443]}], "caches": [{"namespace": "cache", "podSelector": {"app": "attic"}, "port": 8080}]},
		"owners": ["amy@acme.dev"], "members": ["*@acme.dev", "bob@acme.dev"], "approval": {"by": "pat@platform.dev", "at": "2026-01-01T00:00:00Z", "digest": "sha256:0123456789012345678901234567890123456789012345678901234567890123"},
		"credentials": {"secretName": "acme-app", "rotateEvery": "2160h"}, "quota": {"cpu": 4, "pods": 3}}}`,
	"hold":      `{"kind": "RunnerHold", "spec": {"scope": {"all": true}, "mode": "Pause", "reason": "node upgrade", "requestedBy": "alice@example.com"}}`,
	"long hold": `{"kind": "RunnerHold", "spec": {"scope": {"org": "acme", "pool": "gh-nix"}, "mode": "Stop", "reason": "r", "requestedBy": "alice@example.com", "expiresAt": "2030-01-01T00:00:00Z", "grace": "0s"}}`,
}

const long = "a2345678901234567890123456789012345678901"

// refused lists changes of valid objects that the API server refuses, and a part of its message. FLEET-01, FLEET-11:
// the rules in the schema.
var refused = []struct{ of, change, why string }{
	{"forge", `{"metadata": {"name": "` + long + `"}}`, "the name must be a DNS label of at most 40 characters"},
	{"forge", `{"spec": {"type": "gitea"}}`, "Unsupported value"},
	{"forge", `{"spec": {"url": "http://github.com"}}`, "url must be an https URL"},
	{"forge", `{"spec": {"url": "https://me@github.com"}}`, "url must be an https URL"},
	{"forge", `{"spec": {"url": "https://"}}`, "url must be an https URL"},
	{"forge", `{"spec": {"apiURL": "ftp://github.com"}}`, "apiURL must be an https URL"},
	{"forge", `{"spec": {"caBundle": "nonsense"}}`, "spec.caBundle"},

	{"pool", `{"metadata": {"name": "a.b"}}`, "the name must be a DNS label of at most 40 characters"},
	{"pool", `{"spec": {"runsOn": []}}`, "spec.runsOn"},
	{"pool", `{"spec": {"runsOn": ["a,b"]}}`, "spec.runsOn[0]"},
	{"pool", `{"spec": {"runsOn": ["{pool}"]}}`, "spec.runsOn[0]"},
	{"pool", `{"spec": {"scaling": {"min": 6}}}`, "min must be at most max"},
	{"pool", `{"spec": {"scaling": {"max": 21}}}`, "max must be at most budget"},
	{"pool", `{"spec": {"scaling": {"guarantee": 6}}}`, "guarantee must be at most max"},
	{"pool", `{"spec": {"scaling": {"min": -1}}}`, "spec.scaling.min"},
	{"pool", `{"spec": {"scaling": {"max": null}}}`, "spec.scaling.max"},
	{"pool", `{"spec": {"scaling": {"budget": null}}}`, "spec.scaling.budget"},
	{"pool", `{"spec": {"containerMode": "vm"}}`, "Unsupported value"},
	{"whole pool", `{"spec": {"image": "a"}}`, "set template, or image and resources, not both"},
	{"whole pool", `{"spec": {"resources": {"requests": {"cpu": 1}}}}`, "set template, or image and resources, not both"},
	{"gitlab", `{"spec": {"gitlab": {"concurrent": 0}}}`, "spec.gitlab.concurrent"},
	{"gitlab", `{"spec": {"gitlab": {"shutdownTimeout": "25h"}}}`, "shutdownTimeout must be 1s to 24h"},
	{"gitlab", `{"spec": {"gitlab": {"maximumTimeout": "9m"}}}`, "maximumTimeout must be 10m to 720h"},

	{"enrollment", `{"metadata": {"name": "` + long + `"}}`, "the name must be a DNS label of at most 40 characters"},
	{"enrollment", `{"spec": {"configURL": "https://github.com"}}`, "configURL must be an https URL"},
	{"enrollment", `{"spec": {"configURL": "https://github.com/"}}`, "configURL must be an https URL"},
	{"enrollment", `{"spec": {"configURL": "https://github.com/a?b"}}`, "configURL must be an https URL"},
	{"enrollment", `{"spec": {"configURL": "https://github.com@evil.example/acme"}}`, "configURL must be an https URL"},
	{"enrollment", `{"spec": {"configURL": "https://github.com/a%2fb"}}`, "configURL must be an https URL"},
	{"enrollment", `{"spec": {"groupID": -1}}`, "spec.groupID"},
	{"enrollment", `{"spec": {"isolation": "VM"}}`, "Unsupported value"},
	{"enrollment", `{"spec": {"isolation": "Node"}}`, "isolation Node needs placement.nodeSelector"},
	{"enrollment", `{"spec": {"isolation": "Node", "placement": {"nodeSelector": {}}}}`, "isolation Node needs placement.nodeSelector"},
	{"enrollment", `{"spec": {"pools": []}}`, "spec.pools"},
	{"enrollment", `{"spec": {"pools": [{"name": "a"}, {"name": "a"}]}}`, "duplicate"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "type": "OrgPlusUser"}]}}`, "repositories must be set if and only if type is OrgPlusUser"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "type": "Shared", "repositories": ["acme/app"]}]}}`, "repositories must be set if and only if type is OrgPlusUser"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "type": "OrgPlusUser", "repositories": ["acme/../app"]}]}}`, "repositories[0]"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "runnerGroup": "g"}]}}`, "runnerGroup is for types Dedicated and OrgPlusUser"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "allowPublic": true}]}}`, "allowPublic is for type OrgPlusUser"},
	{"enrollment", `{"spec": {"pools": [{"name": "a", "max": 0}]}}`, "spec.pools[0].max"},
	{"enrollment", `{"spec": {"credentials": {"secretName": "../a"}}}`, "spec.credentials.secretName"},
	{"enrollment", `{"spec": {"credentials": {"rotateEvery": "23h"}}}`, "rotateEvery must be 24h to 8760h"},
	{"enrollment", `{"spec": {"offboardTimeout": "30s"}}`, "offboardTimeout must be 1m to 720h"},
	{"enrollment", `{"spec": {"network": {"egress": [{"cidr": "0.0.0.0", "ports": [443]}]}}}`, "cidr must be a range of addresses"},
	{"enrollment", `{"spec": {"network": {"egress": [{"cidr": "10.0.0.1/8", "ports": [443]}]}}}`, "cidr must be a range of addresses"},
	{"enrollment", `{"spec": {"network": {"egress": [{"cidr": "0.0.0.0/0", "ports": [0]}]}}}`, "ports[0]"},
	{"enrollment", `{"spec": {"network": {"caches": [{"namespace": "a", "podSelector": {}, "port": 80}]}}}`, "podSelector"},
	{"enrollment", `{"spec": {"owners": ["*@acme.dev"]}}`, "spec.owners[0]"},
	{"enrollment", `{"spec": {"members": ["*"]}}`, "spec.members[0]"},
	{"enrollment", `{"spec": {"members": ["a*@acme.dev"]}}`, "spec.members[0]"},
	{"node", `{"spec": {"approval": {"digest": "sha256:0"}}}`, "spec.approval.digest"},

	{"hold", `{"metadata": {"name": "` + long + `"}}`, "the name must be a DNS label of at most 40 characters"},
	{"hold", `{"spec": {"scope": {"all": null}}}`, "set exactly one of all, forge, and org with or without pool"},
	{"hold", `{"spec": {"scope": {"forge": "github"}}}`, "set exactly one of all, forge, and org with or without pool"},
	{"hold", `{"spec": {"scope": {"org": "acme"}}}`, "set exactly one of all, forge, and org with or without pool"},
	{"hold", `{"spec": {"scope": {"all": null, "forge": "github", "pool": "a"}}}`, "set exactly one of all, forge, and org with or without pool"},
	{"hold", `{"spec": {"scope": {"all": false}}}`, "all must be true or unset"},
	{"hold", `{"spec": {"mode": "Kill"}}`, "Unsupported value"},
	{"hold", `{"spec": {"reason": ""}}`, "spec.reason"},
	{"hold", `{"spec": {"requestedBy": "a b"}}`, "spec.requestedBy"},
	{"hold", `{"spec": {"grace": "25h"}}`, "grace must be 0s to 24h"},
}

// immutable lists changes of stored objects that the API server refuses.
var immutable = []struct{ of, change, why string }{
	{"forge", `{"spec": {"type": "gitlab"}}`, "type is immutable"},
	{"forge", `{"spec": {"url": "https://example.com"}}`, "url is immutable"},
	{"forge", `{"spec": {"apiURL": "https://example.com"}}`, "apiURL is immutable"},
	{"api forge", `{"spec": {"apiURL": "https://example.com"}}`, "apiURL is immutable"},
	{"pool", `{"spec": {"forge": "gitlab"}}`, "forge is immutable"},
	{"pool", `{"spec": {"adopt": {"namespace": "arc", "name": "old"}}}`, "adopt is immutable"},
	{"adopted", `{"spec": {"adopt": {"name": "other"}}}`, "adopt is immutable"},
	{"enrollment", `{"spec": {"forge": "gitlab"}}`, "forge is immutable"},
	{"enrollment", `{"spec": {"configURL": "https://github.com/other"}}`, "configURL is immutable"},
	{"enrollment", `{"spec": {"groupID": 7}}`, "groupID is immutable"},
	{"hold", `{"spec": {"scope": {"all": null, "org": "acme"}}}`, "scope is immutable"},
	{"hold", `{"spec": {"mode": "Stop"}}`, "mode is immutable"},
	{"hold", `{"spec": {"reason": "another"}}`, "reason is immutable"},
	{"hold", `{"spec": {"requestedBy": "bob@example.com"}}`, "requestedBy is immutable"},
	{"long hold", `{"spec": {"grace": "1m"}}`, "grace is immutable"},
}

// fleet returns the API server that the tests of this binary share, with the fleet's kinds.
func fleet(t *testing.T) *kubetest.Cluster {
	t.Helper()
	c := kubetest.Start(t)
	if err := c.ApplyFiles(t.Context(), "../../deploy/crds/tailplane.dev_runner*.yaml"); err != nil {
		t.Fatal(err)
	}
	return c
}

func kubectl(t *testing.T, c *kubetest.Cluster, args ...string) string {
	t.Helper()
	out, errs, code := kubetest.Kubectl(t.Context(), c.Kubeconfig, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit %d: %s", strings.Join(args, " "), code, errs)
	}
	return out
}

// object returns a valid object with changes, ready to be applied.
func object(t *testing.T, of, name string, changes ...string) []byte {
	t.Helper()
	o := map[string]any{}
	for _, text := range append([]string{good[of], `{"apiVersion": "tailplane.dev/v1alpha1", "metadata": {"name": "` + name + `"}}`}, changes...) {
		var change map[string]any
		if err := json.Unmarshal([]byte(text), &change); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		merge(o, change)
	}
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func merge(to, from map[string]any) {
	for k, v := range from {
		sub, deep := v.(map[string]any)
		old, was := to[k].(map[string]any)
		switch {
		case v == nil:
			delete(to, k)
		case deep && was:
			merge(old, sub)
		default:
			to[k] = v
		}
	}
}

// FLEET-01: a real API server refuses every violation of a schema rule with the rule's message, and accepts valid
// objects.
func TestFLEET01_SchemaRefuses(t *testing.T) {
	c := fleet(t)
	named := func(of string) string { return "good-" + strings.ReplaceAll(of, " ", "-") }
	for of := range good {
		if err := c.Apply(t.Context(), object(t, of, named(of))); err != nil {
			t.Errorf("%s, which is good: %v", of, err)
		}
	}
	for _, r := range refused {
		if err := c.Apply(t.Context(), object(t, r.of, "refused", r.change)); err == nil {
			t.Errorf("%s with %s is accepted", r.of, r.change)
		} else if !strings.Contains(err.Error(), r.why) {
			t.Errorf("%s with %s: %v; want it to say %q", r.of, r.change, err, r.why)
		}
	}
	for _, r := range immutable {
		if err := c.Apply(t.Context(), object(t, r.of, named(r.of), r.change)); err == nil || !strings.Contains(err.Error(), r.why) {
			t.Errorf("changing %s by %s: %v; want it to say %q", r.of, r.change, err, r.why)
		}
	}
	// Only the end of a hold may change.
	if err := c.Apply(t.Context(), object(t, "hold", named("hold"), `{"spec": {"expiresAt": "2031-01-01T00:00:00Z"}}`)); err != nil {
		t.Errorf("another end of a hold: %v", err)
	}
	// The API server stores a template unchanged, whatever its content.
	if got := kubectl(t, c, "get", "rpool", named("whole pool"), "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}"); got != "b" {
		t.Errorf("of a template %q is kept", got)
	}
	// The schema has defaults, also within objects that are not set.
	for what, want := range map[string]string{
		"rpool good-pool {.spec.scaling.min} {.spec.scaling.guarantee} {.spec.containerMode}":                                                       "0 0 default",
		"rpool good-gitlab {.spec.gitlab.concurrent} {.spec.gitlab.replicas} {.spec.gitlab.shutdownTimeout} {.spec.gitlab.locked}":                  "4 1 1h true",
		"renroll good-enrollment {.spec.isolation} {.spec.pools[0].type} {.spec.quota.cpu} {.spec.quota.memory} {.spec.quota.pods} {.spec.groupID}": "None Shared 16 32Gi 50 0",
		"rhold good-hold {.spec.grace}": "10m",
	} {
		words := strings.SplitN(what, " ", 3)
		if got := kubectl(t, c, "get", words[0], words[1], "-o", "jsonpath="+words[2]); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

// Every CEL rule of the CRDs has a row above. A rule without a test might never refuse.
func TestEveryRuleIsTried(t *testing.T) {
	var reasons []string
	for _, r := range slices.Concat(refused, immutable) {
		reasons = append(reasons, r.why)
	}
	files, err := filepath.Glob("../../deploy/crds/tailplane.dev_runner*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v; want four definitions", files, err)
	}
	rules := 0
	for _, file := range files {
		for message := range messages(t, file) {
			rules++
			if !slices.ContainsFunc(reasons, func(why string) bool { return strings.Contains(message, why) }) {
				t.Errorf("%s: no row tests the rule %q", filepath.Base(file), message)
			}
		}
	}
	if rules < 30 {
		t.Errorf("%d rules are found in %v", rules, files)
	}
}

// messages yields the messages of the validation rules of a CRD.
func messages(t *testing.T, file string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if rules, ok := v["x-kubernetes-validations"].([]any); ok {
				for _, r := range rules {
					found[r.(map[string]any)["message"].(string)] = true
				}
			}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(v[k])
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(tree)
	return found
}

// kubectl explain has a description of the kind and of every field.
func TestExplain(t *testing.T) {
	c := fleet(t)
	for kind, least := range map[string]int{"runnerforges": 10, "runnerpools": 30, "runnerenrollments": 60, "runnerholds": 20} {
		out := kubectl(t, c, "explain", kind, "--api-version=tailplane.dev/v1alpha1")
		if !strings.Contains(out, "DESCRIPTION:") || strings.Contains(out, "<empty>") {
			t.Errorf("%s has no description:\n%s", kind, out)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := json.Unmarshal([]byte(kubectl(t, c, "get", "crd", kind+".tailplane.dev", "-o", "json")), &crd); err != nil || len(crd.Spec.Versions) != 1 {
			t.Fatalf("%v, %d versions", err, len(crd.Spec.Versions))
		}
		fields := 0
		var walk func(path string, schema map[string]any)
		walk = func(path string, schema map[string]any) {
			if items, ok := schema["items"].(map[string]any); ok {
				walk(path+"[]", items)
			}
			properties, _ := schema["properties"].(map[string]any)
			for name, p := range properties {
				field := p.(map[string]any)
				fields++
				if text, _ := field["description"].(string); path+"."+name != ".metadata" && !strings.Contains(text, " ") {
					t.Errorf("%s%s.%s is described by %q", kind, path, name, text)
				}
				walk(path+"."+name, field)
			}
		}
		walk("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
		if fields < least {
			t.Errorf("%s has %d fields", kind, fields)
		}
	}
}

// kubectl shows the most important columns; kubectl wait works, and one category lists all kinds.
func TestColumns(t *testing.T) {
	c := fleet(t)
	ready := `"conditions": [{"type": "Ready", "status": "True", "reason": "AllWell", "message": "all is well", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		{"type": "Reachable", "status": "True", "reason": "Reachable", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		{"type": "Applied", "status": "False", "reason": "ForgeUnreachable", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`
	for _, o := range []struct{ of, status, kind, head, row string }{
		{"forge", `{"status": {"version": "1", `, "rforge", "NAME TYPE URL REACHABLE REASON AGE", "columns github https://github.com True AllWell"},
		{"pool", `{"status": {"orgs": 3, "allocated": 17, "budget": 20, `, "rpool", "NAME FORGE ORGS ALLOCATED BUDGET READY REASON AGE", "columns github 3 17 20 True AllWell"},
		{"enrollment", `{"status": {"phase": "Active", "pools": [{"name": "gh-nix", "busy": 0}], `, "renroll", "NAME FORGE ISOLATION PHASE READY REASON AGE", "columns github None Active True AllWell"},
		{"hold", `{"status": {"targets": 50, "applied": 49, "drained": 12, "remainingJobs": 7, "failed": [{"pool": "a", "org": "b", "reason": "ForgeUnreachable"}], `, "rhold",
			"NAME MODE ALL FORGE ORG POOL APPLIED BY EXPIRES AGE", "columns Pause true False alice@example.com"},
	} {
		if err := c.Apply(t.Context(), object(t, o.of, "columns")); err != nil {
			t.Fatal(err)
		}
		kubectl(t, c, "patch", o.kind, "columns", "--subresource=status", "--type=merge", "-p", o.status+ready)
		lines := strings.Split(kubectl(t, c, "get", o.kind, "columns"), "\n")
		if got := strings.Join(strings.Fields(lines[0]), " "); got != o.head {
			t.Errorf("%s: columns %q, want %q", o.kind, got, o.head)
		}
		if got := strings.Join(strings.Fields(lines[1]), " "); !strings.HasPrefix(got, o.row+" ") {
			t.Errorf("%s: row %q, want %q", o.kind, got, o.row)
		}
		kubectl(t, c, "wait", o.kind+"/columns", "--for=condition=Ready", "--timeout=60s")
	}
	// An unknown number is missing; a known zero is 0.
	if got := kubectl(t, c, "get", "renroll", "columns", "-o", "jsonpath={.status.pools[0].busy}-{.status.pools[0].idle}"); got != "0-" {
		t.Errorf("busy and idle are %q", got)
	}
	got := kubectl(t, c, "get", "tailplane", "-o", "name")
	for _, kind := range []string{"runnerforge", "runnerpool", "runnerenrollment", "runnerhold"} {
		if !strings.Contains(got, kind+".tailplane.dev/columns") {
			t.Errorf("kubectl get tailplane lists %s", got)
		}
	}
}
