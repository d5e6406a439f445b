//go:build unix

package install

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The API server accepts the page's manifests, and those of the template repository, from their intended users. The
// chart accepts the page's values. Everything that the page names exists.
func TestFleetPage(t *testing.T) {
	text, blocks := page(t, "fleet.md")
	out := render(t, profileValues(t, "split")+"\n"+blocks["values.yaml"])
	if rendered(t, out, "Deployment", "tailplane-fleet") == nil {
		t.Error("the page's values install no fleet")
	}
	c := installFleet(t)
	argo, pat := somebody(t, c, "system:serviceaccount:argocd:argocd-application-controller"), somebody(t, c, "pat@platform.dev")
	docs := map[string]string{}
	for _, name := range []string{"forges.yaml", "pools.yaml", "acme.yaml"} {
		docs[name] = blocks[name]
	}
	copied := filepath.Join(root, "deploy/fleet/config-repository")
	b, err := os.ReadFile(filepath.Join(copied, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Resources []string }
	if err := yaml.Unmarshal(b, &list); err != nil || len(list.Resources) != 3 {
		t.Fatalf("%v: %+v", err, list)
	}
	for _, name := range list.Resources {
		b, err := os.ReadFile(filepath.Join(copied, name))
		if err != nil {
			t.Fatal(err)
		}
		docs["config-repository/"+name] = string(b)
	}
	for name, doc := range docs {
		all := objects(t, doc)
		if len(all) == 0 {
			t.Errorf("%s is not there", name)
		}
		for _, u := range all {
			one, err := yaml.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			if err := argo.create(string(one)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := pat.create(blocks["hold.yaml"]); err != nil {
		t.Errorf("hold.yaml: %v", err)
	}

	// The page names policies, alerts, values, condition reasons and other files.
	for _, m := range regexp.MustCompile("(?m)^\\| `(tailplane-[a-z-]+)` \\|").FindAllStringSubmatch(text, -1) {
		if rendered(t, render(t, profileValues(t, "fleet")), "ValidatingAdmissionPolicy", m[1]) == nil {
			t.Errorf("the policy %s is missing", m[1])
		}
	}
	var sources strings.Builder
	for _, pattern := range []string{"api/v1alpha1/*.go", "internal/fleet/*.go", "internal/fleet/*/*.go", "internal/fleet/*/*/*.go", "charts/tailplane/files/fleet-alerts.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(b)
		}
	}
	words := 0
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+[A-Z]\\w+)`").FindAllStringSubmatch(text, -1) {
		if words++; !strings.Contains(sources.String(), m[1]) {
			t.Errorf("%s is missing", m[1])
		}
	}
	if words < 15 {
		t.Errorf("%d words are explained", words)
	}
	values := readSchema(t)
	for _, m := range regexp.MustCompile("`((?:fleet|metrics)\\.[A-Za-z.]+)(?:: \\w+)?`").FindAllStringSubmatch(text, -1) {
		s := values
		for name := range strings.SplitSeq(m[1], ".") {
			next, ok := s.Properties[name]
			if !ok && s.Properties != nil {
				t.Errorf("no value %s", m[1])
				break
			}
			s = next
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, "docs/tasks", m[1])); err != nil {
			t.Error(err)
		}
	}
}

// GitHub can render the enrollment form: each question has a unique id, and together they cover all required fields.
func TestEnrollmentForm(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "deploy/fleet/config-repository/.github/ISSUE_TEMPLATE/enroll.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var form struct {
		Name, Description, Title string
		Labels                   []string
		Body                     []struct {
			Type, ID    string
			Attributes  map[string]any
			Validations map[string]bool
		}
	}
	switch err := yaml.UnmarshalStrict(b, &form); {
	case err != nil:
		t.Fatal(err)
	case form.Name == "":
		t.Fatalf("form.Name is empty; %v, form = %+v", err, form)
	case form.Description == "":
		t.Fatalf("form.Description is empty; %v, form = %+v", err, form)
	}
	var asked []string
	for _, q := range form.Body {
		label, _, _ := unstructured.NestedString(q.Attributes, "label")
		options, _, _ := unstructured.NestedSlice(q.Attributes, "options")
		switch q.Type {
		case "markdown":
			continue
		case "dropdown", "checkboxes":
			if len(options) < 2 {
				t.Errorf("%s has nothing to choose from", q.ID)
			}
		case "input", "textarea":
		default:
			t.Errorf("%s: GitHub has no %s", q.ID, q.Type)
		}
		switch {
		case label == "":
			t.Errorf("label is empty; %q, label = %q", q.ID, label)
		case !regexp.MustCompile(`^[a-z][a-z_-]*$`).MatchString(q.ID):
			t.Errorf("regexp.MustCompile(`^[a-z][a-z_-]*$`).MatchString(q.ID) is false; %q, label = %q", q.ID, label)
		case slices.Contains(asked, q.ID):
			t.Errorf("asked = %v contains %q", asked, q.ID)
		}
		asked = append(asked, q.ID)
	}
	for _, need := range []string{"url", "name", "pools", "isolation", "owners", "members", "network", "repositories"} {
		if !slices.Contains(asked, need) {
			t.Errorf("no query uses %s", need)
		}
	}
}
