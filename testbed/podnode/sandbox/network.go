//go:build linux

package sandbox

import (
	"net"

	"golang.org/x/sys/unix"
)

// control runs fn on a socket, which is what the kernel's interface requests are made on.
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

// addAddress gives the interface one more address, alone: without the mask the kernel would take all of 10.0.0.0/8 for
// its own.
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
