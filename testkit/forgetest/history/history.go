// Package history keeps what git keeps of a repository, for the forges of tests:
// commits, branches, and what a merge makes of them. It keeps law 7: what conflicts
// is not merged.
package history

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// A Commit is a commit with all files as it leaves them.
type Commit struct {
	ID, Parent                                                      string
	Message, AuthorName, AuthorEmail, CommitterName, CommitterEmail string
	Files                                                           map[string]string // path to content
}

// A Repository has commits, each with one parent, and branches. It is for one
// goroutine at a time.
type Repository struct {
	branches map[string]string // name to head
	commits  map[string]Commit
	trees    map[string]map[string]string // git's id of one that was asked for, to the files below it
}

// New returns an empty repository.
func New() *Repository {
	return &Repository{branches: map[string]string{}, commits: map[string]Commit{}, trees: map[string]map[string]string{}}
}

// Head is the last commit of a branch; empty: there is no such branch.
func (r *Repository) Head(branch string) string { return r.branches[branch] }

// Commit returns a commit; false: there is none.
func (r *Repository) Commit(id string) (Commit, bool) {
	c, ok := r.commits[id]
	return c, ok
}

// Add puts a commit on a branch, which need not be there, and returns its ID.
func (r *Repository) Add(branch string, c Commit) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(len(r.commits), c)))
	c.ID, c.Files = hex.EncodeToString(sum[:20]), maps.Clone(c.Files)
	r.commits[c.ID], r.branches[branch] = c, c.ID
	return c.ID
}

// Branch makes a branch, or moves it, to a commit; false: there is no such commit.
func (r *Repository) Branch(name, id string) bool {
	_, ok := r.commits[id]
	if ok {
		r.branches[name] = id
	}
	return ok
}

// Delete takes a branch away; false: there was none.
func (r *Repository) Delete(branch string) bool {
	_, ok := r.branches[branch]
	delete(r.branches, branch)
	return ok
}

// Log are the commits up to one, the last first.
func (r *Repository) Log(id string) (log []Commit) {
	for ; id != ""; id = r.commits[id].Parent {
		log = append(log, r.commits[id])
	}
	return log
}

// LastFor is the last commit, from one on, that changed a file.
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

// Own are the commits up to head that a branch has not, the last first, and the one
// before them.
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

// Touched are the files that head leaves otherwise than they were where it left a
// branch, in order.
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

// Merged are the files of a branch with what was done up to head; false: both changed
// one file.
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
