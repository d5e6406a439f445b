package tailnettest

import (
	"context"
	"html/template"
	"net/http"
	"slices"
	"strings"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/rands"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

// pendingLogin is a node that waits until a person submits the login page.
type pendingLogin struct {
	req     *tailcfg.RegisterRequest
	machine key.MachinePublic
	done    chan struct{} // closed when the person has chosen
	owner   string
	refused string // reason why the node was rejected
}

// askLocked returns the URL of a login page for the node. It returns the same URL while the node waits.
func (c *control) askLocked(req *tailcfg.RegisterRequest, mk key.MachinePublic) string {
	for id, p := range c.pending {
		if p.owner == "" && p.machine == mk && p.req.NodeKey == req.NodeKey {
			return c.url + "/login/" + id
		}
	}
	id := rands.HexString(24)
	c.pending[id] = &pendingLogin{req: req, machine: mk, done: make(chan struct{})}
	return c.url + "/login/" + id
}

// pendingLocked returns the login for a page's URL or ID.
func (c *control) pendingLocked(url string) *pendingLogin {
	return c.pending[strings.TrimPrefix(url, c.url+"/login/")]
}

// waitLogin waits until a person submits the page. It returns false if that does not happen.
func (c *control) waitLogin(ctx context.Context, url string) bool {
	c.mu.Lock()
	p := c.pendingLocked(url)
	c.mu.Unlock()
	if p == nil {
		return true // register then starts a new login
	}
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

func (c *control) refusedLocked(url string) string {
	if p := c.pendingLocked(url); url != "" && p != nil {
		return p.refused
	}
	return ""
}

var loginPage = template.Must(template.New("login").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sign in to {{.Domain}}</title>
{{if .Said}}<p role="status">{{.Said}}</p>{{else}}
<h1>Who is at {{.Host}}?</h1>
<p>This is the testbed's tailnet {{.Domain}}: there are no passwords, choose a persona.{{with .Tags}} The node asks for {{.}}.{{end}}</p>
<form method="post">
{{range .Logins}}<button name="login" value="{{.}}">{{.}}</button>
{{end}}</form>
<form method="post"><label>somebody else <input name="login" type="email" required></label> <button>sign in</button></form>
{{end}}</html>
`))

// serveLogin serves the page behind a node's AuthURL, on which the person chooses a login.
func (c *control) serveLogin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
	say := func(code int, said string) {
		w.WriteHeader(code)
		loginPage.Execute(w, map[string]any{"Domain": c.domain, "Said": said})
	}
	c.mu.Lock()
	p := c.pending[r.PathValue("id")]
	var logins []string
	if p != nil {
		logins = c.policy.Logins()
		for _, u := range c.users {
			logins = append(logins, u.login)
		}
	}
	c.mu.Unlock()
	switch {
	case p == nil:
		say(http.StatusNotFound, "This login does not exist.")
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		slices.Sort(logins)
		loginPage.Execute(w, map[string]any{"Domain": c.domain, "Host": p.req.Hostinfo.Hostname,
			"Tags": p.req.Hostinfo.RequestTags, "Logins": slices.Compact(logins)})
	case r.Method == http.MethodPost:
		r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
		login := r.PostFormValue("login")
		if !tailpolicy.IsLogin(login) {
			say(http.StatusBadRequest, "That is not a login name.")
			return
		}
		if refused := c.complete(p, login); refused != "" {
			say(http.StatusForbidden, refused)
			return
		}
		say(http.StatusOK, "Done: the node is "+login+"'s. You can close this page.")
	default:
		say(http.StatusMethodNotAllowed, "This page accepts GET and POST only.")
	}
}

// complete admits the waiting node as a node of login, or returns the reason why not.
func (c *control) complete(p *pendingLogin, login string) (refused string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.owner != "" {
		return "This login was already used."
	}
	p.owner = login
	defer close(p.done)
	tags, err := c.policy.TagsFor(login, nil, p.req.Hostinfo.RequestTags)
	if err != nil {
		p.refused = err.Error()
		return p.refused
	}
	c.admitLocked(p.req, p.machine, login, tags, false)
	return ""
}
