package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
)

const exitTable = `  0    done
  1    error
  2    usage: an unknown command or flag, or invalid settings
  3    refused: by the tailnet, a grant or the cluster; also: not signed in
  4    not ready, or the time limit ended
  5    unreachable: the tailnet, the access server or the API server
  130  interrupted`

// exitCodes returns a help topic, not a command that runs.
func (t *tka) exitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "Meaning of the exit codes",
		Long:  "Every command of tka exits with one of these codes. \"tka shell\" exits with the code of the\nprogram that it ran, or with 128 plus the number of the signal that ended the program:\n\n" + exitTable,
	}
}

// help returns the command that shows the help of a command or topic.
func (t *tka) help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command or topic",
		Long:  "Show the help of a command or a topic; without an argument, list all commands and topics.",
		Example: `  tka help login
  tka help exit-codes`,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || cmd == nil {
				return t.rejectArguments(root, args)
			}
			if len(rest) > 0 {
				return t.rejectArguments(cmd, rest)
			}
			if cmd.Run == nil && cmd.RunE == nil {
				_, err := fmt.Fprintln(t.Out, cmd.Long)
				return err
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return commandNames(root), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func (t *tka) completion() *cobra.Command {
	return shellCommand(&cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for a shell",
		Long: `Print a script that completes tka's commands, flags and names in a shell: bash, zsh,
fish or powershell. To complete names of clusters, it also contacts the server in the settings,
if its key is known, for at most one second. It never signs in.`,
		Example: `  source <(tka completion bash)
  tka completion zsh > "${fpath[1]}/_tka"
  tka completion fish > ~/.config/fish/completions/tka.fish`,
	}, func(cmd *cobra.Command, shell shellsession.Shell) error {
		root := cmd.Root()
		switch shell {
		case shellsession.Bash:
			return root.GenBashCompletionV2(t.Out, true)
		case shellsession.Zsh:
			return root.GenZshCompletion(t.Out)
		case shellsession.Fish:
			return root.GenFishCompletion(t.Out, true)
		}
		return root.GenPowerShellCompletionWithDesc(t.Out)
	})
}

// shellCommand completes a command whose argument is a shell.
func shellCommand(cmd *cobra.Command, run func(*cobra.Command, shellsession.Shell) error) *cobra.Command {
	cmd.ValidArgs = shellsession.Shells()
	cmd.Args = arguments(1, 1, "a shell: "+strings.Join(shellsession.Shells(), ", "))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOneOf("the shell", args[0], shellsession.Shells()); err != nil {
			return err
		}
		return run(cmd, shellsession.Shell(args[0]))
	}
	return cmd
}

// complete registers completions for a flag. It never offers a value that a shell could interpret as more than a name, whatever its source.
func (t *tka) complete(cmd *cobra.Command, flag string, values func(context.Context) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := slices.DeleteFunc(values(cmd.Context()), func(v string) bool { return !dialpolicy.IsClusterName(v) })
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist: a bug in the program
	}
}

// clusterFlag adds the flag --cluster.
func (t *tka) clusterFlag(cmd *cobra.Command, cluster *string, usage string, values func(context.Context) []string) *cobra.Command {
	cmd.Flags().StringVar(cluster, "cluster", "", usage)
	t.complete(cmd, "cluster", values)
	return cmd
}

func fixedValues(values ...string) func(context.Context) []string {
	return func(context.Context) []string { return slices.Clone(values) }
}
