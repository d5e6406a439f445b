package shellsession

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// RunGroup runs a command in a process group of its own until it ends, and returns its exit code, or 128 plus the number of
// the signal that ended it. When ctx ends, all processes of the group are interrupted, and after killWait they are killed, as when kill
// ends.
func RunGroup(ctx, kill context.Context, cmd *exec.Cmd) (code int, err error) {
	startGroup(cmd)
	cmd.WaitDelay = killWait // a process that the command left behind may hold its output
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	interrupted := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case err := <-ended:
			if cmd.ProcessState == nil {
				return 0, err
			}
			if ctx.Err() != nil {
				signalGroup(cmd.Process, os.Kill) // what is left of the group
			}
			return exitCode(cmd.ProcessState), nil
		case <-interrupted:
			interrupted, late = nil, time.After(killWait)
			signalGroup(cmd.Process, os.Interrupt)
		case <-late:
			signalGroup(cmd.Process, os.Kill)
		case <-kill.Done():
			signalGroup(cmd.Process, os.Kill)
			kill = context.Background()
		}
	}
}
