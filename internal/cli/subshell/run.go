package subshell

import (
	"os"
	"os/exec"
	"time"
)

// harderWait is the time between one signal and the next, stronger one.
const harderWait = 5 * time.Second

// Run runs child until it ends and returns its exit code, or 128 plus the number of the signal that ended it. It forwards this program's
// signals to the child. On a terminal it does not forward the signals of the terminal, because the child receives them directly. If the
// child ignores a signal to end, Run sends stronger ones.
func Run(child *exec.Cmd, signals <-chan os.Signal, onTerminal bool) (code int, err error) {
	if err := child.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var harder <-chan time.Time
	rest := lastSignals()
	for {
		select {
		case err := <-ended:
			if child.ProcessState == nil {
				return 0, err
			}
			return exitCodeOf(child.ProcessState), nil
		case sig := <-signals:
			switch {
			case !forwarded(sig), fromTerminal(sig) && onTerminal: // the terminal has sent it to the child too
				continue
			case !fromTerminal(sig):
				harder = time.After(harderWait) // an interactive shell ignores some signals
			}
			child.Process.Signal(sig) // it may have ended already
		case <-harder:
			if len(rest) > 0 {
				child.Process.Signal(rest[0])
				rest, harder = rest[1:], time.After(harderWait)
			}
		}
	}
}
