// Package web serves the dashboard to browsers: one page with its script and style, plain text for clients without scripts, and error
// pages. It keeps law 10: all foreign names are escaped. The content security policy lets the browser run and load only the site's own
// content, and lets no other site frame it.
//
// The bundle in dist is built from the sources in web/ and committed, so that building the program does not need Node. A test detects a
// bundle that is older than its sources.
package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

//go:embed dist/index.html dist/assets
var dist embed.FS

// Site is the dashboard. Overview and Now are required.
type Site struct {
	// Overview returns the overview that /text shows. It is a method of plane.Service.
	Overview func(context.Context, access.Permit, plane.Empty) (plane.Envelope[plane.Overview], error)
	// Now returns the current time, which /text shows.
	Now func() time.Time
	// Capability and Contact are for the page that people without a role see: the name of the plane's capability in the tailnet policy, and
	// the contact for access.
	Capability, Contact string
	// Tag is the plane's tag in that policy. It is optional.
	Tag string
}

// Paths returns the paths of the dashboard's pages. All serve the same page; its script shows the content for the path.
func Paths() []string {
	return []string{"/{$}", "/clusters", "/signins", "/connections", "/recordings", "/network", "/fleet", "/orgs", "/orgs/{org}", "/pools/{forge}/{org}/{pool}", "/runners/{namespace}/{name}", "/changes", "/changes/{id}", "/confirm/{id}", "/adapters", "/audit", "/settings"}
}

// policy is the content security policy of the pages. The browser may run and load only the site's own content, and only Svelte's templates
// may create HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; " +
	"require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

// securityHeaders returns the security headers of every response to a browser.
func securityHeaders(policy string) http.Header {
	return http.Header{
		"Content-Security-Policy":      {policy},
		"Cross-Origin-Opener-Policy":   {"same-origin"},
		"Cross-Origin-Resource-Policy": {"same-origin"},
		"Referrer-Policy":              {"no-referrer"},
		"X-Content-Type-Options":       {"nosniff"},
	}
}

// PageRequest asks for the page. Only the page's script reads these parameters. They are declared because the server rejects undeclared
// ones.
type PageRequest struct {
	Tab      string `json:"-" query:"tab"`
	Query    string `json:"-" query:"q"`
	State    string `json:"-" query:"state"`
	Sort     string `json:"-" query:"sort"`
	Open     string `json:"-" query:"open"`
	Since    string `json:"-" query:"since"`
	Actor    string `json:"-" query:"actor"`
	Verb     string `json:"-" query:"verb"`
	Org      string `json:"-" query:"org"`
	Reads    string `json:"-" query:"reads"`
	Encoding string `json:"-" header:"Accept-Encoding"`
}

// AssetRequest asks for a file of the page. Its name contains a hash of its content.
type AssetRequest struct {
	File     string `json:"-" path:"file"`
	Encoding string `json:"-" header:"Accept-Encoding"`
}

// File is a response with the content of a file.
type File struct {
	contentType  string
	header       http.Header
	plain, small []byte // small is compressed; nil if not accepted or not smaller
}

// EncodeResponse implements [httpapi.Responder].
func (f File) EncodeResponse(string) (httpapi.Response, error) {
	s := httpapi.Response{Status: http.StatusOK, Header: maps.Clone(f.header), ContentType: f.contentType, Body: f.plain}
	if f.small != nil {
		s.Body = f.small
		s.Header.Set("Content-Encoding", "gzip")
	}
	return s, nil
}

// forEncoding returns f for a browser with this Accept-Encoding.
func (f File) forEncoding(encoding string) File {
	for part := range strings.SplitSeq(encoding, ",") {
		name, q, _ := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
		if strings.EqualFold(name, "gzip") && strings.TrimRight(q, ".0") != "q=" {
			return f
		}
	}
	f.small = nil
	return f
}

// Routes returns the dashboard's routes for the plane's server. It panics if a required field is missing.
func (s Site) Routes() []httpapi.Route {
	if s.Overview == nil || s.Now == nil {
		panic("web: a required field is missing")
	}
	files := bundle()
	var routes []httpapi.Route
	for _, at := range Paths() {
		op := httpapi.Op[PageRequest, File]{Pattern: "GET " + at, Verb: access.PlaneApp, Doc: "The dashboard.", Page: true}
		routes = append(routes, op.Serve(func(_ context.Context, p access.Permit, req PageRequest) (File, error) {
			return files["index.html"].forEncoding(req.Encoding), p.Require(access.PlaneApp, s.Now())
		}))
	}
	asset := httpapi.Op[AssetRequest, File]{Pattern: "GET /assets/{file}", Verb: access.PlaneApp, Doc: "A file of the dashboard."}
	text := httpapi.Op[plane.Empty, File]{Pattern: "GET /text", Verb: access.FleetRead, Doc: "The overview as plain text.", Page: true}
	return append(routes,
		asset.Serve(func(_ context.Context, p access.Permit, req AssetRequest) (File, error) {
			f, ok := files["assets/"+req.File]
			if !ok {
				return File{}, problem.New(problem.NotFound, "The file does not exist.", "Reload the page. It belongs to a different version of the server.")
			}
			return f.forEncoding(req.Encoding), p.Require(access.PlaneApp, s.Now())
		}),
		text.Serve(s.textPage))
}

// bundle reads the built files. It compresses them at startup and not at build time, because compression differs between machines and the
// committed files must not.
func bundle() map[string]File {
	files := map[string]File{}
	err := fs.WalkDir(dist, "dist", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		plain, err := dist.ReadFile(at)
		f := File{contentType: contentType(at), header: securityHeaders(policy), plain: plain, small: compress(plain)}
		f.header.Set("Vary", "Accept-Encoding")
		name := strings.TrimPrefix(at, "dist/")
		if strings.HasPrefix(name, "assets/") {
			f.header.Set("Cache-Control", "private, max-age=31536000, immutable")
		}
		files[name] = f
		return err
	})
	if err != nil || files["index.html"].plain == nil {
		panic("web: the program was built without the dashboard") // go:embed would have failed
	}
	return files
}

// contentType returns the content type of a bundle file.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	}
	return "application/octet-stream"
}

func compress(plain []byte) []byte {
	var small bytes.Buffer
	w, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
	if err != nil {
		return nil
	}
	if _, err := w.Write(plain); err != nil || w.Close() != nil || small.Len() >= len(plain) {
		return nil
	}
	return small.Bytes()
}
