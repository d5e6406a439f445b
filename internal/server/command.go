// Package server wires the parts of each role of tailplaned: its commands, settings, listeners, controllers, probes and metrics.
package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/settings"
)

// Main runs tailplaned with the arguments of the process, and returns its exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "tailplaned:", err)
	return exitCode(err)
}

// usageError is a mistake in flags or settings: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// flags are the flags that all commands share.
type flags struct {
	config, kubeconfig, logLevel string
	check                        bool
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use: "tailplaned", Short: "Tailplane's server",
		Long:          "Tailplane's server. Each role is a command: run each with a separate ServiceAccount.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	p := root.PersistentFlags()
	p.StringVar(&f.config, "config", "/etc/tailplane/config.yaml", "the settings file")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; default: the pod's ServiceAccount")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	p.BoolVar(&f.check, "check", false, "check the settings and exit")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	role := func(role settings.Role, short, long string, parts ...part) *cobra.Command {
		return &cobra.Command{Use: string(role), Short: short, Long: long, Args: noArguments,
			RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), f, role, parts...) }}
	}
	accessPart, operatorPart := part{name: "access", run: runAccess}, part{name: "operator", run: runOperator}
	planePart := part{name: "plane", when: func(f settings.File) bool { return f.Plane.Enabled },
		run: func(ctx context.Context, p *process, working func()) error { return runPlane(ctx, p, false, working) }}
	root.AddCommand(
		role(settings.AccessRole, "Serve the sign-in API on the tailnet",
			"Serves the sign-in API on the tailnet: it identifies callers, evaluates their grants, writes TkaSignin objects and returns kubeconfigs.", accessPart),
		role(settings.OperatorRole, "Provision sign-ins in the cluster",
			"Watches TkaSignin objects, creates and deletes their ServiceAccounts and bindings, and ends expired sign-ins.", operatorPart),
		role(settings.AllRoles, "Run access and operator, and the plane if it is enabled, in one process",
			"Runs the roles access and operator in one process, for a small cluster, and the role plane if plane.enabled is set.\n"+
				"The roles still communicate only through objects of the cluster.", accessPart, operatorPart, planePart),
		canaryCommand(),
		&cobra.Command{Use: "config", Short: "Print the effective settings", Long: "Prints the settings file with all defaults, and warnings on standard error.", Args: noArguments,
			RunE: func(c *cobra.Command, _ []string) error { return printConfig(f, c.OutOrStdout(), c.ErrOrStderr()) }},
		injectCommand(&f),
		gatewayCommand(&f),
		planeCommand(&f),
		fleetCommand(&f),
		relayCommand(&f),
		ready(),
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
	set, err := load(f.config, settings.AllRoles)
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
