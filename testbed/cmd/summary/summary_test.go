package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TB-11: a skip never counts as a pass, and a run without a pass fails.
func TestTB11_SkipsAreNoPasses(t *testing.T) {
	for _, tt := range []struct {
		name, json, demo string
		failed           bool
	}{
		{"passed", `{"Action":"pass","Package":"p","Test":"A"}`, "pass", false},
		{"only skipped", `{"Action":"output","Package":"p","Test":"A","Output":"    x_test.go:1: SKIP envoy: none\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"A"}`, "", true},
		{"skipped for speed", `{"Action":"pass","Package":"p","Test":"B"}` + "\n" + `{"Action":"output","Package":"p","Test":"A","Output":"    x_test.go:1: SKIP cluster: -short was given\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"A"}`, "", true},
		{"failed", `{"Action":"pass","Package":"p","Test":"A"}` + "\n" + `{"Action":"fail","Package":"p","Test":"B"}`, "pass", true},
		{"a package that does not compile", `{"Action":"pass","Package":"p","Test":"A"}` + "\n" + `{"Action":"fail","Package":"q"}`, "pass", true},
		{"demo failed", `{"Action":"pass","Package":"p","Test":"A"}`, "fail", true},
		{"nothing ran", ``, "", true},
	} {
		file := filepath.Join(t.TempDir(), "out.json")
		if err := os.WriteFile(file, []byte(tt.json), 0o600); err != nil {
			t.Fatal(err)
		}
		if failed, err := run(t.Output(), tt.demo, []string{file}); err != nil || failed != tt.failed {
			t.Errorf("%s: failed %v, %v", tt.name, failed, err)
		}
	}
	if got := reason("=== RUN A\n    x_test.go:12: SKIP envoy: no wheel\n--- SKIP: A\n"); got != "SKIP envoy: no wheel" {
		t.Errorf("reason %q", got)
	}
}

// The summary names each failure with the test's output, and each reason of a skip with its tests.
func TestReport(t *testing.T) {
	const (
		failed = `{"Action":"output","Package":"p","Test":"B","Output":"why\n"}` + "\n" + `{"Action":"fail","Package":"p","Test":"B"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
		skips  = `{"Action":"output","Package":"p","Test":"C/zsh","Output":"    x_test.go:1: SKIP zsh: none\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"C/zsh"}` + "\n" +
			`{"Action":"output","Package":"q","Test":"D","Output":"    y_test.go:1: SKIP zsh: none\n"}` + "\n" + `{"Action":"skip","Package":"q","Test":"D"}` + "\n"
	)
	file := filepath.Join(t.TempDir(), "out.json")
	if err := os.WriteFile(file, []byte(`{"Action":"pass","Package":"p","Test":"A"}`+"\n"+failed+skips), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	bad, err := run(&out, "", []string{file})
	if err != nil {
		t.Fatal(err)
	}
	if !bad {
		t.Error("a run with a failed test is good")
	}
	if want := "SKIP zsh: none (p C/zsh, q D)\n---- p B\nwhy\nFAIL p B\n1 passed, 1 failed, 2 skipped\n"; out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// The messages of a failed test are shown even if a long log follows, and the log is shortened.
func TestTail(t *testing.T) {
	said := "=== RUN B\n    b_test.go:7: want 3\n" + strings.Repeat("        a log\n", 100) + "        " + strings.Repeat("x", 1000) + "\n    b_test.go:9: the log's end\n--- FAIL: B\n"
	got := tail(said)
	switch {
	case !strings.Contains(got, "b_test.go:7: want 3\n"):
		t.Errorf("got = %q does not contain %q", got, "b_test.go:7: want 3\n")
	case strings.Count(got, "a log") != 17:
		t.Errorf(`strings.Count(got, "a log") = %v, want 17`, strings.Count(got, "a log"))
	case strings.Count(got, "b_test.go:9") != 1:
		t.Errorf(`strings.Count(got, "b_test.go:9") = %v, want 1`, strings.Count(got, "b_test.go:9"))
	case len(got) > 1000:
		t.Errorf("len(got) = %v, want at most 1000", len(got))
	case !strings.HasSuffix(got, "--- FAIL: B\n"):
		t.Errorf("got = %q does not end with %q", got, "--- FAIL: B\n")
	}
}
