package main

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles say how much memory a container may have, by version of cgroups.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitMemory makes the collector work harder as the container's limit comes
// near, instead of being killed at it: a sidecar's limit is small, and what
// clients ask for together is not. A tenth is left for what is not Go's heap.
func limitMemory(files []string) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return // whoever runs it has said so
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// Without a limit it is "max", or by version 1 more than any machine has.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 && n < 1<<50 {
			debug.SetMemoryLimit(n / 10 * 9)
		}
		return
	}
}
