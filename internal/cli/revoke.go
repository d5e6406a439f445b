package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/gossip"
)

// revokeFlags are the flags of revoke.
type revokeFlags struct {
	client.Kubectl
	yes, dryRun, everywhere bool
	session, selector       string // with everywhere
}

func (t *tka) revoke() *cobra.Command {
	var rf revokeFlags
	cmd := &cobra.Command{
		Use:   "revoke NAME|LOGIN",
		Short: "End a person's sign-ins (for administrators)",
		Long: `End one sign-in by its name, or all sign-ins of a login. The command runs kubectl with your
own kubeconfig: you need the right to list and delete tkasignins there.

With --everywhere, end all sign-ins of a login in all clusters that the access server knows or
that this machine signed in to. For each cluster, the command uses the context that "tka login"
wrote: "tka login --all" writes them all. It names each cluster that it could not reach, and ends
with 0 only if it reached all.

The rights end immediately, and the API server refuses the token within 10 seconds. A person
who still has a grant can sign in again. To prevent that, remove the grant from the tailnet's
policy first.`,
		Example: "  tka revoke alice@example.com\n  tka revoke --yes alice-example-com-0f3c9a1b2d4e5f607182\n  tka revoke --everywhere --session admin alice@example.com",
		Args:    arguments(1, 1, "the name of a sign-in, or a login"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !rf.everywhere && (rf.session != "" || rf.selector != "") {
				return output.UsageErrorf("--session and --selector need --everywhere")
			}
			if rf.everywhere && rf.Context != "" {
				return output.UsageErrorf("--context and --everywhere cannot be combined")
			}
			return t.doRevoke(cmd.Context(), rf, args[0])
		},
	}
	adminFlags(cmd, &rf.Kubectl)
	f := cmd.Flags()
	f.BoolVar(&rf.yes, "yes", false, "do not prompt")
	f.BoolVar(&rf.dryRun, "dry-run", false, "show the sign-ins to end, and end none")
	f.BoolVar(&rf.everywhere, "everywhere", false, "end the sign-ins of a login in all clusters")
	f.StringVar(&rf.session, "session", "", "with --everywhere: session whose contexts to use (default: the default session)")
	selectorFlag(cmd, &rf.selector, "with --everywhere: only in clusters")
	return cmd
}

// A revocation is a sign-in to end, and what became of it.
type revocation struct {
	Cluster string `json:"cluster,omitempty"` // with --everywhere
	client.Session

	kubectl client.Kubectl
}

// revocationList is the output of revoke.
type revocationList struct {
	meta
	Items     []revocation       `json:"items"`
	Unreached []unreachedCluster `json:"unreached"` // clusters whose sign-ins are unknown
}

// An unreachedCluster is a cluster whose sign-ins the command could not list.
type unreachedCluster struct {
	Cluster string `json:"cluster"`
	Error   string `json:"error"`
	code    int
}

func (t *tka) doRevoke(ctx context.Context, rf revokeFlags, nameOrLogin string) error {
	list := revocationList{meta: newMeta("RevocationList"), Items: []revocation{}, Unreached: []unreachedCluster{}}
	var err error
	if rf.everywhere {
		err = t.findEverywhere(ctx, rf, nameOrLogin, &list)
	} else {
		// A login contains "@" and a sign-in's name never does, so one exact match is enough.
		list.Items, err = t.findSignins(ctx, rf.Kubectl, "", func(s client.Session) bool { return s.Name == nameOrLogin || s.Login == nameOrLogin })
	}
	if err != nil {
		return err
	}
	if len(list.Items) == 0 && len(list.Unreached) == 0 {
		return output.Errorf(output.ExitFailed, "No sign-in has that name or login: %s", nameOrLogin).Try("See all: tka signins")
	}
	if len(list.Items) > 0 && !rf.yes && !rf.dryRun {
		if err := t.confirm(ctx, revokeQuestion(list), "--yes"); err != nil {
			return err
		}
	}
	code := output.ExitOK
	for _, u := range list.Unreached {
		code = max(code, u.code)
	}
	for i := range list.Items {
		if rf.dryRun {
			break
		}
		s := &list.Items[i]
		err := s.kubectl.Revoke(ctx, s.Name)
		if s.Revoked = err == nil; err != nil {
			s.Error, code = errorMessage(err), max(code, output.ExitCode(err))
		}
	}
	names := mapped(list.Items, func(s revocation) string { return sessionName(s.Session) })
	return t.printResult(result{object: list, names: names, code: code, table: func(bool) { t.printRevocations(list, rf.dryRun) }})
}

// revokeQuestion returns the question before the end of sign-ins. It names the clusters that stay as they are.
func revokeQuestion(list revocationList) string {
	what := mapped(list.Items, func(s revocation) string {
		return fmt.Sprintf("%s of %s on %s", s.Role, s.Login, s.Device) + in(s.Cluster)
	})
	question := fmt.Sprintf("End %s: %s?", plural(int64(len(list.Items)), "sign-in", "sign-ins"), strings.Join(what, "; "))
	if len(list.Unreached) > 0 {
		question += fmt.Sprintf(" (not reached: %s)", strings.Join(mapped(list.Unreached, func(u unreachedCluster) string { return u.Cluster }), ", "))
	}
	return question
}

// in returns " in CLUSTER", or "" for the cluster of the current context.
func in(cluster string) string {
	if cluster == "" {
		return ""
	}
	return " in " + cluster
}

func (t *tka) printRevocations(list revocationList, dryRun bool) {
	for _, s := range list.Items {
		line := "Ended"
		switch {
		case dryRun:
			line = "Would end"
		case !s.Revoked:
			line = "Not ended, because " + s.Error + ":"
		}
		t.printLine("%s %s: %s of %s on %s%s.", line, s.Name, s.Role, s.Login, s.Device, in(s.Cluster))
	}
	for _, u := range list.Unreached {
		t.printLine("Not reached %s: %s.", u.Cluster, strings.TrimSuffix(u.Error, "."))
	}
	if len(list.Unreached) > 0 {
		t.hint("Sign-ins there are unknown and continue until their end. Run the command again when the clusters can be reached.")
	}
}

// findSignins lists the sign-ins that match with kubectl.
func (t *tka) findSignins(ctx context.Context, k client.Kubectl, cluster string, matches func(client.Session) bool) ([]revocation, error) {
	k = t.kubectl(k)
	all, err := k.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	found := []revocation{}
	for _, s := range all {
		if !matches(s) {
			continue
		}
		if !dialpolicy.IsNamespaceName(s.Name) {
			return nil, output.Errorf(output.ExitFailed, "The cluster has a sign-in with an invalid name; tka ended no sign-in").Try("tka signins")
		}
		found = append(found, revocation{cluster, s, k})
	}
	return found, nil
}

// findEverywhere adds to list the sign-ins of a login in all clusters, and the clusters that it could not ask.
func (t *tka) findEverywhere(ctx context.Context, rf revokeFlags, login string, list *revocationList) error {
	clusters, err := t.knownClusters(ctx, rf.selector)
	if err != nil {
		return err
	}
	if len(clusters) == 0 {
		return output.Errorf(output.ExitFailed, "No cluster matches, so tka ended no sign-in").Try("tka clusters")
	}
	v, err := t.loadKubeconfig()
	if err != nil {
		return err
	}
	for _, o := range forEach(ctx, t, clusters, func(ctx context.Context, one *tka, at target) ([]revocation, error) {
		k := rf.Kubectl
		var found bool
		if k.Context, found = v.ContextOf(kubeconfig.Signin{Cluster: at.cluster, Session: rf.session}); !found {
			return nil, output.Errorf(output.ExitFailed, "the kubeconfig has no context of tka for it; tka login --all writes one")
		}
		return one.findSignins(ctx, k, at.cluster, func(s client.Session) bool { return s.Login == login })
	}) {
		if o.err != nil {
			list.Unreached = append(list.Unreached, unreachedCluster{o.cluster, errorMessage(o.err), output.ExitCode(o.err)})
		}
		list.Items = append(list.Items, o.value...)
	}
	return nil
}

// knownClusters returns the clusters that the access server knows, except those that left, and those that this machine signed in to,
// by name. A cluster whose server is dead can still be reached with kubectl.
func (t *tka) knownClusters(ctx context.Context, selector string) ([]target, error) {
	selected, err := parseSelector(selector)
	if err != nil {
		return nil, err
	}
	_, d, err := t.askDirectory(ctx)
	if err != nil {
		return nil, err
	}
	shown, _ := d.Filter(true, selected)
	var clusters []target
	for _, e := range shown {
		if e.State != gossip.Gone {
			clusters = append(clusters, target{e.Name, e.URL})
		}
	}
	signedIn, err := t.signedInTargets()
	if err != nil {
		return nil, err
	}
	for _, at := range signedIn { // their labels are known only if the server lists them
		if selector == "" && !slices.ContainsFunc(clusters, func(c target) bool { return c.cluster == at.cluster }) {
			clusters = append(clusters, at)
		}
	}
	slices.SortFunc(clusters, func(a, b target) int { return strings.Compare(a.cluster, b.cluster) })
	return slices.CompactFunc(clusters, func(a, b target) bool { return a.cluster == b.cluster }), nil
}
