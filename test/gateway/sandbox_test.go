//go:build linux

package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"
)

// The suite runs in its own user, mount, PID and network namespaces. Envoy Gateway's ports (18000, 18002, 8081,
// 19001) are fixed and bound on every interface. With the Kubernetes provider it reads its certificates from /certs.
// In the namespaces this has no effect on the machine, is not reachable from outside, and lets several suites run at
// the same time. No privilege is needed.

// insideVariable marks the process that runs in the namespaces.
const insideVariable = "TAILPLANE_TEST_INSIDE"

// podRange is an address with its network; every address of the network is local in the namespaces. Endpoints of real
// clusters are never on loopback, and the API server and Envoy Gateway both refuse 127.0.0.0/8 for them.
const podRange = "10.244.0.1/16"

// serviceRange is the same for addresses of Services. Tests replace kube-proxy there.
const serviceRange = "10.96.0.1/16"

// enter runs this program again in new namespaces and returns its exit code. The error is the reason why namespaces
// are not available.
func enter() (int, error) {
	runtime.LockOSThread() // the child dies with the thread that created it
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("this machine refuses namespaces: %w", err)
	}
	err = cmd.Wait()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// furnish sets up the namespaces: a loopback interface with the ranges of pods and Services, and a root folder with
// the machine's entries and a separate /certs.
func furnish() error {
	if err := loopback(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	const root = "/mnt" // visible only in this mount namespace, so nothing is left behind
	if err := syscall.Mount("tmpfs", root, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := bring(e, root); err != nil {
			return fmt.Errorf("/%s: %w", e.Name(), err)
		}
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, d := range []string{"certs", ".old"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	// Not chroot: inside a chroot no further user namespace can be created.
	if err := syscall.PivotRoot(root, filepath.Join(root, ".old")); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir(wd); err != nil {
		return err
	}
	if err := syscall.Unmount("/.old", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("old root: %w", err)
	}
	return os.Remove("/.old")
}

// bring mounts an entry of the machine's root folder in the new root.
func bring(e os.DirEntry, root string) error {
	from, to := filepath.Join("/", e.Name()), filepath.Join(root, e.Name())
	switch {
	case from == root || from == "/certs":
		return os.Mkdir(to, 0o755)
	case from == "/proc":
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		return syscall.Mount("proc", to, "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "")
	case e.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	case e.Type().IsRegular():
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	default:
		return nil
	}
	return syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, "")
}

// loopback brings lo up and adds the ranges: on lo, an address with a mask makes its whole network local.
func loopback() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	type step struct {
		request uintptr
		ifreq   *[40]byte
	}
	up := ifreq("lo")
	*(*uint16)(unsafe.Pointer(&up[syscall.IFNAMSIZ])) = syscall.IFF_UP | syscall.IFF_RUNNING | syscall.IFF_LOOPBACK
	steps := []step{{syscall.SIOCSIFFLAGS, up}}
	for name, text := range map[string]string{"lo:1": podRange, "lo:2": serviceRange} {
		ip, network, err := net.ParseCIDR(text)
		if err != nil {
			return err
		}
		address, mask := ifreq(name), ifreq(name)
		copy(address[syscall.IFNAMSIZ:], sockaddr(ip.To4()))
		copy(mask[syscall.IFNAMSIZ:], sockaddr(net.IP(network.Mask)))
		steps = append(steps, step{syscall.SIOCSIFADDR, address}, step{syscall.SIOCSIFNETMASK, mask})
	}
	for _, s := range steps {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), s.request, uintptr(unsafe.Pointer(s.ifreq))); e != 0 {
			return e
		}
	}
	return nil
}

// ifreq returns the kernel's request structure for an interface: its name, followed by the parameter.
func ifreq(name string) *[40]byte {
	var r [40]byte
	copy(r[:syscall.IFNAMSIZ-1], name)
	return &r
}

// sockaddr returns an IPv4 socket address in the kernel's format.
func sockaddr(ip net.IP) []byte {
	b := make([]byte, 16)
	*(*uint16)(unsafe.Pointer(&b[0])) = syscall.AF_INET
	copy(b[4:], ip)
	return b
}
