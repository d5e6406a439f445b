package history

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Entry is a file or a directory of a git tree.
type Entry struct {
	Path string // relative to the tree
	ID   string // git object ID of its content
	Type string // blob or tree
	Mode string
	Size int // of a file, in bytes
}

// Blob returns the git object ID of a content.
func Blob(content string) string { return object("blob", content) }

func object(kind, content string) string {
	sum := sha1.Sum([]byte(fmt.Sprintf("%s %d\x00%s", kind, len(content), content)))
	return hex.EncodeToString(sum[:])
}

// Folder returns the tree ID of a directory at a commit; "" is the root. It returns false if the directory does not
// exist.
func (r *Repository) Folder(commit, folder string) (id string, ok bool) {
	c, ok := r.commits[commit]
	if !ok {
		return "", false
	}
	below := map[string]string{}
	for path, text := range c.Files {
		if folder == "" {
			below[path] = text
		} else if rest, ok := strings.CutPrefix(path, folder+"/"); ok {
			below[rest] = text
		}
	}
	if folder != "" && len(below) == 0 {
		return "", false
	}
	return r.plant(below), true
}

// Tree returns the entries of a tree whose ID was returned before. deep includes the content of subdirectories. It
// returns false if the tree is unknown.
func (r *Repository) Tree(id string, deep bool) (all []Entry, ok bool) {
	files, ok := r.trees[id]
	for _, e := range r.entries(files) {
		all = append(all, e)
		if e.Type == "tree" && deep {
			in, _ := r.Tree(e.ID, true)
			for _, x := range in {
				x.Path = e.Path + "/" + x.Path
				all = append(all, x)
			}
		}
	}
	return all, ok
}

// plant stores the tree of files and its subtrees, and returns the tree ID.
func (r *Repository) plant(files map[string]string) string {
	var text strings.Builder
	for _, e := range r.entries(files) {
		sum, _ := hex.DecodeString(e.ID)
		text.WriteString(strings.TrimPrefix(e.Mode, "0") + " " + e.Path + "\x00" + string(sum))
	}
	id := object("tree", text.String())
	r.trees[id] = files
	return id
}

// entries returns the entries of one tree in git's order: a directory sorts as if its name ended with a slash.
func (r *Repository) entries(files map[string]string) (all []Entry) {
	folders := map[string]map[string]string{}
	for path, text := range files {
		name, rest, in := strings.Cut(path, "/")
		switch {
		case !in:
			all = append(all, Entry{Path: name, ID: Blob(text), Type: "blob", Mode: "100644", Size: len(text)})
		case folders[name] == nil:
			folders[name] = map[string]string{rest: text}
		default:
			folders[name][rest] = text
		}
	}
	for name, below := range folders {
		all = append(all, Entry{Path: name, ID: r.plant(below), Type: "tree", Mode: "040000"})
	}
	order := func(e Entry) string {
		if e.Type == "tree" {
			return e.Path + "/"
		}
		return e.Path
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(order(a), order(b)) })
	return all
}
