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

// overLimit has, for each file that is over a limit today, its lines and those of its longest function; 0 means
// within the limit. The figures must only decrease, and an entry that is no longer needed fails the test.
var overLimit = map[string]struct{ lines, function int }{
	"testbed/cmd/demo/adapter.go":              {0, 90},
	"testbed/cmd/demo/fleet.go":                {0, 105},
	"testbed/cmd/podclient/main.go":            {0, 95},
	"testbed/devcluster/main.go":               {0, 91},
	"testbed/podnode/pod.go":                   {0, 88},
	"testbed/podnode/run.go":                   {0, 113},
	"testkit/forgetest/githubgit.go":           {0, 153},
	"testkit/forgetest/githubpulls.go":         {0, 149},
	"testkit/forgetest/githubrunners.go":       {0, 137},
	"testkit/forgetest/gitlabchange.go":        {542, 0},
	"testkit/tailnettest/mapstream.go":         {0, 81},
	"testkit/tailnettest/tailpolicy/policy.go": {580, 0},
}

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

// TestLimits measures every Go file of the repository that is not generated.
func TestLimits(t *testing.T) {
	measured, found := 0, map[string]bool{}
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
		test := strings.HasSuffix(path, "_test.go")
		lines, most := fset.File(file.Pos()).LineCount()-1, longestFile
		if test {
			most = longestTestFile
		}
		function, name := 0, ""
		for _, d := range file.Decls {
			// A test's table and steps are read from top to bottom; the limit is for the logic of the product.
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && !test {
				if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; n > function {
					function, name = n, f.Name.Name
				}
			}
		}
		known, listed := overLimit[path]
		found[path] = true
		if lines > max(most, known.lines) {
			t.Errorf("%s has %d lines, more than %d", path, lines, max(most, known.lines))
		}
		if function > max(longestFunction, known.function) {
			t.Errorf("%s: %s has %d lines, more than %d", path, name, function, max(longestFunction, known.function))
		}
		if listed && lines <= most && function <= longestFunction {
			t.Errorf("%s is within the limits: remove its entry", path)
		}
	}
	for path := range overLimit {
		if !found[path] {
			t.Errorf("there is no %s: remove its entry", path)
		}
	}
	if measured < 500 {
		t.Errorf("only %d files were measured", measured)
	}
}
