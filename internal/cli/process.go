package cli

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// processID names a process: no other one has its number and, where the system
// tells it, the moment of its start.
func processID(pid int) string {
	start := ""
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// A program's name, in parentheses, may hold anything.
		if fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(fields) > 19 {
			start = string(fields[19])
		}
	}
	return fmt.Sprintf("%d-%s", pid, start)
}

// processLives reports whether the process of an id is still there; yes in doubt.
func processLives(id string) bool {
	number, start, _ := strings.Cut(id, "-")
	pid, err := strconv.Atoi(number)
	switch {
	case err != nil || pid <= 0:
		return false
	case start != "":
		return processID(pid) == id
	}
	return pidLives(pid)
}
