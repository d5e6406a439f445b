package subshell

import (
	"os"
	"os/exec"
	"time"
)

// harderWait is the time from one signal to the next, harder one.
const harderWait = 5 * time.Second

// Run runs child to its end and returns its code, or 128 and the number of the
// signal that ended it. The signals of this program go to the child; on a
// terminal, those that the terminal sends reach the child by themselves. A child
// that takes no notice of the end is told with more force.
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
			case !forwarded(sig), fromTerminal(sig) && onTerminal: // the terminal gave it to the child as well
				continue
			case !fromTerminal(sig):
				harder = time.After(harderWait) // an interactive shell takes no notice of some
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
