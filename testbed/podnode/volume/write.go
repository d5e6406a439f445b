package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is one file of a volume.
type File struct {
	Data []byte
	Mode fs.FileMode
}

// Write makes the directory contain exactly these files, keyed by relative path. The update is atomic for readers, as
// with the kubelet: the files are in a hidden directory, "..data" points to it, and each name points through that
// link. Write does not change anything if the content is the same.
func Write(dir string, files map[string]File) error {
	for name := range files {
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") {
			return fmt.Errorf("%q is not a path in a volume", name)
		}
	}
	data := filepath.Join(dir, "..data")
	old, err := os.Readlink(data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" && same(filepath.Join(dir, old), files) {
		return nil
	}
	fresh, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return err
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	tops := map[string]bool{}
	for name, f := range files {
		path := filepath.Join(fresh, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, f.Mode); err != nil {
			return err
		}
		if err := os.Chmod(path, f.Mode); err != nil { // independent of the umask
			return err
		}
		top, _, _ := strings.Cut(filepath.ToSlash(name), "/")
		tops[top] = true
	}
	if err := replaceLink(filepath.Base(fresh), data); err != nil {
		return err
	}
	for top := range tops {
		if err := replaceLink(filepath.Join("..data", top), filepath.Join(dir, top)); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); !tops[n] && n != "..data" && n != filepath.Base(fresh) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, n)))
		}
	}
	return err
}

// replaceLink creates a link with that name and atomically replaces an existing one.
func replaceLink(to, name string) error {
	if has, err := os.Readlink(name); err == nil && has == to {
		return nil
	}
	making := filepath.Join(filepath.Dir(name), "..making")
	if err := os.Remove(making); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, making); err != nil {
		return err
	}
	return os.Rename(making, name)
}

// same reports whether the directory contains exactly the files.
func same(dir string, files map[string]File) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[rel]
		has, err := os.ReadFile(path)
		if err != nil || !ok || !bytes.Equal(has, want.Data) {
			return errors.Join(err, fs.ErrInvalid)
		}
		i, err := d.Info()
		if err != nil || i.Mode().Perm() != want.Mode.Perm() {
			return errors.Join(err, fs.ErrInvalid)
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}
