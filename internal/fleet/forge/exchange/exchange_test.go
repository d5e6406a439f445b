package exchange_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge/exchange"
)

func host(t *testing.T, server *httptest.Server, bundle []byte) *exchange.Host {
	t.Helper()
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := exchange.New(base, bundle)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(t *testing.T, h *exchange.Host, path string) (*exchange.Answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return h.Ask(ctx, exchange.Request{Method: http.MethodGet, Path: path}, func(int, http.Header) {})
}

// Who is trusted is said: a certificate that nobody vouches for gets no request.
func TestTrust(t *testing.T) {
	var asked atomic.Int32
	serve := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked.Add(1) }))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that fails, as it should
		s.StartTLS()
		return s
	}
	trusted := serve()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Certificate().Raw})
	if a, err := get(t, host(t, trusted, bundle), "/"); err != nil || a.Status != http.StatusOK || asked.Load() != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := get(t, host(t, serve(), nil), "/"); err == nil || a != nil || asked.Load() != 1 {
		t.Errorf("a stranger: %+v, %v", a, err)
	}
	if _, err := exchange.New(&url.URL{}, []byte("no certificate")); err == nil {
		t.Error("a bundle without a certificate is taken")
	}
}

// Answers have an end, and pages are not kept for ever.
func TestBounds(t *testing.T) {
	large := bytes.Repeat([]byte("x"), 17<<20)
	half := bytes.Repeat([]byte("y"), 3<<20)
	var plain atomic.Int32
	h := host(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	})), nil)
	if _, err := get(t, h, "/large"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
	for range 3 { // two of these are kept, not three
		for i := range 2 {
			if a, err := get(t, h, fmt.Sprintf("/%d", i)); err != nil || a.Status != http.StatusOK || !bytes.Equal(a.Body, half) {
				t.Fatal(err)
			}
		}
	}
	if plain.Load() != 2 {
		t.Errorf("%d pages were sent", plain.Load())
	}
	for _, path := range []string{"/2", "/0"} { // the third makes room
		if a, err := get(t, h, path); err != nil || !bytes.Equal(a.Body, half) {
			t.Fatal(err)
		}
	}
	if plain.Load() != 4 {
		t.Errorf("%d pages were sent", plain.Load())
	}
}
