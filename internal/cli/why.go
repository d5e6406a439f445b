package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// whyFlags are the flags of why.
type whyFlags struct {
	cluster       string
	namespace     string
	allNamespaces bool
	subresource   string
}

func (t *tka) why() *cobra.Command {
	var wf whyFlags
	cmd := &cobra.Command{
		Use:   "why [VERB RESOURCE[/NAME]]",
		Short: "Explain your identity, your grants and your rights",
		Long: `Show your identity as the server sees it, the rules of the tailnet's policy that match, the
rule that a login would use, and your sign-in. With a verb and a resource, ask the API
server whether the sign-in allows that. If not, show which granted role allows it, the least
first, from the rules of the roles.

RESOURCE is a plural, a singular or a short name, optionally with ".GROUP" after it, or a
path that begins with "/". The exit code is 0 if allowed, and 3 if refused.`,
		Example: "  tka why\n  tka why create deployments -n shop\n  tka why get pods/web --subresource log",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return output.UsageErrorf("%s takes a verb and a resource; %q is only one of them", cmd.CommandPath(), args[0]).Try("tka why get pods")
			}
			return arguments(0, 2, "a verb and a resource")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return t.doWhy(cmd.Context(), wf, args) },
	}
	f := cmd.Flags()
	f.StringVarP(&wf.namespace, "namespace", "n", "", "namespace (default: that of the sign-in's context)")
	f.BoolVarP(&wf.allNamespaces, "all-namespaces", "A", false, "check all namespaces")
	f.StringVar(&wf.subresource, "subresource", "", "subresource, such as log or scale")
	return t.clusterFlag(cmd, &wf.cluster, "cluster; this machine or its server must know it", t.clusterNames)
}

func (t *tka) whoami() *cobra.Command {
	var sf signinFlags
	return t.signinFlags(&cobra.Command{
		Use:   "whoami",
		Short: "Show who you are to a cluster's server, and your sign-in",
		Long: `Show your identity as the server of a cluster sees it, and the sign-in that other commands in
this terminal are about. You need no grant for it. "tka why" also shows your grants.`,
		Example: "  tka whoami\n  tka whoami --cluster prod-eu -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doWhoami(cmd.Context(), sf) },
	}, &sf, "cluster; this machine or its server must know it", t.clusterNames)
}

// whoamiInfo is the output of whoami.
type whoamiInfo struct {
	meta
	Server  string                `json:"server"`
	Cluster string                `json:"cluster"` // "": the server refuses to report it
	Caller  signin.CallerIdentity `json:"caller"`
	OIDC    *signin.TokenIdentity `json:"oidc,omitempty"` // of the token that tka sent
	Session string                `json:"session,omitempty"`
	SignIn  *signin.Status        `json:"signIn"`
}

func (t *tka) doWhoami(ctx context.Context, sf signinFlags) error {
	l, _, err := t.connectOrDenied(ctx, sf.cluster)
	if err != nil {
		return err
	}
	who, err := client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{Session: signin.Session(sf.session)})
	if err != nil {
		return err
	}
	info := whoamiInfo{newMeta("Whoami"), l.Base, l.Info.Name, who.Caller, who.Token, sf.session, who.Signin}
	return t.printResult(result{object: info, names: []string{cmp.Or(who.Caller.Login, who.Caller.Node)}, table: func(bool) {
		t.printCaller(who.Caller)
		if who.Token != nil {
			t.printLine("The OIDC token of %s names %s.", who.Token.Issuer, who.Token.Subject)
		}
		t.printSignin(info.Cluster, who.Signin)
	}})
}

// printCaller prints who the server sees.
func (t *tka) printCaller(c signin.CallerIdentity) {
	if c.Login != "" {
		t.printLine("You are %s on %s, in the tailnet %s.", c.Login, c.Node, c.Tailnet)
	} else {
		t.printLine("This is the node %s with the tags %s, in the tailnet %s, not a person.", c.Node, strings.Join(c.Tags, ", "), c.Tailnet)
	}
}

// printSignin prints the sign-in of this terminal; nil: there is none.
func (t *tka) printSignin(cluster string, s *signin.Status) {
	to := ""
	if cluster != "" {
		to = " to " + cluster
	}
	if s == nil {
		t.printLine("This device is not signed in%s.", to)
		return
	}
	session := ""
	if s.Session != "" {
		session = ", in the session " + string(s.Session)
	}
	t.printLine("This device is signed in%s with %s until %s%s: %s.", to, describeAccess(s.Role, s.Namespaces, s.Bind), t.formatTime(s.Until), session, s.State)
	if len(s.Record) > 0 {
		t.printLine("Of this sign-in, %s.", describeRecorded(s.Record))
	}
}

// whyInfo is the output of why.
type whyInfo struct {
	meta
	Server  string `json:"server"`
	Cluster string `json:"cluster"` // "": the server refuses to report it
	Proved  bool   `json:"proved"`  // the server's key is known, so the server proved its identity
	signin.Whoami
	Question *client.AccessQuestion `json:"question"`
	Answer   *client.AccessAnswer   `json:"answer"`
	Advice   []string               `json:"advice"`
}

func (t *tka) doWhy(ctx context.Context, wf whyFlags, args []string) error {
	if wf.allNamespaces && wf.namespace != "" {
		return output.UsageErrorf("--namespace and --all-namespaces cannot be combined")
	}
	if wf.namespace != "" && !dialpolicy.IsNamespaceName(wf.namespace) {
		return output.UsageErrorf("--namespace is %q, which is not the name of a namespace", wf.namespace)
	}
	l, denied, err := t.connectOrDenied(ctx, wf.cluster)
	if err != nil {
		return err
	}
	who, err := client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{Session: t.selection.session})
	if err != nil {
		return err
	}
	info := whyInfo{meta: newMeta("Why"), Server: l.Base, Cluster: l.Info.Name, Proved: !l.Key.IsZero(), Whoami: who, Advice: nonNil(who.Decision.Advice)}
	allowed := who.Decision.Allowed && denied == nil
	var checkErr error
	if len(args) == 2 && denied == nil {
		if checkErr = t.checkPermission(ctx, l, wf, args, &info); checkErr == nil {
			allowed = info.Answer.Allowed
		}
	}
	err = t.printResult(result{object: info, names: []string{who.Caller.Login}, table: func(bool) { t.printWhy(info) }})
	switch {
	case err != nil:
		return err
	case checkErr != nil:
		return checkErr
	case !allowed:
		return output.SilentExit(output.ExitRefused)
	}
	return nil
}

// checkPermission checks the permission at the API server, with the sign-in's token.
func (t *tka) checkPermission(ctx context.Context, l *client.Client, wf whyFlags, args []string, info *whyInfo) error {
	mode, err := t.usedMode(l, t.selection.session)
	if err != nil {
		return err
	}
	g, err := l.Access(ctx, t.selection.session, mode)
	if err != nil {
		return err
	}
	api, err := client.NewKubeAPI(g.Server, g.CA, g.Token, t.tailscale)
	if err != nil {
		return output.Errorf(output.ExitFailed, "The request to the API server %s failed: %v", g.Server, err).Because(err)
	}
	q := client.AccessQuestion{Verb: args[0], Resource: args[1], Subresource: wf.subresource, Namespace: wf.namespace}
	if !strings.HasPrefix(q.Resource, "/") {
		word, name, _ := strings.Cut(q.Resource, "/")
		q.Name = name
		have, err := api.FindResource(ctx, word)
		switch {
		case errors.Is(err, client.ErrNoResource):
			t.warn("%s has no resource %q; the answer is for that name nevertheless", g.Cluster, word)
			q.Resource, q.Group, _ = strings.Cut(word, ".")
			have.Namespaced = true
		case err != nil:
			return apiError(g.Server, err)
		default:
			q.Resource, q.Group = have.Name, have.Group
		}
		q.Namespace = cmp.Or(q.Namespace, g.Namespace, "default")
		if !have.Namespaced || wf.allNamespaces {
			q.Namespace = ""
		}
	}
	answer, err := api.CheckAccess(ctx, q)
	if err != nil {
		return apiError(g.Server, err)
	}
	info.Question, info.Answer = &q, &answer
	if answer.Allowed {
		return nil
	}
	advice, err := adviseRoles(ctx, l, info.Whoami, q)
	if len(advice) == 0 {
		advice = []string{fmt.Sprintf("Ask for a grant with a role that may %s.", q)}
	}
	info.Advice = append(info.Advice, advice...)
	return err
}

// apiError returns the error for a failed request to the API server.
func apiError(server string, err error) error {
	r, answered := errors.AsType[*client.KubeAPIError](err)
	switch {
	case answered && r.Status == http.StatusUnauthorized:
		return output.Errorf(output.ExitRefused, "The API server %s rejects the token: %v", server, err).Because(err).Try("tka login").Try("tka doctor")
	case answered:
		return output.Errorf(output.ExitRefused, "The API server %s refused the request: %v", server, err).Because(err).Try("tka doctor")
	case errors.Is(err, context.DeadlineExceeded):
		return output.Errorf(output.ExitNotReady, "The API server %s did not answer in time", server).Because(err).Try("tka doctor").Try("Allow more time: --timeout 2m")
	}
	return output.Errorf(output.ExitUnreachable, "The API server %s cannot be reached: %v", server, err).Because(err).Try("tka doctor")
}

// adviseRoles returns the login commands for the granted roles that allow what was refused, the least first. A server without the
// operation does not say which roles allow it, so all other roles may.
func adviseRoles(ctx context.Context, l *client.Client, w signin.Whoami, q client.AccessQuestion) (advice []string, err error) {
	path := ""
	if strings.HasPrefix(q.Resource, "/") {
		path, q = q.Resource, client.AccessQuestion{Verb: q.Verb}
	}
	granted, err := client.Call(ctx, l, signin.ListRoles, signin.RolesRequest{Verb: signin.Word(q.Verb), Group: signin.Word(q.Group), Resource: signin.Word(q.Resource),
		Subresource: signin.Word(q.Subresource), Name: signin.Word(q.Name), Namespace: signin.Word(q.Namespace), Path: signin.Word(path)})
	if problem.CodeOf(err) == problem.NotFound {
		for _, r := range w.Rules {
			if r.Problem == "" && (w.Signin == nil || r.Role != w.Signin.Role) {
				advice = append(advice, "You have another granted role that may allow it: "+loginCommand(cmp.Or(r.Name, r.Role), r.Namespaces))
			}
		}
		return advice, nil
	}
	for _, r := range granted.Roles {
		if r.Allows && !isSigninOf(w.Signin, r) {
			condition := ""
			if r.Selector != "" {
				condition = " if the namespace has the labels " + r.Selector
			}
			advice = append(advice, fmt.Sprintf("Your role %s allows it%s: %s", r.Role, condition, loginCommand(cmp.Or(r.Name, r.Role), r.Namespaces)))
		}
	}
	return advice, err
}

// isSigninOf reports whether the sign-in already has all that the role gives.
func isSigninOf(s *signin.Status, r signin.GrantedRole) bool {
	return s != nil && s.Role == r.Role && slices.Equal(s.Namespaces, r.Namespaces) && signin.DescribeRoles(s.Bind) == signin.DescribeRoles(r.Bind)
}

// loginCommand returns the command that signs in with a role.
func loginCommand(role string, namespaces []string) string {
	line := "tka login --role " + output.ShellQuote(role)
	for _, ns := range namespaces {
		line += " --namespace " + output.ShellQuote(ns)
	}
	return line
}

func (t *tka) printWhy(info whyInfo) {
	t.printCaller(info.Caller)
	switch {
	case info.Cluster != "":
		t.printLine("The server %s serves %s.", info.Server, info.Cluster)
	case info.Proved:
		t.printLine("The server %s does not report its cluster.", info.Server)
	default:
		t.printLine("The server %s does not report its cluster, so it could not prove its identity.", info.Server)
	}
	if len(info.Rules) > 0 {
		var rows [][]output.Cell
		for _, r := range info.Rules {
			var note output.Cell
			switch {
			case r.Problem != "":
				note = output.Colored(output.Red, "not usable: "+r.Problem)
			case r.Chosen:
				note = output.Colored(output.Green, "chosen")
			}
			if r.OnUse && r.Problem == "" {
				note.Text = strings.TrimPrefix(note.Text+", also on first use", ", ")
			}
			namespaces := describePlaces(r.Namespaces, r.Bind)
			rows = append(rows, append(output.Row(r.Role, output.HumanDuration(time.Duration(r.Period)), fmt.Sprint(r.Priority), namespaces), note))
		}
		t.writeTable(false, []string{"ROLE", "PERIOD", "PRIORITY", "NAMESPACES", ""}, nil, rows)
	}
	t.printLine("%s", info.Decision.Message)
	t.printSignin("", info.Signin)
	if a := info.Answer; a != nil {
		decision := t.paint(t.Out, output.Red, "refused")
		if a.Allowed {
			decision = t.paint(t.Out, output.Green, "allowed")
		}
		why := a.Reason
		if a.EvaluationError != "" {
			why = strings.TrimPrefix(why+"; "+a.EvaluationError, "; ")
		}
		if why != "" {
			why = " (" + why + ")"
		}
		fmt.Fprintf(t.Out, "%s: %s%s\n", output.Escape(info.Question.String()), decision, output.Escape(why))
	}
	for _, line := range info.Advice[:min(len(info.Advice), output.MaxAdvice)] {
		t.printLine("try: %s", line)
	}
}

// notSignedIn reports whether err means that there is no sign-in.
func notSignedIn(err error) bool {
	return problem.CodeOf(err) == problem.NotSignedIn
}
