package forge_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

func pathsOf(all []forge.TreeFile) (out []string) {
	for _, f := range all {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return out
}

// A folder is listed at a commit, with one level or recursively.
func TestGitHubFiles(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	c.Push(c.repository, "main", forgetest.GitHubCommit{}, map[string]*string{"fleet/runnerpool/gh nix.yaml": new("a\n"), "fleet.md": new("b\n")})
	head, err := c.g.Head(ctx, "main")
	if err != nil || head != c.Commit(c.repository, "main").SHA {
		t.Fatalf("%s, %v", head, err)
	}
	c.Push(c.repository, "main", forgetest.GitHubCommit{}, map[string]*string{"fleet/later.yaml": new("d\n")})
	for _, x := range []struct {
		folder string
		deep   bool
		want   []string
	}{
		{"", false, []string{"README.md", "fleet.md"}},
		{"", true, []string{"README.md", "fleet.md", poolFile, "fleet/runnerpool/gh nix.yaml"}},
		{"fleet", false, []string{poolFile}},
		{"fleet", true, []string{poolFile, "fleet/runnerpool/gh nix.yaml"}},
		{"fleet/runnerpool", false, []string{"fleet/runnerpool/gh nix.yaml"}},
		{"nowhere", true, nil},
		{"fleet.md", true, nil}, // a file is not a folder
	} {
		got, err := c.g.Files(ctx, head, x.folder, x.deep)
		if err != nil || !slices.Equal(pathsOf(got), x.want) {
			t.Errorf("%q, deep %v: %v, %v", x.folder, x.deep, got, err)
		}
		for _, f := range got { // the blob is the Version of a file
			if f.Path == poolFile {
				if read, err := c.g.ReadFile(ctx, "main", poolFile); err != nil || read.Version != f.Blob {
					t.Errorf("%+v is listed, %s is read: %v", f, read.Version, err)
				}
			}
		}
	}
	if _, err := c.g.Files(ctx, strings.Repeat("e", 40), "fleet", true); forge.ClassOf(err) != forge.NotFound {
		t.Errorf("a commit that is not there: %v", err)
	}
	if _, err := c.g.Head(ctx, "nowhere"); forge.ClassOf(err) != forge.NotFound {
		t.Errorf("a branch that is not there: %v", err)
	}
	c.Forget()
	for _, folder := range []string{"../x", "/etc", ".git", "a//b"} {
		if _, err := c.g.Files(ctx, head, folder, true); forge.ClassOf(err) != forge.Invalid || len(c.Calls()) != 0 {
			t.Errorf("%q: %v", folder, err)
		}
	}
}

// FLEET-17: an incomplete tree or an invalid response is an error. Links and submodules are not
// files.
func TestFLEET17_GitHubPartOfATree(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	files := map[string]*string{}
	for i := range 7 {
		files[fmt.Sprintf("fleet/p%d.yaml", i)] = new("x")
	}
	c.Push(c.repository, "main", forgetest.GitHubCommit{}, files)
	head, err := c.g.Head(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]forge.Class{7: forge.Invalid, 8: ""} { // pools.yaml is there too
		c.TreeLimit(c.repository, limit)
		got, err := c.g.Files(ctx, head, "fleet", true)
		switch {
		case forge.ClassOf(err) != want:
			t.Errorf("forge.ClassOf(err) != want; limit = %d, got = %v, %v", limit, got, err)
		case err != nil && (got != nil || !strings.Contains(err.Error(), "too many files")):
			t.Errorf(`err != nil && (got != nil || !strings.Contains(err.Error(), "too many files")); limit = %d, got = %v, %v`,
				limit, got, err)
		case err == nil && len(got) != 8:
			t.Errorf("err == nil && len(got) != 8; limit = %d, got = %v, %v", limit, got, err)
		}
	}
	c.TreeLimit(c.repository, 100_000)
	sha := strings.Repeat("a", 40)
	for body, want := range map[string]struct {
		class forge.Class
		files []string
	}{
		`{"sha":"` + sha + `","truncated":false}`: {class: forge.Unavailable},
		`{"sha":"` + sha + `","tree":[]}`:         {class: forge.Unavailable},
		`[]`:                                      {class: forge.Unavailable},
		``:                                        {class: forge.Unavailable},
		`{"sha":"` + sha + `","tree":[],"truncated":false}`: {},
		`{"tree":[{"path":"a","mode":"120000","type":"blob"},{"path":"b","mode":"160000","type":"commit"},null,{"path":"c","mode":"100755","type":"blob"}],"truncated":false}`: {files: []string{"c"}},
	} {
		c.Fault(func(r *http.Request) *forgetest.Fault {
			if strings.Contains(r.URL.Path, "/git/trees/") {
				return &forgetest.Fault{Status: 200, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
			}
			return nil
		})
		if got, err := c.g.Files(ctx, head, "", true); forge.ClassOf(err) != want.class || !slices.Equal(pathsOf(got), want.files) {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}
