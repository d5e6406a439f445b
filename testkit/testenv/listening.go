package testenv

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listening returns the TCP ports on which a process of this machine listens. told is false if the machine does not
// report them.
func Listening(pid int) (ports []int, told bool, err error) {
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	if err != nil || len(fds) == 0 {
		return nil, false, err
	}
	sockets := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil { // the process may have closed it already
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				sockets[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			return nil, true, err
		}
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st … inode; 0A is LISTEN
			field := strings.Fields(line)
			if len(field) < 10 || field[3] != "0A" || !sockets[field[9]] {
				continue
			}
			_, hex, _ := strings.Cut(field[1], ":")
			port, err := strconv.ParseInt(hex, 16, 32)
			if err != nil {
				return nil, true, err
			}
			if !slices.Contains(ports, int(port)) {
				ports = append(ports, int(port))
			}
		}
	}
	return ports, true, nil
}
