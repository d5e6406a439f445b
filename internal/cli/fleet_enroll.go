package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// showResult describes --dry-run of the commands that change an organisation or a drift.
const showResult = "show the result and change nothing"

func addConfirm(cmd *cobra.Command, confirm *string, phrase string) {
	cmd.Flags().StringVar(confirm, "confirm", "", "the confirmation phrase, such as \""+phrase+"\"")
}

func (t *tka) fleetRequest(ff *fleetFlags) *cobra.Command {
	var req plane.RequestRequest
	var pools, owners, members []string
	cmd := &cobra.Command{
		Use:   "request ORG",
		Short: "Request runners for an organisation",
		Long: `Request runners for a new organisation with the name ORG. The operator plane opens a pull
request. If the plane approves enrollments itself, it creates an enrollment that an approver
must approve. The fleet creates no runners before the approval.`,
		Example: "  tka fleet request acme --forge github --pool gh-nix --owner amy@acme.dev --reason builds-wait",
		Args:    arguments(1, 1, "the organisation's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Forge == "" || len(pools) == 0 {
				return output.UsageErrorf("%s needs --forge and --pool", cmd.CommandPath()).Try("tka fleet forges")
			}
			req.Org, req.Owners, req.Members = plane.Text(args[0]), mapped(owners, toText), mapped(members, toText)
			req.Pools = mapped(pools, func(name string) plane.Use { return plane.Use{Name: plane.Text(name)} })
			return t.doEnroll(cmd.Context(), ff, plane.RequestEnrollment.Pattern, req)
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&req.Forge), "forge", "", "forge of the organisation (required)")
	f.StringSliceVar(&pools, "pool", nil, "a pool to use; separate several with commas, or repeat the flag (required)")
	f.StringVar((*string)(&req.ConfigURL), "config-url", "", "URL of the organisation or group at the forge (default the forge's URL and ORG)")
	f.StringVar((*string)(&req.Isolation), "isolation", "", "isolation of its runners from others: None, Namespace, Node (default None)")
	f.StringSliceVar(&owners, "owner", nil, "full login of an owner, who administers the enrollment")
	f.StringSliceVar(&members, "member", nil, "full login of a member; *@example.com matches all logins of that domain")
	f.StringVar((*string)(&req.Secret), "secret", "", "the Secret with its credential, in the fleet's namespace (default ORG-credential)")
	t.complete(cmd, "isolation", fixedValues("None", "Namespace", "Node"))
	addKey(cmd, &req.Key)
	return addWrite(cmd, &req.Reason, &req.DryRun, showResult)
}

func toText(s string) plane.Text { return plane.Text(s) }

func (t *tka) fleetApprove(ff *fleetFlags) *cobra.Command {
	return t.fleetDecide(ff, plane.ApproveEnrollment.Pattern, "This command approves it.", "APPROVE", &cobra.Command{
		Use:   "approve ORG",
		Short: "Approve an organisation's enrollment",
		Long: `Approve the open pull request of an organisation's enrollment, or, if the operator plane
approves, the enrollment. The command first shows it, and approves exactly the shown version:
type the phrase, or give the version that you reviewed with --seen. The requester cannot
approve it.`,
		Example: "  tka fleet approve acme --reason shared-budget",
	})
}

func (t *tka) fleetDecline(ff *fleetFlags) *cobra.Command {
	return t.fleetDecide(ff, plane.DeclineEnrollment.Pattern, "This command declines it.", "DECLINE", &cobra.Command{
		Use:   "decline ORG",
		Short: "Decline an organisation's enrollment",
		Long: `Decline a request that is not approved yet. The plane closes the open pull request of the
organisation's enrollment, with the reason as a comment. If the plane approves enrollments
itself, it deletes the enrollment. The requester finds the reason in the audit log. The
command first shows the request, and declines exactly the shown version: type the phrase, or
give the version that you reviewed with --seen.`,
		Example: "  tka fleet decline acme --reason they-have-their-own",
	})
}

// fleetDecide completes a command that decides on an enrollment.
func (t *tka) fleetDecide(ff *fleetFlags, pattern, effect, word string, cmd *cobra.Command) *cobra.Command {
	var req plane.EnrollmentDecideRequest
	var confirm string
	cmd.Args = arguments(1, 1, "the organisation's name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Org = args[0]
		if !req.DryRun && req.Seen == "" {
			var err error
			if req.Seen, err = t.previewDecision(cmd.Context(), ff, pattern, req, effect, word+" "+req.Org, confirm); err != nil {
				return err
			}
		}
		return t.doEnroll(cmd.Context(), ff, pattern, req)
	}
	addConfirm(cmd, &confirm, word+" acme")
	cmd.Flags().StringVar((*string)(&req.Seen), "seen", "", "the version that you reviewed, from --dry-run: the commit of the pull request, or the enrollment's digest")
	return addWrite(cmd, &req.Reason, &req.DryRun, showResult)
}

// previewDecision shows the enrollment before the decision, asks for confirmation, and returns the digest or commit that was shown.
func (t *tka) previewDecision(ctx context.Context, ff *fleetFlags, pattern string, preview plane.EnrollmentDecideRequest, effect, phrase, confirm string) (plane.Text, error) {
	var e plane.Envelope[plane.Outcome]
	preview.DryRun = true
	if err := t.callPlane(ctx, ff, pattern, plane.ApproveEnrollment.MaxResponse, preview, &e); err != nil {
		return "", err
	}
	return plane.Text(e.Data.Seen), t.confirmPhrase(ctx, describeOutcome(e.Data)+effect, phrase, confirm)
}

// describeOutcome describes the change or enrollment of an outcome, for the person who decides.
func describeOutcome(o plane.Outcome) string {
	switch {
	case o.Change != nil:
		return fmt.Sprintf("%s, by %s: %s\n%s\n%s", o.Change.Title, o.Change.Proposer, o.Change.URL, o.Change.Reason, o.Change.Diff)
	case o.Enrollment != nil:
		pools := mapped(o.Enrollment.Pools, poolName)
		return fmt.Sprintf("%s at %s, isolation %s, pools %s, owners %s; requested by %s.\n", o.Enrollment.Name, o.Enrollment.ConfigURL, o.Enrollment.Isolation, strings.Join(pools, ", "),
			strings.Join(o.Enrollment.Owners, ", "), strings.Join(o.Enrollment.RequestedBy, ", "))
	}
	return ""
}

func (t *tka) fleetOffboard(ff *fleetFlags) *cobra.Command {
	var req plane.OffboardRequest
	cmd := &cobra.Command{
		Use:   "offboard ORG",
		Short: "End an organisation's runners",
		Long: `End an organisation's runners. The operator plane opens a pull request. If the plane
approves enrollments itself, it ends them immediately if your role allows that; otherwise it
records a request for the platform administrators. Running jobs finish first. Then the fleet
removes the runners from the forge, and finally the credential. An immediate end
needs a confirmation: type the phrase, or give it with --confirm.`,
		Example: "  tka fleet offboard acme --reason moved-away",
		Args:    arguments(1, 1, "the organisation's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Org = args[0]
			return t.doEnroll(cmd.Context(), ff, plane.OffboardEnrollment.Pattern, req)
		},
	}
	addConfirm(cmd, (*string)(&req.Confirm), "OFFBOARD acme")
	addKey(cmd, &req.Key)
	return addWrite(cmd, &req.Reason, &req.DryRun, showResult)
}

func (t *tka) fleetRotate(ff *fleetFlags) *cobra.Command {
	var req plane.RotateRequest
	cmd := &cobra.Command{
		Use:   "rotate ORG",
		Short: "Request a new credential for an organisation",
		Long: `Request a new credential for an organisation. The operator plane opens a pull request. If
the plane approves enrollments itself, it starts the rotation immediately if your role allows
that; otherwise it records a request for the platform administrators. At GitLab, the fleet
creates new runners next to the existing ones. At GitHub, a person creates a new key of the
App and puts it into the Secret; the enrollment's status shows this until it is done.`,
		Example: "  tka fleet rotate acme --reason lost-laptop",
		Args:    arguments(1, 1, "the organisation's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Org = args[0]
			return t.doEnroll(cmd.Context(), ff, plane.RotateCredential.Pattern, req)
		},
	}
	addKey(cmd, &req.Key)
	return addWrite(cmd, &req.Reason, &req.DryRun, showResult)
}

// doEnroll sends a request about an organisation and shows the outcome.
func (t *tka) doEnroll(ctx context.Context, ff *fleetFlags, pattern string, req any) error {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return err
	}
	o, err := t.enroll(ctx, c, pattern, req)
	if err != nil {
		return planeError(err)
	}
	name := o.OrgName
	if o.Change != nil {
		name = o.Change.ID
	}
	return t.printResult(result{object: fleetChange[plane.Outcome]{newMeta("EnrollmentOutcome"), o}, names: []string{name}, table: func(bool) { t.printEnrollment(o) }})
}

// enroll sends the request. If the plane requires a confirmation, it sends it again with the phrase.
func (t *tka) enroll(ctx context.Context, c httpapi.Client, pattern string, req any) (plane.Outcome, error) {
	var e plane.Envelope[plane.Outcome]
	err := c.Do(ctx, pattern, plane.RequestEnrollment.MaxResponse, req, &e)
	p, ok := errors.AsType[*problem.Error](err)
	if end, is := req.(plane.OffboardRequest); ok && is && p.Code == problem.Confirmation && p.Confirm != nil {
		if err := t.confirmPhrase(ctx, p.Message, p.Confirm.Phrase, string(end.Confirm)); err != nil {
			return e.Data, err
		}
		end.Confirm = plane.Text(p.Confirm.Phrase)
		err = c.Do(ctx, pattern, plane.RequestEnrollment.MaxResponse, end, &e)
	}
	return e.Data, err
}

// printEnrollment prints an outcome.
func (t *tka) printEnrollment(o plane.Outcome) {
	org := output.Escape(o.OrgName)
	printLine := func(format string, args ...any) { fmt.Fprintf(t.Out, format+"\n", args...) }
	switch {
	case o.Preview != nil:
		printLine("%s\nThe plane would open a pull request with risk %s. Nothing was changed.", output.Escape(strings.TrimSpace(o.Preview.Diff)), output.Escape(o.Preview.Risk.Level))
		if o.Preview.Refused != "" {
			t.warn("the API server would reject it: %s", o.Preview.Refused)
		}
		if o.Preview.Note != "" {
			t.hint("%s", o.Preview.Note)
		}
	case o.Would == plane.OutcomeApproved:
		printLine("%s\nThe plane would approve it. Nothing was changed.", output.Escape(strings.TrimSpace(describeOutcome(o))))
		t.hint("Approve exactly this: tka fleet approve %s --seen %s --reason \"why\"", o.OrgName, o.Seen)
	case o.Would == plane.OutcomeDeclined:
		printLine("%s\nThe plane would decline it. Nothing was changed.", output.Escape(strings.TrimSpace(describeOutcome(o))))
		t.hint("Decline exactly this: tka fleet decline %s --seen %s --reason \"why\"", o.OrgName, o.Seen)
	case o.Would == plane.OutcomeRecorded:
		printLine("%s: the plane would record a request for the platform administrators. Nothing was changed.", org)
	case o.Would != "":
		printLine("%s would be %s. Nothing was changed.", org, output.Escape(o.Would))
	case o.Done == plane.OutcomeProposed && o.Change != nil:
		printLine("%s is proposed: %s", output.Escape(o.Change.ID), output.Escape(o.Change.URL))
		t.hint("Another person must approve it: tka fleet approve %s", o.OrgName)
	case o.Done == plane.OutcomeApproved && o.Change != nil:
		printLine("%s is approved and can be merged.", output.Escape(o.Change.ID))
	case o.Done == plane.OutcomeApproved:
		printLine("%s is approved: the fleet creates its runners.", org)
	case o.Done == plane.OutcomeDeclined && o.Change != nil:
		printLine("%s is declined: the plane closed the pull request with the reason.", output.Escape(o.Change.ID))
	case o.Done == plane.OutcomeDeclined:
		printLine("%s is declined: the plane deleted the enrollment. The audit log has the reason.", org)
	case o.Done == plane.OutcomeRecorded:
		printLine("%s: the plane recorded a request for the platform administrators.", org)
	case o.Done == plane.OutcomeNothing:
		printLine("%s was already requested.", org)
	default:
		printLine("%s is written.", org)
		t.hint("See the state: tka fleet enrollments")
	}
}
