package cli

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

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
		Short: "Give an assistant the operator plane's tools, by the Model Context Protocol",
		Long: `Serve the operator plane's tools on standard input and output, for an assistant that speaks
the Model Context Protocol (MCP) and starts this command. Standard output carries messages of
the protocol only; what is to be said to people goes to standard error.

The plane decides about each call by who you are on the tailnet, so the tools show what you
may see and no more. No tool returns a credential. Where the connection does not say who you
are, a token of the tailnet's identity provider does: from --token-file or --token-command,
which are read again when it ends, or from DASHBOARD_TOKEN. It is sent to the plane by https
and to nobody else.

What goes further than one pool is asked for twice. See also --read-only and
--no-destructive. All tools only read but these, which change or propose something:

  ` + strings.Join(mcp.WriteTools(), "\n  "),
		Example:     "  tka mcp --url https://dashboard.tail1234.ts.net\n  tka config plane.url https://dashboard.tail1234.ts.net\n  claude mcp add tailplane -- tka mcp",
		Args:        arguments(0, 0, ""),
		Annotations: map[string]string{noTimeLimit: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return t.doMCP(cmd.Context(), mf) },
	}
	f := cmd.Flags()
	f.StringVar(&mf.url, "url", "", "URL of the operator plane, https:// unless it is on this machine (default plane.url of the settings)")
	f.StringVar(&mf.tokenFile, "token-file", "", "file with a token, where the connection does not say who you are")
	f.StringVar(&mf.tokenCommand, "token-command", "", "program that prints a token, with its arguments; it is not given to a shell")
	f.BoolVar(&mf.options.ReadOnly, "read-only", false, "only tools that change nothing")
	f.BoolVar(&mf.options.NoDestructive, "no-destructive", false, "no tools that take something away")
	f.StringVar(&mf.toolsets, "toolsets", "", "only these, with commas between: fleet, config, enrollment, infra, audit (default all)")
	f.DurationVar(&t.timeout, "timeout", mcp.DefaultTimeout, "time limit of one call")
	f.IntVar(&mf.options.MaxBytes, "max-bytes", mcp.DefaultBytes, "most bytes of one answer, 4096 to 1048576")
	t.complete(cmd, "toolsets", fixedValues(string(mcp.Fleet), string(mcp.Config), string(mcp.Enrollment), string(mcp.Infra), string(mcp.Audit)))
	return cmd
}

func (t *tka) doMCP(ctx context.Context, mf mcpFlags) error {
	var err error
	if mf.options.Toolsets, err = mcp.ParseToolsets(mf.toolsets); err != nil {
		return output.UsageErrorf("--toolsets: %v", err)
	}
	if n := mf.options.MaxBytes; n < mcp.MinBytes || n > mcp.MaxBytes {
		return output.UsageErrorf("--max-bytes is %d; it can be %d to %d", n, mcp.MinBytes, mcp.MaxBytes)
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
		t.hint("This speaks with programs: an assistant starts it. See: tka mcp --help")
	}
	log := slog.New(slog.NewTextHandler(t.Err, &slog.HandlerOptions{Level: level}))
	if err := mcp.Serve(ctx, t.In, t.Out, client, mf.options, log); err != nil {
		return output.Errorf(output.ExitFailed, "the assistant's connection broke: %v", err).Because(err)
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
		return nil, output.UsageErrorf("it is not known where the operator plane is").
			Try("tka mcp --url https://dashboard.YOUR-TAILNET.ts.net").Try("tka config plane.url https://dashboard.YOUR-TAILNET.ts.net")
	}
	base, err := dialpolicy.ParseURL(given, true)
	if err != nil {
		return nil, output.UsageErrorf("%s is %q: %v", from, dialpolicy.RedactURL(given), err)
	}
	u, err := url.Parse(base)
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
		return nil, output.UsageErrorf("--token-file and --token-command cannot both be given")
	}
	s := &client.TokenSource{File: mf.tokenFile, Command: strings.Fields(mf.tokenCommand), Now: t.Now, Notify: func(m string) { t.hint("%s", m) }, Stderr: t.Err}
	if s.IsEmpty() {
		s.Value = t.Getenv("DASHBOARD_TOKEN")
	}
	return s, nil
}
