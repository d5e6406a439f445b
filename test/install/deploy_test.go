//go:build unix

package install

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The files of deploy/ that are rendered from the chart's templates, with the templates and the values.
var deployed = map[string][]string{
	"deploy/base": {"namespaces", "accounts", "rbac-access", "rbac-operator", "rbac-view", "rbac-edit",
		"policy-signins", "policy-bindings", "policy-tokens", "policy-accounts", "policy-system"},
	"deploy/server":   {"access", "operator", "networkpolicies"},
	"deploy/inject":   {"inject", "rbac-inject", "webhook", "policy-adapter"},
	"deploy/plane":    {"plane", "rbac-plane"},
	"deploy/proxy":    {"proxy", "rbac-proxy"},
	"deploy/recorder": {"recorder"},
	"deploy/requests": {"rbac-requests", "policy-requests"},
	"deploy/fleet":    {"fleet", "rbac-fleet", "policy-fleet", "policy-fleet-writers", "policy-fleet-pods"},
}

const deployValues = `
image: {repository: registry.invalid/tailplaned}
systemNamespace: {create: true}
cluster: {name: unset, server: "https://unset.invalid", caFromPod: true}
signin: {roles: [view, edit]}
`

// injectValues are additional values for the webhook, which is optional.
const injectValues = `
inject: {enabled: true, sidecar: {image: {repository: registry.invalid/mca, tag: unset}}}
`

// planeValues are additional values for the plane, which is optional.
const planeValues = "\nplane: {enabled: true}\n"

// proxyValues are additional values for the access proxy, which is optional.
const proxyValues = "\nproxy: {enabled: true}\n"

// recorderValues are additional values for the recorder, which is optional.
const recorderValues = "\nrecorder: {enabled: true}\n"

// requestsValues are additional values for access requests, which are optional. The plane shows them.
const requestsValues = "\nrequests: {enabled: true}\nplane: {enabled: true}\n"

// fleetValues are additional values for the fleet. The person who installs also applies reviewed manifests.
const fleetValues = "\nfleet: {enabled: true, writerGroups: [\"system:masters\"]}\n"

// helmLabels match the labels of a helm release. The manifests belong to no release.
var helmLabels = regexp.MustCompile(`(?m)^ *app\.kubernetes\.io/(instance|version|managed-by): .*\n`)

// The manifests in deploy/ equal the chart's output, and kustomize can read them.
func TestDeployIsTheChart(t *testing.T) {
	server, beside := sources(render(t, deployValues)), map[string]map[string]string{
		"deploy/inject": sources(render(t, deployValues+injectValues)), "deploy/plane": sources(render(t, deployValues+planeValues)),
		"deploy/proxy": sources(render(t, deployValues+proxyValues)), "deploy/recorder": sources(render(t, deployValues+recorderValues)), "deploy/requests": sources(render(t, deployValues+requestsValues)),
		"deploy/fleet": sources(render(t, deployValues+fleetValues))}
	for dir, templates := range deployed {
		by, ok := beside[dir]
		if !ok {
			by = server
		}
		want := map[string]string{}
		for _, name := range templates {
			want[name+".yaml"] = "# Rendered from charts/tailplane; do not edit (go test ./test/install -update).\n" +
				helmLabels.ReplaceAllString(strings.TrimPrefix(by[name+".yaml"], "---\n"), "")
		}
		for name, text := range want {
			path := filepath.Join(root, dir, name)
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if b, err := os.ReadFile(path); err != nil {
				t.Error(err)
			} else if string(b) != text {
				t.Errorf("%s/%s is not what the chart renders; run: go test ./test/install -update\n%s", dir, name, difference(text, string(b)))
			}
		}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var list []string // the resources of the kustomization
		for _, path := range files {
			name := filepath.Base(path)
			if name == "kustomization.yaml" {
				continue
			}
			if _, ok := want[name]; !ok {
				t.Errorf("%s is not from the chart", path)
			}
			list = append(list, name)
		}
		b, err := os.ReadFile(filepath.Join(root, dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		_, resources, _ := strings.Cut(string(b), "\nresources:\n")
		named := slices.DeleteFunc(strings.Fields(strings.ReplaceAll(resources, "- ", "")), func(s string) bool { return strings.HasPrefix(s, "../") })
		slices.Sort(named)
		if want := slices.Sorted(maps.Keys(want)); !slices.Equal(named, want) || !slices.Equal(list, want) {
			t.Errorf("%s/kustomization.yaml lists %v, the directory has %v, want %v", dir, named, list, want)
		}
	}

	// The CRD chart contains the custom resources exactly as generated.
	generated, err := filepath.Glob(root + "/deploy/crds/*_*.yaml")
	if err != nil || len(generated) == 0 {
		t.Fatalf("%v, %v", generated, err)
	}
	for _, path := range generated {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		mine := filepath.Join(crds, "files", filepath.Base(path))
		if *update {
			err = os.WriteFile(mine, b, 0o644)
		} else if c, _ := os.ReadFile(mine); string(c) != string(b) {
			t.Errorf("%s is not %s; run: go test ./test/install -update", mine, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if mine, err := filepath.Glob(crds + "/files/*"); err != nil || len(mine) != len(generated) {
		t.Errorf("%v, %v: want %d", mine, err, len(generated))
	}
}
