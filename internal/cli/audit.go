package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
)

// audit returns the command group for the audit logs of servers.
func (t *tka) audit() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "audit",
		Short:   "Check the record that servers keep",
		Long:    `Check the record that servers keep of every visit. Nothing is asked of a server.`,
		Example: "  tka audit verify audit.jsonl",
		Args:    t.rejectArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.auditVerify())
	return cmd
}

func (t *tka) auditVerify() *cobra.Command {
	var keys, heads []string
	var check audit.Check
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check that a record is what was written, offline",
		Long: `Check that the record in the files is what a server wrote: nothing changed, taken out, put
in or cut off. The files may be given in any order; "-" is the standard input. What is
wrong is named, with the line and the audit id where it starts, and is exit 3.

--key is the public key that the server logs when it starts; without, the key in the first
header is taken on trust. --head is a head that an earlier check printed: without one,
nobody can tell whether the end is missing.`,
		Example: "  tka audit verify audit.jsonl\n  tka audit verify --key ed25519:PNs3... --head 4711:9f86... audit.jsonl audit.jsonl.1 -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return output.UsageErrorf("%s needs a file", cmd.CommandPath()).Try("%s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			for _, k := range keys {
				key, err := audit.ParsePublicKey(k)
				if err != nil {
					return output.UsageErrorf("--key: %v", err)
				}
				check.Keys = append(check.Keys, key)
			}
			for _, h := range heads {
				head, err := audit.ParseHead(h)
				if err != nil {
					return output.UsageErrorf("--head: %v", err)
				}
				check.Heads = append(check.Heads, head)
			}
			return t.doAuditVerify(check, args)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	f := cmd.Flags()
	f.StringArrayVar(&keys, "key", nil, "key that may have signed the record; may be given several times")
	f.StringArrayVar(&heads, "head", nil, "head that must be in the record, as an earlier check printed it; may be given several times")
	f.StringVar(&check.Log, "log", "", "id of the one record to check, among lines of others")
	return cmd
}

// auditInfo is the output of audit verify.
type auditInfo struct {
	meta
	OK bool `json:"ok"`
	audit.Report
}

func (t *tka) doAuditVerify(check audit.Check, paths []string) error {
	var sources []audit.Source
	for _, p := range paths {
		if p == "-" {
			sources = append(sources, audit.Source{Name: "standard input", Reader: t.In})
			continue
		}
		f, err := os.Open(p)
		if err != nil {
			return output.Errorf(output.ExitFailed, "The record cannot be read: %v", err).Because(err).Try("tka audit verify --help")
		}
		defer f.Close()
		sources = append(sources, audit.Source{Name: p, Reader: f})
	}
	report, err := audit.Verify(check, sources...)
	if err != nil {
		return output.Errorf(output.ExitFailed, "The record cannot be read: %v", err).Because(err).Try("tka audit verify --help")
	}
	if report.Findings == nil {
		report.Findings = []audit.Finding{}
	}
	info := auditInfo{newMeta("AuditReport"), report.OK(), report}
	err = t.printResult(result{object: info, names: []string{report.Last.String()}, table: func(bool) { t.printAudit(report) }})
	if err == nil && !report.OK() {
		return output.SilentExit(output.ExitRefused)
	}
	return err
}

func (t *tka) printAudit(r audit.Report) {
	printLine := func(w io.Writer, format string, args ...any) {
		fmt.Fprintln(w, output.Escape(fmt.Sprintf(format, args...)))
	}
	for _, f := range r.Findings {
		fmt.Fprintln(t.Out, t.paint(t.Out, output.Red, "wrong:"), output.Escape(f.String()))
	}
	if r.More > 0 {
		printLine(t.Out, "And %d more.", r.More)
	}
	switch {
	case r.Lines == 0:
		printLine(t.Out, "There is no record.")
		return
	case r.OK():
		printLine(t.Out, "The record is what was written.")
	default:
		printLine(t.Out, "The record is not what was written.")
	}
	printLine(t.Out, "Record %s of %s on %s since %s: %s, %s, in %s.", r.Log, r.Role, r.Cluster, r.From.UTC().Format(time.RFC3339),
		problem.Plural(int(r.Lines), "line"), plural(r.Entries, "entry", "entries"), problem.Plural(int(r.Runs), "run"))
	if r.First.Seq > 1 {
		printLine(t.Out, "It begins with line %d: older files are not here.", r.First.Seq)
	}
	if r.Lost > 0 || r.Torn > 0 || r.Unclean > 0 {
		printLine(t.Out, "%s lost while it could not be written, %s torn by a crash, %s without an end.", plural(r.Lost, "entry", "entries"), problem.Plural(int(r.Torn), "line"), problem.Plural(int(r.Unclean), "run"))
	}
	for _, k := range r.Keys {
		trust := ", which was taken on trust"
		if r.Pinned {
			trust = ""
		}
		printLine(t.Out, "Signed by %v%s.", k, trust)
	}
	if r.Unsigned > 0 {
		printLine(t.Out, "%s at the end not signed yet.", problem.Plural(int(r.Unsigned), "line"))
	}
	printLine(t.Out, "Keep its head for the next check: --head %v", r.Last)
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
