package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// Acceptance 26, IN-05: manifests as people write them.
func TestFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/files/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			in := a.Files[0]
			out, results, err := Files([]Source{{in.Name, in.Data}}, testOptions(), nil)
			if err != nil {
				t.Fatal(err, results)
			}
			var says strings.Builder
			for _, f := range results {
				fmt.Fprintf(&says, "%s:%d %s %s %s %s\n", f.File, f.Line, f.Kind, f.Name, f.Outcome, f.Code)
			}
			got := *a
			got.Files = []txtar.File{in, {Name: "found", Data: []byte(strings.ReplaceAll(says.String(), " \n", "\n"))}, {Name: "out" + filepath.Ext(in.Name), Data: out[0].Text}}
			if b := txtar.Format(&got); *update {
				if err := os.WriteFile(path, b, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want, _ := os.ReadFile(path); !bytes.Equal(b, want) {
				t.Errorf("%s differs; if that is meant, run: go test ./internal/inject -update\n%s", path, b)
			}
			checkFileLaws(t, in.Data)
		})
	}
}

// checkFileLaws checks the properties that hold for every source.
func checkFileLaws(t testing.TB, text []byte) {
	t.Helper()
	out, results, err := Files([]Source{{"x", text}}, testOptions(), nil)
	if err != nil {
		if out != nil {
			t.Error("an error, and data to write")
		}
		return
	}
	again, more, err := Files([]Source{{"x", text}}, testOptions(), nil)
	switch {
	case err != nil:
		t.Errorf("not the same twice: %v", err)
	case !reflect.DeepEqual(out, again):
		t.Errorf("not the same twice: out (-want +got):\n%s", cmp.Diff(again, out))
	case !reflect.DeepEqual(results, more):
		t.Errorf("not the same twice: results = %v, want %v", results, more)
	}
	twice, more, err := Files(out, testOptions(), nil)
	if err != nil || !bytes.Equal(twice[0].Text, out[0].Text) {
		t.Errorf("the second time: %v\n%s\n%s", err, out[0].Text, twice)
	}
	changed := false
	for i, f := range more {
		if f.Outcome != Unchanged && f.Outcome != Skipped {
			t.Errorf("the second time, %s is %s: %s", f.Name, f.Outcome, f.Message)
		}
		changed = changed || results[i].Outcome == Patched
	}
	if changed == bytes.Equal(text, out[0].Text) {
		t.Errorf("patched %v:\n%s", changed, out[0].Text)
	}
	// The output must have as many documents as the source.
	if was, is := yamledit.Split(text), yamledit.Split(out[0].Text); len(was) != len(is) {
		t.Errorf("%d documents became %d", len(was), len(is))
	}
}

// TestFilesAndWebhookAgree checks that Files and the webhook give the same result.
func TestFilesAndWebhookAgree(t *testing.T) {
	paths, _ := filepath.Glob("testdata/pod/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if f.Name != "pod.yaml" {
				continue
			}
			text := "apiVersion: v1\nkind: Pod\n" + strings.TrimPrefix(string(f.Data), "apiVersion: v1\nkind: Pod\n")
			if filepath.Base(path) == "unknown.txtar" {
				text = strings.Replace(text, "1e3", "1000", 1) // k8syaml reads it as a float
				text = strings.Replace(text, "123456789012345678901234567890", "1", 1)
			}
			o := testOptions()
			o.Unlabelled = InjectUnlabelled
			pod := toJSON(t, text)
			v := Pod(pod, o)
			want := applyPatch(t, pod, v.Patch)
			for name, source := range map[string][]byte{"YAML": []byte(text), "JSON": pod} {
				out, results, err := Files([]Source{{path, source}}, o, nil)
				if v.Outcome == Refused {
					switch {
					case !errors.Is(err, ErrRefused):
						t.Errorf("%s as %s: %v, want %v", path, name, err, ErrRefused)
					case out != nil:
						t.Errorf("%s as %s: out = %v, want nil", path, name, out)
					case results[0].Code != v.Code:
						t.Errorf("%s as %s: results[0].Code = %q, want %q", path, name, results[0].Code, v.Code)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s as %s: %v", path, name, err)
					continue
				}
				j, err := k8syaml.YAMLToJSONStrict(out[0].Text)
				if err != nil {
					t.Errorf("%s as %s: %v\n%s", path, name, err, out[0].Text)
					continue
				}
				got, _ := decode(j)
				if g, w := encode(t, got), encode(t, want); !bytes.Equal(g, w) {
					t.Errorf("%s as %s:\n%s\n%s", path, name, g, w)
				}
			}
		}
	}
}

func TestFilesRefuse(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}]}\n"
	bad := strings.Replace(pod, "spec: {", "spec: {hostNetwork: true, ", 1)
	out, results, err := Files([]Source{{"good.yaml", []byte(pod)}, {"bad.yaml", []byte("\n---\n" + bad)}}, testOptions(), nil)
	switch {
	case !errors.Is(err, ErrRefused):
		t.Errorf("%v, want %v", err, ErrRefused)
	case out != nil:
		t.Errorf("out = %v, want nil", out)
	case len(results) != 2:
		t.Errorf("len(results) = %v, want 2", len(results))
	case results[1].Code != HostNetwork:
		t.Errorf("results[1].Code = %q, want %q", results[1].Code, HostNetwork)
	case results[1].Line != 3:
		t.Errorf("results[1].Line = %v, want 3", results[1].Line)
	case !strings.HasPrefix(results[1].String(), "bad.yaml:3: Pod p: "):
		t.Errorf("results[1].String() = %q does not start with %q", results[1].String(), "bad.yaml:3: Pod p: ")
	}
	for why, text := range map[string]string{
		"twice":                 "apiVersion: v1\nkind: Pod\nkind: Pod\nspec: {containers: [{name: a}]}\n",
		"line 6":                "a: 1\n---\n" + strings.Replace(pod, "spec: {", "spec: {]", 1),
		"a key is not a string": "a: 1\n---\nkind: Pod\nspec: {{ .Values.x }}\n",
		"anchor":                "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - &c\n    name: a\n    env: [{name: X, value: y}]\nother: *c\n",
	} {
		switch out, _, err := Files([]Source{{"x.yaml", []byte(text)}}, testOptions(), nil); {
		case err == nil:
			t.Errorf("no error; out = %s", out)
		case !strings.Contains(err.Error(), why):
			t.Errorf("err.Error() = %q does not contain %q; out = %s", err.Error(), why, out)
		case !strings.HasPrefix(err.Error(), "x.yaml"):
			t.Errorf("err.Error() = %q does not start with %q; out = %s", err.Error(), "x.yaml", out)
		}
	}
}

func TestFilesAnnotate(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: a\n"
	out, _, err := Files([]Source{{"x", []byte(pod)}}, testOptions(), map[string]string{"mca.tailplane.dev/config": "mine"})
	switch {
	case err != nil:
		t.Error(err)
	case !strings.Contains(string(out[0].Text), "mca.tailplane.dev/config: mine"):
		t.Errorf("string(out[0].Text) = %q does not contain %q", string(out[0].Text), "mca.tailplane.dev/config: mine")
	case !strings.Contains(string(out[0].Text), "name: mca-config"):
		t.Errorf("string(out[0].Text) = %q does not contain %q", string(out[0].Text), "name: mca-config")
	}
	if _, results, err := Files([]Source{{"x", []byte(pod)}}, testOptions(), map[string]string{"mca.tailplane.dev/config": "../"}); !errors.Is(err, ErrRefused) || results[0].Code != BadAnnotation {
		t.Error(err)
	}
}

// TestFilesJSON checks that JSON keeps its order, its indentation, and values that YAML would read
// differently.
func TestFilesJSON(t *testing.T) {
	const text = "{\n\t\"kind\": \"Pod\",\n\t\"apiVersion\": \"v1\",\n\t\"metadata\": {\n\t\t\"name\": \"<\\ud83d\\ude00>\"\n\t},\n\t\"spec\": {\n\t\t\"x\": 1.50,\n\t\t\"containers\": [\n\t\t\t{\n\t\t\t\t\"name\": \"a\"\n\t\t\t}\n\t\t]\n\t}\n}\n"
	out, _, err := Files([]Source{{"x", []byte(text)}}, testOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := string(out[0].Text)
	for _, keep := range []string{"{\n\t\"kind\": \"Pod\",\n\t\"apiVersion\"", "\"<😀>\"", "\"x\": 1.50", "\t\t\t\t\"name\": \"a\"", "}\n"} {
		if !strings.Contains(got, keep) {
			t.Errorf("%q is gone:\n%s", keep, got)
		}
	}
	if !json.Valid(out[0].Text) {
		t.Error("not JSON")
	}
	checkFileLaws(t, []byte(text))
	if _, _, err := Files([]Source{{"x", []byte(`{"kind":"Pod","kind":"Pod","apiVersion":"v1"}`)}}, testOptions(), nil); err == nil {
		t.Error("a key twice")
	}
}

// TestFilesLineEnds checks that line endings, and a missing last one, are preserved.
func TestFilesLineEnds(t *testing.T) {
	const pod = "apiVersion: v1\r\nkind: Pod\r\nmetadata:\r\n  name: p # é\r\nspec:\r\n  containers:\r\n  - name: a\r\n    image: a"
	out, _, err := Files([]Source{{"x", []byte(pod)}}, testOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out[0].Text); strings.Count(got, "\n") != strings.Count(got, "\r\n") || !strings.Contains(got, "  name: p # é\r\n") {
		t.Errorf("%q", got)
	}
	checkFileLaws(t, []byte(pod))
	for _, text := range []string{"", "\n", "# nothing\n", "---\n---\n", "---\n# a\n...\n---\nkind: x\n", "a: 1\n...\nb: 2\n", "null\n", "[1, 2]\n", "text"} {
		out, results, err := Files([]Source{{"x", []byte(text)}}, testOptions(), nil)
		switch {
		case err != nil:
			t.Error(err)
		case len(results) > 0:
			t.Errorf("len(results) = %v, want at most 0", len(results))
		case string(out[0].Text) != text:
			t.Errorf("string(out[0].Text) = %q, want %q", string(out[0].Text), text)
		}
	}
}

// Law: no source causes a panic, and the output matches the decisions.
func FuzzFiles(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte("apiVersion: v1\nkind: Pod\n"), a.Files[0].Data...))
		f.Add(a.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 10_000 {
			t.Skip("SKIP fuzz: small sources say as much")
		}
		checkFileLaws(t, text)
	})
}
