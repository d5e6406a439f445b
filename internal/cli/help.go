package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/doctor"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
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
		Long:  "Every command of tka exits with one of these codes. \"tka shell\" exits with the code of the\nprogram that it ran, or with 128 plus the number of the signal that ended the program;\n\"tka run\" does so if the program ended in all clusters in the same way, and exits with 1 if not:\n\n" + exitTable,
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

const contextUsage = "kubeconfig context that selects the cluster and the session; login must have written it"

// selectsCluster is the annotation of a flag --cluster that selectSignin reads and sets. A flag of this name without it is about
// something else.
const selectsCluster = "selectsCluster"

// clusterFlag adds the flags --cluster and --context, one of which selects the cluster.
func (t *tka) clusterFlag(cmd *cobra.Command, cluster *string, usage string, values func(context.Context) []string) *cobra.Command {
	cmd.Flags().StringVar(cluster, "cluster", "", usage)
	cmd.Flags().Lookup("cluster").Annotations = map[string][]string{selectsCluster: {}}
	if kubeconfig.ProgramName(t.Args[0]) != "kubectl-tka" { // there it is a flag of all commands, as in kubectl
		cmd.Flags().StringVar(&t.context, "context", "", contextUsage)
	}
	t.complete(cmd, "cluster", values)
	return cmd
}

func fixedValues(values ...string) func(context.Context) []string {
	return func(context.Context) []string { return slices.Clone(values) }
}

// A Build is the version, commit and date of the program.
type Build struct {
	Version string // such as "v1.2.3"
	Commit  string
	Date    string // of the commit, RFC 3339
}

// ReadBuild fills empty fields from the build information of the Go tool.
func ReadBuild(b Build) Build {
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	if ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Commit == "":
				b.Commit = s.Value
			case s.Key == "vcs.time" && b.Date == "":
				b.Date = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

// versionInfo is the output of the version command.
type versionInfo struct {
	meta
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Server   string `json:"server"` // version of the access server; "": unknown
	Skew     bool   `json:"skew"`   // more than one minor version apart
}

// versionFlag adds --version and the action of the root command. Cobra's own flag needs its version template. text/template prevents the
// linker from removing uncalled methods, which adds 3 MB.
func (t *tka) versionFlag(root *cobra.Command) {
	f := root.Flags()
	f.BoolVarP(&t.showVersion, "version", "v", false, "version for "+root.DisplayName())
	_ = f.SetAnnotation("version", cobra.FlagSetByCobraAnnotation, []string{"true"}) // cobra then completes nothing after it
	root.Args = func(cmd *cobra.Command, args []string) error {
		if t.showVersion {
			return nil
		}
		return t.rejectArguments(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !t.showVersion {
			return cmd.Help()
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "tka %s\n", t.Build.Version)
		return err
	}
}

func (t *tka) version() *cobra.Command {
	var client bool
	var cluster string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of tka and of the server",
		Long: `Show the version, commit, date, Go version and platform of this program, and the version of
the server if this machine knows one. If the server does not answer, that is not an error.`,
		Example: "  tka version\n  tka version --client -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doVersion(cmd.Context(), cluster, client) },
	}
	cmd.Flags().BoolVar(&client, "client", false, "show only this program")
	return t.clusterFlag(cmd, &cluster, "cluster of the server; this machine or its server must know it", t.clusterNames)
}

// versionTimeout bounds the request to the server, which is optional.
const versionTimeout = 2 * time.Second

func (t *tka) doVersion(ctx context.Context, cluster string, client bool) error {
	v := versionInfo{meta: newMeta("Version"), Version: t.Build.Version, Commit: t.Build.Commit, Date: t.Build.Date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if !client {
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		var err error
		if v.Server, err = t.serverVersion(ctx, cluster); err != nil {
			t.hint("The server's version is unknown: %s", errorMessage(err))
		}
		v.Skew = doctor.SkewTooLarge(v.Version, v.Server)
	}
	return t.printResult(result{object: v, names: []string{v.Version}, table: func(wide bool) {
		t.printLine("tka %s", v.Version)
		if wide {
			t.printLine("commit %s", cmp.Or(v.Commit, "unknown"))
			t.printLine("date %s", cmp.Or(v.Date, "unknown"))
			t.printLine("%s %s", v.Go, v.Platform)
		}
		if v.Server != "" {
			t.printLine("server %s", v.Server)
		}
		if v.Skew {
			t.warn("they differ by more than one minor version")
		}
	}})
}

// serverVersion returns the version of a server that this machine knows or that a flag names; "" if there is none.
func (t *tka) serverVersion(ctx context.Context, cluster string) (string, error) {
	l, err := t.locate(ctx, cluster)
	if err != nil {
		return "", err
	}
	if l.Key.IsZero() && t.server == "" && cluster == "" {
		return "", nil
	}
	l.Timeout = versionTimeout
	err = t.verify(ctx, l, cluster)
	return l.Info.Version, err
}
