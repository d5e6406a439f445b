// Command devcluster is a Kubernetes cluster in one process on loopback: etcd, kube-apiserver and the controllers
// that the product relies on, as an ordinary user. It fails closed: if a part does not start or stops, the process
// ends with an error message and a non-zero code. It never outlives the process that started it.
//
// When the cluster is ready, it prints one line of JSON on standard output:
// {"kubeconfig","server","ca","version","pid"}. It ends when standard input closes (its owner is gone), on SIGHUP and
// on SIGTERM. It logs to devcluster.log in its state directory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/tailplane/tailplane/testbed/devcluster/cluster"
)

// Limits of an orderly stop. The limit is short if the owner is gone: no process and no listener may remain five
// seconds later.
const (
	graceAsked = 90 * time.Second
	graceGone  = 3 * time.Second
)

var (
	errAsked = errors.New("stop requested")
	errGone  = errors.New("the owner has ended")
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}

// run runs a cluster until it is asked to stop, its owner ends, or a part fails.
func run(args []string) error {
	o, ephemeral, err := parse(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(o.Dir, "devcluster.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	logger := logTo(logFile)

	// Only the ready line may go to the standard output, even if libraries print.
	stdout := os.Stdout
	os.Stdout = logFile

	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	stopWithOwner(stop)
	stopOnSignal(stop)
	cleanUp := func() {
		if ephemeral && errors.Is(context.Cause(ctx), errGone) {
			_ = os.RemoveAll(o.Dir)
		}
	}
	go func() {
		<-ctx.Done()
		exitAfterGrace(ctx, logger, cleanUp)
	}()

	err = cluster.Run(ctx, o, func(i cluster.Info) error {
		return json.NewEncoder(stdout).Encode(i)
	})
	if errors.Is(err, cluster.ErrBusy) {
		return err // the directory belongs to another process, which removes it and logs there
	}
	cleanUp()
	if err != nil {
		logger.Error("ended", "err", err)
	}
	return err
}

// parse reads the command line. The state directory becomes absolute.
func parse(args []string) (o cluster.Options, ephemeral bool, err error) {
	fs := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	fs.StringVar(&o.Dir, "dir", "",
		"state `directory`, persistent across restarts; the path must be short, because it contains etcd's sockets")
	fs.StringVar(&o.Name, "name", "devcluster", "the cluster's `name` in certificates and the kubeconfig")
	fs.BoolVar(&o.NoControllers, "no-controllers", false,
		"API server only: no garbage collection, no deletion of namespaces, no creation of pods")
	fs.BoolVar(&o.FakeNode, "fakenode", false, "a Node that reports every pod as running and ready, but runs none")
	fs.Func("arg", "an additional kube-apiserver `flag`, such as --audit-policy-file=…; repeatable", func(s string) error {
		o.Args = append(o.Args, s)
		return nil
	})
	fs.BoolVar(&ephemeral, "ephemeral", false, "remove the complete state directory when standard input closes (or on SIGHUP)")
	if err := fs.Parse(args); err != nil {
		return o, false, err
	}
	if fs.NArg() > 0 {
		return o, false, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.Dir == "" {
		return o, false, errors.New("-dir is required")
	}
	o.Dir, err = filepath.Abs(o.Dir)
	return o, ephemeral, err
}

// logTo sends the logs of all libraries to a file.
func logTo(file *os.File) *slog.Logger {
	logger := slog.New(slog.NewTextHandler(file, nil))
	slog.SetDefault(logger)
	log.SetOutput(file)
	klog.SetSlogLogger(logger)
	return logger
}

// stopWithOwner stops the cluster when standard input closes.
func stopWithOwner(stop context.CancelCauseFunc) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error has the same meaning as the end: the owner is gone
		stop(errGone)
	}()
}

// stopOnSignal stops the cluster on the first signal. The second signal ends the process at once.
func stopOnSignal(stop context.CancelCauseFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		// The kernel sends SIGHUP to a stopped process whose owner has died. It means the same as the closed input.
		if s := <-signals; s == syscall.SIGHUP {
			stop(errGone)
		} else {
			stop(errAsked)
		}
		<-signals
		os.Exit(1)
	}()
}

// exitAfterGrace ends the process if the cluster has not stopped within its grace period. The caller calls it when
// the stop begins.
func exitAfterGrace(ctx context.Context, logger *slog.Logger, cleanUp func()) {
	grace := graceAsked
	if errors.Is(context.Cause(ctx), errGone) {
		grace = graceGone
	}
	time.Sleep(grace)
	logger.Error("the shutdown took too long", "grace", grace)
	fmt.Fprintf(os.Stderr, "devcluster: not stopped within %v\n", grace)
	cleanUp()
	os.Exit(1)
}
