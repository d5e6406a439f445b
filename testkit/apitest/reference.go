package apitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Kind is the content of the reference for one kind.
type Kind struct {
	Name, Scope, Plural string
	ShortNames          []string

	root schema
}

// ReadKind reads the CRD in a file. It must have exactly one version.
func ReadKind(t *testing.T, file string) Kind {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Scope string
			Names struct {
				Kind, Plural string
				ShortNames   []string
			}
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil || len(crd.Spec.Versions) != 1 {
		t.Fatalf("%s: %d versions, %v", file, len(crd.Spec.Versions), err)
	}
	n := crd.Spec.Names
	return Kind{n.Kind, crd.Spec.Scope, n.Plural, n.ShortNames, crd.Spec.Versions[0].Schema.OpenAPIV3Schema}
}

// Write writes the chapter of the kind: its purpose, its rules, its fields. foreign are the fields with types of
// Kubernetes; the chapter lists their names only.
func (k Kind) Write(b *strings.Builder, foreign ...string) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n%s; `%s`, short `%s`.\n", k.Name, oneLine(k.root.Description), k.Scope, k.Plural, strings.Join(k.ShortNames, "`, `"))
	if rules := k.root.rules(); rules != "" {
		fmt.Fprintf(b, "Validation: %s.\n", rules)
	}
	for _, part := range []string{"spec", "status"} {
		s := k.root.Properties[part]
		fmt.Fprintf(b, "\n| %s | type | meaning |\n|---|---|---|\n", part)
		if rules := s.rules(); rules != "" {
			fmt.Fprintf(b, "| | | %s |\n", rules)
		}
		s.write(b, "", foreign)
	}
}

// schema is the part of an OpenAPI schema that the reference uses.
type schema struct {
	Type, Description, Format string
	Default                   any
	Enum                      []any
	Required                  []string
	Minimum, Maximum          *int64
	MaxItems                  *int64
	Properties                map[string]schema
	Items                     *schema
	AdditionalProperties      *schema
	Validations               []struct{ Message string } `json:"x-kubernetes-validations"`
}

func (s schema) rules() string {
	var all []string
	for _, v := range s.Validations {
		all = append(all, cell(v.Message))
	}
	return strings.Join(all, "; ")
}

func (s schema) write(b *strings.Builder, path string, foreign []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		meaning := cell(oneLine(p.Description))
		if slices.Contains(s.Required, name) {
			meaning += " Required."
		}
		if text, err := json.Marshal(p.Default); err == nil && p.Default != nil && string(text) != "{}" {
			meaning += " Default `" + strings.Trim(string(text), `"`) + "`."
		}
		if rules := p.rules(); rules != "" {
			meaning += " Validation: " + rules + "."
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", path, name, p.kind(), meaning)
		if slices.Contains(foreign, name) && p.Type != "string" {
			continue
		}
		p.write(b, path+name+".", foreign)
		if p.Items != nil {
			p.Items.write(b, path+name+"[].", foreign)
		}
	}
}

func (s schema) kind() string {
	switch {
	case len(s.Enum) > 0:
		var words []string
		for _, e := range s.Enum {
			words = append(words, fmt.Sprintf("`%v`", e))
		}
		return strings.Join(words, ", ")
	case s.Items != nil:
		text := "list of " + s.Items.kind()
		if s.MaxItems != nil {
			text += fmt.Sprintf(", at most %d", *s.MaxItems)
		}
		return text
	case s.AdditionalProperties != nil:
		return "map"
	case s.Type == "integer" && s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("%d to %d", *s.Minimum, *s.Maximum)
	case s.Format == "date-time":
		return "time"
	case s.Type == "":
		return "number or text" // int-or-string, such as a quantity
	}
	return s.Type
}
