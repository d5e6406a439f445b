package history

import (
	"slices"
	"testing"
)

// Trees have the same IDs as with `git write-tree` and `git ls-tree -r -t` (2.47) for the same files.
func TestTree(t *testing.T) {
	r := New()
	head := r.Add("main", Commit{Files: map[string]string{"fleet/pools/x.yaml": "a\n", "fleet.md": "b\n", "README.md": "c\n"}})
	root, ok := r.Folder(head, "")
	if !ok || root != "1b5240427c595a62fff3b5e0383a7e4857d8b536" {
		t.Errorf("the root is %s, %v", root, ok)
	}
	want := []Entry{{"README.md", "f2ad6c76f0115a6ba5b00456a849810e7ec0af20", "blob", "100644", 2}, {"fleet.md", "61780798228d17af2d34fce4cfbdf35556832472", "blob", "100644", 2},
		{"fleet", "ef1614a4f83cba3319923d3935e243f430ca4993", "tree", "040000", 0}, {"fleet/pools", "51e121311f7104daa5156245216bd8b245ac2d33", "tree", "040000", 0},
		{"fleet/pools/x.yaml", "78981922613b2afb6025042ff6bd878ac1994e85", "blob", "100644", 2}}
	if got, ok := r.Tree(root, true); !ok || !slices.Equal(got, want) {
		t.Errorf("all of it: %v", got)
	}
	if got, ok := r.Tree(root, false); !ok || !slices.Equal(got, want[:3]) {
		t.Errorf("one level: %v", got)
	}
	pools, ok := r.Folder(head, "fleet/pools")
	switch got, _ := r.Tree(pools, true); {
	case !ok:
		t.Errorf("a folder: ok is false; pools = %s, %v, got = %v", pools, ok, got)
	case pools != want[3].ID:
		t.Errorf("a folder: pools = %q, want %q", pools, want[3].ID)
	case len(got) != 1:
		t.Errorf("a folder: len(got) = %v, want 1", len(got))
	case got[0].Path != "x.yaml":
		t.Errorf("a folder: got[0].Path = %q, want %q", got[0].Path, "x.yaml")
	}
	if _, ok := r.Folder(head, "fle"); ok {
		t.Error("there is a folder that was not created")
	}
	if _, ok := r.Tree("ef16", true); ok {
		t.Error("there is a tree with an unknown id")
	}
}
