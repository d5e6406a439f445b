package run

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles hold the container's memory limit in bytes, for cgroup version 2 and version 1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitMemory sets Go's soft memory limit to nine tenths of the container's limit; the rest is for memory
// outside the Go heap. The garbage collector then works harder near the limit, instead of the kernel killing
// the container. A sidecar's limit is small, and the total of its clients' requests is not.
func limitMemory(files []string) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return // GOMEMLIMIT is already set
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// Without a limit, version 2 has "max" and version 1 has a number larger than any machine's memory.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 && n < 1<<50 {
			debug.SetMemoryLimit(n / 10 * 9)
		}
		return
	}
}
