// Package web is the dashboard as a browser gets it: one page, its script and its
// style, the plain text for who has no script, and what refusals look like to
// people. It keeps law 10: every name that others chose is escaped, and the
// browser itself is told to run, load and frame nothing but what is ours.
//
// The bundle in dist is built from the sources in web/ and committed, so that
// nobody needs Node to build the program; a test finds one that is older than its
// sources.
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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

//go:embed dist/index.html dist/assets
var dist embed.FS

// A Site is the dashboard. Overview is required.
type Site struct {
	// Overview is what /text shows to a caller: the desk's.
	Overview func(context.Context, access.Permit, plane.Empty) (plane.Envelope[plane.Overview], error)
	// Now is the time of what /text shows.
	Now func() time.Time
	// Capability and Contact are what the page for people without a role tells: the
	// name of the plane's capability in the tailnet policy, and whom to ask.
	Capability, Contact string
	// Tag, optional, is by what the plane's node stands in that policy.
	Tag string
}

// Paths are where the dashboard's pages lie. All are the one page: its script
// shows what the address says.
func Paths() []string {
	return []string{"/{$}", "/clusters", "/signins", "/network", "/fleet", "/orgs", "/orgs/{org}", "/pools/{forge}/{org}/{pool}", "/runners/{namespace}/{name}", "/changes", "/changes/{id}", "/confirm/{id}", "/adapters", "/audit", "/settings"}
}

// policy is what the browser may do with our pages: run and load what is ours,
// write HTML by Svelte's own templates only, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; " +
	"require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

// guarded are the headers of every answer to a browser.
func guarded(policy string) http.Header {
	return http.Header{
		"Content-Security-Policy":      {policy},
		"Cross-Origin-Opener-Policy":   {"same-origin"},
		"Cross-Origin-Resource-Policy": {"same-origin"},
		"Referrer-Policy":              {"no-referrer"},
		"X-Content-Type-Options":       {"nosniff"},
	}
}

// A PageRequest asks for the page. What it may say is read by the page's script:
// it is declared here, because the door refuses what nobody has declared.
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

// An AssetRequest asks for a file that the page refers to. Its name says what is
// in it.
type AssetRequest struct {
	File     string `json:"-" path:"file"`
	Encoding string `json:"-" header:"Accept-Encoding"`
}

// A File is an answer of bytes.
type File struct {
	contentType  string
	header       http.Header
	plain, small []byte // small: compressed, nil when that is not wanted or not worth it
}

// Shape implements [door.Shaped].
func (f File) Shape(string) (door.Shape, error) {
	s := door.Shape{Status: http.StatusOK, Header: maps.Clone(f.header), ContentType: f.contentType, Body: f.plain}
	if f.small != nil {
		s.Body = f.small
		s.Header.Set("Content-Encoding", "gzip")
	}
	return s, nil
}

// accepted is f for a browser that sent this Accept-Encoding.
func (f File) accepted(encoding string) File {
	for part := range strings.SplitSeq(encoding, ",") {
		name, q, _ := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
		if strings.EqualFold(name, "gzip") && strings.TrimRight(q, ".0") != "q=" {
			return f
		}
	}
	f.small = nil
	return f
}

// Routes are the dashboard's part of the plane's door. They panic when a required
// field is missing.
func (s Site) Routes() []door.Route {
	if s.Overview == nil || s.Now == nil {
		panic("web: a required field is missing")
	}
	files := bundle()
	var routes []door.Route
	for _, at := range Paths() {
		op := door.Op[PageRequest, File]{Pattern: "GET " + at, Verb: access.PlaneApp, Doc: "The dashboard.", Page: true}
		routes = append(routes, op.Serve(func(_ context.Context, p access.Permit, req PageRequest) (File, error) {
			return files["index.html"].accepted(req.Encoding), p.Require(access.PlaneApp, s.Now())
		}))
	}
	asset := door.Op[AssetRequest, File]{Pattern: "GET /assets/{file}", Verb: access.PlaneApp, Doc: "A file of the dashboard."}
	text := door.Op[plane.Empty, File]{Pattern: "GET /text", Verb: access.FleetRead, Doc: "The overview as plain text.", Page: true}
	return append(routes,
		asset.Serve(func(_ context.Context, p access.Permit, req AssetRequest) (File, error) {
			f, ok := files["assets/"+req.File]
			if !ok {
				return File{}, problem.New(problem.NotFound, "There is no such file.", "Reload the page: it is of another version of the server.")
			}
			return f.accepted(req.Encoding), p.Require(access.PlaneApp, s.Now())
		}),
		text.Serve(s.text))
}

// bundle reads the built files. They are compressed here and not when they are
// built: what two machines compress differs, and what is committed must not.
func bundle() map[string]File {
	files := map[string]File{}
	root, err := fs.Sub(dist, "dist")
	if err == nil {
		err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			plain, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			f := File{contentType: contentType(name), header: guarded(policy), plain: plain, small: compress(plain)}
			f.header.Set("Vary", "Accept-Encoding")
			if strings.HasPrefix(name, "assets/") {
				f.header.Set("Cache-Control", "private, max-age=31536000, immutable")
			}
			files[name] = f
			return nil
		})
	}
	if err != nil || files["index.html"].plain == nil {
		panic("web: the program was built without its dashboard") // go:embed would have failed
	}
	return files
}

// contentType is that of the few kinds of files that a bundle has.
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
