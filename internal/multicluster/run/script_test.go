package run

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"mca": func() { Main("") }})
}

// ADP-30.
func TestScripts(t *testing.T) {
	document, err := os.ReadFile("../config/testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			return os.WriteFile(e.Cd+"/config.yaml", document, 0o600)
		},
	})
}
