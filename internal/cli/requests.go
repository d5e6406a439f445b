package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/requests"
	"github.com/tailplane/tailplane/internal/signin"
)

// requestFlags are the flags of request.
type requestFlags struct {
	role, reason, cluster string
	namespaces            []string
	period                time.Duration
	wait                  bool
	limit                 time.Duration // of the wait; 0: until the request expires
}

const requestClusterUsage = "cluster of the request: a name that this machine or its server knows"

func (t *tka) request() *cobra.Command {
	var rf requestFlags
	cmd := &cobra.Command{
		Use:   "request",
		Short: "Ask for access that other people approve",
		Long: `Ask for a role that a rule of the tailnet's policy lets you ask for. Other people approve, and
you use the approved request with "tka shell --request". The period begins then.

With --wait, wait until people have decided. The exit code is 0 if the request is approved, 3 if
it is over, and 4 if there is no decision in time.`,
		Example:     "  tka request --role edit -n shop --for 1h --reason INC-42\n  tka request --role edit --reason INC-42 --wait --timeout 30m",
		Annotations: map[string]string{noTimeLimit: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("timeout") {
				rf.limit = t.timeout
			}
			return t.doRequest(cmd.Context(), rf)
		},
	}
	f := cmd.Flags()
	f.StringVar(&rf.role, "role", "", "role to ask for, or the name of a rule (default: the only one)")
	f.StringVar(&rf.reason, "reason", "", "why you need the access; the people who decide see it")
	f.DurationVar(&rf.period, "for", 0, "how long you need the access, such as 30m or 1h, from its use (default: the period of the rule)")
	f.StringSliceVarP(&rf.namespaces, "namespace", "n", nil, "limit the role to this namespace; may be given several times")
	f.BoolVar(&rf.wait, "wait", false, "wait until the request is decided, for --timeout if it is given")
	t.clusterFlag(cmd, &rf.cluster, requestClusterUsage, t.clusterNames)
	cmd.AddCommand(t.endRequest("cancel", "Cancel an own request that is not used", requests.Cancel), t.endRequest("revoke", "End the access of a used request", requests.Revoke))
	return cmd
}

// A requestItem is one request in the output.
type requestItem struct {
	meta
	requests.View
	Server string `json:"server"`
}

func (t *tka) doRequest(ctx context.Context, rf requestFlags) error {
	var reason signin.Reason
	if err := reason.UnmarshalText([]byte(rf.reason)); err != nil {
		return output.UsageErrorf("--reason: %v", err)
	}
	if err := checkFor(rf.period); err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	l, err := t.connect(first, rf.cluster)
	if err != nil {
		return err
	}
	asked, err := client.Call(first, l, requests.Create, requests.AskRequest{Role: rf.role, Namespaces: rf.namespaces, Period: httpapi.Duration(rf.period), Reason: reason})
	if err != nil {
		return err
	}
	v := asked.View
	if !rf.wait {
		return t.showRequest(l, v, output.ExitOK)
	}
	t.hint("Asked as %s. Waiting for %s; to approve: tka approve --cluster %s %s", v.ID, describeApprovals(v), output.ShellQuote(l.Info.Name), v.ID)
	if rf.limit > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, rf.limit)
		defer cancel()
	}
	v, err = t.awaitRequest(ctx, l, v)
	if err != nil {
		return err
	}
	code := output.ExitOK
	switch v.State {
	case requests.Approved, requests.Used:
	case requests.Pending:
		code = output.ExitNotReady
	default:
		code = output.ExitRefused
	}
	return t.showRequest(l, v, code)
}

// requestPoll is how long one call waits for a change of a request.
const requestPoll = 25 * time.Second

// awaitRequest waits until the request is no longer pending, or ctx ends.
func (t *tka) awaitRequest(ctx context.Context, l *client.Client, v requests.View) (requests.View, error) {
	for v.State == requests.Pending && ctx.Err() == nil {
		next, err := client.Call(ctx, l, requests.Read, requests.ReadRequest{ID: v.ID, Wait: httpapi.Duration(requestPoll)})
		switch {
		case ctx.Err() != nil:
			return v, nil
		case err != nil && output.ExitCode(err) != output.ExitUnreachable && output.ExitCode(err) != output.ExitNotReady:
			return v, err
		case err != nil: // a server that restarts
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		default:
			v = next
		}
	}
	return v, nil
}

// showRequest prints one request.
func (t *tka) showRequest(l *client.Client, v requests.View, code int) error {
	err := t.printResult(result{object: requestItem{newMeta("AccessRequest"), v, l.Base}, names: []string{"request/" + v.ID}, code: code, table: func(bool) {
		t.printLine("%s: %s for %s by %s is %s.", v.ID, signin.DescribeRoles(v.Bind), time.Duration(v.Period), v.Login, describeState(v))
	}})
	switch {
	case v.Mine && v.State == requests.Pending:
		t.hint("Send this to a person who may approve: tka approve --cluster %s %s", output.ShellQuote(l.Info.Name), v.ID)
	case v.Mine && (v.State == requests.Approved || v.State == requests.Used):
		t.hint("Use it: tka shell --cluster %s --request %s", output.ShellQuote(l.Info.Name), v.ID)
	}
	return err
}

// describeState returns the state of a request for a sentence.
func describeState(v requests.View) string {
	switch v.State {
	case requests.Pending:
		return "pending, with " + describeApprovals(v)
	case requests.Denied, requests.Cancelled:
		if v.Decision != nil {
			return strings.TrimSuffix(fmt.Sprintf("%s by %s: %s", v.State, v.Decision.Login, v.Decision.Reason), ": ")
		}
	case requests.Revoked:
		if v.Revoked != nil {
			return strings.TrimSuffix(fmt.Sprintf("revoked by %s: %s", v.Revoked.Login, v.Revoked.Reason), ": ")
		}
	}
	return string(v.State)
}

func describeApprovals(v requests.View) string {
	return fmt.Sprintf("%d of %d approvals", v.Counted, v.Needed)
}

// endRequest returns the command that cancels or revokes a request.
func (t *tka) endRequest(use, short string, op httpapi.Op[requests.EndRequest, requests.View]) *cobra.Command {
	var cluster, reason string
	cmd := &cobra.Command{
		Use: use + " ID", Short: short, Args: arguments(1, 1, "the id of a request"),
		Long:              short + ". The start of the id is enough, if no other request begins with it.",
		Example:           "  tka request " + use + " req-7f3a9c0b1d2e4f566778",
		ValidArgsFunction: t.completeRequests(&cluster),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, v, err := t.findRequest(cmd.Context(), cluster, args[0], 1)
			if err != nil {
				return err
			}
			var why signin.Reason
			if err := why.UnmarshalText([]byte(reason)); err != nil {
				return output.UsageErrorf("--reason: %v", err)
			}
			if v, err = client.Call(cmd.Context(), l, op, requests.EndRequest{ID: v.ID, Reason: why}); err != nil {
				return err
			}
			if v.Ending {
				t.hint("The access is ending.")
			}
			return t.showRequest(l, v, output.ExitOK)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; recorded")
	return t.clusterFlag(cmd, &cluster, requestClusterUsage, t.clusterNames)
}

// findRequest connects to a cluster and returns the one request whose id begins with the prefix of at least so many digits.
func (t *tka) findRequest(ctx context.Context, cluster, prefix string, digits int) (*client.Client, requests.View, error) {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return nil, requests.View{}, err
	}
	prefix = "req-" + strings.TrimPrefix(prefix, "req-")
	if len(prefix) < len("req-")+digits {
		return l, requests.View{}, output.UsageErrorf("%s is too short: give at least %d digits of the id", prefix, digits).Try("tka requests")
	}
	list, err := client.Call(ctx, l, requests.ListAll, requests.ListRequest{})
	if err != nil {
		return l, requests.View{}, err
	}
	fits := slices.DeleteFunc(list.Requests, func(v requests.View) bool { return !strings.HasPrefix(v.ID, prefix) })
	switch len(fits) {
	case 0:
		return l, requests.View{}, output.Errorf(output.ExitFailed, "%s has no request %s that you may see", l.Info.Name, prefix).Try("tka requests")
	case 1:
		return l, fits[0], nil
	}
	ids := mapped(fits, func(v requests.View) string { return v.ID })
	return l, requests.View{}, output.UsageErrorf("%s fits several requests: %s", prefix, strings.Join(ids, ", "))
}

// completeRequests completes the ids of requests.
func (t *tka) completeRequests(cluster *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		l, err := t.connect(ctx, *cluster)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := client.Call(ctx, l, requests.ListAll, requests.ListRequest{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return mapped(list.Requests, func(v requests.View) cobra.Completion { return v.ID }), cobra.ShellCompDirectiveNoFileComp
	}
}

// requestListFlags are the flags of requests.
type requestListFlags struct {
	cluster   string
	all, mine bool
}

func (t *tka) requests() *cobra.Command {
	var rf requestListFlags
	cmd := &cobra.Command{
		Use:   "requests",
		Short: "List access requests: yours, and those that you may decide",
		Long: `List your access requests and those that a rule of the tailnet's policy lets you decide, of one
cluster, or of all clusters that this machine signed in to. With --all, also of those that its
server knows. A cluster that does not answer is a row.`,
		Example: "  tka requests\n  tka requests --mine\n  tka requests --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			return t.doRequests(cmd.Context(), rf, f.Changed("cluster") || f.Changed("context") || t.server != "")
		},
	}
	cmd.Flags().BoolVar(&rf.all, "all", false, "ask all clusters that the server of the settings knows")
	cmd.Flags().BoolVar(&rf.mine, "mine", false, "only your own requests")
	return t.clusterFlag(cmd, &rf.cluster, requestClusterUsage, t.clusterNames)
}

func (t *tka) doRequests(ctx context.Context, rf requestListFlags, oneCluster bool) error {
	targets, err := t.signedInTargets()
	if rf.all {
		targets, err = t.allTargets(ctx)
	}
	if err != nil {
		return err
	}
	if oneCluster || len(targets) == 0 {
		targets = []target{{cluster: rf.cluster}}
	} else {
		t.selection.source = "" // it does not select what is shown
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) ([]requestItem, error) {
		l, err := one.connect(ctx, at.cluster)
		if err != nil {
			return nil, err
		}
		list, err := client.Call(ctx, l, requests.ListAll, requests.ListRequest{Mine: requests.Flag(rf.mine)})
		return mapped(list.Requests, func(v requests.View) requestItem { return requestItem{newMeta("AccessRequest"), v, l.Base} }), err
	})
	if len(all) == 1 && all[0].err != nil {
		return all[0].err
	}
	type item struct {
		requestItem
		Error string `json:"error,omitempty"`
	}
	var items []item
	var names []string
	var rows [][]output.Cell
	for _, o := range all {
		if o.err != nil {
			failed := item{requestItem{meta: newMeta("AccessRequest"), Server: o.server}, errorMessage(o.err)}
			failed.Cluster, failed.Approvals, failed.Bind = o.cluster, []requests.ApprovalView{}, []signin.Role{}
			items = append(items, failed)
			rows = append(rows, append(output.Row(o.cluster, "", "", "", ""), output.Colored(output.Red, "unknown"), output.Cell{Text: failed.Error}))
		}
		for _, it := range o.value {
			items, names = append(items, item{requestItem: it}), append(names, "request/"+it.ID)
			rows = append(rows, append(output.Row(it.Cluster, it.ID, it.Login, signin.DescribeRoles(it.Bind), time.Duration(it.Period).String(), string(it.State)), output.Cell{Text: it.Reason}))
		}
	}
	return t.printResult(result{object: newList("AccessRequestList", items), names: names, code: commonExitCode(all), table: func(bool) {
		if len(rows) == 0 {
			t.printLine("No requests.")
			return
		}
		t.writeTable(false, []string{"CLUSTER", "ID", "USER", "ACCESS", "FOR", "STATE", "REASON"}, nil, rows)
	}})
}

// minApproveDigits is how many digits of an id a decision needs.
const minApproveDigits = 8

// decideFlags are the flags of approve and deny.
type decideFlags struct {
	cluster, text, seen string
	period              time.Duration
}

func (t *tka) approve() *cobra.Command {
	var df decideFlags
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Approve the access request of another person",
		Long: `Show the access request of another person, and approve it. The approval is for exactly what the
command shows. It counts only as long as your own rule lets you approve: the server looks
you up again when the request is used.

Without a terminal, name the digest that "tka requests -o json" shows: a program approves only
what it has read.`,
		Example: "  tka approve req-7f3a9c0b1d2e4f566778\n  tka approve req-7f3a9c0b --for 30m -m release-only",
		Args:    arguments(1, 1, "the id of a request"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.decide(cmd.Context(), df, args[0], "Approve it?", func(ctx context.Context, l *client.Client, id, seen string, text signin.Reason) (requests.View, error) {
				return client.Call(ctx, l, requests.Approve, requests.ApproveRequest{ID: id, Seen: seen, Comment: text, Period: httpapi.Duration(df.period)})
			})
		},
	}
	cmd.Flags().DurationVar(&df.period, "for", 0, "shorten the period, such as 30m")
	cmd.Flags().StringVarP(&df.text, "message", "m", "", "remark for the requester")
	return t.decideFlags(cmd, &df)
}

func (t *tka) deny() *cobra.Command {
	var df decideFlags
	cmd := &cobra.Command{
		Use:     "deny ID",
		Short:   "Deny the access request of another person",
		Long:    "Show the access request of another person, and deny it. One denial is final.",
		Example: "  tka deny req-7f3a9c0b1d2e4f566778 --reason use-staging",
		Args:    arguments(1, 1, "the id of a request"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.decide(cmd.Context(), df, args[0], "Deny it?", func(ctx context.Context, l *client.Client, id, seen string, text signin.Reason) (requests.View, error) {
				return client.Call(ctx, l, requests.Deny, requests.DenyRequest{ID: id, Seen: seen, Reason: text})
			})
		},
	}
	cmd.Flags().StringVar(&df.text, "reason", "", "what the requester should know or do; required")
	cmd.Flags().Lookup("reason").Annotations = map[string][]string{mustBeSet: {}}
	return t.decideFlags(cmd, &df)
}

func (t *tka) decideFlags(cmd *cobra.Command, df *decideFlags) *cobra.Command {
	cmd.Flags().StringVar(&df.seen, "seen", "", "digest of the request that you saw, without a prompt")
	cmd.ValidArgsFunction = t.completeRequests(&df.cluster)
	return t.clusterFlag(cmd, &df.cluster, requestClusterUsage, t.clusterNames)
}

// decide shows a request, prompts, and sends the decision about what it showed.
func (t *tka) decide(ctx context.Context, df decideFlags, id, question string, send func(context.Context, *client.Client, string, string, signin.Reason) (requests.View, error)) error {
	var text signin.Reason
	if err := text.UnmarshalText([]byte(df.text)); err != nil {
		return output.UsageErrorf("the text: %v", err)
	}
	if err := checkFor(df.period); err != nil {
		return err
	}
	l, v, err := t.findRequest(ctx, df.cluster, id, minApproveDigits)
	if err != nil {
		return err
	}
	seen := cmp.Or(df.seen, v.Digest)
	if df.seen == "" {
		for _, line := range describeRequest(v) {
			fmt.Fprintln(t.Err, output.Escape(line))
		}
		if err := t.confirm(ctx, question, "--seen DIGEST"); err != nil {
			return err
		}
	}
	if v, err = send(ctx, l, v.ID, seen, text); err != nil {
		return err
	}
	return t.showRequest(l, v, output.ExitOK)
}

// describeRequest returns what a person who decides has to know. The login comes first, because only it is an identity.
func describeRequest(v requests.View) []string {
	lines := []string{
		"Request    " + v.ID + " in " + v.Cluster,
		"From       " + v.Login,
		"Device     " + v.Device + " (named by its owner)",
		"Access     " + signin.DescribeRoles(v.Bind),
		"For        " + time.Duration(v.Period).String() + " from its use",
		"Reason     " + v.Reason,
		"Approvals  " + fmt.Sprintf("%d of %d", v.Counted, v.Needed),
	}
	if len(v.Record) > 0 {
		lines = append(lines, "Recorded   "+strings.Join(v.Record, ", "))
	}
	return lines
}
