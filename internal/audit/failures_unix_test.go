//go:build unix

package audit_test

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// AU-04: The operating system stops the growth of the file in the middle of a line, and later
// allows it again. The limit applies to a whole process, so the test starts a separate one.
func TestAU04_AFileThatCannotGrow(t *testing.T) {
	const own = "TAILPLANE_TEST_OWN_PROCESS"
	if os.Getenv(own) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), own+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	c := config(t)
	l := open(t, c)
	write(t, l, 2)
	info, err := os.Stat(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	restore := func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}
	tight := was
	tight.Cur = uint64(info.Size()) + 100
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &tight); err != nil {
		t.Fatal(err)
	}
	defer restore()
	began := time.Now()
	for i := range 10 {
		if err := l.Write(entry(i)); err != nil {
			t.Errorf("a visit does not go on: %v", err)
		}
	}
	if took := time.Since(began); took >= c.Delay {
		t.Errorf("visits waited %v", took)
	}
	if problem.CodeOf(l.Ready()) != problem.AuditUnavailable {
		t.Error("ready without a record")
	}
	restore()
	eventually(t, func() bool { return l.Ready() == nil && l.Stats().Waiting == 0 })
	closeLog(t, l)
	switch r := sound(t, c); {
	case r.Entries != 12:
		t.Errorf("r.Entries = %v, want 12", r.Entries)
	case r.Torn != 1:
		t.Errorf("r.Torn = %v, want 1", r.Torn)
	case r.Lost != 0:
		t.Errorf("r.Lost = %v, want 0", r.Lost)
	}
}
