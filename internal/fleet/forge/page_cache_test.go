package forge

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tailplane/tailplane/internal/util/httptransport"
)

// Responses have a size limit, and so does the page cache.
func TestPages(t *testing.T) {
	quoted := func(c string, n int) []byte { return []byte(`"` + strings.Repeat(c, n) + `"`) }
	large, half := quoted("x", 17<<20), quoted("y", 3<<20)
	var plain atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/large":
			w.Write(large)
			return
		case r.Header.Get("If-None-Match") == `"`+r.URL.Path+`"`:
			w.WriteHeader(http.StatusNotModified)
			return
		}
		plain.Add(1)
		w.Header().Set("ETag", `"`+r.URL.Path+`"`)
		w.Write(half)
	}))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := httptransport.New(httptransport.Config{Base: base})
	if err != nil {
		t.Fatal(err)
	}
	var retained pageCache
	get := func(path string) (status int, body []byte, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := retained.roundTrip(transport, r)
		if err != nil {
			return 0, nil, err
		}
		body, err = io.ReadAll(response.Body)
		return response.StatusCode, body, err
	}
	if _, _, err := get("/large"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
	for range 3 { // the cache has room for two of them, not for three
		for i := range 2 {
			switch status, body, err := get(fmt.Sprintf("/%d", i)); {
			case err != nil:
				t.Fatal(err)
			case status != http.StatusOK:
				t.Fatalf("status = %v, want %v", status, http.StatusOK)
			case !bytes.Equal(body, half):
				t.Fatalf("body = %q, want %q", body, half)
			}
		}
	}
	if plain.Load() != 2 {
		t.Errorf("%d pages were sent", plain.Load())
	}
	for _, path := range []string{"/2", "/0"} { // the third clears the cache
		if _, body, err := get(path); err != nil || !bytes.Equal(body, half) {
			t.Fatal(err)
		}
	}
	if plain.Load() != 4 {
		t.Errorf("%d pages were sent", plain.Load())
	}
}
