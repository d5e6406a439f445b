package cli

import (
	"fmt"

	"github.com/spf13/cobra"
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
