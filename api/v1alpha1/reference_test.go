package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write docs/reference/fleet-kinds.md")

const page = "../../docs/reference/fleet-kinds.md"

// The page of the reference is what the definitions and the fleet's reasons are today.
func TestReference(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# The fleet's kinds\n\nGroup `tailplane.dev`, version `v1alpha1`; all of them are cluster-scoped. This page is made from the definitions; do not edit it (go generate ./api/v1alpha1).\n" +
		"`kubectl explain` says the same. What a field holds that is Kubernetes' own type, such as a toleration, is in Kubernetes' reference.\n")
	for _, name := range []string{"runnerforges", "runnerpools", "runnerenrollments", "runnerholds"} {
		text, err := os.ReadFile("../../deploy/crds/tailplane.dev_" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
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
			t.Fatalf("%s: %d versions, %v", name, len(crd.Spec.Versions), err)
		}
		n, root := crd.Spec.Names, crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n`%s`, short `%s`. Refused: %s.\n", n.Kind, oneLine(root.Description), n.Plural, strings.Join(n.ShortNames, "`, `"), root.rules())
		for _, part := range []string{"spec", "status"} {
			s := root.Properties[part]
			fmt.Fprintf(&b, "\n| %s | type | meaning |\n|---|---|---|\n", part)
			if rules := s.rules(); rules != "" {
				fmt.Fprintf(&b, "| | | %s |\n", rules)
			}
			s.write(&b, "")
		}
	}
	writeReasons(t, &b)
	if *update {
		if err := os.WriteFile(page, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(page); err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the definitions say (%v); run: go generate ./api/v1alpha1", page, err)
	}
}

// A schema is what we read of a part of a definition.
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
		all = append(all, v.Message)
	}
	return cell(strings.Join(all, "; "))
}

// foreign are the fields of Kubernetes' own types, which are named only.
var foreign = []string{"resources", "tolerations", "conditions"}

func (s schema) write(b *bytes.Buffer, path string) {
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
			meaning += " Checked: " + rules + "."
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", path, name, p.kind(), meaning)
		if slices.Contains(foreign, name) {
			continue
		}
		p.write(b, path+name+".")
		if p.Items != nil {
			p.Items.write(b, path+name+"[].")
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
	case s.Items != nil && s.MaxItems != nil:
		return fmt.Sprintf("list of %s, at most %d", s.Items.kind(), *s.MaxItems)
	case s.AdditionalProperties != nil:
		return "map"
	case s.Type == "integer" && s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("%d to %d", *s.Minimum, *s.Maximum)
	case s.Format == "date-time":
		return "time"
	case s.Type == "":
		return "quantity"
	}
	return s.Type
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// writeReasons lists the reasons of conditions, as the fleet's decisions have them.
func writeReasons(t *testing.T, b *bytes.Buffer) {
	t.Helper()
	b.WriteString("\n## Reasons\n\n`Ready` is on every kind, and `kubectl wait --for=condition=Ready` works for all of them. Reasons are stable.\n\n| reason | means |\n|---|---|\n")
	files, err := filepath.Glob("../../internal/fleet/*.go")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if !strings.HasPrefix(v.Names[0].Name, "Reason") {
					continue
				}
				reason, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				if comment := strings.TrimSpace(v.Comment.Text()); comment != "" || said[reason] == "" {
					said[reason] = comment
				}
			}
		}
	}
	if len(said) < 50 {
		t.Errorf("%d reasons", len(said))
	}
	for _, reason := range slices.Sorted(maps.Keys(said)) {
		if said[reason] == "" {
			t.Errorf("nothing is said of the reason %s", reason)
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", reason, said[reason])
	}
}
