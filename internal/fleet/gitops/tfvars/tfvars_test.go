package tfvars

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/rogpeppe/go-internal/diff"
)

const file = `# Runners. Ask #platform before you change this.
arc_namespace = "arc-runners" # ours

gh_nix_min = 0
gh_nix_max = 5 # five is what the nodes carry

runner_sets = {
  gh-docker = {
    min    = 0 # none at night
    max    = 3
    labels = ["self-hosted", "docker"]
  }
  # since 2024
  "gh-dind" = { min = 0, max = 2 }
}

owners = [
  "amy@acme.dev", # since 2024
  "bob@acme.dev",
  # the one who pays
  "cyd@acme.dev"
]
note = <<EOT
several
lines
EOT
`

func values(t *testing.T, text string) any {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	v, err := canonicalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// FLEET-15: an edit changes only the lines that it must. Comments and the order of all else stay.
func TestFLEET15_Set(t *testing.T) {
	for name, x := range map[string]struct{ key, value, diff string }{ // no value: delete the key
		"a number":                {"gh_nix_max", `8`, "-gh_nix_max = 5 # five is what the nodes carry\n+gh_nix_max = 8 # five is what the nodes carry\n"},
		"in an object":            {"runner_sets.gh-docker.min", `1`, "-    min    = 0 # none at night\n+    min    = 1 # none at night\n"},
		"on one line":             {"runner_sets.gh-dind.max", `4`, "-  \"gh-dind\" = { min = 0, max = 2 }\n+  \"gh-dind\" = { min = 0, max = 4 }\n"},
		"another on one line":     {"runner_sets.gh-dind.budget", `4`, "-  \"gh-dind\" = { min = 0, max = 2 }\n+  \"gh-dind\" = { min = 0, max = 2, budget = 4 }\n"},
		"another in an object":    {"runner_sets.gh-docker.image", `"x"`, "+    image  = \"x\"\n"},
		"another object":          {"runner_sets.gh-nix.max", `1`, "+  gh-nix = {\n+    max = 1\n+  }\n"},
		"another variable":        {"more", `{"a":["${x}",null,true]}`, "+more = {\n+  a = [\"$${x}\", null, true]\n+}\n"},
		"an item of a list":       {"owners", `["amy@acme.dev","cyd@acme.dev","dan@acme.dev"]`, "-  \"bob@acme.dev\",\n-  \"cyd@acme.dev\"\n+  \"cyd@acme.dev\",\n+  \"dan@acme.dev\",\n"},
		"another first":           {"owners", `["zoe@acme.dev","amy@acme.dev","bob@acme.dev","cyd@acme.dev"]`, "+  \"zoe@acme.dev\",\n"},
		"a list on one line":      {"runner_sets.gh-docker.labels", `["docker"]`, "-    labels = [\"self-hosted\", \"docker\"]\n+    labels = [\"docker\"]\n"},
		"a text of lines":         {"note", `"one"`, "-note = <<EOT\n-several\n-lines\n-EOT\n+note = \"one\"\n"},
		"one goes":                {"gh_nix_max", ``, "-gh_nix_max = 5 # five is what the nodes carry\n"},
		"one of an object goes":   {"runner_sets.gh-docker.max", ``, "-    max    = 3\n"},
		"one of a line goes":      {"runner_sets.gh-dind.min", ``, "-  \"gh-dind\" = { min = 0, max = 2 }\n+  \"gh-dind\" = { max = 2 }\n"},
		"an object goes":          {"runner_sets.gh-dind", ``, "-  \"gh-dind\" = { min = 0, max = 2 }\n"},
		"a key that is a keyword": {"runner_sets.gh-dind.for", `1`, "-  \"gh-dind\" = { min = 0, max = 2 }\n+  \"gh-dind\" = { min = 0, max = 2, \"for\" = 1 }\n"},
	} {
		t.Run(name, func(t *testing.T) {
			key := strings.Split(x.key, ".")
			var out []byte
			var err error
			if x.value == "" {
				out, err = deleteVariable([]byte(file), key)
			} else {
				out, err = setVariable([]byte(file), key, values(t, x.value))
			}
			if err != nil {
				t.Fatal(err)
			}
			var lines strings.Builder
			for l := range strings.Lines(string(diff.Diff("a", []byte(file), "b", out))) {
				if (l[0] == '-' || l[0] == '+') && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "+++") {
					lines.WriteString(l)
				}
			}
			if lines.String() != x.diff {
				t.Errorf("changed\n%swant\n%s", lines.String(), x.diff)
			}
		})
	}
}

// A file in no formatter's style keeps its style and its line ends.
func TestLayout(t *testing.T) {
	for in, want := range map[string]string{
		"a=1\r\nb   =   2\r\n": "a=7\r\nb   =   2\r\n", "a = 1": "a = 7", "a = {\n}\n": "a = 7\n", "\ta = 1 // x\n": "\ta = 7 // x\n", "\ufeffa = 1\n": "\ufeffa = 7\n",
	} {
		if out, err := setVariable([]byte(in), []string{"a"}, json.Number("7")); err != nil || string(out) != want {
			t.Errorf("%q: %q, %v", in, out, err)
		}
	}
	if out, err := setVariable(nil, []string{"a"}, json.Number("7")); err != nil || string(out) != "a = 7\n" {
		t.Errorf("%q, %v", out, err)
	}
	// An edit that would lose comments is refused.
	for _, in := range []string{"a = [1, /* one */ 2]\n", "a = [ # here\n1, 2 ]\n", "a = [1,\n 2, # two\n 3]\n"} {
		if out, err := setVariable([]byte(in), []string{"a"}, values(t, `[1]`)); !errors.Is(err, errLayout) {
			t.Errorf("%q: %q, %v", in, out, err)
		}
	}
}

// PL-09: Read refuses everything except plain values, duplicate keys, and nesting that is too deep for the parser.
func TestPL09_Read(t *testing.T) {
	for _, bad := range []string{"a = b", "a = f(1)", "a = \"${b}\"", "a = \"%{ if x }y%{ endif }\"", "a = 1 + 2", "a = 1\na = 2\n", "a = {b = 1, b = 2}", "a = {b = 1, \"b\" = 2}", "b {\n}\n", "a = [for x in [1] : x]",
		"a = (1)", "a = --1", "a = {(b) = 1}", "a = \x00", "a = \"\xff\"", "a = \"\n\"", "a = 1e999999999", "a = [1,", "a = b.c", "a = [1][0]", "a = !true", "a = <<EOT\n${b}\nEOT\n",
		"a = " + strings.Repeat("[", 500000), "a = " + strings.Repeat("{b=", 100000), "a = " + strings.Repeat("-", 100000) + "1"} {
		if v, err := readVariables([]byte(bad)); !errors.Is(err, errUnreadable) {
			t.Errorf("%.40q: %v, %v", bad, v, err)
		}
	}
	hostile := "x\"\n}\n# ${a} %{b} \\ \u202e <<EOT\tnull"
	out, err := setVariable([]byte(file), []string{"owners"}, []any{hostile})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readVariables(out); err != nil || !reflect.DeepEqual(got["owners"], []any{hostile}) {
		t.Errorf("%q, %v", got["owners"], err)
	}
	for _, key := range []string{"", "9a", "a b", "a\nb", "a-b = 1 #", "gh_nix_min.x", "nothing.x"} {
		if out, err := deleteVariable([]byte(file), strings.Split(key, ".")); !errors.Is(err, errLayout) {
			t.Errorf("%q: %q, %v", key, out, err)
		}
	}
}

// FuzzSet checks that Set either fails or returns a file with exactly the desired values. A formatted file stays formatted, and the number
// of comments stays the same.
func FuzzSet(f *testing.F) {
	f.Add(file, "runner_sets.gh-docker.max", `8`)
	f.Add(file, "owners", `["bob@acme.dev","x"]`)
	f.Add("a = [\n  1, # x\n  2\n]\n", "a", `[2,3]`)
	f.Add("a = {\n  b = <<-X\n  y\n  X\n  c = 1\n}\n", "a.b", `{"for":"${x}"}`)
	f.Add("a={b:1,c:[]}", "a.c", `[{"x":null}]`)
	f.Fuzz(func(t *testing.T, file, key, value string) {
		var v any
		d := json.NewDecoder(strings.NewReader(value))
		d.UseNumber()
		if d.Decode(&v) != nil {
			return
		}
		v, err := canonicalValue(v)
		if err != nil {
			return
		}
		before, err := readVariables([]byte(file))
		if err != nil {
			return
		}
		path := strings.Split(key, ".")
		out, err := setVariable([]byte(file), path, v)
		if err != nil {
			if !errors.Is(err, errLayout) {
				t.Fatalf("%v", err)
			}
			return
		}
		setValue(before, path, v)
		if after, err := readVariables(out); err != nil || !reflect.DeepEqual(after, before) {
			t.Fatalf("it is %v, want %v (%v)", after, before, err)
		}
		if bytes.Equal(hclwrite.Format([]byte(file)), []byte(file)) && !bytes.Equal(hclwrite.Format(out), out) {
			t.Errorf("it is no longer formatted: %q", out)
		}
		if _, err := deleteVariable(out, path); err != nil && !errors.Is(err, errLayout) {
			t.Error(err)
		}
	})
}
