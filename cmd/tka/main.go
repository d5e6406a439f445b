// Command tka signs people in to Kubernetes clusters by their tailnet identity. It needs no password or key: the tailnet identifies the
// machine that it runs on.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/internal/cli"
)

// Set by the linker in releases: -X main.version=v1.2.3
var version, commit, date string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := cli.Program{
		Args:   os.Args,
		In:     os.Stdin,
		Out:    os.Stdout,
		Err:    os.Stderr,
		Getenv: os.Getenv,
		Now:    time.Now,
		Build:  cli.ReadBuild(cli.Build{Version: version, Commit: commit, Date: date}),
	}.Run(ctx)
	os.Exit(code)
}
