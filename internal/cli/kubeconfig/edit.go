package kubeconfig

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/util/safefile"
	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// Files are the files of one KUBECONFIG list, in its order, for editing. As in kubectl, an edit changes an entry in the file that holds it.
// A new entry goes to the first file that exists, or else to the last file of the list.
type Files []*file

// Paths returns the files that kubectl would use: the named file, else those of the list in $KUBECONFIG, else the one in the home directory.
// It calls home only in the last case.
func Paths(named, list string, home func() (string, error)) ([]string, error) {
	if named != "" {
		return []string{named}, nil
	}
	var paths []string
	for _, p := range filepath.SplitList(list) {
		if p != "" && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	if len(paths) > 0 {
		return paths, nil
	}
	dir, err := home()
	if err != nil {
		return nil, err
	}
	return []string{filepath.Join(dir, ".kube", "config")}, nil
}

// ReadFiles reads the files of a list for editing. A missing file is empty. The error is a *ContentError, a *safefile.Error or comes from
// the system; each names the path.
func ReadFiles(paths []string) (Files, error) {
	var files Files
	for _, p := range paths {
		text, err := safefile.Read(p)
		if err != nil {
			return nil, err
		}
		f, err := parse(p, text)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// defaultFile returns the file for new entries.
func (k Files) defaultFile() *file {
	if i := slices.IndexFunc(k, func(f *file) bool { return f.exists }); i >= 0 {
		return k[i]
	}
	return k[len(k)-1]
}

// find returns the file that holds an entry, and the entry's content.
func (k Files) find(s section, name string) (*file, *yaml.Node) {
	for _, f := range k {
		if body := f.find(s, name); body != nil {
			return f, body
		}
	}
	return nil, nil
}

// A ForeignEntryError reports an entry that has the name that tka would write but that another program created, or tka for another sign-in.
type ForeignEntryError struct {
	Kind  string // "cluster", "user" or "context"
	Name  string
	Path  string
	Other Signin // the sign-in whose entry it is; zero: tka did not create the entry
}

func (e *ForeignEntryError) Error() string {
	if e.Other.Cluster != "" {
		session := "the default session"
		if e.Other.Session != "" {
			session = "the session " + e.Other.Session
		}
		return fmt.Sprintf("%s already has a %s %q, for %s of the cluster %s", e.Path, e.Kind, e.Name, session, e.Other.Cluster)
	}
	return fmt.Sprintf("%s already has a %s %q, which tka did not create", e.Path, e.Kind, e.Name)
}

// Merge writes a's entries. It changes the current context if use is set, or to that of a default session if there is none.
func (k Files) Merge(a Entry, use bool) error {
	home := k.defaultFile()
	uf, user := k.find(usersList, a.Name)
	other, userByTka := signinOf(user)
	if user != nil && (!userByTka || other != a.Signin) {
		return &ForeignEntryError{"user", a.Name, uf.path, other}
	}
	xf, context := k.find(contextsList, a.Name)
	if desired := a.contextNode(context); context != nil && !yamledit.Equal(context, desired) {
		if u := yamledit.Child(context, "user"); !userByTka || u == nil || u.Value != a.Name {
			return &ForeignEntryError{"context", a.Name, xf.path, Signin{}}
		}
	}
	cf, cluster := k.find(clustersList, a.Name)
	if cluster != nil && !userByTka && !yamledit.Equal(cluster, a.clusterNode(cluster)) {
		return &ForeignEntryError{"cluster", a.Name, cf.path, Signin{}}
	}
	cmp.Or(cf, home).set(clustersList, a.Name, a.clusterNode(cluster))
	cmp.Or(uf, home).set(usersList, a.Name, a.userNode())
	cmp.Or(xf, home).set(contextsList, a.Name, a.contextNode(context))
	if use || a.Session == "" && !slices.ContainsFunc(k, func(f *file) bool { return f.current() != "" }) {
		home.setCurrent(a.Name)
	}
	return nil
}

// Remove removes the entries that tka wrote for a sign-in and returns their names. It keeps a cluster entry that another context still
// uses.
func (k Files) Remove(s Signin) []string {
	var names []string
	for _, f := range k {
		for _, item := range slices.Clone(f.items(usersList)) {
			if of, byTka := signinOf(yamledit.Child(item, usersList.key)); byTka && of == s {
				names = append(names, yamledit.Child(item, "name").Value)
				f.delete(usersList, names[len(names)-1])
			}
		}
	}
	for _, name := range names {
		for _, f := range k {
			if user := yamledit.Child(f.find(contextsList, name), "user"); user != nil && user.Value == name {
				f.delete(contextsList, name)
			}
		}
		for _, f := range k {
			if !k.isUsed(name) {
				f.delete(clustersList, name)
			}
			if f.current() == name {
				f.setCurrent("")
			}
		}
	}
	return names
}

// isUsed reports whether a context still uses a cluster.
func (k Files) isUsed(cluster string) bool {
	return slices.ContainsFunc(k, func(f *file) bool {
		return slices.ContainsFunc(f.items(contextsList), func(item *yaml.Node) bool {
			c := yamledit.Child(yamledit.Child(item, contextsList.key), "cluster")
			return c != nil && c.Value == cluster
		})
	})
}

// Changed returns the paths of the files that must be written.
func (k Files) Changed() []string {
	var paths []string
	for _, f := range k {
		if f.changed {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// Edit changes the files of a list with edit and returns the changed files. It calls edit first to determine which files to lock, and again
// on their content under the lock.
func Edit(ctx context.Context, paths []string, edit func(Files) error) ([]string, error) {
	plan := func() (Files, error) {
		files, err := ReadFiles(paths)
		if err != nil {
			return nil, err
		}
		return files, edit(files)
	}
	var locked []string
	for {
		files, err := plan()
		if err != nil || len(files.Changed()) == 0 {
			return nil, err
		}
		for _, p := range files.Changed() {
			if !slices.Contains(locked, p) {
				locked = append(locked, p)
			}
		}
		done, err := writeLocked(ctx, locked, plan)
		if done != nil || err != nil {
			return done, err
		}
	}
}

// writeLocked locks files, plans again and writes. It returns nil when the new plan changes a file that is not locked.
func writeLocked(ctx context.Context, locked []string, plan func() (Files, error)) ([]string, error) {
	l, err := safefile.LockAll(ctx, locked)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	files, err := plan()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(files.Changed(), func(p string) bool { return !slices.Contains(locked, p) }) {
		return nil, nil
	}
	done := []string{}
	var out []safefile.Staged
	defer func() {
		for _, s := range out {
			s.Discard()
		}
	}()
	for _, f := range files {
		if !f.changed {
			continue
		}
		text, err := f.text()
		if err == nil {
			err = f.verify(text)
		}
		if err != nil {
			return nil, err
		}
		s, err := safefile.Stage(f.path, text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	for len(out) > 0 {
		if err := out[0].Commit(); err != nil {
			return nil, err
		}
		done, out = append(done, out[0].Path()), out[1:]
	}
	return done, nil
}

// verify parses the new text of a file and compares it with the tree, so that an unusual form cannot make another entry disappear.
func (f *file) verify(text []byte) error {
	reparsed, err := parse(f.path, text)
	if err != nil {
		return &ContentError{f.path, 0, fmt.Sprintf("tka cannot preserve its formatting (%v)", err)}
	}
	if !yamledit.Equal(f.top(), reparsed.top()) {
		return &ContentError{f.path, 0, "tka cannot preserve its formatting"}
	}
	return nil
}
