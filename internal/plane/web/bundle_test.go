package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sourceSum returns the checksum that seal.mjs writes next to the bundle: the sum over the sums of all source files.
func sourceSum(root fs.FS) (string, error) {
	var names []string
	for _, part := range []string{"index.html", "package-lock.json", "package.json", "seal.mjs", "src", "svelte.config.js", "tsconfig.json", "vite.config.ts"} {
		err := fs.WalkDir(root, part, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	slices.Sort(names)
	sum := sha256.New()
	for _, name := range names {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%x  %s\n", sha256.Sum256(b), name)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// PLANE-17: a bundle that is older than its sources is detected without Node.
func TestBundleIsFresh(t *testing.T) {
	const sources = "../../../web"
	got, err := sourceSum(os.DirFS(sources))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("SKIP bundle: the sources of the dashboard are not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile("dist/source.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(sealed)); got != want {
		t.Errorf("the bundle was built from other sources than those in web/. Run: make web")
	}

	// The check itself works: any change of a source changes the sum.
	other := t.TempDir()
	if err := os.CopyFS(other, onlySources(t, sources)); err != nil {
		t.Fatal(err)
	}
	if same, err := sourceSum(os.DirFS(other)); err != nil || same != got {
		t.Fatalf("a copy has another sum: %v", err)
	}
	if err := os.WriteFile(path.Join(other, "src/main.ts"), []byte("// changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if changed, err := sourceSum(os.DirFS(other)); err != nil || changed == got {
		t.Errorf("a changed source is not seen: %v", err)
	}
}

// The types of the dashboard are those of the API: api.gen.ts has the checksum of the schemas in the OpenAPI document, and of the schema of
// each operation's response. generate.mjs computes the same checksum.
func TestTypesAreThoseOfTheAPI(t *testing.T) {
	types, err := os.ReadFile("../../../web/src/api.gen.ts")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("SKIP types: the sources of the dashboard are not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
		Components struct{ Schemas any }
	}
	if err := json.Unmarshal(b, &document); err != nil {
		t.Fatal(err)
	}
	responses := map[string]any{}
	for path, methods := range document.Paths {
		for method, op := range methods {
			answer, ok := op.Responses["200"]
			if !ok {
				answer = op.Responses["202"]
			}
			schema := answer.Content["application/json"].Schema
			if short, ok := strings.CutPrefix(path, "/api/v1/"); ok && schema["$ref"] != nil {
				responses[strings.ToUpper(method)+" /"+short] = schema
			}
		}
	}
	var schemas bytes.Buffer
	e := json.NewEncoder(&schemas)
	e.SetEscapeHTML(false)
	if err := e.Encode([]any{withoutDescriptions(document.Components.Schemas), responses}); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("// schemas: %x\n", sha256.Sum256(bytes.TrimSpace(schemas.Bytes()))); !strings.Contains(string(types), want) {
		t.Error("web/src/api.gen.ts differs from the OpenAPI document. Run: make web")
	}
}

// withoutDescriptions removes the texts for people from a schema. They do not change the types.
func withoutDescriptions(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		if _, text := s["description"].(string); text {
			delete(s, "description")
		}
		for name, of := range s {
			s[name] = withoutDescriptions(of)
		}
	case []any:
		for i, of := range s {
			s[i] = withoutDescriptions(of)
		}
	}
	return schema
}

// onlySources returns the sources without the files that npm adds.
func onlySources(t *testing.T, dir string) fs.FS {
	t.Helper()
	root := t.TempDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "node_modules" {
			continue
		}
		if e.IsDir() {
			err = os.CopyFS(path.Join(root, e.Name()), os.DirFS(path.Join(dir, e.Name())))
		} else {
			var b []byte
			if b, err = os.ReadFile(path.Join(dir, e.Name())); err == nil {
				err = os.WriteFile(path.Join(root, e.Name()), b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return os.DirFS(root)
}

// The page refers only to existing files, whose names change with their content. It has no inline script or style, which the policy
// forbids.
func TestPageRefersToTheBundle(t *testing.T) {
	files := bundle()
	page := string(files["index.html"].plain)
	refs := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(refs) < 3 {
		t.Fatalf("the page refers to %d files", len(refs))
	}
	hashed := regexp.MustCompile(`^/assets/[a-z]+-[A-Za-z0-9_-]{8}\.(js|css)$`)
	seen := 0
	for _, ref := range refs {
		switch {
		case strings.HasPrefix(ref[1], "data:image/svg+xml,"), ref[1] == "/text":
		case !hashed.MatchString(ref[1]):
			t.Errorf("the page refers to %q", ref[1])
		default:
			seen++
			if _, ok := files[ref[1][1:]]; !ok {
				t.Errorf("%s is not there", ref[1])
			}
		}
	}
	scripts := ""
	for name, f := range files {
		if strings.HasSuffix(name, ".js") {
			scripts += string(f.plain)
		}
	}
	for name := range files { // parts are loaded later, by a script
		if part := path.Base(name); isPart(name) && !strings.Contains(page, part) && strings.Contains(scripts, part) {
			seen++
		}
	}
	if seen != len(files)-1 {
		t.Errorf("the page refers to %d of %d files", seen, len(files)-1)
	}
	for _, forbidden := range []string{"<style", " style=", " onload=", "http://", "https://"} {
		if strings.Contains(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), forbidden) {
			t.Errorf("the page has %q", forbidden)
		}
	}
	if inline := regexp.MustCompile(`<script[^>]*>[^<]`).FindString(page); inline != "" {
		t.Errorf("the page has an inline script: %s", inline)
	}
}

// isPart reports whether a file is a script that is loaded only when it is needed, such as the terminal of replays.
func isPart(name string) bool { return strings.HasPrefix(path.Base(name), "part-") }

// PLANE-15: the script that each page loads is small enough.
func TestBundleIsSmall(t *testing.T) {
	script := 0
	for name, f := range bundle() {
		if strings.HasSuffix(name, ".js") && !isPart(name) {
			script += len(f.small)
		}
	}
	if script == 0 || script > 150_000 {
		t.Errorf("%d bytes of JavaScript, compressed", script)
	}
	t.Logf("%d bytes of JavaScript, compressed", script)
}
