package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// A terminal is kubectl on a terminal of its own.
type terminal struct {
	*command
	master *os.File
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	raw, err := f.SyscallConn() // with Fd, Close could not interrupt reads
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err = raw.Control(func(fd uintptr) { _, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg)) }); err == nil && errno != 0 {
		err = errno
	}
	return err
}

// beginTerminal starts kubectl as p through the proxy on a terminal of the given size.
func beginTerminal(t *testing.T, p *testenv.Person, session string, env []string, columns, rows uint16, args ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	var number, zero int32
	err = errors.Join(ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&zero)), ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)))
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	defer slave.Close()
	ctx, cancel := context.WithCancel(context.Background())
	x := &terminal{command: &command{ended: make(chan struct{})}, master: master}
	x.resize(t, columns, rows)
	x.Cmd = exec.CommandContext(ctx, filepath.Join(p.Bin(), "kubectl"), append([]string{"--kubeconfig", filepath.Join(p.Home, session+".kubeconfig")}, args...)...)
	x.Env, x.Dir = append(p.Env(), env...), p.Home
	x.Stdin, x.Stdout, x.Stderr = slave, slave, slave
	x.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf)
			x.command.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		x.err = x.Wait()
		<-drained // the terminal ends with its last program
		close(x.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-x.ended
	})
	return x
}

// waitRaw waits until the program reads each key: before that, the terminal itself would show what is typed.
func (x *terminal) waitRaw(t *testing.T) {
	t.Helper()
	until(t, func() string { return "the terminal is not raw: " + x.String() }, func() bool {
		var mode syscall.Termios
		return ioctl(x.master, syscall.TCGETS, unsafe.Pointer(&mode)) == nil && mode.Lflag&syscall.ECHO == 0
	})
}

// resize changes the size of the terminal, which sends SIGWINCH to its program.
func (x *terminal) resize(t *testing.T, columns, rows uint16) {
	t.Helper()
	size := [4]uint16{rows, columns}
	if err := ioctl(x.master, syscall.TIOCSWINSZ, unsafe.Pointer(&size)); err != nil {
		t.Fatal(err)
	}
}

// enter types text.
func (x *terminal) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := x.master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}
