package forge

import (
	"net/url"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		t.Skip("no URL")
	}
	return u
}

func TestPlace(t *testing.T) {
	for _, c := range []struct{ web, place, root, api string }{
		{"https://github.com", "https://github.com/acme", "/orgs/acme", "https://api.github.com"},
		{"https://github.com", "https://GitHub.com/Acme-1/app.x_y", "/repos/Acme-1/app.x_y", "https://api.github.com"},
		{"https://t.ghe.com", "https://t.ghe.com/enterprises/big", "/enterprises/big", "https://api.t.ghe.com"},
		{"https://ghes.example.com/git", "https://ghes.example.com/git/acme", "/orgs/acme", "https://ghes.example.com/git/api/v3"},
		{"https://github.com", "https://github.com/enterprises", "", ""},
		{"https://github.com", "https://github.com/acme/..", "", ""},
		{"https://github.com", "https://github.com/acme/app/x", "", ""},
		{"https://github.com", "https://github.com.evil.example/acme", "", ""},
		{"https://github.com", "http://github.com/acme", "", ""},
		{"https://ghes.example.com/git", "https://ghes.example.com/github/acme", "", ""},
	} {
		p, err := parseScope(parse(t, c.web), parse(t, c.place))
		if (err != nil) != (c.root == "") || err == nil && (p.root() != c.root || githubAPI(parse(t, c.web)) != c.api) {
			t.Errorf("%s: %+v, %q, %v", c.place, p, p.root(), err)
		}
	}
	org := scope{kind: orgScope, Owner: "acme"}
	repository := scope{kind: repositoryScope, Owner: "acme", Name: "app"}
	enterprise := scope{kind: enterpriseScope, Owner: "big"}
	for name, want := range map[string][3]bool{"acme/app": {true, true, true}, "ACME/App": {true, true, true}, "acme/web": {true, false, true}, "other/app": {false, false, true},
		"acme": {}, "acme/": {}, "/app": {}, "acme/..": {}, "acme/a/b": {}, "../acme/app": {}, "acme/a%2fb": {}} {
		if got := [3]bool{org.owns(name), repository.owns(name), enterprise.owns(name)}; got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// FuzzParse checks that for any input of an organisation's administrator, the path stays below one
// of three collections, with the expected number of segments.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"acme", "acme/app", "enterprises/x", "a/../b", "a%2fb", "a/b?c", ".", "a b"} {
		f.Add(s)
	}
	web := parse(f, "https://github.com")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseScope(web, parse(t, "https://github.com/"+s))
		if err != nil {
			return
		}
		parts := strings.Split(p.root(), "/")
		want := map[string]int{"orgs": 3, "enterprises": 3, "repos": 4}[parts[1]]
		switch {
		case len(parts) != want:
			t.Errorf("len(parts) = %v, want %v; %q", len(parts), want, s)
		case strings.ContainsAny(p.root(), "?#%\\ \n"):
			t.Errorf(`strings.ContainsAny(p.root(), "?#%%\\ \n") is true, %q, %q`, s, p.root())
		case strings.Contains(p.root(), "..") && strings.Trim(parts[len(parts)-1], ".") == "":
			t.Errorf(`strings.Contains(p.root(), "..") && strings.Trim(parts[len(parts)-1], ".") == ""; %q, %q`, s, p.root())
		}
	})
}
