//go:build unix

package install

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/settings"
)

var fence = regexp.MustCompile("(?ms)^```(\\w+) (\\S+)\n(.*?)^```$")

// page returns a task page and its named blocks, ready for use. The placeholder of the registry is replaced by a
// registry that does not exist.
func page(t *testing.T, name string) (text string, blocks map[string]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/tasks", name))
	if err != nil {
		t.Fatal(err)
	}
	text = string(b)
	blocks = map[string]string{}
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		blocks[m[2]] = strings.ReplaceAll(m[3], "REGISTRY/", "registry.invalid/")
	}
	return text, blocks
}

// The pages name files, values and metrics that exist.
func TestPages(t *testing.T) {
	values := readSchema(t)
	known := func(path string) bool {
		s := values
		for name := range strings.SplitSeq(path, ".") {
			next, ok := s.Properties[name]
			if !ok {
				return s.Properties == nil
			}
			s = next
		}
		return true
	}
	links := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	quoted := regexp.MustCompile("`([a-z][A-Za-z]+(?:\\.[a-z][A-Za-z]+)+)[:`]")
	for _, name := range []string{"install.md", "operate.md", "upgrade.md", "inject.md", "access-proxy.md"} {
		text, _ := page(t, name)
		for _, m := range links.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "https:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, "docs/tasks", m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			switch {
			case filepath.Ext(m[1]) == ".yaml", filepath.Ext(m[1]) == ".md", m[1] == string(access.SigninFirstUse), m[1] == "certificate.proxy": // a verb, a health check
				continue
			}
			if !known(m[1]) {
				t.Errorf("%s: no value %s", name, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`(?:charts|deploy|build)/[\w./-]+`).FindAllString(text, -1) {
			m = strings.TrimRight(m, ".,`")
			if _, err := os.Stat(filepath.Join(root, m)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// An installation without helm gives the same objects, with the reader's settings and image, and the API server
// accepts them.
func TestKustomize(t *testing.T) {
	_, blocks := page(t, "install.md")
	dir := t.TempDir()
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]settings.Role{"kustomization.yaml": "", "tailplane-access-0.yaml": settings.AccessRole, "config.yaml": settings.OperatorRole} {
		text, ok := blocks[name]
		if !ok {
			t.Fatalf("install.md has no block %s", name)
		}
		if role != "" {
			f, err := settings.Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			f.Cluster.CAFile = "testdata/ca.crt" // the test runs outside a pod
			if err := f.Validate(role); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		text = strings.ReplaceAll(text, "../tailplane/", checkout+"/")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := place(t)
	out, errs, exit := kubectl(t, c, "kustomize", dir)
	if exit != 0 {
		t.Fatal(errs)
	}
	pods := 0
	for _, u := range objects(t, out) {
		spec, ok := podOf(t, u)
		if !ok {
			continue
		}
		pods++
		if image := spec.Containers[0].Image; !strings.HasPrefix(image, "registry.invalid/tailplaned@sha256:") {
			t.Errorf("%s runs %s", u.GetName(), image)
		}
		if config := spec.Volumes[0].ConfigMap.Name; !strings.Contains(out, "name: "+config+"\n") {
			t.Errorf("%s reads %s, which is not there", u.GetName(), config)
		}
	}
	if pods != 2 {
		t.Errorf("%d pods", pods)
	}
	if err := c.Apply(t.Context(), []byte(out)); err != nil {
		t.Fatal(err)
	}
}
