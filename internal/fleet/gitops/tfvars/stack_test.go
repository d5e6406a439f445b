package tfvars

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
)

const stackFile = `# The runners of our organisations.
gh_nix_min = 0
gh_nix_max = 5 # what the nodes carry

sets = {
  gh-nix = { runs_on = ["self-hosted", "nix"], scaling = { budget = 20 } }
  # for images
  gh-docker = {
    runs_on = ["docker"]
    other   = "ours alone"
  }
}

orgs = {
  acme = {
    owners = [
      "amy@acme.dev", # since 2024
      "ann@acme.dev",
    ]
    quota = { cpu = "16" }
  }
}
`

func testStacks(t *testing.T) Stacks {
	t.Helper()
	b, err := NewStacks(
		Stack{Path: "tofu/stacks/gitlab-runners/terraform.tfvars", Names: []string{"gl-*"}, Keys: map[string]map[string]string{"RunnerPool": {"scaling.max": "{name_}_max"}}},
		Stack{Path: "tofu/stacks/arc-runners/terraform.tfvars", Keys: map[string]map[string]string{
			"RunnerPool":       {"scaling.min": "{name_}_min", "scaling.max": "{name_}_max", "scaling.budget": "sets.{name}.scaling.budget", "runsOn": "sets.{name}.runs_on"},
			"RunnerEnrollment": {"owners": "orgs.{name}.owners", "quota": "orgs.{name}.quota", "isolation": "orgs.{name}.isolation"}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FLEET-15: the package writes keys that the mapping declares or that exist. It refuses a field
// without a key, and never shows a change that it does not write.
func TestFLEET15_Stack(t *testing.T) {
	nix, acme := gitops.Ref{Kind: "RunnerPool", Name: "gh-nix"}, gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}
	b := testStacks(t)
	for at, want := range map[gitops.Ref]string{nix: "tofu/stacks/arc-runners/terraform.tfvars", {Kind: "RunnerPool", Name: "gl-nix"}: "tofu/stacks/gitlab-runners/terraform.tfvars"} {
		if f, err := b.File(at); err != nil || f != want {
			t.Errorf("%s: %s, %v", at, f, err)
		}
	}
	if _, err := b.File(gitops.Ref{Kind: "RunnerForge", Name: "github"}); !errors.Is(err, gitops.ErrInvalidEdit) {
		t.Errorf("a kind without a stack: %v", err)
	}
	switch spec, exists, err := b.Spec([]byte(stackFile), nix); {
	case err != nil:
		t.Error(err)
	case !exists:
		t.Errorf("exists is false; spec = %v, exists = %v, %v", spec, exists, err)
	case !reflect.DeepEqual(spec, map[string]any{"runsOn": []any{"self-hosted", "nix"}, "scaling": map[string]any{"min": json.Number("0"), "max": json.Number("5"), "budget": json.Number("20")}}):
		t.Errorf("spec = %v, want %v",
			spec, map[string]any{"runsOn": []any{"self-hosted", "nix"}, "scaling": map[string]any{"min": json.Number("0"), "max": json.Number("5"), "budget": json.Number("20")}})
	}
	for name, x := range map[string]struct {
		ref      gitops.Ref
		edit     gitops.Edit
		old, new string // the text that is replaced and its replacement
		err      error
	}{
		"a number":             {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":8}}`)}, "gh_nix_max = 5", "gh_nix_max = 8", nil},
		"a list":               {nix, gitops.Edit{Patch: json.RawMessage(`{"runsOn":["nix"]}`)}, `runs_on = ["self-hosted", "nix"]`, `runs_on = ["nix"]`, nil},
		"what is there":        {acme, gitops.Edit{Patch: json.RawMessage(`{"quota":{"cpu":"64"}}`)}, `cpu = "16"`, `cpu = "64"`, nil},
		"what is declared":     {acme, gitops.Edit{Patch: json.RawMessage(`{"isolation":"Node"}`)}, "    quota = { cpu = \"16\" }\n", "    quota     = { cpu = \"16\" }\n    isolation = \"Node\"\n", nil},
		"one goes":             {acme, gitops.Edit{Patch: json.RawMessage(`{"quota":null}`)}, "    quota = { cpu = \"16\" }\n", "", nil},
		"several":              {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":null}`)}, "gh_nix_min = 0\ngh_nix_max = 5 # what the nodes carry\n\nsets = {\n  gh-nix = { runs_on = [\"self-hosted\", \"nix\"], scaling = { budget = 20 } }", "\nsets = {\n  gh-nix = { runs_on = [\"self-hosted\", \"nix\"], scaling = {} }", nil},
		"not there, no key":    {acme, gitops.Edit{Patch: json.RawMessage(`{"quota":{"pods":9}}`)}, "", "", gitops.ErrInvalidEdit},
		"no key":               {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":8},"image":"x"}`)}, "", "", gitops.ErrInvalidEdit},
		"no key for part":      {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":8,"guarantee":1}}`)}, "", "", gitops.ErrInvalidEdit},
		"part of a list":       {nix, gitops.Edit{Patch: json.RawMessage(`{"runsOn":{"a":1}}`)}, "", "", gitops.ErrInvalidEdit},
		"no object any more":   {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":5}`)}, "", "", gitops.ErrInvalidEdit},
		"nothing":              {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":5.0}}`)}, "", "", gitops.ErrNoChange},
		"not there":            {gitops.Ref{Kind: "RunnerPool", Name: "gh-x"}, gitops.Edit{Patch: json.RawMessage(`{}`)}, "", "", gitops.ErrObjectNotFound},
		"there":                {nix, gitops.Edit{Spec: json.RawMessage(`{"scaling":{"max":1}}`)}, "", "", gitops.ErrObjectExists},
		"a key twice":          {nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":6,"max":7}}`)}, "", "", gitops.ErrInvalidEdit},
		"an object goes":       {acme, gitops.Edit{Remove: true}, "  acme = {\n    owners = [\n      \"amy@acme.dev\", # since 2024\n      \"ann@acme.dev\",\n    ]\n    quota = { cpu = \"16\" }\n  }\n", "", nil},
		"an object comes":      {gitops.Ref{Kind: "RunnerEnrollment", Name: "globex"}, gitops.Edit{Spec: json.RawMessage(`{"owners":["gus@globex.dev"],"isolation":"None"}`)}, "    quota = { cpu = \"16\" }\n  }\n", "    quota = { cpu = \"16\" }\n  }\n  globex = {\n    isolation = \"None\"\n    owners    = [\"gus@globex.dev\"]\n  }\n", nil},
		"it comes with others": {gitops.Ref{Kind: "RunnerEnrollment", Name: "globex"}, gitops.Edit{Spec: json.RawMessage(`{"forge":"github","owners":["gus@globex.dev"]}`)}, "", "", gitops.ErrInvalidEdit},
	} {
		out, err := b.Apply([]byte(stackFile), x.ref, x.edit)
		switch want := strings.Replace(stackFile, x.old, x.new, 1); {
		case !errors.Is(err, x.err):
			t.Errorf("%s: %v, want %v", name, err, x.err)
		case err == nil && string(out) != want:
			t.Errorf("%s: err == nil && string(out) != want, %v, out = %s", name, err, out)
		case err != nil && out != nil:
			t.Errorf("%s: err != nil && out != nil, %v, out = %s", name, err, out)
		}
	}
	twice, err := b.Apply([]byte(stackFile), nix, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":8}}`)}, gitops.Edit{Patch: json.RawMessage(`{"scaling":{"max":9}}`)})
	if err != nil || string(twice) != strings.Replace(stackFile, "gh_nix_max = 5", "gh_nix_max = 9", 1) {
		t.Errorf("%s, %v", twice, err)
	}
	for _, bad := range []string{"a = b\n", "gh_nix_max = 5\ngh_nix_max = 6\n", "x {\n}\n"} {
		if _, err := b.Apply([]byte(bad), nix, gitops.Edit{Remove: true}); !errors.Is(err, gitops.ErrUnreadableFile) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FL-01: no object can get another object's keys, whatever the names are. New refuses such a
// mapping before any file is read.
func TestFL01_Mapping(t *testing.T) {
	pool := func(keys ...string) map[string]map[string]string {
		m := map[string]string{}
		for i, k := range keys {
			m[[]string{"scaling.min", "scaling.max", "runsOn"}[i]] = k
		}
		return map[string]map[string]string{"RunnerPool": m}
	}
	for name, x := range map[string]struct {
		stack Stack
		ok    bool
	}{
		"of one object":           {Stack{Path: "a.tfvars", Keys: pool("sets.{name}.min", "sets.{name}.max")}, true},
		"with names before":       {Stack{Path: "a.tfvars", Keys: pool("{name_}_min", "{name_}_max")}, true},
		"a file for each":         {Stack{Path: "stacks/{name}/a.tfvars", Keys: pool("min", "max")}, true},
		"a file for all":          {Stack{Path: "a.tfvars", Keys: pool("min")}, false},
		"one key":                 {Stack{Path: "a.tfvars", Keys: pool("sets.{name}.min", "sets.{name}.min")}, false},
		"one in the other":        {Stack{Path: "a.tfvars", Keys: pool("sets.{name}", "sets.{name}.min")}, false},
		"for some names":          {Stack{Path: "a.tfvars", Keys: pool("{name_}_max", "{name_}_x_max")}, false}, // for an object x-a
		"names and a word":        {Stack{Path: "a.tfvars", Keys: pool("sets.{name}.a", "sets.default-{name}.b")}, false},
		"the name twice":          {Stack{Path: "a.tfvars", Keys: pool("{name}.{name}")}, false},
		"two kinds in one object": {Stack{Path: "a.tfvars", Keys: map[string]map[string]string{"RunnerPool": {"runsOn": "all.{name}.a"}, "RunnerEnrollment": {"owners": "all.{name}.b"}}}, false},
		"two kinds apart":         {Stack{Path: "a.tfvars", Keys: map[string]map[string]string{"RunnerPool": {"runsOn": "pools.{name}.a"}, "RunnerEnrollment": {"owners": "orgs.{name}.b"}}}, true},
		"a field in another":      {Stack{Path: "a.tfvars", Keys: map[string]map[string]string{"RunnerPool": {"scaling": "a.{name}", "scaling.max": "b.{name}"}}}, false},
		"no kind":                 {Stack{Path: "a.tfvars", Keys: map[string]map[string]string{"Secret": {"data": "a.{name}"}}}, false},
		"no field":                {Stack{Path: "a.tfvars", Keys: map[string]map[string]string{"RunnerPool": {"a..b": "a.{name}"}}}, false},
		"no key of HCL":           {Stack{Path: "a.tfvars", Keys: pool("a[0].{name}")}, false},
		"a key that is a number":  {Stack{Path: "a.tfvars", Keys: pool("0{name}")}, false},
		"nothing":                 {Stack{Path: "a.tfvars"}, false},
		"a path elsewhere":        {Stack{Path: "../a.tfvars", Keys: pool("{name}")}, false},
		"no such file":            {Stack{Path: "a.yaml", Keys: pool("{name}")}, false},
		"no pattern":              {Stack{Path: "a.tfvars", Names: []string{"["}, Keys: pool("{name}")}, false},
	} {
		if _, err := NewStacks(x.stack); (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewStacks(); err == nil {
		t.Error("no stack at all")
	}
	same := Stack{Path: "a.tfvars", Keys: pool("{name}")}
	if _, err := NewStacks(same, same); err == nil {
		t.Error("one path twice")
	}
}

// FuzzApply checks that an edit is refused, or that the file then has the wanted values for the
// object and the old ones for all others.
func FuzzApply(f *testing.F) {
	f.Add(stackFile, `{"scaling":{"max":8},"runsOn":["x","nix"]}`)
	f.Add(stackFile, `{"scaling":null}`)
	f.Add("gh_nix_max=1\nsets={}\n", `{"scaling":{"min":0,"budget":3},"runsOn":[{"a":null}]}`)
	f.Fuzz(func(t *testing.T, file, patch string) {
		b, nix, docker := testStacks(t), gitops.Ref{Kind: "RunnerPool", Name: "gh-nix"}, gitops.Ref{Kind: "RunnerPool", Name: "gh-docker"}
		out, err := b.Apply([]byte(file), nix, gitops.Edit{Patch: json.RawMessage(patch)})
		if err != nil {
			return
		}
		old, _, err := b.Spec([]byte(file), docker)
		if err != nil {
			t.Fatal(err)
		}
		if is, _, err := b.Spec(out, docker); err != nil || !reflect.DeepEqual(is, old) {
			t.Errorf("%v, and was %v (%v)", is, old, err)
		}
		if again, err := b.Apply(out, nix, gitops.Edit{Patch: json.RawMessage(patch)}); !errors.Is(err, gitops.ErrNoChange) && !errors.Is(err, gitops.ErrObjectNotFound) {
			t.Errorf("the same again: %q, %v", again, err)
		}
	})
}
