package client

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Access waits for the sign-in of a session and returns its kubeconfig in a mode. In the mode proxy, the token of the kubeconfig is the name
// of the session, and the server issues nothing.
func (c *Client) Access(ctx context.Context, session signin.Session, mode signin.Mode) (IssuedKubeconfig, error) {
	if mode == signin.ModeToken {
		return c.Kubeconfig(ctx, session)
	}
	g, err := c.ProxyKubeconfig(session)
	if err != nil {
		return g, err
	}
	st, err := c.ready(ctx, session)
	if err != nil {
		return IssuedKubeconfig{}, err
	}
	if g.Until, err = time.Parse(time.RFC3339, st.Until); err != nil {
		return IssuedKubeconfig{}, c.InvalidResponse("login", fmt.Errorf("the end of the sign-in, %.60q, is not a time", st.Until))
	}
	if places := namespacesOf(st); len(places) > 0 {
		g.Namespace = places[0]
	}
	if err := checkEntry(g.Kubeconfig); err != nil {
		return IssuedKubeconfig{}, c.InvalidResponse("login", err)
	}
	return g, nil
}

// ready waits for the sign-in of a session.
func (c *Client) ready(ctx context.Context, session signin.Session) (signin.Status, error) {
	return untilReady(ctx, c, func(wait time.Duration) (signin.Status, error) {
		st, err := Call(ctx, c, signin.Read, signin.ReadRequest{Session: session, Wait: httpapi.Duration(wait)})
		if err == nil && st.State == signin.Pending {
			err = c.Explain(ctx, problem.New(problem.NotReady, "The sign-in is not ready yet.").WithRetryAfter(retryAfterHeader(c.Last.Header)))
		}
		return st, err
	})
}

// namespacesOf returns the namespaces of a sign-in, sorted, or nil if a role is not limited to named namespaces.
func namespacesOf(st signin.Status) (all []string) {
	roles := st.Bind
	if len(roles) == 0 {
		roles = []signin.Role{{Namespaces: st.Namespaces}}
	}
	for _, r := range roles {
		if len(r.Namespaces)+len(r.Bound) == 0 {
			return nil
		}
		all = append(append(all, r.Namespaces...), r.Bound...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(all, func(ns string) bool { return slices.Contains(st.MissingNamespaces, ns) })
}

// ProxyKubeconfig returns the kubeconfig of a session for an access proxy that the server proved. If there are several, it is one that
// answers. It needs no sign-in.
func (c *Client) ProxyKubeconfig(session signin.Session) (IssuedKubeconfig, error) {
	if len(c.Info.Proxies) == 0 {
		return IssuedKubeconfig{}, c.InvalidResponse("cluster-info", errors.New("it names no access proxy"))
	}
	return c.proxyKubeconfig(c.proxy(session), session)
}

// proxyKubeconfig returns the kubeconfig of a session for a proxy.
func (c *Client) proxyKubeconfig(p signin.ProxyServer, session signin.Session) (IssuedKubeconfig, error) {
	k := signin.Kubeconfig{Cluster: c.Info.Name, Session: session, Server: strings.TrimSuffix(p.URL, "/") + signin.SessionPath(session), CA: p.CAData,
		Token: secret.New(signin.SessionToken(session))}
	err := checkEntry(k)
	if u, _ := url.Parse(p.URL); err == nil && u.Path != "" && u.Path != "/" {
		err = fmt.Errorf("the URL of the access proxy, %.80q, has a path", p.URL)
	}
	if err == nil && len(p.CAData) > 0 {
		err = checkCA(p.CAData)
	}
	if err != nil {
		return IssuedKubeconfig{}, c.InvalidResponse("cluster-info", err)
	}
	return IssuedKubeconfig{Kubeconfig: k, Mode: signin.ModeProxy}, nil
}

// CheckMode returns an error if the server does not offer a mode.
func (c *Client) CheckMode(mode signin.Mode) error {
	offered := c.Info.AccessModes()
	if slices.Contains(offered, mode) {
		return nil
	}
	f := output.Errorf(output.ExitRefused, "The cluster %s does not offer the mode %s", c.Info.Name, mode)
	if len(offered) == 0 {
		return f.Try("This version of tka knows no mode that the cluster offers: install the version of the server, %s.", c.Info.Version)
	}
	return f.Try("It offers the mode %s: --mode %s", offered[0], offered[0])
}
