package cli

import (
	"cmp"
	"context"
	"fmt"
	"math"
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
		Use:   "audit",
		Short: "Check the audit log of a server",
		Long: `Check the audit log in which a server records every request. The check needs no connection
to a server, unless it compares the log with what the servers have witnessed.`,
		Example: "  tka audit verify audit.jsonl",
	}
	cmd.AddCommand(t.auditVerify())
	return cmd
}

func (t *tka) auditVerify() *cobra.Command {
	var keys, heads []string
	var check audit.Check
	var by witnessFlags
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check offline that an audit log is intact",
		Long: `Check that the audit log in the files is the one that a server wrote: no line was changed,
removed, added or cut off. The files may be in any order; "-" is the standard input. Each
fault is printed with the line and the audit id at which it starts, and the exit code is 3.

--key is the public key that the server logs when it starts. Without it, the check trusts
the key in the first header. --head is a head that an earlier check printed. Without it,
the check cannot detect a missing end.

--witness asks the access server for the last lines that it has witnessed, also of other
clusters. An older copy of the file then lacks a witnessed line. Ask the server of another
cluster with --server, and name the cluster of the audit log with --cluster: a server cannot
witness its own log. The output shows how many lines have no witness yet.`,
		Example: "  tka audit verify audit.jsonl\n  tka audit verify --key ed25519:PNs3... --head 4711:9f86... audit.jsonl audit.jsonl.1 -o json\n  tka audit verify --witness --server tka-eu --cluster prod-us audit.jsonl",
		Args:    arguments(1, math.MaxInt, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
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
			if !by.ask && by.cluster != "" {
				return output.UsageErrorf("--cluster: it needs --witness")
			}
			if by.ask {
				w, err := t.fetchWitness(cmd.Context(), by.cluster)
				if err != nil {
					return err
				}
				check.Witness = w
			}
			return t.doAuditVerify(check, args)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	f := cmd.Flags()
	f.StringArrayVar(&keys, "key", nil, "key that may have signed the audit log; may be given several times")
	f.StringArrayVar(&heads, "head", nil, "head that must be in the audit log, as an earlier check printed it; may be given several times")
	f.StringVar(&check.Log, "log", "", "id of the audit log to check, if the files have lines of other logs")
	f.BoolVar(&by.ask, "witness", false, "compare with the lines that the access server has witnessed")
	f.StringVar(&by.cluster, "cluster", "", "cluster of the audit log, with --witness; default: the cluster of the access server")
	return cmd
}

// witnessFlags are the flags of a comparison with what servers have witnessed.
type witnessFlags struct {
	ask     bool
	cluster string
}

// fetchWitness returns the statements that the access server has witnessed about the audit logs of a cluster. Only an entry whose key the
// server has verified counts: another server may claim the cluster's name.
func (t *tka) fetchWitness(ctx context.Context, cluster string) (*audit.Witness, error) {
	_, d, err := t.directoryOf(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, e := range d.Entries {
		if named := e.Name == cluster || e.ID == cluster || cluster == "" && e.Self; !named || !e.Verified || e.Conflict {
			continue
		}
		if len(e.AuditLogs) == 0 {
			return nil, output.Errorf(output.ExitFailed, "The server %s has witnessed no audit log of %s", d.Server, e.Name).
				Try("The audit log must be a file (audit.file), and the cluster's servers and %s need a version that witnesses.", d.Server)
		}
		return &audit.Witness{Cluster: e.Name, ClusterID: e.ID, Statements: e.AuditLogs}, nil
	}
	return nil, output.Errorf(output.ExitRefused, "The server %s knows no verified cluster %s", d.Server, cmp.Or(cluster, d.OwnCluster)).Try("See the clusters: tka clusters --all")
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
			return output.Errorf(output.ExitFailed, "The audit log cannot be read: %v", err).Because(err).Try("tka audit verify --help")
		}
		defer f.Close()
		sources = append(sources, audit.Source{Name: p, Reader: f})
	}
	report, err := audit.Verify(check, sources...)
	if err != nil {
		return output.Errorf(output.ExitFailed, "The audit log cannot be read: %v", err).Because(err).Try("tka audit verify --help")
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
	for _, f := range r.Findings {
		fmt.Fprintln(t.Out, t.paint(t.Out, output.Red, "wrong:"), output.Escape(f.String()))
	}
	if r.More > 0 {
		t.printLine("And %d more.", r.More)
	}
	switch {
	case r.Lines == 0:
		t.printLine("The audit log is empty.")
		return
	case r.OK():
		t.printLine("The audit log is intact.")
	default:
		t.printLine("The audit log is not intact.")
	}
	t.printLine("Record %s of %s on %s since %s: %s, %s, in %s.", r.Log, r.Role, r.Cluster, r.From.UTC().Format(time.RFC3339),
		problem.Plural(int(r.Lines), "line"), plural(r.Entries, "entry", "entries"), problem.Plural(int(r.Runs), "run"))
	if r.First.Seq > 1 {
		t.printLine("It begins with line %d: the older files are missing.", r.First.Seq)
	}
	if r.Lost > 0 || r.Torn > 0 || r.Unclean > 0 {
		t.printLine("%s lost during write failures, %s torn by a crash, %s without an end.", plural(r.Lost, "entry", "entries"), problem.Plural(int(r.Torn), "line"), problem.Plural(int(r.Unclean), "run"))
	}
	for _, k := range r.Keys {
		trust := ", which was not verified (no --key)"
		if r.Pinned {
			trust = ""
		}
		t.printLine("Signed by %v%s.", k, trust)
	}
	if r.Unsigned > 0 {
		t.printLine("%s at the end without a signature yet.", problem.Plural(int(r.Unsigned), "line"))
	}
	switch {
	case r.Witnessed == nil:
	case r.Witnessed.Seq == 0:
		t.printLine("No line has a witness yet.")
	case r.Unwitnessed > 0:
		t.printLine("Witnessed up to line %d; the lines %d to %d have no witness yet.", r.Witnessed.Seq, r.Witnessed.Seq+1, r.Last.Seq)
	default:
		t.printLine("Witnessed up to the last line, %d.", r.Witnessed.Seq)
	}
	t.printLine("Keep the head for the next check: --head %v", r.Last)
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
