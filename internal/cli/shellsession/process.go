package shellsession

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ProcessID returns a unique name of a process: its number and, if the system reports it, its start time.
func ProcessID(pid int) string {
	start := ""
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// The program's name, in parentheses, may contain any characters.
		if fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(fields) > 19 {
			start = string(fields[19])
		}
	}
	return fmt.Sprintf("%d-%s", pid, start)
}

// ProcessExists reports whether the process with an id still exists; true if that is unknown.
func ProcessExists(id string) bool {
	number, start, _ := strings.Cut(id, "-")
	pid, err := strconv.Atoi(number)
	switch {
	case err != nil || pid <= 0:
		return false
	case start != "":
		return ProcessID(pid) == id
	}
	return pidExists(pid)
}
