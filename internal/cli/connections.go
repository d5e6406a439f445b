package cli

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// connectionFlags are the flags of connections and of connections cut.
type connectionFlags struct {
	plane          mcpFlags
	cluster, login string
	all            bool
	reason         string
	end            bool
}

func (t *tka) connections() *cobra.Command {
	var cf connectionFlags
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "List the open streams through the access proxy, and cut one",
		Long: `List your open streams through the access proxies of a cluster: watches, logs, exec, attach and
port-forward, from all of your devices. The proxy identifies you by your connection.

With --all, list the streams of all people through the operator plane, if your role there allows
it. A proxy that does not answer is named, and the command then does not end with 0.`,
		Example: "  tka connections\n  tka connections --all --login bob@example.com\n  tka connections cut 9392fdf7-363b-4154-8550-6808e60c92c3 --reason mistake",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.listConnections(cmd.Context(), cf) },
	}
	cmd.Flags().BoolVar(&cf.all, "all", false, "list the streams of all people, through the operator plane")
	cmd.Flags().StringVar(&cf.login, "login", "", "with --all: only the streams of this login")
	cf.plane.addPlaneFlags(cmd.PersistentFlags())
	cmd.AddCommand(t.cutConnection())
	return t.clusterFlag(cmd, &cf.cluster, "cluster; this machine or its server must know it", t.clusterNames)
}

func (t *tka) cutConnection() *cobra.Command {
	var cf connectionFlags
	cmd := &cobra.Command{
		Use:   "cut ID --reason REASON",
		Short: "Cut an open stream",
		Long: `End one open stream. The person whose stream it is reads the reason. An ID with a slash, as
"tka connections --all" shows it, is cut through the operator plane; the roles that may revoke
a sign-in may cut its streams.

The sign-in continues, so the program may connect again. With --end, the sign-in ends too, and
all of its streams with it.`,
		Example: "  tka connections cut 9392fdf7-363b-4154-8550-6808e60c92c3 --reason mistake\n  tka connections cut --end east-api.tail1234.ts.net/9392fdf7-363b-4154-8550-6808e60c92c3 --reason lost-laptop",
		Args:    arguments(1, 1, "the ID of a stream"),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.doCut(cmd.Context(), cf, args[0]) },
	}
	cmd.Flags().StringVar(&cf.reason, "reason", "", "why, at most 200 characters (required)")
	cmd.Flags().BoolVar(&cf.end, "end", false, "end the sign-in too")
	cf.plane.addPlaneFlags(cmd.Flags())
	return t.clusterFlag(cmd, &cf.cluster, "cluster; this machine or its server must know it", t.clusterNames)
}

// connectionList is the output of connections.
type connectionList struct {
	meta
	Items     []plane.Connection `json:"items"`
	LeftOff   int                `json:"leftOff"`   // streams beyond the limit
	Unreached []unreachedProxy   `json:"unreached"` // proxies whose streams are unknown
}

// An unreachedProxy is an access proxy that gave no answer.
type unreachedProxy struct {
	Proxy string `json:"proxy"`
	Error string `json:"error"`
	code  int
}

func (t *tka) listConnections(ctx context.Context, cf connectionFlags) error {
	list := connectionList{meta: newMeta("ConnectionList"), Items: []plane.Connection{}, Unreached: []unreachedProxy{}}
	var err error
	if cf.all {
		err = t.allConnections(ctx, cf, &list)
	} else if cf.login != "" {
		return output.UsageErrorf("--login needs --all")
	} else {
		err = t.ownConnections(ctx, cf, &list)
	}
	if err != nil {
		return err
	}
	code := output.ExitOK
	for _, u := range list.Unreached {
		code = max(code, u.code)
		t.warn("the access proxy %s gave no answer, so its streams are unknown: %s", u.Proxy, u.Error)
	}
	if list.LeftOff > 0 {
		t.warn("the list leaves off %s", plural(int64(list.LeftOff), "stream", "streams"))
	}
	return t.printResult(result{object: list, code: code, names: mapped(list.Items, func(c plane.Connection) string { return c.ID }), table: func(wide bool) {
		if len(list.Items) == 0 && len(list.Unreached) == 0 {
			t.hint("There are no open streams.")
			return
		}
		rows := mapped(list.Items, func(c plane.Connection) []output.Cell {
			what := strings.TrimSuffix(c.Resource+" "+c.Name, " ")
			return output.Row(c.Login, c.Device, c.Session, c.Kind, c.Namespace, what, t.timeSince(c.Since), strconv.FormatInt(c.Bytes, 10), c.ID, c.Cluster, c.Signin, c.Recording)
		})
		t.writeTable(wide, []string{"USER", "DEVICE", "SESSION", "KIND", "NAMESPACE", "WHAT", "OPEN", "BYTES", "ID"}, []string{"CLUSTER", "SIGN-IN", "RECORDING"}, rows)
	}})
}

// timeSince returns how long ago a time was.
func (t *tka) timeSince(at time.Time) string {
	return max(t.Now().Sub(at), 0).Round(time.Second).String()
}

// allConnections adds the streams of all people, which the plane knows.
func (t *tka) allConnections(ctx context.Context, cf connectionFlags, list *connectionList) error {
	var answer plane.Envelope[[]plane.Connection]
	ff := &fleetFlags{plane: cf.plane}
	if err := t.callPlane(ctx, ff, plane.ListConnections.Pattern, plane.ListConnections.MaxResponse, plane.ConnectionsRequest{Login: plane.Text(cf.login)}, &answer); err != nil {
		return err
	}
	for _, s := range answer.Meta.Sources {
		if s.Status != plane.StatusOK {
			list.Unreached = append(list.Unreached, unreachedProxy{strings.TrimPrefix(s.Name, "proxy:"), s.Message, output.ExitUnreachable})
		}
	}
	list.Items = nonNil(answer.Data)
	if p := answer.Meta.Page; p != nil && p.Total != nil {
		list.LeftOff = *p.Total - len(list.Items)
	}
	return nil
}

// eachProxy calls do for each access proxy that the server of a cluster proved.
func (t *tka) eachProxy(ctx context.Context, cluster string, do func(p signin.ProxyServer, name string, l *client.Client)) error {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return err
	}
	if len(l.Info.Proxies) == 0 {
		return output.Errorf(output.ExitFailed, "The cluster %s names no access proxy, so it has no open streams to show", l.Info.Name)
	}
	for _, p := range l.Info.Proxies {
		u, err := url.Parse(p.URL)
		if err != nil {
			return l.InvalidResponse("cluster-info", err)
		}
		do(p, u.Hostname(), l)
	}
	return nil
}

// ownConnections adds the caller's streams at each proxy of a cluster.
func (t *tka) ownConnections(ctx context.Context, cf connectionFlags, list *connectionList) error {
	return t.eachProxy(ctx, cf.cluster, func(p signin.ProxyServer, name string, l *client.Client) {
		got, err := connections.ListStreams.Call(ctx, l.AccessProxy(p), connections.ListRequest{})
		if err != nil {
			f := proxyError(err, name)
			list.Unreached = append(list.Unreached, unreachedProxy{name, f.Message, f.Code})
			return
		}
		list.LeftOff += got.LeftOff
		for _, s := range got.Streams {
			list.Items = append(list.Items, plane.Connection{ID: s.ID, Proxy: name, Cluster: got.Cluster, Stream: s.ID, Kind: s.Kind, Login: s.Login, Tailnet: s.Tailnet, Device: s.Device,
				Session: s.Session, Signin: s.Signin, Group: s.Group, Resource: s.Resource, Namespace: s.Namespace, Name: s.Name, Since: s.Since, Bytes: s.Bytes,
				Recording: s.Recording, Cut: plane.Action{Allowed: true}})
		}
	})
}

// proxyError returns the error of a call to an access proxy.
func proxyError(err error, name string) *output.Error {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		return output.FromProblem(p)
	}
	return output.Errorf(output.ExitUnreachable, "the access proxy %s did not answer: %v", name, err).Because(err)
}

// cutResult is the output of connections cut.
type cutResult struct {
	meta
	Connection plane.Connection `json:"connection"`
	Ended      bool             `json:"ended"` // the sign-in ends too
}

func (t *tka) doCut(ctx context.Context, cf connectionFlags, id string) error {
	if strings.TrimSpace(cf.reason) == "" {
		return output.UsageErrorf("connections cut needs --reason").Try("tka connections cut %s --reason \"why\"", id)
	}
	out := cutResult{meta: newMeta("ConnectionCut"), Ended: cf.end}
	var err error
	if proxy, stream, ok := strings.Cut(id, "/"); ok {
		out.Connection, err = t.cutThroughPlane(ctx, cf, proxy, stream)
	} else {
		out.Connection, err = t.cutOwn(ctx, cf, id)
	}
	if err != nil {
		return err
	}
	return t.printResult(result{object: out, names: []string{out.Connection.ID}, table: func(bool) {
		c := out.Connection
		t.printLine("Cut the %s of %s on %s.", c.Kind, c.Login, c.Device)
		if out.Ended {
			t.printLine("The sign-in %s ends too.", c.Signin)
		}
	}})
}

// cutThroughPlane cuts a stream of any person.
func (t *tka) cutThroughPlane(ctx context.Context, cf connectionFlags, proxy, stream string) (plane.Connection, error) {
	ff := &fleetFlags{plane: cf.plane}
	var answer plane.Envelope[plane.CutConnection]
	if err := t.callPlane(ctx, ff, plane.CutOne.Pattern, 0, plane.CutRequest{Proxy: proxy, Stream: stream, Reason: plane.Reason(cf.reason)}, &answer); err != nil {
		return plane.Connection{}, err
	}
	c := answer.Data.Connection
	if !cf.end {
		return c, nil
	}
	var revoked plane.Envelope[plane.Revocation]
	err := t.callPlane(ctx, ff, plane.RevokeSignin.Pattern, 0, plane.RevokeRequest{Namespace: client.SigninNamespace, Name: c.Signin, Reason: plane.Reason(cf.reason)}, &revoked)
	if f, ok := errors.AsType[*output.Error](err); ok {
		return c, f.Try("The stream is cut, but its sign-in continues. End it in the cluster %s: tka revoke %s", c.Cluster, c.Signin)
	}
	return c, err
}

// cutOwn cuts a stream of the caller at the proxy that has it.
func (t *tka) cutOwn(ctx context.Context, cf connectionFlags, id string) (c plane.Connection, err error) {
	var found *connections.Cut
	var failed *output.Error
	var cluster, node string
	err = t.eachProxy(ctx, cf.cluster, func(p signin.ProxyServer, name string, l *client.Client) {
		if found != nil {
			return
		}
		done, err := connections.CutStream.Call(ctx, l.AccessProxy(p), connections.CutRequest{ID: id, Reason: cf.reason})
		if err == nil {
			found, cluster = &done, l.Info.Name
			c.Proxy = name
			if who, err := client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{}); err == nil {
				node = who.Caller.Node
			}
			return
		}
		if f := proxyError(err, name); failed == nil || problem.CodeOf(err) != problem.NotFound {
			failed = f
		}
	})
	switch {
	case err != nil:
		return c, err
	case found == nil:
		return c, failed
	}
	s := found.Stream
	c = plane.Connection{ID: s.ID, Proxy: c.Proxy, Cluster: cluster, Stream: s.ID, Kind: s.Kind, Login: s.Login, Tailnet: s.Tailnet, Device: s.Device, Session: s.Session, Signin: s.Signin,
		Group: s.Group, Resource: s.Resource, Namespace: s.Namespace, Name: s.Name, Since: s.Since, Bytes: s.Bytes, Recording: s.Recording, Cut: plane.Action{Allowed: true}}
	if !cf.end {
		return c, nil
	}
	if node != s.Device { // a logout ends sign-ins of this device only
		return c, output.Errorf(output.ExitFailed, "The stream is cut, but its sign-in is of the device %s, and tka ends those of this device only", cmp.Or(s.Device, "?")).
			Try("Run there: tka logout")
	}
	_, err = t.logoutOf(ctx, signinFlags{cluster: cluster, session: s.Session}, false)
	return c, err
}
