//go:build linux

package sandbox

import (
	"net"

	"golang.org/x/sys/unix"
)

// control runs fn on a socket, which the kernel's interface requests need.
func control(fn func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

func loopbackUp() error {
	return control(func(fd int) error {
		r, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
	})
}

// addAddress adds one address to the interface. It sets the mask, because otherwise the kernel would use all of
// 10.0.0.0/8.
func addAddress(alias string, ip net.IP) error {
	return control(func(fd int) error {
		for _, step := range []struct {
			request uint
			value   net.IP
		}{{unix.SIOCSIFADDR, ip.To4()}, {unix.SIOCSIFNETMASK, net.IPv4(255, 255, 255, 255).To4()}} {
			r, err := unix.NewIfreq(alias)
			if err != nil {
				return err
			}
			if err := r.SetInet4Addr(step.value); err != nil {
				return err
			}
			if err := unix.IoctlIfreq(fd, step.request, r); err != nil {
				return err
			}
		}
		return nil
	})
}
