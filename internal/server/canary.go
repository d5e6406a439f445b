package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// terminationLog is the file for a container's termination message.
const terminationLog = "/dev/termination-log"

// canaryCommand is the command that the fleet runs next to an organisation's jobs. It reads no settings and has no rights.
func canaryCommand() *cobra.Command {
	var c isolation.CanaryProbe
	var listen string
	cmd := &cobra.Command{Use: "canary", Short: "Check from the network of a job that the blocked addresses cannot be reached", Args: noArguments,
		Long: "Tries to connect from the network of a job to addresses that no job may reach. The fleet starts it (fleet.canary). It exits with code 3 and prints the addresses\n" +
			"if one of them answers. It is ready while none of them answers and its forge does.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			server := &http.Server{Handler: &c, ReadHeaderTimeout: 5 * time.Second}
			var wg sync.WaitGroup
			wg.Go(func() { _ = server.Serve(l) })
			err = c.Run(cmd.Context())
			stop, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Second)
			defer cancel()
			_ = server.Shutdown(stop)
			wg.Wait()
			if err != nil {
				_ = os.WriteFile(terminationLog, []byte(err.Error()), 0o600)
			}
			return err
		}}
	f := cmd.Flags()
	f.StringArrayVar(&c.Forbidden, "never", nil, "host:port that must not answer; repeatable")
	f.StringArrayVar(&c.Required, "always", nil, "host:port; at least one of these must answer; repeatable")
	f.DurationVar(&c.Interval, "every", time.Minute, "time between two attempts")
	f.StringVar(&listen, "listen", ":9094", "address of its readiness probe")
	return cmd
}

// exitCode returns the exit code of the program.
func exitCode(err error) int {
	if _, usage := errors.AsType[usageError](err); usage {
		return 2
	}
	if _, reached := errors.AsType[*isolation.CanaryReachedError](err); reached {
		return isolation.CanaryExitCode
	}
	return 1
}
