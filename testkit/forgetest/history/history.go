// Package history stores the history of a git repository for the fake forges: commits, branches, and merges. A merge
// with conflicts fails (law 7).
package history

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Commit is a commit with all its files.
type Commit struct {
	ID, Parent                                                      string
	Message, AuthorName, AuthorEmail, CommitterName, CommitterEmail string
	Files                                                           map[string]string // path to content
}

// Repository has branches, and commits with one parent each. It is not safe for concurrent use.
type Repository struct {
	branches map[string]string // name to head
	commits  map[string]Commit
	trees    map[string]map[string]string // git tree ID that was requested before, to its files
}

// New returns an empty repository.
func New() *Repository {
	return &Repository{branches: map[string]string{}, commits: map[string]Commit{}, trees: map[string]map[string]string{}}
}

// Head returns the last commit of a branch, or "" if the branch does not exist.
func (r *Repository) Head(branch string) string { return r.branches[branch] }

// Commit returns a commit. It returns false if the commit does not exist.
func (r *Repository) Commit(id string) (Commit, bool) {
	c, ok := r.commits[id]
	return c, ok
}

// Add adds a commit to a branch and returns its ID. It creates a missing branch.
func (r *Repository) Add(branch string, c Commit) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(len(r.commits), c)))
	c.ID, c.Files = hex.EncodeToString(sum[:20]), maps.Clone(c.Files)
	r.commits[c.ID], r.branches[branch] = c, c.ID
	return c.ID
}

// Branch creates a branch at a commit, or moves it there. It returns false if the commit does not exist.
func (r *Repository) Branch(name, id string) bool {
	_, ok := r.commits[id]
	if ok {
		r.branches[name] = id
	}
	return ok
}

// Delete deletes a branch. It returns false if the branch does not exist.
func (r *Repository) Delete(branch string) bool {
	_, ok := r.branches[branch]
	delete(r.branches, branch)
	return ok
}

// Log returns the commits up to id, newest first.
func (r *Repository) Log(id string) (log []Commit) {
	for ; id != ""; id = r.commits[id].Parent {
		log = append(log, r.commits[id])
	}
	return log
}

// LastFor returns the last commit, from id backwards, that changed a file.
func (r *Repository) LastFor(id, path string) string {
	for c := r.commits[id]; ; {
		parent, ok := r.commits[c.Parent]
		was, had := parent.Files[path]
		is, has := c.Files[path]
		if !ok || had != has || was != is {
			return c.ID
		}
		c = parent
	}
}

// Own returns the commits up to head that are not in branch, newest first, and the commit before them.
func (r *Repository) Own(head, branch string) (own []Commit, base string) {
	theirs := r.Log(r.branches[branch])
	for _, c := range r.Log(head) {
		if slices.ContainsFunc(theirs, func(t Commit) bool { return t.ID == c.ID }) {
			return own, c.ID
		}
		own = append(own, c)
	}
	return own, ""
}

// Touched returns the sorted files that differ between head and the point where it left branch.
func (r *Repository) Touched(head, branch string) []string {
	_, base := r.Own(head, branch)
	was, is := r.commits[base].Files, r.commits[head].Files
	var out []string
	for _, path := range slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is))) {
		old, had := was[path]
		if now, has := is[path]; had != has || old != now {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Merged returns the files of branch merged with the changes up to head. It returns false if both changed the same
// file.
func (r *Repository) Merged(head, branch string) (map[string]string, bool) {
	_, base := r.Own(head, branch)
	was, mine, theirs := r.commits[base].Files, r.commits[head].Files, r.commits[r.branches[branch]].Files
	if base == "" {
		return nil, false
	}
	out := maps.Clone(theirs)
	for _, path := range slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(mine))) {
		old, had := was[path]
		text, has := mine[path]
		if had == has && old == text {
			continue
		}
		if now, there := theirs[path]; there != had || now != old {
			return nil, false
		}
		if has {
			out[path] = text
		} else {
			delete(out, path)
		}
	}
	return out, true
}
