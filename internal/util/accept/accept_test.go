package accept_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tailplane/tailplane/internal/util/accept"
)

func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		why     string
		headers []string
		want    []string
	}{
		{"no header", nil, nil},
		{"an empty header", []string{""}, nil},
		{"one type", []string{"application/json"}, []string{"application/json 1 true"}},
		{"several types in the client's order", []string{"text/html, */*;q=0.8", "application/*"}, []string{"text/html 1 true", "*/* 0.8 true", "application/* 1 true"}},
		{"another case", []string{"Text/HTML; Q=0.5"}, []string{"text/html 0.5 true"}},
		{"a type that is not wanted", []string{"text/html;q=0"}, []string{"text/html 0 true"}},
		{"a quality that is not a number", []string{"text/html;q=best"}, []string{"text/html 0 false"}},
		{"a malformed range between two", []string{"text/html,a b;;,application/json"}, []string{"text/html 1 true", "application/json 1 true"}},
	} {
		var got []string
		for r := range accept.Ranges(tt.headers...) {
			q, ok := r.Quality()
			got = append(got, fmt.Sprint(r.Media, " ", q, " ", ok))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.why, got, tt.want)
		}
	}
	for r := range accept.Ranges(`application/json; as=Table;v="v1"; g=meta.k8s.io;q=0.9`) {
		switch {
		case r.Params["as"] != "Table":
			t.Errorf(`parameters: r.Params["as"] = %q, want %q`, r.Params["as"], "Table")
		case r.Params["v"] != "v1":
			t.Errorf(`parameters: r.Params["v"] = %q, want %q`, r.Params["v"], "v1")
		case r.Params["g"] != "meta.k8s.io":
			t.Errorf(`parameters: r.Params["g"] = %q, want %q`, r.Params["g"], "meta.k8s.io")
		}
	}
}

func TestIncludes(t *testing.T) {
	lines := []string{"application/jsonl", "application/x-ndjson"}
	for header, want := range map[string]bool{
		"": false, "application/jsonl": true, "application/json, application/x-ndjson;q=0.1": true,
		"application/json": false, "*/*": false, "application/jsonlx": false,
	} {
		if got := accept.Includes(lines, header); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
