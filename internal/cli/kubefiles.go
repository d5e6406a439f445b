package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
)

// kubefiles are the files of one KUBECONFIG list, in its order. As in kubectl an
// entry is changed in the file that holds it, and a new one goes to the first
// file that exists, else to the last of the list.
type kubefiles []*kubefile

// kubePaths are the files that kubectl would use.
func (t *tka) kubePaths() ([]string, error) {
	if t.kubeconfig != "" {
		return []string{t.kubeconfig}, nil
	}
	var paths []string
	for _, p := range filepath.SplitList(t.Getenv("KUBECONFIG")) {
		if p != "" && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	if len(paths) > 0 {
		return paths, nil
	}
	home, err := t.home()
	if err != nil {
		return nil, err
	}
	return []string{filepath.Join(home, ".kube", "config")}, nil
}

func readKubefiles(paths []string) (kubefiles, error) {
	var files kubefiles
	for _, p := range paths {
		text, err := readOwn(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, kubeError(p, err)
		}
		f, err := parseKubefile(p, text)
		if err != nil {
			return nil, kubeError(p, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// kubeError says why a kubeconfig is left alone.
func kubeError(path string, err error) *fault {
	if ff, ok := errors.AsType[*fileFault](err); ok {
		return fail(exitFailed, "the kubeconfig is left alone: %v", ff).because(err).try("%s", fileAdvice(ff))
	}
	if _, ok := errors.AsType[*kubeFault](err); ok {
		return fail(exitFailed, "the kubeconfig %s is left alone: %v", path, err).because(err).try("Mend it, or use another file: --kubeconfig FILE")
	}
	return fail(exitFailed, "the kubeconfig %s: %v", path, err).because(err).try("Use another file: --kubeconfig FILE")
}

func fileAdvice(ff *fileFault) string {
	if filepath.Ext(ff.path) == ".lock" {
		return fmt.Sprintf("If no kubectl and no tka is running, remove %s", ff.path)
	}
	return "Use another file: --kubeconfig FILE"
}

// home is the file that new entries go to.
func (k kubefiles) home() *kubefile {
	if i := slices.IndexFunc(k, func(f *kubefile) bool { return f.there }); i >= 0 {
		return k[i]
	}
	return k[len(k)-1]
}

// find is the file that holds an entry, and the entry's content.
func (k kubefiles) find(s section, name string) (*kubefile, *yaml.Node) {
	for _, f := range k {
		if body := f.find(s, name); body != nil {
			return f, body
		}
	}
	return nil, nil
}

func (k kubefiles) current() string {
	for _, f := range k {
		if c := f.current(); c != "" {
			return c
		}
	}
	return ""
}

// A notOurs is an entry of the name that we would write, made by somebody else.
type notOurs struct{ what, name, path string }

func (e *notOurs) Error() string {
	return fmt.Sprintf("%s has a %s %q already, which tka did not make", e.path, e.what, e.name)
}

// merge writes a's entries. The current context is changed when use says so, or
// when there is none.
func (k kubefiles) merge(a kubeEntry, use bool) error {
	home := k.home()
	uf, user := k.find(usersList, a.name)
	userOurs := false
	if user != nil {
		cluster, ours := pluginOf(user)
		if !ours || cluster != a.cluster {
			return &notOurs{"user", a.name, uf.path}
		}
		userOurs = true
	}
	xf, context := k.find(contextsList, a.name)
	if wish := a.contextOver(context); context != nil && !sameNode(context, wish) {
		if u := child(context, "user"); !userOurs || u == nil || u.Value != a.name {
			return &notOurs{"context", a.name, xf.path}
		}
	}
	cf, cluster := k.find(clustersList, a.name)
	if cluster != nil && !userOurs && !sameNode(cluster, a.clusterOver(cluster)) {
		return &notOurs{"cluster", a.name, cf.path}
	}
	cmp.Or(cf, home).put(clustersList, a.name, a.clusterOver(cluster))
	cmp.Or(uf, home).put(usersList, a.name, a.user())
	cmp.Or(xf, home).put(contextsList, a.name, a.contextOver(context))
	if use || k.current() == "" {
		home.setCurrent(a.name)
	}
	return nil
}

// remove takes out the entries of ours for a cluster and returns their names.
// An entry that somebody else still refers to stays.
func (k kubefiles) remove(cluster string) []string {
	var names []string
	for _, f := range k {
		for _, item := range slices.Clone(f.items(usersList)) {
			if c, ours := pluginOf(child(item, usersList.key)); ours && c == cluster {
				names = append(names, child(item, "name").Value)
				f.drop(usersList, names[len(names)-1])
			}
		}
	}
	for _, name := range names {
		for _, f := range k {
			if x := f.find(contextsList, name); x != nil && child(x, "user") != nil && child(x, "user").Value == name {
				f.drop(contextsList, name)
				if f.current() == name {
					f.setCurrent("")
				}
			}
		}
		for _, f := range k {
			if !k.refers(name) {
				f.drop(clustersList, name)
			}
			if f.current() == name {
				f.setCurrent("")
			}
		}
	}
	return names
}

// refers reports whether some context still uses a cluster.
func (k kubefiles) refers(cluster string) bool {
	return slices.ContainsFunc(k, func(f *kubefile) bool {
		return slices.ContainsFunc(f.items(contextsList), func(item *yaml.Node) bool {
			c := child(child(item, contextsList.key), "cluster")
			return c != nil && c.Value == cluster
		})
	})
}

// changed are the files that have to be written.
func (k kubefiles) changed() []string {
	var paths []string
	for _, f := range k {
		if f.changed {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// editKube changes the kubeconfig files by edit, which may be called more than
// once: to learn what to lock, and again on what is there under the lock. It
// returns the files that were changed.
func (t *tka) editKube(ctx context.Context, edit func(kubefiles) error) ([]string, error) {
	paths, err := t.kubePaths()
	if err != nil {
		return nil, err
	}
	plan := func() (kubefiles, error) {
		files, err := readKubefiles(paths)
		if err != nil {
			return nil, err
		}
		return files, edit(files)
	}
	var locked []string
	for {
		files, err := plan()
		if err != nil || len(files.changed()) == 0 {
			return nil, err
		}
		for _, p := range files.changed() {
			if !slices.Contains(locked, p) {
				locked = append(locked, p)
			}
		}
		done, err := t.writeKube(ctx, locked, plan)
		if done != nil || err != nil {
			return done, err
		}
	}
}

// writeKube locks files, plans once more and writes. Nothing is returned when
// the plan now wants a file that is not locked.
func (t *tka) writeKube(ctx context.Context, locked []string, plan func() (kubefiles, error)) ([]string, error) {
	l, err := lockFiles(ctx, locked)
	if err != nil {
		return nil, kubeError(locked[0], err)
	}
	defer l.release()
	files, err := plan()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(files.changed(), func(p string) bool { return !slices.Contains(locked, p) }) {
		return nil, nil
	}
	done := []string{}
	var out []staged
	defer func() {
		for _, s := range out {
			s.drop()
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
			return nil, kubeError(f.path, err)
		}
		s, err := stage(f.path, text)
		if err != nil {
			return nil, kubeError(f.path, err)
		}
		out = append(out, s)
	}
	for len(out) > 0 {
		if err := out[0].commit(); err != nil {
			return nil, kubeError(out[0].path, err)
		}
		done, out = append(done, out[0].path), out[1:]
	}
	return done, nil
}

// verify reads the new text of a file back: it must mean what the tree means,
// so that no oddity of the form can cost somebody an entry.
func (f *kubefile) verify(text []byte) error {
	again, err := parseKubefile(f.path, text)
	if err != nil {
		return &kubeFault{0, fmt.Sprintf("it is written in a way that tka cannot keep (%v)", err)}
	}
	if !sameNode(f.top(), again.top()) {
		return &kubeFault{0, "it is written in a way that tka cannot keep"}
	}
	return nil
}
