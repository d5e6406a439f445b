package forge

import (
	"net/http"
	"path"
	"strconv"
	"strings"
)

// A TreeFile is a file in a listing, without its content.
type TreeFile struct {
	Path string // from the repository's root
	Blob string // git blob ID; it changes with the content
}

// A treeEntry is a file, a folder, a link or a submodule, as a forge reports it.
type treeEntry struct {
	Path, Mode string
	Type       string // blob, tree or commit
	ID         string
}

// listOp is the operation name of listings in errors.
const listOp = "list files"

// maxFiles is the maximum number of files and folders in the listing of one folder.
const maxFiles = 10_000

// tooManyFiles returns the error for a listing that is too long.
func tooManyFiles() *Error {
	return &Error{Op: listOp, Class: Invalid, Message: "too many files: the forge does not list all of them, or there are more than " + strconv.Itoa(maxFiles)}
}

// invalidTree returns the error for a response without a tree.
func invalidTree() *Error {
	return &Error{Op: listOp, Class: Unavailable, Status: http.StatusOK, Message: "the response has no tree"}
}

// checkFolder refuses an invalid commit or folder. The folder "" is the whole repository.
func checkFolder(r repository, commit, folder string) error {
	return checkInput(listOp, r, isCommit(commit) && (folder == "" || isPath(folder)), "there is no such folder to list")
}

// plainFiles returns the plain files among entries of a folder. It skips links and submodules.
func plainFiles(folder string, all []treeEntry) (files []TreeFile) {
	for _, e := range all {
		if e.Type == "blob" && (e.Mode == "100644" || e.Mode == "100755") {
			files = append(files, TreeFile{path.Join(folder, e.Path), e.ID})
		}
	}
	return files
}

// descend lists a folder below a git tree, with all subfolders if deep is true. read reads one
// tree. descend does not read the siblings of the folders on the path, because they may be too
// large to list.
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
	if len(all) > maxFiles {
		return nil, tooManyFiles()
	}
	return plainFiles(folder, all), nil
}
