//go:build linux

package podnode

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// pipes are the standard streams of a process. The process has the far ends.
type pipes struct {
	far [3]*os.File
	in  *os.File   // write end; nil: it reads nothing
	out []*os.File // read ends: standard output and standard error, or the terminal
}

func (p *pipes) closeFar() {
	for i, f := range p.far {
		if f != nil && !slices.Contains(p.far[:i], f) {
			f.Close()
		}
	}
}

func (p *pipes) closeNear() {
	if p.in != nil {
		p.in.Close()
	}
	for _, f := range p.out {
		f.Close()
	}
}

// newPipes creates a process's streams. With a terminal all three are the same, and in is out[0].
func newPipes(stdin, tty bool) (*pipes, error) {
	p := &pipes{}
	if tty {
		near, far, err := terminal()
		if err != nil {
			return nil, err
		}
		p.far, p.in, p.out = [3]*os.File{far, far, far}, near, []*os.File{near}
		return p, nil
	}
	fail := func(err error) (*pipes, error) {
		p.closeFar()
		p.closeNear()
		return nil, err
	}
	var err error
	if stdin {
		p.far[0], p.in, err = os.Pipe()
	} else {
		p.far[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return fail(err)
	}
	for i := 1; i <= 2; i++ {
		near, far, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		p.far[i], p.out = far, append(p.out, near)
	}
	return p, nil
}

// terminal opens a new pseudo terminal.
func terminal() (near, far *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	near = os.NewFile(uintptr(fd), "/dev/ptmx")
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		far, err = os.OpenFile("/dev/pts/"+strconv.Itoa(int(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	return near, far, nil
}

func resize(tty *os.File, sizes <-chan remotecommand.TerminalSize) {
	for s := range sizes {
		_ = unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	}
}

// open creates the run's streams.
func (r *run) open(stdin bool) (*pipes, error) {
	p, err := newPipes(stdin, r.process.TTY)
	if err != nil {
		return nil, err
	}
	if p.in != nil {
		r.stdin = p.in
	}
	if r.process.TTY {
		r.tty = p.out[0]
	}
	return p, nil
}
