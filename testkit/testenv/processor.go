package testenv

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ProcessorTime returns the CPU time that a process has used so far, with a resolution of 10 ms. It returns an error
// on systems that do not report it.
func ProcessorTime(pid int) (used time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// utime and stime are the 12th and 13th field after the name in brackets, in units of 10 ms.
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
