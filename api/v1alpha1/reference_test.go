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

// The reference pages match the CRDs and the reasons of their conditions.
func TestReference(t *testing.T) {
	for _, tt := range []struct {
		page, title, about, names, reasons, ready string
		least                                     int
	}{
		{"fleet-kinds.md", "The fleet's kinds", " Types of Kubernetes itself, such as tolerations, are described in the Kubernetes reference.",
			"runnerforges runnerpools runnerenrollments runnerholds", "../../internal/fleet/*.go", "`Ready` exists on every kind, and `kubectl wait --for=condition=Ready` works for all of them.", 50},
		{"signin-kinds.md", "The kind of sign-ins", " The access server writes the spec, and the operator the status. Nobody else may: admission policies refuse it. To end a sign-in, delete the object.",
			"tkasignins", "../../internal/signin/*.go", "The condition `Ready` has one of these reasons.", 10},
	} {
		var b strings.Builder
		fmt.Fprintf(&b, "# %s\n\nGroup `tailplane.dev`, version `v1alpha1`. This page is generated from the definitions. Do not edit it (go generate ./api/v1alpha1).\n"+
			"`kubectl explain` shows the same text.%s\n", tt.title, tt.about)
		for _, name := range strings.Fields(tt.names) {
			apitest.ReadKind(t, "../../deploy/crds/tailplane.dev_"+name+".yaml").Write(&b, "resources", "tolerations", "conditions")
		}
		fmt.Fprintf(&b, "\n## Reasons\n\n%s Reasons are stable.\n\n| reason | meaning |\n|---|---|\n", tt.ready)
		writeReasons(t, &b, tt.reasons, tt.least)
		apitest.Page(t, "../../docs/reference/"+tt.page, b.String())
	}
}

// writeReasons lists the condition reasons, at least so many, from the constants of a package.
func writeReasons(t *testing.T, b *strings.Builder, pattern string, least int) {
	t.Helper()
	files, err := filepath.Glob(pattern)
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
	if len(meanings) < least {
		t.Errorf("%d reasons", len(meanings))
	}
	for _, reason := range slices.Sorted(maps.Keys(meanings)) {
		if meanings[reason] == "" {
			t.Errorf("no comment describes the reason %s", reason)
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", reason, meanings[reason])
	}
}
