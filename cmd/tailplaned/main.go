// Command tailplaned is Tailplane's server. Each of its roles runs with a
// ServiceAccount of its own and holds that role's rights only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/internal/settings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "tailplaned:", err)
	if _, usage := errors.AsType[usageError](err); usage {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a mistake in flags or settings: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// flags say where things are.
type flags struct {
	config, kubeconfig, logLevel string
	check                        bool
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use: "tailplaned", Short: "Tailplane's server",
		Long:          "Tailplane's server. Each role is a command: run it with a ServiceAccount of its own.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	p := root.PersistentFlags()
	p.StringVar(&f.config, "config", "/etc/tailplane/config.yaml", "the settings file")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server; without it, the pod's own account")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	p.BoolVar(&f.check, "check", false, "check the settings and exit")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	role := func(role settings.Role, short, long string, parts ...part) *cobra.Command {
		return &cobra.Command{Use: string(role), Short: short, Long: long, Args: noArguments,
			RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), f, role, parts...) }}
	}
	root.AddCommand(
		role(settings.AccessRole, "Serve the sign-in API on the tailnet",
			"Serves the sign-in API on the tailnet: says who is calling, decides on their grants, writes TkaSignin objects and hands out kubeconfigs.", runAccess),
		role(settings.OperatorRole, "Carry out sign-ins in the cluster",
			"Watches TkaSignin objects, makes and removes their ServiceAccounts and bindings, and ends what has expired.", runOperator),
		role(settings.AllRoles, "Both, in one process",
			"Plays every role in one process, for a small cluster. The parts still meet only in the TkaSignin object.", runAccess, runOperator),
		&cobra.Command{Use: "config", Short: "Print the settings in force", Long: "Prints the settings file with its defaults filled in, and warnings on standard error.", Args: noArguments,
			RunE: func(c *cobra.Command, _ []string) error { return printConfig(f, c.OutOrStdout(), c.ErrOrStderr()) }},
	)
	return root
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

func printConfig(f flags, out, warn io.Writer) error {
	set, err := settings.Load(f.config, settings.AllRoles)
	if err != nil {
		return usageError{err}
	}
	for _, w := range set.Warnings() {
		fmt.Fprintln(warn, "warning:", w)
	}
	b, err := set.YAML()
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	return err
}

// A part is what a process runs until ctx ends.
type part func(ctx context.Context, f flags, set settings.File, log *slog.Logger) error

// run runs all parts; the first that ends, ends the others.
func run(ctx context.Context, f flags, role settings.Role, parts ...part) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return usageError{fmt.Errorf("--log-level %q: debug, info, warn or error", f.logLevel)}
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	set, err := settings.Load(f.config, role)
	if err != nil {
		return usageError{err}
	}
	for _, w := range set.Warnings() {
		log.Warn(w)
	}
	if f.check {
		return nil
	}
	// The libraries' logs, from warnings up: what they do at length is not news.
	quiet := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: max(level, slog.LevelWarn)}))
	ctrllog.SetLogger(quiet)
	klog.SetLogger(quiet)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(parts))
	var wg sync.WaitGroup
	for _, p := range parts {
		wg.Go(func() {
			defer cancel()
			errs <- p(ctx, f, set, log)
		})
	}
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}
