package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// addWrite adds the flags of every command that changes something. preRun requires a reason.
func addWrite(cmd *cobra.Command, reason *plane.Reason, dryRun *plane.Flag, dryRunUsage string) *cobra.Command {
	f := cmd.Flags()
	f.StringVar((*string)(reason), "reason", "", "the reason, in one sentence, for the audit log (required)")
	_ = f.SetAnnotation("reason", mustBeSet, nil)
	f.BoolVar((*bool)(dryRun), "dry-run", false, dryRunUsage)
	return cmd
}

// addHoldWrite adds the flags of a command that changes holds; what is the change, and phrase confirms it for all runners.
func addHoldWrite(cmd *cobra.Command, reason *plane.Reason, dryRun *plane.Flag, confirm *string, what, phrase string) *cobra.Command {
	cmd.Flags().StringVar(confirm, "confirm", "", "the confirmation phrase for "+what+" of more than one pool, such as \""+phrase+"\"")
	return addWrite(cmd, reason, dryRun, "check the request and change nothing")
}

func addKey(cmd *cobra.Command, key *plane.IdempotencyKey) {
	cmd.Flags().StringVar((*string)(key), "idempotency-key", "", "idempotency key: a write with the key of an earlier write returns the result of that write")
}

func (t *tka) fleetPause(ff *fleetFlags) *cobra.Command {
	req := plane.CreateRequest{Mode: plane.ModePause}
	var confirm string
	var drain bool
	cmd := &cobra.Command{
		Use:   "pause [FORGE/ORG/POOL]",
		Short: "Pause runners: they take no new jobs, and running jobs finish",
		Long: `Pause the runners of one organisation in one pool. With a flag, pause the runners of an
organisation, a pool, a forge, or all of them. The runners take no new jobs, and running jobs
finish. A pause of more than one pool needs a confirmation: type the phrase, or give it with
--confirm.

The pause is complete when "tka fleet runners" shows Paused, and not before.`,
		Example: "  tka fleet pause github/acme/gh-nix --reason flaky-image --expires-in 2h\n  tka fleet pause --all --reason node-upgrade",
		Args:    arguments(0, 1, "the runners, as forge/org/pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, given := req.Scope, len(args)
			for _, isSet := range []bool{s.All, s.Forge != "", s.Org != "" || s.Pool != ""} {
				if isSet {
					given++
				}
			}
			if given != 1 {
				return output.UsageErrorf("specify what to pause: one FORGE/ORG/POOL, or one of --org, --pool, --forge and --all").
					Try("%s --help", cmd.CommandPath())
			}
			if drain {
				req.Mode = plane.ModeDrain
			}
			if len(args) == 0 {
				return t.doPause(cmd.Context(), ff, confirm, req, plane.CreateHold.Pattern, req)
			}
			p, err := parsePool(args[0])
			if err != nil {
				return err
			}
			req.Scope = plane.Scope{Org: p.Org, Pool: p.Pool}
			return t.doPause(cmd.Context(), ff, confirm, req, plane.PausePool.Pattern, plane.PauseRequest{PoolRequest: p,
				PauseOptions: plane.PauseOptions{Reason: req.Reason, ExpiresIn: req.ExpiresIn, Drain: drain, DryRun: req.DryRun, Key: req.Key}})
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Scope.Org, "org", "", "all runners of one organisation; with --pool, only its runners in that pool")
	f.StringVar(&req.Scope.Pool, "pool", "", "a pool; without --org, of all organisations")
	f.StringVar(&req.Scope.Forge, "forge", "", "all runners of one forge")
	f.BoolVar(&req.Scope.All, "all", false, "every runner of the fleet: the emergency pause")
	f.BoolVar(&drain, "drain", false, "remove the workloads after their last job ends")
	f.DurationVar((*time.Duration)(&req.ExpiresIn), "expires-in", 0, "expires automatically after this time, 1m to 2160h; without it, the hold does not expire")
	addKey(cmd, &req.Key)
	return addHoldWrite(cmd, &req.Reason, &req.DryRun, &confirm, "a pause", "PAUSE ALL")
}

// fleetChange is the output of a command that changes fleet objects.
type fleetChange[T any] struct {
	meta
	Result T `json:"result"`
}

// doPause sends first to the operation with pattern, and shows the outcome. If the plane requires a confirmation, doPause sends req with it.
func (t *tka) doPause(ctx context.Context, ff *fleetFlags, confirm string, req plane.CreateRequest, pattern string, first any) error {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return err
	}
	var e plane.Envelope[plane.Created]
	err = c.Do(ctx, pattern, plane.CreateHold.MaxResponse, first, &e)
	if p, ok := errors.AsType[*problem.Error](err); ok && p.Code == problem.Confirmation && p.Confirm != nil {
		if err := t.confirmPhrase(ctx, fmt.Sprintf("This pauses %s: %s.", req.Scope, describeWorkloads(p.Confirm.Targets)), p.Confirm.Phrase, confirm); err != nil {
			return err
		}
		req.Confirm = plane.Text(p.Confirm.Phrase)
		err = c.Do(ctx, pattern, plane.CreateHold.MaxResponse, req, &e)
	}
	if err != nil {
		return planeError(err)
	}
	r := e.Data
	return t.printResult(result{object: fleetChange[plane.Created]{newMeta("HoldCreated"), r}, names: []string{r.Hold.Name}, table: func(bool) {
		name, scope, workloads := r.Hold.Name, r.Hold.Scope, describeWorkloads(r.Targets)
		switch {
		case r.DryRun:
			t.printLine("The plane would create %s: it pauses %s, %s. Nothing was changed.", name, scope, workloads)
		case !r.Created:
			t.printLine("%s exists already: with it you hold %s.", name, scope)
		default:
			t.printLine("%s is created: it pauses %s, %s.", name, scope, workloads)
			t.hint("See the progress: tka fleet holds")
		}
	}})
}

// confirmPhrase requires the confirmation phrase, either typed by the person or given in a flag.
func (t *tka) confirmPhrase(ctx context.Context, what, phrase, given string) error {
	if given == phrase {
		return nil
	}
	if given != "" || t.noInput || !isTerminal(t.In) {
		return output.UsageErrorf("%s It needs a confirmation.", what).Try("Confirm with --confirm %q", phrase)
	}
	fmt.Fprintf(t.Err, "%s\nType %s to continue: ", output.Escape(what), output.Escape(phrase))
	if t.readAnswer(ctx) != phrase {
		return output.Errorf(output.ExitFailed, "cancelled: the phrase does not match")
	}
	return nil
}

func (t *tka) fleetLift(ff *fleetFlags) *cobra.Command {
	var req plane.LiftRequest
	var confirm string
	cmd := &cobra.Command{
		Use:     "lift HOLD|FORGE/ORG/POOL",
		Aliases: []string{"resume"},
		Short:   "Lift a hold, so that runners take jobs again",
		Long: `Lift a hold by its name, or the hold on exactly the runners of one organisation in one pool.
Other holds on the same runners stay. A lift of a hold of more than one pool of an organisation
needs a confirmation: type the phrase, give it with --confirm, or give the code of the
dashboard with --code.`,
		Example: "  tka fleet lift github/acme/gh-nix --reason mended\n  tka fleet lift all-3f9c1a2b4d5e --reason done",
		Args:    arguments(1, 1, "the name of a hold, or runners as forge/org/pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			return t.doLift(cmd.Context(), ff, confirm, req)
		},
	}
	cmd.Flags().StringVar((*string)(&req.Confirm), "code", "", "the confirmation code from the dashboard")
	return addHoldWrite(cmd, &req.Reason, &req.DryRun, &confirm, "a lift", "LIFT ALL")
}

func (t *tka) doLift(ctx context.Context, ff *fleetFlags, confirm string, req plane.LiftRequest) error {
	var e plane.Envelope[plane.Lifted]
	var err error
	if id := strings.Split(req.Name, "/"); len(id) == 3 {
		err = t.callPlane(ctx, ff, plane.ResumePool.Pattern, 0, plane.ResumeRequest{PoolRequest: plane.PoolRequest{Forge: id[0], Org: id[1], Pool: id[2]},
			Reason: req.Reason, DryRun: req.DryRun}, &e)
	} else {
		err = t.callConfirmed(ctx, ff, "lifts", confirm, &req.Confirm, func(c httpapi.Client) error {
			return c.Do(ctx, plane.LiftHold.Pattern, 0, req, &e)
		})
	}
	if err != nil {
		return err
	}
	r := e.Data
	return t.printResult(result{object: fleetChange[plane.Lifted]{newMeta("HoldLifted"), r}, names: r.Lifted, table: func(bool) {
		done := "lifted"
		if r.DryRun {
			done = "the plane would lift the hold; nothing was changed"
		}
		t.printLine("%s: %s.", strings.Join(r.Lifted, ", "), done)
		if len(r.Remaining) > 0 {
			t.warn("the same runners are still held by %s", strings.Join(r.Remaining, ", "))
		}
	}})
}

func (t *tka) fleetReschedule(ff *fleetFlags) *cobra.Command {
	var req plane.RescheduleRequest
	var confirm string
	var never bool
	cmd := &cobra.Command{
		Use:   "reschedule HOLD (--expires-in DURATION | --never)",
		Short: "Change when a hold expires automatically",
		Long: `Change when a hold expires automatically: after a time from now, or never. No other field of
a hold can be changed. An earlier end of a hold of more than one pool of an organisation
needs a confirmation, like a lift.`,
		Example: "  tka fleet reschedule all-3f9c1a2b4d5e --expires-in 4h --reason longer",
		Args:    arguments(1, 1, "the name of a hold"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if never == (req.ExpiresIn != 0) {
				return output.UsageErrorf("specify when the hold expires: --expires-in or --never").Try("%s %s --expires-in 2h --reason \"why\"", cmd.CommandPath(), args[0])
			}
			req.Name = args[0]
			return t.doReschedule(cmd.Context(), ff, confirm, req)
		},
	}
	f := cmd.Flags()
	f.DurationVar((*time.Duration)(&req.ExpiresIn), "expires-in", 0, "expires automatically after this time from now, 1m to 2160h")
	f.BoolVar(&never, "never", false, "the hold does not expire automatically")
	f.StringVar((*string)(&req.Confirm), "code", "", "the confirmation code from the dashboard")
	f.StringVar((*string)(&req.Match), "if-version", "", "change it only if it still has this version: see \"tka fleet holds -o json\"")
	return addHoldWrite(cmd, &req.Reason, &req.DryRun, &confirm, "an earlier end", "END ALL")
}

func (t *tka) doReschedule(ctx context.Context, ff *fleetFlags, confirm string, req plane.RescheduleRequest) error {
	var e plane.Envelope[plane.Rescheduled]
	err := t.callConfirmed(ctx, ff, "brings forward the end of", confirm, &req.Confirm, func(c httpapi.Client) error {
		return c.Do(ctx, plane.RescheduleHold.Pattern, 0, req, &e)
	})
	if err != nil {
		return err
	}
	h := e.Data.Hold
	return t.printResult(result{object: fleetChange[plane.Rescheduled]{newMeta("HoldRescheduled"), e.Data}, names: []string{h.Name}, table: func(bool) {
		end := "does not expire automatically"
		if h.ExpiresAt != nil {
			end = "ends at " + formatMinute(*h.ExpiresAt)
		}
		t.printLine("%s %s.%s", h.Name, end, dryRunSuffix(e.Data.DryRun))
	}})
}

// dryRunSuffix returns the addition to the output of a dry run.
func dryRunSuffix(dryRun bool) string {
	if dryRun {
		return " This was a dry run; nothing was changed."
	}
	return ""
}

// callConfirmed calls call. If the plane requires a code that the person did not give, callConfirmed obtains the code and calls call again.
// effect describes the change, and given is the phrase if a flag gave it.
func (t *tka) callConfirmed(ctx context.Context, ff *fleetFlags, effect, given string, code *plane.Text,
	call func(httpapi.Client) error) error {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return err
	}
	err = call(c)
	if p, ok := errors.AsType[*problem.Error](err); ok && p.Code == problem.Confirmation && p.Confirm != nil && *code == "" {
		if *code, err = t.confirmationCode(ctx, c, effect, p.Confirm.ID, given); err == nil {
			err = call(c)
		}
	}
	return planeError(err)
}

// confirmationCode obtains the code for a confirmation after the person has typed its phrase. effect describes the change.
func (t *tka) confirmationCode(ctx context.Context, c httpapi.Client, effect, id, given string) (plane.Text, error) {
	var requested plane.Envelope[plane.Asked]
	if err := c.Do(ctx, plane.GetConfirmation.Pattern, 0, plane.ConfirmationRequest{ID: id}, &requested); err != nil {
		return "", err
	}
	what := fmt.Sprintf("This %s %s, with the reason: %s", effect, requested.Data.Object, requested.Data.Args["reason"])
	if err := t.confirmPhrase(ctx, what, requested.Data.Phrase, given); err != nil {
		return "", err
	}
	var code plane.Envelope[plane.Code]
	err := c.Do(ctx, plane.ConfirmAction.Pattern, 0, plane.ConfirmRequest{ID: id, Phrase: plane.Text(requested.Data.Phrase)}, &code)
	return plane.Text(code.Data.Code), err
}
