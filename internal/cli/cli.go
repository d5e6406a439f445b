// Package cli implements tka, the program with which people sign in. Related commands share a file. The package keeps law 8: it writes no token
// to a file, an argument or the environment unless the person requests exactly that. It keeps law 10: it escapes all text from servers and
// from other users' files before it prints it to a terminal.
package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/tailscaled"
)

// A Program is one run of tka. All fields are required.
type Program struct {
	Args   []string // the first one is the program's name; "kubectl-tka" makes it a kubectl plugin
	In     io.Reader
	Out    io.Writer // the requested output, and nothing else
	Err    io.Writer // progress, hints, warnings, errors
	Getenv func(string) string
	Now    func() time.Time
	Build  Build
}

// tka is a Program with the values of its flags.
type tka struct {
	Program
	server     string
	serverKey  string
	config     string
	kubeconfig string
	output     string
	quiet      bool
	noInput    bool
	timeout    time.Duration
	color      string
	plain      bool

	showVersion bool // --version of the root command

	context          string             // context of the kubeconfig that selects the sign-in
	selection        selection          // of the command, if it has the flag --cluster
	dryRun           bool               // no command may write
	cachedSettings   *config.Settings   // content of the settings file, read once
	upstreamSettings bool               // the settings file belongs to the tka of SpechtLabs; known after settings
	cachedDirectory  *client.Directory  // cluster list of the configured server, cached for --all
	tailscale        *tailscaled.Client // of this machine
	idTokens         *client.IDTokens   // of this job or person
	cancel           context.CancelFunc
}

const defaultTimeout = 30 * time.Second

// Run executes the command in Args and returns the exit code.
func (p Program) Run(ctx context.Context) int {
	t := &tka{Program: p, tailscale: tailscaled.New(p.Getenv), cancel: func() {}}
	defer func() { t.cancel() }()
	root := t.root()
	args := p.Args[1:]
	if kubeconfig.ProgramName(p.Args[0]) == "kubectl_complete-tka" {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return output.ExitOK
	}
	return t.printError(ctx, err)
}

// root returns the command tree. The reference in docs is generated from it.
func (t *tka) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tka",
		Short: "Sign in to Kubernetes clusters with your tailnet identity",
		Long: `tka signs you in to Kubernetes clusters. The tailnet identifies you. The tailnet's policy
grants you a role for a limited time, and kubectl works until that time ends.`,
		Example:           "  tka login\n  kubectl --context tka-prod-eu get pods\n  tka logout",
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: t.preRun,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	kubectlPlugin := kubeconfig.ProgramName(t.Args[0]) == "kubectl-tka"
	if kubectlPlugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tka"}
	}
	root.SetIn(t.In)
	root.SetOut(t.Out)
	root.SetErr(t.Err)
	root.SetFlagErrorFunc(t.flagError)
	t.versionFlag(root)

	t.idTokens = &client.IDTokens{Getenv: t.Getenv, HTTP: http.DefaultClient, Now: t.Now}
	f := root.PersistentFlags()
	f.StringVar(&t.server, "server", "", "access server: a name in the tailnet, an address or a URL (default from the settings, else \"tka\")")
	f.StringVar(&t.serverKey, "server-key", "", "key that the server must prove, \"ed25519:...\" (default $TKA_SERVER_KEY, else the settings, else the key at first contact)")
	f.StringVar(&t.idTokens.Env, "oidc-token-env", "", "environment variable with an OIDC token of this job or person, for rules that require one (default TKA_OIDC_TOKEN, else GitHub's issuer in a job)")
	f.StringVar(&t.idTokens.Audience, "oidc-audience", "", "audience of the OIDC token (default: the one that the server names)")
	f.StringVar(&t.config, "config", "", "settings file (default config.yaml in the directory tka of $XDG_CONFIG_HOME)")
	f.StringVar(&t.kubeconfig, "kubeconfig", "", "kubeconfig file to change (default $KUBECONFIG, else ~/.kube/config)")
	f.StringVarP(&t.output, "output", "o", "", "output format: table, wide, json, yaml or name")
	f.BoolVarP(&t.quiet, "quiet", "q", false, "print only the result: no hints, no warnings")
	f.BoolVar(&t.noInput, "no-input", false, "never prompt; instead of a prompt, fail with an error that names the flag to use")
	f.DurationVar(&t.timeout, "timeout", defaultTimeout, "time limit for the whole command")
	f.StringVar(&t.color, "color", "auto", "colours: auto, always or never")
	f.BoolVar(&t.plain, "plain", false, "print no colours and no symbols")
	if kubectlPlugin {
		f.StringVar(&t.context, "context", "", contextUsage)
	}
	t.complete(root, "server", t.serverNames)
	t.complete(root, "output", fixedValues(output.Formats()...))
	t.complete(root, "color", fixedValues(colors()...))

	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"signin", "Sign in:", []*cobra.Command{t.login(), t.shell(), t.run(), t.refresh(), t.logout()}},
		{"requests", "Ask and approve:", []*cobra.Command{t.request(), t.requests(), t.approve(), t.deny()}},
		{"look", "Look:", []*cobra.Command{t.status("status"), t.whoami(), t.why(), t.doctor()}},
		{"clusters", "Clusters:", []*cobra.Command{t.clusters(), t.clusterInfo(), t.kubeconfigCommand("kubeconfig"), t.credential()}},
		{"administer", "Administer:", []*cobra.Command{t.sessions(), t.connections(), t.revoke(), t.admin(), t.audit(), t.recordings(), t.play(), t.fleet()}},
		{"setup", "Set up:", []*cobra.Command{t.configCommand("config"), t.integration(), t.completion(), t.mcp(), t.version()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	for _, c := range []*cobra.Command{t.get(), t.set(), t.generate()} { // names that users of the tka of SpechtLabs know
		c.Hidden = true
		root.AddCommand(c)
	}
	root.AddCommand(t.exitCodes())
	t.addDefaults(root)
	root.SetHelpCommand(t.help(root))
	return root
}

// addDefaults completes the commands below cmd: a group of commands shows its help, and any other command takes no arguments.
func (t *tka) addDefaults(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		t.addDefaults(c)
		switch {
		case c.HasSubCommands():
			c.Args = t.rejectArguments
			if c.RunE == nil {
				c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			}
		case c.Args == nil && c.RunE != nil:
			c.Args = arguments(0, 0, "")
		}
	}
}

// preRun validates the flags that several commands have, and starts the time limit.
func (t *tka) preRun(cmd *cobra.Command, _ []string) error {
	if t.showVersion {
		return nil
	}
	if t.timeout <= 0 {
		return output.UsageErrorf("--timeout must be greater than zero (got %v)", t.timeout)
	}
	if err := checkOneOf("--color", t.color, colors()); err != nil {
		return err
	}
	if t.output != "" {
		if err := checkOneOf("--output", t.output, output.Formats()); err != nil {
			return err
		}
	}
	if err := t.selectSignin(cmd); err != nil {
		return err
	}
	if f := cmd.Flags().Lookup("reason"); f != nil && f.Annotations[mustBeSet] != nil && strings.TrimSpace(f.Value.String()) == "" {
		return output.UsageErrorf("%s needs --reason", cmd.CommandPath()).Try("%s --reason \"why\"", cmd.CommandPath())
	}
	if _, ok := cmd.Annotations[noTimeLimit]; ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), t.timeout)
	t.cancel = cancel
	cmd.SetContext(ctx)
	return nil
}

// mustBeSet is the annotation of a flag without which its command does not run.
const mustBeSet = "mustBeSet"

// hint writes an additional line for the person to standard error.
func (t *tka) hint(format string, args ...any) {
	if !t.quiet {
		fmt.Fprintln(t.Err, output.Escape(fmt.Sprintf(format, args...)))
	}
}

// warn writes a warning to standard error.
func (t *tka) warn(format string, args ...any) {
	if !t.quiet {
		fmt.Fprintln(t.Err, t.paint(t.Err, output.Yellow, "warning:"), output.Escape(fmt.Sprintf(format, args...)))
	}
}

// confirm requires a yes from the person. flag is the flag that gives it without a question.
func (t *tka) confirm(ctx context.Context, question, flag string) error {
	if t.noInput || !isTerminal(t.In) {
		return output.UsageErrorf("%s", question).Try("Confirm with %s.", flag)
	}
	fmt.Fprintf(t.Err, "%s [y/N] ", output.Escape(question))
	word, _, _ := strings.Cut(strings.ToLower(t.readAnswer(ctx)), " ")
	if word != "y" && word != "yes" {
		return output.Errorf(output.ExitFailed, "cancelled: the answer was not yes")
	}
	return nil
}

// readAnswer reads a line that the person types. It returns "" when ctx ends.
func (t *tka) readAnswer(ctx context.Context) string {
	answer := make(chan string, 1)
	go func() { // a read cannot be cancelled; a signal ends the program without it
		line, _ := bufio.NewReader(t.In).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case a := <-answer:
		return a
	case <-ctx.Done():
		return ""
	}
}

// isTerminal reports whether f is a terminal. The null device is a character device too, but not a terminal.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	st, err := file.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}
