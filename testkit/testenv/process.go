package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Process is one of the product's servers. It ends with this process, even after a crash.
type Process struct {
	Args []string // command line, the program first
	Log  string   // path of its standard error and output

	mu     sync.Mutex
	cmd    *exec.Cmd
	before int64         // size of the log when the process started
	done   chan struct{} // closed when the process has ended
	err    error         // reason of the end; read it after done
}

// startProcess starts a program whose output goes to a file in dir.
func startProcess(dir string, env []string, args ...string) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	p := &Process{Args: args, Log: log.Name(), before: info.Size(), done: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = env, dir, log, log
	p.cmd.SysProcAttr = diesWithParent()
	started := make(chan error)
	go func() {
		// The kernel kills the child when the *thread* that created it ends. So this goroutine keeps its thread as
		// long as the child lives.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(args[0]), err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns the exit code of a process that has ended, or -1 after a signal.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Output returns the output of the process so far, after that of earlier processes with the same log.
func (p *Process) Output() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// OwnOutput returns the output of the process so far, without that of earlier processes with the same log.
func (p *Process) OwnOutput() string {
	out := p.Output()
	return out[min(p.before, int64(len(out))):]
}

// WaitLog waits until the process has written text. It fails when the process or ctx ends first; the error then
// contains the end of the output.
func (p *Process) WaitLog(ctx context.Context, text string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if strings.Contains(p.OwnOutput(), text) {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.done:
			return fmt.Errorf("%s ended (%v): %s", p.name(), p.err, tail(p.Output()))
		case <-ctx.Done():
			return fmt.Errorf("the output of %s lacks %s: %w: %s", p.name(), text, ctx.Err(), tail(p.Output()))
		}
	}
}

func (p *Process) name() string { return filepath.Base(p.Args[0]) + " " + p.Args[1] }

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// Kill kills the process, as a crash would, and waits for its end.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pause stops the process until it receives SIGCONT. It waits until every thread has stopped: on a busy machine, a thread
// can otherwise still answer a request that follows.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for !p.paused() {
		if err := retry.Sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("pause %s: %w", p.Args[0], err)
		}
	}
	return nil
}

// paused reports whether the kernel has stopped every thread. It returns true on systems without /proc.
func (p *Process) paused() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		// proc(5): the state follows the name of the program, which is in parentheses.
		if i := strings.LastIndex(string(stat), ") "); i >= 0 && !strings.HasPrefix(string(stat)[i+2:], "T") {
			return false
		}
	}
	return true
}

// Stop asks the process to end. After limit, Stop kills it and returns an error. A process that has ended before is
// not an error.
func (p *Process) Stop(limit time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		<-p.done
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("%s did not stop within %v: %s", p.name(), limit, tail(p.Output()))
	}
}
