package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/cli/shellscript"
)

func (t *tka) completion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion of commands and flags for a shell",
		Long: `Print a script that completes tka's commands, flags and names in a shell: bash, zsh,
fish or powershell. Completing never asks a server.`,
		Example: `  source <(tka completion bash)
  tka completion zsh > "${fpath[1]}/_tka"
  tka completion fish > ~/.config/fish/completions/tka.fish`,
		ValidArgs: shellscript.Shells(),
		Args:      arguments(1, 1, "a shell: "+strings.Join(shellscript.Shells(), ", ")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("the shell", args[0], shellscript.Shells()); err != nil {
				return err
			}
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(t.Out, true)
			case "zsh":
				return root.GenZshCompletion(t.Out)
			case "fish":
				return root.GenFishCompletion(t.Out, true)
			}
			return root.GenPowerShellCompletionWithDesc(t.Out)
		},
	}
}

// complete offers values for a flag: from the command line's own words and this
// machine's files, never from a server. What a shell could take for more than a
// name is not offered.
func (t *tka) complete(cmd *cobra.Command, flag string, values func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := slices.DeleteFunc(values(), func(v string) bool { return !reach.IsCluster(v) })
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag is not there: a mistake of the program
	}
}

func fixed(values ...string) func() []string {
	return func() []string { return slices.Clone(values) }
}
