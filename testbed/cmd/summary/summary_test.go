package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TB-11: a skip is never counted as a pass, and a run without a pass has failed.
func TestTB11_SkipsAreNoPasses(t *testing.T) {
	for _, tt := range []struct {
		name, json, demo string
		failed           bool
	}{
		{"passed", `{"Action":"pass","Package":"p","Test":"A"}`, "pass", false},
		{"only skipped", `{"Action":"output","Package":"p","Test":"A","Output":"    x_test.go:1: SKIP envoy: none\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"A"}`, "", true},
		{"failed", `{"Action":"pass","Package":"p","Test":"A"}` + "\n" + `{"Action":"fail","Package":"p","Test":"B"}`, "pass", true},
		{"a package that does not compile", `{"Action":"pass","Package":"p","Test":"A"}` + "\n" + `{"Action":"fail","Package":"q"}`, "pass", true},
		{"demo failed", `{"Action":"pass","Package":"p","Test":"A"}`, "fail", true},
		{"nothing ran", ``, "", true},
	} {
		file := filepath.Join(t.TempDir(), "out.json")
		if err := os.WriteFile(file, []byte(tt.json), 0o600); err != nil {
			t.Fatal(err)
		}
		if failed, err := run(tt.demo, []string{file}); err != nil || failed != tt.failed {
			t.Errorf("%s: failed %v, %v", tt.name, failed, err)
		}
	}
	if got := reason("=== RUN A\n    x_test.go:12: SKIP envoy: no wheel\n--- SKIP: A\n"); got != "SKIP envoy: no wheel" {
		t.Errorf("reason %q", got)
	}
}
