package forge

import (
	"net/http"
	"path"
	"strconv"
	"strings"
)

// A TreeFile is a file of which only the name was asked for.
type TreeFile struct {
	Path string // from the repository's root
	Blob string // what git calls its content: the same as long as that is
}

// A treeEntry is a file, a folder, a link or another repository, as a forge has it.
type treeEntry struct {
	Path string `json:"path"`
	Type string `json:"type"` // blob, tree or commit
	Mode string `json:"mode"`
	ID   string `json:"id"`
}

// listOp is what listing is called in errors.
const listOp = "list files"

// mostFiles bounds what is listed of one folder, in files and folders.
const mostFiles = 10_000

// tooManyFiles is the error of more than can be told of.
func tooManyFiles() *Error {
	return &Error{Op: listOp, Class: Invalid, Message: "too many files: more than are told, or than " + strconv.Itoa(mostFiles)}
}

// oddTree is the error of an answer that is none.
func oddTree() *Error {
	return &Error{Op: listOp, Class: Unavailable, Status: http.StatusOK, Message: "the answer has no tree"}
}

// checkBranch refuses what cannot be a branch.
func checkBranch(name string) error {
	if !isBranch(name) {
		return &Error{Op: listOp, Class: Invalid, Message: "there is no such branch"}
	}
	return nil
}

// checkFolder refuses what cannot be a folder of a commit; "" is the whole repository.
func checkFolder(commit, folder string) error {
	if !isCommit(commit) || folder != "" && !isPath(folder) {
		return &Error{Op: listOp, Class: Invalid, Message: "there is no such folder to list"}
	}
	return nil
}

// plainFiles are the plain files among all, which are below a folder; what is a link, or
// another repository, is left out.
func plainFiles(folder string, all []treeEntry) (files []TreeFile) {
	for _, e := range all {
		if e.Type == "blob" && (e.Mode == "100644" || e.Mode == "100755") {
			files = append(files, TreeFile{path.Join(folder, e.Path), e.ID})
		}
	}
	return files
}

// descend lists a folder below a tree of git's, by what reads one tree: all of it if deep.
// What is beside the way down may be too much to be told, and is not asked for.
func descend(id, folder string, deep bool, read func(id string, deep bool) ([]treeEntry, error)) ([]TreeFile, error) {
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
	if len(all) > mostFiles {
		return nil, tooManyFiles()
	}
	return plainFiles(folder, all), nil
}
