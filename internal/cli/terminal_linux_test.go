package cli_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A terminal is tka on a separate terminal.
type terminal struct {
	*exec.Cmd
	t      *testing.T
	master *os.File
	done   chan struct{}

	mu      sync.Mutex
	output  strings.Builder
	checked int // how much of the text was checked
}

// onTerminal starts tka as the first program of a new terminal.
func (m *machine) onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	var number, zero int32
	err = errors.Join(ioctl(master, syscall.TIOCSPTLCK, &zero), ioctl(master, syscall.TIOCGPTN, &number))
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIP terminal: %v", err)
	}
	defer slave.Close()
	x := &terminal{Cmd: m.command(nil, args...), t: t, master: master, done: make(chan struct{})}
	x.Stdin, x.Stdout, x.Stderr = slave, slave, slave
	x.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { x.Wait(); close(x.done) }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			x.mu.Lock()
			x.output.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		x.Process.Kill()
		<-x.done
		master.Close()
		if x.mu.Lock(); t.Failed() {
			t.Logf("the screen: %q", x.output.String())
		}
		x.mu.Unlock()
	})
	return x
}

func ioctl(f *os.File, request uintptr, arg *int32) error {
	raw, err := f.SyscallConn() // with Fd, Close could not interrupt reads
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(arg)))
	})
	if errno != 0 {
		return errno
	}
	return err
}

// text returns all text that the terminal has shown.
func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// waitText waits until the terminal shows text after the part that was already checked.
func (x *terminal) waitText(text string) {
	x.t.Helper()
	waitUntil(x.t, "the terminal shows "+text, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		i := strings.Index(x.output.String()[x.checked:], text)
		if i >= 0 {
			x.checked += i + len(text)
		}
		return i >= 0
	})
}

func (x *terminal) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

func (x *terminal) typeText(text string) {
	x.t.Helper()
	if _, err := x.master.WriteString(text); err != nil {
		x.t.Error(err)
	}
}

// SGN-21: on a terminal the prompt names the cluster. Ctrl-C reaches the child once, and closing the terminal leaves nothing behind.
func TestSGN21_terminal(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	t.Run("prompt", func(t *testing.T) {
		for _, name := range []string{"sh", "bash", "zsh", "fish"} {
			t.Run(name, func(t *testing.T) {
				path, err := exec.LookPath(name)
				if err != nil {
					t.Skipf("SKIP %s: it is not in PATH", name)
				}
				m := newMachine(t, srv.URL)
				m.env["SHELL"] = path
				m.env["TERM"] = "xterm"
				m.write(t, ".bashrc", "PS1='mine> '\nTHEIRS=yes\n")
				m.write(t, ".zshrc", "PROMPT='mine> '\nTHEIRS=yes\n")
				m.write(t, "config/fish/config.fish", "function fish_prompt; echo -n 'mine> '; end\nset -g THEIRS yes\n")
				// Without this folder, fish reads all manual pages in the background, and writes here after the test.
				m.write(t, ".local/share/fish/generated_completions/none.fish", "")
				x := m.onTerminal(t, "shell")
				prompt := "(tka:prod-eu) mine> "
				if name == "sh" {
					prompt = "(tka:prod-eu) "
				}
				x.waitText(prompt)
				if name != "sh" {
					x.typeText("echo settings=$THEIRS\r")
					x.waitText("settings=yes")
					x.waitText(prompt)
				}
				if name == "zsh" {
					x.waitText("\x1b[?2004h") // zsh ignores Ctrl-C between the prompt and this sequence
				}
				if name != "fish" { // which shows nothing
					x.typeText("\x03") // no program runs, so the shell continues
					x.waitText(prompt)
				}
				x.typeText("exit 4\r")
				waitUntil(t, "the end", x.ended)
				if code := x.ProcessState.ExitCode(); code != 4 || len(m.sessionDirs()) > 0 {
					t.Errorf("code %d, directories of shells %v\n%s", code, m.sessionDirs(), x.text())
				}
			})
		}
	})
	t.Run("ctrl-c", func(t *testing.T) {
		m := newMachine(t, srv.URL)
		x := m.onTerminal(t, "shell", "--", "sh", "-c", `n=0; trap 'n=$((n+1)); echo got $n' INT; trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done`)
		x.waitText("ready")
		x.typeText("\x03")
		x.waitText("got 1")
		x.typeText("\x03")
		x.waitText("got 2")
		x.Process.Signal(syscall.SIGTERM)
		waitUntil(t, "the end", x.ended)
		switch code, shown := x.ProcessState.ExitCode(), x.text(); {
		case code != 6:
			t.Errorf("code: code = %v, want 6", code)
		case strings.Contains(shown, "got 3"):
			t.Errorf("code: shown = %q contains %q", shown, "got 3")
		case len(m.sessionDirs()) > 0:
			t.Errorf("code: len(m.sessionDirs()) = %v, want at most 0", len(m.sessionDirs()))
		}
	})
	t.Run("closed while the sign-in ends", func(t *testing.T) {
		d, _ := newAccessServer(t, "prod-eu")
		process := make(chan *os.Process, 1)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/logout") {
				(<-process).Signal(syscall.SIGHUP)
				select {
				case <-r.Context().Done(): // tka gives up
				case <-time.After(time.Second):
				}
			}
			d.ServeHTTP(w, r)
		}))
		defer srv.Close()
		m := newMachine(t, srv.URL)
		x := m.onTerminal(t, "shell", "--", "true")
		process <- x.Process
		waitUntil(t, "the end", x.ended)
		if seen := d.received(); x.ProcessState.ExitCode() != 0 || seen[len(seen)-1] != requestLogout {
			t.Errorf("code %d, requests %v\n%s", x.ProcessState.ExitCode(), seen, x.text())
		}
	})
	t.Run("closed", func(t *testing.T) {
		d, srv := newAccessServer(t, "prod-eu")
		m := newMachine(t, srv.URL)
		m.env["SHELL"] = "/bin/sh"
		x := m.onTerminal(t, "shell")
		x.waitText("(tka:prod-eu) ")
		x.master.Close()
		waitUntil(t, "the end", x.ended)
		if seen := d.received(); len(m.sessionDirs()) > 0 || seen[len(seen)-1] != requestLogout {
			t.Errorf("directories of shells %v, requests %v", m.sessionDirs(), seen)
		}
	})
}
