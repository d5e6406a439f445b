package v1alpha1_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/apitest"
)

const page = "../../docs/reference/fleet-kinds.md"

// The reference page matches the CRDs and the fleet's reasons.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# The fleet's kinds\n\nGroup `tailplane.dev`, version `v1alpha1`. This page is generated from the definitions. Do not edit it (go generate ./api/v1alpha1).\n" +
		"`kubectl explain` shows the same text. Types of Kubernetes itself, such as tolerations, are described in the Kubernetes reference.\n")
	for _, name := range []string{"runnerforges", "runnerpools", "runnerenrollments", "runnerholds"} {
		apitest.ReadKind(t, "../../deploy/crds/tailplane.dev_"+name+".yaml").Write(&b, "resources", "tolerations", "conditions")
	}
	writeReasons(t, &b)
	apitest.Page(t, page, b.String())
}

// writeReasons lists the condition reasons, from the constants of package fleet.
func writeReasons(t *testing.T, b *strings.Builder) {
	t.Helper()
	b.WriteString("\n## Reasons\n\n`Ready` exists on every kind, and `kubectl wait --for=condition=Ready` works for all of them. Reasons are stable.\n\n| reason | meaning |\n|---|---|\n")
	files, err := filepath.Glob("../../internal/fleet/*.go")
	if err != nil {
		t.Fatal(err)
	}
	meanings := map[string]string{}
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
				if comment := strings.TrimSpace(v.Comment.Text()); comment != "" || meanings[reason] == "" {
					meanings[reason] = comment
				}
			}
		}
	}
	if len(meanings) < 50 {
		t.Errorf("%d reasons", len(meanings))
	}
	for _, reason := range slices.Sorted(maps.Keys(meanings)) {
		if meanings[reason] == "" {
			t.Errorf("no comment describes the reason %s", reason)
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", reason, meanings[reason])
	}
}
