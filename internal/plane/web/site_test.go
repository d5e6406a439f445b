package web_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/web"
)

// site serves the pages behind a real server, for one caller.
func site(c access.Caller) http.Handler {
	return siteFor(func() access.Caller { return c })
}

// siteFor serves the pages for the caller that who returns.
func siteFor(who func() access.Caller) http.Handler {
	now := func() time.Time { return time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC) }
	s := web.Site{Now: now, Capability: "tailplane.dev/cap/plane", Contact: `<b>us</b> & "them"`,
		Overview: func(_ context.Context, p access.Permit, _ plane.Empty) (plane.Envelope[plane.Overview], error) {
			if err := p.Require(access.FleetRead, now()); err != nil {
				return plane.Envelope[plane.Overview]{}, err
			}
			return plane.Envelope[plane.Overview]{
				Data: plane.Overview{Clusters: &plane.Tally{Total: 3, States: map[string]int{"Alive": 2, "Dead": 1}}, Hidden: []plane.Kind{plane.KindRoute},
					Attention: []plane.Attention{{Severity: plane.SeverityError, Kind: plane.KindCluster, ID: "edge\x1b[2J\u202e", Reason: "Dead", Message: "None of its access servers responds."}}, More: 4},
				Meta: plane.Meta{Sources: []plane.Source{{Name: "gossip", Status: plane.StatusDown, Message: "no\nanswer"}}},
			}, nil
		}}
	d := httpapi.Server{Names: func() []string { return []string{"dashboard"} }, Identify: func(*http.Request) (access.Caller, error) { return who(), nil },
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, at)
		},
		Record: func(audit.Entry) error { return nil }, Encoder: s.Form(plane.EnvelopeForm()), Log: slog.New(slog.DiscardHandler), Now: now}
	return d.Handler(s.Routes()...)
}

func caller(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n1", Name: "lap<i>top"}, Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, []byte(r))
	}
	return c
}

func viewer() access.Caller { return caller("vic@acme.dev", `{"role":"viewer","orgs":["*"]}`) }

func get(h http.Handler, path string, header ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "dashboard"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	in := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(in)
		if err != nil {
			t.Fatal(err)
		}
		in = z
	}
	b, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

// Every path has the same page, which is never cached and has the content security policy of the contract.
func TestPages(t *testing.T) {
	h := site(viewer())
	for _, path := range web.Paths() {
		path = strings.NewReplacer("{$}", "", "{id}", "0b1c", "{org}", "acme", "{forge}", "github", "{pool}", "gh-nix", "{namespace}", "runners", "{name}", "acme-gh-nix-a").Replace(path)
		r := get(h, path+"?q=a&state=b&sort=-c&open=d&tab=e&since=f&actor=g&verb=h&org=i", "Accept", "text/html")
		for name, want := range map[string]string{"Content-Security-Policy": policy, "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Content-Type": "text/html; charset=utf-8", "Vary": "Accept-Encoding"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if r.StatusCode != http.StatusOK || !strings.Contains(body(t, r), `<div id="app">`) {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
}

// HEAD works for pages and for nothing else.
func TestHeads(t *testing.T) {
	h := site(viewer())
	for path, want := range map[string]int{"/": http.StatusOK, "/text": http.StatusOK, "/assets/none.js": http.StatusMethodNotAllowed, "/none": http.StatusNotFound} {
		r := httptest.NewRequest(http.MethodHead, path, nil)
		r.Host = "dashboard"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || want == http.StatusOK && (w.Header().Get("Content-Security-Policy") == "" || w.Header().Get("Content-Length") == "0") {
			t.Errorf("HEAD %s: %d %v, want %d", path, w.Code, w.Header(), want)
		}
	}
}

// File names depend on the content, so browsers may cache them. A client that accepts compression receives it, and both forms have the same
// content.
func TestAssets(t *testing.T) {
	h := site(viewer())
	refs := regexp.MustCompile(`/assets/[^"]+`).FindAllString(body(t, get(h, "/")), -1)
	if len(refs) < 2 {
		t.Fatalf("the page has %v", refs)
	}
	for _, ref := range refs {
		plain, small := get(h, ref), get(h, ref, "Accept-Encoding", "br;q=1, gzip;q=0.8")
		if plain.Header.Get("Content-Encoding") != "" || small.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: encoded %q and %q", ref, plain.Header.Get("Content-Encoding"), small.Header.Get("Content-Encoding"))
		}
		if a, b := body(t, plain), body(t, small); a != b || len(a) < 1000 {
			t.Errorf("%s: %d bytes, and %d from compressed ones", ref, len(a), len(b))
		}
		if got := small.Header.Get("Cache-Control"); got != "private, max-age=31536000, immutable" {
			t.Errorf("%s: %s", ref, got)
		}
		for _, refused := range []string{"gzip;q=0", "gzip; q=0.0", "br", "gzipped"} {
			if r := get(h, ref, "Accept-Encoding", refused); r.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s was encoded for %q", ref, refused)
			}
		}
	}
	for _, path := range []string{"/assets/none.js", "/assets/", "/assets/index.html", "/assets/..%2findex.html", "/index.html", "/dist/index.html", "/source.sha256", "/assets/../index.html"} {
		if r := get(h, path); r.StatusCode != http.StatusNotFound || r.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d, %s", path, r.StatusCode, r.Header.Get("Cache-Control"))
		}
	}
}

// PL-01: a person without a role receives a page with the identity that the plane sees and the next step, and nothing of the application or
// the installation. Machines receive JSON.
func TestDeniedPage(t *testing.T) {
	h := site(caller(`mallory<script>alert(1)</script>@x.dev`))
	for _, path := range []string{"/", "/clusters", "/text"} {
		r := get(h, path, "Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
		page := body(t, r)
		if r.StatusCode != http.StatusForbidden || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
			t.Fatalf("%s: %d, %s", path, r.StatusCode, r.Header.Get("Content-Type"))
		}
		for _, want := range []string{"You have no role here", "mallory&lt;script&gt;alert(1)&lt;/script&gt;@x.dev", "lap&lt;i&gt;top", "tailnet", "&lt;b&gt;us&lt;/b&gt; &amp; &#34;them&#34;", "tailplane.dev/cap/plane",
			"&#34;ip&#34;: [&#34;tcp:443&#34;]", "{&#34;src&#34;: [&#34;mallory&lt;script&gt;", r.Header.Get("X-Request-Id"), "not_authorized_user"} {
			if want == "" || !strings.Contains(page, want) {
				t.Errorf("%s: %q is not in the page", path, want)
			}
		}
		for _, not := range []string{"<script", "/assets/", `id="app"`, "gossip", "edge"} {
			if strings.Contains(page, not) {
				t.Errorf("%s: %q is in the page", path, not)
			}
		}
		csp := r.Header.Get("Content-Security-Policy")
		switch {
		case !strings.HasPrefix(csp, "default-src 'none'; style-src 'sha256-"):
			t.Errorf("%s: csp = %q does not start with %q", path, csp, "default-src 'none'; style-src 'sha256-")
		case strings.Contains(csp, "script-src"):
			t.Errorf("%s: csp = %q contains %q", path, csp, "script-src")
		case r.Header.Get("Cache-Control") != "no-store":
			t.Errorf(`%s: r.Header.Get("Cache-Control") != "no-store", %s, %s`, path, csp, r.Header.Get("Cache-Control"))
		}
	}
	refs := regexp.MustCompile(`/assets/[^"]+`).FindAllString(body(t, get(site(viewer()), "/")), -1)
	for _, path := range append(refs, "/api/v1/me", "/mcp") {
		if r := get(h, path, "Accept", "text/html"); !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") || r.StatusCode == http.StatusOK {
			t.Errorf("%s: %d, %s", path, r.StatusCode, r.Header.Get("Content-Type"))
		}
	}
	if r := get(h, "/", "Accept", "*/*"); !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		t.Errorf("curl gets %s", r.Header.Get("Content-Type"))
	}
}

// An address that the pages do not accept also gives an error page.
func TestUnreadableAddress(t *testing.T) {
	r := get(site(viewer()), "/clusters?utm_source=x", "Accept", "text/html")
	switch page := body(t, r); {
	case r.StatusCode != http.StatusBadRequest:
		t.Errorf("r.StatusCode = %v, want %v", r.StatusCode, http.StatusBadRequest)
	case !strings.Contains(page, "This address is not valid"):
		t.Errorf("page = %q does not contain %q", page, "This address is not valid")
	case !strings.Contains(page, "utm_source"):
		t.Errorf("page = %q does not contain %q", page, "utm_source")
	}
}

// A tagged node never receives the pages, whatever a grant says of the API.
func TestTaggedNodesGetNoPage(t *testing.T) {
	c := caller("", `{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`)
	c.Tags = []access.Tag{"tag:ci"}
	r := get(site(c), "/", "Accept", "text/html")
	if page := body(t, r); r.StatusCode != http.StatusForbidden || !strings.Contains(page, "tagged_node") {
		t.Errorf("%d: %s", r.StatusCode, page)
	}
}

// The text is for terminals. It states what is unknown and contains no cursor movements.
func TestText(t *testing.T) {
	r := get(site(viewer()), "/text")
	text := body(t, r)
	if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Fatalf("%d, %s", r.StatusCode, r.Header.Get("Content-Type"))
	}
	for _, want := range []string{`(?m)^Clusters +3 +2 Alive, 1 Dead$`, `(?m)^Sign-ins +not known$`, `(?m)^Routes +no access$`, `error +cluster edge�\[2J� +Dead +None of its`, `and 4 more`, `gossip +down +has never responded +no�answer`, `vic@acme\.dev`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	if strings.ContainsAny(text, "\x1b\u202e") {
		t.Error("a name moves the cursor")
	}
}

// Routes panics if a required field is missing.
func TestRoutesNeedTheirParts(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it opens")
		}
	}()
	web.Site{}.Routes()
}

// FuzzRefusal checks that a login, device or contact never becomes HTML.
func FuzzRefusal(f *testing.F) {
	for _, s := range []string{"", "a@b", "<script>", "\"'><img src=x>", "\x00\x1b\u202e", "&lt;", "</pre></style><script>"} {
		f.Add(s, s)
	}
	elements := regexp.MustCompile(`<(/?[a-zA-Z!][^ >]*)`)
	var now access.Caller
	h := siteFor(func() access.Caller { return now })
	names := func(t *testing.T, c access.Caller) []string {
		now = c
		var all []string
		for _, m := range elements.FindAllStringSubmatch(body(t, get(h, "/", "Accept", "text/html")), -1) {
			all = append(all, m[1])
		}
		return all
	}
	f.Fuzz(func(t *testing.T, login, device string) {
		plain, hostile := caller("a@b"), caller("a@b")
		hostile.Login, hostile.Device.Name = access.Login("x"+login), "x"+device
		if got, want := names(t, hostile), names(t, plain); !slices.Equal(got, want) {
			t.Error(errors.New(strings.Join(got, " ")), "want", want)
		}
	})
}
