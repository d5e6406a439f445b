package tailplane

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Limits that keep files readable, in lines.
const (
	longestFile     = 500
	longestTestFile = 800
	longestFunction = 80
)

// tracked returns the files of the checkout that match a pattern, without those that are deleted but not committed yet.
func tracked(t *testing.T, pattern string) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", pattern).Output()
	if err != nil {
		t.Skipf("SKIP %s: this is no checkout of git: %v", t.Name(), err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
		_, err := os.Stat(name)
		return os.IsNotExist(err)
	})
}

// alternatives returns how many conditions "||" joins in a condition.
func alternatives(e ast.Expr) int {
	if or, ok := e.(*ast.BinaryExpr); ok && or.Op == token.LOR {
		return alternatives(or.X) + alternatives(or.Y)
	}
	return 1
}

// reportsFailure reports whether a statement fails a test.
func reportsFailure(s ast.Stmt) bool {
	expr, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if of, ok := method.X.(*ast.Ident); ok && of.Name == "http" { // http.Error answers a request
		return false
	}
	return slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, method.Sel.Name)
}

// TestAssertions checks that one failure of a test does not stand for three conditions or more: its line must say which one failed.
func TestAssertions(t *testing.T) {
	for _, path := range tracked(t, "*_test.go") {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse %s: %v", path, err)
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.IfStmt); ok && alternatives(s.Cond) > 2 && len(s.Body.List) > 0 && reportsFailure(s.Body.List[0]) {
				t.Errorf("%s: one assertion of %d conditions; split it", fset.Position(s.Pos()), alternatives(s.Cond))
			}
			return true
		})
	}
}

// longest returns the longest function of a file, and its lines.
func longest(fset *token.FileSet, file *ast.File) (name string, lines int) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; n > lines {
				name, lines = f.Name.Name, n
			}
		}
	}
	return name, lines
}

// TestLimits measures every Go file of the repository that is not generated.
func TestLimits(t *testing.T) {
	measured := 0
	for _, path := range tracked(t, "*.go") {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse %s: %v", path, err)
			continue
		}
		if ast.IsGenerated(file) {
			continue
		}
		measured++
		// A test's table and steps are read from top to bottom; the limit for functions is for the logic of the product.
		most := longestTestFile
		if !strings.HasSuffix(path, "_test.go") {
			most = longestFile
			if name, lines := longest(fset, file); lines > longestFunction {
				t.Errorf("%s: %s has %d lines, more than %d", path, name, lines, longestFunction)
			}
		}
		if lines := fset.File(file.Pos()).LineCount() - 1; lines > most {
			t.Errorf("%s has %d lines, more than %d", path, lines, most)
		}
	}
	if measured < 500 {
		t.Errorf("only %d files were measured", measured)
	}
}
