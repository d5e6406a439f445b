package main

import (
	"os"
	"path/filepath"
	"strings"
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
		if failed, err := run(t.Output(), tt.demo, false, "", []string{file}); err != nil || failed != tt.failed {
			t.Errorf("%s: failed %v, %v", tt.name, failed, err)
		}
	}
	if got := reason("=== RUN A\n    x_test.go:12: SKIP envoy: no wheel\n--- SKIP: A\n"); got != "SKIP envoy: no wheel" {
		t.Errorf("reason %q", got)
	}
}

// What fails beside others may be tried once more, alone; a data race, a package
// that died, and many failures may not.
func TestAgain(t *testing.T) {
	const (
		said   = `{"Action":"output","Package":"p","Test":"B","Output":"why\n"}` + "\n"
		passed = `{"Action":"pass","Package":"p","Test":"A"}` + "\n"
		one    = passed + said + `{"Action":"fail","Package":"p","Test":"B/x"}` + "\n" + `{"Action":"fail","Package":"p","Test":"B"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
		skips  = `{"Action":"output","Package":"p","Test":"C/zsh","Output":"    x_test.go:1: SKIP zsh: none\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"C/zsh"}` + "\n" +
			`{"Action":"output","Package":"q","Test":"D","Output":"    y_test.go:1: SKIP zsh: none\n"}` + "\n" + `{"Action":"skip","Package":"q","Test":"D"}` + "\n"
		race = one + `{"Action":"output","Package":"p","Test":"A","Output":"WARNING: DATA RACE\n"}`
		died = one + `{"Action":"fail","Package":"q"}`
	)
	many := ""
	for _, c := range "BCDEFGH" {
		many += strings.ReplaceAll(one, "B", string(c))
	}
	for _, tt := range []struct {
		name, first, list, second, last string
	}{
		{"passes alone", one, "p B\n", `{"Action":"pass","Package":"p","Test":"B"}`, "---- p B\nwhy\nAGAIN p B: failed beside others, passed alone\n2 passed, 0 failed, 0 skipped\n"},
		{"fails again", one, "p B\n", `{"Action":"fail","Package":"p","Test":"B"}`, "FAIL p B/x\nFAIL p B\n1 passed, 2 failed, 0 skipped\n"},
		{"not tried", one, "p B\n", ``, "FAIL p B/x\nFAIL p B\n1 passed, 2 failed, 0 skipped\n"},
		{"tests that skip for one reason", passed + skips, "", ``, "SKIP zsh: none (p C/zsh, q D)\n1 passed, 0 failed, 2 skipped\n"},
		{"skipped the second time", one, "p B\n", `{"Action":"skip","Package":"p","Test":"B"}`, "FAIL p B/x\nFAIL p B\n1 passed, 2 failed, 0 skipped\n"},
		{"a data race", race, "", ``, "FAIL p B/x\nFAIL p B\n1 passed, 2 failed, 0 skipped\n"},
		{"a data race the second time", one, "p B\n", `{"Action":"output","Package":"p","Test":"B","Output":"WARNING: DATA RACE\n"}` + "\n" + `{"Action":"pass","Package":"p","Test":"B"}`, "FAIL p B/x\nFAIL p B\n1 passed, 2 failed, 0 skipped\n"},
		{"a package died", died, "", ``, "FAIL p B/x\nFAIL p B\nFAIL q \n1 passed, 3 failed, 0 skipped\n"},
		{"many", many, "", ``, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := func(text string) string {
				f := filepath.Join(t.TempDir(), "out.json")
				if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return f
			}
			first, second := file(tt.first), file(tt.second)
			var out strings.Builder
			if _, err := run(&out, "", true, "", []string{first}); err != nil || out.String() != tt.list {
				t.Errorf("to try again: %q, %v; want %q", out.String(), err, tt.list)
			}
			out.Reset()
			failed, err := run(&out, "", false, second, []string{first})
			if err != nil || failed != strings.Contains(out.String(), "FAIL") || !strings.HasSuffix(out.String(), tt.last) {
				t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
			}
		})
	}
}

// What a test failed of is shown although a long log came after it, and the log shortly.
func TestTail(t *testing.T) {
	said := "=== RUN B\n    b_test.go:7: want 3\n" + strings.Repeat("        a log\n", 100) + "        " + strings.Repeat("x", 1000) + "\n    b_test.go:9: the log's end\n--- FAIL: B\n"
	got := tail(said)
	if !strings.Contains(got, "b_test.go:7: want 3\n") || strings.Count(got, "a log") != 17 || strings.Count(got, "b_test.go:9") != 1 || len(got) > 1000 || !strings.HasSuffix(got, "--- FAIL: B\n") {
		t.Errorf("%s", got)
	}
}
