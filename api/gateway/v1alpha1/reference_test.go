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

var update = flag.Bool("update", false, "write docs/reference/gateway-kinds.md")

const page = "../../../docs/reference/gateway-kinds.md"

// The page of the reference is what the definitions and the constants say today.
func TestReference(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# The gateway's kinds\n\nGroup `gateway.tailscale.com`, version `v1alpha1`. This page is made from the definitions; do not edit it (go generate ./api/gateway/...).\n" +
		"`kubectl explain` says the same. What a field holds that is Kubernetes' own type, such as an affinity, is in Kubernetes' reference.\n")
	files, err := filepath.Glob("../../../deploy/crds/gateway.tailscale.com_*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
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
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		n, root := crd.Spec.Names, crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s; `%s`, short `%s`.\n", n.Kind, oneLine(root.Description), crd.Spec.Scope, n.Plural, strings.Join(n.ShortNames, "`, `"))
		if rules := root.rules(); rules != "" {
			fmt.Fprintf(&b, "Refused: %s.\n", rules)
		}
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
		t.Errorf("%s is not what the definitions say (%v); run: go generate ./api/gateway/...", page, err)
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
	IntOrString               bool                       `json:"x-kubernetes-int-or-string"`
	Validations               []struct{ Message string } `json:"x-kubernetes-validations"`
}

func (s schema) rules() string {
	var all []string
	for _, v := range s.Validations {
		all = append(all, cell(v.Message))
	}
	return strings.Join(all, "; ")
}

// foreign are the fields of Kubernetes' own types, which are named only.
var foreign = []string{"resources", "tolerations", "affinity", "topologySpreadConstraints", "selector", "conditions"}

func (s schema) write(b *bytes.Buffer, path string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		meaning := cell(oneLine(p.Description))
		if slices.Contains(s.Required, name) {
			meaning += " Required."
		}
		if p.Default != nil {
			text, is := p.Default.(string)
			if !is {
				inline, err := json.Marshal(p.Default)
				if err != nil {
					panic(err) // it was read from YAML
				}
				text = string(inline)
			}
			if text != "{}" {
				meaning += " Default `" + text + "`."
			}
		}
		if rules := p.rules(); rules != "" {
			meaning += " Checked: " + rules + "."
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", path, name, p.kind(), meaning)
		if slices.Contains(foreign, name) && p.Type != "string" {
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
	}
	return s.Type
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// writeReasons lists the types and reasons of conditions, as names.go has them.
func writeReasons(t *testing.T, b *bytes.Buffer) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n## Conditions and reasons\n\n`Ready` is on every kind, and `kubectl wait --for=condition=Ready` works for all of them. Reasons are stable.\n\n| | |\n|---|---|\n")
	found := 0
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		group, reasons := "of all kinds", []string{}
		flush := func() {
			if len(reasons) > 0 {
				fmt.Fprintf(b, "| reasons %s | %s |\n", group, strings.Join(reasons, ", "))
			}
			reasons = nil
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			value, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			switch name := v.Names[0].Name; {
			case err != nil:
			case strings.HasPrefix(name, "Condition"):
				found++
				fmt.Fprintf(b, "| condition `%s` | %s |\n", value, strings.TrimSpace(v.Comment.Text()))
			case strings.HasPrefix(name, "Reason"):
				if v.Doc != nil {
					flush()
					group = strings.TrimSpace(v.Doc.Text())
				}
				found++
				text := "`" + value + "`"
				if v.Comment != nil {
					text += " (" + strings.TrimSpace(v.Comment.Text()) + ")"
				}
				reasons = append(reasons, text)
			}
		}
		flush()
	}
	if found < 40 {
		t.Errorf("%d conditions and reasons", found)
	}
}
