//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Root is the root directory of a container. It contains only the mounts, /proc, a few devices and /tmp.
type Root struct {
	Dir      string  // an empty directory of the machine, where the root is built
	Mounts   []Mount // in order
	Tools    bool    // mount the machine's own programs read-only: /usr, /bin, /lib and similar
	ReadOnly bool    // only mounts are writable
}

// Mount is a file or directory of the machine that a container sees.
type Mount struct {
	Source   string
	Target   string // absolute
	ReadOnly bool
}

// devices are the devices that every program may expect. There are no others.
var devices = []string{"null", "zero", "full", "random", "urandom"}

// toolFolders contain the machine's programs, and the links from their old paths.
var toolFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl", "/etc/alternatives"}

// enter makes r the root directory of this process's mount namespace.
func (r *Root) enter() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := syscall.Mount("tmpfs", r.Dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	in := func(name string) string { return filepath.Join(r.Dir, name) }
	for _, d := range []string{"dev", "etc", "proc", "tmp", "old"} {
		if err := os.Mkdir(in(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(in("tmp"), 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if err := syscall.Mount("proc", in("proc"), "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	var mounts []Mount
	for _, d := range devices {
		mounts = append(mounts, Mount{Source: "/dev/" + d, Target: "/dev/" + d})
	}
	if r.Tools {
		for _, d := range toolFolders {
			i, err := os.Lstat(d)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if i.Mode()&fs.ModeSymlink != 0 {
				to, err := os.Readlink(d)
				if err != nil {
					return err
				}
				if err := os.Symlink(to, in(d)); err != nil {
					return err
				}
				continue
			}
			mounts = append(mounts, Mount{Source: d, Target: d, ReadOnly: true})
		}
	}
	for _, m := range append(mounts, r.Mounts...) {
		if err := m.bind(r.Dir); err != nil {
			return fmt.Errorf("%s at %s: %w", m.Source, m.Target, err)
		}
	}
	for to, link := range map[string]string{"/proc/self/fd": "fd", "/proc/self/fd/0": "stdin", "/proc/self/fd/1": "stdout", "/proc/self/fd/2": "stderr"} {
		if err := os.Symlink(to, in("dev/"+link)); err != nil {
			return err
		}
	}
	// pivot_root and not chroot: a process in a chroot cannot create another user namespace.
	if err := syscall.PivotRoot(r.Dir, in("old")); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Unmount("/old", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("old root: %w", err)
	}
	if err := os.Remove("/old"); err != nil {
		return err
	}
	if r.ReadOnly {
		return readOnly("/")
	}
	return nil
}

func (m Mount) bind(root string) error {
	target := filepath.Join(root, m.Target)
	if target == root || !strings.HasPrefix(target, root+"/") {
		return errors.New("not below the root")
	}
	i, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if i.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := syscall.Mount(m.Source, target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return err
	}
	if m.ReadOnly {
		return readOnly(target)
	}
	return nil
}

// readOnly makes a mount read-only. In a user namespace, the remount must repeat the existing flags of the mount.
func readOnly(path string) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return err
	}
	const kept = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC | syscall.MS_NOATIME | syscall.MS_NODIRATIME
	flags := uintptr(s.Flags)&kept | syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY
	if s.Flags&0x1000 != 0 { // ST_RELATIME, which has a different number in statfs
		flags |= syscall.MS_RELATIME
	}
	return syscall.Mount("", path, "", flags, "")
}
