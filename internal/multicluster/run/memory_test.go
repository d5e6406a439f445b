package run

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestLimitMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	dir := t.TempDir()
	for _, tt := range []struct {
		why, content string
		before, want int64
	}{
		{"the injected sidecar's", "67108864\n", math.MaxInt64, 60397974},
		{"none", "max\n", math.MaxInt64, math.MaxInt64},
		{"none, by version 1", "9223372036854771712\n", math.MaxInt64, math.MaxInt64},
		{"unreadable", "many", math.MaxInt64, math.MaxInt64},
		{"another is set already", "67108864\n", 1 << 30, 1 << 30},
	} {
		name := filepath.Join(dir, "memory.max")
		if err := os.WriteFile(name, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		debug.SetMemoryLimit(tt.before)
		limitMemory([]string{filepath.Join(dir, "absent"), name})
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.why, got, tt.want)
		}
	}
}
