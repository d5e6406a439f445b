package forge

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

func listedPaths(all []TreeFile) (out []string) {
	for _, f := range all {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return out
}

// A folder is listed at a commit, with one level or recursively.
func TestGitLabFiles(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	head := w.Push(configProject, "main", "carol", "more", map[string]*string{"fleet/runnerpool/gl nix.yaml": new("a\n"), "fleet.md": new("b\n")})
	if got, err := w.client.Head(ctx, "main"); err != nil || got != head {
		t.Fatalf("%s, %v", got, err)
	}
	w.Push(configProject, "main", "carol", "later", map[string]*string{"fleet/later.yaml": new("d\n")})
	for _, x := range []struct {
		folder string
		deep   bool
		want   []string
	}{
		{"", false, []string{"README.md", "fleet.md"}},
		{"", true, []string{"README.md", "fleet.md", configFile, "fleet/runnerpool/gl nix.yaml"}},
		{"fleet", false, []string{configFile}},
		{"fleet", true, []string{configFile, "fleet/runnerpool/gl nix.yaml"}},
		{"fleet/runnerpool", false, []string{"fleet/runnerpool/gl nix.yaml"}},
		{"nowhere", true, nil},
		{"fleet.md", true, nil}, // a file is not a folder
	} {
		if got, err := w.client.Files(ctx, head, x.folder, x.deep); err != nil || !slices.Equal(listedPaths(got), x.want) {
			t.Errorf("%q, deep %v: %v, %v", x.folder, x.deep, got, err)
		}
	}
	for _, folder := range []string{"", "fleet"} {
		if _, err := w.client.Files(ctx, strings.Repeat("e", 40), folder, true); ClassOf(err) != NotFound {
			t.Errorf("a commit that is not there, %q: %v", folder, err)
		}
	}
	if _, err := w.client.Head(ctx, "nowhere"); ClassOf(err) != NotFound {
		t.Errorf("a branch that is not there: %v", err)
	}
	w.Forget()
	for _, folder := range []string{"../x", "/etc", ".git", "a//b"} {
		if _, err := w.client.Files(ctx, head, folder, true); ClassOf(err) != Invalid || len(w.Calls()) != 0 {
			t.Errorf("%q: %v", folder, err)
		}
	}
}

// FLEET-17: a list is read to its end or not at all. Links and submodules are not files.
func TestFLEET17_GitLabPartOfATree(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	files, want := map[string]*string{}, []string{configFile}
	for i := range 249 {
		path := fmt.Sprintf("fleet/p%03d.yaml", i)
		files[path], want = new("x"), append(want, path)
	}
	head := w.Push(configProject, "main", "carol", "many", files)
	slices.Sort(want)
	w.Forget()
	switch got, err := w.client.Files(ctx, head, "fleet", true); {
	case err != nil:
		t.Error(err)
	case !slices.Equal(listedPaths(got), want):
		t.Errorf("slices.Equal(listedPaths(got), want) is false; %d, %d, %v", len(got), len(w.Calls()), err)
	case len(w.Calls()) != 3:
		t.Errorf("len(w.Calls()) = %v, want 3", len(w.Calls()))
	}
	spoil := func(page string, f *forgetest.Fault) {
		w.Fault(func(r *http.Request) *forgetest.Fault {
			if strings.HasSuffix(r.URL.Path, "/repository/tree") && r.FormValue("page") == page {
				return f
			}
			return nil
		})
	}
	answer := func(body string, next ...string) *forgetest.Fault {
		h := http.Header{"Content-Type": {"application/json"}}
		if next != nil {
			h["X-Next-Page"] = next
		}
		return &forgetest.Fault{Status: 200, Body: body, Header: h}
	}
	for why, x := range map[string]struct {
		page  string
		fault *forgetest.Fault
		class Class
	}{
		"the last page is away":           {"3", &forgetest.Fault{Status: http.StatusBadGateway}, Unavailable},
		"a page is cut":                   {"2", &forgetest.Fault{Cut: 200}, Unavailable},
		"a page is empty":                 {"2", answer("[]", "3"), Unavailable},
		"a page is not a list":            {"2", answer("null", "3"), Unavailable},
		"pages are left out":              {"1", answer(`[{"path":"a"}]`, "3"), Unavailable},
		"something has no path":           {"1", answer(`[{"type":"blob"}]`, ""), Unavailable},
		"a full page without a next page": {"1", answer("[" + strings.Repeat(`{"path":"a"},`, 99) + `{"path":"a"}]`), Unavailable},
		"pages are of two lists":          {"2", answer(`[{"path":"a"}]`, ""), Unavailable},
		"something before it is":          {"1", &forgetest.Fault{Status: 404, Body: "<html>"}, Unavailable},
	} {
		spoil(x.page, x.fault)
		fresh := w.changesOf(t, w.token) // without cached pages
		if got, err := fresh.Files(ctx, head, "fleet", true); ClassOf(err) != x.class || got != nil {
			t.Errorf("%s: %d files, %v", why, len(got), err)
		}
	}
	spoil("1", answer(`[{"path":"a","mode":"120000","type":"blob"},{"path":"b","mode":"160000","type":"commit"},{"path":"c","mode":"100755","type":"blob"}]`, ""))
	if got, err := w.client.Files(ctx, head, "fleet", true); err != nil || !slices.Equal(listedPaths(got), []string{"c"}) {
		t.Errorf("%v, %v", got, err)
	}
	// More files than any configuration has: the client gives up before it has read all of them.
	n := 0
	w.Fault(func(r *http.Request) *forgetest.Fault {
		var body strings.Builder
		for i := range 100 {
			fmt.Fprintf(&body, `,{"path":"f%d-%d"}`, n, i)
		}
		n++
		return answer("["+body.String()[1:]+"]", fmt.Sprint(n+1))
	})
	switch _, err := w.client.Files(ctx, head, "fleet", true); {
	case ClassOf(err) != Invalid:
		t.Errorf("ClassOf(err) != Invalid; %d, %v", n, err)
	case !strings.Contains(err.Error(), "too many files"):
		t.Errorf("err.Error() = %q does not contain %q", err.Error(), "too many files")
	case n != maxFiles/perPage:
		t.Errorf("n = %v, want %v", n, maxFiles/perPage)
	}
}
