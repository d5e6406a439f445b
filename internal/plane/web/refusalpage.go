package web

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"strings"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/accept"
)

// Form returns api with one change: a browser that opens a page receives errors as a page. That page contains neither the application nor
// data of the installation.
func (s Site) Form(api *httpapi.Encoder) *httpapi.Encoder {
	return &httpapi.Encoder{
		EncodeResponse: api.EncodeResponse,
		EncodeRefusal: func(about httpapi.RequestInfo, p *problem.Error) httpapi.Response {
			if !wantsPage(about) {
				return api.EncodeRefusal(about, p)
			}
			h := securityHeaders(refusalPolicy())
			h.Set("Vary", "Accept")
			return httpapi.Response{Status: p.Code.Status(), Header: h, ContentType: "text/html; charset=utf-8", Body: s.refusalPage(about, p)}
		},
	}
}

// wantsPage reports whether the request comes from a browser that opens a page.
func wantsPage(about httpapi.RequestInfo) bool {
	for _, machines := range []string{"/api", "/mcp", "/assets"} {
		if about.Path == machines || strings.HasPrefix(about.Path, machines+"/") {
			return false
		}
	}
	return accept.Includes([]string{"text/html"}, about.Accept)
}

// style is the complete style of an error page. It is inline because a refused caller must not receive any files. The content security
// policy has its hash.
const style = `:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif;background:light-dark(#f6f7f9,#0d1015);color:light-dark(#151a21,#e8ebf0)}` +
	`body{margin:0;padding:10vh 1.25rem 3rem}main{max-width:40rem;margin:auto;padding:2rem;background:light-dark(#fff,#14181f);border:1px solid light-dark(#e3e6eb,#252c36);border-radius:12px;overflow-wrap:anywhere}` +
	`h1{font-size:1.375rem;line-height:1.3;letter-spacing:-.01em;margin:0 0 .75rem}h2{font-size:1rem;margin:1.75rem 0 .5rem}p{margin:.5rem 0}` +
	`dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.25rem;margin:1.25rem 0}dt,.small{color:light-dark(#545e6d,#9da8b7)}dd{margin:0}.small{font-size:.875rem;margin-top:1.75rem}` +
	`pre{margin:.5rem 0;padding:.875rem 1rem;background:light-dark(#f0f2f5,#10141a);border:1px solid light-dark(#e3e6eb,#252c36);border-radius:8px;white-space:pre-wrap;font:.875rem/1.5 ui-monospace,monospace}`

func refusalPolicy() string {
	sum := sha256.Sum256([]byte(style))
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'", base64.StdEncoding.EncodeToString(sum[:]))
}

// refusalPage returns the error page. All foreign text goes through esc.
func (s Site) refusalPage(about httpapi.RequestInfo, p *problem.Error) []byte {
	esc := func(text string) string { return html.EscapeString(oneLine(text)) }
	title := refusalTitle(p.Code)
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>%s · Tailplane</title>\n<style>%s</style>\n<main>\n<h1>%s</h1>\n<p>%s</p>\n",
		title, style, title, esc(p.Message))
	c := about.Caller
	if c.Device.Name != "" || c.Login != "" {
		fmt.Fprintf(&b, "<dl>\n<dt>Login</dt><dd>%s</dd>\n<dt>Device</dt><dd>%s</dd>\n<dt>Known by</dt><dd>%s</dd>\n</dl>\n", cmp.Or(esc(string(c.Login)), "none"), esc(c.Device.Name), esc(string(c.Via)))
	}
	if p.Code == problem.NotAuthorized {
		ask := "Ask the administrator of the tailnet policy."
		if s.Contact != "" {
			ask = "Ask " + esc(s.Contact) + "."
		}
		fmt.Fprintf(&b, "<h2>How to get access</h2>\n<p>%s This grant in the tailnet policy would give you read access:</p>\n<pre>%s</pre>\n", ask, esc(s.grantExample(string(c.Login))))
	} else {
		for _, advice := range p.Advice {
			fmt.Fprintf(&b, "<p>%s</p>\n", esc(advice))
		}
	}
	if p.Code == problem.NotFound {
		b.WriteString("<p><a href=\"/\">To the overview</a></p>\n")
	}
	fmt.Fprintf(&b, "<p class=\"small\">Refused with %d %s. The audit log of this server has an entry for request %s.</p>\n</main>\n</html>\n", p.Code.Status(), esc(string(p.Code)), esc(about.RequestID))
	return []byte(b.String())
}

// refusalTitle returns the title of an error page.
func refusalTitle(c problem.Code) string {
	switch c {
	case problem.NotAuthorized:
		return "You have no role here"
	case problem.TaggedNode:
		return "This device belongs to no person"
	case problem.NotFound:
		return "There is nothing at this address"
	case problem.BadRequest:
		return "This address is not valid"
	case problem.RateLimited:
		return "Too many requests"
	}
	if c.Status() >= 500 {
		return "This server cannot respond now"
	}
	return "You have no access"
}

// grantExample returns an example grant for the tailnet policy that would admit the login.
func (s Site) grantExample(login string) string {
	quoted := func(text string) string {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // the page escapes it
		if err := e.Encode(text); err != nil {
			return `""` // a string can always be encoded
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	return fmt.Sprintf(`{"src": [%s], "dst": [%s], "ip": ["tcp:443"], "app": {%s: [{"role": "viewer", "orgs": ["*"]}]}}`, quoted(login), quoted(cmp.Or(s.Tag, "THE TAG OF THIS SERVER")), quoted(s.Capability))
}
