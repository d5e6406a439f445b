package testenv

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ProcessorTime is what a process has used of it so far, to a hundredth of a second. The error is that of a system that does not
// tell.
func ProcessorTime(pid int) (used time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// After the name in brackets, the 12th and 13th field, in hundredths of a second.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, field := range f[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		used += time.Duration(ticks) * time.Second / 100
	}
	return used, nil
}
