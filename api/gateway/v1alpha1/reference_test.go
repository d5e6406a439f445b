package v1alpha1_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/apitest"
)

const page = "../../../docs/reference/gateway-kinds.md"

// The reference page matches the CRDs and the constants.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# The gateway's kinds\n\nGroup `gateway.tailscale.com`, version `v1alpha1`. This page is generated from the definitions. Do not edit it (go generate ./api/gateway/...).\n" +
		"`kubectl explain` shows the same text. Types of Kubernetes itself, such as affinity, are described in the Kubernetes reference.\n")
	files := apitest.Definitions(t, "../../..", "gateway.tailscale.com")
	if len(files) != 5 {
		t.Fatal(files)
	}
	for _, file := range files {
		apitest.ReadKind(t, file).Write(&b, "resources", "tolerations", "affinity", "topologySpreadConstraints", "selector", "conditions")
	}
	writeReasons(t, &b)
	apitest.Page(t, page, b.String())
}

// writeReasons lists the condition types and reasons in names.go.
func writeReasons(t *testing.T, b *strings.Builder) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n## Conditions and reasons\n\n`Ready` exists on every kind, and `kubectl wait --for=condition=Ready` works for all of them. Reasons are stable.\n\n| | |\n|---|---|\n")
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
