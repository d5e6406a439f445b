package gitops

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/yaml"
)

const config = `# Runners of our organisations. Ask #platform before you change this.
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerPool
metadata:
  name: gh-nix
spec:
  forge: github   # ours
  runsOn: [self-hosted, nix]
  scaling:
    min: 0
    max: 5    # five is what the nodes carry
    budget: 20
---
# acme pays for it
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec:
  forge: github
  configURL: https://github.com/acme
  owners:
    - amy@acme.dev  # since 2024
    - bob@acme.dev
`

// FLEET-15, PLANE-11: a change modifies only its lines. Comments and the order of everything else
// stay, and the diff is that of the real file.
func TestFLEET15_Edit(t *testing.T) {
	for name, x := range map[string]struct {
		ref   Ref
		patch string
		diff  []string // removed and added lines
	}{
		"a number": {Ref{"RunnerPool", "gh-nix"}, `{"scaling":{"max":8}}`, []string{"-    max: 5    # five is what the nodes carry", "+    max: 8 # five is what the nodes carry"}},
		"a key":    {Ref{"RunnerPool", "gh-nix"}, `{"scaling":{"guarantee":1}}`, []string{"+    guarantee: 1"}},
		"a list":   {Ref{"RunnerEnrollment", "acme"}, `{"owners":["amy@acme.dev","cyd@acme.dev"]}`, []string{"-    - bob@acme.dev", "+    - cyd@acme.dev"}},
		"one goes": {Ref{"RunnerEnrollment", "acme"}, `{"owners":null}`, []string{"-  owners:", "-    - amy@acme.dev  # since 2024", "-    - bob@acme.dev"}},
		"a block":  {Ref{"RunnerEnrollment", "acme"}, `{"quota":{"cpu":"8","pods":10}}`, []string{"+  quota:", "+    cpu: \"8\"", "+    pods: 10"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Manifests{}.Apply([]byte(config), x.ref, Edit{Patch: json.RawMessage(x.patch)})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for l := range strings.Lines(string(diff.Diff("a", []byte(config), "b", out))) {
				if (l[0] == '-' || l[0] == '+') && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "+++") {
					lines = append(lines, strings.TrimSuffix(l, "\n"))
				}
			}
			if strings.Join(lines, "\n") != strings.Join(x.diff, "\n") {
				t.Errorf("changed\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(x.diff, "\n"))
			}
		})
	}
}

// PL-09: ambiguous input, input outside the configuration, and changes of missing objects are
// refused. Text in a value stays a value.
func TestPL09_Refused(t *testing.T) {
	nix := Ref{"RunnerPool", "gh-nix"}
	for name, x := range map[string]struct {
		file, patch string
		ref         Ref
		want        error
	}{
		"no such object":    {config, `{"forge":"x"}`, Ref{"RunnerPool", "gh-docker"}, ErrObjectNotFound},
		"there twice":       {config + "---\n" + config, `{"forge":"x"}`, nix, ErrDuplicateObject},
		"nothing":           {config, `{"forge":"github"}`, nix, ErrNoChange},
		"no object":         {config, `["forge"]`, nix, ErrInvalidEdit},
		"no JSON":           {config, `forge: x`, nix, ErrInvalidEdit},
		"a key twice":       {config, `{"forge":"github","forge":"evil"}`, nix, ErrInvalidEdit},
		"more than one":     {config, `{"forge":"x"}{"forge":"y"}`, nix, ErrInvalidEdit},
		"a file of tabs":    {"a:\n\t- b", `{"forge":"x"}`, nix, ErrUnreadableFile},
		"a key there twice": {strings.Replace(config, "  forge: github   # ours", "  forge: github\n  forge: gitlab", 1), `{"runsOn":["x"]}`, nix, ErrUnreadableFile},
	} {
		if out, err := (Manifests{}).Apply([]byte(x.file), x.ref, Edit{Patch: json.RawMessage(x.patch)}); !errors.Is(err, x.want) || out != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	hostile := "x\n---\napiVersion: v1\nkind: Secret # {{ .Values }} ${x} !!python/object &a *a"
	patch, err := json.Marshal(map[string]any{"forge": hostile, "runsOn": []string{"- a: b", "---", "null", "0x10", "yes", "'", `"`}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := Manifests{}.Apply([]byte(config), nix, Edit{Patch: patch})
	if err != nil {
		t.Fatal(err)
	}
	switch spec, exists, err := ReadSpec(out, nix); {
	case err != nil:
		t.Errorf("%v; out = %s", err, out)
	case !exists:
		t.Errorf("exists is false; spec = %v, exists = %v, %v, out = %s", spec, exists, err, out)
	case spec["forge"] != hostile:
		t.Errorf(`spec["forge"] = %v, want %v; out = %s`, spec["forge"], hostile, out)
	case len(spec["runsOn"].([]any)) != 7:
		t.Errorf(`len(spec["runsOn"].([]any)) = %v, want 7; out = %s`, len(spec["runsOn"].([]any)), out)
	case spec["runsOn"].([]any)[2] != "null":
		t.Errorf(`spec["runsOn"].([]any)[2] = %v, want %v; out = %s`, spec["runsOn"].([]any)[2], "null", out)
	}
	if _, exists, err := ReadSpec(out, Ref{"RunnerEnrollment", "acme"}); err != nil || !exists {
		t.Errorf("the other object: %v, %v", exists, err)
	}

	for _, pattern := range []string{"../fleet.yaml", "/etc/fleet.yaml", "a/../../b.yaml", ".git/config.yaml", "fleet.txt", "a\\b.yaml", "./a.yaml", "{what}.yaml", "a\n.yaml"} {
		if f, err := ManifestPath(pattern, nix); !errors.Is(err, ErrInvalidPath) {
			t.Errorf("%q: %q", pattern, f)
		}
	}
	if f, err := ManifestPath("fleet/{kind}/{name}.yaml", nix); err != nil || f != "fleet/runnerpool/gh-nix.yaml" {
		t.Error(f, err)
	}
	for _, x := range [][2]string{{"RunnerHold", "a"}, {"Secret", "a"}, {"RunnerPool", "../a"}, {"RunnerPool", "A"}, {"RunnerPool", ""}, {"RunnerPool", "-a"}, {"RunnerPool", strings.Repeat("a", 41)}} {
		if r, err := ParseRef(x[0], x[1]); err == nil {
			t.Error(r)
		}
	}
}

func TestAddAndremove(t *testing.T) {
	docker := Ref{"RunnerPool", "gh-docker"}
	out, err := Manifests{}.Apply([]byte(strings.TrimSuffix(config, "\n")), docker, Edit{Spec: json.RawMessage(`{"runsOn":["docker"],"forge":"github","scaling":{"max":2,"min":0}}`)})
	if err != nil {
		t.Fatal(err)
	}
	const want = "---\napiVersion: tailplane.dev/v1alpha1\nkind: RunnerPool\nmetadata:\n  name: gh-docker\nspec:\n  forge: github\n  runsOn:\n  - docker\n  scaling:\n    min: 0\n    max: 2\n"
	if string(out) != config+want {
		t.Errorf("%s", out)
	}
	if _, err := (Manifests{}).Apply(out, docker, Edit{Spec: json.RawMessage(`{}`)}); !errors.Is(err, ErrObjectExists) {
		t.Error(err)
	}
	if back, err := (Manifests{}).Apply(out, docker, Edit{Remove: true}); err != nil || string(back) != config {
		t.Errorf("%s, %v", back, err)
	}
	if _, err := (Manifests{}).Apply([]byte(config), docker, Edit{Remove: true}); !errors.Is(err, ErrObjectNotFound) {
		t.Error(err)
	}
	if first, err := (Manifests{}).Apply(nil, docker, Edit{Spec: json.RawMessage(`{"forge":"github"}`)}); err != nil || !strings.HasPrefix(string(first), "apiVersion:") {
		t.Errorf("%s, %v", first, err)
	}
}

// FuzzEdit checks that an edit is refused, or that the file then has the wanted values and no other
// changes.
func FuzzEdit(f *testing.F) {
	f.Add(config, `{"scaling":{"max":8},"forge":null}`)
	f.Add("apiVersion: tailplane.dev/v1\nkind: RunnerPool\nmetadata: &m {name: gh-nix}\nspec: {a: *m}\n", `{"a":{"name":"x"}}`)
	f.Add(`{"apiVersion":"tailplane.dev/v1","kind":"RunnerPool","metadata":{"name":"gh-nix"},"spec":{}}`, `{"a":[1,"2",null]}`)
	f.Fuzz(func(t *testing.T, file, patch string) {
		r := Ref{"RunnerPool", "gh-nix"}
		out, err := Manifests{}.Apply([]byte(file), r, Edit{Patch: json.RawMessage(patch)})
		if err != nil {
			return
		}
		old, _, err := ReadSpec([]byte(file), r)
		if err != nil {
			t.Fatal(err)
		}
		var changes map[string]any
		d := json.NewDecoder(strings.NewReader(patch))
		d.UseNumber()
		if err := d.Decode(&changes); err != nil {
			t.Fatal(err)
		}
		spec, exists, err := ReadSpec(out, r)
		if err != nil || !exists {
			t.Fatalf("%v in %q", err, out)
		}
		got, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(MergePatch(old, changes))
		if err != nil {
			t.Fatal(err)
		}
		g, gerr := yaml.YAMLToJSON(got)
		w, werr := yaml.YAMLToJSON(want)
		if gerr != nil || werr != nil {
			return // only this package keeps such numbers exactly
		}
		if string(g) != string(w) {
			t.Errorf("it is %s, want %s", got, want)
		}
	})
}

// FLEET-15: a second edit of an object builds on the first.
func TestFLEET15_Apply(t *testing.T) {
	nix := Ref{"RunnerPool", "gh-nix"}
	out, err := Manifests{}.Apply([]byte(config), nix, Edit{Patch: json.RawMessage(`{"scaling":{"max":8}}`)}, Edit{Patch: json.RawMessage(`{"scaling":null}`)}, Edit{Patch: json.RawMessage(`{"scaling":{"min":1}}`)})
	if err != nil {
		t.Fatal(err)
	}
	spec, _, err := ReadSpec(out, nix)
	switch {
	case err != nil:
		t.Error(err)
	case !ContainsSpec(map[string]any{"scaling": map[string]any{"min": 1}}, spec):
		t.Errorf(`ContainsSpec(map[string]any{"scaling": map[string]any{"min": 1}}, spec) is false; spec = %v, %v`, spec, err)
	case ContainsSpec(map[string]any{"scaling": map[string]any{"max": 8}}, spec):
		t.Errorf(`ContainsSpec(map[string]any{"scaling": map[string]any{"max": 8}}, spec) is true; spec = %v, %v`, spec, err)
	}
	if _, err := (Manifests{}).Apply([]byte(config), nix, Edit{Remove: true}, Edit{Patch: json.RawMessage(`{"forge":"x"}`)}); !errors.Is(err, ErrObjectNotFound) {
		t.Error(err)
	}
	for _, e := range []Edit{{}, {Remove: true, Patch: json.RawMessage(`{}`)}, {Spec: json.RawMessage(`{}`), Patch: json.RawMessage(`{}`)}} {
		if e.Validate() == nil {
			t.Errorf("%+v", e)
		}
	}
}

// Paths that match a pattern, and paths that do not. The paths of objects are among the matches.
func TestPathMatcher(t *testing.T) {
	for _, x := range []struct {
		pattern, folder string
		deep            bool
		fits, not       []string
	}{
		{"fleet/{kind}/{name}.yaml", "fleet", true, []string{"fleet/runnerpool/a.yaml", "fleet/runnerforge/gh-1.yaml"},
			[]string{"fleet/runnerhold/a.yaml", "fleet/runnerpool/A.yaml", "fleet/runnerpool/a.yml", "fleet/runnerpool/b/a.yaml", "x/fleet/runnerpool/a.yaml", "fleet/runnerpool/.yaml", "fleet/runnerpool/a.yaml\n"}},
		{"fleet/{name}.yaml", "fleet", false, []string{"fleet/a.yaml"}, []string{"fleet/aXyaml", "fleet/a.b.yaml", "fleet/" + strings.Repeat("a", 41) + ".yaml"}},
		{"{name}/{kind}.json", "", true, []string{"acme/runnerenrollment.json"}, []string{"runnerenrollment.json"}},
		{"a/b/x-{kind}.yml", "a/b", false, []string{"a/b/x-runnerpool.yml"}, []string{"a/b/x-.yml"}},
		{"{kind}.yaml", "", false, []string{"runnerpool.yaml"}, nil},
	} {
		folder, deep := PatternFolder(x.pattern)
		if folder != x.folder || deep != x.deep {
			t.Errorf("%s: in %q, deep %v", x.pattern, folder, deep)
		}
		fits := PathMatcher(x.pattern)
		for _, kind := range Kinds() {
			path, err := ManifestPath(x.pattern, Ref{Kind: kind, Name: "gh-nix"})
			if err != nil {
				t.Fatal(err)
			}
			x.fits = append(x.fits, path)
		}
		for _, path := range x.fits {
			if !fits(path) {
				t.Errorf("%s: %s does not fit", x.pattern, path)
			}
		}
		for _, path := range x.not {
			if fits(path) {
				t.Errorf("%s: %q fits", x.pattern, path)
			}
		}
	}
}
