package identity

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
)

func restrictSocket(fd uintptr) error { return syscall.Fchmod(int(fd), uint32(socketMode)) }

func checkUserLookup() error {
	_, err := os.Stat("/proc/self/net/tcp")
	return err
}

// userOf returns the user ID of the process that owns the local TCP connection from at to to, as
// listed by the kernel. The list shows root as the owner of a closed connection. Only an
// established connection with an inode counts, because a process still holds it.
func userOf(at, to netip.AddrPort) (uint32, error) {
	for _, list := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} { // a socket of either family can carry IPv4
		f, err := os.Open(list)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return 0, err
		}
		user, err := findUser(bufio.NewScanner(f), at, to)
		f.Close()
		if err == nil || !errors.Is(err, errNoConnection) {
			return user, err
		}
	}
	return 0, errNoConnection
}

var errNoConnection = errors.New("the kernel lists no such connection that is open")

// established is TCP_ESTABLISHED in the kernel's list.
const established = "01"

// findUser searches one of the kernel's connection lists:
//
//	sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
func findUser(lines *bufio.Scanner, at, to netip.AddrPort) (uint32, error) {
	lines.Scan() // the heading
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 {
			return 0, fmt.Errorf("the kernel's list of connections has %d columns", len(f))
		}
		if f[3] != established || f[9] == "0" || !matchesEndpoint(f[1], at) || !matchesEndpoint(f[2], to) {
			continue
		}
		user, err := strconv.ParseUint(f[7], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("the kernel's list of connections: %w", err)
		}
		return uint32(user), nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errNoConnection
}

// matchesEndpoint reports whether the kernel's text, such as 0100007F:1F90, is the address. The kernel writes
// 32-bit words in native byte order.
func matchesEndpoint(text string, want netip.AddrPort) bool {
	host, port, _ := strings.Cut(text, ":")
	if p, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(p) != want.Port() {
		return false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return ok && a.Unmap() == want.Addr()
}
