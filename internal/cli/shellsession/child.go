package shellsession

import (
	"os"
	"os/exec"
	"time"
)

// killWait is the time between one signal and the next, stronger one.
const killWait = 5 * time.Second

// Run runs child until it ends and returns its exit code, or 128 plus the number of the signal that ended it. It forwards this program's
// signals to the child. On a terminal it does not forward the signals of the terminal, because the child receives them directly. If the
// child ignores a signal to end, Run sends stronger ones.
func Run(child *exec.Cmd, signals <-chan os.Signal, onTerminal bool) (code int, err error) {
	if err := child.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var escalate <-chan time.Time
	signalsLeft := killSignals()
	for {
		select {
		case err := <-ended:
			if child.ProcessState == nil {
				return 0, err
			}
			return exitCode(child.ProcessState), nil
		case sig := <-signals:
			switch {
			case !forwarded(sig), fromTerminal(sig) && onTerminal: // the terminal has sent it to the child too
				continue
			case !fromTerminal(sig):
				escalate = time.After(killWait) // an interactive shell ignores some signals
			}
			child.Process.Signal(sig) // it may have ended already
		case <-escalate:
			if len(signalsLeft) > 0 {
				child.Process.Signal(signalsLeft[0])
				signalsLeft, escalate = signalsLeft[1:], time.After(killWait)
			}
		}
	}
}
