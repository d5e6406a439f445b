package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
)

// parsePool parses an argument of the form forge/org/pool.
func parsePool(arg string) (plane.PoolRequest, error) {
	id := strings.Split(arg, "/")
	if len(id) != 3 || slices.Contains(id, "") {
		return plane.PoolRequest{}, output.UsageErrorf("%q does not have the form forge/org/pool", arg).Try("tka fleet runners -o name")
	}
	return plane.PoolRequest{Forge: id[0], Org: id[1], Pool: id[2]}, nil
}

func (t *tka) fleetJobs(ff *fleetFlags) *cobra.Command {
	jobs := fleetTable[plane.Runner]{
		kind: "RunnerList", pattern: plane.ListRunners.Pattern, plural: "runners of this pool",
		states: []string{plane.RunnerFailed, plane.RunnerOutdated, plane.RunnerPending, plane.RunnerStarting, plane.RunnerEnding,
			plane.RunnerBusy, plane.RunnerIdle, plane.RunnerFinished},
		header: []string{"RUNNER", "STATE", "JOB", "REPOSITORY", "SINCE"},
		wide:   []string{"NODE", "FAILURES", "URL", "WHY"},
		row: func(r plane.Runner) (string, []string) {
			var j plane.Job
			if r.Job != nil {
				j = *r.Job
			}
			since, node := "", "?"
			if j.Started != nil {
				since = output.HumanDuration(max(0, t.Now().Sub(*j.Started)))
			}
			if r.Pod != nil {
				node = r.Pod.Node
			}
			why := strings.Trim(r.Reason+": "+r.Message, ": ")
			return r.ID, []string{r.ID, r.State, j.Name, j.Repository, since, node, formatCount(r.Failures), j.URL, why}
		},
	}
	return jobs.addFlags(t, ff, &cobra.Command{
		Use:   "jobs FORGE/ORG/POOL",
		Short: "List the runners of a pool with their jobs",
		Long: `List the runners of one organisation in one pool: the state of each, its job and the job's
start, and the place of its pod. An unknown value is "?".`,
		Example: "  tka fleet jobs github/acme/gh-nix\n  tka fleet jobs github/acme/gh-nix --state Failed -o wide",
		Args:    arguments(1, 1, "a pool, as forge/org/pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, err := parsePool(args[0])
			if err != nil {
				return err
			}
			return jobs.print(cmd.Context(), t, ff, func(p plane.ListRequest) any {
				return plane.RunnerListRequest{ListRequest: p, PoolRequest: pool}
			})
		},
	})
}

func (t *tka) fleetDiagnose(ff *fleetFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "diagnose FORGE/ORG/POOL",
		Short: "Explain why the runners of a pool do not work",
		Long: `Explain why the runners of one organisation in one pool do not work, the worst problem first:
the problem, its source, and what to do. The command changes nothing.`,
		Example: "  tka fleet diagnose github/acme/gh-nix",
		Args:    arguments(1, 1, "a pool, as forge/org/pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, err := parsePool(args[0])
			if err != nil {
				return err
			}
			var e plane.Envelope[plane.Diagnosis]
			if err := t.callPlane(cmd.Context(), ff, plane.GetDiagnosis.Pattern, plane.ListPools.MaxResponse, pool, &e); err != nil {
				return err
			}
			t.warnUnhealthySources(e.Meta)
			d := e.Data
			return t.printResult(result{object: diagnosis{newMeta("PoolDiagnosis"), d}, names: []string{d.ID}, table: func(bool) {
				if len(d.Findings) == 0 {
					t.hint("%s is %s. There is no known problem.", d.ID, d.State)
					return
				}
				t.writeTable(false, []string{"SEVERITY", "CAUSE", "EVIDENCE", "NEXT"}, nil, mapped(d.Findings, func(f plane.Finding) []output.Cell {
					return output.Row(string(f.Severity), f.Cause, f.Evidence, f.Next)
				}))
			}})
		},
	}
}

func (t *tka) fleetLogs(ff *fleetFlags) *cobra.Command {
	var container string
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs NAMESPACE/NAME",
		Short: "Show the log of a runner",
		Long: `Show the end of a runner's log, and with --follow also new lines. "tka fleet jobs" lists the
runners. Jobs of other people write the log, and it may contain secrets. Characters that move
the cursor or change the text direction are shown as escapes.`,
		Example: "  tka fleet logs tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z --tail 50\n  tka fleet logs tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z --follow",
		Args:    arguments(1, 1, "a runner, as namespace/name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, ok := strings.Cut(args[0], "/")
			if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
				return output.UsageErrorf("%q does not have the form namespace/name", args[0]).Try("tka fleet jobs FORGE/ORG/POOL -o name")
			}
			if tail < 1 || tail > 5000 {
				return output.UsageErrorf("--tail must be 1 to 5000 (got %d)", tail)
			}
			c, err := t.planeClient(ff.plane)
			if err != nil {
				return err
			}
			log, err := c.Follow(cmd.Context(), plane.ReadLog.Pattern, plane.LogRequest{RunnerRequest: plane.RunnerRequest{Namespace: namespace, Name: name},
				Container: plane.Text(container), Tail: plane.LineCount(tail), Follow: plane.Flag(follow)})
			if err != nil {
				return planeError(err)
			}
			defer log.Close()
			return t.printLog(log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&container, "container", "", "a container of the pod (default the one that runs the job)")
	f.IntVar(&tail, "tail", 500, "maximum number of lines from the end, 1 to 5000")
	f.BoolVarP(&follow, "follow", "f", false, "also print new lines, until the log ends")
	return cmd
}

// printLog prints untrusted lines and escapes terminal control characters.
func (t *tka) printLog(log io.Reader) error {
	in := bufio.NewReaderSize(log, 64<<10)
	for {
		line, longer, err := in.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return planeError(fmt.Errorf("read the log: %w", err))
		}
		end := "\n"
		if longer {
			end = ""
		}
		if _, err := fmt.Fprint(t.Out, output.Escape(string(line)), end); err != nil {
			return err
		}
	}
}

// diagnosis is the machine-readable output of diagnose.
type diagnosis struct {
	meta
	plane.Diagnosis
}
