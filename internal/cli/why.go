package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/kubeapi"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// whyFlags are the flags of why.
type whyFlags struct {
	cluster     string
	namespace   string
	everywhere  bool
	subresource string
}

func (t *tka) why() *cobra.Command {
	var wf whyFlags
	cmd := &cobra.Command{
		Use:   "why [VERB RESOURCE[/NAME]]",
		Short: "Show what the server sees of you, what it decides, and what you may do",
		Long: `Show who the server says you are, which rules of the tailnet's policy match, which one a
login would use, and what you are signed in with. With a verb and a resource, ask the API
server whether the sign-in may do that, and say what to ask for if not.

RESOURCE is a plural, a singular or a short name, with ".GROUP" behind it or not, or a
path that begins with "/". Allowed is exit 0, refused is exit 3.`,
		Example: "  tka why\n  tka why create deployments -n shop\n  tka why get pods/web --subresource log",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return fault.Usage("%s takes a verb and a resource, and %q is only one of them", cmd.CommandPath(), args[0]).Try("tka why get pods")
			}
			return arguments(0, 2, "a verb and a resource")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return t.doWhy(cmd.Context(), wf, args) },
	}
	f := cmd.Flags()
	f.StringVar(&wf.cluster, "cluster", "", "cluster, known to this machine or to its server")
	f.StringVarP(&wf.namespace, "namespace", "n", "", "namespace (default: that of the sign-in's context)")
	f.BoolVarP(&wf.everywhere, "all-namespaces", "A", false, "ask about all namespaces")
	f.StringVar(&wf.subresource, "subresource", "", "subresource, such as log or scale")
	t.complete(cmd, "cluster", t.clusterNames)
	return cmd
}

// whyInfo is the output of why.
type whyInfo struct {
	meta
	Server  string `json:"server"`
	Cluster string `json:"cluster"` // "": the server refuses to report it
	Proved  bool   `json:"proved"`  // the server's key is known, so the server proved its identity
	signin.Whoami
	Question *kubeapi.Question `json:"question"`
	Answer   *kubeapi.Answer   `json:"answer"`
	Advice   []string          `json:"advice"`
}

func (t *tka) doWhy(ctx context.Context, wf whyFlags, args []string) error {
	if wf.everywhere && wf.namespace != "" {
		return fault.Usage("--namespace and --all-namespaces are opposites")
	}
	if wf.namespace != "" && !reach.IsNamespace(wf.namespace) {
		return fault.Usage("--namespace is %q, which is not the name of a namespace", wf.namespace)
	}
	l, denied, err := t.approach(ctx, wf.cluster)
	if err != nil {
		return err
	}
	who, err := link.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{})
	if err != nil {
		return err
	}
	info := whyInfo{meta: kind("Why"), Server: l.Base, Cluster: l.Info.Name, Proved: !l.Key.IsZero(), Whoami: who, Advice: list(who.Decision.Advice)}
	allowed := who.Decision.Allowed && denied == nil
	var unasked error
	if len(args) == 2 && denied == nil {
		if unasked = t.askAPI(ctx, l, wf, args, &info); unasked == nil {
			allowed = info.Answer.Allowed
		}
	}
	err = t.show(answer{object: info, names: []string{who.Caller.Login}, table: func(bool) { t.tellWhy(info) }})
	switch {
	case err != nil:
		return err
	case unasked != nil:
		return unasked
	case !allowed:
		return fault.Child(fault.Refused)
	}
	return nil
}

// askAPI checks the permission at the API server, with the sign-in's token.
func (t *tka) askAPI(ctx context.Context, l *link.Link, wf whyFlags, args []string, info *whyInfo) error {
	g, err := l.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	api, err := kubeapi.New(g.Server, g.CA, g.Token)
	if err != nil {
		return fault.New(fault.Failed, "The API server %s cannot be asked: %v", g.Server, err).Because(err)
	}
	q := kubeapi.Question{Verb: args[0], Resource: args[1], Subresource: wf.subresource, Namespace: wf.namespace}
	if !strings.HasPrefix(q.Resource, "/") {
		word, name, _ := strings.Cut(q.Resource, "/")
		q.Name = name
		have, err := api.Find(ctx, word)
		switch {
		case errors.Is(err, kubeapi.ErrNoResource):
			t.warn("%s has no resource %q; the answer is about the name all the same", g.Cluster, word)
			q.Resource, q.Group, _ = strings.Cut(word, ".")
			have.Namespaced = true
		case err != nil:
			return apiFault(g.Server, err)
		default:
			q.Resource, q.Group = have.Name, have.Group
		}
		switch {
		case !have.Namespaced || wf.everywhere:
			q.Namespace = ""
		case q.Namespace == "" && g.Namespace != "":
			q.Namespace = g.Namespace
		case q.Namespace == "":
			q.Namespace = "default"
		}
	}
	answer, err := api.May(ctx, q)
	if err != nil {
		return apiFault(g.Server, err)
	}
	info.Question, info.Answer = &q, &answer
	if !answer.Allowed {
		info.Advice = append(info.Advice, otherRoles(info.Whoami)...)
		info.Advice = append(info.Advice, fmt.Sprintf("Ask for a grant with a role that may %s.", q))
	}
	return nil
}

// apiFault returns the fault for a failed request to the API server.
func apiFault(server string, err error) error {
	if r, ok := errors.AsType[*kubeapi.Refusal](err); ok {
		if r.Status == 401 {
			return fault.New(fault.Refused, "The API server %s does not take the token: %v", server, err).Because(err).Try("tka login").Try("tka doctor")
		}
		return fault.New(fault.Refused, "The API server %s refuses: %v", server, err).Because(err).Try("tka doctor")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.NotReady, "The API server %s did not answer in time", server).Because(err).Try("tka doctor").Try("Give it longer: --timeout 2m")
	}
	return fault.New(fault.Unreachable, "The API server %s cannot be reached: %v", server, err).Because(err).Try("tka doctor")
}

// otherRoles returns the login commands for roles other than the present one.
func otherRoles(w signin.Whoami) (advice []string) {
	for _, r := range w.Rules {
		if r.Problem != "" || w.Signin != nil && r.Role == w.Signin.Role {
			continue
		}
		line := "Another role is granted to you, which may allow it: tka login --role " + screen.Word(r.Role)
		for _, ns := range r.Namespaces {
			line += " --namespace " + screen.Word(ns)
		}
		advice = append(advice, line)
	}
	return advice
}

func (t *tka) tellWhy(info whyInfo) {
	say := func(format string, args ...any) { fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf(format, args...))) }
	c := info.Caller
	switch {
	case c.Login != "":
		say("You are %s on %s, in the tailnet %s.", c.Login, c.Node, c.Tailnet)
	default:
		say("This is the node %s with the tags %s, in the tailnet %s, and no person.", c.Node, strings.Join(c.Tags, ", "), c.Tailnet)
	}
	switch {
	case info.Cluster != "":
		say("The server %s serves %s.", info.Server, info.Cluster)
	case info.Proved:
		say("The server %s does not say which cluster it serves.", info.Server)
	default:
		say("The server %s does not say which cluster it serves, so it could not prove that it is the one.", info.Server)
	}
	if len(info.Rules) > 0 {
		var rows [][]screen.Cell
		for _, r := range info.Rules {
			namespaces, mark := "all", screen.Cell{}
			if len(r.Namespaces) > 0 {
				namespaces = strings.Join(r.Namespaces, ", ")
			}
			switch {
			case r.Problem != "":
				mark = screen.Colored(screen.Red, "cannot be used: "+r.Problem)
			case r.Chosen:
				mark = screen.Colored(screen.Green, "chosen")
			}
			rows = append(rows, append(screen.Row(r.Role, screen.Short(time.Duration(r.Period)), fmt.Sprint(r.Priority), namespaces), mark))
		}
		t.writeTable(t.Out, []string{"ROLE", "PERIOD", "PRIORITY", "NAMESPACES", ""}, rows)
	}
	say("%s", info.Decision.Message)
	if s := info.Signin; s != nil {
		say("This device is signed in with the role %s in %s until %s: %s.", s.Role, whole(s.Namespaces), t.moment(s.Until), s.State)
	} else {
		say("This device is not signed in.")
	}
	if a := info.Answer; a != nil {
		verdict := t.paint(t.Out, screen.Red, "refused")
		if a.Allowed {
			verdict = t.paint(t.Out, screen.Green, "allowed")
		}
		why := a.Reason
		if a.Trouble != "" {
			why = strings.TrimPrefix(why+"; "+a.Trouble, "; ")
		}
		if why != "" {
			why = " (" + why + ")"
		}
		fmt.Fprintf(t.Out, "%s: %s%s\n", screen.Safe(info.Question.String()), verdict, screen.Safe(why))
	}
	for _, line := range info.Advice[:min(len(info.Advice), fault.MaxAdvice)] {
		say("try: %s", line)
	}
}

// notSignedIn reports whether err means that there is no sign-in.
func notSignedIn(err error) bool {
	p, ok := errors.AsType[*problem.Error](err)
	return ok && p.Code == problem.NotSignedIn
}
