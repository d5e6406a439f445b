package cli

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane/mcp"
)

// noTimeLimit marks a command whose run --timeout does not limit; there the flag limits something else.
const noTimeLimit = "unending"

// mcpFlags are the flags of the command mcp and of commands that use the operator plane.
type mcpFlags struct {
	url          string
	tokenFile    string
	tokenCommand string
	toolsets     string
	options      mcp.Options
}

func (t *tka) mcp() *cobra.Command {
	var mf mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve the operator plane's tools to an assistant (Model Context Protocol)",
		Long: `Serve the operator plane's tools on standard input and output, for an assistant that speaks
the Model Context Protocol (MCP) and starts this command. Standard output carries only
messages of the protocol; messages for people go to standard error.

The plane authorises each call by your tailnet identity, so the tools show only what you may
see. No tool returns a credential. If the connection does not identify you, a token of the
tailnet's identity provider does. It comes from --token-file or --token-command, which tka
reads again when the token ends, or from DASHBOARD_TOKEN. tka sends it only to the plane, and
only over https.

Changes of more than one pool need a confirmation. See also --read-only and
--no-destructive. All tools are read-only except these, which change or propose something:

  ` + strings.Join(mcp.WriteTools(), "\n  "),
		Example:     "  tka mcp --url https://dashboard.tail1234.ts.net\n  tka config plane.url https://dashboard.tail1234.ts.net\n  claude mcp add tailplane -- tka mcp",
		Annotations: map[string]string{noTimeLimit: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return t.doMCP(cmd.Context(), mf) },
	}
	f := cmd.Flags()
	mf.addPlaneFlags(f)
	f.BoolVar(&mf.options.ReadOnly, "read-only", false, "offer only tools that change nothing")
	f.BoolVar(&mf.options.NoDestructive, "no-destructive", false, "offer no destructive tools")
	f.StringVar(&mf.toolsets, "toolsets", "", "offer only these groups, separated by commas: fleet, config, enrollment, infra, audit (default all)")
	f.DurationVar(&t.timeout, "timeout", mcp.DefaultTimeout, "time limit for one call")
	f.IntVar(&mf.options.MaxBytes, "max-bytes", mcp.DefaultBytes, "maximum bytes of one answer, 4096 to 1048576")
	t.complete(cmd, "toolsets", fixedValues(string(mcp.Fleet), string(mcp.Config), string(mcp.Enrollment), string(mcp.Infra), string(mcp.Audit)))
	return cmd
}

// addPlaneFlags adds the flags that select the operator plane.
func (mf *mcpFlags) addPlaneFlags(f *pflag.FlagSet) {
	f.StringVar(&mf.url, "url", "", "URL of the operator plane, https:// unless it is on this machine (default plane.url of the settings)")
	f.StringVar(&mf.tokenFile, "token-file", "", "file with a token, if the connection does not identify you")
	f.StringVar(&mf.tokenCommand, "token-command", "", "program that prints a token, with its arguments; tka runs it without a shell")
}

func (t *tka) doMCP(ctx context.Context, mf mcpFlags) error {
	var err error
	if mf.options.Toolsets, err = mcp.ParseToolsets(mf.toolsets); err != nil {
		return output.UsageErrorf("--toolsets: %v", err)
	}
	if n := mf.options.MaxBytes; n < mcp.MinBytes || n > mcp.MaxBytes {
		return output.UsageErrorf("--max-bytes is %d; it must be %d to %d", n, mcp.MinBytes, mcp.MaxBytes)
	}
	client, err := t.planeClient(mf)
	if err != nil {
		return err
	}
	mf.options.Version, mf.options.Timeout = t.Build.Version, t.timeout
	level := slog.LevelWarn
	if t.quiet {
		level = slog.LevelError
	}
	if isTerminal(t.In) {
		t.hint("An assistant starts this command; it is not for people. See: tka mcp --help")
	}
	log := slog.New(slog.NewTextHandler(t.Err, &slog.HandlerOptions{Level: level}))
	if err := mcp.Serve(ctx, t.In, t.Out, client, mf.options, log); err != nil {
		return output.Errorf(output.ExitFailed, "the connection of the assistant broke: %v", err).Because(err)
	}
	return nil
}

// planeURL returns the URL of the operator plane, from the flag or else from the settings. tka never guesses it, because the server at that
// URL gets the token.
func (t *tka) planeURL(given string) (*url.URL, error) {
	from := "--url"
	if given == "" {
		set, err := t.settings()
		if err != nil {
			return nil, err
		}
		from, given = "plane.url", set.PlaneURL
	}
	if given == "" {
		return nil, output.UsageErrorf("the URL of the operator plane is not set").
			Try("tka mcp --url https://dashboard.YOUR-TAILNET.ts.net").Try("tka config plane.url https://dashboard.YOUR-TAILNET.ts.net")
	}
	return parseServiceURL(from, given)
}

// parseServiceURL parses the URL of a server of the tailnet. from names its flag or setting. It needs https unless it is on this machine.
func parseServiceURL(from, given string) (*url.URL, error) {
	base, err := dialpolicy.ParseURL(given, true)
	var u *url.URL
	if err == nil {
		u, err = url.Parse(base)
	}
	if err != nil {
		return nil, output.UsageErrorf("%s is %q: %v", from, dialpolicy.RedactURL(given), err)
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if u.Scheme != "https" && (err != nil || !addr.IsLoopback()) {
		return nil, output.UsageErrorf("%s is %s; it needs https:// unless it is an address of this machine such as http://%s", from, output.ShellQuote(base), net.JoinHostPort("127.0.0.1", "8080"))
	}
	return u, nil
}

// planeToken returns the source of the token, which may be empty.
func (t *tka) planeToken(mf mcpFlags) (*client.TokenSource, error) {
	if mf.tokenFile != "" && mf.tokenCommand != "" {
		return nil, output.UsageErrorf("--token-file and --token-command cannot be combined")
	}
	s := &client.TokenSource{File: mf.tokenFile, Command: strings.Fields(mf.tokenCommand), Now: t.Now, Notify: func(m string) { t.hint("%s", m) }, Stderr: t.Err}
	if s.IsEmpty() {
		s.Value = t.Getenv("DASHBOARD_TOKEN")
	}
	return s, nil
}
