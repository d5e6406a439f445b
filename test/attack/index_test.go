// Package attack tests each attack of the attack list. Every attack has one test, named after its id. The tests are
// in one package per area, in the folders below. This package holds the index over all of them.
//
// A status code proves nothing. Each test therefore asserts on the requests that the API server received, the objects
// that it stores, the audit log and the role bindings. Each test also sends the same request without the attack, as a
// control.
//
// Every row runs against every listener of the product. The identity package reads the list of listeners from the
// program's settings.
package attack

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/attacktest"
)

// mostMissing is the highest allowed number of missing tests. It may decrease but must never increase.
const mostMissing = 4

// TestIndex fails on a row without a test for each of its fronts, a test without a row, a test that does not name the guard that it
// protects, and a skip that the index does not list.
func TestIndex(t *testing.T) {
	paths, err := filepath.Glob("*/*_test.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no area has tests: %v", err)
	}
	name := regexp.MustCompile(`^Test([A-Z]{2})([0-9]{2})_[A-Z]`)
	areas, skipped := map[string][]string{}, []string{} // the areas that test a row, by its id
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || slices.Contains([]string{"TestMain"}, fn.Name.Name) {
				continue
			}
			m := name.FindStringSubmatch(fn.Name.Name)
			if m == nil {
				t.Errorf("%s has no id", fn.Name.Name)
				continue
			}
			id := m[1] + "-" + m[2]
			areas[id] = append(areas[id], filepath.Dir(path))
			if _, ok := attacktest.Index[id]; !ok {
				t.Errorf("%s: the row %s is missing", fn.Name.Name, id)
			}
			if doc := fn.Doc.Text(); !strings.HasPrefix(doc, id+". ") || !strings.Contains(doc, "\nGuard: ") {
				t.Errorf("%s: its comment does not begin with %s and name the guard that it protects", fn.Name.Name, id)
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 2 {
					return true
				}
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Missing" {
					part, err := strconv.Unquote(call.Args[1].(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					skipped = append(skipped, id+" "+part)
				}
				return true
			})
		}
	}
	for id := range attacktest.Fronts {
		if _, ok := attacktest.Index[id]; !ok {
			t.Errorf("the fronts name the row %s, which is missing", id)
		}
	}
	n := 0
	for id, parts := range attacktest.Index {
		slices.Sort(areas[id])
		switch fronts := attacktest.Fronts[id]; {
		case fronts != nil && !slices.Equal(areas[id], fronts):
			t.Errorf("%s has tests in %q, want one in each of %q", id, areas[id], fronts)
		case fronts == nil && len(areas[id]) != 1:
			t.Errorf("%s has tests in %q, want one", id, areas[id])
		}
		for _, sentence := range parts {
			n++
			part, _, _ := strings.Cut(sentence, ": ")
			if !slices.Contains(skipped, id+" "+part) {
				t.Errorf("%s: no test skips %q", id, part)
			}
		}
	}
	fmt.Fprintf(os.Stdout, "attack: %d rows, %d parts skipped\n", len(attacktest.Index), n)
	if n > mostMissing {
		t.Errorf("%d parts are skipped, more than %d", n, mostMissing)
	}
}
