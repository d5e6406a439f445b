package buildcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/util/safefile"
)

// tree is a small source tree with two modules, one of which imports the other: an own program, a foreign program,
// and a package that is not imported.
var tree = map[string]string{
	"go.mod":                "module github.com/tailplane/tailplane\n\ngo 1.26\n",
	"cmd/tiny/main.go":      "package main\n\nimport \"github.com/tailplane/tailplane/words\"\n\nfunc main() { println(words.Hello) }\n",
	"cmd/tiny/main_test.go": "package main\n",
	"words/words.go":        "package words\n\nimport _ \"embed\"\n\n//go:embed text\nvar text string\n\n//go:embed dir\nvar _ embed.FS\n\nvar Hello = text\n",
	"words/text":            "hello",
	"words/dir/deep/file":   "deep",
	"words/windows.go":      "package words\n",
	"apart/apart.go":        "package apart\n",
	"nested/go.mod":         "module github.com/tailplane/tailplane/nested\n\ngo 1.26\n\nrequire github.com/tailplane/tailplane v0.0.0\n\nreplace github.com/tailplane/tailplane => ../\n",
	"nested/demo/main.go":   "package main\n\nimport \"github.com/tailplane/tailplane/words\"\n\nfunc main() { println(words.Hello) }\n",
}

func newCache(t *testing.T) *Cache {
	t.Helper()
	root := t.TempDir()
	for name, text := range tree {
		put(t, root, name, text)
	}
	put(t, root, "words/words.go", strings.Replace(tree["words/words.go"], "import _ \"embed\"", "import \"embed\"", 1))
	put(t, root, "words/windows.go", "//go:build windows\n\npackage words\n")
	return &Cache{
		Dir: filepath.Join(t.TempDir(), "bin"), Root: root, Log: io.Discard,
		Programs: map[string]Program{
			"tiny":   {Module: ".", Package: "./cmd/tiny", LDFlags: "-s -w", Sources: true, Takes: "a second"},
			"demo":   {Module: "nested", Package: "./demo", LDFlags: "-s -w", Sources: true, Takes: "a second"},
			"broken": {Module: ".", Package: "./missing", LDFlags: "-s -w", Takes: "for ever"},
		},
	}
}

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func key(t *testing.T, c *Cache, name string) string {
	t.Helper()
	k, err := c.key(c.Programs[name])
	if err != nil {
		t.Fatal(err)
	}
	if len(k) != keyLength {
		t.Fatalf("key %q has not %d digits", k, keyLength)
	}
	return k
}

// The key changes with every input of the build, and with nothing else.
func TestKey(t *testing.T) {
	for _, tc := range []struct {
		file, text string
		changes    bool
		why        string
	}{
		{"cmd/tiny/main.go", "package main\n\nfunc main() {}\n", true, "the main package"},
		{"words/words.go", "package words\n\nvar Hello = \"\"\n", true, "a package it imports"},
		{"words/new.go", "package words\n", true, "a new file in a package it imports"},
		{"words/text", "goodbye", true, "an embedded file"},
		{"words/dir/deep/file", "deeper", true, "a file in an embedded folder"},
		{"words/dir/other", "new", true, "a new file in an embedded folder"},
		{"words/linux_s.s", "// nothing\n", true, "assembly"},
		{"go.mod", "module github.com/tailplane/tailplane\n\ngo 1.26.0\n", true, "the module file"},
		{"go.sum", "\n", true, "a go.sum where there was none"},
		{"cmd/tiny/main_test.go", "package main\n\nvar x = 1\n", false, "a test"},
		{"words/windows.go", "//go:build windows\n\npackage words\n\nvar x = 1\n", false, "another platform's file"},
		{"apart/apart.go", "package apart\n\nvar x = 1\n", false, "a package it does not import"},
		{"nested/go.mod", "module github.com/tailplane/tailplane/nested\n", false, "another module"},
		{"README.md", "hello", false, "prose"},
	} {
		c := newCache(t)
		before := key(t, c, "tiny")
		if again := key(t, c, "tiny"); again != before {
			t.Fatalf("%s: the key is %s and then %s", tc.why, before, again)
		}
		put(t, c.Root, tc.file, tc.text)
		if after := key(t, c, "tiny"); (after != before) != tc.changes {
			t.Errorf("%s: key %s before and %s after", tc.why, before, after)
		}
	}
}

// The key covers a program's flags, and the imported sources of other modules of the tree.
func TestKeyAcrossModules(t *testing.T) {
	c := newCache(t)
	before := key(t, c, "demo")
	p := c.Programs["demo"]
	p.LDFlags = "-s"
	c.Programs["demo"] = p
	flagged := key(t, c, "demo")
	if flagged == before {
		t.Error("other flags, same key")
	}
	put(t, c.Root, "words/words.go", "package words\n\nvar Hello = \"\"\n")
	if key(t, c, "demo") == flagged {
		t.Error("a package of the neighbouring module changed, but the key did not")
	}
}

// For a missing binary, the error names the command, and nothing is built.
func TestMissing(t *testing.T) {
	c := newCache(t)
	_, err := c.Lookup("tiny")
	missing, ok := errors.AsType[*MissingError](err)
	switch {
	case !ok:
		t.Errorf("ok is false; %v", err)
	case missing.Name != "tiny":
		t.Errorf("missing.Name = %q, want %q", missing.Name, "tiny")
	case !strings.Contains(err.Error(), "run: make testbed"):
		t.Errorf("err.Error() = %q does not contain %q", err.Error(), "run: make testbed")
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a look-up created the directory: %v", err)
	}
	if _, err := c.Lookup("unheard-of"); err == nil || !strings.Contains(err.Error(), "broken, demo, tiny") {
		t.Errorf("an unknown program: %v", err)
	}
}

// A build creates a complete binary with its final name, logs its steps, and happens once.
func TestBuild(t *testing.T) {
	c := newCache(t)
	var log bytes.Buffer
	c.Log = &log
	path, err := c.Build(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), path).CombinedOutput(); err != nil || string(out) != "hello\n" {
		t.Errorf("the output of the binary is %q, %v", out, err)
	}
	for _, says := range []string{"tiny: building ./cmd/tiny", "never built", "a second", "tiny: built in"} {
		if !strings.Contains(log.String(), says) {
			t.Errorf("the log does not contain %q:\n%s", says, &log)
		}
	}
	if found, err := c.Lookup("tiny"); err != nil || found != path {
		t.Errorf("look-up after the build: %q, %v", found, err)
	}
	log.Reset()
	switch again, err := c.Build(t.Context(), "tiny"); {
	case err != nil:
		t.Errorf("a second build: %v", err)
	case again != path:
		t.Errorf("a second build: again = %q, want %q", again, path)
	case log.Len() > 0:
		t.Errorf("a second build: log.Len() = %v, want at most 0", log.Len())
	}

	put(t, c.Root, "words/text", "goodbye")
	if _, err := c.Lookup("tiny"); err == nil {
		t.Error("the old binary was found for changed sources")
	}
	changed, err := c.Build(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), changed).CombinedOutput(); err != nil || string(out) != "goodbye\n" {
		t.Errorf("the output of the new binary is %q, %v", out, err)
	}
	if !strings.Contains(log.String(), "changed") {
		t.Errorf("the log has no reason:\n%s", &log)
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// leftovers returns the files of the cache that are neither binaries nor locks.
func leftovers(t *testing.T, c *Cache) []string {
	t.Helper()
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			left = append(left, e.Name())
		}
	}
	return left
}

// A failed build reports the compiler's error, and leaves no file that looks like a binary.
func TestBuildFails(t *testing.T) {
	c := newCache(t)
	put(t, c.Root, "cmd/tiny/main.go", "package main\n\nfunc main() { undefined() }\n")
	_, err := c.Build(t.Context(), "tiny")
	switch {
	case err == nil:
		t.Error("no error")
	case !strings.Contains(err.Error(), "undefined: undefined"):
		t.Errorf("err.Error() = %q does not contain %q", err.Error(), "undefined: undefined")
	case !strings.Contains(err.Error(), "build tiny"):
		t.Errorf("err.Error() = %q does not contain %q", err.Error(), "build tiny")
	}
	if _, err := c.Build(t.Context(), "broken"); err == nil {
		t.Error("a program without sources was built")
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := c.Lookup("tiny"); err == nil {
		t.Error("a failed build was found")
	}
}

// Of many concurrent callers, one builds. The others wait and get the same binary.
func TestConcurrentBuilds(t *testing.T) {
	c := newCache(t)
	var mu sync.Mutex
	var builds int
	var wg sync.WaitGroup
	for range 4 {
		mine := *c
		mine.Log = writerFunc(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if bytes.Contains(b, []byte("building")) && !bytes.Contains(b, []byte("another process")) {
				builds++
			}
			return len(b), nil
		})
		wg.Go(func() {
			if _, err := mine.Build(t.Context(), "tiny"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if builds != 1 {
		t.Errorf("built %d times", builds)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A caller that waits for another build logs this, and stops waiting when its context ends.
func TestWaitingForTheLock(t *testing.T) {
	c := newCache(t)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	held, err := safefile.TryFlock(filepath.Join(c.Dir, "tiny.lock"))
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	var said bytes.Buffer
	c.Log = writerFunc(func(b []byte) (int, error) {
		cancel(enough)
		return said.Write(b)
	})
	if _, err := c.Build(ctx, "tiny"); !errors.Is(err, enough) {
		t.Errorf("got %v, want the context's cause", err)
	}
	if !strings.Contains(said.String(), "waiting") {
		t.Errorf("its output is %q", &said)
	}
	held.Release()
	c.Log = io.Discard
	if _, err := c.Build(t.Context(), "tiny"); err != nil {
		t.Error("after the lock was given back:", err)
	}
}

// The three most recently used keys stay. Binaries of other programs and files with similar names stay too.
func TestPrune(t *testing.T) {
	c := newCache(t)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := func(name string, age time.Duration) string {
		path := filepath.Join(c.Dir, name)
		put(t, c.Dir, name, "")
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hour := old("tiny-"+strings.Repeat("1", keyLength), time.Hour)
	day := old("tiny-"+strings.Repeat("2", keyLength), 24*time.Hour)
	week := old("tiny-"+strings.Repeat("3", keyLength), 7*24*time.Hour)
	others := []string{
		old("demo-"+strings.Repeat("4", keyLength), 365*24*time.Hour),
		old("tiny-bigger-"+strings.Repeat("5", keyLength), 365*24*time.Hour),
	}
	built, err := c.Build(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(others, built, hour, day) {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("removed: %v", err)
		}
	}
	if _, err := os.Stat(week); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the oldest of four is still there: %v", err)
	}
}

func TestClean(t *testing.T) {
	c := newCache(t)
	if err := c.Clean(); err != nil {
		t.Fatal("a cache that does not exist:", err)
	}
	path, err := c.Build(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Clean(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the binary is still there: %v", err)
	}
	if _, err := c.Build(t.Context(), "tiny"); err != nil {
		t.Error("a build after Clean:", err)
	}
}

// On a terminal, progress is one line that is overwritten. Otherwise it is a plain line at intervals.
func TestProgress(t *testing.T) {
	var log bytes.Buffer
	p := &progress{name: "devcluster", log: &log, start: time.Now().Add(-130 * time.Second), total: 2079}
	p.done.Store(812)
	if got := p.String(); got != "devcluster: 812/2079 packages, 2m10s" {
		t.Errorf("got %q", got)
	}
	p.tick()()
	if strings.Contains(log.String(), "\r") {
		t.Errorf("control characters in a log: %q", &log)
	}
}

// The table contains the programs of the specification, and its packages are valid: those that exist have a key.
func TestPrograms(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"demo", "devcluster", "envoy", "envoy-gateway", "helm", "kubectl", "mca", "podclient", "podnode", "prometheus", "tailplaned", "tka"} {
		if !slices.Contains(c.Names(), name) {
			t.Errorf("no program %s", name)
		}
	}
	for _, name := range c.Names() {
		p := c.Programs[name]
		if p.Takes == "" {
			t.Errorf("%s has no duration", name)
		}
		if !c.Present(name) {
			t.Logf("%s: not in this tree yet", name)
			continue
		}
		if _, err := c.key(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	switch {
	case !c.Present("devcluster"):
		t.Error(`Present reports devcluster and kubectl, but also a missing program: c.Present("devcluster") is false`)
	case !c.Present("kubectl"):
		t.Error(`Present reports devcluster and kubectl, but also a missing program: c.Present("kubectl") is false`)
	case c.Present("unheard-of"):
		t.Error(`Present reports devcluster and kubectl, but also a missing program: c.Present("unheard-of") is true`)
	}
	if !strings.HasSuffix(c.Dir, filepath.Join("tailplane", "bin")) {
		t.Errorf("the folder is %s", c.Dir)
	}
	t.Setenv("XDG_CACHE_HOME", "/elsewhere")
	if c, err := Open(); err != nil || c.Dir != "/elsewhere/tailplane/bin" {
		t.Errorf("XDG_CACHE_HOME is not honoured: %+v, %v", c, err)
	}
	t.Chdir(t.TempDir())
	if _, err := Open(); err == nil || !strings.Contains(err.Error(), "not inside the source tree") {
		t.Errorf("outside the tree: %v", err)
	}
}

// The sources in the key are those that the go command would compile.
func TestSourcesAgreeWithGoList(t *testing.T) {
	c := newCache(t)
	for _, name := range []string{"tiny", "demo"} {
		p := c.Programs[name]
		got, err := c.sources(p)
		if err != nil {
			t.Fatal(err)
		}
		cmd := c.goCommand(t.Context(), p, "list", "-deps", "-f",
			`{{if not .Standard}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`, p.Package)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, f := range strings.Fields(string(out)) {
			rel, err := filepath.Rel(c.Root, f)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, rel)
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s\ngo list says %s", name, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}
