// Package tree tells which files a repository has, as it was at one commit: what is asked
// for afterwards is of the same moment, however many answers it takes. It keeps law 7: a
// part of a list is an error and never a list.
package tree

import (
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/fleet/forge/failure"
	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
)

// A File is a file of which only the name was asked for.
type File struct {
	Path string // from the repository's root
	Blob string // what git calls its content: the same as long as that is
}

// An Entry is a file, a folder, a link or another repository, as a forge has it.
type Entry struct {
	Path string `json:"path"`
	Type string `json:"type"` // blob, tree or commit
	Mode string `json:"mode"`
	ID   string `json:"id"`
}

// Op is what listing is called in errors.
const Op = "list files"

// Most bounds what is listed of one folder, in files and folders.
const Most = 10_000

// TooMany is the error of more than can be told of.
func TooMany() *failure.Error {
	return &failure.Error{Op: Op, Class: failure.Invalid, Message: "too many files: more than are told, or than " + strconv.Itoa(Most)}
}

// Odd is the error of an answer that is none.
func Odd() *failure.Error {
	return &failure.Error{Op: Op, Class: failure.Unavailable, Status: http.StatusOK, Message: "the answer has no tree"}
}

// CheckBranch refuses what cannot be a branch.
func CheckBranch(name string) error {
	if !gitname.IsBranch(name) {
		return &failure.Error{Op: Op, Class: failure.Invalid, Message: "there is no such branch"}
	}
	return nil
}

// Check refuses what cannot be a folder of a commit; "" is the whole repository.
func Check(commit, folder string) error {
	if !gitname.IsCommit(commit) || folder != "" && !gitname.IsPath(folder) {
		return &failure.Error{Op: Op, Class: failure.Invalid, Message: "there is no such folder to list"}
	}
	return nil
}

// Files are the plain files among all, which are below a folder; what is a link, or
// another repository, is left out.
func Files(folder string, all []Entry) (files []File) {
	for _, e := range all {
		if e.Type == "blob" && (e.Mode == "100644" || e.Mode == "100755") {
			files = append(files, File{path.Join(folder, e.Path), e.ID})
		}
	}
	return files
}

// Down lists a folder below a tree of git's, by what reads one tree: all of it if deep.
// What is beside the way down may be too much to be told, and is not asked for.
func Down(id, folder string, deep bool, read func(id string, deep bool) ([]Entry, error)) ([]File, error) {
	for part := range strings.SplitSeq(folder, "/") {
		if part == "" {
			break // the root
		}
		in, err := read(id, false)
		if err != nil {
			return nil, err
		}
		id = ""
		for _, e := range in {
			if e.Path == part && e.Type == "tree" {
				id = e.ID
			}
		}
		if id == "" {
			return nil, nil
		}
	}
	all, err := read(id, deep)
	if err != nil {
		return nil, err
	}
	if len(all) > Most {
		return nil, TooMany()
	}
	return Files(folder, all), nil
}
