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

func run(args []string) error {
	fs := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	o := cluster.Options{}
	fs.StringVar(&o.Dir, "dir", "", "state `directory`, persistent across restarts; the path must be short, because it contains etcd's sockets")
	fs.StringVar(&o.Name, "name", "devcluster", "the cluster's `name` in certificates and the kubeconfig")
	fs.BoolVar(&o.NoControllers, "no-controllers", false, "API server only: no garbage collection, no deletion of namespaces, no creation of pods")
	fs.BoolVar(&o.FakeNode, "fakenode", false, "a Node that reports every pod as running and ready, but runs none")
	fs.Func("arg", "an additional kube-apiserver `flag`, such as --audit-policy-file=…; repeatable", func(s string) error {
		o.Args = append(o.Args, s)
		return nil
	})
	ephemeral := fs.Bool("ephemeral", false, "remove the complete state directory when standard input closes (or on SIGHUP)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.Dir == "" {
		return errors.New("-dir is required")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(dir, "devcluster.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	logger := slog.New(slog.NewTextHandler(logFile, nil))
	slog.SetDefault(logger)
	log.SetOutput(logFile)
	klog.SetSlogLogger(logger)

	// Only the ready line may go to the standard output, even if libraries print.
	stdout := os.Stdout
	os.Stdout = logFile

	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error has the same meaning as the end: the owner is gone
		stop(errGone)
	}()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		// The kernel sends SIGHUP to a stopped process whose owner has died. It means the same as the closed input.
		if s := <-signals; s == syscall.SIGHUP {
			stop(errGone)
		} else {
			stop(errAsked)
		}
		<-signals // a second signal ends at once
		os.Exit(1)
	}()
	cleanUp := func() {
		if *ephemeral && errors.Is(context.Cause(ctx), errGone) {
			_ = os.RemoveAll(dir)
		}
	}
	go func() {
		<-ctx.Done()
		grace := graceAsked
		if errors.Is(context.Cause(ctx), errGone) {
			grace = graceGone
		}
		time.Sleep(grace)
		logger.Error("the shutdown took too long", "grace", grace)
		fmt.Fprintf(os.Stderr, "devcluster: not stopped within %v\n", grace)
		cleanUp()
		os.Exit(1)
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
